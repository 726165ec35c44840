"""Checkpoints of one run: Orbax's `CheckpointManager`, a configuration and checksums.

A folder holds `config.json` and `checkpoints/<step>/`. Orbax writes in the background and commits
each checkpoint atomically; checksums detect corrupted files, which Orbax does not.
"""

import json
import logging
import os
import time
import warnings
import zlib
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import numpy as np
import orbax.checkpoint as ocp

from hopfax.nn.functional import flatten
from hopfax.train.sharding import fetch, first, is_first, place

# Orbax also logs the tracebacks of the errors it raises.
logging.getLogger("absl").addFilter(lambda record: "orbax" not in record.pathname)
logging.getLogger("asyncio").addFilter(lambda record: "orbax" not in record.getMessage())


class CheckpointWarning(UserWarning):
    """A checkpoint could not be read, and an earlier one was used instead."""


class CheckpointError(OSError):
    """A checkpoint could not be written, or none could be read."""


class Restored(NamedTuple):
    """A checkpoint: its step, and its arrays in the requested structure."""

    step: int
    tree: Any


class Checkpoints:
    """Saves and restores the state of one run in one folder; one run writes at a time.

    Several processes call all methods but `due` together; process 0 alone reads and writes.

    Args:
        folder: Folder of `config.json` and the checkpoints; created if absent.
        config: JSON-serializable settings of the run. A folder belongs to one configuration.
        interval: Seconds between saves, see `due`.

    Raises:
        ValueError: The folder belongs to another configuration; each difference is named.
        CheckpointError: `config.json` is unreadable, or missing next to checkpoints.

    Example:
        >>> import numpy as np
        >>> import tempfile
        >>> from hopfax.train.checkpoint import Checkpoints
        >>> with tempfile.TemporaryDirectory() as folder, Checkpoints(folder, config={}) as run:
        ...     run.save(10, {"weights": np.ones(3)})
        ...     run.restore({"weights": np.zeros(3)})
        Restored(step=10, tree={'weights': array([1., 1., 1.])})
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, config: Mapping[str, Any], interval: float = 60.0
    ):
        self.folder = Path(folder).absolute()  # Orbax accepts no relative paths
        self._steps = self.folder / "checkpoints"
        self._interval, self._saved_at = interval, time.monotonic()
        first(lambda: self._check_config(json.loads(json.dumps(dict(config)))))
        self._open(clean_up=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if error is None or not jax.distributed.is_initialized():  # not an error of one process
                self.wait()
        except CheckpointError as failure:
            if error is None:
                raise
            error.add_note(str(failure))  # the first error is the one to report
        finally:
            if self._manager:
                self._manager.close()

    def save(self, step: int, tree: Any) -> None:
        """Copies the state to the host and starts to write it; overwrites a save of the same step.

        It consists of nested containers of jax or NumPy arrays, none of them empty.

        Raises:
            CheckpointError: An earlier save failed; this one is not started. Threads of a failed
                save may write for a while: continue with another step, not with the same one.
        """
        self.wait()
        # On CPU a view of the caller's buffer, which Orbax copies before it returns.
        arrays = {name: fetch(leaf) for name, leaf in flatten(tree, "/").items()}
        first(lambda: self._save(step, arrays))
        self._saved_at = time.monotonic()

    def _save(self, step: int, arrays: dict[str, np.ndarray]) -> None:
        checksum = ocp.args.JsonSave({"crc32": _checksum(arrays)})
        if step in self._manager.all_steps():
            self._manager.delete(step)
        items = ocp.args.Composite(arrays=ocp.args.PyTreeSave(arrays), notes=checksum)
        try:
            self._manager.save(step, args=items, force=True)
        except OSError as error:
            self._fail(error)

    def due(self) -> bool:
        """Returns whether the last save was longer ago than the interval."""
        return time.monotonic() - self._saved_at > self._interval

    def restore(self, like: Any) -> Restored | None:
        """Reads the newest checkpoint, or the one before if it is damaged.

        Args:
            like: The expected structure, of arrays or `jax.ShapeDtypeStruct`; arrays are restored
                as NumPy or jax arrays as in `like`, with its sharding.

        Returns:
            The checkpoint, or None if there is none. Newer damaged ones are deleted, with a
            `CheckpointWarning`.

        Raises:
            ValueError: The checkpoint has other leaves, shapes or dtypes than `like`.
            CheckpointError: There are checkpoints, but none can be read; or a save failed.
        """
        self.wait()
        damaged, targets = "", flatten(like, "/")
        for step in (steps := first(lambda: sorted(self._manager.all_steps(), reverse=True))):
            path = self._steps / str(step)
            try:
                arrays = self._read(step)
            except Exception as error:
                damaged += f"\n  {path}: {_first_line(error)}"
                continue
            # Earlier checkpoints would not fit either.
            if misfit := _differences(*map(_shapes, (arrays, targets))):
                raise ValueError(
                    f"{path} does not fit the requested state (saved → requested):{misfit}\n"
                    "Build the state as it was when this was saved, or choose another folder."
                )
            if damaged:
                message = f"damaged checkpoint:{damaged}\nUsing step {step}"
                warnings.warn(message, CheckpointWarning, stacklevel=2)
            for newer in steps[: steps.index(step)]:
                first(lambda newer=newer: self._manager.delete(newer))
            leaves = [_place(arrays[name], target) for name, target in targets.items()]
            return Restored(step, jax.tree.unflatten(jax.tree.structure(like), leaves))
        if damaged:
            raise CheckpointError(
                f"no checkpoint in {self._steps} can be read:{damaged}\n"
                "Restore a copy, or remove that folder to start from step 0."
            )
        return None

    def wait(self) -> None:
        """Blocks until all saves are complete; raises a CheckpointError if one failed."""
        try:
            first(lambda: self._manager.wait_until_finished())
        except Exception as error:
            first(lambda error=error: self._fail(error))

    def newest(self) -> str:
        """Describes the newest complete checkpoint; "none" if there is none."""
        step = first(lambda: self._manager.latest_step())
        return "none" if step is None else f"step {step} in {self._steps / str(step)}"

    def _open(self, *, clean_up: bool) -> None:
        options = ocp.CheckpointManagerOptions(
            max_to_keep=2, cleanup_tmp_directories=clean_up, create=False,
            multiprocessing_options=ocp.options.MultiprocessingOptions(active_processes={0}),
        )  # fmt: skip
        self._manager: Any = is_first() and ocp.CheckpointManager(self._steps, options=options)

    def _fail(self, error: Exception) -> None:
        # A manager whose save failed accepts no other. Its threads may still write to the temporary
        # folder, so this one leaves it alone.
        self._open(clean_up=False)
        raise CheckpointError(
            f"a checkpoint could not be written: {_first_line(error)}\n"
            f"Last complete one: {self.newest()}. Resume once there is disk space."
        ) from error

    def _check_config(self, config: dict[str, Any]) -> None:
        path = self.folder / "config.json"
        if not path.exists() and not self._steps.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(config, sort_keys=True, indent=1))
            partial.replace(path)
        try:
            stored = json.loads(path.read_bytes())
        except (ValueError, FileNotFoundError) as error:
            raise CheckpointError(
                f"{path} is missing or not JSON ({error}): restore it, or choose another folder"
            ) from error
        if stored != config:
            raise ValueError(
                f"{self.folder} belongs to a run with another configuration (stored → given):"
                f"{_differences(flatten(stored, '/'), flatten(config, '/'))}\n"
                "Restore these settings to resume that run, or choose another folder."
            )
        self._steps.mkdir(exist_ok=True)

    def _read(self, step: int) -> dict[str, np.ndarray]:
        items = ocp.args.Composite(arrays=ocp.args.PyTreeRestore(), notes=ocp.args.JsonRestore())
        arrays: dict[str, np.ndarray] = {}

        def read() -> list[Any]:
            saved: Any = self._manager.restore(step, args=items)
            if _checksum(saved.arrays) != saved.notes["crc32"]:
                raise ValueError("arrays changed since they were written")
            arrays.update(saved.arrays)
            return [(name, x.dtype.name, x.shape) for name, x in arrays.items()]

        for name, dtype, shape in first(read):
            if jax.distributed.is_initialized():
                content = first(lambda name=name: arrays[name].tobytes())
                arrays[name] = np.frombuffer(content, dtype).reshape(shape)
        return arrays


def _shapes(leaves: Mapping[str, Any]) -> dict[str, str]:
    return {name: f"{leaf.dtype.name}{list(leaf.shape)}" for name, leaf in leaves.items()}


def _checksum(arrays: Mapping[str, np.ndarray]) -> int:
    return reduce(lambda total, name: zlib.crc32(arrays[name].tobytes(), total), sorted(arrays), 0)


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """A new line, `name: old → new`, for each value that differs."""
    pairs = {n: (old.get(n, "absent"), new.get(n, "absent")) for n in sorted({*old, *new})}
    return "".join(f"\n  {n}: {one} → {other}" for n, (one, other) in pairs.items() if one != other)


def _place(array: np.ndarray, target: Any) -> Any:
    if isinstance(target, np.ndarray | np.generic):
        return array
    uncommitted = isinstance(target, jax.Array) and not target.committed
    return place(array, None if uncommitted else target.sharding)


def _first_line(error: Exception) -> str:
    line = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {line.partition(' [tensorstore_spec=')[0]}"
