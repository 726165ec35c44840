"""Cost per token of hopfax's forward pass as tokens, width, batch and depth grow, one at a time.

    python -m experiments.speed.scaling    # 3 minutes on 2 idle cores

Five iterations in every layer; what does not grow stays as in the base model at batch 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from experiments.provenance import provenance
from experiments.speed.flags import parser_of
from experiments.speed.forward import SIZES, full_rows, hopfax_forward, model_of
from experiments.speed.publish import publish
from experiments.speed.timing import clock_of, clock_title, interleaved, spread
from hopfax.train.allocator import keep_freed_memory

COLUMNS = ("factor", "value", "microseconds_per_token", "low", "high", "rounds")
STEPS = 5
BASE = {"tokens": 128, "width": 128, "batch": 8, "depth": 2}
FACTORS: dict[str, tuple[int, ...]] = {
    "tokens": (16, 32, 64, 128, 256, 512),
    "width": (32, 64, 128, 256, 512),
    "batch": (1, 2, 4, 8, 16, 32),
    "depth": (1, 2, 4, 8),
}


def forward_of(*, tokens: int, width: int, batch: int, depth: int) -> Callable[[], Any]:
    """A compiled forward pass of fresh weights; heads stay as wide as they are in base."""
    size = dict(SIZES["base"], width=width, num_layers=depth, ff_width=4 * width)
    size["num_heads"] = max(1, width // 64)
    params = jax.jit(model_of(size, max_length=tokens).init)(jax.random.key(0))
    rows = full_rows(batch, tokens)
    return hopfax_forward(size, params, rows, tol=0.0, max_steps=STEPS)


def cells() -> Iterator[tuple[str, dict[str, int]]]:
    """Factor, and the whole shape."""
    for factor, values in FACTORS.items():
        for value in values:
            yield factor, BASE | {factor: value}


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints and writes `scaling.json` and `scaling.csv`."""
    parser = parser_of("scaling", __doc__, "--cpu-seconds", seconds=(30, "a factor"))
    flags = parser.parse_args(arguments)
    clock = clock_of(flags.cpu_seconds)
    table = []
    for factor in FACTORS:
        shapes = {shape[factor]: shape for name, shape in cells() if name == factor}
        programs = {str(value): forward_of(**shape) for value, shape in shapes.items()}
        taken = interleaved(programs, seconds=flags.seconds, clock=clock)
        for value, shape in shapes.items():
            found = spread(1e6 * taken[str(value)] / (shape["batch"] * shape["tokens"]))
            table.append(dict(zip(COLUMNS, (factor, value, *found), strict=True)))
            print(f"{factor} {value}: {found.median:.1f} us a token", flush=True)
    report = {
        "provenance": provenance(),
        "clock": clock_title(flags.cpu_seconds),
        "steps": STEPS,
        "shape": BASE,
        "table": table,
    }
    publish(flags.out, "scaling", COLUMNS, report)
    return report


if __name__ == "__main__":
    keep_freed_memory()
    main()
