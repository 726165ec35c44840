"""Fixed-point iteration with implicit or unrolled gradients."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from hopfax.checks import check_count, check_range, check_shapes, is_traced, real_type

Gradient = Literal["implicit", "unrolled"]
Stop = Literal["relative", "absolute"]
Map = Callable[[PyTree, PyTree], PyTree]
Measure = Callable[[PyTree, PyTree], Array]


class FixedPoint(NamedTuple):
    """The result of an iteration, and whether it converged.

    Attributes:
        value: The last iterate, a pytree like the initial state.
        num_steps: Applications of the map; 0 only if the initial state is not finite.
        residual: Size of the last change, in float32 or wider; the largest finite number before
            `min_steps` or without a step.
        converged: Whether `residual <= tol`; False if the initial state or the residual is not
            finite.
    """

    value: Any
    num_steps: Int[Array, ""]
    residual: Float[Array, ""]
    converged: Bool[Array, ""]


class _Loop(NamedTuple):
    value: PyTree
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
    min_steps: int = 1,
    adjoint_max_steps: int = 1000,
) -> FixedPoint:
    r"""Iterates $x \leftarrow f(\theta, x)$ until convergence.

    All of `init` is one state with one stop rule. Under `jax.vmap`, states stop independently, each
    with its own number of steps.

    Outside `jax.jit`, the loop runs in Python and calls `fn` once a step: jit `fn` to compile it.
    Under `jax.vmap` outside `jax.jit`, every call compiles the loop.

    Args:
        fn: The map, called as `fn(params, x)` and returning a pytree like `x`. It must not close
            over traced arrays; pass them in `params`.
        params: Parameters of `fn`, a pytree.
        init: Initial state, a pytree of floating arrays of any shape.
        tol: Stop when the change is at most this, >= 0. May be traced; `inf` stops after one step.
        max_steps: Maximum number of applications of `fn`, at least 1.
        gradient: `"implicit"` or `"unrolled"`, see Differentiation.
        stop: `"relative"`, $\|x' - x\| \le tol \|x\|$, or `"absolute"`, $\|x' - x\| \le tol$.
            Use `"absolute"` for iterations that converge to the origin. A function
            `stop(new, old)` returns the size of the change, nan if an iterate is not finite.
        min_steps: Steps before this one never count as converged, unless `tol` is infinite; at
            least 1.
        adjoint_max_steps: Maximum number of terms of the implicit gradient's series, at least 1. A
            contraction by $q$ per step needs $\log(tol) / \log(q)$ terms. Under `vmap`, the slowest
            state determines the number of terms.

    Returns:
        A `FixedPoint`. A state that is not finite ends the loop at once.

    Raises:
        TypeError: If `init` is not floating, a number of steps is not an integer, or the implicit
            gradient is differentiated in forward mode or a second time.
        ValueError: If a number of steps is below 1, `tol` is not one number >= 0, or `gradient` or
            `stop` is not an allowed value.

    Differentiation:
        `"implicit"` solves for the adjoint with `adjoint`, then applies one VJP of `fn` at the
        fixed point (implicit function theorem); memory does not grow with the number of steps. The
        gradient with respect to `init` is zero: within a basin of attraction, the fixed point does
        not depend on the initial state. Only first derivatives in reverse mode are supported. A
        value that is not finite makes the gradient nan, even if `converged` masks it out.
        `"unrolled"` differentiates the iterates themselves through a scan of `max_steps` steps in
        which finished states stay constant; memory grows with `max_steps`. It supports derivatives
        of all orders and modes. Without differentiation, the loop ends at convergence.
        With `max_steps=1`, the result is one step and not a fixed point, so both settings
        differentiate that step.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from hopfax.fixed_point import fixed_point
        >>> def solution(p):
        ...     return fixed_point(lambda p, x: p * x + 1, p, jnp.zeros(()), tol=1e-6).value
        >>> value, slope = jax.value_and_grad(solution)(0.5)
        >>> round(float(value), 3), round(float(slope), 3)  # 1 / (1 - p), 1 / (1 - p)^2
        (2.0, 4.0)
    """
    name = "relative" if callable(stop) else stop
    check_stopping(tol, max_steps, adjoint_max_steps, stop=name, gradient=gradient)
    check_count(1, min_steps=min_steps)
    check_shapes(tol=(tol, ""))
    init = jax.tree.map(jnp.asarray, init)
    for leaf in jax.tree.leaves(init):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(f"init must be floating, got {leaf.dtype}")
    tol = jnp.asarray(tol, _wide(init))

    measure = stop if callable(stop) else partial(_change, stop)
    loop = (fn, measure, max_steps, min_steps)
    if effective_gradient(gradient, max_steps) == "unrolled":
        return _unrolled(*loop, params, init, tol)
    result = _iterate(*loop, *jax.lax.stop_gradient((params, init, tol)))
    series = {"tol": relative_tol(tol, stop), "max_steps": adjoint_max_steps}
    return result._replace(value=at_fixed_point(fn, params, result.value, **series))


def at_fixed_point(
    fn: Map,
    params: PyTree,
    value: PyTree[Float[Array, "..."]],
    *,
    tol: float | Float[Array, ""] = 1e-4,
    max_steps: int = 1000,
) -> PyTree:
    """Returns `value`, a fixed point of `fn`, with the implicit gradient of `fixed_point`.

    Gradients flow to `params` only. For `tol` and `max_steps` see `adjoint`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from hopfax.fixed_point import at_fixed_point
        >>> half = lambda p, x: 0.5 * x + p  # its fixed point is 2 p
        >>> slope = jax.grad(lambda p: at_fixed_point(half, p, 2 * jax.lax.stop_gradient(p)))(3.0)
        >>> round(float(slope), 3)
        2.0
    """
    # Outside the custom rule, so that under `vmap` gradients of shared parameters are summed early;
    # inside, each query would keep its own copy.
    image = fn(params, jax.lax.stop_gradient(value))
    return _solve(fn, max_steps, image, value, params, jnp.asarray(tol, _wide(value)))


def relative_tol(tol: Float[Array, "..."], stop: Stop | Measure) -> Float[Array, "..."]:
    """Returns the relative tolerance of the adjoint series.

    An absolute `tol`, which has the unit of the state, is capped at 1e-4; `inf` stays `inf`.
    """
    if stop == "relative":
        return tol
    return jnp.where(jnp.isinf(tol), tol, jnp.minimum(tol, 1e-4))


def check_stopping(
    tol: Any,
    max_steps: int,
    adjoint_max_steps: int,
    *,
    stop: Stop,
    gradient: Gradient,
    least: int = 1,
) -> None:
    """Raises a TypeError or ValueError if an option of the loop is wrong."""
    check_count(least, max_steps=max_steps)
    check_count(1, adjoint_max_steps=adjoint_max_steps)
    check_range(0, tol=tol)
    if stop not in ("relative", "absolute"):
        raise ValueError(f'stop must be "relative" or "absolute", got {stop!r}')
    if gradient not in ("implicit", "unrolled"):
        raise ValueError(f'gradient must be "implicit" or "unrolled", got {gradient!r}')


def effective_gradient(gradient: Gradient, max_steps: int) -> Gradient:
    """Returns `"unrolled"` for a single step, which is not a fixed point, else `gradient`."""
    return "unrolled" if max_steps == 1 else gradient


def zero_of(arrays: PyTree) -> Int[Array, ""]:
    """Returns a zero that varies over the mesh and `vmap` axes of all arrays, at no cost.

    The initial carry of a loop must vary over the same axes as its results, under `jax.shard_map`
    and where a mesh has explicit axes.
    """
    leaves = map(jnp.asarray, jax.tree.leaves(jax.lax.stop_gradient(arrays)))
    leaves = [leaf for leaf in leaves if not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)]
    zeros = (0 * jnp.any(leaf.astype(bool)).astype(jnp.int32) for leaf in leaves)
    return sum(zeros, jnp.zeros((), jnp.int32))


def _norm(x: PyTree) -> Array:
    wide = _wide(x)
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf.astype(wide))) for leaf in jax.tree.leaves(x)))


def _largest(x: PyTree) -> Array:
    return jnp.max(jnp.stack([jnp.max(jnp.abs(leaf), initial=0) for leaf in jax.tree.leaves(x)]))


def _wide(x: PyTree) -> Any:
    return real_type(*jax.tree.leaves(x))


def _compile_eager(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Jits a function where nothing is traced; explicit meshes forbid more jit inside `vmap`."""
    jitted = jax.jit(fn, **options)
    return lambda *args: (fn if is_traced(args) else jitted)(*args)


