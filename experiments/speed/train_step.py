"""Robertha's train step with ESR: hopfax beside PyTorch, in one run, in turns.

Expected: base, batch 32, in length buckets takes at least 5 times as many examples a second as
PyTorch padded to 128, and not fewer at equal padding. About 20 minutes on 2 idle cores, half of
it compilation.

    python -m experiments.speed.train_step --data-dir ../shared/data

PyTorch runs eager and, where it compiles here, through `torch.compile`. Large, of BERT-base's size,
takes an eighth of the rows a step, all padded to 128. Without `--data-dir`, rows of SST-2's lengths
with random tokens. Needs `pip install -e '.[speed]'`.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from experiments.speed.entrants import Entrant, entrants
from experiments.speed.flags import parser_of, want_torch, workload_of
from experiments.speed.forward import SIZES, fresh
from experiments.speed.programs import BATCH_SIZE, Hopfax
from experiments.speed.publish import publish, torch_provenance
from experiments.speed.timing import Spread, clock_of, clock_title, interleaved, spread
from experiments.speed.workload import MAX_LENGTH, Workload
from hopfax.train.allocator import keep_freed_memory

COLUMNS = (
    "size",
    "weights",
    "program",
    "padding",
    "seeds",
    "examples_per_second",
    "low",
    "high",
    "milliseconds_per_step",
    "iterations_per_query",
    "loop_trips",
    "rounds",
)


def trained(rows: Workload, steps: int, *, chunk: int = 8) -> Any:
    """Parameters of one seed after `steps` steps on all buckets; fresh ones for 0."""
    program = Hopfax(rows.buckets, learning_rate=2e-3)
    sizes = np.array([len(bucket.labels) for bucket in rows.buckets])
    rng = np.random.default_rng(1)
    for _ in range(steps // chunk):
        program.run(int(rng.choice(len(sizes), p=sizes / sizes.sum())), chunk)
    return program.states.params


def compare(
    programs: dict[str, Entrant],
    *,
    size: str,
    weights: str,
    batch_size: int,
    seconds: float,
    clock: Callable[[], float],
) -> tuple[list[dict[str, Any]], dict[str, Spread]]:
    """Times everything from one set of weights.

    Args:
        programs: From `entrants`.
        size: What the models' size is called.
        weights: What to call the weights.
        batch_size: Rows a step of one seed.
        seconds: See `interleaved`.
        clock: See `interleaved`.

    Returns:
        Table rows, and ratios by name.
    """
    calls = {
        (name, bucket): functools.partial(each.run, bucket, each.steps)
        for name, each in programs.items()
        for bucket in range(len(each.shares))
    }
    taken = interleaved(calls, seconds=seconds, clock=clock)
    # The mean step of an epoch: buckets by the share of its steps they take.
    step = {
        name: np.sum(
            [share * taken[name, b] / each.steps for b, share in enumerate(each.shares)], axis=0
        )
        for name, each in programs.items()
    }
    table = []
    for name, each in programs.items():
        rate = spread(each.seeds * batch_size / step[name])
        numbers = (*rate[:3], 1e3 * float(np.median(step[name])), each.iterations(), each.trips())
        found = (size, weights, each.program, each.padding, each.seeds, *numbers, rate.rounds)
        table.append(dict(zip(COLUMNS, found, strict=True)))
    # Round by round, since both sides of a round had the same machine.
    pairs = {
        "buckets_over_torch": ("torch", "buckets, 1"),
        "equal_padding_over_torch": ("torch", "padded"),
        "equal_padding_over_compiled_torch": ("torch, compiled", "padded"),
    }
    for each in programs.values():
        if each.seeds > 1:
            pairs[f"{each.seeds}_seeds_over_one"] = (f"buckets, {each.seeds}", "buckets, 1")
    ratios = {
        name: spread(step[one] / step[other])
        for name, (one, other) in pairs.items()
        if one in step and other in step
    }
    return table, ratios


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints and writes `train_step.json` and `train_step.csv`, case by case."""
    parser = parser_of(
        "train_step",
        __doc__,
        "--data-dir",
        "--train-steps",
        "--cpu-seconds",
        seconds=(120, "a set of weights"),
    )
    parser.add_argument("--chunk", type=int, default=8, help="steps per measurement (default 8)")
    parser.add_argument(
        "--sizes",
        nargs="+",
        choices=list(SIZES),
        default=list(SIZES),
        help="of the model (default both)",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="*",
        default=[5, 20],
        help="runs side by side, beside one (default 5 20)",
    )
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    flags = parser.parse_args(arguments)
    if flags.chunk < 1 or any(count < 2 for count in flags.seeds):
        parser.error("--chunk wants at least 1, and --seeds numbers of at least 2")
    want_torch(parser, flags)
    rows = workload_of(parser, flags)
    table, ratios, failures = [], {}, {}
    report: dict[str, Any] = {
        "provenance": torch_provenance(),
        "rows": rows.source,
        "clock": clock_title(flags.cpu_seconds),
        "table": table,
        "ratios": ratios,
        "torch_compile_failures": failures,
    }
    wanted = cases(flags)
    for number, (size, steps) in enumerate(wanted, 1):
        weights = _weights(steps)
        batch_size = BATCH_SIZE if size == "base" else BATCH_SIZE // 8
        programs, failure = entrants(
            rows,
            trained(rows, steps) if size == "base" else fresh_large(),
            size=size,
            batch_size=batch_size,
            seeds=(1, *flags.seeds) if size == "base" else (),
            chunk=flags.chunk if size == "base" else 1,
            compile_torch=not flags.no_compile,
        )
        name = f"{size}, {weights}"
        if failure:
            failures[name] = failure
        found, spreads = compare(
            programs,
            size=size,
            weights=weights,
            batch_size=batch_size,
            seconds=flags.seconds,
            clock=clock_of(flags.cpu_seconds),
        )
        table += found
        ratios[name] = {ratio: spread._asdict() for ratio, spread in spreads.items()}
        show(found, spreads)
        # Now and not at the end: each takes minutes, and what is measured is measured.
        report["missing_cells"] = [f"{s}, {_weights(steps)}" for s, steps in wanted[number:]]
        publish(flags.out, "train_step", COLUMNS, report)
    return report


def cases(flags: argparse.Namespace) -> list[tuple[str, int]]:
    """Sizes, and steps before the measurement."""
    base = [("base", steps) for steps in dict.fromkeys((0, flags.train_steps))]
    found = base if "base" in flags.sizes else []
    return [*found, ("large", 0)] if "large" in flags.sizes else found


def _weights(steps: int) -> str:
    return f"after {steps} steps" if steps else "fresh"


def fresh_large() -> Any:
    """Fresh parameters of one seed, stacked."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[None], fresh("large", MAX_LENGTH))


def show(table: Sequence[dict[str, Any]], ratios: dict[str, Spread]) -> None:
    """Prints one set of weights."""
    for row in table:
        print(
            "{size}, {weights}: {program}, padded to {padding}, {seeds} seed(s): "
            "{examples_per_second:.0f} examples/s ({low:.0f} to {high:.0f}), "
            "{milliseconds_per_step:.1f} ms a step, {iterations_per_query:.2f} iterations a query, "
            "{loop_trips:.1f} loop trips, {rounds} rounds".format_map(row)
        )
    for name, ratio in ratios.items():
        print(f"  {name}: {ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})", flush=True)


if __name__ == "__main__":
    keep_freed_memory()
    main()
