"""Sharding of a run over the devices of all processes: by seeds, or by the rows of a batch."""

import builtins
import json
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hopfax.cpu import usable_cores

Axis = Literal["seeds", "batch"]
_DEVICES = "devices"
_alone = False  # whether process 0 is in a call of `first`


class Sharding(NamedTuple):
    """A mesh of devices and the sharded axis; see `make_sharding`.

    Attributes:
        mesh: The devices, along one axis.
        axis: `"seeds"`: each device trains some of the seeds, without communication. `"batch"`:
            each device takes some rows of every batch, by XLA's partitioning; gradients are summed
            over devices.
    """

    mesh: Mesh
    axis: Axis

    def over(self, *axes: str) -> NamedSharding:
        """Returns the sharding of arrays with these axes; without axes, they are replicated."""
        names = (_DEVICES if axis == self.axis else None for axis in axes)
        return NamedSharding(self.mesh, PartitionSpec(*names))

    def jit(
        self,
        fn: Callable[..., Any],
        inputs: Sequence[NamedSharding],
        outputs: Sequence[NamedSharding],
        **options: Any,
    ) -> Callable[..., Any]:
        """Compiles a single-device program for arguments and results with these shardings."""
        if self.axis == "seeds":
            fn = jax.shard_map(
                fn,
                mesh=self.mesh,
                in_specs=tuple(sharding.spec for sharding in inputs),
                out_specs=tuple(sharding.spec for sharding in outputs),
                check_vma=False,  # the check rejects loops whose first state is a constant
            )
        fn = jax.jit(fn, in_shardings=tuple(inputs), out_shardings=tuple(outputs), **options)
        return (lambda *x: fn(*map(place, x, inputs))) if self.mesh.is_multi_process else fn

    def put(self, tree: Any, axis: str | None = None) -> Any:
        """Places arrays, split along their first axis `axis`, or replicated if uneven or None."""
        divides = axis and len(jax.tree.leaves(tree)[0]) % self.mesh.size == 0
        return place(tree, self.over(axis) if axis and divides else self.over())


def make_sharding(
    num_devices: int | None = None, *, num_seeds: int, batch_size: int
) -> Sharding | None:
    """Shards a run over the devices: by seeds if they divide evenly, else by batches.

    Several processes use all of their devices. Returns None for a single device.

    Args:
        num_devices: Number of devices; None: the largest number that divides seeds or batch.
        num_seeds: Number of seeds trained together.
        batch_size: Rows per step.

    Raises:
        ValueError: There are fewer devices, or `num_devices` divides neither seeds nor batch.

    Warns:
        RuntimeWarning: XLA host devices have too few threads; eigenvalues can deadlock.

    Example:
        >>> from hopfax.train.sharding import make_sharding
        >>> make_sharding(1, num_seeds=5, batch_size=32) is None
        True
    """
    devices = jax.devices()
    least = len(devices) if jax.process_count() > 1 else 1
    sizes: dict[Axis, int] = {"seeds": num_seeds, "batch": batch_size}

    def axis_of(count: int) -> Axis | None:
        return next((axis for axis, size in sizes.items() if size % count == 0), None)

    if num_devices is None:
        num_devices = next(filter(axis_of, range(len(devices), least - 1, -1)), len(devices))
    if not least <= num_devices <= len(devices):
        raise ValueError(f"num_devices must be in [{least}, {len(devices)}], got {num_devices}")
    if num_devices == 1:
        return None
    if (axis := axis_of(num_devices)) is None:
        raise ValueError(
            f"{num_devices} devices must divide the seeds or the batch, got {num_seeds} seeds and "
            f"batches of {batch_size}"
        )
    _warn_of_few_threads(devices[:num_devices])
    return Sharding(Mesh(np.asarray(devices[:num_devices]), (_DEVICES,)), axis)


def place(tree: Any, sharding: Any) -> Any:
    """Like `jax.device_put`, but arrays that already span processes are unchanged."""
    if sharding is None or sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)

    def put(array: Any) -> Any:
        if isinstance(array, jax.Array) and not array.is_fully_addressable:
            return array
        is_key = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
        array = array if is_key else np.asarray(array)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return jax.tree.map(put, tree)


def fetch(array: Any) -> np.ndarray:
    """Returns the complete array on all processes, which call this together."""
    if not isinstance(array, jax.Array) or array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    return multihost_utils.process_allgather(array, tiled=True)


def is_first() -> bool:
    """Returns whether this is process 0, or the only one."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def any_process(flag: bool) -> bool:
    """Returns whether the flag is set on some process; all processes call this together."""
    return bool(multihost_utils.process_allgather(np.array(flag)).any())


def first(fn: Callable[[], Any]) -> Any:
    """Calls a function on process 0 only; all processes return its result or raise its error.

    All processes call this together. Results are JSON values or bytes; errors arrive elsewhere as
    their built-in base class. Nested calls run on process 0 only.
    """
    global _alone
    if not jax.distributed.is_initialized() or _alone:
        return fn()
    value, failure, message = None, None, b""
    if is_first():
        _alone = True
        try:
            value = fn()
        except Exception as error:
            failure = error
        finally:
            _alone = False
        kind = next(each for each in type(failure).__mro__ if each.__module__ == "builtins")
        document = value, failure and (kind.__name__, str(failure))
        message = value if isinstance(value, bytes) else json.dumps(document, default=str).encode()
    share, header = multihost_utils.broadcast_one_to_all, (len(message), isinstance(value, bytes))
    size, is_bytes = share(np.array(header, np.uint32)).tolist()
    padded = message.ljust(2 ** max(10, size.bit_length()), b"\0")  # few lengths, as each compiles
    message = share(np.frombuffer(padded, np.uint8)).tobytes()[:size]
    if failure:
        raise failure
    value, failure = (message, None) if is_bytes else json.loads(message)
    if failure:
        raise getattr(builtins, failure[0])(failure[1])
    return value


def check_devices() -> None:
    """Raises a ValueError if jax finds no device, as for `JAX_PLATFORMS=cuda` without a GPU."""
    try:
        jax.devices()
    except (AssertionError, RuntimeError) as error:  # for cuda, jax 0.10 fails an assertion
        platforms = jax.config.values["jax_platforms"]
        reason = str(error) or "unset it to use the CPU"
        raise ValueError(f"jax finds no device for JAX_PLATFORMS={platforms}: {reason}") from None


def _warn_of_few_threads(devices: Sequence[Any]) -> None:
    devices = [each for each in devices if each.process_index == jax.process_index()]
    # An eigenvalue call blocks a thread of the pool while it waits for others (jaxlib 0.10.1).
    requested = os.environ.get("PJRT_NPROC") or os.environ.get("NPROC") or ""
    threads = int(requested) if requested.isdigit() else usable_cores()
    if devices[0].platform == "cpu" and len(devices) >= threads:
        warnings.warn(
            f"{len(devices)} host devices with {threads} threads can deadlock: set "
            f"PJRT_NPROC={2 * len(devices)} before Python starts",
            RuntimeWarning,
            stacklevel=3,
        )
