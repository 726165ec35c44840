"""Correlated pairs of inputs: Gaussian, of bits, and of tokens.

A pair sampler is called as `pair(key, shape, rho=rho)` and returns two arrays. The first must not
depend on `rho`, so that estimates at several correlations share it.
"""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, PRNGKeyArray

Rho = float | Float[Array, ""]


def gaussian_pair(
    key: PRNGKeyArray, shape: tuple[int, ...], *, rho: Rho
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    r"""Draws two standard normal arrays whose matching coordinates have correlation `rho`.

    $$Y = \rho X + \sqrt{1 - \rho^2}\, Z$$

    Args:
        key: Random key.
        shape: Shape of either array.
        rho: Correlation, in [-1, 1]; a traced value outside of it gives nan.

    Returns:
        X and Y. X depends on the key alone.

    Raises:
        ValueError: If `rho` is outside [-1, 1].

    Example:
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


def bit_pair(
    key: PRNGKeyArray, shape: tuple[int, ...], *, rho: Rho
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Draws two arrays of uniform ±1 bits whose matching bits have correlation `rho`.

    Each bit of the second equals that of the first with probability (1 + rho) / 2.

    Args:
        key: Random key.
        shape: Shape of either array.
        rho: Correlation, in [-1, 1]; a traced value outside of it gives nan.

    Returns:
        The bits as floats, and their noisy copy.

    Raises:
        ValueError: If `rho` is outside [-1, 1].
        TypeError: If a gradient with respect to `rho` is taken: the draws jump, so it would be 0.

    Example:
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
    rho = _no_gradient(jnp.asarray(rho, draws.dtype))
    signs = jnp.where(draws < (1 + rho) / 2, 1, -1)
    return first, first * jnp.where(jnp.abs(rho) <= 1, signs, jnp.nan)


def bonami_beckner_pair(
    key: PRNGKeyArray, tokens: Int[Array, "..."], *, rho: Rho, num_tokens: int
) -> tuple[Int[Array, "..."], Int[Array, "..."]]:
    """Keeps each token with probability (1 + rho) / 2, and else draws it anew.

    The new token is uniform over all `num_tokens`, the old one included: at rho = 0 about half of
    the tokens stay, and at rho = -1 all are drawn anew. For ±1 bits that flip, see `bit_pair`.

    Args:
        key: Random key.
        tokens: Token ids in [0, num_tokens). Traced ids are not checked.
        rho: Noise parameter, in [-1, 1]; a traced value outside of it acts as the nearer end.
        num_tokens: Size of the vocabulary, >= 1.

    Returns:
        The tokens, unchanged, and the noisy copy.

    Raises:
        ValueError: If `rho`, `num_tokens` or a token is out of range.
        TypeError: If the tokens are not integers, or a gradient with respect to `rho` is taken.

    Example:
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
        raise TypeError(f"tokens must be integer ids, got {tokens.dtype}")
    check_range(1, jnp.iinfo(tokens.dtype).max + 1, num_tokens=num_tokens)
    check_range(0, num_tokens - 1, tokens=tokens)
    for_kept, for_fresh = jax.random.split(key)
    kept = jax.random.uniform(for_kept, tokens.shape) < (1 + _no_gradient(jnp.asarray(rho))) / 2
    fresh = jax.random.randint(for_fresh, tokens.shape, 0, num_tokens).astype(tokens.dtype)
    return tokens, jnp.where(kept, tokens, fresh)


def uniform_token_pair(
    key: PRNGKeyArray, shape: tuple[int, ...], *, rho: Rho, num_tokens: int
) -> tuple[Int[Array, "..."], Int[Array, "..."]]:
    """Draws uniform tokens and their `bonami_beckner_pair`.

    As a sampler: `partial(uniform_token_pair, num_tokens=...)`. Two tokens agree as at correlation
    (1 + rho) / 2: pass that to bounds such as `spectral_tail_bound`.

    Args:
        key: Random key.
        shape: Shape of either array.
        rho: Noise parameter, in [-1, 1].
        num_tokens: Size of the vocabulary, >= 1.

    Returns:
        Uniform tokens and their noisy copy.

    Raises:
        ValueError: See `bonami_beckner_pair`.

    Example:
        >>> first, second = uniform_token_pair(jax.random.key(0), (4,), rho=1.0, num_tokens=3)
        >>> bool((first == second).all())
        True
    """
    for_tokens, for_noise = jax.random.split(key)
    tokens = jax.random.randint(for_tokens, shape, 0, num_tokens)
    return bonami_beckner_pair(for_noise, tokens, rho=rho, num_tokens=num_tokens)


def check_range(low: float, high: float = np.inf, *, ends: str = "[]", **values: Any) -> None:
    """Raises a ValueError unless all values known before the program runs are in the interval.

    Args:
        low: Its lower end.
        high: Its upper end; without it, values must be finite.
        ends: Its brackets: "[" or "(", then "]" or ")".
        values: Numbers or arrays, by the names of the arguments that hold them.
    """
    ends = ends[0] + (")" if high == np.inf else ends[1])
    for name, value in values.items():
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value)):
            continue
        entries = np.asarray(value)
        above = entries > low if ends[0] == "(" else entries >= low
        below = entries < high if ends[1] == ")" else entries <= high
        if not np.all(above & below):
            wrong = entries[~(above & below)].flat[0]
            raise ValueError(f"{name} must be in {ends[0]}{low:g}, {high:g}{ends[1]}, got {wrong}")


def _check_rho(rho: Rho) -> None:
    chex.assert_rank(rho, 0)
    check_range(-1, 1, rho=rho)


@jax.custom_jvp
def _no_gradient(rho: Array) -> Array:
    """Returns `rho`, and refuses to be differentiated: draws are compared with it."""
    return rho


@_no_gradient.defjvp
def _refuse(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    raise TypeError(
        "bits and tokens have no gradient with respect to rho: the draws jump. Fit a polynomial "
        "in rho to noise_stability at several rho, or use level_weights"
    )
