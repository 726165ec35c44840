"""The loop on maps that have nothing to do with Hopfield networks."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from hopfax.fixed_point import adjoint, fixed_point

BOTH = pytest.mark.parametrize("gradient", ["implicit", "unrolled"])


def facts(found):
    return int(found.num_steps), bool(found.converged)


def affine(params, x):
    matrix, offset = params
    return matrix @ x + offset


def squashed(params, x):
    """Contractive, with a Jacobian that is not symmetric."""
    matrix, offset = params
    return jnp.tanh(matrix @ x + offset)


def asymmetric_problem(scale=0.35, width=4):
    rng = np.random.default_rng(3)
    matrix = scale * rng.normal(size=(width, width))
    assert np.abs(matrix - matrix.T).max() > 0.1
    return jnp.asarray(matrix), jnp.asarray(rng.normal(size=width))


@BOTH
def test_counts_follow_from_the_contraction(gradient):
    # x' = x/2 from 1: the change of step k is 2**-k, relative to x it is 1/2 for ever.
    run = partial(fixed_point, lambda p, x: p * x, jnp.float32(0.5), max_steps=30)
    found = run(jnp.ones(1), tol=1e-3, stop="absolute", gradient=gradient)
    assert facts(found) == (10, True)
    assert float(found.residual) == float(found.value[0]) == 2.0**-10
    for size in (1e-25, 1.0, 1e25):
        found = run(jnp.full(3, size), tol=1e-3, stop="relative", gradient=gradient)
        assert facts(found) == (30, False)
        np.testing.assert_allclose(found.residual, 0.5, rtol=1e-5)
    traced = jax.jit(lambda tol: run(jnp.ones(2), tol=tol, gradient=gradient))
    assert (facts(traced(jnp.inf)), facts(traced(1e-3))) == ((1, True), (30, False))
    still = fixed_point(lambda p, x: x, 0.0, jnp.ones(1), tol=0, gradient=gradient)
    assert facts(still) == (1, True)


@BOTH
def test_an_early_step_never_counts_as_converged(gradient):
    run = partial(fixed_point, affine, (0.5 * jnp.eye(3), jnp.ones(3)), jnp.full(3, 2.0))
    assert facts(run(min_steps=4, gradient=gradient)) == (4, True)
    assert facts(run(min_steps=4, max_steps=3, gradient=gradient)) == (3, False)
    assert facts(run(min_steps=4, tol=jnp.inf, gradient=gradient)) == (1, True)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@BOTH
def test_what_is_not_finite_stops_at_once(bad, gradient):
    params = (0.5 * jnp.eye(2), jnp.ones(2))
    found = fixed_point(affine, params, jnp.array([1.0, bad]), gradient=gradient)
    assert facts(found) == (0, False)
    found = fixed_point(affine, (params[0], jnp.array([1.0, bad])), jnp.ones(2), gradient=gradient)
    assert facts(found) == (1, False)
    assert not np.isfinite(found.residual)


@pytest.mark.parametrize("fn", [affine, squashed])
def test_gradient_three_ways(x64, fn):
    def objective(matrix, offset, gradient="implicit"):
        options = {"tol": 1e-13, "max_steps": 300, "gradient": gradient}
        value = fixed_point(fn, (matrix, offset), jnp.zeros(4), **options).value
        return jnp.vdot(jnp.arange(1.0, 5.0), jnp.sin(value))

    slopes = jax.jit(jax.grad(objective, argnums=(0, 1)), static_argnames="gradient")
    evaluate, (matrix, offset) = jax.jit(objective), asymmetric_problem()
    numeric = (
        oracles.central_difference(lambda m: evaluate(m, offset), matrix),
        oracles.central_difference(lambda b: evaluate(matrix, b), offset),
    )
    implicit, unrolled = (slopes(matrix, offset, gradient=g) for g in ("implicit", "unrolled"))
    for slope, same, measured in zip(implicit, unrolled, numeric, strict=True):
        assert np.abs(slope).max() > 0.1
        np.testing.assert_allclose(slope, same, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(slope, measured, rtol=1e-6, atol=1e-8)


@BOTH
def test_states_may_be_trees_with_a_measure_of_their_own(x64, gradient):
    params, start = asymmetric_problem(), jnp.ones(4)

    def halves(params, state):
        x = affine(params, jnp.concatenate([state["a"], state["b"]]))
        return {"a": x[:1], "b": x[1:]}

    def value(params, fn, init, stop):
        options = {"stop": stop, "tol": 1e-12, "max_steps": 300, "gradient": gradient}
        found = fixed_point(fn, params, init, **options)
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(found.value)), found.num_steps

    def distance(new, old):
        return jnp.hypot(*[jnp.linalg.norm(new[name] - old[name]) for name in ("a", "b")])

    evaluate = jax.value_and_grad(value, has_aux=True)
    wanted = evaluate(params, affine, start, "absolute")
    for stop in ("absolute", distance):
        got = evaluate(params, halves, {"a": start[:1], "b": start[1:]}, stop)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12), got, wanted)


def test_the_start_gets_no_implicit_gradient_but_an_unrolled_one():
    run = partial(fixed_point, affine, (0.5 * jnp.eye(2), jnp.ones(2)), max_steps=3)
    for gradient, expected in (("implicit", 0), ("unrolled", 0.125)):
        slope = jax.grad(lambda init, how=gradient: run(init, gradient=how).value.sum())
        np.testing.assert_allclose(slope(jnp.ones(2)), expected)


def exact_adjoint(matrix, cotangent):
    return np.linalg.solve(np.eye(len(matrix)) - matrix.T, cotangent)


@pytest.mark.parametrize("coupling", [40.0, 1e4])
def test_terms_may_grow_before_they_shrink(coupling):
    """The Jacobian of a stable map that is far from symmetric."""
    matrix = jnp.array([[0.5, coupling], [0.0, 0.5]])
    for cotangent in np.eye(2, dtype=np.float32):
        solved = adjoint(jnp.matmul, 1000, matrix, jnp.zeros(2), jnp.asarray(cotangent), 1e-4)
        assert solved.converged
        np.testing.assert_allclose(solved.value, exact_adjoint(matrix, cotangent), rtol=1e-3)
    run = partial(fixed_point, affine, init=jnp.zeros(2), tol=1e-6, max_steps=80)
    got = jax.jacrev(lambda offset: run((matrix, offset)).value)(jnp.ones(2))
    np.testing.assert_allclose(got, [[2, 4 * coupling], [0, 2]], rtol=1e-4, atol=1e-4)


def test_one_short_term_is_not_convergence():
    """The map's transpose removes most of this cotangent at once, and then decays slowly."""
    matrix, cotangent = jnp.diag(jnp.array([0.99, 0.0])), jnp.array([1e-4, 1.0])
    solved = adjoint(jnp.matmul, 1000, matrix, jnp.zeros(2), cotangent, 1e-4)
    assert solved.converged and solved.num_steps > 1
    np.testing.assert_allclose(solved.value, exact_adjoint(matrix, cotangent), rtol=0.02)


