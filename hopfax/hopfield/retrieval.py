"""Modern Hopfield retrieval: energy, one update, and iteration to an attractor.

Functions take one query and one set of stored patterns; use `jax.vmap` for a batch. All raise the
errors of `energy`.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from hopfax.checks import (
    check_count,
    check_mask,
    check_range,
    check_shapes,
    compile_once,
    real_type,
)
from hopfax.fixed_point import FixedPoint, Gradient, Stop, fixed_point

# With TF32, the default on GPUs, iterations stall and small eigenvalues are rounding errors.
matmul = partial(jnp.matmul, precision="highest")

Scalar = Beta = float | Float[Array, ""]
Vector = Float[Array, " width"]
Patterns = Float[Array, "patterns width"]
Mask = Bool[Array, " patterns"] | None
Params = tuple[Patterns, Float[Array, ""], Mask]


class Trajectory(NamedTuple):
    """States visited by the update and their energies, including the start."""

    states: Float[Array, "steps+1 width"]
    energies: Float[Array, " steps+1"]


def _check_state(state: Any, patterns: Any, *, beta: Any, **_: Any) -> None:
    check_shapes(state=(state, "width"), patterns=(patterns, "patterns width"))
    check_shapes(beta=(beta, ""))
    check_range(0, ends="()", beta=beta)


def _check_query(query: Any, patterns: Any, *, beta: Any, **_: Any) -> None:
    check_shapes(query=(query, "width"), patterns=(patterns, "patterns width"))
    check_shapes(beta=(beta, ""))
    check_range(0, ends="()", beta=beta)


def _check_retrieval(*arrays: Any, tol: Any = 1e-4, **options: Any) -> dict[str, Any]:
    _check_query(*arrays, **options)
    check_range(0, tol=tol)
    return {"tol": tol}  # the default is traced too


@compile_once(check=_check_state)
def energy(state: Vector, patterns: Patterns, *, beta: Beta, mask: Mask = None) -> Float[Array, ""]:
    r"""Returns the energy of a state. `update` never increases it.

    $$E(\xi) = -\tfrac{1}{\beta} \log \sum_i \exp(\beta\, x_i^\top \xi)
    + \tfrac{1}{2} \xi^\top \xi$$

    Args:
        state: The state $\xi$.
        patterns: Stored patterns $x_i$, one per row.
        beta: Inverse temperature, > 0, including any $1/\sqrt d$.
        mask: True where a pattern is real; None means all.

    Returns:
        The energy, a scalar of at least float32; +inf if no pattern is real.

    Raises:
        TypeError: If `mask` is not boolean, or an array is complex.
        ValueError: If the arguments are not one state and its patterns, or `beta` is not positive
            and finite; a traced `beta` is not checked.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> state = jnp.array([1.0, 0.0])
        >>> float(hopfield.energy(state, state[None], beta=2.0))  # -1 + 1/2
        -0.5

    References:
        Robertha, Eq. 2, divided by $\beta$ and without its constant. In these units an update is
        a gradient step of size 1 for every $\beta$.
    """
    state, (patterns, beta, mask) = _prepare(state, patterns, beta, mask)
    logits, best, largest = _shift(matmul(patterns, state), beta, mask)
    weights = exponentials(logits, best)
    energy = 0.5 * jnp.sum(jnp.square(state)) - largest[0] - jnp.log(jnp.sum(weights)) / beta
    return energy if mask is None else jnp.where(jnp.any(mask), energy, jnp.inf)


@compile_once(check=_check_state)
def update(state: Vector, patterns: Patterns, *, beta: Beta, mask: Mask = None) -> Vector:
    r"""Returns the softmax-weighted mean of the patterns: one Hopfield update of a state.

    $$\xi' = X^\top \mathrm{softmax}(\beta X \xi)$$

    This is gradient descent on `energy`, whose arguments it has, with step size 1: $\xi' = \xi -
    \nabla E(\xi)$. Patterns outside the mask are ignored and get a gradient of exactly zero. If no
    pattern is real, the result is zero.

    Returns:
        The next state, in the state's dtype if it is floating. Arithmetic uses at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> patterns = jnp.array([[1.0, 0.0], [0.0, 1.0]])
        >>> hopfield.update(jnp.array([0.9, 0.1]), patterns, beta=2.0).round(2).tolist()
        [0.8299999833106995, 0.17000000178813934]

    References:
        Robertha, Eq. 4.
    """
    start, params = _prepare(state, patterns, beta, mask)
    return update_unchecked(params, start).astype(_dtype(state, start))


def update_unchecked(params: Params, state: Vector) -> Vector:
    """`update` with the patterns, beta and mask of `_prepare`."""
    patterns, beta, mask = params
    # In this order vmap gives one row of scores per state, as the softmax and the products read.
    weights, scale = boltzmann(matmul(state, patterns.T), beta, mask)
    return matmul(weights, patterns) * scale


def boltzmann(scores: Array, beta: Array, mask: Array | None) -> tuple[Array, Array]:
    """Returns Boltzmann weights and the scale that makes them the softmax over real patterns.

    Without a real pattern, the scale is 0. XLA multiplies a product by it faster than the weights.
    """
    logits, best, largest = _shift(scores, beta, mask)
    weights, scale = _normalize(logits, best)
    return weights, jnp.where(largest == _least(scores), 0, scale)


@jax.custom_jvp
def _normalize(logits: Array, best: Array) -> tuple[Array, Array]:
    """Returns weights and the reciprocal of their sum, which counts as constant.

    The weights have the derivative of the softmax, so that it is exactly 0 where one pattern has
    all the weight. Otherwise, two rounded products would cancel, and beta multiply the rest.
    """
    weights = exponentials(logits, best)
    return weights, 1 / jnp.sum(weights, axis=-1, keepdims=True)


@_normalize.defjvp
def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> Any:
    weights, scale = _normalize(*primals)
    slope = weights * tangents[0]
    slope -= weights * (scale * jnp.sum(slope, axis=-1, keepdims=True))
    return (weights, scale), (slope, jnp.zeros_like(scale))


def _least(scores: Array) -> float:
    """The score of a pattern that is not real."""
    return float(jnp.finfo(scores.dtype).min) / 2


def _shift(scores: Array, beta: Array, mask: Array | None) -> tuple[Array, Array, Array]:
    """Returns logits with maximum 0, where it is, and the largest score."""
    least = _least(scores)
    scores = scores if mask is None else jnp.where(mask, scores, least)
    fixed = jax.lax.stop_gradient(scores)
    largest = jnp.max(fixed, axis=-1, keepdims=True, initial=-jnp.inf)
    best = (fixed >= largest) & jnp.isfinite(largest)
    # Subtracted before the product: the rounding error of beta * scores can exceed 1.
    return beta * (scores - largest), best, largest


@jax.custom_jvp
def exponentials(logits: Array, best: Array) -> Array:
    """Returns exp(logits), for logits with maximum 0 at `best`.

    XLA may recompute the logits with other rounding, so that their maximum is not exactly 0.
    """
    return jnp.where(best, 1, jnp.exp(jnp.minimum(logits, 0)))


@exponentials.defjvp
def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    weights = exponentials(*primals)
    return weights, weights * tangents[0]


@compile_once("max_steps", "gradient", "stop", "adjoint_max_steps", check=_check_retrieval)
def retrieve(
    query: Vector,
    patterns: Patterns,
    *,
    beta: Beta,
    mask: Mask = None,
    tol: float | Float[Array, ""] = 1e-4,
    max_steps: int = 50,
    gradient: Gradient = "implicit",
    stop: Stop = "relative",
    adjoint_max_steps: int = 1000,
) -> FixedPoint:
    r"""Iterates `update` from a query to an attractor.

    $$\xi^{(0)} = q, \qquad \xi^{(t+1)} = X^\top \mathrm{softmax}(\beta X \xi^{(t)})$$

    Args:
        query: The initial state $q$, for instance a noisy stored pattern.
        patterns: Stored patterns, one per row.
        beta: Inverse temperature, > 0, including any $1/\sqrt d$. The result is a single pattern
            if its score exceeds the others' by several 1/beta, and otherwise a mean of several.
            For ±1 patterns of width 40, 0.5 is large; for unit vectors, 10 is.
        mask: True where a pattern is real; None means all.
        tol: Stop when a step changes the state by at most this, relative to the state's norm. The
            first step never counts as converged, unless `tol` is infinite.
        max_steps: Maximum number of updates, at least 1.
        gradient: `"implicit"` (memory does not grow with the steps) or `"unrolled"`.
        stop: `"relative"`, or the paper's `"absolute"` change (Eq. 8).
        adjoint_max_steps: Maximum number of terms of the implicit gradient's series, at least 1.

    Returns:
        A `FixedPoint` whose `value` has the query's dtype if it is floating. Arithmetic uses at
        least float32.

    Raises:
        TypeError, ValueError: As in `energy`; or an option is not as above, unless traced. The
            implicit gradient raises a TypeError in forward mode and if differentiated again.

    Differentiation:
        See `hopfax.fixed_point.fixed_point`. With `"implicit"`, the gradient with respect to the
        query is zero, since the attractor is the same for all queries in its basin. With
        `max_steps=1`, the gradient is that of `update`.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> patterns = jnp.eye(3)
        >>> attractor = hopfield.retrieve(jnp.array([0.9, 0.3, -0.2]), patterns, beta=8.0)
        >>> bool(attractor.converged), attractor.value.round(2).tolist()
        (True, [1.0, 0.0, 0.0])

    References:
        Robertha, Eqs. 7 and 8.
    """
    start, params = _prepare(query, patterns, beta, mask)
    steps: Any = {"min_steps": 2, "max_steps": max_steps, "adjoint_max_steps": adjoint_max_steps}
    stopping: Any = {"tol": tol, "stop": stop, "gradient": gradient}
    attractor = fixed_point(update_unchecked, params, start, **stopping, **steps)
    return attractor._replace(value=attractor.value.astype(_dtype(query, start)))


@compile_once("num_steps", check=_check_query)
def trajectory(
    query: Vector, patterns: Patterns, *, beta: Beta, mask: Mask = None, num_steps: int = 20
) -> Trajectory:
    """Returns the states and energies of a query and its `num_steps` >= 1 updates.

    Other arguments are those of `retrieve`; there is no early stopping.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> path = hopfield.trajectory(jnp.array([0.9, 0.3]), jnp.eye(2), beta=4.0, num_steps=5)
        >>> path.states.shape, bool((jnp.diff(path.energies) <= 0).all())
        ((6, 2), True)
    """
    check_count(1, num_steps=num_steps)
    start, params = _prepare(query, patterns, beta, mask)

    def step(state: Array, _: None) -> tuple[Array, Array]:
        following = update_unchecked(params, state)
        return following, following

    _, visited = jax.lax.scan(step, start, length=num_steps)
    states = jnp.concatenate([start[None], visited])
    patterns, beta, mask = params
    energies = jax.vmap(lambda state: energy(state, patterns, beta=beta, mask=mask))(states)
    return Trajectory(states, energies)


def _prepare(state: Array, patterns: Array, beta: Beta, mask: Array | None) -> tuple[Array, Params]:
    """Promotes arrays to at least float32, checks the mask, and zeroes padded rows."""
    state, patterns = jnp.asarray(state), jnp.asarray(patterns)
    dtype = real_type(state, patterns)
    patterns, mask = patterns.astype(dtype), check_mask(mask, patterns.shape[:1])
    if mask is not None:
        # Zero padded rows before the products, since 0 * nan is nan.
        patterns = jnp.where(mask[:, None], patterns, 0)
    return state.astype(dtype), (patterns, jnp.asarray(beta, dtype), mask)


def _dtype(argument: Array, state: Array) -> jnp.dtype:
    """Returns the argument's dtype if it is floating, else the state's."""
    dtype = jnp.asarray(argument).dtype
    return dtype if jnp.issubdtype(dtype, jnp.floating) else state.dtype
