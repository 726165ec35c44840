"""Sharding of a run over several devices: by seeds, or by the rows of a batch."""

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hopfax.cpu import usable_cores

Axis = Literal["seeds", "batch"]
_DEVICES = "devices"


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
        return jax.jit(fn, in_shardings=tuple(inputs), out_shardings=tuple(outputs), **options)

    def put_batch(self, batch: Any) -> Any:
        """Puts arrays of `(batch, ...)` on the devices; replicated if rows do not divide evenly."""
        divides = len(jax.tree.leaves(batch)[0]) % self.mesh.size == 0
        return jax.device_put(batch, self.over("batch") if divides else self.over())


def make_sharding(
    num_devices: int | None = None, *, num_seeds: int, batch_size: int
) -> Sharding | None:
    """Shards a run over this process's devices: by seeds if they divide evenly, else by batches.

    Returns None for a single device.

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
    devices = jax.local_devices()
    sizes: dict[Axis, int] = {"seeds": num_seeds, "batch": batch_size}

    def axis_of(count: int) -> Axis | None:
        return next((axis for axis, size in sizes.items() if size % count == 0), None)

    if num_devices is None:
        num_devices = next(count for count in range(len(devices), 0, -1) if axis_of(count))
    if not 1 <= num_devices <= len(devices):
        raise ValueError(f"num_devices must be in [1, {len(devices)}], got {num_devices}")
    if num_devices == 1:
        return None
    if (axis := axis_of(num_devices)) is None:
        raise ValueError(
            f"{num_devices} devices must divide the seeds or the batch, got {num_seeds} seeds and "
            f"batches of {batch_size}"
        )
    _warn_of_few_threads(devices[:num_devices])
    return Sharding(Mesh(np.asarray(devices[:num_devices]), (_DEVICES,)), axis)


def check_devices() -> None:
    """Raises a ValueError if jax finds no device, as for `JAX_PLATFORMS=cuda` without a GPU."""
    try:
        jax.devices()
    except (AssertionError, RuntimeError) as error:  # for cuda, jax 0.10 fails an assertion
        platforms = jax.config.values["jax_platforms"]
        reason = str(error) or "unset it to use the CPU"
        raise ValueError(f"jax finds no device for JAX_PLATFORMS={platforms}: {reason}") from None


def _warn_of_few_threads(devices: Sequence[Any]) -> None:
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
