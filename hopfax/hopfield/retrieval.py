"""Modern Hopfield retrieval: energy, one update, and iteration to an attractor.

Written for one query over one set of stored patterns; `jax.vmap` for more.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Bool, Float

from hopfax.fixed_point import (
    FixedPoint,
    Gradient,
    Stop,
    check_steps,
    check_stopping,
    fixed_point,
    real_array,
)

# Full float32: with TF32, the default on GPUs, iterations stall early or never converge.
matmul = partial(jnp.matmul, precision="highest")

Beta = float | Float[Array, ""]
Mask = Bool[Array, " patterns"] | None


class Trajectory(NamedTuple):
    """States visited by the update, and their energies, start included."""

    states: Float[Array, "steps+1 width"]
    energies: Float[Array, " steps+1"]


def energy(
    state: Float[Array, " width"],
    patterns: Float[Array, "patterns width"],
    *,
    beta: Beta,
    mask: Mask = None,
) -> Float[Array, ""]:
    r"""Returns the energy of a state, which no `update` increases.

    $$E(\xi) = -\tfrac{1}{\beta} \log \sum_i \exp(\beta\, x_i^\top \xi)
    + \tfrac{1}{2} \xi^\top \xi$$

    Args:
        state: The state $\xi$.
        patterns: Stored patterns $x_i$, one a row.
        beta: Inverse temperature, > 0, including any $1/\sqrt d$.
        mask: True where a pattern is real; None takes all.

    Returns:
        The energy, a scalar in float32 at least; +inf if no pattern is real, nan for a traced
        `beta <= 0`.

    Raises:
        TypeError: If `mask` is not boolean.
        ValueError: If `beta <= 0`, or the shapes are not those of one state and its patterns.

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
    state, patterns, beta, mask = _prepared(state, patterns, beta, mask)
    logits = _logits(matmul(patterns, state), beta, mask)
    energy = -jax.nn.logsumexp(logits) / beta + 0.5 * jnp.sum(jnp.square(state))
    return energy if mask is None else jnp.where(jnp.any(mask), energy, jnp.inf)


def update(
    state: Float[Array, " width"],
    patterns: Float[Array, "patterns width"],
    *,
    beta: Beta,
    mask: Mask = None,
) -> Float[Array, " width"]:
    r"""Moves a state to the softmax-weighted mean of the patterns.

    $$\xi' = X^\top \mathrm{softmax}(\beta X \xi)$$

    It is a step of gradient descent on `energy` with step size 1: $\xi' = \xi - \nabla E(\xi)$.

    Args:
        state: The state $\xi$.
        patterns: Stored patterns $X$, one a row.
        beta: Inverse temperature, > 0, including any $1/\sqrt d$.
        mask: True where a pattern is real; None takes all. The values of the others are ignored,
            and get a gradient of exactly zero. If none is real the result is zero.

    Returns:
        The next state, in the state's dtype if that is a floating one; inside, arithmetic is in
        float32 at least.

    Raises:
        TypeError: If `mask` is not boolean.
        ValueError: If `beta <= 0`, or the shapes are not those of one state and its patterns.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> patterns = jnp.array([[1.0, 0.0], [0.0, 1.0]])
        >>> hopfield.update(jnp.array([0.9, 0.1]), patterns, beta=2.0).round(2).tolist()
        [0.8299999833106995, 0.17000000178813934]

    References:
        Robertha, Eq. 4.
    """
    start, patterns, beta, mask = _prepared(state, patterns, beta, mask)
    return update_unchecked((patterns, beta, mask), start).astype(_kept(state, start))


