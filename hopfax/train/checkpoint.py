"""Checkpoints that survive a kill, a full disk and a damaged file.

A folder holds `config.json`, `last/<step>/` and `best/<step>/`. Orbax writes the arrays of one
checkpoint into `<step>.partial/`, a manifest with the SHA-256 of every leaf goes beside them,
everything is flushed to the disk, and one `rename` makes it visible: at any moment a checkpoint is
there whole or not at all. What lies there is believed only while its digests agree.
"""

import concurrent.futures
import json
import operator
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from hopfax.train.snapshot import (
    as_json,
    check_room,
    differences,
    flush,
    named_leaves,
    place,
    read_arrays,
    read_manifest,
    reason,
    write_arrays,
    write_json,
    write_manifest,
)

# A second save of one step gets a generation, `<step>.1`: nothing good is ever overwritten.
_FINISHED = re.compile(r"(\d+)(?:\.(\d+))?")
_RUBBISH = (".partial", ".removed")
# `last` and `best` of one step may wait together; a third save blocks, so host memory is bounded.
_MAX_PENDING = 2


class CheckpointWarning(UserWarning):
    """A checkpoint could not be read and an older one was used instead."""


class CheckpointError(OSError):
    """A checkpoint could not be written, or none of those present could be read."""


class Restored(NamedTuple):
    """What was saved: the step, the arrays in the structure of `like`, the JSON beside them."""

    step: int
    tree: Any
    extra: dict[str, Any]


