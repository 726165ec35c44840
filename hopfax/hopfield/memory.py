"""Removing Gaussian noise by retrieval from clean patterns, such as a model's vocabulary.

With known noise level, a Hopfield update over the clean patterns, with inverse temperature
1/sigma^2 and a bias, is the posterior mean of the clean pattern given a noisy one. Functions take
one noisy query; use `jax.vmap` for more. `candidates` returns the likeliest patterns, the states of
a decoder with context.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from hopfax.checks import (
    check_count,
    check_mask,
    check_range,
    check_shapes,
    full_mask,
    is_traced,
    real_type,
)
from hopfax.fixed_point import zero_of
from hopfax.hopfield.retrieval import exponentials, matmul

Patterns = Float[Array, "patterns width"]
Mask = Bool[Array, " patterns"] | None
LogPrior = Float[Array, " patterns"] | None
Index = Int[Array, " rows"] | None

Sigma = float | Float[Array, ""] | None

BLOCK = 1536  # On two cores, larger blocks are hardly faster and take more memory.


class Candidates(NamedTuple):
    """The likeliest patterns of a noisy query, in descending order of posterior probability.

    Attributes:
        index: Their indices.
        log_likelihood: Without the prior and up to a constant; -inf if the prior excludes the
            pattern.
    """

    index: Int[Array, " count"]
    log_likelihood: Float[Array, " count"]


class Denoised(NamedTuple):
    """The posterior over the patterns that a noisy query may come from.

    Attributes:
        value: Posterior mean of the pattern.
        index: The most probable pattern.
        probability: Its posterior probability, in [0, 1].
    """

    value: Float[Array, " width"]
    index: Int[Array, ""]
    probability: Float[Array, ""]


def denoise(
    noisy: Float[Array, " width"],
    patterns: Patterns,
    *,
    sigma: Sigma = None,
    log_prior: LogPrior = None,
    mask: Mask = None,
    block_size: int | None = None,
) -> Denoised:
    r"""Returns the posterior mean of the clean pattern of a noisy query, and the likeliest pattern.

    For a query $x = e_v + \sigma z$ with $z$ standard normal and $v$ drawn from the prior,

    $$E[e_v | x] = \sum_v p_v e_v, \qquad
    p = \mathrm{softmax}_v\left(\log \pi_v - \frac{\|x - e_v\|^2}{2 \sigma^2}\right)$$

    This is one `update` with $\beta = 1/\sigma^2$ and the bias
    $\log \pi_v - \|e_v\|^2 / (2 \sigma^2)$. Without `sigma`, the noise level is integrated out
    under Jeffreys' prior $1/\sigma$, which gives
    $p = \mathrm{softmax}_v(\log \pi_v - d \log \|x - e_v\|)$. In a hundred or more dimensions, one
    query is enough to estimate $\sigma$, so the loss of accuracy is small.

    Args:
        noisy: The query $x$.
        patterns: Clean patterns $e_v$, one a row. If they are bfloat16, the query and the weights
            of the sum are rounded to bfloat16, and their products are accumulated in float32. This
            is faster only on processors with bfloat16 instructions. If the mean pattern is much
            larger than the distances between patterns, subtract it from patterns and queries.
            Squares of their entries must be in the range of float32 (entries of 1e-15 to 1e15).
        sigma: Standard deviation of the noise in each coordinate, > 0; None if unknown.
        log_prior: Log-probabilities of the patterns, up to a constant; -inf excludes a pattern.
            None for a uniform prior.
        mask: True where a pattern is real; None means all.
        block_size: Patterns read at a time; None for 1536. Under `jax.vmap`, memory grows with
            queries times `block_size`, never with queries times patterns.

    Returns:
        `Denoised`, in float32 at least; zero, index 0 and probability 0 if no pattern is possible.
        Duplicate patterns share their probability, and `index` is that of the first. A nan in the
        query makes `value` and `probability` nan.

    Raises:
        TypeError: If `mask` is not boolean, an array is complex, or `block_size` is not an integer.
        ValueError: If `sigma` is not positive and finite, `log_prior` has nan or +inf,
            `block_size < 1`, there is no pattern, or the shapes are not those of one query and its
            patterns. Traced values are not checked: a traced `sigma <= 0` gives nan.

    Differentiation:
        `value` and `probability` are differentiable in all arrays and in `sigma`; the backward
        pass recomputes each block's logits. Without `sigma`, a query that equals a pattern
        has a gradient near zero.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> patterns = jax.random.normal(jax.random.key(0), (1000, 128))
        >>> noisy = patterns[7] + 1.5 * jax.random.normal(jax.random.key(1), (128,))
        >>> clean = hopfield.denoise(noisy, patterns, sigma=1.5)
        >>> int(clean.index), bool(jnp.abs(clean.value - patterns[7]).max() < 0.1)
        (7, True)
        >>> int(hopfield.denoise(noisy, patterns).index)  # sigma unknown
        7

    References:
        Podasca and Das (2026), Robertha, Eq. 4, with clean patterns; Ramsauer et al. (2020),
        Hopfield Networks is All You Need; Ambrogioni (2024), In Search of Dispersed Memories:
        Generative Diffusion Models Are Associative Memory Networks.
    """
    _check_values(log_prior, sigma)
    if isinstance(sigma, float):
        sigma = max(sigma, 1e-30)  # a smaller number would be 0 in float32
    return _denoise(noisy, patterns, log_prior, mask, sigma, block_size=block_size)


# Compiled once per shape outside jit. Excluded patterns have a log-prior of -inf, which
# `jax_debug_infs` allows inside jit.
@partial(jax.jit, static_argnames="block_size")
def _denoise(
    noisy: Array,
    patterns: Array,
    log_prior: LogPrior,
    mask: Mask,
    sigma: Sigma,
    *,
    block_size: int | None,
) -> Denoised:
    pattern_dtype = jnp.asarray(patterns).dtype
    noisy, patterns, bias, sigma = _prepared(noisy, patterns, log_prior, mask, sigma)
    if pattern_dtype == jnp.bfloat16:
        patterns = patterns.astype(pattern_dtype)
        noisy = noisy.astype(pattern_dtype).astype(noisy.dtype)

    def logits(rows: Patterns) -> tuple[Array, None]:
        norms = jnp.sum(jnp.square(rows.astype(noisy.dtype)), axis=1)
        return _log_likelihood(noisy, _product(noisy, rows.T), norms, sigma), None

    return _posterior(logits, noisy, patterns, bias, block_size)[0]


def denoise_normalized(
    noisy: Float[Array, " width"],
    patterns: Patterns,
    offset: Float[Array, " width"],
    *,
    scale: Float[Array, " width"],
    bias: Float[Array, " width"],
    epsilon: float,
    sigma: Sigma = None,
    log_prior: LogPrior = None,
) -> Denoised:
    r"""Returns what `denoise` does if the patterns are $\mathrm{LN}(e_v + o)$.

    For a token at position i of an encoder, $o$ is the vector of the position. The patterns are
    never computed: their products with the query follow from those of $e_v$, so that many queries
    with different offsets share matrix products.

    Args:
        noisy: LN(e_v + o) plus noise.
        patterns: $e_v$, one a row.
        offset: $o$.
        scale: Scale of the LayerNorm.
        bias: Bias of the LayerNorm.
        epsilon: Epsilon of the LayerNorm, >= 0.
        sigma: See `denoise`.
        log_prior: See `denoise`.

    Returns:
        `Denoised`, whose value is $\sum_v p_v \mathrm{LN}(e_v + o)$, not LN of a mean.

    Raises:
        TypeError, ValueError: As in `denoise`; also if a vector has another shape, or `epsilon` is
            out of range.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> patterns = jax.random.normal(jax.random.key(0), (1000, 128))
        >>> offset, ones = jax.random.normal(jax.random.key(1), (128,)), jnp.ones(128)
        >>> clean = jax.nn.standardize(patterns[7] + offset, epsilon=1e-12)
        >>> noisy = clean + jax.random.normal(jax.random.key(2), (128,))
        >>> layer_norm = {"scale": ones, "bias": 0 * ones, "epsilon": 1e-12}
        >>> int(hopfield.denoise_normalized(noisy, patterns, offset, **layer_norm).index)
        7
    """
    vectors = {"noisy": noisy, "offset": offset, "scale": scale, "bias": bias}
    check_shapes(**{name: (vector, "width") for name, vector in vectors.items()})
    check_range(0, ends="[)", epsilon=epsilon)
    noisy, patterns, prior, sigma = _prepared(noisy, patterns, log_prior, None, sigma)
    centered = patterns - jnp.mean(patterns, axis=1, keepdims=True)
    offset, scale, bias = (jnp.asarray(each, noisy.dtype) for each in (offset, scale, bias))
    offset = offset - jnp.mean(offset)
    query, squared = noisy - bias, jnp.square(scale)

    def logits(rows: Patterns) -> tuple[Array, Array]:
        squares = jnp.sum(jnp.square(rows), axis=1)
        variance = squares + 2 * matmul(offset, rows.T) + jnp.sum(jnp.square(offset))
        variance = jnp.maximum(variance, 0) / rows.shape[1] + epsilon
        # A padded row without an offset has no variance: its gain is 0, not infinite.
        gains = jnp.where(variance > 0, jax.lax.rsqrt(jnp.where(variance > 0, variance, 1)), 0)
        inner = gains * (matmul(scale * query, rows.T) + jnp.sum(scale * query * offset))
        norms = matmul(jnp.square(rows), squared)
        norms += 2 * matmul(squared * offset, rows.T) + jnp.sum(squared * jnp.square(offset))
        return _log_likelihood(query, inner, jnp.square(gains) * norms, sigma), gains

    posterior, gain = _posterior(logits, (query, offset), centered, prior)
    value = jnp.where(posterior.probability > 0, bias, 0) + scale * (
        posterior.value + gain * offset
    )
    return posterior._replace(value=value)


def candidates(
    noisy: Float[Array, " width"],
    patterns: Patterns,
    *,
    count: int,
    sigma: Sigma = None,
    log_prior: LogPrior = None,
) -> Candidates:
    """Returns the patterns of highest posterior probability, with their log-likelihoods.

    Use it in decoders with another prior, such as the context of a token. `log_prior` ranks the
    patterns; it is not part of the log-likelihoods.

    Args:
        noisy: See `denoise`.
        patterns: See `denoise`; products are in float32 at least.
        count: Number of candidates, at most that of the patterns.
        sigma: See `denoise`.
        log_prior: See `denoise`.

    Raises:
        TypeError, ValueError: See `denoise`; `count` is out of range.

    Example:
        >>> import jax
        >>> from hopfax import hopfield
        >>> patterns = jax.random.normal(jax.random.key(0), (1000, 128))
        >>> noisy = patterns[7] + 1.5 * jax.random.normal(jax.random.key(1), (128,))
        >>> likeliest = hopfield.candidates(noisy, patterns, count=3)
        >>> likeliest.index.shape, int(likeliest.index[0])
        ((3,), 7)
    """
    noisy, patterns, prior, sigma = _prepared(noisy, patterns, log_prior, None, sigma)
    check_count(1, len(patterns), count=count)
    patterns = _cleared(patterns, prior)
    products = matmul(noisy, patterns.T)
    norms = jnp.sum(jnp.square(patterns), axis=1)
    likelihood = _log_likelihood(noisy, products, norms, sigma)
    _, index = jax.lax.top_k(likelihood + prior, count)
    return Candidates(index, jnp.where(jnp.isfinite(prior), likelihood, -jnp.inf)[index])


def _log_likelihood(query: Array, products: Array, norms: Array, sigma: Sigma) -> Array:
    """Log-likelihoods, up to a constant, from products with the query and squared norms."""
    if sigma is not None:
        return (products - 0.5 * norms) / jnp.square(sigma)
    energy = jnp.sum(jnp.square(query))
    # The rounding of the difference, so that a query that equals a pattern is finite.
    least = 4 * jnp.finfo(norms.dtype).eps * (energy + norms) + jnp.finfo(norms.dtype).tiny
    return -0.5 * len(query) * jnp.log(jnp.maximum(energy - 2 * products + norms, least))


def estimate_sigma(
    noisy: Float[Array, "tokens width"],
    patterns: Patterns,
    *,
    log_prior: LogPrior = None,
    mask: Bool[Array, " tokens"] | None = None,
) -> Float[Array, ""]:
    r"""Estimates the noise level of a sequence of noisy patterns from their mean square.

    Use it where the noise exceeds the signal: elsewhere, the sequence's own mean square differs too
    much from that of the vocabulary. `denoise` without `sigma` has no such limit.

    $$\hat\sigma^2 = \frac{1}{nd} \sum_i \|x_i\|^2 - \frac{1}{d} \sum_v \pi_v \|e_v\|^2$$

    Args:
        noisy: One noisy pattern a row.
        patterns: Clean patterns, one a row.
        log_prior: Log-probabilities of the patterns, up to a constant; None for uniform.
        mask: True where a row of `noisy` is real; None takes all.

    Returns:
        The estimate of the standard deviation, at least a thousandth of the patterns' root mean
        square, so that it is a valid `sigma` of `denoise` also where there is no noise or no row is
        real. nan if the prior excludes all patterns.

    Raises:
        TypeError, ValueError: If the shapes do not match, or there is no row or pattern. See
            `denoise` for `log_prior` and `mask`.

    Example:
        >>> import jax
        >>> from hopfax import hopfield
        >>> patterns = jax.random.normal(jax.random.key(0), (1000, 128))
        >>> noise = jax.random.normal(jax.random.key(1), (40, 128))
        >>> round(float(hopfield.estimate_sigma(patterns[:40] + 1.5 * noise, patterns)), 1)
        1.5
    """
    check_shapes(noisy=(noisy, "tokens width"), patterns=(patterns, "patterns width"))
    noisy = jnp.asarray(noisy)
    if not len(noisy):
        raise ValueError(f"noisy must have one or more tokens, got shape {noisy.shape}")
    patterns, prior, _ = _with_prior(patterns, log_prior)
    noisy = noisy.astype(real_type(noisy, patterns))
    mask = full_mask(mask, (len(noisy),))
    # Before the squares: the gradient of a nan row would be 0 * nan.
    squares = jnp.mean(jnp.square(jnp.where(mask[:, None], noisy, 0)), axis=1)
    power = jnp.sum(squares) / jnp.maximum(jnp.sum(mask), 1).astype(squares.dtype)
    signal = jnp.mean(jnp.square(_cleared(patterns, prior)), axis=1) @ jax.nn.softmax(prior)
    least = jnp.maximum(1e-6 * signal, jnp.finfo(signal.dtype).tiny)
    return jnp.sqrt(jnp.maximum(power - signal, least))


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
        width: Number of coordinates d of a token's vector.
        spectrum: Eigenvalues $\lambda_i$ >= 0 of the vectors' covariance, divided by the vectors'
            mean square norm. They sum to less than 1 unless the mean vector is 0. None: all are
            1/d.

    Returns:
        The ratio per coordinate, in dB; with a spectrum, at most 300 dB.

    Raises:
        TypeError, ValueError: If H is not positive, `width` is not an integer >= 1, or `spectrum`
            has another shape, a negative entry or a sum above 1; traced numbers are not checked.

    Differentiation:
        With a spectrum, the gradient is zero.

    Example:
        >>> from hopfax import hopfield
        >>> [round(float(hopfield.capacity_snr_db(10.0, width=d)), 1) for d in (128, 384, 768)]
        [-9.4, -14.3, -17.4]

    References:
        Shannon (1949), Communication in the Presence of Noise, Theorem 2.
    """
    check_range(0, ends="(]", entropy_bits=entropy_bits)
    check_count(1, width=width)
    nats = jnp.log(2.0) * jnp.asarray(entropy_bits)
    white = 10 * jnp.log10(jnp.expm1(2 * nats / width))
    if spectrum is None:
        return white
    shares = jnp.asarray(spectrum)
    if shares.shape != (width,):
        raise ValueError(f"spectrum must have shape ({width},), got {shares.shape}")
    check_range(0, ends="[]", spectrum=shares)
    named: dict[str, Any] = {"sum of spectrum": jnp.sum(shares)}
    check_range(0, 1.001, **named)

    def halved(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        signal = width * jnp.multiply.outer(10 ** (middle / 10), shares)
        enough = jnp.sum(jnp.log1p(signal), axis=-1) / 2 >= nats
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    # Equal power maximizes capacity.
    ends = jnp.minimum(white, 300), jnp.full_like(white, 300)
    return jax.lax.stop_gradient(jax.lax.fori_loop(0, 40, halved, ends)[1])


def certified_radius(patterns: Patterns, *, mask: Mask = None) -> Float[Array, " patterns"]:
    """Returns half the distance from each pattern to the nearest other one.

    After a perturbation of smaller norm, the pattern is still the nearest one, so `denoise` with a
    uniform prior returns its `index`. In float32, first subtract the patterns' mean from patterns
    and queries if it is many times longer than their distances.

    Args:
        patterns: Patterns, one a row.
        mask: True where a pattern is real; None means all.

    Returns:
        The radius of each pattern; 0 for duplicates, nan where `mask` is False, inf for a single
        pattern. Where rounding could hide the nearest pattern, the radius is smaller.

    Raises:
        TypeError, ValueError: If `mask` or the shapes are wrong, or there is no pattern.

    Differentiation:
        The gradient of the radius of a duplicate is nan.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> hopfield.certified_radius(jnp.array([[0.0, 0.0], [3.0, 4.0], [0.0, 20.0]])).tolist()
        [2.5, 2.5, 8.139410018920898]

    References:
        Cohen, Rosenfeld and Kolter (2019), Certified Adversarial Robustness via Randomized
        Smoothing: probabilistic certificates for any classifier, on the norm of the whole
        perturbation.
    """
    centered, prior, _ = _centered(patterns, None, mask)
    patterns = _cleared(jnp.asarray(patterns, centered.dtype), prior)
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


def recovery_bound(
    patterns: Patterns,
    *,
    sigma: float | Float[Array, ""],
    log_prior: LogPrior = None,
    index: Index = None,
) -> Float[Array, " rows"]:
    r"""Returns a lower bound on the probability that a pattern is recovered under Gaussian noise.

    $$1 - \sum_{w \neq v} Q\left(\frac{d_{vw}}{2 \sigma}
    + \frac{\sigma}{d_{vw}} \log \frac{\pi_v}{\pi_w}\right), \qquad d_{vw} = \|e_v - e_w\|$$

    with Q the standard normal's tail: the union bound on the error of the most probable pattern.
    All tokens of a sentence are recovered with a probability of at least 1 minus the sum of their
    errors; an encoder that reads the recovered patterns then returns its clean output.

    Args:
        patterns: Patterns, one a row.
        sigma: Standard deviation of the noise in each coordinate, > 0. The decoder must know it,
            unless the prior is uniform: the most probable pattern is then the nearest.
        log_prior: Log-probabilities of the patterns, up to a constant; None for uniform.
        index: Indices of the patterns to bound; None for all.

    Returns:
        The bound for each pattern of `index`, in [0, 1].

    Raises:
        TypeError, ValueError: If `sigma` is not positive and finite, `index` does not hold indices
            of patterns, or as in `denoise`.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> bound = hopfield.recovery_bound(jnp.array([[0.0, 0.0], [3.0, 4.0]]), sigma=1.25)
        >>> bound.round(4).tolist()  # 1 - Q(2)
        [0.9771999716758728, 0.9771999716758728]
    """
    patterns, prior, sigma = _centered(patterns, log_prior, None, sigma)
    index = _rows(index, len(patterns))
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


def recovery_rate(
    patterns: Patterns,
    *,
    sigma: float | Float[Array, ""],
    log_prior: LogPrior = None,
    index: Index = None,
) -> Float[Array, " rows"]:
    r"""Estimates the probability that a pattern is recovered under Gaussian noise.

    The differences between a pattern and the others overlap along the direction to the prior's
    mean. Given the noise u in this direction, errors are taken as independent:

    $$p_v \approx E_u \prod_{w \neq v} \Phi\left(\frac{1}{b_w} \left(\frac{d_w^2}{2 \sigma}
    + \sigma \log \frac{\pi_v}{\pi_w} - u a_w\right)\right), \qquad
    a_w = \frac{\langle e_w - e_v, e_v \rangle}{\|e_v\|}, \quad b_w^2 = d_w^2 - a_w^2$$

    with u standard normal, d_w the distance from e_v to e_w, and the prior's mean subtracted from
    all patterns. It is exact for two patterns, and nearly exact for many if what remains of the
    differences is orthogonal. In an embedding table it is correlated, and the estimate is too low.
    The integral over u is a sum of 64 terms; so that it resolves them, a_w is at most 0.99 d_w.

    Args:
        patterns: Patterns, one a row.
        sigma: Standard deviation of the noise in each coordinate, > 0; known to the decoder, as in
            `recovery_bound`.
        log_prior: Log-probabilities of the patterns, up to a constant; None for uniform.
        index: Indices of the patterns of interest; None for all.

    Returns:
        The rate for each pattern of `index`, in [0, 1]. Each duplicate with the same prior halves
        it.

    Raises:
        TypeError, ValueError: As in `recovery_bound`.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> rate = hopfield.recovery_rate(3.0 * jnp.eye(4), sigma=1.0)
        >>> bound = hopfield.recovery_bound(3.0 * jnp.eye(4), sigma=1.0)
        >>> round(float(rate[0]), 2), round(float(bound[0]), 2)
        (0.96, 0.95)
    """
    patterns, prior, sigma = _with_prior(patterns, log_prior, None, sigma)
    patterns = _cleared(patterns, prior)
    patterns -= matmul(jax.nn.softmax(prior)[None], patterns)
    index, tiny = _rows(index, len(patterns)), jnp.finfo(patterns.dtype).tiny
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


class _Running(NamedTuple):
    """Softmax-weighted sums over the blocks so far, in units of exp(most)."""

    most: Array
    index: Array
    total: Array
    gain: Array
    value: Array


def _posterior(
    logits: Callable[[Array], tuple[Array, Array | None]],
    closed_over: PyTree,
    patterns: Array,
    bias: Array,
    block_size: int | None = None,
) -> tuple[Denoised, Array]:
    """Posterior from log-priors and from logits of one block of patterns at a time.

    `logits(rows)` returns logits and gains (None for 1); `closed_over` are the arrays it closes
    over. The posterior's value is the mean of gain times pattern; the last result is the mean gain.
    """
    count, dtype = len(patterns), bias.dtype
    block_size = BLOCK if block_size is None else block_size
    check_count(1, block_size=block_size)
    size, least = min(block_size, count), jnp.finfo(dtype).min / 2
    allowed = ~jnp.isneginf(bias)
    bias = jnp.where(allowed, bias, 0)

    @jax.checkpoint
    def step(running: _Running, number: Array) -> tuple[_Running, None]:
        # The last block starts early, to have the size of the others, and skips what was read.
        first = jnp.minimum(number * size, count - size)
        priors = jax.lax.dynamic_slice_in_dim(bias, first, size)
        possible = jax.lax.dynamic_slice_in_dim(allowed, first, size)
        rows = jax.lax.dynamic_slice_in_dim(patterns, first, size)
        rows = jnp.where(possible[:, None], rows, 0)
        possible &= first + jnp.arange(size, dtype=jnp.int32) >= number * size
        scores, gains = logits(rows)
        scores = jnp.where(possible, scores + priors, least)
        best = _first_maximum(scores)
        top = _maximum(scores, best)
        better = top > running.most
        most = jnp.where(better, top, running.most)
        weights = exponentials(scores - most, better & (jnp.arange(size) == best))
        decay = jnp.exp(running.most - most)
        gained = weights if gains is None else weights * gains
        return _Running(
            most=most,
            index=jnp.where(better, first + best.astype(jnp.int32), running.index),
            total=decay * running.total + jnp.sum(weights),
            gain=decay * running.gain + jnp.sum(gained),
            value=decay * running.value + _product(gained, rows),
        ), None

    none = zero_of((closed_over, patterns, bias))
    zero = none.astype(dtype)
    start = _Running(zero + least, none, zero, zero, jnp.full(patterns.shape[1], zero))
    if size == count:
        running, _ = step(start, jnp.int32(0))
    else:
        running, _ = jax.lax.scan(step, start, jnp.arange(-(-count // size), dtype=jnp.int32))
    possible = (running.most > least) | jnp.isnan(running.total)
    total = jnp.where(possible, running.total, 1)
    probability = jnp.where(possible, 1 / total, 0)
    return Denoised(running.value / total, running.index, probability), running.gain / total


@jax.custom_jvp
def _maximum(scores: Array, best: Array) -> Array:
    """Returns the maximum, with the derivative of the score at the index `best`.

    The gradient of the best score minus the maximum is then exactly 0.
    """
    return jnp.max(scores)


_maximum.defjvp(lambda primals, tangents: (_maximum(*primals), tangents[0][primals[1]]))


def _first_maximum(scores: Array) -> Array:
    """Index of the first maximum, in two steps: `jnp.argmax` is slow on CPUs.

    Equality with the maximum would not do: XLA may compute the scores twice, rounded differently.
    """
    parts = jax.lax.stop_gradient(scores).reshape(math.gcd(len(scores), 32), -1)
    part = jnp.argmax(jnp.max(parts, axis=1))
    return part * parts.shape[1] + jnp.argmax(parts[part])


def _product(vector: Array, matrix: Array) -> Array:
    """Returns the product in the matrix's type, accumulated in the vector's."""
    if vector.dtype == matrix.dtype:
        return matmul(vector, matrix)
    return _narrow_product(vector, matrix)


@jax.custom_jvp
def _narrow_product(vector: Array, matrix: Array) -> Array:
    rounded = vector.astype(matrix.dtype)
    return jnp.matmul(rounded, matrix, preferred_element_type=vector.dtype)


@_narrow_product.defjvp
def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    # In the wide type: derivatives of a softmax cancel, their rounding errors do not.
    (vector, matrix), (of_vector, of_matrix) = primals, tangents
    wide = [each.astype(vector.dtype) for each in (matrix, of_matrix)]
    tangent = matmul(of_vector, wide[0])
    tangent += matmul(vector, wide[1])
    return _narrow_product(vector, matrix), tangent


def _prepared(
    noisy: Array,
    patterns: Array,
    log_prior: LogPrior,
    mask: Mask,
    sigma: Sigma,
) -> tuple[Array, Array, Array, Any]:
    """Checks the arguments and promotes them to at least float32; the prior includes the mask."""
    noisy, patterns = jnp.asarray(noisy), jnp.asarray(patterns)
    check_shapes(noisy=(noisy, "width"), patterns=(patterns, "patterns width"))
    dtype = real_type(noisy, patterns)
    return noisy.astype(dtype), *_with_prior(patterns.astype(dtype), log_prior, mask, sigma)


def _with_prior(
    patterns: Array, log_prior: LogPrior, mask: Mask = None, sigma: Sigma = None
) -> tuple[Array, Array, Any]:
    """`_prepared` without a query."""
    _check_values(log_prior, sigma)
    patterns = jnp.asarray(patterns)
    if patterns.ndim != 2 or patterns.shape[0] == 0:
        raise ValueError(
            "patterns must have shape (patterns, width) with at least one pattern, got "
            f"{patterns.shape}"
        )
    dtype = real_type(patterns)
    prior = jnp.zeros(len(patterns), dtype)
    if log_prior is not None:
        real_type(log_prior)
        prior = jnp.asarray(log_prior, dtype)
        if prior.shape != (len(patterns),):
            raise ValueError(f"log_prior must have shape ({len(patterns)},), got {prior.shape}")
    mask = check_mask(mask, patterns.shape[:1])
    if mask is not None:
        prior = jnp.where(mask, prior, -jnp.inf)
    if sigma is not None:
        check_shapes(sigma=(sigma, ""))
        least = jnp.finfo(dtype).tiny ** 0.4  # for norms up to 1e4, logits stay finite
        within = jnp.clip(jnp.asarray(sigma, dtype), least, 1 / least)
        sigma = jnp.where(sigma > 0, within, jnp.nan)
    return patterns.astype(dtype), prior, sigma


def _check_values(log_prior: LogPrior, sigma: Sigma) -> None:
    """Raises a ValueError if the prior has nan or inf, or sigma is out of range, unless traced."""
    if sigma is not None:
        check_range(0, ends="()", sigma=sigma)
    if log_prior is not None and not is_traced(log_prior):
        values = np.asarray(log_prior)
        if (wrong := values[~(values < np.inf)]).size:
            raise ValueError(f"log_prior must be finite or -inf, got {wrong.flat[0]}")


def _rows(index: Index, count: int) -> Array:
    """Checks the indices of rows, unless traced; None means all."""
    if index is None:
        return jnp.arange(count)
    check_shapes(index=(index, "rows"))
    if not is_traced(index):
        values = np.asarray(index)
        if not np.issubdtype(values.dtype, np.integer):
            raise TypeError(f"index must hold integers, got {values.dtype}")
        if (wrong := values[(values < 0) | (values >= count)]).size:
            raise ValueError(f"index must be at least 0 and below {count}, got {wrong[0]}")
    return jnp.asarray(index)


def _cleared(patterns: Array, log_prior: Array) -> Array:
    """Sets excluded patterns to zero, even nan."""
    return jnp.where(jnp.isneginf(log_prior)[:, None], 0, patterns)


def _centered(
    patterns: Array, log_prior: LogPrior, mask: Mask, sigma: Sigma = None
) -> tuple[Array, Array, Any]:
    """`_prepared` patterns less the mean of the possible ones: distances keep their digits."""
    patterns, prior, sigma = _with_prior(patterns, log_prior, mask, sigma)
    patterns, count = _cleared(patterns, prior), jnp.sum(~jnp.isneginf(prior))
    mean = jnp.sum(patterns, axis=0, keepdims=True) / jnp.maximum(count, 1).astype(patterns.dtype)
    return patterns - mean, prior, sigma
