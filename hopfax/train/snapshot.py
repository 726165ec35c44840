"""What one checkpoint is made of: arrays as Orbax keeps them, and a manifest of their digests.

`hopfax.train.checkpoint` decides which checkpoints there are; here is how one is written and read.
"""

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def named_leaves(tree: Any) -> dict[str, Any]:
    """Leaves by path, `params/encoder/0/kernel`, in the order of `jax.tree.leaves`.

    Raises:
        TypeError: A leaf is no array of numbers.
        ValueError: There is no leaf, or two have one name.
    """
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


def place(array: np.ndarray, target: Any) -> Any:
    """Puts an array where the target is: into NumPy, or on its devices."""
    if isinstance(target, np.ndarray | np.generic):
        return array
    loose = isinstance(target, jax.Array) and not target.committed
    return jax.device_put(array, None if loose else target.sharding)


def check_room(folder: Path, needed: int) -> None:
    """Raises an OSError if fewer bytes than needed are free.

    Better not begun than broken off: TensorStore then prints tracebacks from its own threads.
    """
    if (free := shutil.disk_usage(folder).free) < needed:
        sizes = f"{needed / 1e6:.1f} MB needed, {free / 1e6:.1f} MB free"
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}, {sizes}")


def write_arrays(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """Has Orbax write the arrays into a new folder."""
    import orbax.checkpoint as ocp

    # Orbax refuses arrays without elements; the manifest says all there is to know of them.
    filled = {name: array for name, array in arrays.items() if array.size}
    with _quiet(), ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        checkpointer.save(folder, args=ocp.args.PyTreeSave(filled))


def read_arrays(
    folder: Path, leaves: Mapping[str, Any], targets: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Reads arrays of the targets' shapes and dtypes.

    Args:
        folder: Where `write_arrays` put them.
        leaves: What the manifest says of each.
        targets: What is wanted, by name.

    Raises:
        ValueError: Bytes changed since they were written; Orbax raises others.
    """
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


def write_manifest(
    folder: Path, step: int, arrays: Mapping[str, np.ndarray], extra: Mapping[str, Any]
) -> None:
    """Writes what the arrays' bytes must be, what goes with them, and a digest of all that."""
    leaves = {name: _fingerprint(array) for name, array in arrays.items()}
    body = {"step": step, "extra": extra, "leaves": leaves}
    write_json(folder / "manifest.json", {"sha256": _sha256(_text(body)), "body": body})


def read_manifest(folder: Path) -> dict[str, Any]:
    """Reads the step, the extra and the leaves; a ValueError if they changed."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
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


def as_json(value: Any, what: str) -> Any:
    """A deep copy as JSON would give it back, so that later changes of `value` do no harm."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must be made of JSON values only: {error}") from error


def write_json(path: Path, value: Any) -> None:
    """Replaces a file as a whole: a reader sees the old text or the new one."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(_text(value))
    flush(partial)
    os.replace(partial, path)
    flush(path.parent)


def flush(*paths: Path) -> None:
    """Asks the disk to keep files and folders, so that no rename outruns what it makes visible."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def differences(old: dict[str, Any], new: dict[str, Any]) -> str:
    """A new line, `key: old → new`, for each value that differs, dots between nested keys."""

    def flat(value: Any, prefix: str = "") -> dict[str, str]:
        if isinstance(value, dict) and (value or not prefix):
            inner = (flat(item, f"{prefix}{key}.") for key, item in value.items())
            return {key: text for part in inner for key, text in part.items()}
        return {prefix.removesuffix("."): json.dumps(value, sort_keys=True, ensure_ascii=False)}

    there, here = flat(old), flat(new)
    pairs = {k: (there.get(k, "absent"), here.get(k, "absent")) for k in sorted(there | here)}
    return "".join(f"\n  {key}: {a} → {b}" for key, (a, b) in pairs.items() if a != b)


def reason(error: Exception) -> str:
    """The first line: Orbax and TensorStore add many that only their authors can read."""
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"