class Checkpoints:
    """Saves and restores the state of one run in one folder; one process writes at a time.

    Saving copies the arrays to the host and returns; a thread digests and writes them, so the
    caller may donate or overwrite its buffers at once. A failed write is raised by the next call.

    Args:
        folder: where `config.json`, `last/` and `best/` live; made when absent.
        config: JSON-able settings of the run. A folder belongs to one config for good.
        keep: how many checkpoints of each kind stay, >= 1; 2 leaves one to fall back to.

    Raises:
        ValueError: the folder is of another config (each differing key is named), or `keep` < 1.
        CheckpointError: `config.json` is unreadable, or missing beside checkpoints.
    """

    def __init__(self, folder: str | os.PathLike[str], *, config: Mapping[str, Any], keep: int = 2):
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        self.folder = Path(folder).absolute()  # Orbax takes no relative paths
        self._keep = keep
        self._pending: list[concurrent.futures.Future[None]] = []
        self._writer = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._claim(as_json(dict(config), "config"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            self.wait()
        except CheckpointError as failed:
            if error is None:
                raise
            # What stopped the run matters more than the checkpoint it then failed to write.
            error.add_note(str(failed))
        finally:
            self._writer.shutdown()

    def save_last(self, step: int, tree: Any, extra: Mapping[str, Any]) -> None:
        """Starts saving the newest state.

        The step just saved counts as the newest: once it is safely written, checkpoints of later
        steps, left by a run that has since gone back, are removed with those beyond `keep`.

        Args:
            step: the number of steps taken, >= 0.
            tree: nested containers of jax or numpy arrays of any dtype but typed random keys.
            extra: JSON-able values that belong to the state; tuples come back as lists.

        Raises:
            CheckpointError: an earlier save failed (this one is then not begun).
            TypeError: a leaf is no array, or `extra` is not JSON-able.
        """
        self._save("last", step, tree, extra)

    def save_best(self, step: int, tree: Any, extra: Mapping[str, Any]) -> None:
        """Starts saving the best state so far, as `save_last` does the newest."""
        self._save("best", step, tree, extra)

    def restore_last(self, like: Any) -> Restored | None:
        """Reads the newest state, bit for bit, or the one before where it is damaged.

        Args:
            like: the wanted structure, its leaves arrays or `jax.ShapeDtypeStruct`. A leaf comes
                back as numpy where `like` is numpy, else as a jax array, sharded as `like` is
                where that is committed to devices.

        Returns:
            What was saved, or None when nothing ever was. A damaged checkpoint gives a
            `CheckpointWarning` naming it and the older one used.

        Raises:
            ValueError: the checkpoint has other leaves, shapes or dtypes than `like`.
            CheckpointError: checkpoints exist but none can be read, or a pending save failed.
        """
        return self._restore("last", like)

    def restore_best(self, like: Any) -> Restored | None:
        """Reads the best state, as `restore_last` does the newest."""
        return self._restore("best", like)

    def wait(self) -> None:
        """Blocks until all saves are on the disk.

        Raises:
            CheckpointError: a save failed, on a full disk say; the older checkpoints are intact.
        """
        concurrent.futures.wait(self._pending)
        self._collect()

    def newest(self) -> str:
        """Names the newest state on the disk, or nothing if there is none."""
        finished = self._finished("last")
        return f"step {finished[-1][0]} in {finished[-1][2]}" if finished else ""

    def _claim(self, config: dict[str, Any]) -> None:
        path = self.folder / "config.json"
        try:
            found = json.loads(path.read_bytes())
        except FileNotFoundError:
            if self._finished("last") or self._finished("best"):
                raise CheckpointError(
                    f"{path} is missing, so nobody can say what run the checkpoints beside it "
                    "belong to: put it back, or choose another folder"
                ) from None
            self.folder.mkdir(parents=True, exist_ok=True)
            return write_json(path, config)
        except ValueError as error:
            message = f"{path} is not JSON ({error}): put it back, or choose another folder"
            raise CheckpointError(message) from error
        if changed := differences(found, config):
            raise ValueError(
                f"{self.folder} belongs to a run with another config (there → now):{changed}\n"
                "Set these back to continue that run, or choose another folder for a new one."
            )

    def _save(self, kind: str, step: int, tree: Any, extra: Mapping[str, Any]) -> None:
        if (step := operator.index(step)) < 0:
            raise ValueError(f"step must be at least 0, not {step}")
        notes, leaves = as_json(dict(extra), "extra"), named_leaves(tree)
        if len(self._pending) >= _MAX_PENDING:
            concurrent.futures.wait(self._pending[:1])
        self._collect()
        for leaf in leaves.values():
            if isinstance(leaf, jax.Array):
                leaf.copy_to_host_async()
        # On CPU np.asarray would be a view of a buffer that the caller is about to donate.
        arrays = {name: np.array(leaf) for name, leaf in leaves.items()}
        self._pending.append(self._writer.submit(self._write, kind, step, arrays, notes))

    def _collect(self) -> None:
        """Forgets the saves that ended; raises the first failure among them."""
        ended = [save for save in self._pending if save.done()]
        self._pending = [save for save in self._pending if save not in ended]
        for save in ended:
            save.result()

    def _finished(self, kind: str) -> list[tuple[int, int, Path]]:
        """(step, generation, path) of what is visible as a checkpoint, oldest first."""
        names = ((_FINISHED.fullmatch(path.name), path) for path in (self.folder / kind).glob("*"))
        return sorted((int(m[1]), int(m[2] or 0), path) for m, path in names if m)

    def _write(self, kind: str, step: int, arrays: dict[str, np.ndarray], extra: Any) -> None:
        folder = self.folder / kind
        partial = folder / f"{step}.partial"
        try:
            self._sweep(kind)
            partial.mkdir(parents=True)
            check_room(folder, sum(array.nbytes for array in arrays.values()))
            write_arrays(partial / "arrays", arrays)
            write_manifest(partial, step, arrays, extra)
            flush(partial, *partial.rglob("*"))
            generation = max((g + 1 for s, g, _ in self._finished(kind) if s == step), default=0)
            final = folder / (f"{step}.{generation}" if generation else f"{step}")
            os.rename(partial, final)
            flush(folder)
            self._prune(kind, final)
        except Exception as error:
            shutil.rmtree(partial, ignore_errors=True)
            good = [f"step {s} in {path}" for s, _, path in self._finished(kind)] or ["none yet"]
            raise CheckpointError(
                f"the {kind} checkpoint of step {step} could not be written: {reason(error)}\n"
                f"Last good one: {good[-1]}. If the disk is full make room, then resume."
            ) from error

    def _prune(self, kind: str, newest: Path) -> None:
        paths = [path for _, _, path in self._finished(kind)]
        end = paths.index(newest) + 1
        for path in paths[: max(0, end - self._keep)] + paths[end:]:
            # Out of sight first: removing takes many steps, and a kill may fall between two.
            os.rename(path, path.with_name(f"{path.name}.removed"))
        self._sweep(kind)

    def _sweep(self, kind: str) -> None:
        for path in (self.folder / kind).glob("*"):
            if path.name.endswith(_RUBBISH):
                shutil.rmtree(path, ignore_errors=True)

    def _restore(self, kind: str, like: Any) -> Restored | None:
        self.wait()
        targets = named_leaves(like)
        damaged = ""
        for _, _, path in reversed(self._finished(kind)):
            try:
                body = read_manifest(path)
                saved = {name: leaf["array"] for name, leaf in body["leaves"].items()}
                wanted = {k: f"{leaf.dtype.name}{list(leaf.shape)}" for k, leaf in targets.items()}
                misfit = differences(saved, wanted)
                arrays = {} if misfit else read_arrays(path / "arrays", body["leaves"], targets)
            except Exception as error:
                damaged += f"\n  {path}: {reason(error)}"
                continue
            if misfit:  # the caller's mistake, not damage: an older checkpoint is no cure
                raise ValueError(
                    f"{path} does not fit the state asked for (saved → wanted):{misfit}\n"
                    "Build the state as it was when this was saved, or choose another folder."
                )
            if damaged:
                message = f"damaged checkpoint:{damaged}\nUsing the one before: {path}"
                warnings.warn(message, CheckpointWarning, stacklevel=3)
            leaves = [place(arrays[name], target) for name, target in targets.items()]
            tree = jax.tree.unflatten(jax.tree.structure(like), leaves)
            return Restored(body["step"], tree, body["extra"])
        if damaged:
            raise CheckpointError(
                f"no checkpoint in {self.folder / kind} can be read:{damaged}\n"
                "Put a copy back, or remove that folder to start from step 0."
            )
        return None