def test_the_adjoint_reports_what_it_could_not_solve():
    def run(factor, cotangent=(1.0, 3.0), max_steps=1000):
        fn = lambda p, x: p * x  # noqa: E731
        return adjoint(fn, max_steps, factor, jnp.zeros(2), jnp.array(cotangent), 1e-4)

    solved = run(0.99)
    # The remainder of a slow series is estimated, not its last term.
    assert solved.converged and int(solved.num_steps) > np.log(1e-4) / np.log(0.99)
    np.testing.assert_allclose(solved.value, [100, 300], rtol=2e-4)
    slow = run(0.99, max_steps=50)
    assert facts(slow) == (50, False)
    np.testing.assert_allclose(slow.value, 39.9 * np.array([1, 3]), rtol=1e-2)
    np.testing.assert_allclose(slow.residual, 0.99**50 / (1 - 0.99**51), rtol=1e-2)
    for factor in (1.0, 1.3, 1e3, np.inf, np.nan):
        diverging = run(factor)
        assert not diverging.converged
        assert diverging.value.tolist() == [1.0, 3.0], "the cotangent alone"
    assert not run(0.5, cotangent=(1.0, np.nan)).converged


def test_gradient_is_linear_in_the_cotangent_at_any_scale():
    run = partial(fixed_point, affine, init=jnp.zeros(2), tol=1e-6, max_steps=80)
    params = (jnp.array([[0.5, 0.2], [0.0, 0.4]]), jnp.ones(2))
    slope = partial(jax.grad(lambda p, scale: scale * run(p).value.sum()), params)
    for scale in (1e-25, 1e25):
        for got, unit in zip(slope(scale), slope(1.0), strict=True):
            np.testing.assert_allclose(got / scale, unit, rtol=1e-5)
    assert not np.any(slope(0.0)[0])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@BOTH
