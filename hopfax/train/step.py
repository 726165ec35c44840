"""One training step, and chunks of steps compiled as one scan over all seeds."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from hopfax.cpu import fast_key
from hopfax.train.objectives import Batch, Objective
from hopfax.train.sharding import Sharding
from hopfax.train.state import TrainState

# Modules use 0, 1, 2, ... under the seed's key; dropout needs a different number.
_DROPOUT = 2**31


Metrics = dict[str, Array]  # by name: loss and parts (see `Losses`), gradient norm before clipping


def make_step(
    objective: Objective, optimizer: optax.GradientTransformation
) -> Callable[[TrainState, Batch, PRNGKeyArray], tuple[TrainState, Metrics]]:
    """Returns a pure step of one seed: `step(state, batch, seed_key) -> (state, metrics)`.

    The dropout key derives from the seed's key and `state.step`, so resumption changes no draw.
    """

    def step(state: TrainState, batch: Batch, seed_key: PRNGKeyArray) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.fold_in(fast_key(seed_key), _DROPOUT), state.step)
        value_and_grad = jax.value_and_grad(objective, has_aux=True)
        (loss, parts), gradients = value_and_grad(state.params, batch, key)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        # Not optax.apply_updates, whose types exclude plain dicts.
        params = jax.tree.map(jnp.add, state.params, updates)
        norm = optax.tree.norm(gradients)
        metrics = {"loss": loss, **parts._asdict(), "gradient_norm": norm}
        return TrainState(params, opt_state, state.step + 1), metrics

    return step


def make_chunk(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    *,
    sharding: Sharding | None = None,
) -> Callable[..., tuple[TrainState, Metrics]]:
    """Compiles several steps of all seeds into one call.

    Returns:
        `chunk(states, rows, picks, weights, seed_keys) -> (states, metrics)`, with the states
        donated; `rows` are all rows of one bucket, the others as in `hopfax.train.schedule.Chunk`,
        and the metrics have shape (steps, seeds).
    """
    step = jax.vmap(make_step(objective, optimizer))

    def chunk(
        states: TrainState,
        rows: Batch,
        picks: Int[Array, "steps seeds batch"],
        weights: Float[Array, "steps seeds batch"],
        seed_keys: Array,
    ) -> tuple[TrainState, Metrics]:
        def body(states: TrainState, plan: tuple[Array, Array]) -> tuple[TrainState, Metrics]:
            picked, weights = plan
            batch = jax.tree.map(lambda field: field[picked], rows)._replace(weights=weights)
            return step(states, batch, seed_keys)

        return jax.lax.scan(body, states, (picks, weights))

    if sharding is None:
        return jax.jit(chunk, donate_argnums=0)
    seeds, picks = sharding.over("seeds"), sharding.over("steps", "seeds", "batch")
    return sharding.jit(
        chunk,
        (seeds, sharding.over(), picks, picks, seeds),
        (seeds, sharding.over("steps", "seeds")),
        donate_argnums=0,
    )
