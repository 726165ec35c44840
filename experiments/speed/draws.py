"""Random numbers and a dropout mask: jax's generator beside `hopfax.random.quick`, the same bits.

    python -m experiments.speed.draws

Half a minute. On a GPU both are jax's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.provenance import provenance
from experiments.speed.flags import parser_of
from experiments.speed.publish import markdown_table, publish
from experiments.speed.timing import interleaved, spread
from hopfax.random import quick
from hopfax.train.allocator import keep_freed_memory

SHAPE, REPEATS = (1024, 256), 50
Draw = Callable[[jax.Array], jax.Array]
DRAWS: dict[str, Draw] = {
    "32 random bits": partial(jax.random.bits, shape=SHAPE),
    "uniform": partial(jax.random.uniform, shape=SHAPE),
    "normal": partial(jax.random.normal, shape=SHAPE),
    "normal, a key each row": lambda key: jax.vmap(lambda one: jax.random.normal(one, SHAPE[1:]))(
        jax.random.split(key, SHAPE[0])
    ),
    "dropout mask": lambda key: jax.random.bits(key, SHAPE, jnp.uint16) >= 6554,
}
COLUMNS = ("what", "jax_ns", "quick_ns", "jax_over_quick", "low", "high", "rounds")
COLUMNS += ("jax_compile_seconds", "quick_compile_seconds")


def program(draw: Draw, wrap: Draw) -> tuple[Callable[[], object], float]:
    """Draws `REPEATS` arrays one after the other, and the seconds that compiling it took."""

    def body(total: jax.Array, number: jax.Array) -> tuple[jax.Array, None]:
        # A sum keeps every number wanted, and costs next to nothing beside it.
        drawn = draw(wrap(jax.random.fold_in(jax.random.key(0), number)))
        return total + jnp.sum(drawn.astype(jnp.float32)), None

    start = time.perf_counter()
    compiled = jax.jit(lambda: jax.lax.scan(body, jnp.zeros(()), jnp.arange(REPEATS))[0])
    done = compiled.lower().compile()
    return lambda: jax.block_until_ready(done()), time.perf_counter() - start


def section(report: dict[str, Any]) -> list[str]:
    """The page's section."""
    rows = [
        (
            row["what"],
            f"{row['jax_ns']:.1f}",
            f"{row['quick_ns']:.1f}",
            f"{row['jax_over_quick']:.2f} ({row['low']:.2f} to {row['high']:.2f})",
            f"{row['jax_compile_seconds']:.2f}, {row['quick_compile_seconds']:.2f}",
            row["rounds"],
        )
        for row in report["table"]
    ]
    heads = ("what", "jax, ns a number", "quick, ns", "jax over quick (quartiles)")
    heads += ("compilation, s: jax, quick", "rounds")
    return [
        f"## Random numbers\n\nArrays of {' × '.join(map(str, SHAPE))} from jax's default keys and "
        "from the same keys by `hopfax.random.quick`: the same bits. Seconds of wall time.",
        markdown_table(heads, rows),
    ]


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints and writes `draws.json` and `draws.csv`."""
    parser = parser_of("draws", __doc__, "--rounds", seconds=(5, "a kind of number"))
    flags = parser.parse_args(arguments)
    table = []
    for what, draw in DRAWS.items():
        made = {"jax": program(draw, lambda key: key), "quick": program(draw, quick)}
        totals = {name: float(np.asarray(call())) for name, (call, _) in made.items()}
        # Other programs add the same numbers up in another order.
        if not np.isclose(*totals.values(), rtol=1e-3, atol=1e-3 * REPEATS * SHAPE[0]):
            raise RuntimeError(f"{what}: the sums of the same bits differ, {totals}")
        calls = {name: call for name, (call, _) in made.items()}
        taken = interleaved(calls, seconds=flags.seconds, min_rounds=flags.rounds)
        each = {n: 1e9 * float(np.median(t)) / np.prod(SHAPE) / REPEATS for n, t in taken.items()}
        ratio = spread(taken["jax"] / taken["quick"])
        compiling = [seconds for _, seconds in made.values()]
        table.append(dict(zip(COLUMNS, (what, *each.values(), *ratio, *compiling), strict=True)))
        print(
            f"{what}: jax {each['jax']:.1f} ns, quick {each['quick']:.1f} ns, "
            f"{ratio.median:.2f} times",
            flush=True,
        )
    report = {"provenance": provenance(), "shape": SHAPE, "repeats": REPEATS, "table": table}
    publish(flags.out, "draws", COLUMNS, report)
    return report


if __name__ == "__main__":
    keep_freed_memory()
    main()
