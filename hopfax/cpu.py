"""Grouping of texts for the caches of a CPU; no effect on results or on other devices.

`python -m experiments.benchmarks cpu` measures the gain; `experiments/results/speed/cpu` has it.
"""

import os
from collections.abc import Callable
from typing import TypeVar

import jax
from jaxtyping import PyTree

Result = TypeVar("Result")

# Elements of one array (256 KiB) that fit into a core's cache with the few others in use.
_PER_CORE = 2**16


def by_groups(fn: Callable[..., Result], *arrays: PyTree, elements: int) -> Result:
    """Maps `fn` over groups of texts that fit into the CPU's caches.

    On a CPU an iteration over all texts at once streams its arrays through main memory in every
    step. A group's arrays stay in the cache, its temporaries are as small as it is, and its loop
    ends with its own slowest query. On other devices, and on several CPU devices, whose texts must
    not be gathered, this is `fn(*arrays)`.

    Args:
        fn: Function of arrays with a leading axis of texts; must treat texts independently.
        *arrays: Trees of arrays with that axis.
        elements: Size of the largest array that `fn` makes of one text, if it works on several of
            that size at once; less if on fewer.

    Returns:
        The result of `fn(*arrays)`.
    """
    texts = jax.tree.leaves(arrays)[0].shape[0]
    on_cpu = jax.default_backend() == "cpu" and jax.local_device_count() == 1
    size = group_size(texts, elements=elements) if on_cpu else texts
    if size >= texts:
        return fn(*arrays)
    cut = jax.tree.map(lambda x: x.reshape(texts // size, size, *x.shape[1:]), arrays)
    results = jax.lax.map(lambda group: fn(*group), cut)
    return jax.tree.map(lambda x: x.reshape(texts, *x.shape[2:]), results)


def group_size(texts: int, *, elements: int) -> int:
    """Returns the largest divisor of `texts` whose arrays fit into the caches, at least 1."""
    limit = usable_cores() * _PER_CORE // elements
    fitting = (size for size in range(1, texts + 1) if texts % size == 0 and size <= limit)
    return max(fitting, default=1)


def usable_cores() -> int:
    """Returns the number of cores this process may use, under a container's or job's limits."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
