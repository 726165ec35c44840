"""Temporary memory of a gradient through 50 updates, unrolled against implicit.

XLA's planned memory for `retrieve` of every query of a base-size layer, and for the train step.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from experiments.benchmarks import workloads
from experiments.benchmarks.workloads import MAX_LENGTH
from hopfax import hopfield
from hopfax.fixed_point import Gradient
from hopfax.train.objectives import Batch, classification
from hopfax.train.state import adamw, init_states, seed_keys
from hopfax.train.step import make_step

RATIOS = {"unrolled / implicit": "≥ 5"}
STEPS, BATCH_SIZE, HEADS, HEAD_WIDTH = 50, 32, 2, 64


def programs(data_dir: str | None, *, measure: Callable[[Gradient], int]) -> dict[str, float]:
    """Megabytes of both gradients, and their ratio."""
    implicit, unrolled = measure("implicit") / 1e6, measure("unrolled") / 1e6
    ratio = unrolled / implicit
    return {"implicit, MB": implicit, "unrolled, MB": unrolled, "unrolled / implicit": ratio}


def layer_bytes(gradient: Gradient) -> int:
    """The gradient through `retrieve` of every query of a layer, in queries and patterns."""
    options: Any = {"beta": 15 / HEAD_WIDTH**0.5, "max_steps": STEPS, "gradient": gradient}
    tokens = jax.vmap(partial(hopfield.retrieve, **options), in_axes=(0, None))
    layer = jax.vmap(jax.vmap(tokens))

    def loss(queries: jax.Array, patterns: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(layer(queries, patterns).value))

    shape = jax.ShapeDtypeStruct((BATCH_SIZE, HEADS, MAX_LENGTH, HEAD_WIDTH), jnp.float32)
    return temporary_bytes(jax.grad(loss, argnums=(0, 1)), shape, shape)


def step_bytes(gradient: Gradient) -> int:
    """The base train step of one seed, ESR and AdamW included."""
    model = workloads.model_of("base", gradient=gradient, max_steps=STEPS)
    optimizer = adamw(workloads.LEARNING_RATE, total_steps=workloads.TOTAL_STEPS)
    states = jax.eval_shape(lambda: init_states(model, optimizer, [0]))
    state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), states)
    lengths = jnp.ones((BATCH_SIZE, 1), jnp.int32)
    ids = jnp.zeros((BATCH_SIZE, 1, MAX_LENGTH), jnp.int32)
    batch = Batch(ids, lengths, lengths[:, 0], jnp.ones(BATCH_SIZE))
    step = make_step(classification(model, esr_weight=workloads.ESR_WEIGHT), optimizer)
    return temporary_bytes(step, state, batch, seed_keys([0])[0])


def temporary_bytes(fn: Callable[..., Any], *arguments: Any) -> int:
    """The memory of a compiled function without its arguments and results."""
    analysis = jax.jit(fn).lower(*arguments).compile().memory_analysis()
    assert analysis, f"XLA reports no memory on {jax.default_backend()}"
    return analysis.temp_size_in_bytes


SETTINGS = {
    "retrieve, one layer": partial(programs, measure=layer_bytes),
    "train step": partial(programs, measure=step_bytes),
}
