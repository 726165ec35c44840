"""What retrieval from clean patterns can and cannot undo: capacity, certificates, recovery.

Numbers out of range and wrong shapes raise a ValueError, wrong types a TypeError. Traced numbers
are not checked.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from hopfax.checks import (
    check_count,
    check_range,
    check_shape,
    check_shapes,
    compile_once,
    is_traced,
)
from hopfax.hopfield.denoise import LogPrior, Sigma, check_values, clear, prepare
from hopfax.hopfield.retrieval import Beta, Mask, Patterns, Scalar, matmul

Index = Int[Array, " rows"] | None


def _check_channel(entropy_bits: Any, *, width: int, spectrum: Any = None) -> None:
    check_range(0, ends="(]", entropy_bits=entropy_bits)
    check_count(1, width=width)
    if spectrum is not None:
        check_shape((width,), spectrum=spectrum)
        check_range(0, spectrum=spectrum)
        check_range(0, 1.001, ends="[]", **{"sum of spectrum": jnp.sum(jnp.asarray(spectrum))})


def _check_ball(patterns: Any, *, beta: Any, delta: Any, **_: Any) -> None:
    check_shapes(patterns=(patterns, "patterns width"), beta=(beta, ""), delta=(delta, ""))
    check_range(0, ends="()", beta=beta)
    check_range(0, ends="[)", delta=delta)


def _check_rows(patterns: Any, *, index: Any = None, **options: Any) -> dict[str, Any]:
    if index is not None:
        check_shapes(index=(index, "rows"))
        if not is_traced(index):
            check_count(0, len(patterns) - 1, index=index)
    return check_values(**options)


@compile_once("width", check=_check_channel)
def capacity_snr_db(
    entropy_bits: float | Array, *, width: int, spectrum: Float[Array, " width"] | None = None
) -> Float[Array, "..."]:
    r"""Returns the signal-to-noise ratio in dB below which no decoder can recover all tokens.

    It is the ratio S at which the capacity of the Gaussian channel is H bits a token. If all
    directions have the same power,

    $$S = 2^{2H/d} - 1$$

    With a spectrum, S is at least as high: it solves
    $\frac{1}{2} \sum_i \log_2(1 + S d \lambda_i) = H$, by bisection.

    Args:
        entropy_bits: Entropy H of a token in bits, given its context if the decoder uses it, > 0.
        width: Number of coordinates d of a token's vector, >= 1.
        spectrum: Eigenvalues $\lambda_i$ >= 0 of the vectors' covariance, divided by their mean
            square norm, with a sum of at most 1. None: all are 1/d.

    Returns:
        The ratio per coordinate, in dB; with a spectrum, at most 300 dB, and without a gradient.

    Example:
        >>> from hopfax import hopfield
        >>> [round(float(hopfield.capacity_snr_db(10.0, width=d)), 1) for d in (128, 384, 768)]
        [-9.4, -14.3, -17.4]

    References:
        Shannon (1949), Communication in the Presence of Noise, Theorem 2.
    """
    nats = jnp.log(2.0) * jnp.asarray(entropy_bits)
    white = 10 * jnp.log10(jnp.expm1(2 * nats / width))
    if spectrum is None:
        return white
    shares = jnp.asarray(spectrum)

    def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        signal = width * jnp.multiply.outer(10 ** (middle / 10), shares)
        enough = jnp.sum(jnp.log1p(signal), axis=-1) / 2 >= nats
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    # Equal power maximizes capacity.
    ends = jnp.minimum(white, 300), jnp.full_like(white, 300)
    return jax.lax.stop_gradient(jax.lax.fori_loop(0, 40, halve, ends)[1])


@compile_once(check=_check_ball)
def reconstruction_bound(
    patterns: Patterns, *, beta: Beta, delta: Scalar, mask: Mask = None
) -> Float[Array, " patterns"]:
    r"""Bounds how far from each pattern retrieval ends, for queries near it.

    Every limit of `retrieve` from a query within $\delta$ of $x_i$ is at most this far from $x_i$.
    If a state is within r of $x_i$, the ratio of pattern j's weight to that of $x_i$ is at most
    $w_j$, and its update is within $g_i(r)$ of $x_i$:

    $$w_j = \exp(-\beta (\langle x_i - x_j, x_i \rangle - r d_j)), \qquad
    g_i(r) = \max_k \frac{\sum_{j \le k} w_j d_j}{1 + \sum_{j \le k} w_j}, \qquad
    d_1 \ge d_2 \ge \dots$$

    where $d_j = \|x_i - x_j\|$. If $g_i(r) \le r$, updates stay within r of $x_i$. The bound is the
    limit of r, $g_i(r)$, $g_i(g_i(r))$, ... from the smallest such $r \ge \delta$.

    Args:
        patterns: Stored patterns, one per row.
        beta: Inverse temperature, > 0, including any $1/\sqrt d$.
        delta: Distance $\delta$ >= 0 of the queries.
        mask: True where a pattern is real; None means all.

    Returns:
        The bound for each pattern, nearly exact for two patterns; nan where `mask` is False. At
        most the distance to the farthest pattern, itself a bound.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> patterns = jnp.array([[1.0], [-1.0]])
        >>> for delta in (0.0, 0.5, 1.5):  # beyond 1, a query ends at the other pattern
        ...     print(f"{hopfield.reconstruction_bound(patterns, beta=2.0, delta=delta)[0]:.3f}")
        0.042
        0.042
        1.958

    References:
        Robertha, Theorem 2, which states $C\, r_{eff}\, \delta$ for an effective rank $r_{eff}$ and
        a constant C. This product tends to 0 with $\delta$; the distance does not, since the
        attractor is not the pattern itself.
    """
    patterns, prior, _ = prepare(patterns, None, mask)
    patterns, real = clear(patterns, prior), jnp.isfinite(prior)
    rounding = max(8, patterns.shape[1]) * jnp.finfo(patterns.dtype).eps

    def bound(number: Array) -> Array:
        own = patterns[number]
        apart = own[None] - patterns
        distances = jnp.where(real, jnp.linalg.norm(apart, axis=1), 0)
        order = jnp.argsort(-distances)
        margins, distances = matmul(apart, own)[order], distances[order]
        error = rounding * jnp.linalg.norm(own)

        def image(radius: Array) -> Array:
            logits = beta * ((radius + error) * distances - margins)
            logits = jnp.where(distances > 0, logits, -jnp.inf)
            moved = jax.lax.cumlogsumexp(logits + jnp.log(distances))
            largest = jnp.max(moved - jnp.logaddexp(0, jax.lax.cumlogsumexp(logits)))
            # The two round by digits of the logits, which the steps to the limit would add up.
            size = 1 + jnp.max(jnp.where(distances > 0, jnp.abs(logits), 0))
            return jnp.minimum(jnp.exp(largest + rounding * size), distances[0])

        def grow(_: Any, radius: Array) -> Array:  # past the ball, so that rounding cannot hide it
            return jnp.maximum(radius, 1.001 * image(radius))

        def shrink(_: Any, radius: Array) -> Array:
            return jnp.minimum(radius, image(radius))

        radius = jax.lax.fori_loop(0, 50, grow, jnp.asarray(delta, patterns.dtype))
        radius = jnp.where(image(radius) <= radius, radius, distances[0])
        return jnp.maximum(jax.lax.fori_loop(0, 50, shrink, radius), error)

    bounds = jax.lax.map(bound, jnp.arange(len(patterns)), batch_size=256)
    return jnp.where(real, bounds, jnp.nan)


@compile_once()
def certified_radius(patterns: Patterns, *, mask: Mask = None) -> Float[Array, " patterns"]:
    """Returns half the distance from each pattern to the nearest other one.

    After a perturbation of smaller norm, the pattern is still the nearest one, so `denoise` with a
    uniform prior returns its `index`. In float32, first subtract the patterns' mean from patterns
    and queries if it is many times longer than their distances.

    Args:
        patterns: Patterns, one a row.
        mask: True where a pattern is real; None means all.

    Returns:
        The radius of each pattern; 0 for duplicates (whose gradient is nan), nan where `mask` is
        False, inf for a single pattern. Where rounding could hide the nearest, it is smaller.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> hopfield.certified_radius(jnp.array([[0.0, 0.0], [3.0, 4.0], [0.0, 20.0]])).tolist()
        [2.5, 2.5, 8.139410018920898]

    References:
        Cohen, Rosenfeld and Kolter (2019), Certified Adversarial Robustness via Randomized
        Smoothing, for probabilistic certificates of any classifier.
    """
    centered, prior, _ = _center(patterns, None, mask)
    patterns = clear(jnp.asarray(patterns, centered.dtype), prior)
    norms = jnp.sum(jnp.square(centered), axis=1)
    rounding = max(8, patterns.shape[1]) * jnp.finfo(norms.dtype).eps

    def radius(number: Array) -> Array:
        sums = norms[number] + norms
        others = jnp.isfinite(prior).at[number].set(False)
        squares = jnp.where(others, sums - 2 * matmul(centered[number], centered.T), jnp.inf)
        nearest = jnp.argmin(squares)
        # The difference itself: centering has rounded the patterns, and squares in terms of norms
        # have lost digits.
        distance = jnp.linalg.norm(patterns[number] - patterns[nearest])
        # No other pattern is nearer than this, whatever was rounded.
        least = jnp.min((squares - rounding * sums).at[nearest].set(jnp.inf))
        distance = jnp.minimum(distance, jnp.sqrt(jnp.maximum(least, 0)))
        return jnp.where(jnp.any(others), distance / 2, jnp.inf)

    # Checkpoints: otherwise gradients would store patterns times patterns numbers.
    radii = jax.lax.map(jax.checkpoint(radius), jnp.arange(len(patterns)), batch_size=256)
    return jnp.where(jnp.isfinite(prior), radii, jnp.nan)


@compile_once(check=_check_rows)
def recovery_bound(
    patterns: Patterns, *, sigma: Scalar, log_prior: LogPrior = None, index: Index = None
) -> Float[Array, " rows"]:
    r"""Returns a lower bound on the probability that a pattern is recovered under Gaussian noise.

    $$1 - \sum_{w \neq v} Q\left(\frac{d_{vw}}{2 \sigma}
    + \frac{\sigma}{d_{vw}} \log \frac{\pi_v}{\pi_w}\right), \qquad d_{vw} = \|e_v - e_w\|$$

    with Q the standard normal's tail: the union bound on the error of the most probable pattern.
    All tokens of a sentence are recovered with a probability of at least 1 minus the sum of their
    errors; an encoder that reads the recovered patterns then returns its clean output.

    Args:
        patterns: Patterns, one a row.
        sigma: Standard deviation of the noise, > 0; known to the decoder unless the prior is
            uniform, where the most probable pattern is the nearest.
        log_prior: See `denoise`.
        index: Indices of the patterns to bound, in range; None for all.

    Returns:
        The bound for each pattern of `index`, in [0, 1].

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> bound = hopfield.recovery_bound(jnp.array([[0.0, 0.0], [3.0, 4.0]]), sigma=1.25)
        >>> bound.round(4).tolist()  # 1 - Q(2)
        [0.9771999716758728, 0.9771999716758728]
    """
    patterns, prior, sigma = _center(patterns, log_prior, None, sigma)
    index = jnp.arange(len(patterns)) if index is None else jnp.asarray(index)
    norms = jnp.sum(jnp.square(patterns), axis=1)
    finite = jnp.where(jnp.isneginf(prior), 0, prior)  # inf has no gradient
    rounding = max(8, patterns.shape[1]) * jnp.finfo(norms.dtype).eps

    def bound(number: Array) -> Array:
        # Distances are rounded so that the bound stays a lower bound: down, but up where they
        # divide a positive term.
        sums = norms[number] + norms
        squares = (1 - rounding) * sums - 2 * matmul(patterns[number], patterns.T)
        distinct = squares > 0
        least, most = (
            jnp.sqrt(jnp.where(distinct, squares + x * sums, 1)) for x in (0, 2 * rounding)
        )
        gain = finite[number] - finite
        margin = least / (2 * sigma) + sigma / jnp.where(gain > 0, most, least) * gain
        # Of equal patterns none can be told from the others: no bound.
        errors = jnp.where(distinct, jax.scipy.stats.norm.sf(margin), 1)
        errors = jnp.where(jnp.isneginf(prior), 0, errors).at[number].set(0)
        return jnp.where(jnp.isneginf(prior[number]), 0, 1 - jnp.sum(errors))

    return jnp.clip(jax.lax.map(jax.checkpoint(bound), index, batch_size=256), 0, 1)


@compile_once(check=_check_rows)
def recovery_rate(
    patterns: Patterns, *, sigma: Scalar, log_prior: LogPrior = None, index: Index = None
) -> Float[Array, " rows"]:
    r"""Estimates the probability that a pattern is recovered under Gaussian noise.

    The differences between a pattern and the others overlap along the direction to the prior's
    mean. Given the noise u in this direction, errors are taken as independent:

    $$p_v \approx E_u \prod_{w \neq v} \Phi\left(\frac{1}{b_w} \left(\frac{d_w^2}{2 \sigma}
    + \sigma \log \frac{\pi_v}{\pi_w} - u a_w\right)\right), \qquad
    a_w = \frac{\langle e_w - e_v, e_v \rangle}{\|e_v\|}, \quad b_w^2 = d_w^2 - a_w^2$$

    with u standard normal, d_w the distance from e_v to e_w, and the prior's mean subtracted from
    all patterns. It is exact for two patterns, and nearly exact for many whose differences are
    otherwise orthogonal; in an embedding table they correlate, and the estimate is too low. The
    integral over u is a sum of 64 terms; so that it resolves them, a_w is at most 0.99 d_w.
    Arguments are those of `recovery_bound`.

    Returns:
        The rate for each pattern of `index`, in [0, 1]; that of two equal patterns is halved.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> rate = hopfield.recovery_rate(3.0 * jnp.eye(4), sigma=1.0)
        >>> bound = hopfield.recovery_bound(3.0 * jnp.eye(4), sigma=1.0)
        >>> round(float(rate[0]), 2), round(float(bound[0]), 2)
        (0.96, 0.95)
    """
    patterns, prior, sigma = prepare(patterns, log_prior, None, sigma)
    patterns = clear(patterns, prior)
    patterns -= matmul(jax.nn.softmax(prior)[None], patterns)
    index = jnp.arange(len(patterns)) if index is None else jnp.asarray(index)
    tiny = jnp.finfo(patterns.dtype).tiny
    nodes = jnp.linspace(-6, 6, 64, dtype=patterns.dtype)
    weights = jax.nn.softmax(-jnp.square(nodes) / 2)
    finite = jnp.where(jnp.isneginf(prior), 0, prior)  # inf has no gradient

    def rate(number: Array) -> Array:
        own = patterns[number]
        apart = patterns - own[None]
        squares = jnp.sum(jnp.square(apart), axis=1)
        along = matmul(apart, own / jnp.sqrt(jnp.maximum(matmul(own, own), tiny)))
        most = 0.99 * jnp.sqrt(jnp.maximum(squares, tiny))
        along = jnp.clip(along, -most, most)
        across = jnp.sqrt(jnp.maximum(squares - along**2, tiny))
        margin = squares / (2 * sigma) + sigma * (finite[number] - finite)
        logs = jax.scipy.special.log_ndtr((margin[None] - jnp.outer(nodes, along)) / across[None])
        logs = jnp.where(jnp.isneginf(prior)[None], 0, logs).at[:, number].set(0)
        mean = matmul(weights, jnp.exp(jnp.sum(logs, axis=1)))
        return jnp.where(jnp.isneginf(prior[number]), 0, mean)

    return jnp.clip(jax.lax.map(jax.checkpoint(rate), index), 0, 1)


def _center(
    patterns: Array, log_prior: LogPrior, mask: Mask, sigma: Sigma = None
) -> tuple[Array, Array, Any]:
    """`prepare`, with the mean of the possible patterns subtracted: distances keep their digits."""
    patterns, prior, sigma = prepare(patterns, log_prior, mask, sigma)
    patterns, count = clear(patterns, prior), jnp.sum(~jnp.isneginf(prior))
    mean = jnp.sum(patterns, axis=0, keepdims=True) / jnp.maximum(count, 1).astype(patterns.dtype)
    return patterns - mean, prior, sigma
