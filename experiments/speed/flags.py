"""The flags that benchmarks share, described once, and what goes wrong before anything runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from experiments.speed.workload import Workload, workload

SHARED: dict[str, dict[str, Any]] = {
    "--data-dir": {"help": "raw sets; without it, made-up rows of SST-2's lengths"},
    "--train-steps": {
        "type": int,
        "default": 1000,
        "help": "before the second set of weights (default 1000), 0 for none",
    },
    "--rounds": {"type": int, "default": 3, "help": "at least so many (default 3)"},
    "--cpu-seconds": {
        "action": "store_true",
        "help": "count processor time instead, PyTorch on one thread: for a machine that others "
        "use, where PyTorch's threads lose most of their time waiting for each other",
    },
}


def parser_of(
    name: str, about: str | None, *shared: str, seconds: tuple[float, str] | None = None
) -> argparse.ArgumentParser:
    """A benchmark's parser with `--out`, to which it adds what is its own.

    Args:
        name: Of its module.
        about: Its docstring.
        *shared: Keys of `SHARED`.
        seconds: Default of `--seconds`, and what takes so long; None for no such flag.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments.speed.{name}".removesuffix(".__main__"),
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if seconds:
        default, what = seconds
        told = f"{what} (default {default:g})"
        parser.add_argument("--seconds", type=float, default=default, help=told)
    for flag in shared:
        parser.add_argument(flag, **SHARED[flag])
    parser.add_argument(
        "--out", type=Path, default=Path("runs/speed"), help="results (default runs/speed)"
    )
    return parser


def workload_of(parser: argparse.ArgumentParser, flags: argparse.Namespace) -> Workload:
    """The rows of `--data-dir`; what is missing there ends the program as a wrong flag does."""
    try:
        return workload(flags.data_dir)
    except (OSError, ValueError) as error:
        parser.error(str(error))


def want_torch(parser: argparse.ArgumentParser, flags: argparse.Namespace) -> None:
    """Ends the program where PyTorch is missing; gives it one thread for `--cpu-seconds`."""
    try:
        import torch
    except ImportError:
        parser.exit(1, "error: PyTorch is an optional extra: pip install -e '.[speed]'\n")
    if flags.cpu_seconds:
        torch.set_num_threads(1)
