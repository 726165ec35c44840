"""Evaluation of a user's function in batches, compiled at most once a call.

Nothing is kept between calls, since the values that a function closes over may change.
"""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import eval_jaxpr
from jax.extend.core import Jaxpr, jaxprs_in_params
from jaxtyping import Array

from hopfax.checks import is_tracing, share

_CALLS = {"custom_jvp_call", "custom_vjp_call", "checkpoint"}
_MOST_STEPS = 2000  # one by one they take 0.1 s, as long as one small compilation


def prepare_batched(fn: Callable[..., Array], count: int) -> Callable[..., Array]:
    """Returns `fn`, prepared for `count` calls outside of `jit`, whose rows local devices share.

    `fn` is traced once per shape. Its operations then run one by one, which reuses functions that
    the user has jitted. If there are many, or it contains a loop, the whole is compiled, and freed
    after the call.
    """
    programs: dict[Any, tuple[Any, list[Any], Callable[..., list[Array]]]] = {}

    def run(*args: Any) -> Array:
        if (shapes := (*map(np.shape, args),)) not in programs:
            closed = jax.make_jaxpr(fn)(*args)
            program = partial(eval_jaxpr, closed.jaxpr)
            compiles = count * _num_steps(closed.jaxpr) > _MOST_STEPS
            # Functions with a sharding of their own or a callback cannot be partitioned.
            own = jax.local_device_count() > 1 and re.search(r"Mesh\(|callback", str(closed.jaxpr))
            programs[shapes] = own, closed.consts, jax.jit(program) if compiles else program
        own, consts, program = programs[shapes]
        args, consts = (args, consts) if own else share(args, consts)
        return program(consts, *args)[0]

    return fn if is_tracing() else run


def map_batches(fn: Callable[[Array], Array], inputs: Array, batch_size: int) -> Array:
    """Applies a function to each input, as `jax.lax.map` does."""
    if is_tracing():
        return jax.lax.map(fn, inputs, batch_size=batch_size)
    starts, outputs = range(0, len(inputs), batch_size), []
    batched = prepare_batched(jax.vmap(fn), len(starts))
    for start in starts:
        size = min(batch_size, len(inputs) - start)
        outputs.append(batched(jax.lax.dynamic_slice_in_dim(inputs, start, size)))
        jax.block_until_ready(outputs[-2:-1])  # at most two batches are in memory
    return jnp.concatenate(outputs)


def _num_steps(jaxpr: Jaxpr) -> float:
    """Operations outside of compiled functions; infinite with loops, whose programs JAX keeps."""
    total = 0.0
    for step in jaxpr.eqns:
        inner = [*jaxprs_in_params(step.params)]
        if step.primitive.name in _CALLS:
            total += sum(map(_num_steps, inner))
        elif step.primitive.name != "jit":
            total += math.inf if inner else 1
    return total
