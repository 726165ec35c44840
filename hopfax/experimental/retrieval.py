"""Attention's retrieval as two kernels: search with read-out, and adjoint."""

from functools import partial
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from hopfax.fixed_point import Stop, check_stopping, relative_tol
from hopfax.hopfield.attend import Attention, attention_arrays
from hopfax.hopfield.retrieval import Beta, check_beta, matmul

MAX_KEYS, MAX_WIDTH = 512, 128
_DTYPES = ("float32", "bfloat16")


def retrieve_head(
    query: Float[Array, "queries width"],
    keys: Float[Array, "keys width"],
    values: Float[Array, "keys value_width"],
    *,
    beta: Beta,
    mask: Bool[Array, " keys"] | None = None,
    tol: float | Float[Array, ""] | Float[Array, " queries"] = 1e-4,
    max_steps: int = 50,
    stop: Stop = "relative",
    adjoint_max_steps: int = 1000,
) -> Attention:
    r"""Returns `hopfax.hopfield.attend` of one head, computed by a kernel for GPUs.

    $$\xi \leftarrow K^\top \mathrm{softmax}(\beta K \xi), \qquad
    o = V^\top \mathrm{softmax}(\beta K \xi^*)$$

    A tile of queries ends with its slowest. Use `jax.vmap` for heads, texts and seeds. XLA cannot
    partition a kernel: without `jax.shard_map`, every device runs it on all texts.

    Args:
        query: Starts of the queries, 1 to 512.
        keys: Stored patterns, one a row, at most 512 of width at most 128.
        values: Values, one per key, of width at most 128.
        beta: Inverse temperature, > 0, including any $1/\sqrt d$.
        mask: True where a key is real; None takes all. The others' rows are ignored and get a
            gradient of exactly zero. If none is real the result is zero.
        tol: A query stops when a step changes its state by at most this. One number, or one per
            query.
        max_steps: Maximum number of updates, at least 1.
        stop: `"relative"` or `"absolute"` change of the state.
        adjoint_max_steps: Maximum number of terms of the gradient's series, at least 1.

    Returns:
        An `Attention`. Arithmetic is in float32, products included; keys and values may be stored
        in bfloat16.

    Raises:
        AssertionError: If the arguments are not one set of queries, keys and values.
        ValueError: If a shape or dtype is beyond the limits above, or an option is out of range.

    Differentiation:
        Implicit, as in `hopfax.fixed_point`, by a second kernel; the query gets a zero gradient.
        First derivatives in reverse mode only. The series is that of the states: where a query has
        not converged or the series is cut off, its partial sum differs from `attend`'s.

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax import experimental
        >>> keys, query = jnp.eye(3), jnp.array([[0.9, 0.3, -0.2]])
        >>> attention = experimental.retrieve_head(query, keys, 10 * keys, beta=8.0)
        >>> attention.values.round(1).tolist(), attention.converged.tolist()
        ([[10.0, 0.0, 0.0]], [True])

    References:
        Robertha, Eqs. 4, 7 and 8 and Algorithm 1.
    """
    query, keys, values, mask = attention_arrays(query, keys, values, mask)
    check_stopping(tol, max_steps, adjoint_max_steps, stop=stop)
    arrays = (query, keys, values)
    counts, widths = [len(x) for x in arrays], [x.shape[1] for x in arrays]
    fits = min(counts + widths) > 0 and max(counts) <= MAX_KEYS and max(widths) <= MAX_WIDTH
    if not fits or any(x.dtype not in _DTYPES for x in arrays):
        got = ", ".join(f"{x.dtype}{list(x.shape)}" for x in arrays)
        raise ValueError(
            f"queries, keys and values must have 1 to {MAX_KEYS} rows of width 1 to {MAX_WIDTH} in "
            f"{' or '.join(_DTYPES)}, got {got}: use hopfield.attend"
        )
    visible = jnp.ones(len(keys), bool)
    if mask is not None:
        # 0 * nan is nan: padded rows are cleared before the products.
        keys, values = (jnp.where(mask[:, None], rows, 0) for rows in (keys, values))
        query = jnp.where(jnp.any(mask), query, 0)
        visible = mask | ~jnp.any(mask)
    tol = jnp.broadcast_to(jnp.asarray(tol, jnp.float32), query.shape[:1])
    how = _How(max_steps, adjoint_max_steps, stop, interpret=not _on_gpu())
    beta = check_beta(beta, jnp.float32)
    outputs = _compiled(how, beta, query, keys, values, visible, tol)
    read, _, num_steps, residual = cast(_Outputs, outputs)
    return Attention(read, num_steps, residual, (residual <= tol) & jnp.isfinite(residual))


