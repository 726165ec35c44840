"""Noise stability of a two-layer ReLU network over 10^6 Gaussian pairs: hopfax, NumPy, PyTorch.

Goals: hopfax takes at most a third of the faster peer's time, ten rhos cost at most 6 times one,
and memory does not grow with the number of samples. About 5 minutes on 2 idle cores.

    python -m experiments.speed.stability

Every estimate is held against the closed form. Needs `pip install -e '.[speed]'`.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.speed.flags import parser_of, want_torch
from experiments.speed.publish import publish, torch_provenance
from experiments.speed.stability_programs import (
    BATCH_SIZE,
    RHO,
    WIDTH,
    Compiled,
    Found,
    exact_stability,
    network,
    numpy_stability,
    torch_stability,
)
from experiments.speed.timing import Spread, clock_of, clock_title, interleaved, spread
from hopfax.train.allocator import keep_freed_memory

TEN_RHOS = tuple(np.linspace(0, 0.9, 10).tolist())
PEERS = ("NumPy", "PyTorch")
MEMORY_COLUMNS = ("copies", "num_samples", "peak_mb", "before_mb", "temporary_mb")
COLUMNS = (
    "program",
    "rhos",
    "copies",
    "seconds",
    "low",
    "high",
    "rounds",
    "compile_seconds",
    "mean",
    "standard_error",
    "exact",
    "seconds_at_equal_error",
)
# How many times fewer than `--num-samples`: memory is asked for at 10^4, 10^5 and 10^6.
FEWER = (100, 10, 1)


def check(name: str, found: Found, exact: np.ndarray) -> None:
    """Raises a RuntimeError where an estimate is over 5 standard errors from the closed form."""
    mean, error = np.asarray(found.mean), np.asarray(found.standard_error)
    # Written so that nan fails.
    if not np.all(np.abs(mean - exact) <= 5 * error):
        raise RuntimeError(f"{name}: {mean} is over 5 standard errors ({error}) from {exact}")


def compare(
    *, num_samples: int, repeats: int, cpu_seconds: bool = False
) -> tuple[list[dict[str, Any]], dict[str, list[float]], dict[str, Spread]]:
    """Times every program in turns and checks what each has found.

    Returns:
        Table rows, seconds of every repeat by program, and ratios by name.
    """
    net = network()
    several = {"copies": 2, "rho": TEN_RHOS}
    options: dict[str, dict[str, Any]] = {
        "hopfax": {},
        "hopfax, pairs": {"copies": 2},
        "hopfax, pairs, rbg": {"copies": 2, "impl": "rbg"},
        "hopfax, pairs, ten rhos": several,
    }
    make = functools.partial(Compiled, net, num_samples=num_samples)
    compiled = {name: make(**chosen) for name, chosen in options.items()}
    programs: dict[str, Any] = {
        **compiled,
        "NumPy": functools.partial(numpy_stability, net, num_samples=num_samples),
        "PyTorch": functools.partial(torch_stability, net, num_samples=num_samples),
    }
    found = {name: program() for name, program in programs.items()}
    exact = {n: exact_stability(net, np.asarray(c.rho, float)) for n, c in compiled.items()}
    exact |= {name: exact_stability(net, RHO) for name in PEERS}
    for name, result in found.items():
        check(name, result, exact[name])
    clock = clock_of(cpu_seconds)
    taken = interleaved(programs, seconds=0, min_rounds=repeats, clock=clock)
    peer = min(PEERS, key=lambda name: float(np.median(taken[name])))
    table = []
    for name, result in found.items():
        time_taken, rhos = spread(taken[name]), np.size(result.mean)
        one = rhos == 1
        # For an error of the peer's size, time goes with the variance.
        excess = (result.standard_error / found[peer].standard_error) ** 2 if one else None
        row = (name, rhos, result.copies, *time_taken)
        row += (compiled[name].compile_seconds if name in compiled else 0.0,)
        row += (result.mean, result.standard_error, exact[name].tolist())
        row += (None if excess is None else time_taken.median * excess,)
        table.append(dict(zip(COLUMNS, row, strict=True)))
    ratios = {
        f"{peer} over {name}": spread(taken[peer] / taken[name])
        for name in compiled
        if compiled[name].rho.ndim == 0
    }
    # What counts where a sample is more than a pair.
    gain = (found[peer].standard_error / found["hopfax"].standard_error) ** 2
    ratios[f"{peer} over hopfax, at equal error"] = spread(taken[peer] / taken["hopfax"] * gain)
    ratios["ten rhos over one"] = spread(taken["hopfax, pairs, ten rhos"] / taken["hopfax, pairs"])
    return table, {name: values.tolist() for name, values in taken.items()}, ratios


def footprint(num_samples: int, copies: int | None) -> dict[str, Any]:
    """Memory of one estimate by this process, which must be a fresh one.

    Returns:
        A row of the table; `before_mb` is the peak before the estimate: imports and compilation.
    """
    program = Compiled(network(), num_samples=num_samples, copies=copies)
    before = peak_bytes()
    program()
    sizes = (peak_bytes(), before, program.temporary_bytes())
    row = ("pilot" if copies is None else copies, num_samples, *(size / 1e6 for size in sizes))
    return dict(zip(MEMORY_COLUMNS, row, strict=True))


def peak_bytes() -> int:
    """Peak resident memory of this process."""
    try:
        # A child's ru_maxrss starts from the parent's peak on Linux; this one starts anew.
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass  # not Linux
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def fresh_footprint(num_samples: int, copies: int | None) -> dict[str, Any]:
    """`footprint` of a process of its own, which has computed nothing else."""
    line = [sys.executable, "-m", "experiments.speed.stability", "--footprint-of"]
    line += [str(num_samples), str(copies or 0)]
    answer = subprocess.run(
        line, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(answer.stdout.splitlines()[-1])


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints and writes `stability.json` and `stability.csv`."""
    parser = parser_of("stability", __doc__, "--cpu-seconds")
    parser.add_argument("--num-samples", type=int, default=1_000_000, help="pairs (default 10^6)")
    parser.add_argument("--repeats", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--footprint-of", type=int, nargs=2, help=argparse.SUPPRESS)
    flags = parser.parse_args(arguments)
    if flags.footprint_of:
        num_samples, copies = flags.footprint_of
        found = footprint(num_samples, copies or None)
        print(json.dumps(found))
        return found
    want_torch(parser, flags)

    memory = []
    for copies in (2, None):
        for fewer in FEWER:
            memory.append(fresh_footprint(max(2, flags.num_samples // fewer), copies))
            print(
                "copies {copies}, {num_samples} samples: peak {peak_mb:.1f} MB ({before_mb:.1f} "
                "before), XLA's temporaries {temporary_mb:.2f} MB".format_map(memory[-1]),
                flush=True,
            )
    table, repeats, ratios = compare(
        num_samples=flags.num_samples, repeats=flags.repeats, cpu_seconds=flags.cpu_seconds
    )
    show(table, ratios)
    threads = {k: v for k, v in os.environ.items() if k.endswith("_NUM_THREADS")}
    report = {
        "provenance": torch_provenance() | {"numpy": np.__version__, "threads_set": threads},
        "clock": clock_title(flags.cpu_seconds),
        "num_samples": flags.num_samples,
        "batch_size": BATCH_SIZE,
        "width": WIDTH,
        "rho": RHO,
        "table": table,
        "seconds": repeats,
        "ratios": {name: ratio._asdict() for name, ratio in ratios.items()},
        "memory": memory,
    }
    publish(flags.out, "stability", COLUMNS, report)
    return report


def show(table: Sequence[Mapping[str, Any]], ratios: Mapping[str, Spread]) -> None:
    """Prints what was timed."""
    for row in table:
        print(
            "{program}: {seconds:.3f} s ({low:.3f} to {high:.3f}), {rounds} rounds, compiled in "
            "{compile_seconds:.1f} s, {rhos} rho(s), {copies} copies".format_map(row)
        )
        if row["rhos"] == 1:
            print(
                "  {mean:.5f} with standard error {standard_error:.5f}, exactly {exact:.5f}; "
                "{seconds_at_equal_error:.3f} s for the peer's error".format_map(row)
            )
    for name, ratio in ratios.items():
        print(f"  {name}: {ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})", flush=True)


if __name__ == "__main__":
    if "--footprint-of" not in sys.argv:  # a peak of memory is that of the system's own habits
        keep_freed_memory()
    main()
