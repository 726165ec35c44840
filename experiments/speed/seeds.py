"""Sixteen grokking runs in one `vmap` beside sixteen, one after another, of the same program.

Goal: at least 3 times the throughput. Measured at three widths, compiled beforehand; small models
gain the most, since what a run alone cannot fill is filled by the others. On two cores little is
left to fill: 1.0 to 2.3 times. About 10 minutes on 2 idle cores.

    python -m experiments.speed.seeds
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.noise_stability.grokking import make_problem
from experiments.noise_stability.grokking_settings import ARMS, BUDGETS, ArmName, arm_of
from experiments.noise_stability.program import Dials
from experiments.noise_stability.runs import compiled
from experiments.provenance import provenance
from experiments.speed.flags import parser_of
from experiments.speed.publish import publish
from experiments.speed.timing import interleaved, spread
from hopfax.train.allocator import keep_freed_memory

RUNS, EPOCHS = 16, 2
# Name, then what differs from the laptop's modular addition; the last is Table 2.
SIZES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("width 16, batch 30", {"width": 16, "batch_size": 30}),
    ("width 48, batch 120 (laptop)", {}),
    ("width 128, batch 256, modulus 113 (Table 2)", {"table": True}),
)
COLUMNS = (
    "size",
    "arm",
    "runs",
    "together_seconds",
    "apart_seconds",
    "apart_over_together",
    "low",
    "high",
    "rounds",
    "together_compile_seconds",
    "apart_compile_seconds",
)


def programs(changes: dict[str, Any], arm: ArmName) -> dict[str, Callable[[], object]]:
    """`EPOCHS` epochs of all runs, together and one by one."""
    paper, laptop = BUDGETS["paper"].addition, BUDGETS["laptop"].addition
    setting = paper if changes.get("table") else laptop._replace(**changes)
    problem = make_problem("addition", setting, np.arange(RUNS))
    recipe, dials = arm_of(setting, ARMS[arm])
    start, call = compiled(problem.model, recipe, problem.num_tokens, EPOCHS)
    keys = jax.vmap(jax.random.key)(jnp.arange(RUNS, dtype=jnp.uint32))

    def some(first: int, last: int) -> object:
        spread_dials = Dials(*(jnp.full(last - first, dial, jnp.float32) for dial in dials))
        rows = jax.tree.map(lambda part: part[first:last], (problem.train, problem.validation))
        states = start(keys[first:last])
        return jax.block_until_ready(
            call(states, jnp.asarray(0), keys[first:last], spread_dials, *rows)
        )

    def apart() -> object:
        return [some(run, run + 1) for run in range(RUNS)]

    return {"together": lambda: some(0, RUNS), "apart": apart}


def _seconds(program: Callable[[], object]) -> float:
    start = time.perf_counter()
    program()
    return time.perf_counter() - start


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints and writes `seeds.json` and `seeds.csv`."""
    parser = parser_of("seeds", __doc__, "--rounds", seconds=(60, "a size and arm"))
    parser.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        default=None,
        choices=range(len(SIZES)),
        help="by their numbers (default all)",
    )
    parser.add_argument(
        "--arms",
        nargs="+",
        default=["plain", "stable"],
        choices=list(ARMS),
        help="of training (default plain stable)",
    )
    flags = parser.parse_args(arguments)
    chosen = SIZES if flags.sizes is None else [SIZES[number] for number in flags.sizes]
    table = []
    for size, changes in chosen:
        for arm in flags.arms:
            both = programs(changes, arm)
            first = {name: _seconds(program) for name, program in both.items()}
            taken = interleaved(both, seconds=flags.seconds, min_rounds=flags.rounds)
            ratio = spread(taken["apart"] / taken["together"])
            seconds = {name: float(np.median(part)) for name, part in taken.items()}
            compiling = [max(first[name] - seconds[name], 0.0) for name in both]
            found = (size, arm, RUNS, *seconds.values(), *ratio, *compiling)
            table.append(dict(zip(COLUMNS, found, strict=True)))
            print(
                f"{size}, {arm}: together {seconds['together']:.2f} s, "
                f"apart {seconds['apart']:.2f} s, "
                f"{ratio.median:.2f} times",
                flush=True,
            )
    report = {"provenance": provenance(), "epochs": EPOCHS, "table": table}
    publish(flags.out, "seeds", COLUMNS, report)
    return report


if __name__ == "__main__":
    keep_freed_memory()
    main()
