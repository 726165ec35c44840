"""Removing Gaussian noise by retrieval from clean patterns, such as a model's vocabulary.

With known noise level, a Hopfield update over the clean patterns, with inverse temperature
1/sigma^2 and a bias, is the posterior mean of the clean pattern given a noisy one. Functions take
one noisy query; use `jax.vmap` for more. All raise the errors of `denoise`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from hopfax.checks import (
    check_count,
    check_mask,
    check_range,
    check_shape,
    check_shapes,
    compile_once,
    full_mask,
    is_traced,
    real_type,
)
from hopfax.fixed_point import zero_of
from hopfax.hopfield.retrieval import Mask, Patterns, Scalar, Vector, exponentials, matmul

LogPrior = Float[Array, " patterns"] | None
Sigma = Scalar | None

BLOCK = 1536  # On two cores, larger blocks are hardly faster and take more memory.


class Candidates(NamedTuple):
    """The likeliest patterns of a noisy query, in descending order of posterior probability."""

    index: Int[Array, " count"]
    log_likelihood: Float[Array, " count"]  # up to a constant; -inf if the prior excludes it


class Denoised(NamedTuple):
    """The posterior over the patterns that a noisy query may come from."""

    value: Vector  # posterior mean of the pattern
    index: Int[Array, ""]  # the most probable pattern
    probability: Float[Array, ""]  # its posterior probability, in [0, 1]


def check_values(
    *arrays: Any, sigma: Any = None, log_prior: Any = None, epsilon: Any = 0.0, **others: Any
) -> dict[str, Any]:
    """Checks the values that are not traced, and returns a sigma that is not 0 in float32."""
    if sigma is not None:
        check_range(0, ends="()", sigma=sigma)
    if log_prior is not None and not is_traced(log_prior):
        values = np.asarray(log_prior)
        if (wrong := values[~(values < np.inf)]).size:
            raise ValueError(f"log_prior must be finite or -inf, got {wrong.flat[0]}")
    check_range(0, ends="[)", epsilon=epsilon)
    return {"sigma": max(sigma, 1e-30)} if isinstance(sigma, float) else {}


def prepare(
    patterns: Array, log_prior: LogPrior, mask: Mask = None, sigma: Sigma = None
) -> tuple[Array, Array, Any]:
    """Checks shapes, and returns arrays in float32 at least; the prior includes the mask."""
    patterns = jnp.asarray(patterns)
    if patterns.ndim != 2 or patterns.shape[0] == 0:
        allowed = "shape (patterns, width) with at least one pattern"
        raise ValueError(f"patterns must have {allowed}, got {patterns.shape}")
    dtype, shape = real_type(patterns), patterns.shape[:1]
    prior = jnp.zeros(shape, dtype)
    if log_prior is not None:
        real_type(log_prior)
        check_shape(shape, log_prior=log_prior)
        prior = jnp.asarray(log_prior, dtype)
    mask = check_mask(mask, shape)
    if mask is not None:
        prior = jnp.where(mask, prior, -jnp.inf)
    if sigma is not None:
        check_shapes(sigma=(sigma, ""))
        least = jnp.finfo(dtype).tiny ** 0.4  # for norms up to 1e4, logits stay finite
        within = jnp.clip(jnp.asarray(sigma, dtype), least, 1 / least)
        sigma = jnp.where(sigma > 0, within, jnp.nan)
    return patterns.astype(dtype), prior, sigma


def _prepare(
    noisy: Array, patterns: Array, log_prior: LogPrior, mask: Mask, sigma: Sigma
) -> tuple[Array, Array, Array, Any]:
    """Returns what `prepare` does after the query, all in their common type."""
    noisy, patterns = jnp.asarray(noisy), jnp.asarray(patterns)
    check_shapes(noisy=(noisy, "width"), patterns=(patterns, "patterns width"))
    dtype = real_type(noisy, patterns)
    return noisy.astype(dtype), *prepare(patterns.astype(dtype), log_prior, mask, sigma)


def clear(patterns: Array, log_prior: Array) -> Array:
    """Sets excluded patterns to zero, even nan."""
    return jnp.where(jnp.isneginf(log_prior)[:, None], 0, patterns)


@compile_once("block_size", check=check_values)
def denoise(
    noisy: Vector,
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
        patterns: Clean patterns $e_v$, one a row, with entries of 1e-15 to 1e15. If they are
            bfloat16, so are the factors of both products, which are accumulated in float32. If the
            mean is much larger than their distances, subtract it from patterns and queries.
        sigma: Standard deviation of the noise in each coordinate, > 0; None if unknown.
        log_prior: Log-probabilities, up to a constant; -inf excludes a pattern. None: uniform.
        mask: True where a pattern is real; None means all.
        block_size: Patterns read at a time. Under `jax.vmap`, memory grows with queries times
            `block_size`, never with queries times patterns.

    Returns:
        `Denoised`, in float32 at least; zero, index 0 and probability 0 if no pattern is possible.
        Duplicate patterns share their probability, and `index` is that of the first. A nan in the
        query makes `value` and `probability` nan.

    Raises:
        TypeError, ValueError: A shape, type or number is not as above, or there is no pattern.
            Traced values are not checked: a traced `sigma <= 0` gives nan.

    Differentiation:
        In all arrays and `sigma`; the backward pass recomputes each block's logits. Without
        `sigma`, a query that equals a pattern has a gradient near zero.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> patterns = jax.random.normal(jax.random.key(0), (1000, 128))
        >>> noisy = patterns[7] + 1.5 * jax.random.normal(jax.random.key(1), (128,))
        >>> clean = hopfield.denoise(noisy, patterns, sigma=1.5)
        >>> int(clean.index), bool(jnp.abs(clean.value - patterns[7]).max() < 0.1)
        (7, True)

    References:
        Podasca and Das (2026), Robertha, Eq. 4, with clean patterns; Ramsauer et al. (2020),
        Hopfield Networks is All You Need; Ambrogioni (2024), In Search of Dispersed Memories:
        Generative Diffusion Models Are Associative Memory Networks.
    """
    pattern_dtype = jnp.asarray(patterns).dtype
    noisy, patterns, bias, sigma = _prepare(noisy, patterns, log_prior, mask, sigma)
    if pattern_dtype == jnp.bfloat16:
        patterns = patterns.astype(pattern_dtype)
        noisy = noisy.astype(pattern_dtype).astype(noisy.dtype)

    def logits(rows: Patterns) -> tuple[Array, None]:
        norms = jnp.sum(jnp.square(rows.astype(noisy.dtype)), axis=1)
        return _log_likelihood(noisy, _product(noisy, rows.T), norms, sigma), None

    return _posterior(logits, noisy, patterns, bias, block_size)[0]