@partial(_compile_eager, static_argnums=0)
def _change(stop: Stop, new: PyTree, old: PyTree) -> Array:
    # Unit scale, as in the adjoint: the squares of a state of size 1e-25 would underflow.
    size = _largest((new, old))
    size = jnp.where((size > 0) & jnp.isfinite(size), size, 1)
    new, old = jax.tree.map(lambda x: x / size, (new, old))
    change = _norm(jax.tree.map(jnp.subtract, new, old))
    return change * size if stop == "absolute" else relative_change(change, _norm(old))


def relative_change(change: Array, norm: Array) -> Array:
    """Returns change / norm, capped at the largest finite number."""
    limits = jnp.finfo(change.dtype)
    residual = change / jnp.maximum(norm, limits.tiny)
    return jnp.where(jnp.isfinite(change), jnp.minimum(residual, limits.max), change)


def _kinds(tree: PyTree) -> Any:
    return jax.tree.map(lambda x: f"{jnp.result_type(x)}{list(jnp.shape(x))}", tree)


@_compile_eager
def _start(params: list[Array], init: PyTree, tol: Array) -> tuple[Array, Array, Array]:
    """Returns the number of steps, the residual, and whether to take a step, before the first."""
    zero = zero_of((params, init, tol))
    leaves = [x for x in jax.tree.leaves(init) if jnp.issubdtype(x.dtype, jnp.floating)]
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in leaves]))
    most = jnp.asarray(jnp.finfo(_wide(init)).max)
    return zero, most + zero.astype(most.dtype), finite & (zero == 0)


