"""Monte Carlo estimates of noise stability, with standard errors.

Samples are evaluated in batches of fixed size, so memory does not grow with their number. Functions
are traced in every call: wrap repeated calls in `jax.jit`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from hopfax.checks import check_count, check_key, check_range, one_array, real_type
from hopfax.stability.noise import gaussian_pair

Fn = Callable[[Array], Array]
Pair = Callable[..., tuple[Array, Array]]
Rhos = float | Float[Array, ""] | Float[Array, " rhos"]


class Estimate(NamedTuple):
    """A Monte Carlo mean and its standard error.

    Attributes:
        mean: The estimate.
        standard_error: Estimated standard deviation of the mean; ±1.96 standard errors are a 95 %
            interval. If all but a few samples are equal, it follows Agresti and Coull and counts
            two more of the rare samples than occurred. It is therefore not 0 for an event that
            never occurred in n samples, nor for a constant (2.83 |s| / n at stability s). It is
            infinite if `fn` is 0 at all inputs drawn, since its scale is then unknown.
        num_samples: Number of independent samples.
    """

    mean: Float[Array, "..."]
    standard_error: Float[Array, "..."]
    num_samples: Int[Array, ""]


class _Moments(NamedTuple):
    """Moments of a sample, and what the standard error of rare values needs."""

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
    one. To compile once, pass the parameters of `fn` as an argument:
    `jax.jit(lambda params, key: noise_stability(lambda x: net(params, x), key, ...))`.

    Args:
        fn: A jittable function of one input, returning one array of real numbers. For a model of
            batches with a mask of shape (1, tokens): `lambda x: model(x[None], mask)[0]`.
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
        batch_size: Samples evaluated at a time; memory grows with it.

    Returns:
        An `Estimate` with the shape of `rho`, followed by that of the output if `per_output`; its
        mean is unbiased. It is nan if `fn`, or the square of a product of its outputs, is not
        finite. For unbounded functions of high degree, products have heavy tails: the standard
        error is reliable only once it no longer grows with `num_samples`.

    Raises:
        TypeError: If `fn` returns something other than one array, or an argument has another type.
        ValueError: If a number is out of range, or the first array of a pair depends on `rho`.

    Differentiation:
        With respect to values that `fn` closes over and, for `gaussian_pair`, with respect to
        `rho` in (-1, 1); at the ends the slope is not finite. Both are averages of per-sample
        gradients. They equal the gradient of the stability only if `fn` is continuous: for a step,
        a sign or an argmax they are 0.

    Example:
        >>> import jax
        >>> from hopfax import stability
        >>> estimate = stability.noise_stability(
        ...     lambda x: x[0] * x[1], jax.random.key(0), shape=(2,), rho=0.5, num_samples=20_000
        ... )
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

    def products(outputs: Array) -> tuple[Array, Array]:
        product = jnp.mean(outputs[:, 1:] * outputs[:, :-1], axis=1)
        size = jnp.square(outputs[0, 0])
        if per_output:
            return product, size
        return jnp.sum(product, axis=tuple(range(1, product.ndim))), jnp.sum(size)

    return estimate_pairs(fn, key, products, pair, shape, rho, num_samples, batch_size, arc_points)


def estimate_pairs(
    fn: Fn,
    key: PRNGKeyArray,
    statistic: Callable[[Array], tuple[Array, Array]],
    pair: Pair,
    shape: tuple[int, ...],
    rho: Rhos,
    num_samples: int,
    batch_size: int,
    arc_points: int = 2,
) -> Estimate:
    """Estimates the mean of a statistic of a function's outputs on correlated inputs.

    `statistic` maps the outputs of one sample, (rhos, arc_points, ...), to the values (rhos, ...)
    to average and to a bound on values from outputs of this size; `outputs[:, 0]` is at X for every
    rho. Sample i depends only on the key, i and `batch_size`, of which 1 counts as 2. For the other
    arguments see `noise_stability`; batches merge as in Chan, Golub and LeVeque (1983).
    """
    check_count(2, num_samples=num_samples)
    check_count(1, batch_size=batch_size)
    check_key(key)
    rho = jnp.asarray(rho, jnp.result_type(float))
    if rho.ndim > 1 or not rho.size:
        raise ValueError(f"rho must be a number or a vector of one or more, got shape {rho.shape}")
    if not np.prod(shape):
        raise ValueError(f"shape must have no zero, got {shape}")
    rhos = rho.reshape(-1)
    batch_size = min(max(batch_size, 2), num_samples)
    half, full = batch_size // 2, num_samples // batch_size
    comparisons = full * half + max(num_samples % batch_size - half, 0)

    def draw(key: PRNGKeyArray) -> Array:
        """Inputs (1 + rhos * (arc_points - 1), ...) of one sample, X first."""
        one_rho = lambda rho: pair(key, shape, rho=rho)  # noqa: E731
        first, second = jax.vmap(one_rho, out_axes=(None, 0))(rhos)
        # On the benchmark's network, four points need half the time of pairs for the same error.
        path = [first[None], second]
        for _ in range(arc_points - 2):
            path.append(2 * rhos.reshape(-1, *[1] * first.ndim) * path[-1] - path[-2])
        others = jnp.stack(path[1:], axis=1)
        return jnp.concatenate([first[None], others.reshape(-1, *first.shape)])

    def measure(outputs: Array) -> tuple[Array, Array]:
        others = outputs[1:].reshape(len(rhos), arc_points - 1, *outputs.shape[1:])
        first = jnp.broadcast_to(outputs[0], (len(rhos), 1, *outputs.shape[1:]))
        return statistic(jnp.concatenate([first, others], axis=1))

    def merge(number: Array | int, moments: _Moments) -> _Moments:
        inputs = jax.vmap(draw)(jax.random.split(jax.random.fold_in(key, number), batch_size))
        outputs = one_array(jax.vmap(fn)(inputs.reshape(-1, *inputs.shape[2:])))
        outputs = outputs.astype(real_type(outputs))
        values, sizes = jax.vmap(measure)(outputs.reshape(*inputs.shape[:2], *outputs.shape[1:]))
        weights = number * batch_size + jnp.arange(batch_size) < num_samples
        weights = weights.reshape(-1, *[1] * (values.ndim - 1))
        count = jnp.sum(weights).astype(values.dtype)
        mean = jnp.sum(jnp.where(weights, values, 0), axis=0) / count
        squares = jnp.sum(jnp.square(jnp.where(weights, values - mean[None], 0)), axis=0)
        # Comparing halves of the batch is faster than comparing neighbors.
        known, sizes = jax.lax.stop_gradient((values, sizes))
        untied = weights[half : 2 * half] & (known[:half] != known[half : 2 * half])
        total, change = moments.count + count, mean - moments.mean
        return _Moments(
            count=total,
            mean=moments.mean + change * (count / total),
            squares=moments.squares
            + squares
            + jnp.square(change) * (moments.count * (count / total)),
            untied=moments.untied + jnp.sum(untied, axis=0),
            size=jnp.maximum(moments.size, jnp.max(sizes, axis=0)),
        )

    scalars = _Moments(*[jnp.zeros(())] * len(_Moments._fields))
    scalars = scalars._replace(untied=jnp.zeros((), int))  # a float sum of thousands is rounded
    shapes = jax.eval_shape(merge, 0, scalars)
    # Under `shard_map`, zeros like these vary over the axes of the mesh that the moments vary over.
    start = jax.tree.map(lambda leaf: jax.lax.full_like(leaf, 0), shapes)
    # Recomputed in the backward pass, which then keeps only a few numbers of each batch.
    step = jax.checkpoint(merge)
    moments = jax.lax.fori_loop(0, full + (num_samples % batch_size > 0), step, start)
    # An infinite sample could give an infinite mean, which would look like a result.
    finite = jnp.isfinite(moments.mean) & jnp.isfinite(moments.squares)
    moments = moments._replace(mean=jnp.where(finite, moments.mean, jnp.nan))
    if not rho.ndim:
        mean, squares, untied = (part[0] for part in moments[1:4])
        moments = moments._replace(mean=mean, squares=squares, untied=untied)
    error = _standard_error(moments, comparisons)
    error = jnp.where(jnp.isnan(moments.mean), jnp.nan, error)
    return Estimate(moments.mean, error, jnp.asarray(num_samples))


def _standard_error(moments: _Moments, comparisons: int) -> Array:
    """Standard error of the mean, corrected for values too rare to have occurred.

    If all samples but k are equal, it follows Agresti and Coull: as if k + 2 samples differed, by
    as much as those k, or by `size` plus the mean if k is 0. Without ties, it is the usual one.
    """
    count, mean, squares, untied, size = moments
    size = size.reshape((1,) * (mean.ndim - size.ndim) + size.shape)
    variance, reach = squares / (count - 1), size + jnp.abs(mean)
    # Each sample that differs from the common value makes one comparison without a tie.
    untied = untied.astype(mean.dtype)
    ties, untied = (comparisons - untied) / comparisons, untied * (count / comparisons)
    few = jnp.maximum(untied / 2, 1)
    usual = jnp.sqrt(variance / count * (1 + 2 * ties / few))
    unmet = jnp.where(reach > 0, jnp.sqrt(2 * ties) * reach / count, jnp.inf)
    # Rounding of the mean gives equal samples a tiny variance.
    return jnp.where((untied > 0.5) & (variance > 0), usual, unmet)
