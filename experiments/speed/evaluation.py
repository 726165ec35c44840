"""Forward passes of Robertha, base and large, at equal padding: hopfax beside PyTorch, in turns.

Goal: on a CPU hopfax is no slower than PyTorch's eager program. About 10 minutes on 2 idle cores.

    python -m experiments.speed.evaluation

The same weights and rows in all programs, whose logits are compared first. PyTorch runs eager and,
where it compiles here, through `torch.compile`. Needs `pip install -e '.[speed]'`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from experiments.speed.flags import parser_of, want_torch
from experiments.speed.forward import (
    SIZES,
    Forward,
    Rows,
    check,
    fresh,
    full_rows,
    hopfax_forward,
    torch_forward,
)
from experiments.speed.publish import publish, torch_provenance
from experiments.speed.timing import Spread, clock_of, clock_title, interleaved, spread
from experiments.speed.train_step import trained
from experiments.speed.workload import MAX_LENGTH, workload
from hopfax.train.allocator import keep_freed_memory

COLUMNS = (
    "size",
    "weights",
    "rows",
    "iterations",
    "program",
    "batch",
    "tokens",
    "milliseconds",
    "low",
    "high",
    "rounds",
)
# How the loop ends: its tolerance and most steps.
ENDS = {"7, fixed": (0.0, 7), "until at rest, at most 50": (1e-4, 50)}


def compare(
    size: str,
    params: Any,
    rows: Rows,
    *,
    tol: float,
    max_steps: int,
    compile_torch: bool,
    seconds: float,
    clock: Callable[[], float],
) -> tuple[dict[str, Spread], dict[str, Spread], str | None]:
    """Times the programs in turns, after comparing what they compute.

    Returns:
        Seconds of each program, its ratio to hopfax, and why `torch.compile` failed, if it did.
    """
    options: dict[str, Any] = {"tol": tol, "max_steps": max_steps}
    programs: dict[str, Forward] = {
        "hopfax": hopfax_forward(SIZES[size], params, rows, **options),
        "PyTorch": torch_forward(SIZES[size], params, rows, **options),
    }
    found = {name: program() for name, program in programs.items()}
    failure = None
    if compile_torch:
        program = torch_forward(SIZES[size], params, rows, **options, compiled=True)
        try:
            found["PyTorch, compiled"] = program()
            programs["PyTorch, compiled"] = program
        except Exception as error:  # whatever its compiler and ours lack
            failure = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    check(found)
    taken = interleaved(programs, seconds=seconds, clock=clock)
    ratios = {
        f"{name} over hopfax": spread(taken[name] / taken["hopfax"])
        for name in programs
        if name != "hopfax"
    }
    return {name: spread(values) for name, values in taken.items()}, ratios, failure


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints and writes `evaluation.json` and `evaluation.csv`."""
    parser = parser_of(
        "evaluation", __doc__, "--train-steps", "--cpu-seconds", seconds=(20, "a comparison")
    )
    parser.add_argument(
        "--sizes",
        nargs="+",
        choices=list(SIZES),
        default=list(SIZES),
        help="of the model (default both)",
    )
    parser.add_argument("--tokens", type=int, default=MAX_LENGTH, help="of a text (default 128)")
    parser.add_argument(
        "--batch", type=int, default=32, help="of base (default 32); large takes an eighth"
    )
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    flags = parser.parse_args(arguments)
    want_torch(parser, flags)
    table, ratios, failures = [], [], {}
    for size, weights, params, batch, name, rows in cases(flags):
        for iterations, (tol, max_steps) in ENDS.items():
            times, found, failure = compare(
                size,
                params,
                rows,
                tol=tol,
                max_steps=max_steps,
                compile_torch=not flags.no_compile,
                seconds=flags.seconds,
                clock=clock_of(flags.cpu_seconds),
            )
            case = (size, weights, name, iterations)
            for program, taken in times.items():
                numbers = (1e3 * taken.median, 1e3 * taken.low, 1e3 * taken.high, taken.rounds)
                row = (*case, program, batch, flags.tokens, *numbers)
                table.append(dict(zip(COLUMNS, row, strict=True)))
                print(f"{', '.join(case)}: {program} {numbers[0]:.1f} ms", flush=True)
            for what, ratio in found.items():
                ratios.append(dict(zip(COLUMNS, case, strict=False), ratio=what, **ratio._asdict()))
                print(f"  {what}: {ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})")
            if failure:
                failures[", ".join(case)] = failure
    report = {
        "provenance": torch_provenance(),
        "clock": clock_title(flags.cpu_seconds),
        "table": table,
        "ratios": ratios,
        "torch_compile_failures": failures,
    }
    publish(flags.out, "evaluation", COLUMNS, report)
    return report


def cases(flags: argparse.Namespace) -> list[tuple[str, str, Any, int, str, Rows]]:
    """Size, weights and their name, batch, and rows with their name."""
    found: list[tuple[str, str, Any, int, str, Rows]] = []
    for size in flags.sizes:
        batch = flags.batch if size == "base" else max(1, flags.batch // 8)
        params = fresh(size, flags.tokens)
        rows = full_rows(batch, flags.tokens)
        found.append((size, "fresh", params, batch, "all tokens real", rows))
        if size == "base" and flags.train_steps and flags.tokens == MAX_LENGTH:
            made_up = workload(None)
            params = jax.tree.map(lambda leaf: leaf[0], trained(made_up, flags.train_steps))
            padded = made_up.padded
            picks = np.random.default_rng(0).integers(0, len(padded.labels), batch)
            sst2 = Rows(padded.ids[picks, 0], padded.lengths[picks, 0])
            name = f"after {flags.train_steps} steps"
            found.append((size, name, params, batch, "SST-2's lengths", sst2))
    return found


if __name__ == "__main__":
    keep_freed_memory()
    main()
