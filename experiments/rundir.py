"""The folder of one run: `runs/NAME/ID/` with config.json and results.csv, both always whole.

ID is a hash of the configuration: the same command line finds the same folder again and can
continue what is missing.
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
from collections.abc import Collection, Iterable, Mapping
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
    """Creates or finds the folder of this configuration and notes who runs it.

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
    from experiments.provenance import provenance

    interrupt.check()
    settings, planned = plain(config), plain(plan or {})
    folder = Path(root) / experiment / run_id(experiment, settings, planned, ignore=ignore)
    folder.mkdir(parents=True, exist_ok=True)
    sessions = (
        read_config(folder).get("provenance", []) if (folder / "config.json").exists() else []
    )
    document = {
        "experiment": experiment,
        "config": settings,
        "plan": planned,
        "provenance": sessions,
    }
    _write_config(folder, document, [provenance()])
    return folder


def lock(folder: str | Path) -> None:
    """Claims a folder for this process until it ends; the system frees it however that happens.

    Args:
        folder: An existing folder. Claiming it again does nothing.

    Raises:
        BlockingIOError: Another process has it; the message names that process.
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
                f"{folder} cannot be locked ({error}): do not run this command twice at once",
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
    """Whether this process holds the lock in this very file: the folder may have been replaced."""
    try:
        return path in _locks and os.path.samestat(os.fstat(_locks[path]), os.stat(path))
    except FileNotFoundError:
        return False


def _write_config(
    folder: str | Path, document: dict[str, Any], origins: Iterable[Mapping[str, Any]]
) -> None:
    """Writes config.json, with those origins added that it does not have."""
    from experiments.provenance import same_origin

    sessions = document.setdefault("provenance", [])
    for origin in origins:
        if not any(same_origin(origin, earlier) for earlier in sessions):
            sessions.append(origin)
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    write_whole(Path(folder) / "config.json", text)


def run_id(experiment: str, config: Any, plan: Any = None, *, ignore: Collection[str] = ()) -> str:
    """Ten hex digits that name a configuration: sha-256 of its canonical JSON."""
    settings = {name: value for name, value in plain(config).items() if name not in ignore}
    document = {"experiment": experiment, "config": settings, "plan": plain(plan or {})}
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:10]


def plain(value: Any) -> Any:
    """`value` as JSON knows it: dataclasses and NamedTuples as objects, paths as text."""
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
    raise TypeError(f"a configuration holds numbers, text and lists of them, not {value!r}")


def read_config(folder: str | Path) -> dict[str, Any]:
    """`config.json` of a run: experiment, config, plan, and provenance, one entry an origin."""
    path = Path(folder) / "config.json"
    if not path.exists():
        raise FileNotFoundError(
            f"no config.json in {path.parent}: that is not a run's folder, which an experiment "
            "makes as runs/NAME/ID and names when it starts and when it ends"
        )
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not valid JSON ({error}); delete the file and rerun") from error


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Replaces a file in one step: a reader, or a kill, sees the old content or the new."""
    path = Path(path)
    payload = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp's 0600 would hide results from colleagues
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
