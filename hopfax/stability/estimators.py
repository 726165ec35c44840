"""Monte Carlo estimates of noise stability, with standard errors.

Samples stream through batches of fixed size, so memory does not grow with their number. Nothing is
compiled ahead of a call: wrap repeated calls in `jax.jit`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, PRNGKeyArray

from hopfax.stability.noise import check_range, gaussian_pair

Fn = Callable[[Array], Array]
Pair = Callable[..., tuple[Array, Array]]
Rhos = float | Float[Array, ""] | Float[Array, " rhos"]


class Estimate(NamedTuple):
    """A Monte Carlo mean and its error.

    Attributes:
        mean: The estimate.
        standard_error: Its standard deviation over repetitions, estimated; ±1.96 of it is a 95 %
            interval. Where all but a few samples are equal, it is Agresti and Coull's, with two
            more of the rare samples than occurred. So it is not 0 for an event that never occurred
            in n samples, nor for a constant: at stability s it is 2.83 |s| / n. It is infinite
            where `fn` was 0 at all inputs drawn, whose scale is unknown.
        num_samples: Independent samples averaged.
    """

    mean: Float[Array, "..."]
    standard_error: Float[Array, "..."]
    num_samples: Int[Array, ""]


class Moments(NamedTuple):
    """First two moments of a sample.

    Attributes:
        count: Number of samples.
        mean: Their mean.
        squares: Sum of the squared deviations from it.
        ties: Share of equal samples among the pairs of samples compared.
        size: The largest of the sizes that `paired_moments`' statistic returned.
    """

    count: Float[Array, ""]
    mean: Float[Array, "..."]
    squares: Float[Array, "..."]
    ties: Float[Array, "..."]
    size: Float[Array, "..."]

    @property
    def variance(self) -> Float[Array, "..."]:
        """Unbiased variance of one sample."""
        return self.squares / (self.count - 1)

    @property
    def standard_error(self) -> Float[Array, "..."]:
        """Standard error of the mean."""
        return self.error(self.variance, self.ties, self.size + jnp.abs(self.mean))

    def error(self, variance: Array, ties: Array, reach: Array) -> Float[Array, "..."]:
        """Standard error of a mean of samples, allowing for values too rare to have occurred.

        If all samples but k are equal, it is Agresti and Coull's: as if k + 2 differed, by as much
        as those k, or by `reach` if k is 0. Without ties it is the usual one.
        """
        # Every sample that differs from the common value is in one comparison that is no tie.
        few = jnp.maximum((1 - ties) * self.count / 2, 1)
        usual = jnp.sqrt(variance / self.count * (1 + 2 * ties / few))
        unmet = jnp.where(reach > 0, jnp.sqrt(2 * ties) * reach / self.count, jnp.inf)
        return jnp.where(variance > 0, usual, unmet)

    def without_certain_ties(self, rho: Rhos) -> "Moments":
        """Sets the ties to 0 at |rho| = 1, where samples are equal because Y is X or -X."""
        certain = jnp.abs(jnp.asarray(rho)) == 1
        certain = certain.reshape(*certain.shape, *[1] * (self.ties.ndim - certain.ndim))
        return self._replace(ties=jnp.where(certain, 0, self.ties))


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
    r"""Estimates how much a function's outputs agree on correlated inputs.

    $$\mathrm{Stab}_\rho(f) = E\,\langle f(X), f(Y)\rangle = \sum_k \rho^k W^k(f)$$

    Several $\rho$ share their draws of X and the evaluations there: ten cost 5.5 times one. `fn` is
    traced at every call; to compile once, `jax.jit` the call with what `fn` reads as an argument:
    `jax.jit(lambda params, key: noise_stability(lambda x: net(params, x), key, ...))`.

    Args:
        fn: A jittable function of one input, returning one array of real numbers.
        key: Random key.
        shape: Shape of an input.
        rho: Correlation, in [-1, 1]: a number, or a vector of them.
        num_samples: Independent samples, >= 2.
        pair: Sampler of correlated inputs: `gaussian_pair`, `bit_pair`, or your own
            `pair(key, shape, rho=rho)`, whose first array must not depend on `rho`.
        arc_points: Inputs a sample, >= 2. 2 is a pair. More, for `gaussian_pair` only, lie along an
            arc $X_j = \cos(j\theta)X + \sin(j\theta)Z$, $\cos\theta = \rho$, whose neighbours are
            all pairs. At equal evaluations of `fn`, 4 points have 0.12 to 0.96 times the variance
            of pairs at $\rho = 0.5$ (nine functions measured), and mostly more at $\rho = 0.9$.
        per_output: Keep the outputs apart instead of summing over them.
        batch_size: Samples evaluated side by side; memory grows with it.

    Returns:
        An `Estimate` with the shape of `rho`, followed by that of the output if `per_output`; its
        mean is unbiased. Where `fn` is not finite it is nan inside `jit`, and an error outside.
        Products of unbounded functions of high degree have heavy tails: there, trust an error bar
        only once it no longer grows with `num_samples`.

    Raises:
        ValueError: If a number is out of range, `fn` does not return one array of real numbers, or
            the first array of a pair depends on `rho`.
        FloatingPointError: If `fn`, or a product of its outputs, is not finite somewhere.
        TypeError: If a gradient with respect to `rho` is taken and `pair` draws bits or tokens.

    Differentiation:
        With respect to what `fn` closes over, and, for `gaussian_pair`, with respect to `rho`
        inside (-1, 1): at the ends the slope is not finite. Both are means of gradients of single
        samples. That is the gradient of the stability only where `fn` is continuous: for a step, a
        sign or an argmax it is 0.

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
    check_range(2, arc_points=arc_points)
    if arc_points > 2 and pair is not gaussian_pair:
        raise ValueError(f"arc_points must be 2 unless pair is gaussian_pair, got {arc_points}")

    def products(outputs: Array) -> tuple[Array, Array]:
        product = jnp.mean(outputs[:, 1:] * outputs[:, :-1], axis=1)
        size = jnp.square(outputs[0, 0])
        return (product, size) if per_output else (_sum_from(1, product), jnp.sum(size))

    moments = paired_moments(
        fn, key, products, pair, shape, rho, num_samples, batch_size, arc_points
    )
    return Estimate(moments.mean, moments.standard_error, jnp.asarray(num_samples))


