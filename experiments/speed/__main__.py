"""All benchmarks one after the other, each in a process of its own, and then their page.

    python -m experiments.speed --data-dir ../shared/data                # some two hours
    python -m experiments.speed --quick --minutes 9 --data-dir DIR       # short rounds, for a GPU

A benchmark whose numbers lie in the folder already, from this commit, this kind of device and the
same flags, is not run again: the same line continues.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.provenance import provenance
from experiments.speed import page
from experiments.speed.flags import parser_of


class Benchmark(NamedTuple):
    """How a command is called.

    Attributes:
        reads_data: Whether it takes `--data-dir`.
        quick: Flags that make it a matter of a minute.
    """

    reads_data: bool = False
    quick: tuple[str, ...] = ()


# The most telling ones first: time may run out.
BENCHMARKS = {
    "retrieval": Benchmark(quick=("--seconds", "0.3", "--minutes", "3")),
    "train_step": Benchmark(True, ("--seconds", "15", "--train-steps", "0")),
    "evaluation": Benchmark(quick=("--seconds", "5", "--train-steps", "200")),
    "noise": Benchmark(True, ("--seconds", "5", "--train-steps", "200", "--rows", "300")),
    "esr": Benchmark(True, ("--seconds", "20", "--train-steps", "200")),
    "waiting": Benchmark(True),
    "profile_step": Benchmark(quick=("--seconds", "10")),
    "scaling": Benchmark(quick=("--seconds", "8")),
    "seeds": Benchmark(quick=("--seconds", "10", "--sizes", "0", "1")),
    "stability": Benchmark(),
    "draws": Benchmark(quick=("--seconds", "2")),
    "memory": Benchmark(),
    "attack": Benchmark(True, ("--seconds", "5")),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is missing and writes the page; returns how many of them failed."""
    parser = parser_of("__main__", __doc__, "--data-dir")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="short rounds; all cells of the grid")
    parser.add_argument(
        "--minutes",
        type=float,
        default=float("inf"),
        help="start none after so many (default: no end)",
    )
    flags = parser.parse_args(arguments)
    if unknown := [name for name in flags.names if name not in BENCHMARKS]:
        parser.error(f"no benchmark {', '.join(unknown)}: they are {', '.join(BENCHMARKS)}")
    here, begin, failed = provenance(), time.monotonic(), 0
    for name in flags.names or BENCHMARKS:
        benchmark = BENCHMARKS[name]
        given = [*benchmark.quick] if flags.quick else []
        given += ["--data-dir", flags.data_dir] if flags.data_dir and benchmark.reads_data else []
        if is_finished(flags.out / f"{name}.json", here, given):
            print(f"{name}: already measured", flush=True)
            continue
        if time.monotonic() - begin > 60 * flags.minutes:
            print(f"{name}: no time left; the same line continues", flush=True)
            continue
        line = [sys.executable, "-m", f"experiments.speed.{name}", "--out", str(flags.out), *given]
        print(f"{name} ...", flush=True)
        status = subprocess.run(line, check=False).returncode
        if status:
            print(f"{name}: failed with status {status}", file=sys.stderr, flush=True)
            failed += 1
    if any(flags.out.glob("*.json")):
        page.main([str(flags.out)])
    return failed


def is_finished(path: Path, here: Mapping[str, object], given: Sequence[str]) -> bool:
    """Whether a file of numbers is whole, of this commit, this kind of device and these flags."""
    if not path.is_file():
        return False
    report = json.loads(path.read_text(encoding="utf-8"))
    same = all(report["provenance"][name] == here[name] for name in ("commit", "dirty", "device"))
    same = same and flags_of(report["provenance"]["command"]) == list(given)
    return same and not here["dirty"] and not report.get("missing_cells")


def flags_of(command: str) -> list[str]:
    """Flags of a line `python -m MODULE ...` without `--out`, which says nothing of the numbers."""
    found = shlex.split(command)[3:]
    while "--out" in found:
        place = found.index("--out")
        del found[place : place + 2]
    return [flag for flag in found if not flag.startswith("--out=")]


if __name__ == "__main__":
    sys.exit(main())
