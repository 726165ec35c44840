"""The library's one loop to a fixed point, with a choice of gradients."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, PyTree

Gradient = Literal["implicit", "unrolled"]
Stop = Literal["relative", "absolute"]
Map = Callable[[PyTree, PyTree], PyTree]
Measure = Callable[[PyTree, PyTree], Array]

# A term of the adjoint series this many times its first one is taken as divergence.
ADJOINT_GROWTH = 10.0


class FixedPoint(NamedTuple):
    """Where an iteration ended, and how.

    Attributes:
        value: The last iterate, a tree of arrays like the start.
        num_steps: Applications of the map, 0 only for a start that was not finite.
        residual: Size of the last change, in the stop rule's measure.
        converged: Whether `residual <= tol`; False after `max_steps`, and for anything not finite.
    """

    value: Any
    num_steps: Int[Array, ""]
    residual: Float[Array, ""]
    converged: Bool[Array, ""]


class _Loop(NamedTuple):
    value: PyTree
    aux: PyTree
    num_steps: Array
    residual: Array
    running: Array


def fixed_point(
    fn: Map,
    params: PyTree,
    init: PyTree[Float[Array, "..."]],
    *,
    tol: float | Float[Array, ""] = 1e-4,
    max_steps: int = 50,
    gradient: Gradient = "implicit",
    stop: Stop | Measure = "relative",
    has_aux: bool = False,
    adjoint_tol: float | Float[Array, ""] | None = None,
) -> FixedPoint:
    r"""Iterates $x \leftarrow f(\theta, x)$ until it stands still.

    The whole of `init` is one state with one stop rule: `vmap` over states that are to stop
    one by one, and each keeps its own count of steps.

    Args:
        fn: The map, called as `fn(params, x)` and returning an array like `x`. It must not close
            over traced arrays; hand them over in `params`.
        params: Whatever `fn` needs, a pytree.
        init: Start of the iteration, a floating array of any shape or a tree of them.
        tol: Stop when the change is at most this, >= 0. May be traced; `inf` stops after one step.
        max_steps: Most applications of `fn`, at least 1.
        gradient: `"implicit"` or `"unrolled"`, see Differentiation.
        stop: `"relative"`, $\|x' - x\| \le tol \|x\|$, or `"absolute"`, $\|x' - x\| \le tol$.
            Only the second one can end an approach to the origin, where the state shrinks by
            the same factor in every step. Or a function `stop(new, old)` that returns the size
            of the change; with `has_aux` it is given pairs `(x, aux)`.
            A function must itself be nan, as those two are, where an iterate is not finite.
        has_aux: Whether `fn` returns a pair, the next iterate and something beside it that the
            measure asks for. Beside the start stand zeros.
        adjoint_tol: Relative change at which the adjoint series stops; None takes `relative_tol`.

    Returns:
        A `FixedPoint`. A start or iterate that is not finite ends the loop at once.

    Raises:
        ValueError: If `max_steps < 1`, `tol < 0`, `init` is not floating, or `gradient` or `stop`
            is not one of the names above.

    Differentiation:
        `"implicit"` solves $u = g + (\partial f/\partial x)^\top u$ at the fixed point (implicit
        function theorem) by the same loop, so memory does not grow with the number of steps.
        The gradient with respect to `init` is zero: inside a basin, the start does not move the
        fixed point. It is exact, up to `adjoint_tol`, at a stable fixed point only. Where the
        series diverges (a saddle, or a state still moving after `max_steps`) it is cut off once a
        term is ten times as large as the first, which bounds the gradient but leaves it
        approximate; so is it where a Jacobian far from symmetric makes the terms grow that much
        before they fall, and where `max_steps` terms are too few (a search that starts close needs
        fewer than they).
        Reverse mode, first order: forward mode and Hessians are errors, take the other one. A
        value that is not finite makes the gradient nan, even where `converged` masks it out.
        `"unrolled"` differentiates the iterates themselves through a scan of `max_steps` steps in
        which finished states are frozen; memory grows with `max_steps`.
    """
    check_stopping(tol=tol, max_steps=max_steps, stop="relative" if callable(stop) else stop)
    init = jax.tree.map(jnp.asarray, init)
    dtype = _dtype(init)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(
            f"a fixed point is searched among floating numbers, got a start of {dtype}"
        )
    tol = jnp.asarray(tol, dtype)
    if adjoint_tol is None:
        adjoint_tol = relative_tol(tol, stop)
    whole = fn if has_aux else lambda params, x: (fn(params, x), ())
    measure = partial(_measure, stop, has_aux)
    if gradient == "implicit":
        series = jnp.asarray(adjoint_tol, dtype)
        return _implicit(whole, max_steps, measure, params, init, tol, series)
    if gradient == "unrolled":
        return _unrolled(whole, max_steps, measure, params, init, tol)
    raise ValueError(f'gradient must be "implicit" or "unrolled", got {gradient!r}')


def at_fixed_point(
    fn: Map,
    params: PyTree,
    value: PyTree[Float[Array, "..."]],
    *,
    tol: float | Float[Array, ""] = 1e-4,
    max_steps: int = 50,
) -> PyTree:
    """A fixed point that was found by other means, with the gradient of `fixed_point`.

    Args:
        fn: The map, as in `fixed_point`, without anything beside.
        params: Of the map.
        value: Where it stands still.
        tol: Relative change at which the adjoint series stops.
        max_steps: Most terms of it, at least 1.

    Returns:
        `value`, whose cotangent reaches `params` as with `gradient="implicit"`, and nothing else.
    """
    check_stopping(tol=tol, max_steps=max_steps, stop="relative")
    tol = jnp.asarray(tol, dtype=_dtype(value))
    return _with_gradient(lambda p, x: (fn(p, x), ()), max_steps, params, value, tol)


def relative_tol(
    tol: float | Float[Array, "..."], stop: Stop | Measure
) -> float | Float[Array, "..."]:
    """A tolerance for what is compared by its relative change, as the adjoint series is.

    One in the unit of a state says nothing of a gradient: at most 1e-4 stands for it, and `inf`
    for itself.
    """
    if stop == "relative":
        return tol
    return jnp.where(jnp.isinf(tol), tol, jnp.minimum(tol, 1e-4))


def check_stopping(*, tol: Any, max_steps: int, stop: Stop) -> None:
    """Raises a ValueError unless these can end a loop, as far as known before the program runs."""
    if max_steps < 1:
        raise ValueError(f"max_steps must be at least 1, got {max_steps}")
    if stop not in ("relative", "absolute"):
        raise ValueError(f'stop must be "relative" or "absolute", got {stop!r}')
    if not isinstance(tol, Tracer) and not np.all(np.asarray(tol) >= 0):
        raise ValueError(f"tol is a size of change and must be >= 0, got {tol}")


def _norm(x: PyTree) -> Array:
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(x)))


def _dtype(x: PyTree) -> Any:
    return jnp.result_type(*jax.tree.leaves(x))


def _start(fn: Callable[[PyTree], tuple[PyTree, PyTree]], init: PyTree) -> _Loop:
    return _Loop(
        value=init,
        aux=jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(fn, init)[1]),
        num_steps=jnp.zeros((), jnp.int32),
        residual=jnp.full((), jnp.inf, _dtype(init)),
        running=jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(init)])),
    )


def _measure(stop: Stop | Measure, has_aux: bool, new: PyTree, old: PyTree) -> Array:
    if callable(stop):
        return stop(new, old) if has_aux else stop(new[0], old[0])
    return _change(new[0], old[0], stop)


def _change(new: PyTree, old: PyTree, stop: Stop) -> Array:
    # Unit scale, as in the adjoint: the squares of a state of 1e-25 would vanish.
    size = jnp.max(jnp.stack([jnp.max(jnp.abs(x), initial=0) for x in jax.tree.leaves((new, old))]))
    size = jnp.where((size > 0) & jnp.isfinite(size), size, 1)
    new, old = jax.tree.map(lambda x: x / size.astype(x.dtype), (new, old))
    change = _norm(jax.tree.map(jnp.subtract, new, old))
    if stop == "absolute":
        return change * size
    limits = jnp.finfo(change.dtype)
    residual = change / jnp.maximum(_norm(old), limits.tiny)
    # Leaving the origin is a change beyond measure, and not a failure.
    return jnp.where(jnp.isfinite(change), jnp.minimum(residual, limits.max), change)


def _advance(loop: _Loop, new: tuple[PyTree, PyTree], *, tol: Array, measure: Measure) -> _Loop:
    residual = measure(*jax.lax.stop_gradient((new, (loop.value, loop.aux))))
    residual = residual.astype(loop.residual.dtype)
    return _Loop(
        value=new[0],
        aux=new[1],
        num_steps=loop.num_steps + 1,
        residual=residual,
        running=(residual > tol) & jnp.isfinite(residual),
    )


def _finish(loop: _Loop, tol: Array) -> FixedPoint:
    converged = (loop.residual <= tol) & jnp.isfinite(loop.residual)
    return FixedPoint(loop.value, loop.num_steps, loop.residual, converged)


def _iterate(
    fn: Callable[[PyTree], tuple[PyTree, PyTree]],
    init: PyTree,
    tol: Array,
    max_steps: int,
    measure: Measure,
) -> _Loop:
    """The while loop behind both the forward pass and the adjoint."""
    return jax.lax.while_loop(
        lambda loop: loop.running & (loop.num_steps < max_steps),
        lambda loop: _advance(loop, fn(loop.value), tol=tol, measure=measure),
        _start(fn, init),
    )


def _implicit(
    fn: Map,
    max_steps: int,
    measure: Measure,
    params: PyTree,
    init: PyTree,
    tol: Array,
    adjoint_tol: Array,
) -> FixedPoint:
    """Searches without derivatives, and takes them from one more application at the end."""
    loop = cast(_Loop, _search(fn, max_steps, measure, params, init, tol))
    value = _with_gradient(fn, max_steps, params, loop.value, adjoint_tol)
    return _finish(loop._replace(value=value), tol)


def _with_gradient(fn: Map, max_steps: int, params: PyTree, value: PyTree, tol: Array) -> PyTree:
    # Outside of the custom rule, so that under `vmap` the gradient of shared parameters is summed
    # as it arises; inside, every query would hold one of its own.
    applied, _ = fn(params, jax.lax.stop_gradient(value))
    return _solved(fn, max_steps, applied, value, params, tol)


# A rule of its own, and not stop_gradient: a second derivative, which would need this one's, is an
# error then and not 0.
@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _search(
    fn: Map, max_steps: int, measure: Measure, params: PyTree, init: PyTree, tol: Array
) -> _Loop:
    return _iterate(partial(fn, params), init, tol, max_steps, measure)


def _search_forward(
    fn: Map, max_steps: int, measure: Measure, params: PyTree, init: PyTree, tol: Array
) -> tuple[_Loop, None]:
    return _search(fn, max_steps, measure, params, init, tol), None


def _search_backward(
    fn: Map, max_steps: int, measure: Measure, saved: None, cotangent: _Loop
) -> tuple[None, None, None]:
    return None, None, None


_search.defvjp(_search_forward, _search_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _solved(
    fn: Map, max_steps: int, applied: PyTree, value: PyTree, params: PyTree, tol: Array
) -> PyTree:
    """The fixed point `value`, whose cotangent reaches `applied` as the sum of the adjoint."""
    return value


def _solved_forward(
    fn: Map, max_steps: int, applied: PyTree, value: PyTree, params: PyTree, tol: Array
) -> tuple[PyTree, tuple[PyTree, PyTree, Array]]:
    return value, (value, params, tol)


def _solved_backward(
    fn: Map, max_steps: int, saved: tuple[PyTree, PyTree, Array], cotangent: PyTree
) -> tuple[PyTree, None, None, None]:
    value, params, tol = saved
    # Keeps XLA from computing the cotangent early, and holding it through the whole forward pass.
    cotangent = jax.lax.optimization_barrier(cotangent)
    _, pull, _ = jax.vjp(partial(fn, params), value, has_aux=True)
    # Unit scale: the squares of a cotangent of 1e-20 would vanish, and read as "no change".
    size = jnp.max(jnp.stack([jnp.max(jnp.abs(x), initial=0) for x in jax.tree.leaves(cotangent)]))
    size = jnp.where(size > 0, size, 1)
    first = jax.tree.map(lambda x: x / size.astype(x.dtype), cotangent)
    bound = ADJOINT_GROWTH * _norm(first)

    def add_term(u: PyTree) -> tuple[PyTree, Array]:
        following = jax.tree.map(jnp.add, first, pull(u)[0])
        change = _norm(jax.tree.map(jnp.subtract, following, u))
        within = change <= bound
        kept = jax.tree.map(lambda new, old: jnp.where(within, new, old), following, u)
        # Keeping u reads as "no change", and so ends the loop.
        return kept, jnp.where(within, change / _norm(u), 0)

    adjoint = _iterate(add_term, first, tol, max_steps, lambda new, old: new[1]).value
    return jax.tree.map(lambda x: x * size.astype(x.dtype), adjoint), None, None, None


_solved.defvjp(_solved_forward, _solved_backward)


def _unrolled(
    fn: Map, max_steps: int, measure: Measure, params: PyTree, init: PyTree, tol: Array
) -> FixedPoint:
    def body(loop: _Loop, _: None) -> tuple[_Loop, None]:
        following = _advance(loop, fn(params, loop.value), tol=tol, measure=measure)
        kept = jax.tree.map(lambda new, old: jnp.where(loop.running, new, old), following, loop)
        return kept, None

    loop, _ = jax.lax.scan(body, _start(partial(fn, params), init), length=max_steps)
    return _finish(loop, tol)