def retrieve(
    query: Float[Array, " width"],
    patterns: Float[Array, "patterns width"],
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
        query: The start $q$, for instance a noisy stored pattern.
        patterns: Stored patterns, one a row.
        beta: Inverse temperature, > 0, including any $1/\sqrt d$. A single pattern is retrieved if
            its score exceeds the others' by several 1/beta, otherwise a mean of several patterns.
            For ±1 patterns of width 40, 0.5 is large; for unit vectors, 10.
        mask: True where a pattern is real; None takes all.
        tol: Stop when a step changes the state by at most this, relative to the state's norm. The
            first step, which leaves the query, never counts as converged unless `tol` is infinite.
        max_steps: Maximum number of updates, at least 1.
        gradient: `"implicit"` (memory constant in the steps) or `"unrolled"`.
        stop: `"relative"`, or the paper's `"absolute"` change (Eq. 8).
        adjoint_max_steps: Maximum number of terms of the implicit gradient's series, at least 1.

    Returns:
        A `FixedPoint` whose `value` has the query's dtype if that is a floating one. Inside,
        arithmetic is in float32 at least.

    Raises:
        TypeError: If `mask` is not boolean, or the implicit gradient is differentiated in forward
            mode or a second time.
        ValueError: If `beta <= 0`, `tol < 0`, `max_steps < 1`, `gradient` or `stop` is not one of
            the names above, or the shapes are not those of one query and its patterns.

    Differentiation:
        See `hopfax.fixed_point.fixed_point`. With `"implicit"` the query gets a zero gradient:
        it chooses the basin, not the attractor.

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
    check_stopping(tol=tol, max_steps=max_steps, stop=stop, adjoint_max_steps=adjoint_max_steps)
    start, patterns, beta, mask = _prepared(query, patterns, beta, mask, name="query")
    attractor = _settle(
        (patterns, beta, mask),
        start,
        tol=tol,
        max_steps=max_steps,
        gradient=gradient,
        stop=stop,
        adjoint_max_steps=adjoint_max_steps,
    )
    return attractor._replace(value=attractor.value.astype(_kept(query, start)))


def trajectory(
    query: Float[Array, " width"],
    patterns: Float[Array, "patterns width"],
    *,
    beta: Beta,
    mask: Mask = None,
    num_steps: int = 20,
) -> Trajectory:
    """Returns the states and energies of `num_steps` updates, without early stopping.

    Args:
        query: Where to start.
        patterns: Stored patterns, one a row.
        beta: Inverse temperature, > 0.
        mask: True where a pattern is real; None takes all.
        num_steps: Updates to make, at least 1.

    Returns:
        A `Trajectory` of `num_steps + 1` states and energies, the query's own first.

    Raises:
        TypeError: If `mask` is not boolean.
        ValueError: If `beta <= 0`, `num_steps < 1`, or the shapes are not those of one query and
            its patterns.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> path = hopfield.trajectory(jnp.array([0.9, 0.3]), jnp.eye(2), beta=4.0, num_steps=5)
        >>> path.states.shape, bool((jnp.diff(path.energies) <= 0).all())
        ((6, 2), True)
    """
    query, patterns, beta, mask = _prepared(query, patterns, beta, mask, name="query")
    check_steps("num_steps", num_steps)
    return _walk((patterns, beta, mask), query, num_steps=num_steps)


def check_beta(beta: Beta, dtype: DTypeLike) -> Float[Array, ""]:
    """Returns `beta` in a dtype; nan for a traced one that is not positive.

    Raises:
        ValueError: If it is not one positive number, as far as known before the program runs.
    """
    real_array(beta, "beta", scalar=True)
    if not isinstance(beta, Tracer):
        if not np.asarray(beta) > 0:
            raise ValueError(f"beta is an inverse temperature and must be > 0, got {beta}")
        if not 0 < np.asarray(beta, np.float64) <= float(jnp.finfo(dtype).max):
            raise ValueError(f"beta must be finite in {jnp.dtype(dtype)}, got {beta}")
    beta = jnp.asarray(beta, dtype)
    return jnp.where(beta > 0, beta, jnp.nan)


def check_mask(mask: ArrayLike | Sequence[bool] | None, shape: tuple[int, ...]) -> Array | None:
    """Returns a mask as an array.

    Args:
        mask: Booleans, an array or a list; or None.
        shape: The shape it must have.

    Raises:
        TypeError: If it does not hold booleans.
        ValueError: If it has another shape.
    """
    if mask is None:
        return None
    mask = real_array(mask, "mask")
    if mask.dtype != bool:
        raise TypeError(f"mask must be boolean, True where real, got {mask.dtype}")
    if mask.shape != shape:
        raise ValueError(f"mask must have shape {shape}, got {mask.shape}")
    return mask


def _prepared(
    state: Array, patterns: Array, beta: Beta, mask: Mask, *, name: str = "state"
) -> tuple[Array, Array, Array, Array | None]:
    """Checks the arguments, promotes them to float32 at least, and clears padded rows."""
    state, patterns = real_array(state, name), real_array(patterns, "patterns")
    if state.ndim != 1 or patterns.ndim != 2:
        raise ValueError(
            f"{name} must have shape (width,) and patterns (patterns, width), got "
            f"{state.shape} and {patterns.shape}: use jax.vmap for more"
        )
    if state.shape[0] != patterns.shape[1]:
        raise ValueError(
            f"{name} and patterns must have one width, got {state.shape[0]} and {patterns.shape[1]}"
        )
    mask = check_mask(mask, (len(patterns),))
    dtype = jnp.result_type(state, patterns, jnp.float32)
    patterns = jnp.asarray(patterns, dtype)
    if mask is not None:
        # 0 * nan is nan: padded rows are cleared before the products.
        patterns = jnp.where(mask[:, None], patterns, 0)
    return jnp.asarray(state, dtype), patterns, check_beta(beta, dtype), mask


def _kept(argument: Array, start: Array) -> jnp.dtype:
    """Results have the argument's dtype, unless it is not floating."""
    dtype = jnp.asarray(argument).dtype
    return dtype if jnp.issubdtype(dtype, jnp.floating) else start.dtype


def update_unchecked(params: tuple[Array, Array, Mask], state: Array) -> Array:
    """`update` of `(patterns, beta, mask)` that are checked already, for loops."""
    patterns, beta, mask = params
    # In this order vmap gives one row of scores per state, as softmax and the next product read.
    return matmul(softmax(matmul(state, patterns.T), beta, mask), patterns)


def softmax(scores: Array, beta: Array, mask: Array | None) -> Array:
    """Weights of the real patterns."""
    return jax.nn.softmax(_logits(scores, beta, mask))


def _logits(scores: Array, beta: Array, mask: Array | None) -> Array:
    logits = beta * scores
    # Finite, so that a fully padded set gives equal weights to zeros instead of nan.
    return logits if mask is None else jnp.where(mask, logits, jnp.finfo(logits.dtype).min)


# Compiled once per shape: outside of a jit a loop is compiled anew in every call.
_settle = jax.jit(
    partial(fixed_point, update_unchecked, min_steps=2),
    static_argnames=("max_steps", "gradient", "stop", "adjoint_max_steps"),
)


@partial(jax.jit, static_argnames="num_steps")
def _walk(params: tuple[Array, Array, Mask], start: Array, *, num_steps: int) -> Trajectory:
    def step(state: Array, _: None) -> tuple[Array, Array]:
        following = update_unchecked(params, state)
        return following, following

    _, visited = jax.lax.scan(step, start, length=num_steps)
    states = jnp.concatenate([start[None], visited])
    patterns, beta, mask = params
    energies = jax.vmap(lambda s: energy(s, patterns, beta=beta, mask=mask))(states)
    return Trajectory(states, energies)