def normalized_stability(
    fn: Fn,
    key: PRNGKeyArray,
    *,
    shape: tuple[int, ...],
    rho: Rhos,
    num_samples: int,
    pair: Pair = gaussian_pair,
    batch_size: int = 1024,
) -> Estimate:
    r"""Estimates stability as a share of the second moment, $\mathrm{Stab}_\rho(f) / E\|f\|^2$.

    Args:
        fn: A jittable function of one input; see `noise_stability`.
        key: Random key.
        shape: Shape of an input.
        rho: Correlation, in [-1, 1]: a number, or a vector of them, which share their draws of X.
        num_samples: Pairs, >= 2.
        pair: Sampler of correlated inputs; see `noise_stability`.
        batch_size: Pairs evaluated side by side.

    Returns:
        An `Estimate` of the ratio with the shape of `rho`, both parts from the same pairs. As a
        ratio of means it is not unbiased: the bias is of order 1/num_samples, the standard error
        (by the delta method) of order 1/sqrt(num_samples). Nan where the function is 0 at all
        inputs drawn.

    Raises:
        ValueError: See `noise_stability`.
        FloatingPointError: See `noise_stability`.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from hopfax import stability
        >>> estimate = stability.normalized_stability(
        ...     lambda x: 3 * x[0], jax.random.key(0), shape=(2,), rho=jnp.array([0.5, 1.0]),
        ...     num_samples=20_000,
        ... )
        >>> estimate.mean.round(1).tolist()
        [0.5, 1.0]

    References:
        Noise Stability of Transformer Models, section 4.
    """
    check_range(-1, 1, rho=rho)

    def parts(outputs: Array) -> tuple[Array, Array]:
        left, right = outputs[:, 0], outputs[:, 1]
        product = _sum_from(1, left * right)
        square = _sum_from(1, jnp.square(left) + jnp.square(right)) / 2
        values = jnp.stack([product, square, product + square, square - product], axis=1)
        return values, jnp.sum(jnp.square(left[0]))

    moments = paired_moments(fn, key, parts, pair, shape, rho, num_samples, batch_size)
    moments = moments.without_certain_ties(rho)
    product, square, _, _ = jnp.moveaxis(moments.mean, -1, 0)
    var_product, var_square, var_sum, var_difference = jnp.moveaxis(moments.variance, -1, 0)
    ratio = product / square
    # Var(product - ratio * square), in terms that do not cancel where the ratio is near 1 or -1.
    more, less = (1 + ratio) / 2, (1 - ratio) / 2
    spread = more**2 * var_difference + less**2 * var_sum
    spread += 2 * more * less * (var_product - var_square)
    # With the ratio near 1 or -1 it is the difference or the sum that rarely changes.
    ties = jnp.max(moments.ties[..., np.array([0, 2, 3])], axis=-1)
    error = moments.error(jnp.maximum(spread, 0), ties, moments.size * (1 + jnp.abs(ratio)))
    return Estimate(ratio, error / square, jnp.asarray(num_samples))


