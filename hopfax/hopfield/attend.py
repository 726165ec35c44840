r"""Hopfield attention: iterates all queries of a head, then reads out values.

Each query takes the same steps as in `hopfax.hopfield.retrieve`. An update depends on the state
$\xi$ only through its scores $s = K \xi$, which become $s' = K K^\top \mathrm{softmax}(\beta s)$.
Per query, a step costs $n^2$ multiplications on scores and $2nd$ on states, but the change of a
state is cheaper to compute. `attend` therefore iterates scores if there are at most $d$ keys and
`min_steps > 1`, and states otherwise.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from hopfax.checks import check_mask, check_range, check_shapes, real_type
from hopfax.fixed_point import (
    FixedPoint,
    Gradient,
    Stop,
    at_fixed_point,
    check_stopping,
    effective_gradient,
    fixed_point,
    relative_change,
    relative_tol,
)
from hopfax.hopfield.retrieval import (
    Beta,
    Params,
    boltzmann,
    matmul,
    update_unchecked,
)

STATIC = ("max_steps", "min_steps", "gradient", "stop", "adjoint_max_steps")


class Attention(NamedTuple):
    """Output of `attend`, with the convergence of each query.

    Attributes:
        values: Weighted means of the values, in their dtype if it is floating.
        num_steps: Updates of each query.
        residual: Size of each query's last change; the largest finite number before `min_steps`, 0
            if `max_steps` is 0.
        converged: Whether each query converged.
    """

    values: Float[Array, "queries value_width"]
    num_steps: Int[Array, " queries"]
    residual: Float[Array, " queries"]
    converged: Bool[Array, " queries"]


def attend(
    queries: Float[Array, "queries width"],
    keys: Float[Array, "keys width"],
    values: Float[Array, "keys value_width"],
    *,
    beta: Beta,
    readout_beta: Beta | None = None,
    mask: Bool[Array, " keys"] | Bool[Array, "queries keys"] | None = None,
    tol: float | Float[Array, ""] | Float[Array, " queries"] = 1e-4,
    max_steps: int = 50,
    min_steps: int = 2,
    gradient: Gradient = "implicit",
    stop: Stop = "relative",
    adjoint_max_steps: int = 1000,
) -> Attention:
    r"""Retrieves from every query, then reads the values out.

    $$\xi \leftarrow K^\top \mathrm{softmax}(\beta K \xi), \qquad
    o = V^\top \mathrm{softmax}(\beta' K \xi^*)$$

    Args:
        queries: Initial states, one per row.
        keys: Stored patterns $K$, one per row.
        values: Values, one per key.
        beta: Inverse temperature, > 0, including any $1/\sqrt d$.
        readout_beta: Inverse temperature of the read-out, $\beta'$ > 0; default: `beta`.
        mask: True where a key is real or, per query, where it may see a key; None means all. Keys
            that no query may see are ignored and get a gradient of exactly zero; a key that is not
            finite affects all queries, even if only one may see it. The result is zero without
            keys.
        tol: See `hopfax.hopfield.retrieve`; one number or one per query.
        max_steps: Maximum number of updates; 0 is softmax attention.
        min_steps: Updates before this one never count as convergence. With 1, as in Eq. 8, `attend`
            always iterates states, since scores do not determine the size of the first change.
        gradient: `"implicit"` or `"unrolled"`.
        stop: `"relative"` or `"absolute"` change of the state.
        adjoint_max_steps: See `hopfax.hopfield.retrieve`.

    Returns:
        An `Attention`. States and scores are at least float32.

    Raises:
        TypeError, ValueError: If the shapes of queries, keys and values do not match; see also
            `hopfax.hopfield.retrieve`.

    Differentiation:
        As in `hopfax.hopfield.retrieve`: with `"implicit"`, the gradient with respect to queries is
        zero if `max_steps > 1`. The adjoint series is always in the scores. Where a
        query has not converged or the series is truncated, its sum differs from that of `retrieve`.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax import hopfield
        >>> keys, queries = jnp.eye(3), jnp.array([[0.9, 0.3, -0.2]])
        >>> attention = hopfield.attend(queries, keys, 10 * keys, beta=8.0)
        >>> attention.values.round(1).tolist(), attention.converged.tolist()
        ([[10.0, 0.0, 0.0]], [True])

    References:
        Robertha, Eqs. 4, 7 and 8, and Algorithm 2.
    """
    check_stopping(tol, max_steps, adjoint_max_steps, stop=stop, gradient=gradient, least=0)
    readout_beta = beta if readout_beta is None else readout_beta
    check_range(0, ends="()", beta=beta, readout_beta=readout_beta)
    gradient = effective_gradient(gradient, max_steps)
    options = (max_steps, min_steps, gradient, stop, adjoint_max_steps)
    return _attend(queries, keys, values, beta, readout_beta, mask, tol, *options)


# Outside jit, it is compiled once per shape.
@partial(jax.jit, static_argnames=STATIC)
def _attend(
    queries: Array,
    keys: Array,
    values: Array,
    beta: Array,
    readout_beta: Array,
    mask: Array | None,
    tol: Array,
    max_steps: int,
    min_steps: int,
    gradient: Gradient,
    stop: Stop,
    adjoint_max_steps: int,
) -> Attention:
    queries, keys, values = jnp.asarray(queries), jnp.asarray(keys), jnp.asarray(values)
    check_shapes(
        queries=(queries, "queries width"), keys=(keys, "keys width"), values=(values, "keys size")
    )
    mask = None if mask is None else jnp.asarray(mask)
    by_query = mask is not None and mask.ndim == 2
    mask = check_mask(mask, (*queries.shape[:by_query], keys.shape[0]))
    if mask is not None:
        # 0 * nan is nan: padded rows are cleared before the products.
        seen = jnp.any(mask, axis=0) if by_query else mask
        keys, values = (jnp.where(seen[:, None], rows, 0) for rows in (keys, values))
    # A product of two bfloat16 numbers is exact in float32.
    dtype = real_type(queries, keys)
    if not jnp.issubdtype(values.dtype, jnp.floating):
        values = values.astype(real_type(values, queries, keys))
    product = partial(matmul, preferred_element_type=dtype)
    check_shapes(beta=(beta, ""))
    check_shapes(readout_beta=(readout_beta, ""))
    beta, readout_beta = jnp.asarray(beta, dtype), jnp.asarray(readout_beta, dtype)
    scores = product(queries, keys.T)
    tol = jnp.asarray(tol, dtype)
    if tol.ndim:
        check_shapes(queries=(queries, "queries width"), tol=(tol, "queries"))
    count, width = keys.shape
    few_keys = isinstance(count, int) and count <= width  # it is a symbol under `jax.export`
    by_scores = max_steps > 0 and min_steps > 1 and few_keys
    if by_scores:  # together with the weights that produced them, zeros at the start
        params, start = (product(keys, keys.T), beta, mask), (scores, jnp.zeros_like(scores))
        step, change, scores_map = _step, _change_of_scores, _through_gram
    else:
        params, start = (keys.astype(dtype), beta, mask), queries.astype(dtype)
        step, change, scores_map = update_unchecked, _change_of_states, _through_states
    options = {"max_steps": max_steps, "min_steps": min_steps, "stop": partial(change, stop)}

    def search(params: Params, start: Any, tol: Array) -> FixedPoint:
        state = fixed_point(step, params, start, tol=tol, gradient=gradient, **options)
        return state._replace(
            value=state.value[0] if by_scores else matmul(state.value, params[0].T)
        )

    def attach(params: Params, scores: Array, tol: Array) -> Array:
        return at_fixed_point(scores_map, params, scores, tol=tol, max_steps=adjoint_max_steps)

    each = (None, None, 0 if by_query else None), 0, 0 if tol.ndim else None
    if max_steps == 0:
        steps = jnp.zeros(queries.shape[0], jnp.int32)
        retrieved = FixedPoint(scores, steps, jnp.zeros(queries.shape[0], dtype), steps == 0)
    elif gradient == "unrolled":
        retrieved = jax.vmap(search, each)(params, start, tol)
    else:
        retrieved = jax.vmap(search, each)(*jax.lax.stop_gradient((params, start)), tol)
        attached = jax.vmap(attach, each)(params, retrieved.value, relative_tol(tol, stop))
        retrieved = retrieved._replace(value=attached)
    weights, scale = boltzmann(retrieved.value, readout_beta, mask)
    weights = (weights * scale).astype(values.dtype)
    return Attention(jnp.matmul(weights, values), *retrieved[1:])


def _step(params: Params, state: tuple[Array, Array]) -> tuple[Array, Array]:
    gram, beta, mask = params
    weights, scale = boltzmann(state[0], beta, mask)
    # In this order vmap needs no transpose; the matrix is symmetric.
    return matmul(weights, gram) * scale, weights * scale


def _through_gram(params: Params, scores: Array) -> Array:
    return _step(params, (scores, scores))[0]


def _through_states(params: Params, scores: Array) -> Array:
    keys, beta, mask = params
    weights, scale = boltzmann(scores, beta, mask)
    return matmul(matmul(weights, keys) * scale, keys.T)


def _change_of_states(stop: Stop, new: Array, old: Array) -> Array:
    # `fixed_point` also rescales before squaring, which takes a tenth of an evaluation's time.
    return _change(stop, jnp.square(new - old), jnp.square(old))


def _change_of_scores(stop: Stop, new: tuple[Array, Array], old: tuple[Array, Array]) -> Array:
    r"""$\|\xi' - \xi\|^2 = (p' - p)^\top (s' - s)$ and $\|\xi\|^2 = p^\top s$."""
    return _change(stop, (new[1] - old[1]) * (new[0] - old[0]), old[1] * old[0])


def _change(stop: Stop, *terms: Array) -> Array:
    # XLA sums products fast on CPUs if the sum is a product, too. Rounding can take the square of a
    # tiny change below zero.
    squares = (matmul(each, jnp.ones(each.shape, each.dtype)) for each in terms)
    change, norm = (jnp.sqrt(jnp.maximum(square, 0)) for square in squares)
    return relative_change(change, norm) if stop == "relative" else change