class _How(NamedTuple):
    max_steps: int
    adjoint_max_steps: int
    stop: Stop
    interpret: bool


_Outputs = tuple[Array, Array, Array, Array]
_Saved = tuple[Array, Array, Array, Array, Array, Array, Array]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _retrieve(
    how: _How, beta: Array, query: Array, keys: Array, values: Array, visible: Array, tol: Array
) -> _Outputs:
    # Pallas takes a third of a second to import, and most programs do not need it.
    from hopfax.experimental import tiles

    running = jnp.all(jnp.isfinite(query), axis=1) & jnp.all(jnp.isfinite(keys))
    options = {"interpret": how.interpret, "max_steps": how.max_steps, "stop": how.stop}
    return tiles.search(beta, query, keys, values, visible, tol, running, **options)


def _retrieve_forward(
    how: _How, beta: Array, query: Array, keys: Array, values: Array, visible: Array, tol: Array
) -> tuple[_Outputs, _Saved]:
    outputs = cast(_Outputs, _retrieve(how, beta, query, keys, values, visible, tol))
    return outputs, (beta, query, keys, values, visible, tol, outputs[1])


def _retrieve_backward(
    how: _How, saved: _Saved, cotangents: _Outputs
) -> tuple[Array, Array, Array, Array, None, None]:
    from hopfax.experimental import tiles

    beta, query, given_keys, given_values, visible, tol, state = saved
    keys, values = given_keys.astype(jnp.float32), given_values.astype(jnp.float32)
    read, settled = cotangents[0].astype(jnp.float32), cotangents[1]
    scores = matmul(state, keys.T)
    weights = jax.nn.softmax(jnp.where(visible, beta * scores, jnp.finfo(jnp.float32).min))

    def of_scores(weights_bar: Array) -> Array:
        mean = jnp.sum(weights * weights_bar, axis=1, keepdims=True)
        return weights * (weights_bar - mean)

    weights_bar = matmul(read, values.T)
    adjoint = tiles.solve(
        how.interpret,
        how.adjoint_max_steps,
        beta,
        settled + beta * matmul(of_scores(weights_bar), keys),
        weights,
        given_keys,
        jnp.asarray(relative_tol(tol, how.stop)),
    )
    # One application of the map at the fixed point, and the read-out: both of the same weights.
    scores_bar = of_scores(weights_bar + matmul(adjoint, keys.T))
    return (
        jnp.sum(scores_bar * scores),
        jnp.zeros_like(query),
        (beta * matmul(scores_bar.T, state) + matmul(weights.T, adjoint)).astype(given_keys.dtype),
        matmul(weights.T, read).astype(given_values.dtype),
        None,
        None,
    )


_retrieve.defvjp(_retrieve_forward, _retrieve_backward)
# Once per shape: outside of a jit a kernel is compiled anew in every call.
_compiled = jax.jit(_retrieve, static_argnums=0)


def _on_gpu() -> bool:
    """Whether the default device is a GPU."""
    chosen = getattr(jax.config, "jax_default_device", None)
    name = jax.default_backend() if chosen is None else getattr(chosen, "platform", chosen)
    return name in ("gpu", "cuda")
