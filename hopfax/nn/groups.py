"""A layer's work cut into groups of texts: those of a cache, or those of a device."""

import math
import os
from collections.abc import Callable
from typing import TypeVar

import jax
from jax.core import Tracer
from jax.sharding import PartitionSpec
from jaxtyping import PyTree

Result = TypeVar("Result")

# Elements of one array that a core's own cache holds beside the few others in use: 256 KiB.
_PER_CORE = 2**16


def by_groups(
    fn: Callable[..., Result], *arrays: PyTree, elements: int, on_cpu: bool | None = None
) -> Result:
    """Calls `fn` on one group of texts after the other, where that is faster than on all at once.

    On a CPU an iteration over all texts at once streams its arrays through main memory in every
    step. A group's arrays stay in the cache, its temporaries are as small as it is, and its loop
    ends with its own slowest query: finished texts have left. On other devices, which want all
    the work at once, this is `fn(*arrays)`.

    Args:
        fn: A function of arrays with a leading axis of texts, which treats each by itself.
        *arrays: Trees of arrays with that axis.
        elements: Size of the largest array that `fn` makes of one text, if it works on several of
            that size at once; less if on fewer.
        on_cpu: Whether to cut; None does so where jax's default backend is the CPU, and it has one
            device: texts shared out among several must not be gathered again.

    Returns:
        What `fn` returns, the same whether cut or not.
    """
    texts = jax.tree.leaves(arrays)[0].shape[0]
    if on_cpu is None:
        on_cpu = jax.default_backend() == "cpu" and jax.local_device_count() == 1
    size = group_size(texts, elements=elements) if on_cpu else texts
    if size >= texts:
        return fn(*arrays)
    cut = jax.tree.map(lambda x: x.reshape(texts // size, size, *x.shape[1:]), arrays)
    found = jax.lax.map(lambda group: fn(*group), cut)
    return jax.tree.map(lambda x: x.reshape(texts, *x.shape[2:]), found)


def by_devices(fn: Callable[..., Result], *arrays: PyTree) -> Result:
    """Calls `fn` on each device's share of the texts, in a program that several devices run.

    What XLA computes it shares out by itself. A kernel it cannot cut: every device would run it
    on all texts.

    Args:
        fn: A function of arrays with a leading axis of texts, which treats each by itself.
        *arrays: Trees of arrays with that axis.

    Returns:
        What `fn` returns, the same whether cut or not. It is cut in a program that is compiled with
        a mesh in context (by a `hopfax.train.sharding.Sharding` that splits batches, or your own
        `jax.set_mesh`, arrays lying on it): among the devices of its leading axes, of those that
        XLA manages, as far as the texts divide among them. Explicit axes must not cut the texts.
    """
    mesh = jax.sharding.get_abstract_mesh()
    axes = tuple(axis for axis in mesh.auto_axes if mesh.shape[axis] > 1)
    texts = jax.tree.leaves(arrays)[0]
    while axes and len(texts) % math.prod(mesh.shape[axis] for axis in axes):
        axes = axes[:-1]
    if not axes or not isinstance(texts, Tracer):
        return fn(*arrays)
    lies = PartitionSpec(axes)
    # Its check has no rule for kernels.
    cut = jax.shard_map(fn, in_specs=lies, out_specs=lies, axis_names=set(axes), check_vma=False)
    return cut(*arrays)


def group_size(texts: int, *, elements: int, cores: int | None = None) -> int:
    """The largest divisor of `texts` whose arrays fit into the cores' caches, at least 1."""
    wanted = (cores or usable_cores()) * _PER_CORE // elements
    fitting = (size for size in range(1, texts + 1) if texts % size == 0 and size <= wanted)
    return max(fitting, default=1)


def usable_cores() -> int:
    """Cores this process may use, which a container or a job limit makes fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
