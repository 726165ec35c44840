"""jax's own random numbers in less time on a CPU.

jax compiles its default generator, Threefry, as a loop over rounds on CPUs, which writes its state
to memory and reads it back between them; written out, it stays in registers. The bits are the same.
Measured in CPU time on two cores with jax 0.10: bits 2.1 times, normals 1.4 times as fast, a train
step of Robertha (dropout) 11 and 16 % shorter in two runs, stability estimates no shorter.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import random as extend
from jaxtyping import Array, PRNGKeyArray, UInt32

Words = UInt32[Array, "..."]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def quick(key: PRNGKeyArray | Words) -> PRNGKeyArray:
    """Returns the same key, for a generator that draws the same numbers faster where there is one.

    Args:
        key: One key or an array of them, of any generator and either style.

    Returns:
        On a CPU a key of jax's default generator is wrapped for this module's; every other key,
        and every key on other devices, is returned unchanged.

    Raises:
        TypeError: If it is not a key.

    Example:
        >>> import jax
        >>> key = jax.random.key(0)
        >>> bool((jax.random.normal(quick(key), (3,)) == jax.random.normal(key, (3,))).all())
        True
    """
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    # The older way of numbering what is drawn can still be asked for, and has other bits.
    if jax.default_backend() != "cpu" or not jax.config.values["jax_threefry_partitionable"]:
        return key
    if str(jax.random.key_impl(key)) != "threefry2x32":
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=_THREEFRY)


def threefry(key: tuple[Words, Words], counter: tuple[Words, Words]) -> tuple[Words, Words]:
    """Encrypts 64-bit counters, as two words, by a 64-bit key: Threefry-2x32 with 20 rounds.

    References:
        Salmon et al. (2011), Parallel Random Numbers: As Easy as 1, 2, 3.
    """
    words = (*key, key[0] ^ key[1] ^ _PARITY)
    left, right = counter[0] + words[0], counter[1] + words[1]
    for group in range(5):
        for bits in _ROTATIONS[group % 2]:
            left = left + right
            right = (right << np.uint32(bits)) | (right >> np.uint32(32 - bits))
            right = right ^ left
        left = left + words[(group + 1) % 3]
        right = right + words[(group + 2) % 3] + np.uint32(group + 1)
    return left, right


def _random_bits(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    left, right = _blocks(key, shape)
    dtype = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32, 64: jnp.uint64}[bit_width]
    if bit_width == 64:
        return (left.astype(dtype) << dtype(32)) | right.astype(dtype)
    return (left ^ right).astype(dtype)


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    return jnp.stack(_blocks(key, shape), axis=-1)


def _fold_in(key: Array, data: Array | int) -> Array:
    number = jnp.asarray(data, jnp.uint32)
    return jnp.stack(threefry((key[0], key[1]), (jnp.zeros_like(number), number)))


def _blocks(key: Array, shape: tuple[int, ...]) -> tuple[Words, Words]:
    """One encrypted block for each entry, numbered in row-major order."""
    size = math.prod(shape)
    if size >= 2**32:
        raise ValueError(f"at most 2^32 - 1 numbers can be drawn from one key, wanted {shape}")
    low = jax.lax.iota(jnp.uint32, size).reshape(shape)
    return threefry((key[0], key[1]), (jnp.zeros_like(low), low))


_THREEFRY = extend.define_prng_impl(
    key_shape=(2,),
    seed=extend.threefry_prng_impl.seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="threefry2x32_quick",
    tag="fryq",
)
