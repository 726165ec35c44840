"""The two loops of retrieval as Pallas kernels: the search for a fixed point, and its adjoint.

One program holds the states of a tile of queries of one head in registers. All keys may not fit
into shared memory (512 keys of width 128 are 256 KB in float32), so every step reads them block by
block with a running softmax. The loop of a tile ends with its slowest query.

Triton requires sizes that are powers of two and tiles of at least 16, so arguments are padded.
Kernels take one head; `jax.vmap` over heads, texts and seeds becomes the grid. Tile sizes and warps
are untuned.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Bool, Float, Int

from hopfax.fixed_point import Stop, relative_remainder

Dot = Callable[[Array, Array], Array]

_MOST, _TINY = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)
# More queries in a tile share what is read of the keys, but wait for its slowest one.
_TILE, _BLOCK = 32, 64


class Searched(NamedTuple):
    """Read-out, final states, and the convergence of each query."""

    values: Float[Array, "queries value_width"]
    state: Float[Array, "queries width"]
    num_steps: Int[Array, " queries"]
    residual: Float[Array, " queries"]


def search(
    beta: Float[Array, ""],
    query: Float[Array, "queries width"],
    keys: Float[Array, "keys width"],
    values: Float[Array, "keys value_width"],
    visible: Bool[Array, " keys"],
    tol: Float[Array, " queries"],
    running: Bool[Array, " queries"],
    *,
    interpret: bool,
    max_steps: int,
    stop: Stop,
) -> Searched:
    """Iterates the `running` queries to their fixed points, and reads values out there.

    Rows of keys and values that are not `visible` are 0, and at least one is visible. With
    `interpret`, XLA runs the kernel in place of a GPU, on any device and slowly.
    """
    count, width = query.shape
    tile, block = min(_TILE, _power(count)), min(_BLOCK, _power(len(keys)))
    arguments = (
        beta[None],
        _padded(query.astype(jnp.float32), tile),
        *(_padded(x, block) for x in (keys, values, visible.astype(jnp.int32))),
        *(_padded(x, tile) for x in (tol, running.astype(jnp.int32))),
    )
    rows, columns = arguments[1].shape
    outputs = (
        jax.ShapeDtypeStruct((rows, arguments[3].shape[1]), values.dtype),
        jax.ShapeDtypeStruct((rows, columns), jnp.float32),
        jax.ShapeDtypeStruct((rows,), jnp.int32),
        jax.ShapeDtypeStruct((rows,), jnp.float32),
    )
    kernel = partial(_search, block=block, max_steps=max_steps, stop=stop)
    read, state, num_steps, residual = _launch(
        kernel, arguments, outputs, "wtwwwtt", tile, interpret
    )
    return Searched(
        read[:count, : values.shape[1]], state[:count, :width], num_steps[:count], residual[:count]
    )


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def solve(
    interpret: bool,
    max_steps: int,
    beta: Float[Array, ""],
    cotangent: Float[Array, "queries width"],
    weights: Float[Array, "queries keys"],
    keys: Float[Array, "keys width"],
    tol: Float[Array, " queries"],
) -> Float[Array, "queries width"]:
    r"""Sums the adjoint series $u = g + J^\top u$ of every query.

    $J = \beta K^\top (\mathrm{diag}(p) - p p^\top) K$ is symmetric, with $p$ the `weights` at each
    fixed point, 0 where a key is not visible; $g$ is the cotangent. `tol` and `max_steps` are those
    of `hopfax.fixed_point.adjoint`, and the result is $g$ where the series diverges.
    """
    count, width = cotangent.shape
    tile, block = min(_TILE, _power(count)), min(_BLOCK, _power(len(keys)))
    arguments = (
        beta[None],
        _padded(cotangent, tile),
        _padded(weights, tile, block),
        _padded(keys, block),
        _padded(tol, tile),
    )
    kernel = partial(_solve, block=block, max_steps=max_steps)
    outputs = (jax.ShapeDtypeStruct(arguments[1].shape, jnp.float32),)
    (adjoint,) = _launch(kernel, arguments, outputs, "wttwt", tile, interpret)
    return adjoint[:count, :width]


@solve.defjvp
def _solve_jvp(*_: Any) -> Any:
    raise TypeError(
        "retrieve_head has first derivatives only: for second derivatives use hopfield.attend with "
        'gradient="unrolled"'
    )


def _power(size: int) -> int:
    """The next power of two, at least 16, as tensor cores require."""
    return max(16, 1 << (size - 1).bit_length())


def _padded(x: Array, multiple: int, columns: int | None = None) -> Array:
    """Zeros up to a multiple of rows, and to a power of two (or a multiple) of columns."""
    extra = [-x.shape[0] % multiple]
    if x.ndim == 2:
        extra.append(_power(x.shape[1]) - x.shape[1] if columns is None else -x.shape[1] % columns)
    return jnp.pad(x, [(0, count) for count in extra])


def _launch(
    kernel: Callable[..., None],
    arguments: tuple[Array, ...],
    outputs: tuple[jax.ShapeDtypeStruct, ...],
    cut: str,
    tile: int,
    interpret: bool,
) -> tuple[Array, ...]:
    """Runs one program per tile; `cut` has "t" for each tiled argument and "w" for a whole one."""

    def spec(x: Any, tiled: bool) -> pl.BlockSpec:
        rest = (0,) * (x.ndim - 1)
        if tiled:
            return pl.BlockSpec((tile, *x.shape[1:]), lambda number: (number, *rest))
        return pl.BlockSpec(x.shape, lambda number: (0, *rest))

    return pl.pallas_call(
        partial(kernel, dot=_cpu_dot if interpret else _gpu_dot),
        grid=(outputs[0].shape[0] // tile,),
        in_specs=[spec(x, how == "t") for x, how in zip(arguments, cut, strict=True)],
        out_specs=[spec(x, True) for x in outputs],
        out_shape=list(outputs),
        interpret=interpret,
        # Selects Triton, which is not the default of jax 0.10.
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
    )(*arguments)


class _Search(NamedTuple):
    step: Array
    going: Array
    state: Array
    num_steps: Array
    residual: Array
    running: Array


def _search(*refs: Any, block: int, max_steps: int, stop: Stop, dot: Dot) -> None:
    beta_ref, query_ref, keys_ref, values_ref, visible_ref, tol_ref, running_ref = refs[:7]
    read_ref, state_ref, num_steps_ref, residual_ref = refs[7:]
    query, tol, running = query_ref[...], tol_ref[...], running_ref[...]
    # exp2 is one instruction of a GPU.
    attend = partial(
        _attend, beta_ref[0] * math.log2(math.e), keys_ref, visible_ref, block=block, dot=dot
    )

    def step(loop: _Search) -> _Search:
        new = attend(loop.state, keys_ref)
        change = _norm(new - loop.state)
        residual = change
        if stop == "relative":
            residual = jnp.minimum(change / jnp.maximum(_norm(loop.state), _TINY), _MOST)
        # The first step never counts as converged.
        residual = jnp.where(loop.step == 0, _MOST, residual)
        # min and max ignore nan on a GPU.
        residual = jnp.where(jnp.isfinite(change), residual, change)
        moved = loop.running > 0
        residual = jnp.where(moved, residual, loop.residual)
        running = (moved & (residual > tol) & jnp.isfinite(residual)).astype(jnp.int32)
        return _Search(
            loop.step + 1,
            jnp.max(running),
            jnp.where(moved[:, None], new, loop.state),
            loop.num_steps + loop.running,
            residual,
            running,
        )

    final = jax.lax.while_loop(
        lambda loop: (loop.going > 0) & (loop.step < max_steps),
        step,
        _Search(
            jnp.int32(0),
            jnp.max(running),
            query,
            jnp.zeros(tol.shape, jnp.int32),
            jnp.full(tol.shape, jnp.inf, jnp.float32),
            running,
        ),
    )
    read_ref[...] = attend(final.state, values_ref).astype(read_ref.dtype)
    state_ref[...] = final.state
    num_steps_ref[...] = final.num_steps
    residual_ref[...] = final.residual


def _attend(
    scale: Array,
    keys_ref: Any,
    visible_ref: Any,
    state: Array,
    rows_ref: Any,
    *,
    block: int,
    dot: Dot,
) -> Array:
    """Mean of the rows (keys, or values) by the softmax of the keys' scores, to the base 2."""

    def add(number: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        top, total, mean = carry
        rows_of_block = pl.ds(number * block, block)
        keys = keys_ref[rows_of_block, :]
        rows = keys if rows_ref is keys_ref else rows_ref[rows_of_block, :]
        # In a block without a visible key the others have weight. Their rows are 0, and the first
        # visible key shrinks their part of the total to 0.
        logits = jnp.where(visible_ref[rows_of_block][None] > 0, scale * dot(state, keys.T), -_MOST)
        following = jnp.maximum(top, jnp.max(logits, axis=1))
        shrink = jnp.exp2(top - following)
        weights = jnp.exp2(logits - following[:, None])
        total = shrink * total + jnp.sum(weights, axis=1)
        return following, total, shrink[:, None] * mean + dot(weights, rows)

    queries, width = state.shape[0], rows_ref.shape[1]
    start = (
        jnp.full((queries,), -_MOST, jnp.float32),
        jnp.zeros((queries,), jnp.float32),
        jnp.zeros((queries, width), jnp.float32),
    )
    _, total, mean = jax.lax.fori_loop(0, keys_ref.shape[0] // block, add, start)
    return mean / total[:, None]


class _Solve(NamedTuple):
    step: Array
    going: Array
    term: Array
    total: Array
    size: Array
    residual: Array
    running: Array


def _solve(*refs: Any, block: int, max_steps: int, dot: Dot) -> None:
    beta_ref, cotangent_ref, weights_ref, keys_ref, tol_ref, adjoint_ref = refs
    beta, cotangent, tol = beta_ref[0], cotangent_ref[...], tol_ref[...]
    count = keys_ref.shape[0] // block
    size = jnp.max(jnp.abs(cotangent), axis=1)
    size = jnp.where(size > 0, size, 1)[:, None]
    first = cotangent / size
    first_norm = _norm(first)

    def add_mean(number: Array, mean: Array) -> Array:
        rows_of_block = pl.ds(number * block, block)
        return mean + dot(weights_ref[:, rows_of_block], keys_ref[rows_of_block, :])

    mean = jax.lax.fori_loop(0, count, add_mean, jnp.zeros(first.shape, jnp.float32))

    def pull(u: Array) -> Array:
        def add(number: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            along, total = carry
            rows_of_block = pl.ds(number * block, block)
            keys = keys_ref[rows_of_block, :]
            part = weights_ref[:, rows_of_block] * dot(u, keys.T)
            return along + dot(part, keys), total + jnp.sum(part, axis=1)

        start = (jnp.zeros(u.shape, jnp.float32), jnp.zeros(tol.shape, jnp.float32))
        along, total = jax.lax.fori_loop(0, count, add, start)
        return beta * (along - total[:, None] * mean)

    def step(loop: _Solve) -> _Solve:
        active = loop.running > 0
        term = pull(loop.term)
        total = loop.total + jnp.where(active[:, None], term, 0)
        size = jnp.where(active, _norm(term), loop.size)
        residual = relative_remainder(size, loop.size, _norm(total))
        # As in `adjoint`: the first ratio says nothing of the decay.
        unknown = (loop.step == 0) & (size > 0)
        residual = jnp.where(unknown, jnp.maximum(residual, 1), residual)
        residual = jnp.where(active, residual, loop.residual)
        running = (active & (residual > tol) & jnp.isfinite(residual)).astype(jnp.int32)
        return _Solve(loop.step + 1, jnp.max(running), term, total, size, residual, running)

    # A zero cotangent, such as padding's, has no series.
    running = (first_norm > 0).astype(jnp.int32)
    final = jax.lax.while_loop(
        lambda loop: (loop.going > 0) & (loop.step < max_steps),
        step,
        _Solve(
            jnp.int32(0),
            jnp.max(running),
            first,
            first,
            first_norm,
            jnp.zeros(tol.shape, jnp.float32),
            running,
        ),
    )
    solved = (final.residual <= tol) | (final.residual < _MOST)
    solved &= jnp.isfinite(final.residual)
    adjoint_ref[...] = jnp.where(solved[:, None], final.total * size, cotangent_ref[...])


def _norm(rows: Array) -> Array:
    # Unit scale: the squares of a row of 1e-25 would vanish.
    size = jnp.max(jnp.abs(rows), axis=1)
    size = jnp.where(size > 0, size, 1)
    return size * jnp.sqrt(jnp.sum(jnp.square(rows / size[:, None]), axis=1))


def _cpu_dot(a: Array, b: Array) -> Array:
    return jnp.dot(a, b.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)


def _gpu_dot(a: Array, b: Array) -> Array:
    """Product at float32's precision on tensor cores; `a` is in float32, `b` may be in bfloat16.

    Rounded to 8 or 11 bits, as these cores do, states would never converge.
    """
    if b.dtype == jnp.float32:
        return jnp.dot(a, b, precision=jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3)
    # Three bfloat16 numbers of 8 bits hold the 24 of a float32.
    total = jnp.zeros((a.shape[0], b.shape[1]), jnp.float32)
    for _ in range(3):
        part = a.astype(jnp.bfloat16)
        total += jnp.dot(part, b, preferred_element_type=jnp.float32)
        a = a - part.astype(jnp.float32)
    return total
