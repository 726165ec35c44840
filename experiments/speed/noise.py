"""A model tested under noise, 5 σ × 3 draws × 2 sites, beside as many plain forward passes.

Goal: at most 1.3 times as long. About 10 minutes on 2 idle cores.

    python -m experiments.speed.noise --data-dir ../shared/data

Without `--data-dir`, rows of SST-2's lengths with random tokens. Where queries move more often
under noise, a noisy pass is more work by itself. So forward passes that are given the same noise
are timed too: what `predict` takes over those is the price of drawing, scaling, counting and
batches.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.provenance import provenance
from experiments.speed.flags import parser_of, workload_of
from experiments.speed.forward import check
from experiments.speed.publish import publish
from experiments.speed.timing import clock_of, clock_title, interleaved, spread
from experiments.speed.train_step import trained
from experiments.speed.workload import VOCAB_SIZE, Workload, first_rows
from hopfax.data.batching import Bucket
from hopfax.nn import Encoder, Functional, Perturbation, robertha, tinybert
from hopfax.nn.encoder import CLEAN
from hopfax.train.allocator import keep_freed_memory
from hopfax.train.evaluate import SITES, Noise, Predictions, make_predictor, predict

LEVELS = (0.1, 0.5, 1.0, 2.0, 5.0)
DRAWS = 3
MODELS = {"tinybert": tinybert, "robertha": robertha}
TOKENS = 8192  # of a plain pass, padding included
PROGRAMS: tuple[str, ...] = ("forward", "predict", "predict_noisy", "forward_given")
COLUMNS = (
    "model",
    "weights",
    "site",
    "level",
    "num_steps",
    *(f"{program}_ms" for program in PROGRAMS),
    "noisy_over_forward",
    "noisy_over_given",
    "rounds",
)
# The first over the second.
RATIOS = (
    ("predict", "forward"),
    ("predict_noisy", "forward"),
    ("predict_noisy", "forward_given"),
)

Condition = tuple[str, float]  # site, level
Call = Callable[[], object]


class Part(NamedTuple):
    """Rows of a plain forward pass: as many as there are, none to fill a batch."""

    ids: jax.Array
    mask: jax.Array
    index: np.ndarray


def parts_of(buckets: Sequence[Bucket]) -> list[Part]:
    """The rows in the order of their buckets."""
    found = []
    for bucket in buckets:
        width = bucket.ids.shape[-1]
        for start in range(0, len(bucket.labels), TOKENS // width):
            ids, lengths, _, index = (field[start : start + TOKENS // width] for field in bucket)
            found.append(Part(jnp.asarray(ids[:, 0]), jnp.arange(width) < lengths, index))
    return found


@functools.partial(jax.jit, static_argnums=(2, 3))
def draws_of(index: jax.Array, draw: jax.Array, tokens: int, width: int) -> jax.Array:
    """The draws of `hopfax.train.evaluate`, written again: of draw, row and choice 0."""
    root = jax.random.fold_in(jax.random.key(0), draw)

    def of_row(row: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.fold_in(root, row), 0)
        return jax.random.normal(key, (tokens, width))

    return jax.vmap(of_row)(index)


def noise_on(part: Part, noise: Noise, width: int) -> Perturbation:
    """What `predict` adds to these rows under the protocol `sigma`, as an array."""
    draws = draws_of(jnp.asarray(part.index), jnp.uint32(noise.draw), part.ids.shape[1], width)
    added = jnp.where(part.mask[..., None], noise.level * draws, 0)
    return Perturbation(**{noise.site: added})


def programs(
    model: Functional[Encoder], params: Any, buckets: Sequence[Bucket]
) -> tuple[dict[Condition, dict[str, Call]], dict[Condition, float]]:
    """All four under every site and level, after comparing what they compute.

    A call under noise takes the next draw each time, the same one in both programs.

    Returns:
        Calls by name, and the mean Hopfield updates a query, of every site and level.
    """
    parts, predictor = parts_of(buckets), make_predictor(model)
    stacked = jax.tree.map(lambda leaf: leaf[None], params)
    order = np.argsort(np.concatenate([part.index for part in parts]))
    width = params["tokens"]["embedding"].shape[-1]

    @jax.jit
    def logits(params: Any, ids: jax.Array, mask: jax.Array, added: Perturbation) -> jax.Array:
        return model.bind(params)(ids, mask, added=added).logits

    def forward(added: Sequence[Perturbation]) -> np.ndarray:
        pending = [
            logits(params, part.ids, part.mask, noise)
            for part, noise in zip(parts, added, strict=True)
        ]
        return np.concatenate([np.asarray(found) for found in pending])[order]

    def predicted(noise: Noise | None) -> Predictions:
        return predict(predictor, stacked, buckets, noise=noise)

    nothing = [CLEAN] * len(parts)
    check({"forward": forward(nothing), "predict": predicted(None).logits[0]})
    calls, steps = {}, {}
    for site, level in itertools.product(SITES, LEVELS):
        noises = [Noise(site, "sigma", level, draw) for draw in range(DRAWS)]
        given = [[noise_on(part, noise, width) for part in parts] for noise in noises]
        found = [predicted(noise) for noise in noises]
        for one, added in zip(found, given, strict=True):
            both = {f"predict, {site} {level}": one.logits[0], "forward": forward(added)}
            check(both, spare=0.01 if one.num_steps.any() else 0.0)
        steps[site, level] = float(np.mean([one.num_steps[0] for one in found]))
        calls[site, level] = {
            "forward": functools.partial(forward, nothing),
            "predict": functools.partial(predicted, None),
            "predict_noisy": _each_in_turn(predicted, noises),
            "forward_given": _each_in_turn(forward, given),
        }
    return calls, steps


def _each_in_turn(call: Callable[[Any], object], given: Sequence[Any]) -> Call:
    turns = itertools.cycle(given)
    return lambda: call(next(turns))


def measure(
    model: Functional[Encoder],
    params: Any,
    buckets: Sequence[Bucket],
    *,
    seconds: float,
    clock: Callable[[], float],
) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Times the programs in turns.

    Returns:
        A row for each site and level, and ratios of the sums over them.
    """
    calls, steps = programs(model, params, buckets)
    timed = {(*place, name): call for place, named in calls.items() for name, call in named.items()}
    taken = interleaved(timed, seconds=seconds, clock=clock)
    totals = {name: np.sum([taken[*place, name] for place in steps], axis=0) for name in PROGRAMS}
    table = []
    for place, count in steps.items():
        found = {name: taken[*place, name] for name in PROGRAMS}
        over = [found["predict_noisy"] / found[name] for name in ("forward", "forward_given")]
        row = [*place, count, *(1e3 * np.median(found[name]) for name in PROGRAMS)]
        row += [*(np.median(ratio) for ratio in over), len(over[0])]
        table.append(dict(zip(COLUMNS[2:], row, strict=True)))
    ratios = {
        f"{first} over {second}": spread(totals[first] / totals[second])._asdict()
        for first, second in RATIOS
    }
    return table, ratios


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints and writes `noise.json` and `noise.csv`."""
    parser = parser_of(
        "noise", __doc__, "--data-dir", "--train-steps", "--cpu-seconds", seconds=(60, "a model")
    )
    parser.add_argument("--rows", type=int, default=872, help="texts (default 872, SST-2's test)")
    parser.add_argument(
        "--models",
        nargs="+",
        choices=list(MODELS),
        default=list(MODELS),
        help="to test (default all)",
    )
    flags = parser.parse_args(arguments)
    rows = workload_of(parser, flags)
    buckets = first_rows(rows.buckets, flags.rows)
    table, ratios = [], []
    for name, weights, params in cases(flags.models, flags.train_steps, rows):
        found, over = measure(
            MODELS[name](VOCAB_SIZE, 2),
            params,
            buckets,
            seconds=flags.seconds,
            clock=clock_of(flags.cpu_seconds),
        )
        case = {"model": name, "weights": weights}
        table += [case | row for row in found]
        for what, ratio in over.items():
            ratios.append(case | {"ratio": what} | ratio)
            print(
                f"{name}, {weights}: "
                + "{ratio} {median:.2f} ({low:.2f} to {high:.2f})".format_map(ratios[-1]),
                flush=True,
            )
    report = {
        "provenance": provenance(),
        "rows": rows.source,
        "texts": sum(len(bucket.labels) for bucket in buckets),
        "clock": clock_title(flags.cpu_seconds),
        "draws": DRAWS,
        "table": table,
        "ratios": ratios,
    }
    publish(flags.out, "noise", COLUMNS, report)
    return report


def cases(models: Sequence[str], steps: int, rows: Workload) -> Iterator[tuple[str, str, Any]]:
    """Model, its weights' name, and they; trained ones where iterations depend on them."""
    for name in models:
        yield name, "fresh", jax.jit(MODELS[name](VOCAB_SIZE, 2).init)(jax.random.key(23))
        if name == "robertha" and steps:
            yield name, f"after {steps} steps", jax.tree.map(lambda x: x[0], trained(rows, steps))


if __name__ == "__main__":
    keep_freed_memory()
    main()
