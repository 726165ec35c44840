"""What ESR adds to base Robertha's train step, by entropy; the entropy alone; and its error.

Goals: at most 30 % on a CPU and 15 % on a GPU, and errors of the matmul-only Shannon entropy and of
its gradient under 1 %. About 15 minutes on 2 idle cores.

    python -m experiments.speed.esr --data-dir ../shared/data

Without `--data-dir`, rows of SST-2's lengths with random tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np

from experiments.provenance import provenance
from experiments.speed.flags import parser_of, workload_of
from experiments.speed.programs import BATCH_SIZE, Hopfax
from experiments.speed.publish import publish
from experiments.speed.timing import clock_of, clock_title, interleaved, spread
from experiments.speed.train_step import trained
from experiments.speed.workload import Workload
from hopfax import hopfield
from hopfax.train.allocator import keep_freed_memory

ENTROPIES: tuple[hopfield.Entropy, ...] = get_args(hopfield.Entropy)
TOKENS = (16, 32, 72, 128)
WIDTHS = (128, 768)
LAYERS = 2
TEXTS = 64  # per padded length, for the error
COLUMNS = (
    "what",
    "weights",
    "tokens",
    "width",
    "entropy",
    "milliseconds",
    "low",
    "high",
    "added",
    "added_low",
    "added_high",
    "rounds",
)


def programs(rows: Workload) -> dict[str, Hopfax]:
    """The train step without ESR and with each entropy; the last bucket is the padded one."""
    buckets = [*rows.buckets, rows.padded]
    found = {"none": Hopfax(buckets, esr_weight=0)}
    return found | {name: Hopfax(buckets, entropy=name) for name in ENTROPIES}


def train_steps(
    arms: Mapping[str, Hopfax],
    rows: Workload,
    params: Any,
    *,
    weights: str,
    seconds: float,
    chunk: int,
    clock: Callable[[], float],
) -> list[dict[str, Any]]:
    """Times the train steps from one set of weights.

    Args:
        arms: What `programs` has made; all see the same batches in the same order.
        rows: What they train on.
        params: Of one seed, stacked.
        weights: What to call them.
        seconds: See `interleaved`.
        chunk: Steps per measurement; a fourth of it where texts are padded to 128.
        clock: See `interleaved`.

    Returns:
        Table rows: the mean step of an epoch in buckets, the step of each bucket, the padded one.
    """
    for arm in arms.values():
        # Its own copy, since a step overwrites what it starts from.
        arm.states = arm.states._replace(params=jax.tree.map(jnp.array, params))
    padded = len(rows.buckets)
    steps = [chunk] * padded + [max(1, chunk // 4)]
    calls = {
        (name, number): functools.partial(arm.run, number, steps[number])
        for number in range(padded + 1)
        for name, arm in arms.items()
    }
    taken = interleaved(calls, seconds=seconds, clock=clock)
    step = {key: values / steps[key[1]] for key, values in taken.items()}
    sizes = np.array([len(bucket.labels) for bucket in rows.buckets])
    widths = [bucket.ids.shape[-1] for bucket in (*rows.buckets, rows.padded)]
    table = []
    for padding, shares in (
        # The mean step of an epoch: buckets by the share of its steps they take.
        ("/".join(map(str, widths[:-1])), sizes / sizes.sum()),
        *((width, np.eye(padded + 1)[number]) for number, width in enumerate(widths)),
    ):
        mean = {
            name: np.sum([s * step[name, number] for number, s in enumerate(shares)], axis=0)
            for name in arms
        }
        for name in arms:
            added = 100 * (mean[name] / mean["none"] - 1)
            table.append(_row("train step", weights, padding, 128, name, mean[name], added))
    return table


def alone(*, seconds: float, calls: int, clock: Callable[[], float]) -> list[dict[str, Any]]:
    """Times the penalty of a batch's keys, both layers, without a model."""
    table = []
    for width in WIDTHS:
        timed: dict[tuple[str, int, str], Callable[[], None]] = {}
        for tokens in TOKENS:
            shape = (LAYERS * BATCH_SIZE, tokens, width)
            keys = jax.random.normal(jax.random.key(tokens), shape)
            for entropy in ENTROPIES:

                def loss(keys: jax.Array, entropy: hopfield.Entropy = entropy) -> jax.Array:
                    penalty = functools.partial(hopfield.esr_penalty, entropy=entropy)
                    return jax.vmap(penalty)(keys).sum()

                for what, fn in (("value", loss), ("with gradient", jax.value_and_grad(loss))):
                    timed[what, tokens, entropy] = functools.partial(
                        _repeat, jax.jit(fn), keys, calls
                    )
        taken = interleaved(timed, seconds=seconds / len(WIDTHS), clock=clock)
        for (what, tokens, entropy), values in taken.items():
            table.append(_row(what, None, tokens, width, entropy, values / calls))
    return table


