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
    import jax

    from hopfax.cpu import usable_cores

    commit, dirty = source_state()
    cpu, devices = processor(), jax.devices()
    count = f"{len(devices)} x " if len(devices) > 1 else ""
    features = f"{cpu.get('flags', '')} {cpu.get('Features', '')}".split()
    return {
        "command": command_line(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "cpu": cpu.get("model name") or platform.processor() or platform.machine() or "unknown",
        "cpu_features": " ".join(sorted(n for n in features if n.startswith(VECTOR_FEATURES))),
        "cores": usable_cores(),
        "device": f"{count}{devices[0].device_kind}",
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


def command_line() -> str:
    """Returns the command line, without the paths of the interpreter and the script."""
    program, *arguments = sys.orig_argv[1:] or ["-c"]
    return shlex.join(["python", Path(program).name, *arguments])


def source_state() -> tuple[str, bool]:
    """Returns the commit of this file's checkout, and whether tracked files differ from it.

    Changed results are ignored: they do not change what a command computes.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=20
        ).stdout.strip()

    try:
        paths = ("--", ":/", ":(top,exclude)experiments/results")
        changed = git("status", "--porcelain", "--untracked-files=no", *paths)
        return git("rev-parse", "HEAD"), bool(changed)
    except (OSError, subprocess.SubprocessError):
        return "unknown", False


def processor() -> dict[str, str]:
    """Returns the fields of the first processor in Linux's list; empty on other systems."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
    except OSError:
        return {}
    fields = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in fields}
