"""Energy, update and retrieval against the paper's equations and their limits."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from jax import export

from hopfax import hopfield

BOTH = pytest.mark.parametrize("gradient", ["implicit", "unrolled"])
FUNCTIONS = hopfield.energy, hopfield.update, hopfield.retrieve


@pytest.fixture
def patterns(rng):
    return rng.normal(size=(6, 4))


@pytest.fixture
def query(rng):
    return rng.normal(size=4)


@pytest.mark.parametrize("beta", [0.05, 1.0, 4.0])
def test_energy_and_update_are_the_papers(x64, patterns, query, beta):
    for fn, oracle in ((hopfield.energy, oracles.energy), (hopfield.update, oracles.update)):
        got = fn(query, patterns, beta=beta)
        np.testing.assert_allclose(got, oracle(query, patterns, beta), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("stop", ["relative", "absolute"])
@BOTH
@pytest.mark.parametrize("beta", [0.1, 0.8, 3.0])
def test_retrieval_is_the_papers_steps_included(x64, patterns, query, beta, stop, gradient):
    found = hopfield.retrieve(query, patterns, beta=beta, stop=stop, gradient=gradient)
    state, steps, converged = oracles.retrieve(query, patterns, beta, relative=stop == "relative")
    np.testing.assert_allclose(found.value, state, rtol=1e-10, atol=1e-12)
    assert (int(found.num_steps), bool(found.converged)) == (steps, converged)


@pytest.mark.parametrize(("dtype", "bound"), [(jnp.float32, 1e-5), (jnp.bfloat16, 2e-2)])
def test_low_precision_stays_near(patterns, query, dtype, bound):
    patterns, query = jnp.asarray(patterns, dtype), jnp.asarray(query, dtype)
    exact = np.asarray(query, np.float64), np.asarray(patterns, np.float64)
    state = hopfield.update(query, patterns, beta=1.0)
    found = hopfield.retrieve(query, patterns, beta=2.0)
    energy = hopfield.energy(query, patterns, beta=1.0)
    assert state.dtype == found.value.dtype == dtype
    # Sums and norms are never taken in 8 bits.
    assert energy.dtype == found.residual.dtype == jnp.float32
    np.testing.assert_allclose(energy, oracles.energy(*exact, 1.0), rtol=1e-5)
    np.testing.assert_allclose(state.astype(float), oracles.update(*exact, 1.0), atol=bound)
    settled, *_ = oracles.retrieve(*exact, 2.0, tol=1e-10)
    # The stop rule may leave tol / (1 - contraction) on top.
    np.testing.assert_allclose(found.value.astype(float), settled, atol=bound + 1e-3)


def test_a_tiny_beta_gives_the_mean(patterns, query):
    found = hopfield.retrieve(query, patterns, beta=1e-6)
    assert found.converged
    np.testing.assert_allclose(found.value, patterns.mean(0), atol=1e-5)


@pytest.mark.parametrize("width", [1, 16])
@pytest.mark.parametrize("beta", [1e9, 1e30])
def test_a_huge_beta_selects_the_best_pattern(rng, width, beta):
    rows, queries = (jnp.asarray(rng.normal(size=(n, width)), jnp.float32) for n in (12, 3))
    for mask in (np.ones(12, bool), np.arange(12) % 3 > 0):
        best = np.where(mask, queries @ rows.T, -np.inf).argmax(1)
        update = jax.jit(partial(hopfield.update, patterns=rows, beta=beta, mask=mask))
        step = partial(hopfield.retrieve, patterns=rows, beta=beta, mask=mask, max_steps=1)
        paths = partial(hopfield.trajectory, patterns=rows, beta=beta, mask=mask)
        for got in (jax.vmap(update)(queries), jax.vmap(step)(queries).value):
            np.testing.assert_array_equal(got, rows[best])
        assert np.isfinite(jax.vmap(paths)(queries).energies).all()
        read = hopfield.attend(queries, rows, rows, beta=beta, mask=mask, max_steps=0)
        np.testing.assert_array_equal(read.values, rows[best])


def test_a_saddle_is_a_fixed_point_too():
    # The paper's Theorem 1 promises a stationary point: this one is no minimum.
    patterns, saddle = jnp.array([[1.0, 1.0], [-1.0, 1.0]]), jnp.array([0.0, 1.0])
    found = hopfield.retrieve(saddle, patterns, beta=3.0)
    assert found.converged
    np.testing.assert_allclose(found.value, saddle, atol=1e-6)
    nearby = hopfield.retrieve(saddle.at[0].add(0.05), patterns, beta=3.0)
    np.testing.assert_allclose(nearby.value, [0.995, 1.0], atol=5e-3)


@pytest.mark.parametrize("beta", [0.1, 1.0, 10.0])
def test_energy_never_rises_along_a_trajectory(patterns, rng, beta):
    queries = 3 * rng.normal(size=(32, 4))
    run = jax.jit(jax.vmap(lambda q: hopfield.trajectory(q, patterns, beta=beta, num_steps=15)))
    paths = run(queries)
    assert paths.states.shape == (32, 16, 4)
    rise = np.diff(paths.energies, axis=1).max()
    assert rise <= 1e-5 * np.abs(paths.energies).max()
    assert (paths.energies[:, -1] < paths.energies[:, 0]).all()
    np.testing.assert_array_equal(paths.states[:, 0], queries.astype(np.float32))
    again = jax.vmap(lambda s: hopfield.update(s, patterns, beta=beta))(paths.states[:, 3])
    np.testing.assert_allclose(paths.states[:, 4], again, rtol=1e-5, atol=1e-6)


def central_differences(value, arguments):
    value = jax.jit(value)
    return [
        oracles.central_difference(lambda x, n=n: value(*arguments[:n], x, *arguments[n + 1 :]), at)
        for n, at in enumerate(arguments)
    ]


@pytest.mark.parametrize("beta", [0.1, 3.0])
def test_gradient_three_ways(x64, patterns, query, beta):
    weights = jnp.arange(1.0, 5.0)

    def value(patterns, beta, gradient="implicit"):
        options = {"gradient": gradient, "tol": 1e-13, "max_steps": 400}
        found = hopfield.retrieve(query, patterns, beta=beta, **options)
        return jnp.vdot(weights, found.value**2)

    slopes = jax.jit(jax.grad(value, argnums=(0, 1)), static_argnames="gradient")
    implicit, unrolled = (slopes(patterns, beta, gradient=g) for g in ("implicit", "unrolled"))
    numeric = central_differences(value, [patterns, beta])
    for got, same, measured in zip(implicit, unrolled, numeric, strict=True):
        assert np.abs(got).max() > 1e-2
        np.testing.assert_allclose(got, same, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(got, measured, rtol=1e-5, atol=1e-7)


def sines(fn, state, patterns, beta):
    return jnp.sum(jnp.sin(fn(state, patterns, beta=beta)))


@pytest.mark.parametrize("fn", [hopfield.energy, hopfield.update])
def test_gradients_of_one_pass_are_central_differences(x64, patterns, query, fn):
    value, arguments = partial(sines, fn), [query, patterns, np.float64(0.8)]
    gradients = jax.jit(jax.grad(value, argnums=(0, 1, 2)))(*arguments)
    for gradient, measured in zip(gradients, central_differences(value, arguments), strict=True):
        np.testing.assert_allclose(gradient, measured, rtol=1e-6, atol=1e-8)


@BOTH
def test_one_step_has_the_gradient_of_an_update(x64, patterns, query, gradient):
    """One step does not reach a fixed point, so the implicit function theorem does not apply."""

    def one_step(*arguments, beta):
        return hopfield.retrieve(*arguments, beta=beta, max_steps=1, gradient=gradient).value

    got, wanted = (
        jax.jit(jax.grad(partial(sines, fn), argnums=(0, 1, 2)))(query, patterns, 0.8)
        for fn in (one_step, hopfield.update)
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12), got, wanted)


@pytest.mark.parametrize(("steps", "wanted"), [(1000, 50), (50, 20)])
def test_the_gradient_of_a_query_that_starts_at_a_flat_minimum(steps, wanted):
    """At once at rest, but the series of the gradient shrinks by only 0.99 a term."""
    patterns, query = jnp.array([[1.0, 0.3], [-1.0, 0.3]]), jnp.array([0.0, 0.3])

    def value(p):
        found = hopfield.retrieve(query, p, beta=0.99, adjoint_max_steps=steps)
        return found.value[0], (found.num_steps, found.converged)

    slope, (num_steps, converged) = jax.grad(value, has_aux=True)(patterns)
    assert (int(num_steps), bool(converged)) == (2, True), "leaving the query is not the last step"
    # The weights' part: 1/2 each, by 1 / (1 - beta).
    np.testing.assert_allclose(slope[:, 0], wanted, rtol=5e-3)


@BOTH
def test_jit_equals_eager_vmap_equals_a_loop_and_queries_stop_independently(gradient):
    # A pattern, a query close to the ridge between two, and one that is not finite.
    patterns = jnp.array([[1.0, 1.0], [-1.0, 1.0]])
    queries = jnp.array([[1.0, 1.0], [1e-4, 1.0], [jnp.nan, 1.0]])

    def run(q):
        return hopfield.retrieve(q, patterns, beta=2.5, gradient=gradient)

    alone = [run(query) for query in queries]
    for together in (jax.vmap(run)(queries), jax.jit(jax.vmap(run))(queries)):
        fast, slow, broken = together.num_steps.tolist()
        assert 0 == broken < fast < slow - 5
        assert together.num_steps.tolist() == [int(one.num_steps) for one in alone]
        assert together.converged.tolist() == [True, True, False]
        for value, residual, one in zip(together.value, together.residual, alone[:2], strict=False):
            np.testing.assert_allclose(value, one.value, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(residual, one.residual, rtol=0.05)


@pytest.mark.parametrize("filler", [1e3, np.nan])
@pytest.mark.parametrize("fn", [*FUNCTIONS, partial(hopfield.retrieve, gradient="unrolled")])
def test_padding_changes_nothing_and_gets_no_gradient(x64, patterns, query, fn, filler):
    # Real rows first, last and in between.
    order = np.array([6, 0, 1, 7, 2, 3, 4, 8, 5])
    rows, mask = np.concatenate([patterns, np.full((3, 4), filler)])[order], order < 6

    def value(query, rows, mask=None):
        found = fn(query, rows, beta=0.8, mask=mask)
        return jnp.sum(jnp.sin(jax.tree.leaves(found)[0])), found

    evaluate = jax.jit(jax.grad(value, argnums=(0, 1), has_aux=True))
    (to_query, to_rows), found = evaluate(query, rows, mask)
    (bare_query, bare_rows), bare = evaluate(query, patterns)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9), found, bare)
    np.testing.assert_allclose(jax.tree.leaves(found)[0], jax.tree.leaves(bare)[0], rtol=1e-12)
    np.testing.assert_allclose(to_query, bare_query, rtol=1e-9)
    np.testing.assert_allclose(to_rows[mask], bare_rows, rtol=1e-9)
    assert not np.any(to_rows[~mask])


def test_nothing_but_padding(query):
    rows, mask = jnp.full((3, 4), jnp.nan), jnp.zeros(3, bool)

    def value(p):
        found = hopfield.retrieve(query, p, beta=2.0, mask=mask)
        return found.value.sum(), found

    gradient, found = jax.jit(jax.grad(value, has_aux=True))(rows)
    assert found.converged
    assert not np.any(found.value) and not np.any(gradient)
    assert hopfield.energy(query, rows, beta=2.0, mask=mask) == np.inf
    slope = jax.grad(lambda s: hopfield.energy(s, rows, beta=2.0, mask=mask))(jnp.asarray(query))
    assert np.isfinite(slope).all()


@BOTH
def test_a_symbolic_number_of_patterns_can_be_exported(patterns, query, gradient):
    (count,) = export.symbolic_shape("n")
    spec = jax.ShapeDtypeStruct((count, 4), jnp.float32)
    query, patterns = jnp.asarray(query, jnp.float32), jnp.asarray(patterns, jnp.float32)

    def loss(rows, query):
        options = {"beta": 1.0, "mask": rows[:, 0] < 9, "gradient": gradient}
        attended = hopfield.attend(query[None], rows, rows, **options).values
        return jnp.sum(attended) + jnp.sum(hopfield.retrieve(query, rows, **options).value)

    exported = export.export(jax.jit(jax.grad(loss)))(spec, query)
    got, wanted = exported.call(patterns, query), jax.grad(loss)(patterns, query)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_two_patterns_of_unequal_length_by_hand(x64):
    # Scores 2*beta*s and beta*s on a line: the weight of the longer one is sigmoid(beta*s).
    patterns, beta = jnp.array([[2.0], [1.0]]), 0.7
    for s in (-3.0, 0.0, 0.4, 5.0):
        weight = 1 / (1 + np.exp(-beta * s))
        state = hopfield.update(jnp.array([s]), patterns, beta=beta)
        np.testing.assert_allclose(state, [1 + weight], rtol=1e-12)
    found = hopfield.retrieve(jnp.array([0.4]), patterns, beta=beta, tol=1e-13, max_steps=200)
    value = found.value[0]
    np.testing.assert_allclose(value, 1 + 1 / (1 + np.exp(-beta * value)), rtol=1e-12)


@pytest.mark.parametrize("beta", [10.0, 1e3, 1e6, 3e38])
@BOTH
def test_gradients_are_exact_where_one_pattern_has_all_the_weight(beta, gradient):
    patterns, slope = (jax.random.normal(jax.random.key(n), (16, 64)) for n in (0, 1))
    start = patterns[3] + 0.05 * slope[0]

    def value(patterns, query):
        retrieved = hopfield.retrieve(query, patterns, beta=beta, gradient=gradient)
        return retrieved.value @ slope[0]

    of_patterns, of_query = jax.grad(value, (0, 1))(patterns, start)
    np.testing.assert_allclose(of_patterns.at[3].add(-slope[0]), 0, atol=1e-6)
    np.testing.assert_allclose(of_query, 0, atol=1e-6)

    def read(keys):
        output = hopfield.attend(start[None], keys, patterns, beta=beta, readout_beta=0.1)
        return output.values[0] @ slope[0]

    at_key = jax.grad(lambda keys: jax.nn.softmax(0.1 * keys @ keys[3]) @ patterns @ slope[0])
    np.testing.assert_allclose(jax.grad(read)(patterns), at_key(patterns), atol=2e-5)