@compile_once(check=check_values)
def denoise_normalized(
    noisy: Vector,
    patterns: Patterns,
    offset: Vector,
    *,
    scale: Vector,
    bias: Vector,
    epsilon: Scalar,
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
    noisy, patterns, prior, sigma = _prepare(noisy, patterns, log_prior, None, sigma)
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


@compile_once("count", check=check_values)
def candidates(
    noisy: Vector,
    patterns: Patterns,
    *,
    count: int,
    sigma: Sigma = None,
    log_prior: LogPrior = None,
) -> Candidates:
    """Returns the patterns of highest posterior probability, with their log-likelihoods.

    Use it in decoders with another prior, such as the context of a token. `log_prior` ranks the
    patterns; it is not part of the log-likelihoods. Arguments and errors are those of `denoise`;
    `count` is the number of candidates, at most that of the patterns.

    Example:
        >>> import jax
        >>> from hopfax import hopfield
        >>> patterns = jax.random.normal(jax.random.key(0), (1000, 128))
        >>> noisy = patterns[7] + 1.5 * jax.random.normal(jax.random.key(1), (128,))
        >>> likeliest = hopfield.candidates(noisy, patterns, count=3)
        >>> likeliest.index.shape, int(likeliest.index[0])
        ((3,), 7)
    """
    noisy, patterns, prior, sigma = _prepare(noisy, patterns, log_prior, None, sigma)
    check_count(1, len(patterns), count=count)
    patterns = clear(patterns, prior)
    products = matmul(noisy, patterns.T)
    norms = jnp.sum(jnp.square(patterns), axis=1)
    likelihood = _log_likelihood(noisy, products, norms, sigma)
    _, index = jax.lax.top_k(likelihood + prior, count)
    return Candidates(index, jnp.where(jnp.isfinite(prior), likelihood, -jnp.inf)[index])


@compile_once(check=check_values)
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
        noisy: One noisy pattern a row, at least one.
        patterns: Clean patterns, one a row.
        log_prior: See `denoise`.
        mask: True where a row of `noisy` is real; None means all.

    Returns:
        The estimate, at least a thousandth of the patterns' root mean square, so that it is a valid
        `sigma` of `denoise` without noise or real rows; nan if the prior excludes all patterns.

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
    patterns, prior, _ = prepare(patterns, log_prior)
    noisy = noisy.astype(real_type(noisy, patterns))
    mask = full_mask(mask, (len(noisy),))
    # Before the squares: the gradient of a nan row would be 0 * nan.
    squares = jnp.mean(jnp.square(jnp.where(mask[:, None], noisy, 0)), axis=1)
    power = jnp.sum(squares) / jnp.maximum(jnp.sum(mask), 1).astype(squares.dtype)
    signal = jnp.mean(jnp.square(clear(patterns, prior)), axis=1) @ jax.nn.softmax(prior)
    least = jnp.maximum(1e-6 * signal, jnp.finfo(signal.dtype).tiny)
    return jnp.sqrt(jnp.maximum(power - signal, least))


def _log_likelihood(query: Array, products: Array, norms: Array, sigma: Sigma) -> Array:
    """Log-likelihoods, up to a constant, from products with the query and squared norms."""
    if sigma is not None:
        return (products - 0.5 * norms) / jnp.square(sigma)
    energy = jnp.sum(jnp.square(query))
    # The rounding of the difference, so that a query that equals a pattern is finite.
    least = 4 * jnp.finfo(norms.dtype).eps * (energy + norms) + jnp.finfo(norms.dtype).tiny
    return -0.5 * len(query) * jnp.log(jnp.maximum(energy - 2 * products + norms, least))


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
    """The posterior and the mean gain, from `logits(rows)` of a block of patterns at a time.

    It returns logits and gains (None: 1) and closes over the arrays `closed_over`.
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
    """The maximum, with the derivative of the score at `best`: their difference has none."""
    return jnp.max(scores)


_maximum.defjvp(lambda primals, tangents: (_maximum(*primals), tangents[0][primals[1]]))


def _first_maximum(scores: Array) -> Array:
    """Index of the first maximum, in two steps: `jnp.argmax` is slow on CPUs."""
    # Equality with the maximum would not do: XLA may compute the scores twice, rounded differently.
    parts = jax.lax.stop_gradient(scores).reshape(math.gcd(len(scores), 32), -1)
    part = jnp.argmax(jnp.max(parts, axis=1))
    return part * parts.shape[1] + jnp.argmax(parts[part])


def _product(vector: Array, matrix: Array) -> Array:
    """Returns the product in the matrix's type, accumulated in the vector's."""
    same = vector.dtype == matrix.dtype
    return matmul(vector, matrix) if same else _narrow_product(vector, matrix)


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