def test_dtypes_are_those_of_the_initial_state(gradient, dtype):
    params = (0.5 * jnp.eye(2, dtype=dtype), jnp.ones(2, dtype))
    found = fixed_point(affine, params, jnp.zeros(2, dtype), tol=1e-2, gradient=gradient)
    assert [leaf.dtype for leaf in found] == [dtype, jnp.int32, jnp.float32, bool]
    np.testing.assert_allclose(found.value.astype(jnp.float32), 2, rtol=0.02)
    # A stop rule may be wider than the state.
    wide = lambda new, old: jnp.linalg.norm((new - old).astype(jnp.float32))  # noqa: E731
    options = {"tol": 0.1, "stop": wide, "min_steps": 2, "gradient": gradient}
    assert facts(fixed_point(affine, params, jnp.ones(2, dtype), **options)) == (4, True)


def test_norms_of_float16_states_do_not_overflow():
    start = jnp.ones(70_000, jnp.float16)  # squares sum to more than the largest float16
    found = fixed_point(lambda p, x: 0.5 * x + p, jnp.float16(1), start, tol=1e-2)
    assert found.num_steps == 6 and 0 < found.residual < 1e-2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_steps": 0}, "min_steps must be >= 1, got 0"),
        ({"tol": jnp.ones(2)}, r"tol must have shape \(\), got \(2,\)"),
        ({"adjoint_max_steps": 0}, "adjoint_max_steps must be >= 1, got 0"),
        ({"tol": np.nan}, "tol must be >= 0, got nan"),
        ({"gradient": "exact"}, '"implicit" or "unrolled", got \'exact\''),
        ({"stop": "both"}, '"relative" or "absolute", got \'both\''),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        fixed_point(lambda p, x: x, (), jnp.ones(1), **options)
    with pytest.raises(TypeError, match="init must be floating, got int32"):
        fixed_point(lambda p, x: x, (), jnp.ones(1, int))


def test_queries_side_by_side_share_one_gradient_of_their_parameters():
    """Compiled, not run: the memory of many queries is far from queries times parameters."""
    queries, width = 64, 64
    one = partial(fixed_point, lambda w, x: jnp.tanh(0.1 * w @ x))
    loss = lambda w, starts: jnp.sum(jax.vmap(one, (None, 0))(w, starts).value)  # noqa: E731
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((width, width), (queries, width))]
    planned = jax.jit(jax.grad(loss)).lower(*shapes).compile().memory_analysis()
    assert planned.temp_size_in_bytes < 4 * queries * width**2 / 4


@pytest.mark.parametrize(
    ("derivative", "expected", "message"),
    [(jax.jacfwd, 4, "forward-mode"), (jax.hessian, 16, 'use gradient="unrolled"')],
)
def test_the_implicit_gradient_has_first_reverse_derivatives_only(derivative, expected, message):
    def solution(p, gradient):
        options = {"tol": 1e-6, "max_steps": 60, "gradient": gradient}
        return fixed_point(lambda p, x: p * x + 1, p, jnp.ones(()), **options).value

    unrolled = derivative(partial(solution, gradient="unrolled"))(0.5)
    np.testing.assert_allclose(unrolled, expected, rtol=1e-3)
    with pytest.raises(TypeError, match=message):
        derivative(partial(solution, gradient="implicit"))(0.5)


@pytest.mark.parametrize("size", [1.0, 1e5])
def test_an_absolute_tolerance_says_nothing_of_the_gradient(size):
    """It is in the unit of the state: a coarse one for large states must not cut the series off."""
    stop = {"stop": "absolute", "tol": 1e-4 * size, "max_steps": 500}
    run = partial(fixed_point, lambda p, x: 0.9 * x + p, init=jnp.zeros(1), **stop)
    np.testing.assert_allclose(jax.grad(lambda p: run(p).value[0])(size), 10, rtol=2e-3)
