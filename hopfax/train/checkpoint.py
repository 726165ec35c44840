"""Checkpoints that survive a kill, a full disk and a damaged file.

A folder holds `config.json`, `last/<step>/` and `best/<step>/`. Orbax writes the arrays of one
checkpoint into `<step>.partial/`, a manifest with the SHA-256 of every leaf goes beside them,
everything is flushed to the disk, and one `rename` makes it visible: at any moment a checkpoint is
there whole or not at all. What lies there is believed only while its digests agree.
"""

import concurrent.futures
import contextlib
import errno
import hashlib
import json
import logging
import operator
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

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
        self._claim(_as_json(dict(config), "config"))

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
            return _write_json(path, config)
        except ValueError as error:
            message = f"{path} is not JSON ({error}): put it back, or choose another folder"
            raise CheckpointError(message) from error
        if differences := _differences(found, config):
            raise ValueError(
                f"{self.folder} belongs to a run with another config (there → now):{differences}\n"
                "Set these back to continue that run, or choose another folder for a new one."
            )

    def _save(self, kind: str, step: int, tree: Any, extra: Mapping[str, Any]) -> None:
        if (step := operator.index(step)) < 0:
            raise ValueError(f"step must be at least 0, not {step}")
        notes, leaves = _as_json(dict(extra), "extra"), _named_leaves(tree)
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
            _check_room(folder, sum(array.nbytes for array in arrays.values()))
            _write_arrays(partial / "arrays", arrays)
            leaves = {name: _fingerprint(array) for name, array in arrays.items()}
            body = {"step": step, "extra": extra, "leaves": leaves}
            _write_json(partial / "manifest.json", {"sha256": _sha256(_text(body)), "body": body})
            _flush(partial, *partial.rglob("*"))
            generation = max((g + 1 for s, g, _ in self._finished(kind) if s == step), default=0)
            final = folder / (f"{step}.{generation}" if generation else f"{step}")
            os.rename(partial, final)
            _flush(folder)
            self._prune(kind, final)
        except Exception as error:
            shutil.rmtree(partial, ignore_errors=True)
            good = [f"step {s} in {path}" for s, _, path in self._finished(kind)] or ["none yet"]
            raise CheckpointError(
                f"the {kind} checkpoint of step {step} could not be written: {_reason(error)}\n"
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
        targets = _named_leaves(like)
        damaged = ""
        for _, _, path in reversed(self._finished(kind)):
            try:
                body = _read_manifest(path)
                saved = {name: leaf["array"] for name, leaf in body["leaves"].items()}
                wanted = {k: f"{leaf.dtype.name}{list(leaf.shape)}" for k, leaf in targets.items()}
                misfit = _differences(saved, wanted)
                arrays = {} if misfit else _read_arrays(path / "arrays", body["leaves"], targets)
            except Exception as error:
                damaged += f"\n  {path}: {_reason(error)}"
                continue
            if misfit:  # the caller's mistake, not damage: an older checkpoint is no cure
                raise ValueError(
                    f"{path} does not fit the state asked for (saved → wanted):{misfit}\n"
                    "Build the state as it was when this was saved, or choose another folder."
                )
            if damaged:
                message = f"damaged checkpoint:{damaged}\nUsing the one before: {path}"
                warnings.warn(message, CheckpointWarning, stacklevel=3)
            leaves = [_place(arrays[name], target) for name, target in targets.items()]
            tree = jax.tree.unflatten(jax.tree.structure(like), leaves)
            return Restored(body["step"], tree, body["extra"])
        if damaged:
            raise CheckpointError(
                f"no checkpoint in {self.folder / kind} can be read:{damaged}\n"
                "Put a copy back, or remove that folder to start from step 0."
            )
        return None


def _named_leaves(tree: Any) -> dict[str, Any]:
    """Leaves by path, `params/encoder/0/kernel`, in the order of `jax.tree.leaves`."""
    leaves: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name in leaves:
            raise ValueError(f"two leaves are both called {name!r}: keep '/' out of the keys")
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise TypeError(f"{name} is a {type(leaf).__name__}, not an array: put it into `extra`")
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise TypeError(f"{name} is a typed random key: give jax.random.key_data of it")
        if leaf.dtype.hasobject:
            raise TypeError(f"{name} holds Python objects: only numbers are saved")
        leaves[name] = leaf
    if not leaves:
        raise ValueError("the tree has no arrays: there is nothing to save or restore")
    return leaves


def _place(array: np.ndarray, target: Any) -> Any:
    if isinstance(target, np.ndarray | np.generic):
        return array
    loose = isinstance(target, jax.Array) and not target.committed
    return jax.device_put(array, None if loose else target.sharding)


def _check_room(folder: Path, needed: int) -> None:
    # Better not begun than broken off: TensorStore then prints tracebacks from its own threads.
    if (free := shutil.disk_usage(folder).free) < needed:
        sizes = f"{needed / 1e6:.1f} MB needed, {free / 1e6:.1f} MB free"
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}, {sizes}")


