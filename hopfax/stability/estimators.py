"""Monte Carlo estimates of noise stability, with standard errors.

Samples are evaluated in batches of fixed size, so memory does not grow with their number.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from hopfax.checks import check_count, check_key, check_range, is_tracing, one_array, real_type
from hopfax.stability.batches import prepare_batched
from hopfax.stability.noise import bit_pair, flip_pair, gaussian_pair

Fn = Callable[[Array], Array]
Pair = Callable[..., tuple[Array, Array]]
Rhos = float | np.ndarray | Float[Array, ""] | Float[Array, " rhos"]


class Estimate(NamedTuple):
    """A Monte Carlo mean and its standard error.

    Attributes:
        mean: The estimate.
        standard_error: Estimated standard deviation of the mean; ±1.96 standard errors are a 95 %
            interval. If all but a few samples are equal, it follows Agresti and Coull and counts
            two more of the rare samples than occurred, so it is not 0 for an event that never
            occurred in n samples, nor for a constant (2.83 |s| / n at stability s). It is infinite
            if `fn` is 0 at all inputs drawn.
        num_samples: Number of independent samples.
    """

    mean: Float[Array, "..."]
    standard_error: Float[Array, "..."]
    num_samples: Int[Array, ""]


class _Moments(NamedTuple):  # of a sample
    count: Float[Array, ""]
    mean: Float[Array, "..."]
    squares: Float[Array, "..."]  # sum of squared deviations from the mean
    untied: Int[Array, "..."]  # compared pairs of samples that are not equal
    size: Float[Array, "..."]  # largest bound on values that the statistic returned


def noise_stability(
    fn: Fn,
    key: PRNGKeyArray,
    *,
    shape: tuple[int, ...],
    rho: Rhos,
    num_samples: int,
    pair: Pair = gaussian_pair,
    arc_points: int = 2,
    per_output: bool = False,
    batch_size: int = 1024,
) -> Estimate:
    r"""Estimates noise stability, the agreement of a function's outputs on correlated inputs.

    $$\mathrm{Stab}_\rho(f) = E\,\langle f(X), f(Y)\rangle = \sum_k \rho^k W^k(f)$$

    Several $\rho$ share the draws of X and the outputs at X, so ten $\rho$ cost less than ten times
    one. If `fn` is slow, compile it: `net = jax.jit(net)`, then `fn = lambda x: net(params, x)`.

    Args:
        fn: A jittable function of one input, returning one array of real numbers, such as
            `lambda x: model(x[None], mask)[0]`.
        key: Random key.
        shape: Shape of an input.
        rho: Correlation, in [-1, 1]: a number, or a vector of them.
        num_samples: Independent samples, >= 2.
        pair: Sampler of correlated inputs: `gaussian_pair`, `bit_pair`, or your own
            `pair(key, shape, rho=rho)`, whose first array must not depend on `rho`.
        arc_points: Inputs per sample, >= 2; the default is a pair. More (only for `gaussian_pair`)
            are points $X_j = \cos(j\theta)X + \sin(j\theta)Z$, $\cos\theta = \rho$, of an arc in
            which neighbors are correlated pairs. At equal evaluations of `fn`, 4 points have less
            variance than pairs at $\rho = 0.5$, and mostly more at $\rho = 0.9$.
        per_output: Return one estimate per output instead of their sum.
        batch_size: Samples evaluated at a time, which local devices share; memory grows with it.

    Returns:
        An unbiased `Estimate` with the shape of `rho`, followed by that of the output if
        `per_output`; nan if `fn`, or the square of a product of its outputs, is not finite. For
        unbounded functions of high degree, the standard error is reliable only once it no longer
        grows with `num_samples`.

    Raises:
        TypeError: If `fn` returns something other than one array, or an argument has another type.
        ValueError: If a number is out of range, or the first array of a pair depends on `rho`.

    Differentiation:
        With respect to values that `fn` closes over and, for `gaussian_pair`, to `rho` in (-1, 1),
        as averages of per-sample gradients. They equal the gradient of the stability only if `fn`
        is continuous: for a step, a sign or an argmax they are 0.

    Example:
        >>> import jax
        >>> from hopfax.stability import noise_stability
        >>> fn, key = lambda x: x[0] * x[1], jax.random.key(0)
        >>> estimate = noise_stability(fn, key, shape=(2,), rho=0.5, num_samples=20_000)
        >>> bool(abs(estimate.mean - 0.25) < 4 * estimate.standard_error)
        True

    References:
        Noise Stability of Transformer Models, section 4; O'Donnell, Analysis of Boolean Functions,
        chapters 2 and 11.
    """
    check_range(-1, 1, rho=rho)
    check_count(2, arc_points=arc_points)
    if arc_points > 2 and pair is not gaussian_pair:
        raise ValueError(f"arc_points must be 2 unless pair is gaussian_pair, got {arc_points}")
    statistic = _products if per_output else sum_of_products
    return estimator(fn, statistic, pair, shape, rho, num_samples, batch_size, arc_points)(key)


def estimator(
    fn: Fn,
    statistic: Callable[[Array], tuple[Array, Array]],
    pair: Pair,
    shape: tuple[int, ...],
    rho: Rhos,
    num_samples: int,
    batch_size: int,
    arc_points: int = 2,
    num_keys: int = 1,
) -> Callable[[PRNGKeyArray], Estimate]:
    """Returns a function that estimates the mean of a statistic, to be called with `num_keys` keys.

    `statistic(outputs)` maps the outputs of one sample, (rhos, arc_points, ...), X first, to the
    values to average, (rhos, ...), and to a bound on their size. Sample i depends only on the key,
    i and `batch_size`, at least 2. For the other arguments see `noise_stability`.
    """
    check_count(2, num_samples=num_samples)
    check_count(1, batch_size=batch_size)
    rho = jnp.asarray(rho, jnp.result_type(float))
    if rho.ndim > 1 or not rho.size:
        raise ValueError(f"rho must be a number or a vector of one or more, got shape {rho.shape}")
    if not np.prod(shape):
        raise ValueError(f"shape must have no zero, got {shape}")
    rhos = rho.reshape(-1)
    batch_size = min(max(batch_size, 2), num_samples)
    count, half = -(-num_samples // batch_size), batch_size // 2
    comparisons = num_samples // batch_size * half + max(num_samples % batch_size - half, 0)
    respond = prepare_batched(lambda inputs: one_array(jax.vmap(fn)(inputs)), count * num_keys)
    options: Any = {"shape": tuple(shape), "batch_size": batch_size, "arc_points": arc_points}
    if pair in (gaussian_pair, bit_pair, flip_pair):
        draw = partial(_draw_ours, pair=pair, **options)
    else:
        draw = prepare_batched(partial(_draw, pair=pair, **options), count * num_keys)

    def measure(key: PRNGKeyArray, number: Array | int) -> _Moments:
        outputs, axes = respond(draw(key, number, rhos)), (batch_size, len(rhos), arc_points)
        return _moments(outputs, number, num_samples, statistic=statistic, axes=axes)

    def estimate(key: PRNGKeyArray) -> Estimate:
        check_key(key)
        if is_tracing():
            # Under `shard_map`, these zeros vary over the axes of the mesh that the moments do.
            zeros = partial(jax.lax.full_like, fill_value=0)
            moments = jax.tree.map(zeros, jax.eval_shape(measure, key, 0))
            # Recomputed in the backward pass, which then keeps only a few numbers of each batch.
            step = jax.checkpoint(lambda number, moments: _merge(moments, measure(key, number)))
            moments = jax.lax.fori_loop(0, count, step, moments)
        else:
            moments = measure(key, 0)
            for number in range(1, count):
                following = measure(key, number)
                jax.block_until_ready(moments)  # at most two batches are in memory
                moments = _merge(moments, following)
        return _estimate(moments, num_samples, comparisons, scalar=not rho.ndim)

    return estimate


def _products(outputs: Array) -> tuple[Array, Array]:
    product = jnp.mean(outputs[:, 1:] * outputs[:, :-1], axis=1)
    return product, jnp.square(outputs[0, 0])


def sum_of_products(outputs: Array) -> tuple[Array, Array]:
    """Returns the product of neighbors, summed over outputs, and its bound, for `estimator`."""
    product, size = _products(outputs)
    return jnp.sum(product, axis=tuple(range(1, product.ndim))), jnp.sum(size)


def _draw(
    key: PRNGKeyArray, number: Array | int, rhos: Array, *,
    pair: Pair, shape: tuple[int, ...], batch_size: int, arc_points: int,
) -> Array:  # fmt: skip
    """Inputs of one batch: X of each sample, then arc_points - 1 others for each rho."""

    def sample(key: PRNGKeyArray) -> Array:
        first, second = jax.vmap(lambda rho: pair(key, shape, rho=rho), out_axes=(None, 0))(rhos)
        # On the benchmark's network, four points need half the time of pairs for the same error.
        path = [first[None], second]
        for _ in range(arc_points - 2):
            path.append(2 * rhos.reshape(-1, *[1] * first.ndim) * path[-1] - path[-2])
        others = jnp.stack(path[1:], axis=1)
        return jnp.concatenate([first[None], others.reshape(-1, *first.shape)])

    inputs = jax.vmap(sample)(jax.random.split(jax.random.fold_in(key, number), batch_size))
    return inputs.reshape(-1, *inputs.shape[2:])


_draw_ours = jax.jit(_draw, static_argnames=("pair", "shape", "batch_size", "arc_points"))


@partial(jax.jit, static_argnames=("statistic", "axes"))
def _moments(
    outputs: Array, number: Array | int, num_samples: int, *, statistic: Any, axes: tuple[int, ...]
) -> _Moments:
    """Moments of one batch, of which the samples from `num_samples` on do not count."""
    (batch_size, num_rhos, arc_points), shape = axes, outputs.shape[1:]
    outputs = outputs.astype(real_type(outputs)).reshape(batch_size, -1, *shape)
    first = jnp.broadcast_to(outputs[:, :1, None], (batch_size, num_rhos, 1, *shape))
    others = outputs[:, 1:].reshape(batch_size, num_rhos, arc_points - 1, *shape)
    values, sizes = jax.vmap(statistic)(jnp.concatenate([first, others], axis=2))
    weights = number * batch_size + jnp.arange(batch_size) < num_samples
    weights = weights.reshape(-1, *[1] * (values.ndim - 1))
    count = jnp.sum(weights).astype(values.dtype)
    mean = jnp.sum(jnp.where(weights, values, 0), axis=0) / count
    squares = jnp.sum(jnp.square(jnp.where(weights, values - mean[None], 0)), axis=0)
    # Comparing halves of the batch is faster than comparing neighbors.
    known, sizes = jax.lax.stop_gradient((values, sizes))
    one, other = slice(batch_size // 2), slice(batch_size // 2, batch_size // 2 * 2)
    untied = jnp.sum(weights[other] & (known[one] != known[other]), axis=0)
    return _Moments(count, mean, squares, untied, jnp.max(sizes, axis=0))


@jax.jit
def _merge(one: _Moments, other: _Moments) -> _Moments:
    """Moments of two samples together, as in Chan, Golub and LeVeque (1983)."""
    total, change = one.count + other.count, other.mean - one.mean
    share = other.count / total
    return _Moments(
        count=total,
        mean=one.mean + change * share,
        squares=one.squares + other.squares + jnp.square(change) * (one.count * share),
        untied=one.untied + other.untied,
        size=jnp.maximum(one.size, other.size),
    )


@partial(jax.jit, static_argnames="scalar")
def _estimate(moments: _Moments, num_samples: int, comparisons: int, *, scalar: bool) -> Estimate:
    """The mean and its error, as if two more samples than occurred had a rare value.

    This follows Agresti and Coull. If no sample differs, the two do by `size` plus the mean.
    """
    count, mean, squares, untied, size = moments
    # An infinite sample could give an infinite mean, which would look like a result.
    mean = jnp.where(jnp.isfinite(mean) & jnp.isfinite(squares), mean, jnp.nan)
    size = size.reshape((1,) * (mean.ndim - size.ndim) + size.shape)
    variance, reach = squares / (count - 1), size + jnp.abs(mean)
    # Each sample that differs from the common value makes one comparison without a tie.
    untied = untied.astype(mean.dtype)
    ties, untied = (comparisons - untied) / comparisons, untied * (count / comparisons)
    few = jnp.maximum(untied / 2, 1)
    usual = jnp.sqrt(variance / count * (1 + 2 * ties / few))
    unmet = jnp.where(reach > 0, jnp.sqrt(2 * ties) * reach / count, jnp.inf)
    # Rounding of the mean gives equal samples a tiny variance.
    error = jnp.where((untied > 0.5) & (variance > 0), usual, unmet)
    error = jnp.where(jnp.isnan(mean), jnp.nan, error)
    mean, error = (mean[0], error[0]) if scalar else (mean, error)
    return Estimate(mean, error, jnp.asarray(num_samples))
