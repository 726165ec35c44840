"""Where a run's arrays lie when it has several devices: which axis they share out among them.

The program is that of one device. Seeds have nothing to say to each other: each device runs it on
its own. A batch XLA splits, after where its arrays lie, and kernels by `Placement.in_mesh`.
"""

import functools
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hopfax.nn.groups import usable_cores

Split = Literal["seeds", "batch"]
Device = Any  # jax.Device is a value to pyright, and no type
SPLITS: tuple[Split, ...] = get_args(Split)
_AXIS = "devices"


class Placement(NamedTuple):
    """A mesh over devices, and the axis they share out; see `place`.

    Attributes:
        mesh: The devices, along one axis.
        split: `"seeds"`: each device trains some of the seeds, and exchanges nothing with the
            others. `"batch"`: each device takes some rows of every seed's batch, and gradients are
            summed over the devices in every step.
    """

    mesh: Mesh
    split: Split

    @property
    def states(self) -> NamedSharding:
        """Of anything stacked over seeds: states, parameters, keys."""
        return self._lies(_AXIS) if self.split == "seeds" else self.everywhere

    @property
    def plan(self) -> NamedSharding:
        """Of `(steps, seeds, batch)` row numbers and weights."""
        return self._lies(None, _AXIS) if self.split == "seeds" else self._lies(None, None, _AXIS)

    @property
    def metrics(self) -> NamedSharding:
        """Of `(steps, seeds)` numbers."""
        return self._lies(None, _AXIS) if self.split == "seeds" else self.everywhere

    @property
    def everywhere(self) -> NamedSharding:
        """Of what every device holds whole, such as the rows that picks are taken from."""
        return self._lies()

    def compiled(
        self,
        fn: Callable[..., Any],
        inputs: Sequence[NamedSharding],
        outputs: Sequence[NamedSharding],
        **options: Any,
    ) -> Callable[..., Any]:
        """Compiles a program whose arguments and results lie as named.

        With seeds split, each device runs `fn` on its own seeds; with batches split, see `in_mesh`.

        Args:
            fn: The program of one device, of any number of seeds.
            inputs: How each argument lies.
            outputs: How each result lies.
            **options: Of `jax.jit`.
        """
        if self.split == "seeds":
            fn = jax.shard_map(
                fn,
                mesh=self.mesh,
                in_specs=tuple(lies.spec for lies in inputs),
                out_specs=tuple(lies.spec for lies in outputs),
                # Its check has no rule for kernels.
                check_vma=False,
            )
        else:
            fn = self.in_mesh(fn)
        return jax.jit(fn, in_shardings=tuple(inputs), out_shardings=tuple(outputs), **options)

    def in_mesh(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn`, traced where kernels see the mesh, which they share their texts out over.

        XLA shares out the rest after where the arguments lie; it cannot cut a kernel.
        """

        @functools.wraps(fn)
        def traced(*args: Any) -> Any:
            with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
                return fn(*args)

        return traced

    def batch_rows(self, count: int) -> int:
        """Rounds rows of a call up to what the devices can share out."""
        size = self.mesh.size
        return -(-count // size) * size if self.split == "batch" else count

    def put_batch(self, batch: Any) -> Any:
        """Places arrays of `(batch, ...)`; rows that do not divide go everywhere."""
        count = len(jax.tree.leaves(batch)[0])
        shared = self.split == "batch" and count % self.mesh.size == 0
        return jax.device_put(batch, self._lies(_AXIS) if shared else self.everywhere)

    def check(self, *, num_seeds: int, batch_size: int) -> None:
        """Raises a ValueError unless what is split divides among the devices."""
        count = num_seeds if self.split == "seeds" else batch_size
        if count % self.mesh.size:
            raise ValueError(
                f"{count} {_NOUNS[self.split]} do not divide among {self.mesh.size} devices: "
                "take a number of devices that divides it, or split the other axis"
            )

    def _lies(self, *axes: str | None) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(*axes))


_NOUNS: dict[Split, str] = {"seeds": "seeds", "batch": "rows a batch"}


def place(
    devices: Sequence[Device],
    *,
    num_seeds: int,
    batch_size: int,
    split: Split | None = None,
) -> Placement:
    """Shares a run out among devices: its seeds if they divide, else its batches.

    Args:
        devices: One or more, all of them this process's own.
        num_seeds: Seeds that train side by side.
        batch_size: Rows of a step.
        split: What to share out; None takes the seeds if their number divides among the devices,
            else the batch.

    Returns:
        A `Placement` for `hopfax.train.loop.fit` and `hopfax.train.evaluate.predict`.

    Raises:
        ValueError: Neither divides, or not the one asked for; there is no device; or `split` is
            none of the above.

    Warns:
        RuntimeWarning: The devices are parts of one CPU (XLA's host platform devices) with no
            thread to spare, where eigenvalues, and so ESR, may wait for each other for ever.

    Example:
        >>> import jax
        >>> place(jax.devices()[:1], num_seeds=5, batch_size=32).split
        'seeds'
    """
    if split is not None and split not in SPLITS:
        raise ValueError(f'split must be "seeds" or "batch", got {split!r}')
    if not devices:
        raise ValueError("wanted one device or more to place a run on, got none")
    if split is None:
        split = _divides(len(devices), num_seeds, batch_size)
    if split is None:
        raise ValueError(
            f"neither {num_seeds} seeds nor {batch_size} rows a batch divide among {len(devices)} "
            "devices: take a number of devices that divides one of the two"
        )
    found = Placement(Mesh(np.asarray(devices), (_AXIS,)), split)
    found.check(num_seeds=num_seeds, batch_size=batch_size)
    _warn_of_few_threads(devices)
    return found


def place_locally(
    num_devices: int | None = None, *, num_seeds: int, batch_size: int
) -> Placement | None:
    """Shares a run out among this process's devices.

    Args:
        num_devices: How many of them; None takes the most that seeds or batch divide among.
        num_seeds: See `place`.
        batch_size: See `place`.

    Returns:
        A `Placement`; None for a single device, where there is nothing to share out.

    Raises:
        ValueError: There are not so many devices, or neither seeds nor batch divide among them.
    """
    local = jax.local_devices()
    if num_devices is None:
        counts = range(len(local), 0, -1)
        num_devices = next(n for n in counts if _divides(n, num_seeds, batch_size))
    if not 1 <= num_devices <= len(local):
        kinds = ", ".join(sorted({device.device_kind for device in local}))
        raise ValueError(
            f"wanted {num_devices} devices, and this process has {len(local)} ({kinds}): ask "
            f"for 1 to {len(local)}, or leave the number out"
        )
    if num_devices == 1:
        return None
    return place(local[:num_devices], num_seeds=num_seeds, batch_size=batch_size)


def _warn_of_few_threads(devices: Sequence[Device]) -> None:
    # An eigenvalue call of a device holds a thread of the pool while it waits for others of the
    # same pool (jaxlib 0.10.1): with one each for all devices, nobody is left to do the work.
    asked = os.environ.get("PJRT_NPROC") or os.environ.get("NPROC") or ""
    threads = int(asked) if asked.isdigit() else usable_cores()
    if devices[0].platform == "cpu" and 1 < len(devices) >= threads:
        warnings.warn(
            f"{len(devices)} host devices with {threads} threads between them may wait for each "
            f"other for ever: set PJRT_NPROC={2 * len(devices)} before Python starts",
            RuntimeWarning,
            stacklevel=3,
        )


def _divides(num_devices: int, num_seeds: int, batch_size: int) -> Split | None:
    counts: dict[Split, int] = {"seeds": num_seeds, "batch": batch_size}
    return next((split for split, count in counts.items() if count % num_devices == 0), None)
