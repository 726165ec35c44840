"""CPU optimizations that leave results unchanged; no effect on other devices.

Small models with several seeds gain most.
"""

import math
import os
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import random as extend
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, UInt32

Words = UInt32[Array, "..."]
Result = TypeVar("Result")

# Elements of one array (256 KiB) that fit into a core's cache with the few others in use.
_PER_CORE = 2**16

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def fast_key(key: PRNGKeyArray | Words) -> PRNGKeyArray:
    """Returns the key, wrapped for a faster generator of identical numbers on CPUs.

    Args:
        key: A key or an array of keys, typed or raw, of any generator.

    Returns:
        On a CPU a key of jax's default generator is wrapped for this module's; every other key,
        and every key on other devices, is returned unchanged.

    Example:
        >>> import jax
        >>> from hopfax.cpu import fast_key
        >>> key = jax.random.key(0)
        >>> bool((jax.random.normal(fast_key(key), (3,)) == jax.random.normal(key, (3,))).all())
        True
    """
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    # Without `jax_threefry_partitionable`, jax draws other bits.
    if (
        jax.default_backend() == "cpu"
        and jax.config.values["jax_threefry_partitionable"]
        and str(jax.random.key_impl(key)) == "threefry2x32"
    ):
        return jax.random.wrap_key_data(jax.random.key_data(key), impl=_THREEFRY)
    return key


def threefry(key: tuple[Words, Words], counter: tuple[Words, Words]) -> tuple[Words, Words]:
    """Encrypts 64-bit counters with a 64-bit key, each as two words: Threefry-2x32, 20 rounds.

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
        raise ValueError(f"shape must have fewer than 2**32 entries, got {shape}")
    low = jax.lax.iota(jnp.uint32, size).reshape(shape)
    return threefry((key[0], key[1]), (jnp.zeros_like(low), low))


_THREEFRY = extend.define_prng_impl(
    key_shape=(2,),
    seed=extend.threefry_prng_impl.seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="threefry2x32_fast",
    tag="fryq",
)


def by_groups(fn: Callable[..., Result], *arrays: PyTree, size: int) -> Result:
    """Returns `fn(*arrays)`, computed for groups of `size` texts, one after the other.

    An iteration over all texts at once streams its arrays through main memory in every step. A
    group's arrays stay in the cache, and its loop ends with its own slowest query.

    Args:
        fn: Function of arrays with a leading axis of texts; must treat texts independently.
        *arrays: Trees of arrays with that axis.
        size: A divisor of the number of texts, see `group_size`.
    """
    texts = jax.tree.leaves(arrays)[0].shape[0]
    if size >= texts:
        return fn(*arrays)
    cut = jax.tree.map(lambda x: x.reshape(texts // size, size, *x.shape[1:]), arrays)
    results = jax.lax.map(lambda group: fn(*group), cut)
    return jax.tree.map(lambda x: x.reshape(texts, *x.shape[2:]), results)


def group_size(texts: int, *, elements: int) -> int:
    """Returns the largest divisor of `texts` whose arrays fit into a CPU's caches, at least 1.

    On other devices, and on several CPU devices, whose texts must not be gathered, this is `texts`.

    Args:
        texts: Number of texts.
        elements: Size of the largest array that the function makes of one text.
    """
    if jax.default_backend() != "cpu" or jax.local_device_count() > 1:
        return texts
    limit = usable_cores() * _PER_CORE // max(1, elements)
    fitting = (size for size in range(1, texts + 1) if texts % size == 0 and size <= limit)
    return max(fitting, default=1)


def usable_cores() -> int:
    """Returns the number of cores this process may use, under a container's or job's limits."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def flat_dot_general(
    x: Float[Array, "*rows inputs"],
    kernel: Float[Array, "inputs outputs"],
    dimension_numbers: Any,
    **options: Any,
) -> Float[Array, "*rows outputs"]:
    """`jax.lax.dot_general` for `nnx.Linear`, with all rows along one axis.

    The kernel's gradient sums over this axis instead of over texts and tokens; for two axes XLA
    would first transpose the incoming gradient.
    """
    del dimension_numbers  # those of nnx.Linear: the last axis with the kernel's first
    flat = x.reshape(-1, x.shape[-1])
    product = jax.lax.dot_general(flat, kernel, (((1,), (0,)), ((), ())), **options)
    return product.reshape(*x.shape[:-1], kernel.shape[-1])
