"""The folder of one run: `runs/NAME/ID/` with config.json and results.csv, replaced atomically.

ID is a hash of the configuration, so the same command finds the same folder and resumes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import platform
import secrets
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments.provenance import origin_line, provenance
from hopfax.hub import read_json
from hopfax.train import interrupt

LOCK = ".lock"


def open_run(experiment: str, config: Any, *, plan: Mapping[str, Any] | None = None) -> Path:
    """Creates or finds the folder of this configuration and records its provenance.

    The field `runs` of the configuration, a dataclass or a mapping, is the folder of all runs, and
    not part of the ID; nor are `cluster` and `hosts`. `plan` is what the configuration resolves to,
    for pages, and part of the ID; its `cells` are those needed. Returns `runs/experiment/ID`.
    """
    interrupt.check()
    settings = plain(config)
    settings.pop("cluster", None)
    settings.pop("hosts", None)
    document = {"experiment": experiment, "config": settings, "plan": plain(plan or {})}
    hashed = {name: value for name, value in settings.items() if name != "runs"}
    folder = Path(settings["runs"]) / experiment / identifier(document | {"config": hashed})
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    origins = []
    if path.exists():
        try:
            stored = read_config(folder, "experiment", "config", "provenance")["provenance"]
            origins = [each for each in stored if origin_line(each)]
        except (ValueError, LookupError, TypeError) as error:
            message = f"{path} is damaged ({error}); written again, without earlier sessions"
            warnings.warn(message, stacklevel=2)
    origin = provenance()
    if all({**origin, "date": ""} != {**earlier, "date": ""} for earlier in origins):
        origins.append(origin)
    text = json.dumps(document | {"provenance": origins}, indent=2, ensure_ascii=False)
    write_whole(path, text + "\n")
    return folder


@contextlib.contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Creates a folder and locks it for this process; the lock ends with the process at the latest.

    Raises:
        BlockingIOError: The folder is locked; the message names the process.
        OSError: The file system has no locks.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    handle = os.open(Path(folder) / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            import fcntl  # absent on Windows

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(handle, 1000).decode() or "another process"
            raise BlockingIOError(
                f"{folder} is in use by {owner}; wait until it ends, or stop it"
            ) from None
        except (ImportError, OSError) as error:
            raise OSError(
                f"{folder} cannot be locked ({error}): set --runs to a folder on a file system "
                "with locks"
            ) from None
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {platform.node()} since {now}".encode())
        yield
    finally:
        os.close(handle)


def identifier(document: Any) -> str:
    """Returns twelve hexadecimal digits of the SHA-256 of a document's canonical JSON."""
    canonical = json.dumps(plain(document), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def plain(value: Any) -> Any:
    """Converts `value` to JSON types: dataclasses and NamedTuples to objects, paths to text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, Path):
        return value.as_posix()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a configuration must hold only numbers, text and lists, got {value!r}")


def restore(default: Any, values: Mapping[str, Any]) -> Any:
    """Returns the dataclass of what `plain` returned; missing fields take defaults."""
    changes = {}
    for name in {each.name for each in dataclasses.fields(default)} & values.keys():
        value, field = values[name], getattr(default, name)
        if dataclasses.is_dataclass(field):
            value = restore(field, value)
        changes[name] = tuple(value) if isinstance(value, list) else value
    return dataclasses.replace(default, **changes)


def read_config(folder: str | Path, *fields: str) -> dict[str, Any]:
    """Reads `config.json` of a run: experiment, config, plan, and provenance by session.

    Raises a ValueError that names the file if it is damaged or lacks one of the fields.
    """
    document = read_json(path := Path(folder) / "config.json")
    if not document.keys() >= set(fields):
        raise ValueError(f"{path} must have {', '.join(fields)}, got {', '.join(document)}")
    return document


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Replaces a file atomically: readers see the old or the new content, also after a kill."""
    from hopfax.train.sharding import first

    first(lambda: _replace(Path(path), content))


def _replace(path: Path, content: str | bytes) -> None:
    for left in path.parent.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > 3600:  # its process is dead
                left.unlink()
    # A process number would not do: several machines may share the folder.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    if isinstance(content, str):  # file names in it may not be UTF-8
        content = content.encode(errors="backslashreplace")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