def paired_moments(
    fn: Fn,
    key: PRNGKeyArray,
    statistic: Callable[[Array], tuple[Array, Array]],
    pair: Pair,
    shape: tuple[int, ...],
    rho: Rhos,
    num_samples: int,
    batch_size: int,
    arc_points: int = 2,
) -> Moments:
    """Evaluates `fn` on correlated inputs and returns the moments of a statistic of its outputs.

    Args:
        fn: Function of one input.
        key: Random key; sample i depends on it, on i and on `batch_size` alone.
        statistic: From the outputs of one sample, (rhos, arc_points, ...), the values (rhos, ...)
            to average, and a size that no value exceeds as long as outputs are no larger than
            these; `outputs[:, 0]` is at X for every rho.
        pair: Sampler of correlated inputs.
        shape: Shape of an input.
        rho: A number, or a vector of them.
        num_samples: Number of samples, >= 2.
        batch_size: Samples evaluated side by side; at least two are.
        arc_points: Inputs a sample and rho: X, Y, and the next points along their arc.

    Returns:
        `Moments` with the shape of `rho` in front.

    References:
        Chan, Golub and LeVeque (1983), for the merging of batches.
    """
    check_range(2, num_samples=num_samples)
    check_range(1, batch_size=batch_size)
    rho = jnp.asarray(rho, jnp.result_type(float))
    if rho.ndim > 1 or rho.size == 0:
        raise ValueError(f"rho must be a number or a vector of them, got shape {rho.shape}")
    rhos = rho.reshape(-1)
    batch_size = min(max(batch_size, 2), num_samples)
    half, full = batch_size // 2, num_samples // batch_size
    comparisons = full * half + max(num_samples % batch_size - half, 0)

    def draw(key: PRNGKeyArray) -> Array:
        """Inputs (1 + rhos * (arc_points - 1), ...) of one sample, X first."""
        one_rho = lambda rho: pair(key, shape, rho=rho)  # noqa: E731
        first, second = jax.vmap(one_rho, out_axes=(None, 0))(rhos)
        # Four points reach the benchmark network's error in half the time of pairs.
        path = [first, second]
        for _ in range(arc_points - 2):
            path.append(2 * rhos.reshape(-1, *[1] * first.ndim) * path[-1] - path[-2])
        others = jnp.stack(path[1:], axis=1)
        return jnp.concatenate([first[None], others.reshape(-1, *first.shape)])

    def measure(outputs: Array) -> tuple[Array, Array]:
        others = outputs[1:].reshape(len(rhos), arc_points - 1, *outputs.shape[1:])
        first = jnp.broadcast_to(outputs[0], (len(rhos), 1, *outputs.shape[1:]))
        return statistic(jnp.concatenate([first, others], axis=1))

    def merge(number: Array | int, moments: Moments) -> Moments:
        inputs = jax.vmap(draw)(jax.random.split(jax.random.fold_in(key, number), batch_size))
        outputs = jax.vmap(fn)(inputs.reshape(-1, *inputs.shape[2:]))
        if not isinstance(outputs, Array) or jnp.iscomplexobj(outputs):
            kind = getattr(outputs, "dtype", type(outputs).__name__)
            raise ValueError(f"fn must return one array of real numbers, got {kind}")
        outputs = outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))
        values, sizes = jax.vmap(measure)(outputs.reshape(*inputs.shape[:2], *outputs.shape[1:]))
        weights = number * batch_size + jnp.arange(batch_size) < num_samples
        weights = weights.reshape(-1, *[1] * (values.ndim - 1))
        count = jnp.sum(weights).astype(values.dtype)
        mean = jnp.sum(jnp.where(weights, values, 0), axis=0) / count
        squares = jnp.sum(jnp.square(jnp.where(weights, values - mean, 0)), axis=0)
        # Comparing halves of the batch is faster than comparing neighbours.
        known, sizes = jax.lax.stop_gradient((values, sizes))
        tied = weights[half : 2 * half] & (known[:half] == known[half : 2 * half])
        total, change = moments.count + count, mean - moments.mean
        return Moments(
            count=total,
            mean=moments.mean + change * (count / total),
            squares=moments.squares
            + squares
            + jnp.square(change) * (moments.count * (count / total)),
            ties=moments.ties + jnp.sum(tied, axis=0) / comparisons,
            size=jnp.maximum(moments.size, jnp.max(sizes, axis=0)),
        )

    scalars = Moments(*[jnp.zeros(())] * len(Moments._fields))
    shapes = jax.eval_shape(merge, 0, scalars)
    start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    moments = jax.lax.fori_loop(0, full + (num_samples % batch_size > 0), merge, start)
    # An infinite sample could leave an infinite mean, which looks like an answer.
    finite = jnp.isfinite(moments.mean) & jnp.isfinite(moments.squares)
    moments = moments._replace(mean=jnp.where(finite, moments.mean, jnp.nan))
    if not isinstance(finite, Tracer) and not np.all(finite):
        raise FloatingPointError(
            "fn must be finite at every input drawn, and so must the squares of its products in "
            f"{moments.mean.dtype}: if fn is only large, scale it down"
        )
    if rho.ndim:
        return moments
    mean, squares, ties = (part[0] for part in moments[1:4])
    return moments._replace(mean=mean, squares=squares, ties=ties)


def _sum_from(axis: int, values: Any) -> Array:
    return jnp.sum(values, axis=tuple(range(axis, values.ndim)))
