"""The folder of one run: `runs/NAME/ID/` with config.json and results.csv, replaced atomically.

ID is a hash of the configuration, so the same command finds the same folder and resumes it.
"""

from __future__ import annotations

import dataclasses
import datetime
import fcntl
import hashlib
import json
import os
import platform
import tempfile
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hopfax.train import interrupt

LOCK = ".lock"
_locks: dict[Path, int] = {}  # open lock files of this process


def open_run(
    experiment: str,
    config: Any,
    *,
    plan: Mapping[str, Any] | None = None,
    root: str | Path = "runs",
    ignore: Collection[str] = (),
) -> Path:
    """Creates or finds the folder of this configuration and records its provenance.

    Args:
        experiment: name on the command line, e.g. `"robustness"`.
        config: the experiment's frozen dataclass (or a mapping).
        plan: what the configuration resolves to (tasks, models, seeds, ...), kept in config.json
            so that a report can tell what is missing. Part of the ID.
        root: folder of all runs.
        ignore: fields of `config` that change no result (such as `progress`), left out of the ID.

    Returns:
        `root/experiment/ID`, with its `config.json` written.

    Raises:
        ValueError: `config.json` there is not readable as JSON.
    """
    from experiments.provenance import provenance, same_origin

    interrupt.check()
    settings, planned = plain(config), plain(plan or {})
    folder = Path(root) / experiment / run_id(experiment, settings, planned, ignore=ignore)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    origins = read_config(folder).get("provenance", []) if path.exists() else []
    origin = provenance()
    if not any(same_origin(origin, earlier) for earlier in origins):
        origins.append(origin)
    document = {
        "experiment": experiment,
        "config": settings,
        "plan": planned,
        "provenance": origins,
    }
    write_whole(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    return folder


def lock(folder: str | Path) -> None:
    """Locks a folder for this process until it ends, by any cause.

    Args:
        folder: An existing folder. Claiming it again does nothing.

    Raises:
        BlockingIOError: Another process holds the lock; the message names it.
    """
    path = Path(folder).resolve() / LOCK
    while not _is_held(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(handle, 1000).decode() or "another process"
            os.close(handle)
            raise BlockingIOError(
                f"{folder} is in use by {owner}; wait until it ends, or stop it"
            ) from None
        except OSError as error:
            os.close(handle)
            warnings.warn(
                f"{folder} cannot be locked ({error}): do not run this command in two processes",
                stacklevel=2,
            )
            return
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {platform.node()} since {now}".encode())
        if path in _locks:
            os.close(_locks[path])
        _locks[path] = handle


def _is_held(path: Path) -> bool:
    """Whether this process holds the lock in this file: the folder may have been replaced."""
    try:
        return path in _locks and os.path.samestat(os.fstat(_locks[path]), os.stat(path))
    except FileNotFoundError:
        return False


def run_id(experiment: str, config: Any, plan: Any = None, *, ignore: Collection[str] = ()) -> str:
    """Returns ten hex digits of the SHA-256 of a configuration's canonical JSON."""
    settings = {name: value for name, value in plain(config).items() if name not in ignore}
    document = {"experiment": experiment, "config": settings, "plan": plain(plan or {})}
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:10]


def plain(value: Any) -> Any:
    """Converts `value` to JSON types: dataclasses and NamedTuples to objects, paths to text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, Path):
        return value.as_posix()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a configuration must hold only numbers, text and lists, got {value!r}")


def read_config(folder: str | Path) -> dict[str, Any]:
    """Reads `config.json` of a run: experiment, config, plan, and provenance by session."""
    path = Path(folder) / "config.json"
    if not path.exists():
        raise FileNotFoundError(
            f"no config.json in {path.parent}: a run's folder is runs/NAME/ID, see "
            "`python -m experiments runs`"
        )
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not valid JSON ({error}); delete the file and rerun") from error


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Replaces a file atomically: readers see the old or the new content, also after a kill."""
    path = Path(path)
    payload = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp's 0600 makes results unreadable for other users
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