def _write_arrays(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    import orbax.checkpoint as ocp

    # Orbax refuses arrays without elements; the manifest says all there is to know of them.
    filled = {name: array for name, array in arrays.items() if array.size}
    with _quiet(), ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        checkpointer.save(folder, args=ocp.args.PyTreeSave(filled))


def _read_arrays(
    folder: Path, leaves: Mapping[str, Any], targets: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    import orbax.checkpoint as ocp

    wanted = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in targets.items()}
    filled = {name: leaf for name, leaf in wanted.items() if leaf.size}
    as_numpy = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in filled}
    with _quiet(), ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        read = checkpointer.restore(
            folder, args=ocp.args.PyTreeRestore(item=filled, restore_args=as_numpy)
        )
    arrays = {
        name: read.get(name, np.zeros(leaf.shape, leaf.dtype)) for name, leaf in wanted.items()
    }
    if changed := [name for name, array in arrays.items() if _fingerprint(array) != leaves[name]]:
        raise ValueError(f"bytes changed since they were written, in {', '.join(changed)}")
    return arrays


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Orbax from logging, with tracebacks, what it also raises."""

    def from_elsewhere(record: logging.LogRecord) -> bool:
        return "orbax" not in record.pathname

    logger = logging.getLogger("absl")
    logger.addFilter(from_elsewhere)
    try:
        yield
    finally:
        logger.removeFilter(from_elsewhere)


def _read_manifest(path: Path) -> dict[str, Any]:
    manifest = json.loads((path / "manifest.json").read_bytes())
    if _sha256(_text(manifest["body"])) != manifest["sha256"]:
        raise ValueError("manifest.json changed since it was written")
    return manifest["body"]


def _fingerprint(array: np.ndarray) -> dict[str, str]:
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return {"array": f"{array.dtype.name}{list(array.shape)}", "sha256": _sha256(data.data)}


def _sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def _text(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, indent=1).encode()


def _as_json(value: Any, what: str) -> Any:
    """A deep copy as JSON would give it back, so that later changes of `value` do no harm."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must be made of JSON values only: {error}") from error


def _write_json(path: Path, value: Any) -> None:
    """Replaces a file as a whole: a reader sees the old text or the new one."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(_text(value))
    _flush(partial)
    os.replace(partial, path)
    _flush(path.parent)


def _flush(*paths: Path) -> None:
    """Asks the disk to keep files and folders, so that no rename outruns what it makes visible."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _differences(old: dict[str, Any], new: dict[str, Any]) -> str:
    """A new line, `key: old → new`, for each value that differs, dots between nested keys."""

    def flat(value: Any, prefix: str = "") -> dict[str, str]:
        if isinstance(value, dict) and (value or not prefix):
            inner = (flat(item, f"{prefix}{key}.") for key, item in value.items())
            return {key: text for part in inner for key, text in part.items()}
        return {prefix.removesuffix("."): json.dumps(value, sort_keys=True, ensure_ascii=False)}

    there, here = flat(old), flat(new)
    pairs = {k: (there.get(k, "absent"), here.get(k, "absent")) for k in sorted(there | here)}
    return "".join(f"\n  {key}: {a} → {b}" for key, (a, b) in pairs.items() if a != b)


def _reason(error: Exception) -> str:
    """The first line: Orbax and TensorStore add many that only their authors can read."""
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"
