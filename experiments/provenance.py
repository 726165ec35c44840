"""Provenance of a result: command line, commit, hardware, versions, date."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Prefixes of x86 and Arm features.
VECTOR_FEATURES = ("sse", "ssse", "avx", "fma", "f16c", "amx", "asimd", "sve", "bf16")


def provenance() -> dict[str, Any]:
    """Describes this process, so that a reader can reproduce its results.

    Returns:
        `command`, `date` (UTC, ISO 8601), `commit` (`unknown` outside git), `dirty` (tracked files
        differ from the commit), `cpu`, `cpu_features` (vector instructions, which decide how XLA
        rounds on a CPU), `cores`, `device`, and versions of python, jax and flax.
    """
    from hopfax.nn.groups import usable_cores

    commit, dirty = source_state()
    return {
        "command": command_line(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "cpu": cpu_field("model name") or platform.processor() or platform.machine() or "unknown",
        "cpu_features": cpu_features(),
        "cores": usable_cores(),
        "device": device_kind(),
        "python": platform.python_version(),
        "jax": importlib.metadata.version("jax"),
        "flax": importlib.metadata.version("flax"),
    }


def origin_line(origin: Mapping[str, Any]) -> str:
    """Returns command, date, commit and machine of one session as text."""
    changed = " with changes" if origin["dirty"] else ""
    return (
        f"{origin['command']}, {origin['date'][:10]}, commit {origin['commit'][:10]}{changed}; "
        f"{origin['cpu']}, {origin['cores']} cores, jax {origin['jax']} on {origin['device']}"
    )


def same_origin(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two sessions differ only in their date."""
    return {**one, "date": ""} == {**other, "date": ""}


def command_line() -> str:
    """Returns the command line, without the interpreter's path."""
    program = sys.argv[0] if sys.argv else ""
    package = Path(__file__).parent.name
    if package in (parts := Path(program).with_suffix("").parts):
        # A module of this package, run by `python -m`.
        module = parts[len(parts) - 1 - parts[::-1].index(package) :]
        program = f"-m {'.'.join(module).removesuffix('.__main__')}"
    else:
        program = shlex.quote(Path(program).name) if program else "-c"
    return " ".join(["python", program, *map(shlex.quote, sys.argv[1:])])


def source_state() -> tuple[str, bool]:
    """Returns the commit of this file's checkout, and whether tracked files differ from it.

    Changed results are ignored: they do not change what a command computes.
    """

    def git(*arguments: str) -> str:
        answer = subprocess.run(
            ["git", *arguments],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
        return answer.stdout.strip()

    try:
        paths = ("--", ":/", ":(top,exclude)experiments/results")
        changed = git("status", "--porcelain", "--untracked-files=no", *paths)
        return git("rev-parse", "HEAD"), bool(changed)
    except (OSError, subprocess.SubprocessError):
        return "unknown", False


def cpu_features() -> str:
    """Vector instructions of the processor, such as `avx2 fma`; empty outside Linux."""
    names = f"{cpu_field('flags')} {cpu_field('Features')}".split()
    return " ".join(sorted(name for name in names if name.startswith(VECTOR_FEATURES)))


def cpu_field(name: str) -> str:
    """A field of the first processor in Linux's list; empty if there is none."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            field, _, value = line.partition(":")
            if field.strip() == name:
                return value.strip()
    except OSError:
        pass  # not Linux
    return ""


def device_kind() -> str:
    """Returns jax's devices, e.g. `2 x NVIDIA A100` or `cpu`."""
    import jax

    devices = jax.devices()
    kind = devices[0].device_kind
    return f"{len(devices)} x {kind}" if len(devices) > 1 else kind