@_compile_eager
def _judge(
    change: Array, tol: Array, num_steps: Array, min_steps: int | Array
) -> tuple[Array, Array, Array]:
    """Returns the number of steps after one more, its residual, and whether to go on."""
    num_steps = num_steps + 1
    residual = change.astype(tol.dtype)
    early = (num_steps < min_steps) & jnp.isfinite(residual)
    residual = jnp.where(early, jnp.finfo(residual.dtype).max, residual)
    return num_steps, residual, (residual > tol) & jnp.isfinite(residual)


def _iterate(
    fn: Map,
    measure: Measure,
    max_steps: int,
    min_steps: int,
    params: PyTree,
    init: PyTree,
    tol: Array,
    *,
    unrolled: bool = False,
) -> FixedPoint:
    """Runs the loop of the forward pass or of the adjoint.

    `measure(new, old)` returns the size of a change. An unrolled loop can be differentiated.
    """

    def advance(loop: _Loop) -> _Loop:
        new = fn(params, loop.value)
        if (given := _kinds(new)) != allowed:
            raise TypeError(f"fn must return arrays like init, {allowed}, got {given}")
        change = measure(*jax.lax.stop_gradient((new, loop.value)))
        return _Loop(new, *_judge(change, tol, loop.num_steps, min_steps))

    def advance_running(loop: _Loop, _: None) -> tuple[_Loop, None]:
        keep = partial(jnp.where, loop.running & (loop.num_steps < max_steps))
        return jax.tree.map(keep, advance(loop), loop), None

    allowed, tol = _kinds(init), jax.lax.stop_gradient(tol)
    start = _start(*jax.lax.stop_gradient((jax.tree.leaves(params), init, tol)))
    loop = _Loop(jax.tree.map(lambda x: x + start[0].astype(x.dtype), init), *start)
    if not is_traced(loop.running) and not loop.running:  # its gradient is nan, as under jit
        loop, _ = advance_running(loop, None)
    for _ in range(max_steps):  # not traced, or only for derivatives
        if is_traced(loop.running) or not loop.running:
            break
        loop = advance(loop)
    if is_traced(loop.running):
        if max_steps == 1:  # XLA fuses a single step, but no loop, with surrounding code
            loop, _ = advance_running(loop, None)
        elif unrolled:
            loop, _ = jax.lax.scan(advance_running, loop, length=max_steps)
        else:
            loop = jax.lax.while_loop(
                lambda loop: loop.running & (loop.num_steps < max_steps), advance, loop
            )
    converged = (loop.residual <= tol) & jnp.isfinite(loop.residual) & (loop.num_steps > 0)
    return FixedPoint(loop.value, loop.num_steps, loop.residual, converged)


# Differentiation needs a scan of fixed length; otherwise, the loop ends at convergence.
_unrolled = jax.custom_jvp(_iterate, nondiff_argnums=(0, 1, 2, 3))


@_unrolled.defjvp
def _unrolled_jvp(*arguments: Any) -> tuple[FixedPoint, FixedPoint]:
    *loop, primals, tangents = arguments
    return jax.jvp(partial(_iterate, *loop, unrolled=True), primals, tangents)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _solve(
    fn: Map, max_steps: int, image: PyTree, value: PyTree, params: PyTree, tol: Array
) -> PyTree:
    """Returns `value`; its cotangent reaches `image` as the solution of the adjoint equation."""
    return value


