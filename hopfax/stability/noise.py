"""Correlated pairs of inputs: Gaussian, of bits, and of tokens.

A pair sampler is called as `pair(key, shape, rho=rho)` and returns two arrays. The first must not
depend on `rho`, so that estimates at several correlations share it. Values of `rho` out of range
raise a ValueError, unless traced.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from hopfax.checks import check_count, check_range, check_shapes, full_mask, is_traced

Rho = float | Float[Array, ""]
Mask = Bool[Array, "..."] | None
Floats = tuple[Float[Array, "..."], Float[Array, "..."]]


def gaussian_pair(key: PRNGKeyArray, shape: tuple[int, ...], *, rho: Rho) -> Floats:
    r"""Draws two standard normal arrays X, Y whose coordinates have correlation `rho`.

    $$Y = \rho X + \sqrt{1 - \rho^2}\, Z$$

    Args:
        key: Random key.
        shape: Shape of either array.
        rho: Correlation, in [-1, 1]; a traced value outside gives nan.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from hopfax.stability import gaussian_pair
        >>> x, y = gaussian_pair(jax.random.key(0), (10_000,), rho=0.5)
        >>> round(float(jnp.mean(x * y)), 1)
        0.5

    References:
        Noise Stability of Transformer Models, section 4.
    """
    _check_rho(rho)
    first, fresh = (jax.random.normal(part, shape) for part in jax.random.split(key))
    rho = jnp.asarray(rho, first.dtype)
    return first, rho * first + jnp.sqrt(1 - jnp.square(rho)) * fresh


def bit_pair(key: PRNGKeyArray, shape: tuple[int, ...], *, rho: Rho) -> Floats:
    """Draws two arrays of uniform ±1 bits whose matching bits have correlation `rho`.

    Each bit of the second equals that of the first with probability (1 + rho) / 2.

    Args:
        key: Random key.
        shape: Shape of either array.
        rho: Correlation, in [-1, 1]. Its gradient is 0, since bits are discrete.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from hopfax.stability import bit_pair
        >>> x, y = bit_pair(jax.random.key(0), (10_000,), rho=0.5)
        >>> round(float(jnp.mean(x == y)), 2)
        0.75

    References:
        O'Donnell, Analysis of Boolean Functions, Definition 2.40.
    """
    _check_rho(rho)
    for_bits, for_flips = jax.random.split(key)
    first = jax.random.rademacher(for_bits, shape, jnp.result_type(float))
    draws = jax.random.uniform(for_flips, shape)
    flips = draws >= (1 + jnp.asarray(rho, draws.dtype)) / 2
    return first, jnp.where(flips, -first, first)


def bonami_beckner_pair(
    key: PRNGKeyArray, tokens: Int[Array, "..."], *, rho: Rho, num_tokens: int, mask: Mask = None
) -> tuple[Int[Array, "..."], Int[Array, "..."]]:
    """Returns tokens and a noisy copy: each is kept with probability (1 + rho) / 2, or resampled.

    New tokens are uniform over all `num_tokens`, including the old one. At rho = -1, all are
    resampled. For ±1 bits that flip, see `bit_pair`.

    Args:
        key: Random key.
        tokens: Token ids in [0, num_tokens).
        rho: Noise parameter, in [-1, 1]. Its gradient is 0, since tokens are discrete.
        num_tokens: Size of the vocabulary, >= 1.
        mask: Of the shape of `tokens`; False at tokens that are always kept, such as padding.

    Raises:
        TypeError: If the tokens are not integers, or the mask is not boolean.
        ValueError: If a shape is wrong or, unless traced, a number or token is out of range.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from hopfax.stability import bonami_beckner_pair
        >>> tokens = jnp.zeros(10_000, int)
        >>> _, noisy = bonami_beckner_pair(jax.random.key(0), tokens, rho=0.5, num_tokens=100)
        >>> round(float(jnp.mean(noisy == 0)), 2)
        0.75

    References:
        Noise Stability of Transformer Models, Eq. 7 and Definition 6.1.
    """
    _check_rho(rho)
    tokens = jnp.asarray(tokens)
    if not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise TypeError(f"tokens must be integers, got {tokens.dtype}")
    check_count(1, num_tokens=num_tokens)
    check_range(0, np.inf if is_traced(num_tokens) else num_tokens - 1, tokens=tokens)
    if not is_traced(num_tokens) and num_tokens - 1 > jnp.iinfo(tokens.dtype).max:
        raise ValueError(f"num_tokens must fit the tokens' {tokens.dtype}, got {num_tokens}")
    for_kept, for_fresh = jax.random.split(key)
    kept = jax.random.uniform(for_kept, tokens.shape) < (1 + rho) / 2
    kept |= ~full_mask(mask, tokens.shape)
    fresh = jax.random.randint(for_fresh, tokens.shape, 0, num_tokens).astype(tokens.dtype)
    return tokens, jnp.where(kept, tokens, fresh)


def flip_pair(key: PRNGKeyArray, shape: tuple[int], *, rho: Rho) -> Floats:
    """Draws uniform ±1 bits, and a copy with bit number `rho` flipped."""
    bits = jax.random.rademacher(key, shape, jnp.result_type(float))
    return bits, jnp.where(jnp.arange(len(bits)) == jnp.asarray(rho).astype(int), -bits, bits)


def _check_rho(rho: Rho) -> None:
    check_shapes(rho=(rho, ""))
    check_range(-1, 1, rho=rho)