def errors(model: Hopfax, rows: Workload, params: Any, *, weights: str) -> list[dict[str, Any]]:
    """Largest relative error of the matmul-only entropy and of its gradient in the keys.

    In float32, beside eigenvalues in float64, over the keys of some texts of every padded length.
    """
    one = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), params)

    @jax.jit
    def keys_of(ids: jax.Array, mask: jax.Array) -> jax.Array:
        return model.model.bind(one)(ids, mask).encoding.keys

    table = []
    for bucket in (*rows.buckets, rows.padded):
        ids, lengths = bucket.ids[:TEXTS, 0], bucket.lengths[:TEXTS, 0]
        mask = np.arange(ids.shape[-1]) < lengths[:, None]
        keys = np.asarray(keys_of(jnp.asarray(ids), jnp.asarray(mask)))
        keys, mask = keys.reshape(-1, *keys.shape[2:]), np.tile(mask, (len(keys), 1))
        with jax.enable_x64(True):
            exact, exact_slope = _entropies(keys.astype(np.float64), mask, "shannon")
        found, slope = _entropies(keys, mask, "shannon_matmul")
        # Texts of two tokens vary along one line: no entropy, and no gradient to compare with.
        real = exact > 1e-6
        value = np.abs(found - exact)[real] / exact[real]
        gradient = _norm(slope - exact_slope)[real] / _norm(exact_slope)[real]
        table.append(
            {
                "weights": weights,
                "tokens": ids.shape[-1],
                "value": float(value.max(initial=0)),
                "gradient": float(gradient.max(initial=0)),
                "keys": int(real.sum()),
            }
        )
    return table


def _entropies(
    keys: np.ndarray, mask: np.ndarray, entropy: hopfield.Entropy
) -> tuple[np.ndarray, np.ndarray]:
    value, slope = _values_and_slopes(keys, mask, entropy)
    return np.asarray(value, np.float64), np.asarray(slope, np.float64)


@functools.partial(jax.jit, static_argnums=2)
def _values_and_slopes(keys: jax.Array, mask: jax.Array, entropy: hopfield.Entropy) -> Any:
    def one(keys: jax.Array, mask: jax.Array) -> jax.Array:
        return hopfield.eigen_entropy(keys, mask=mask, entropy=entropy)

    return jax.vmap(jax.value_and_grad(one))(keys, mask)


def _norm(slopes: np.ndarray) -> np.ndarray:
    return np.sqrt(np.square(slopes).sum(axis=(1, 2)))


def _repeat(fn: Callable[[jax.Array], Any], keys: jax.Array, calls: int) -> None:
    for _ in range(calls):
        jax.block_until_ready(fn(keys))


def _row(
    what: str,
    weights: str | None,
    tokens: int | str,
    width: int,
    entropy: str,
    seconds: np.ndarray,
    added: np.ndarray | None = None,
) -> dict[str, Any]:
    taken = spread(1e3 * seconds)
    share = (None,) * 3 if added is None else spread(added)[:3]
    row = (what, weights, tokens, width, entropy, *taken[:3], *share, taken.rounds)
    return dict(zip(COLUMNS, row, strict=True))


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints and writes `esr.json` and `esr.csv`."""
    parser = parser_of(
        "esr",
        __doc__,
        "--data-dir",
        "--train-steps",
        "--cpu-seconds",
        seconds=(180, "a set of weights"),
    )
    parser.add_argument("--chunk", type=int, default=4, help="steps per measurement (default 4)")
    parser.add_argument("--calls", type=int, default=5, help="of the entropy alone (default 5)")
    flags = parser.parse_args(arguments)
    clock = clock_of(flags.cpu_seconds)
    rows = workload_of(parser, flags)

    table = alone(seconds=flags.seconds / 3, calls=flags.calls, clock=clock)
    show(table)
    arms, found_errors = programs(rows), []
    for steps in dict.fromkeys((0, flags.train_steps)):
        weights, params = f"after {steps} steps" if steps else "fresh", trained(rows, steps)
        found_errors += errors(arms["none"], rows, params, weights=weights)
        found = train_steps(
            arms,
            rows,
            params,
            weights=weights,
            seconds=flags.seconds,
            chunk=flags.chunk,
            clock=clock,
        )
        show(found)
        table += found
    report = {
        "provenance": provenance(),
        "rows": rows.source,
        "clock": clock_title(flags.cpu_seconds),
        "table": table,
        "errors": found_errors,
    }
    publish(flags.out, "esr", COLUMNS, report)
    return report


def show(table: Sequence[Mapping[str, Any]]) -> None:
    """Prints what was timed."""
    for row in table:
        added = "" if row["added"] is None else ", {added:+.1f} % over none".format_map(row)
        weights = f" ({row['weights']})" if row["weights"] else ""
        print(
            "{what}{end}, {tokens} tokens, width {width}, {entropy}: {milliseconds:.2f} ms "
            "({low:.2f} to {high:.2f}){added_text}, {rounds} rounds".format(
                **row, end=weights, added_text=added
            ),
            flush=True,
        )


if __name__ == "__main__":
    keep_freed_memory()
    main()
