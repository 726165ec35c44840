"""What training carries along, for one seed or stacked over many, and its optimizer."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from hopfax.nn.encoder import Encoder
from hopfax.nn.functional import Functional, Params


class TrainState(NamedTuple):
    """Everything a step changes.

    Attributes:
        params: Parameters.
        opt_state: The optimizer's state.
        step: Steps taken; with the seed it determines every random draw of the next one.
    """

    params: Params
    opt_state: optax.OptState
    step: Int[Array, ""]


def adamw(
    learning_rate: float,
    total_steps: int,
    *,
    warmup: float = 0.1,
    weight_decay: float = 0.01,
    clip: float = 1.0,
) -> optax.GradientTransformation:
    """AdamW as in Table 15: linear warm-up, linear decay to 0, gradients clipped by global norm.

    Args:
        learning_rate: Peak rate, > 0.
        total_steps: Length of the schedule in steps, >= 1.
        warmup: Share of the steps that warm up, in [0, 1).
        weight_decay: Decoupled decay of all parameters, >= 0.
        clip: Largest global norm of a gradient, > 0.

    Raises:
        ValueError: If a number is out of its range.

    References:
        Robertha, Table 15.
    """
    ranges = {
        "learning_rate > 0": learning_rate > 0,
        "total_steps >= 1": total_steps >= 1,
        "warmup in [0, 1)": 0 <= warmup < 1,
        "weight_decay >= 0": weight_decay >= 0,
        "clip > 0": clip > 0,
    }
    if wrong := [wanted for wanted, holds in ranges.items() if not holds]:
        raise ValueError(
            f"adamw wants {' and '.join(wrong)}; got learning_rate={learning_rate}, "
            f"total_steps={total_steps}, warmup={warmup}, weight_decay={weight_decay}, clip={clip}"
        )
    rising = max(1, round(warmup * total_steps))
    # The first step already moves: a rate of exactly 0 would waste it.
    schedule = optax.join_schedules(
        [
            optax.linear_schedule(learning_rate / rising, learning_rate, max(1, rising - 1)),
            optax.linear_schedule(learning_rate, 0.0, max(1, total_steps - rising)),
        ],
        [rising],
    )
    return optax.chain(
        optax.clip_by_global_norm(clip), optax.adamw(schedule, weight_decay=weight_decay)
    )


def init_states(
    model: Functional[Encoder], optimizer: optax.GradientTransformation, seeds: Sequence[int]
) -> TrainState:
    """Fresh states of all seeds, stacked along a first axis.

    Args:
        model: What to train.
        optimizer: How.
        seeds: One number a run, >= 0.

    Returns:
        A `TrainState` whose every leaf has a leading axis of `len(seeds)`.
    """

    def init(key: Array) -> TrainState:
        params = model.init(key)
        return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))

    return jax.jit(jax.vmap(init))(seed_keys(seeds))


def seed_keys(seeds: Sequence[int]) -> Array:
    """One random key a seed.

    Raises:
        ValueError: If a seed is not in [0, 2**32).
    """
    if wrong := [seed for seed in seeds if not 0 <= seed < 2**32]:
        raise ValueError(f"a seed is a whole number in [0, 2**32), got {wrong[0]}")
    return jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
