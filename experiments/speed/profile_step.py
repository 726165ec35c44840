"""Where base Robertha's train step spends its time: its parts by themselves, and their shares.

    python -m experiments.speed.profile_step    # 2 minutes on 2 idle cores

Batch 32 of 128 real tokens, fresh weights, both layers of a part together. A part is compiled by
itself, so the shares need not add up: XLA joins neighbours, and some work lies between the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.provenance import provenance
from experiments.speed.flags import parser_of
from experiments.speed.forward import Rows, full_rows
from experiments.speed.programs import BATCH_SIZE, ESR_WEIGHT, LEARNING_RATE, TOTAL_STEPS
from experiments.speed.publish import publish
from experiments.speed.timing import clock_of, clock_title, interleaved, spread
from experiments.speed.workload import MAX_LENGTH, VOCAB_SIZE
from hopfax.nn import Encoding, robertha
from hopfax.nn.encoder import dropout
from hopfax.train.allocator import keep_freed_memory
from hopfax.train.objectives import Batch, classification, esr_loss
from hopfax.train.state import adamw, init_states, seed_keys
from hopfax.train.step import make_step

COLUMNS = ("part", "calls", "forward_ms", "both_ms", "low", "high", "share", "rounds")

Call = Callable[[], Any]


def parts(
    model: Any, params: Any, x: jax.Array, mask: jax.Array, ids: jax.Array
) -> dict[str, tuple[int, Callable[..., jax.Array], tuple[Any, ...]]]:
    """Name -> calls a step, a function to differentiate, and its arguments."""
    width, layers = x.shape[-1], len(params["blocks"])
    inner = jnp.repeat(x, params["blocks"][0]["ff_in"]["kernel"].shape[1] // width, axis=-1)
    weights = jnp.ones(len(x))

    def block(params: Any) -> Any:
        return model.bind(params).blocks[0]

    def esr(x: jax.Array) -> jax.Array:
        keys = jnp.broadcast_to(x, (layers, *x.shape))
        nothing = jnp.zeros((layers, 1, 1, 1), jnp.int32)
        found = Encoding(x, keys, nothing, nothing == 0)
        return esr_loss(found, mask, weights, target=0.35)

    def ff(params: Any, x: jax.Array) -> jax.Array:
        layer = block(params)
        return layer.ff_out(layer.activation(layer.ff_in(x)))

    return {
        "embeddings": (
            1,
            lambda p: model.bind(p).embed(model.bind(p).embed_tokens(ids)),
            (params,),
        ),
        "layer norms": (2 * layers, lambda p, x: block(p).ff_norm(x), (params, x)),
        "attention": (layers, lambda p, x: block(p).attention(x, mask).values, (params, x)),
        "feed-forward": (layers, ff, (params, x)),
        "  of it, GELU": (layers, lambda x: block(params).activation(x), (inner,)),
        "dropout": (2 * layers + 1, lambda x: dropout(jax.random.key(0), x, 0.3), (x,)),
        "ESR, all layers": (1, esr, (x,)),
    }


def calls_of(rows: Rows, **options: Any) -> tuple[dict[str, Call], dict[str, int]]:
    """The whole step, its optimizer, and every part, forward and with its gradient."""
    model = robertha(VOCAB_SIZE, 2, **options)
    optimizer = adamw(LEARNING_RATE, total_steps=TOTAL_STEPS)
    state = jax.tree.map(lambda leaf: leaf[0], init_states(model, optimizer, [23]))
    ids, lengths = jnp.asarray(rows.ids), jnp.asarray(rows.lengths)
    labels = jnp.arange(len(ids)) % 2
    batch = Batch(ids[:, None], lengths[:, None], labels, jnp.ones(len(ids)))
    mask = jnp.arange(ids.shape[1]) < lengths[:, None]
    step = make_step(classification(model, esr_weight=ESR_WEIGHT), optimizer)
    width = state.params["tokens"]["embedding"].shape[1]
    x = jax.random.normal(jax.random.key(1), (*ids.shape, width))

    def update(state: Any) -> Any:
        changes, kept = optimizer.update(state.params, state.opt_state, state.params)
        return optax.apply_updates(state.params, changes), kept

    calls = {
        "train step": _compiled(step, state, batch, seed_keys([23])[0]),
        "optimizer": _compiled(update, state),
    }
    counts = {"optimizer": 1}
    for name, (count, fn, given) in parts(model, state.params, x, mask, ids).items():
        counts[name] = count
        calls[f"{name} forward"] = _compiled(fn, *given)
        calls[name] = _compiled(_with_gradient(fn), *given)
    return calls, counts


def _with_gradient(fn: Callable[..., jax.Array]) -> Callable[..., Any]:
    def both(*given: Any) -> Any:
        found, pull = jax.vjp(fn, *given)
        return found, pull(found)

    return both


def _compiled(fn: Callable[..., Any], *given: Any) -> Call:
    compiled = jax.jit(fn).lower(*given).compile()
    return lambda: jax.block_until_ready(compiled(*given))


def table_of(taken: Mapping[str, np.ndarray], counts: Mapping[str, int]) -> list[dict[str, Any]]:
    """A row a part, the whole step first."""
    whole = taken["train step"]
    found = []
    for name, count in {"train step": 1, **counts}.items():
        both = spread(1e3 * count * taken[name])
        forward = taken.get(f"{name} forward")
        forward_ms = None if forward is None else 1e3 * count * float(np.median(forward))
        share = float(np.median(count * taken[name] / whole))
        row = (name, count, forward_ms, both.median, both.low, both.high, share, both.rounds)
        found.append(dict(zip(COLUMNS, row, strict=True)))
    return found


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints and writes `profile_step.json` and `profile_step.csv`."""
    parser = parser_of("profile_step", __doc__, "--cpu-seconds", seconds=(30, "in all"))
    parser.add_argument("--batch", type=int, default=BATCH_SIZE, help="texts (default 32)")
    parser.add_argument("--tokens", type=int, default=MAX_LENGTH, help="of a text (default 128)")
    flags = parser.parse_args(arguments)
    calls, counts = calls_of(full_rows(flags.batch, flags.tokens))
    clock = clock_of(flags.cpu_seconds)
    table = table_of(interleaved(calls, seconds=flags.seconds, clock=clock), counts)
    for row in table:
        print(f"{row['part']}: {row['both_ms']:.1f} ms, {row['share']:.0%}")
    report = {
        "provenance": provenance(),
        "clock": clock_title(flags.cpu_seconds),
        "batch": flags.batch,
        "tokens": flags.tokens,
        "table": table,
    }
    publish(flags.out, "profile_step", COLUMNS, report)
    return report


if __name__ == "__main__":
    keep_freed_memory()
    main()
