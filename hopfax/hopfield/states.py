"""Retrieval of scores through the states behind them: less work from 2d patterns on."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from hopfax.fixed_point import FixedPoint, Stop, fixed_point
from hopfax.hopfield.retrieval import Beta, check_beta, update


def search_states(
    query: Float[Array, " width"],
    patterns: Float[Array, "patterns width"],
    *,
    beta: Beta,
    mask: Bool[Array, " patterns"] | None = None,
    tol: float | Float[Array, ""] = 1e-4,
    max_steps: int = 50,
    stop: Stop = "relative",
) -> FixedPoint:
    """The search of `retrieve_scores`, states in place of scores, without a gradient.

    The rule of stopping is the one there, which `retrieve` does not have: the first step, which
    leaves the query, is never taken for the last (unless `tol` is infinite).

    Args:
        query: Where to start.
        patterns: Stored patterns, one a row.
        beta: The whole inverse temperature, > 0.
        mask: True where a pattern is real; None takes all.
        tol: Stop when a step changes the state by at most this.
        max_steps: Most updates, at least 1.
        stop: `"relative"` or `"absolute"` change of the state.

    Returns:
        A `FixedPoint` whose value is the state, in float32 at least; a constant to derivatives.

    Raises:
        ValueError: As `retrieve`.
    """
    check_beta(beta)
    # In bfloat16 no change would ever be as small as the tolerance.
    dtype = jnp.result_type(query, patterns, jnp.float32)
    start, patterns, beta = jax.lax.stop_gradient(
        (jnp.asarray(query, dtype), jnp.asarray(patterns, dtype), jnp.asarray(beta, dtype))
    )
    return fixed_point(
        _leave,
        (patterns, beta, mask),
        start,
        tol=tol,
        max_steps=max_steps,
        stop=partial(_size_past_query, stop),
        has_aux=True,
    )


def _leave(params: tuple[Array, Array, Array | None], state: Array) -> tuple[Array, Array]:
    """An update, and beside it that this is no longer the query: beside that one stands False."""
    patterns, beta, mask = params
    return update(state, patterns, beta=beta, mask=mask), jnp.ones((), bool)


def _size_past_query(stop: Stop, new: tuple[Array, Array], old: tuple[Array, Array]) -> Array:
    change = size = jnp.sqrt(jnp.sum(jnp.square(new[0] - old[0])))
    limits = jnp.finfo(change.dtype)
    if stop == "relative":
        norm = jnp.sqrt(jnp.sum(jnp.square(old[0])))
        size = jnp.minimum(change / jnp.maximum(norm, limits.tiny), limits.max)
    # A query need not be a mean of patterns: leaving it is a change beyond measure.
    return jnp.where(jnp.isfinite(change), jnp.where(old[1], size, limits.max), change)