def _solve_forward(
    fn: Map, max_steps: int, image: PyTree, value: PyTree, params: PyTree, tol: Array
) -> tuple[PyTree, tuple[PyTree, PyTree, Array]]:
    return value, (value, params, tol)


def _solve_backward(
    fn: Map, max_steps: int, residuals: tuple[PyTree, PyTree, Array], cotangent: PyTree
) -> tuple[PyTree, None, None, None]:
    value, params, tol = residuals
    # Otherwise XLA may compute the cotangent early and hold it through the whole forward pass.
    cotangent = jax.lax.optimization_barrier(cotangent)
    return adjoint(fn, max_steps, params, value, cotangent, tol).value, None, None, None


_solve.defvjp(_solve_forward, _solve_backward)


class _Series(NamedTuple):
    term: PyTree
    total: PyTree
    size: Array
    count: Array


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def adjoint(
    fn: Map, max_steps: int, params: PyTree, value: PyTree, cotangent: PyTree, tol: float | Array
) -> FixedPoint:
    r"""Solves $u = g + J^\top u$, $J = \partial f / \partial x$, by the Neumann series.

    $$u = \sum_k (J^\top)^k g$$

    Args:
        fn: The map, as in `fixed_point`.
        max_steps: Maximum number of terms after the first, at least 1.
        params: Parameters of the map.
        value: Its fixed point.
        cotangent: $g$, a pytree like `value`.
        tol: Stop when the estimated remainder is at most this, relative to the sum. The estimate is
            $t / (1 - t / t')$ for the norms $t'$ and $t$ of the last two terms.

    Returns:
        A `FixedPoint` with value $u$, the relative remainder as `residual`, and the number of terms
        after the first as `num_steps`. Without convergence, the value is the partial sum if the
        terms still shrink (`max_steps` is too small). It is $g$ alone if they grow (a saddle, or
        not a fixed point): the gradient is then that of one application of `fn`.

    References:
        Bai, Kolter and Koltun, Deep Equilibrium Models (2019), Theorem 1; Fung et al., JFB:
        Jacobian-Free Backpropagation (2022), for $g$ alone.
    """
    _, pull = jax.vjp(partial(fn, params), value)

    def add_term(pull: Callable[[PyTree], tuple[PyTree]], series: _Series) -> _Series:
        return _add(series, *pull(series.term))

    first, unit = _scale(cotangent)
    tol = jnp.asarray(tol, _wide(cotangent))
    solution = _iterate(add_term, _remainder, max_steps, 1, pull, first, tol)
    return solution._replace(value=_sum_or_first(solution, cotangent, unit))


@_compile_eager
def _scale(cotangent: PyTree) -> tuple[_Series, Array]:
    # Unit scale: the squares of a cotangent of size 1e-20 would underflow to "no change".
    unit = _largest(cotangent)
    unit = jnp.where(unit > 0, unit, 1)
    first = jax.tree.map(lambda x: x / unit, cotangent)
    return _Series(first, first, _norm(first), zero_of(first)), unit


@_compile_eager
def _add(series: _Series, term: PyTree) -> _Series:
    total = jax.tree.map(jnp.add, series.total, term)
    return _Series(term, total, _norm(term), series.count + 1)


@_compile_eager
def _remainder(new: _Series, old: _Series) -> Array:
    limits = jnp.finfo(new.size.dtype)
    ratio, total = new.size / jnp.maximum(old.size, limits.tiny), _norm(new.total)
    left = new.size / (1 - jnp.minimum(ratio, 1)) / jnp.maximum(total, limits.tiny)
    # The largest finite number if terms do not shrink, inf for nan or if a square overflows.
    left = jnp.where(ratio < 1, jnp.minimum(left, limits.max), limits.max)
    left = jnp.where(new.size < limits.max**0.5, left, jnp.inf)
    # The first ratio does not show the decay if J^T removes most of the cotangent.
    unknown = (new.count == 1) & (new.size > 0)
    return jnp.where(unknown, jnp.maximum(left, 1), left)


@_compile_eager
def _sum_or_first(solution: FixedPoint, cotangent: PyTree, unit: Array) -> PyTree:
    # The first term alone if the series is not finite or still grows.
    most = jnp.finfo(solution.residual.dtype).max
    diverges = ~solution.converged & ~(solution.residual < most)
    return jax.tree.map(
        lambda total, g: jnp.where(diverges, g, total * unit), solution.value.total, cotangent
    )


@adjoint.defjvp
def _adjoint_jvp(*_: Any) -> Any:
    raise TypeError(
        'gradient="implicit" has first derivatives only: for second derivatives (hessian, grad of '
        'grad) use gradient="unrolled"'
    )
