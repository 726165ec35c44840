"""Base Robertha's train step with ESR, batch 32: hopfax beside PyTorch, in one run, in turns.

Expected: hopfax in length buckets takes at least 5 times as many examples a second as PyTorch
padded to 128, and not fewer at equal padding. About 10 minutes on 2 idle cores.

    python -m experiments.speed.train_step --data-dir ../shared/data

Without `--data-dir`, rows of SST-2's lengths with random tokens. Needs `pip install -e '.[speed]'`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from experiments.speed.flags import parser_of, want_torch, workload_of
from experiments.speed.programs import BATCH_SIZE, Hopfax, Torch
from experiments.speed.publish import publish, torch_provenance
from experiments.speed.timing import Spread, clock_of, clock_title, interleaved, spread
from experiments.speed.workload import MAX_LENGTH, Workload
from hopfax.train.allocator import keep_freed_memory

SEEDS = (23, 42, 77, 112, 135)
COLUMNS = (
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
    rows: Workload,
    params: Any,
    *,
    weights: str,
    seconds: float,
    chunk: int,
    clock: Callable[[], float],
) -> tuple[list[dict[str, Any]], dict[str, Spread]]:
    """Times everything from one set of weights.

    Args:
        rows: What to train on.
        params: Of one seed, stacked.
        weights: What to call them.
        seconds: See `interleaved`.
        chunk: Steps per measurement; a fourth of it where texts are padded to 128.
        clock: See `interleaved`.

    Returns:
        Table rows, and ratios by name.
    """
    number = range(len(rows.buckets))
    one = Hopfax(rows.buckets, params=params)
    stacked = jax.tree.map(lambda leaf: np.repeat(leaf, len(SEEDS), axis=0), params)
    five = Hopfax(rows.buckets, seeds=SEEDS, params=stacked)
    padded = Hopfax([rows.padded], params=params)
    torch = Torch(rows.padded, jax.tree.map(lambda leaf: np.asarray(leaf[0]), params))
    few = max(1, chunk // 4)
    calls = {f"one {b}": functools.partial(one.run, b, chunk) for b in number}
    calls |= {f"five {b}": functools.partial(five.run, b, chunk) for b in number}
    calls |= {"padded": lambda: padded.run(0, few), "torch": lambda: torch.run(few)}
    taken = interleaved(calls, seconds=seconds, clock=clock)

    sizes = np.array([len(bucket.labels) for bucket in rows.buckets])
    share = sizes / sizes.sum()
    # The mean step of an epoch: buckets by the share of its steps they take.
    step = {
        "buckets": sum(share[b] * taken[f"one {b}"] / chunk for b in number),
        "five": sum(share[b] * taken[f"five {b}"] / chunk for b in number),
        "padded": taken["padded"] / few,
        "torch": taken["torch"] / few,
    }
    widths = "/".join(str(bucket.ids.shape[-1]) for bucket in rows.buckets)

    def averaged(program: Hopfax) -> float:
        return float(sum(share[b] * np.mean(program.num_steps[b]) for b in number))

    def trips(program: Hopfax) -> float:
        return float(sum(share[b] * program.trips(b) for b in number))

    described = {
        "buckets": ("hopfax", widths, 1, averaged(one), trips(one)),
        "padded": ("hopfax", MAX_LENGTH, 1, np.mean(padded.num_steps[0]), padded.trips(0)),
        "torch": ("PyTorch", MAX_LENGTH, 1, np.mean(torch.num_steps), np.mean(torch.trips)),
        "five": ("hopfax", widths, len(SEEDS), averaged(five), trips(five)),
    }
    table = []
    for name, (program, padding, seeds, iterations, loop) in described.items():
        rate = spread(seeds * BATCH_SIZE / step[name])
        numbers = (*rate[:3], 1e3 * float(np.median(step[name])), float(iterations), float(loop))
        found = (weights, program, padding, seeds, *numbers, rate.rounds)
        table.append(dict(zip(COLUMNS, found, strict=True)))
    # Round by round, since both sides of a round had the same machine.
    ratios = {
        "buckets_over_torch": spread(step["torch"] / step["buckets"]),
        "equal_padding_over_torch": spread(step["torch"] / step["padded"]),
        "five_seeds_over_one": spread(step["five"] / step["buckets"]),
    }
    return table, ratios


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints and writes `train_step.json` and `train_step.csv`."""
    parser = parser_of(
        "train_step",
        __doc__,
        "--data-dir",
        "--train-steps",
        "--cpu-seconds",
        seconds=(120, "a set of weights"),
    )
    parser.add_argument("--chunk", type=int, default=8, help="steps per measurement (default 8)")
    flags = parser.parse_args(arguments)
    want_torch(parser, flags)
    rows = workload_of(parser, flags)
    table, ratios = [], {}
    for steps in dict.fromkeys((0, flags.train_steps)):
        weights = f"after {steps} steps" if steps else "fresh"
        found, ratios[weights] = compare(
            rows,
            trained(rows, steps),
            weights=weights,
            seconds=flags.seconds,
            chunk=flags.chunk,
            clock=clock_of(flags.cpu_seconds),
        )
        table += found
        show(found, ratios[weights])
    report = {
        "provenance": torch_provenance(),
        "rows": rows.source,
        "clock": clock_title(flags.cpu_seconds),
        "table": table,
        "ratios": {w: {n: s._asdict() for n, s in r.items()} for w, r in ratios.items()},
    }
    publish(flags.out, "train_step", COLUMNS, report)
    return report


def show(table: Sequence[dict[str, Any]], ratios: dict[str, Spread]) -> None:
    """Prints one set of weights."""
    for row in table:
        print(
            "{weights}: {program}, padded to {padding}, {seeds} seed(s): "
            "{examples_per_second:.0f} examples/s ({low:.0f} to {high:.0f}), "
            "{milliseconds_per_step:.1f} ms a step, {iterations_per_query:.2f} iterations a query, "
            "{loop_trips:.1f} loop trips, {rounds} rounds".format_map(row)
        )
    for name, ratio in ratios.items():
        print(f"  {name}: {ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})", flush=True)


if __name__ == "__main__":
    keep_freed_memory()
    main()
