r"""Monte Carlo estimates of noise stability, with standard errors.

Samples stream through batches of fixed size, so memory does not grow with their number.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from hopfax.stability.noise import Rho, check_rho, gaussian_pair
from hopfax.stability.sampling import (
    COPIES,
    Fn,
    Pair,
    Settings,
    check_copies,
    group_products,
    group_values,
    outputs,
    over_outputs,
    pair_products,
    u_statistic,
)
from hopfax.stability.streaming import Moments, check_finite, check_sizes, stream

# Group sizes that the pilot chooses from; two copies are a pair. Larger ones would leave few
# independent draws of the common part, and an error bar that has not seen its tail.
_GROUPS = (2, 4, 8, 16)
_PILOT_SHARE, _PILOT_LEAST, _PILOT_MOST = 0.1, 256, 4096


class Estimate(NamedTuple):
    """A Monte Carlo mean and how far to trust it.

    Attributes:
        mean: The estimate, unbiased.
        standard_error: Its standard deviation over repetitions, estimated; ±1.96 of it is a 95 %
            interval.
        num_samples: Independent samples averaged.
        copies: Correlated inputs a sample: 2 for a pair; more where a U-statistic over groups of
            copies was used.
    """

    mean: Float[Array, "..."]
    standard_error: Float[Array, "..."]
    num_samples: Int[Array, ""]
    copies: Int[Array, ""]


def noise_stability(
    fn: Fn,
    key: PRNGKeyArray,
    *,
    shape: tuple[int, ...],
    rho: Rho | Float[Array, " rhos"],
    num_samples: int,
    pair: Pair = gaussian_pair,
    copies: int | None = None,
    per_output: bool = False,
    batch_size: int = 1024,
) -> Estimate:
    r"""Estimates how much a function's outputs agree on correlated inputs.

    $$\mathrm{Stab}_\rho(f) = E\,\langle f(X), f(Y)\rangle = \sum_k \rho^k W^k(f)$$

    Several $\rho$ share their draws of X and the evaluations there: ten cost 5.5 times one.

    By the semigroup property $\mathrm{Stab}_\rho(f) = E_U\|E_Z f(\sqrt\rho U+\sqrt{1-\rho}Z)\|^2$,
    so $m$ conditionally independent copies give $m(m-1)/2$ pairs at once. At equal evaluations of
    `fn` that pays where stability is small against the second moment, and costs where it is not;
    a pilot inside of the budget decides (see `copies`). Products of unbounded functions of high
    degree have heavy tails: there, trust an error bar only once it no longer grows with the budget.

    Args:
        fn: A jittable function of one input, returning one array of numbers.
        key: Random key.
        shape: Shape of an input.
        rho: Correlation, in [-1, 1]: a number, or a vector of them.
        num_samples: The budget: as many evaluations of `fn` as this many pairs need, >= 2.
        pair: Sampler of correlated inputs: `gaussian_pair`, `bit_pair`, or your own
            `pair(key, shape, rho=rho)`, whose first array must not depend on `rho`.
        copies: Inputs a sample. 2 takes pairs; 4, 8, ... the U-statistic over groups of that many,
            for rho >= 0 and the two samplers named. None lets a pilot choose, with a tenth of
            the budget, where that leaves it enough; its samples are thrown away, so that the
            estimate stays unbiased. With negative correlations, or a sampler of your own, it
            takes pairs.
        per_output: Keep the outputs apart instead of summing over them.
        batch_size: Samples evaluated side by side; memory grows with it.

    Returns:
        An `Estimate` with the shape of `rho`, followed by that of the output if `per_output`. Where
        `fn` is not finite it is nan inside `jit`, and an error outside.

    Raises:
        ValueError: If a number is out of range, or `fn` does not return one array of a fixed shape.
        FloatingPointError: If `fn` is not finite somewhere; sample and rho are named.

    Example:
        >>> import jax
        >>> from hopfax import stability
        >>> found = stability.noise_stability(
        ...     lambda x: x[0] * x[1], jax.random.key(0), shape=(2,), rho=0.5, num_samples=20_000
        ... )
        >>> bool(abs(found.mean - 0.25) < 4 * found.standard_error)
        True

    References:
        Noise Stability of Transformer Models, section 4; O'Donnell, Analysis of Boolean Functions,
        chapters 2 and 11.
    """
    check_rho(rho)
    check_sizes(num_samples=num_samples, batch_size=batch_size)
    check_copies(copies, pair, rho)
    rho = jnp.asarray(rho, jnp.result_type(float))
    if rho.ndim > 1 or rho.size == 0:
        raise ValueError(f"rho must be a number or a vector of them, got shape {rho.shape}")
    settings = Settings(fn, tuple(shape), num_samples, pair, copies, per_output, batch_size)
    estimate, moments = _stability(settings, key, rho.reshape(-1))
    check_finite(moments, rho.reshape(-1))
    if rho.ndim == 0:
        return estimate._replace(mean=estimate.mean[0], standard_error=estimate.standard_error[0])
    return estimate


def normalized_stability(
    fn: Fn,
    key: PRNGKeyArray,
    *,
    shape: tuple[int, ...],
    rho: Rho,
    num_samples: int,
    pair: Pair = gaussian_pair,
    batch_size: int = 1024,
) -> Estimate:
    r"""Stability as a share of the second moment, $\mathrm{Stab}_\rho(f) / E\|f\|^2$.

    Args:
        fn: See `noise_stability`, as for the rest.
        key: Random key.
        shape: Shape of an input.
        rho: Correlation, in [-1, 1].
        num_samples: Pairs, >= 2.
        pair: Sampler of correlated inputs.
        batch_size: Pairs evaluated side by side.

    Returns:
        An `Estimate` of the ratio, both parts from the same pairs; its standard error is by the
        delta method, its bias of order 1/num_samples. Nan where the function is 0.

    Raises:
        ValueError: See `noise_stability`.
        FloatingPointError: See `noise_stability`.
    """
    moments = _paired(_ratio_moments, fn, key, shape, rho, num_samples, pair, batch_size)
    product, square, _ = moments.mean
    var_product, var_square, var_total = moments.variance
    ratio = product / square
    covariance = (var_total - var_product - var_square) / 2
    spread = var_product - 2 * ratio * covariance + ratio**2 * var_square
    error = jnp.sqrt(jnp.maximum(spread, 0) / moments.count) / square
    return Estimate(ratio, error, moments.count.astype(int), jnp.asarray(2))


def noise_sensitivity(
    fn: Fn,
    key: PRNGKeyArray,
    *,
    shape: tuple[int, ...],
    rho: Rho,
    num_samples: int,
    pair: Pair = gaussian_pair,
    batch_size: int = 1024,
) -> Estimate:
    r"""How far noise moves the outputs, $\frac14 E\|f(X) - f(Y)\|^2$.

    For ±1-valued functions it is $P(f(X) \ne f(Y))$; always,
    $\frac12 (E\|f\|^2 - \mathrm{Stab}_\rho(f))$.

    Args:
        fn: See `noise_stability`, as for the rest.
        key: Random key.
        shape: Shape of an input.
        rho: Correlation, in [-1, 1].
        num_samples: Pairs, >= 2.
        pair: Sampler of correlated inputs.
        batch_size: Pairs evaluated side by side.

    Returns:
        An `Estimate`.

    Raises:
        ValueError: See `noise_stability`.
        FloatingPointError: See `noise_stability`.

    References:
        O'Donnell, Analysis of Boolean Functions, Definition 2.43.
    """
    moments = _paired(_difference_moments, fn, key, shape, rho, num_samples, pair, batch_size)
    return Estimate(moments.mean, moments.standard_error, moments.count.astype(int), jnp.asarray(2))


@partial(jax.jit, static_argnums=0)
def _stability(
    settings: Settings, key: PRNGKeyArray, rhos: Float[Array, " rhos"]
) -> tuple[Estimate, Moments]:
    budget = settings.num_samples * (len(rhos) + 1)
    copies = settings.copies
    if copies is None and settings.pair in COPIES:
        pilot = min(int(budget * _PILOT_SHARE) // (_GROUPS[-1] * len(rhos)), _PILOT_MOST)
        if pilot >= _PILOT_LEAST:
            return _chosen(settings, key, rhos, pilot)
    return _measured(settings, key, rhos, copies or 2, budget)


def _chosen(
    settings: Settings, key: PRNGKeyArray, rhos: Array, pilot: int
) -> tuple[Estimate, Moments]:
    """Looks at the variances first, then spends what is left on the best size of groups."""
    for_pilot, for_rest = jax.random.split(key)
    costs = _pilot_costs(settings, for_pilot, rhos, pilot)
    costs = jnp.where(jnp.any(rhos < 0) & (jnp.asarray(_GROUPS) > 2), jnp.inf, costs)
    left = settings.num_samples * (len(rhos) + 1) - pilot * _GROUPS[-1] * len(rhos)
    branches = [partial(_measured, settings, copies=copies, budget=left) for copies in _GROUPS]
    # Nan costs choose the pairs, which then report where the function is not finite.
    return jax.lax.switch(jnp.argmin(costs), branches, for_rest, rhos)


def _pilot_costs(
    settings: Settings, key: PRNGKeyArray, rhos: Array, pilot: int
) -> Float[Array, " groups"]:
    """Variance of a sample times its evaluations, summed over rho and outputs, for each size."""
    most = _GROUPS[-1]
    values = group_values(settings, rhos, most)
    # One after the other in batches, as the estimate itself.
    found = jax.lax.map(values, jax.random.split(key, pilot), batch_size=settings.batch_size)
    costs = []
    for size in _GROUPS:
        parts = found.reshape(pilot, len(rhos), most // size, size, *found.shape[3:])
        products = u_statistic(parts, axis=3)
        if not settings.per_output:
            products = over_outputs(products, axis=3)
        mean = jnp.mean(products, axis=(0, 2), keepdims=True)
        variance = jnp.sum(jnp.mean(jnp.square(products - mean), axis=(0, 2)))
        costs.append(variance * (len(rhos) + 1 if size == 2 else size * len(rhos)))
    return jnp.stack(costs)


def _measured(
    settings: Settings, key: PRNGKeyArray, rhos: Array, copies: int, budget: int
) -> tuple[Estimate, Moments]:
    if copies == 2:
        sample, evaluations = pair_products(settings, rhos), len(rhos) + 1
    else:
        sample, evaluations = group_products(settings, rhos, copies), copies * len(rhos)
    count = max(budget // evaluations, 2)
    moments = stream(sample, key, num_samples=count, batch_size=settings.batch_size)
    return (
        Estimate(moments.mean, moments.standard_error, jnp.asarray(count), jnp.asarray(copies)),
        moments,
    )


@partial(jax.jit, static_argnums=0)
def _ratio_moments(settings: Settings, key: PRNGKeyArray, rho: Array) -> Moments:
    """Of the product, the mean square of both, and the sum of these two (for their covariance)."""

    def sample(key: PRNGKeyArray) -> Array:
        left, right = outputs(settings, key, rho)
        product = jnp.sum(left * right)
        square = (jnp.sum(jnp.square(left)) + jnp.sum(jnp.square(right))) / 2
        return jnp.stack([product, square, product + square])

    return stream(sample, key, num_samples=settings.num_samples, batch_size=settings.batch_size)


@partial(jax.jit, static_argnums=0)
def _difference_moments(settings: Settings, key: PRNGKeyArray, rho: Array) -> Moments:
    def sample(key: PRNGKeyArray) -> Array:
        left, right = outputs(settings, key, rho)
        return jnp.sum(jnp.square(left - right)) / 4

    return stream(sample, key, num_samples=settings.num_samples, batch_size=settings.batch_size)


def _paired(
    measure: Callable[..., Moments],
    fn: Fn,
    key: PRNGKeyArray,
    shape: tuple[int, ...],
    rho: Rho,
    num_samples: int,
    pair: Pair,
    batch_size: int,
) -> Moments:
    check_rho(rho)
    check_sizes(num_samples=num_samples, batch_size=batch_size)
    settings = Settings(fn, tuple(shape), num_samples, pair, 2, False, batch_size)
    rho = jnp.asarray(rho, jnp.result_type(float))
    moments = measure(settings, key, rho)
    check_finite(moments, rho.reshape(1))
    return moments
