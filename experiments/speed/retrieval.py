"""Retrieval of attention heads, forward and gradient, and its latency over single-pass attention.

    python -m experiments.speed.retrieval                   # half an hour on 2 idle cores
    python -m experiments.speed.retrieval --budget small    # a look: 3 minutes

Targets: on a GPU at most 1.15 times single-pass attention at T = 5 and 1.5 times at T = 50 adaptive
(paper, Table 4: 1.25 at T = 5). Finished cells are kept in the folder of results, and the same line
continues with the others. Needs `pip install -e '.[speed]'`.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.provenance import same_origin
from experiments.speed.flags import parser_of, want_torch
from experiments.speed.forward import SIZES, fresh, full_rows, hopfax_forward
from experiments.speed.publish import publish, torch_provenance
from experiments.speed.retrieval_programs import arrays, flops, hopfax_call, peak_call, torch_call
from experiments.speed.timing import clock_of, clock_title, interleaved, spread
from hopfax.train.allocator import keep_freed_memory

COLUMNS = (
    "cell",
    "tokens",
    "width",
    "batch",
    "steps",
    "program",
    "milliseconds",
    "low",
    "high",
    "rounds",
    "roofline_share",
    "over_single_pass",
)
GRIDS: dict[str, dict[str, tuple[int, ...]]] = {
    "small": {"tokens": (32, 128), "width": (64,), "batch": (8,), "steps": (1, 5, 20)},
    "full": {
        "tokens": (32, 128, 512),
        "width": (64, 128),
        "batch": (8, 64),
        "steps": (1, 5, 10, 20, 50),
    },
}
LATENCY_STEPS = (5, 10, 20, 30, 50)
PEAK_SIZES = {"small": 1024, "full": 8192}
# Robertha, Table 4: T -> latency over single-pass attention, and its ± there.
TABLE_4 = {5: (1.25, 0.11), 10: (1.80, 0.27), 20: (2.52, 0.35), 30: (3.54, 0.33)}
# The whole model at these, as at base size.
LATENCY = {"tokens": 128, "width": 64, "batch": 32}


def cells(budget: str) -> Iterator[dict[str, Any]]:
    """What is to be measured, each by itself: latencies first, then the grid."""
    for cell in ("latency of retrieval", "latency of the model"):
        yield {"cell": cell, **LATENCY}
    grid = GRIDS[budget]
    for cell in ("forward", "gradient"):
        for values in itertools.product(*grid.values()):
            yield {"cell": cell, **dict(zip(grid, values, strict=True))}


def measure(
    cell: Mapping[str, Any],
    *,
    seconds: float,
    clock: Callable[[], float],
    peaks: Mapping[str, float],
) -> list[dict[str, Any]]:
    """Table rows of one cell."""
    shape = {name: cell[name] for name in ("batch", "tokens", "width")}
    on_gpu = jax.default_backend() == "gpu"
    if cell["cell"].startswith("latency"):
        programs = _latencies(cell["cell"], shape)
    else:
        given, options = arrays(**shape), {"steps": cell["steps"]}
        options |= {"gradient": cell["cell"] == "gradient"}
        programs = {
            "hopfax XLA": hopfax_call(given, **options),
            "PyTorch loop": torch_call(given, fused=False, **options),
            "PyTorch fused": torch_call(given, fused=True, **options),
        }
        if on_gpu:  # elsewhere an interpreter runs the kernel: no time worth a row
            programs["hopfax Pallas"] = hopfax_call(given, **options, implementation="pallas")
    # The largest cells take a minute a round.
    taken = interleaved(programs, seconds=seconds, min_rounds=3, clock=clock)
    rows = []
    for name, values in taken.items():
        found = spread(values)
        row = dict.fromkeys(COLUMNS) | dict(cell) | {"program": name, "rounds": found.rounds}
        row |= {"milliseconds": 1e3 * found.median}
        row |= {"low": 1e3 * found.low, "high": 1e3 * found.high}
        if cell["cell"] == "forward":
            work = flops(name, **shape, steps=cell["steps"])
            row["roofline_share"] = work / found.median / peaks[name.partition(" ")[0]]
        if cell["cell"].startswith("latency"):
            # Round by round, since both had the same machine.
            row["over_single_pass"] = float(np.median(values / taken["single pass"]))
            row["steps"] = 0 if name == "single pass" else int(name.split()[2].rstrip(","))
        rows.append(row)
    return rows


def _latencies(cell: str, shape: Mapping[str, int]) -> dict[str, Callable[[], Any]]:
    if cell == "latency of retrieval":
        make = partial(hopfax_call, arrays(**shape))
    else:
        params = fresh("base", shape["tokens"])
        rows = full_rows(shape["batch"], shape["tokens"])

        def make(*, steps: int, tol: float = 0.0) -> Callable[[], Any]:
            return hopfax_forward(SIZES["base"], params, rows, tol=tol, max_steps=steps)

    programs = {"single pass": make(steps=0)}
    for steps in LATENCY_STEPS:
        programs[f"T = {steps}, fixed"] = make(steps=steps)
        programs[f"T = {steps}, adaptive"] = make(steps=steps, tol=1e-4)
    return programs


def measured_peaks(size: int, *, rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Operations a second of a large product in each program; the best of some rounds."""
    calls = {"hopfax": peak_call("jax", size), "PyTorch": peak_call("torch", size)}
    taken = interleaved(calls, seconds=0, min_rounds=rounds, clock=clock)
    return {name: 2.0 * size**3 / float(values.min()) for name, values in taken.items()}


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures what is missing, prints it and writes `retrieval.json` and `retrieval.csv`."""
    parser = parser_of("retrieval", __doc__, "--cpu-seconds", seconds=(1, "a cell"))
    parser.add_argument(
        "--budget", choices=list(GRIDS), default="full", help="the grid (default full)"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=float("inf"),
        help="start no cell after so many (default: no end)",
    )
    flags = parser.parse_args(arguments)
    want_torch(parser, flags)
    begin, clock = time.monotonic(), clock_of(flags.cpu_seconds)
    origin = torch_provenance() | {"clock": clock_title(flags.cpu_seconds)}
    kept = flags.out / "retrieval_cells.jsonl"
    entries = finished(kept, origin)
    done = {key(entry["cell"]): entry["rows"] for entry in entries}
    wanted = list(cells(flags.budget))
    # One peak for all cells: their shares stand in one table.
    peaks = next((entry["peaks"] for entry in entries), None)
    peaks = peaks or measured_peaks(PEAK_SIZES[flags.budget], rounds=5, clock=clock)
    for cell in wanted:
        if key(cell) in done:
            continue
        if time.monotonic() - begin > 60 * flags.minutes:
            break
        rows = measure(cell, seconds=flags.seconds, clock=clock, peaks=peaks)
        done[key(cell)] = rows
        flags.out.mkdir(parents=True, exist_ok=True)
        with kept.open("a", encoding="utf-8") as stream:
            entry = {"origin": origin, "peaks": peaks, "cell": cell, "rows": rows}
            stream.write(json.dumps(entry) + "\n")
        show(cell, rows)
    missing = [title(cell) for cell in wanted if key(cell) not in done]
    if missing:
        print(f"{len(missing)} of {len(wanted)} cells are missing: the same line continues")
    report = {
        "provenance": origin,
        "peaks": peaks,
        "missing_cells": missing,
        "table_4": {str(steps): values for steps, values in TABLE_4.items()},
        "table": [row for cell in wanted for row in done.get(key(cell), [])],
    }
    publish(flags.out, "retrieval", COLUMNS, report)
    return report


def key(cell: Mapping[str, Any]) -> str:
    """A cell's name."""
    return json.dumps(cell, sort_keys=True)


def title(cell: Mapping[str, Any]) -> str:
    """A cell as a reader wants it named."""
    return ", ".join([cell["cell"], *(f"{name} {cell[name]}" for name in cell if name != "cell")])


def finished(kept: Path, origin: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Cells that earlier sessions with the same origin have measured: its rows, and the peaks."""
    if not kept.is_file():
        return []
    found = []
    for line in kept.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # the session ended within this line
        if same_origin(entry["origin"], origin):
            found.append(entry)
    return found


def show(cell: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints one cell."""
    print(title(cell))
    for row in rows:
        more = f", {row['roofline_share']:.0%} of the peak" if row["roofline_share"] else ""
        more += f", {row['over_single_pass']:.2f} single passes" if row["over_single_pass"] else ""
        print(f"  {row['program']}: {row['milliseconds']:.3f} ms{more}", flush=True)


if __name__ == "__main__":
    keep_freed_memory()
    main()
