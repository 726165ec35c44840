"""Training state, of one seed or stacked over seeds, and its optimizer."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int

from hopfax.nn.encoder import Encoder
from hopfax.nn.functional import Functional, Params


class TrainState(NamedTuple):
    """Everything that a step changes; with the seed, `step` determines all its randomness."""

    params: Params
    opt_state: optax.OptState
    step: Int[Array, ""]


def adamw(
    learning_rate: float, total_steps: int, *, weight_decay: float = 0.01
) -> optax.GradientTransformation:
    """Returns AdamW with linear warm-up over a tenth of the steps, then linear decay to 0.

    Gradients are clipped to a global norm of 1. Numbers out of range raise a ValueError.

    Args:
        learning_rate: Peak learning rate, > 0.
        total_steps: Length of the schedule in steps, >= 1.
        weight_decay: Decoupled weight decay of all parameters, >= 0.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax.train.state import adamw
        >>> optimizer = adamw(2e-5, total_steps=100)
        >>> updates, _ = optimizer.update(jnp.ones(2), optimizer.init(jnp.ones(2)), jnp.ones(2))
        >>> updates.shape
        (2,)

    References:
        Robertha, Table 15.
    """
    if not (0 < learning_rate < float("inf") and total_steps >= 1 and weight_decay >= 0):
        raise ValueError(
            "adamw requires finite learning_rate > 0, total_steps >= 1 and weight_decay >= 0; got "
            f"{learning_rate}, {total_steps} and {weight_decay}"
        )
    warmup = max(1, round(0.1 * total_steps))
    # A first step with rate 0 would have no effect.
    rise = optax.linear_schedule(learning_rate / warmup, learning_rate, max(1, warmup - 1))
    fall = optax.linear_schedule(learning_rate, 0.0, max(1, total_steps - warmup))
    schedule = optax.join_schedules([rise, fall], [warmup])
    return optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=weight_decay)
    )


def init_states(
    model: Functional[Encoder], optimizer: optax.GradientTransformation, seeds: Sequence[int]
) -> TrainState:
    """Returns the initial states of all seeds: a `TrainState` stacked along a first axis."""

    def init(key: Array) -> TrainState:
        params = model.init(key)
        return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))

    # One seed after the other: this compiles only the draws, once for each shape.
    states = [init(key) for key in seed_keys(seeds)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def seed_keys(seeds: Sequence[int]) -> Array:
    """Returns one random key per seed; a seed outside [0, 2**32) raises a ValueError."""
    if wrong := [seed for seed in seeds if not 0 <= seed < 2**32]:
        raise ValueError(f"seeds must be in [0, 2**32), got {wrong[0]}")
    return _keys(np.asarray(seeds, np.uint32))


_keys = jax.jit(jax.vmap(jax.random.key))
