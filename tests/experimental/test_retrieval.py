"""The fused kernel, run by the interpreter of Pallas, against what XLA computes."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hopfax import experimental, hopfield
from hopfax.experimental import tiles

BETA = 0.6


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def draw(rng, *shape, dtype=np.float32):
    return rng.normal(size=shape).astype(dtype)


def head(rng, count, width=5, value_width=3, queries=None):
    # Far from rest, so that counts differ; keys of a size that lets several attractors live.
    return (
        2 * draw(rng, queries or count, width),
        1.5 * draw(rng, count, width),
        draw(rng, count, value_width),
    )


@cache
def compiled(retrieve, **static):
    """Values, facts, and gradients for some cotangent."""

    def total(query, keys, values, mask, tol, beta):
        attention = retrieve(query, keys, values, mask=mask, tol=tol, beta=beta, **static)
        weights = jnp.cos(jnp.arange(1.0, attention.values.size + 1))
        return jnp.sum(weights.reshape(attention.values.shape) * attention.values), attention

    return jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True))


def run(retrieve, arrays, *, mask=None, tol=1e-4, beta=BETA, **static):
    query, keys, _ = arrays
    mask = np.ones(len(keys), bool) if mask is None else mask
    tol = np.full(len(query), tol, query.dtype if query.dtype == float else np.float32)
    beta = jnp.asarray(beta, tol.dtype)
    (_, attention), slopes = compiled(retrieve, **static)(*arrays, mask, tol, beta)
    return jax.tree.map(np.asarray, (attention, slopes))


def fused(arrays, **options):
    return run(experimental.retrieve_head, arrays, **options)


def exactly(arrays, **options):
    """What XLA computes in double precision."""
    with jax.enable_x64(True):
        return run(hopfield.attend, [np.asarray(array, np.float64) for array in arrays], **options)


def assert_same_retrieval(found, wanted):
    np.testing.assert_allclose(found.values, wanted.values, rtol=1e-5, atol=2e-6)
    assert found.num_steps.tolist() == wanted.num_steps.tolist()
    assert found.converged.tolist() == wanted.converged.tolist()
    # The residual of the first step is the largest number, another one in double precision.
    moved = wanted.residual < 1e30
    np.testing.assert_allclose(found.residual[moved], wanted.residual[moved], rtol=1e-2, atol=1e-6)
    assert (found.residual[~moved] > 1e30).all()


@pytest.mark.parametrize(
    ("count", "queries", "width", "value_width"),
    [(1, 1, 1, 1), (7, 7, 5, 3), (33, 20, 17, 8), (130, 130, 5, 33), (512, 40, 128, 128)],
)
def test_interpreter_equals_xla(rng, count, queries, width, value_width):
    arrays = head(rng, count, width, value_width, queries)
    mask = rng.random(count) < 0.7
    mask[0] = True
    options = {"mask": mask, "beta": width**-0.5}
    found, slopes = fused(arrays, **options)
    wanted, wanted_slopes = exactly(arrays, **options)
    assert found.values.dtype == found.residual.dtype == jnp.float32
    assert_same_retrieval(found, wanted)
    assert not np.any(slopes[0]), "exactly zero"
    # Each ends its adjoint by its own measure of change.
    for got, right in zip(slopes[1:], wanted_slopes[1:], strict=True):
        np.testing.assert_allclose(got, right, atol=1e-3 * np.abs(right).max() + 1e-7)
        assert not np.any(got[~mask]), "exactly zero"
    if count > 1:
        assert len(set(found.num_steps.tolist())) > 2, "a case in which queries differ"
        assert np.abs(wanted_slopes[1]).max() > 1e-3


@pytest.fixture
def arrays(rng):
    return head(rng, 7)


@pytest.mark.parametrize(
    "options",
    [
        {"tol": np.inf},
        {"tol": np.where(np.arange(7) % 2, 1e-4, np.inf)},
        {"stop": "absolute"},
        {"max_steps": 3},
        {"max_steps": 1},
        {"max_steps": 3, "tol": 0.0},
    ],
    ids=str,
)
def test_every_way_to_stop(arrays, options):
    assert_same_retrieval(fused(arrays, **options)[0], exactly(arrays, **options)[0])


@pytest.mark.parametrize("filler", [1e3, np.nan, np.inf])
def test_padding_changes_nothing_and_gets_no_gradient(arrays, filler):
    query, *rows = arrays
    mask = np.array([1, 0, 1, 1, 1, 0, 1, 1, 1, 0], bool)
    wide = [np.full((10, array.shape[1]), filler, np.float32) for array in rows]
    for array, row in zip(wide, rows, strict=True):
        array[mask] = row
    wanted, slopes = fused(arrays)
    found, wide_slopes = fused((query, *wide), mask=mask)
    assert_same_retrieval(found, wanted)
    for got, wanted in zip(wide_slopes[1:], slopes[1:], strict=True):
        np.testing.assert_allclose(got[mask], wanted, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(got[~mask], 0)


def test_bfloat16_is_what_is_stored_not_what_is_computed(arrays):
    half = [jnp.asarray(array, jnp.bfloat16) for array in arrays]
    found, slopes = fused(half)
    wanted, wanted_slopes = exactly(half)
    assert found.values.dtype == jnp.bfloat16
    assert [slope.dtype for slope in slopes] == 3 * [jnp.bfloat16]
    assert found.num_steps.tolist() == wanted.num_steps.tolist()
    # One rounding to 8 bits at the end.
    values = np.asarray(found.values, float)
    np.testing.assert_allclose(values, wanted.values, rtol=2**-8, atol=1e-6)
    for got, right in zip(slopes[1:], wanted_slopes[1:], strict=True):
        scale = np.abs(right).max()
        np.testing.assert_allclose(np.asarray(got, float), right, rtol=2**-7, atol=1e-3 * scale)


def test_products_on_tensor_cores_have_the_precision_of_float32(rng):
    """Three parts of a float32, where the other factor is in bfloat16."""
    a, b = draw(rng, 16, 64), jnp.asarray(draw(rng, 64, 16), jnp.bfloat16)
    wanted = a.astype(float) @ np.asarray(b, float)
    np.testing.assert_allclose(tiles._gpu_dot(a, b), wanted, rtol=1e-5, atol=1e-5)
    rough = jnp.dot(a.astype(jnp.bfloat16), b, preferred_element_type=jnp.float32)
    assert np.abs(rough - wanted).max() > 1e-2


def test_seeds_heads_and_texts_under_vmap_are_the_loop(rng):
    query, keys, values = (draw(rng, 2, 3, 7, width) for width in (5, 5, 3))
    mask, betas = rng.random((3, 7)) < 0.8, jnp.array([0.5, 1.5])

    def run(query, keys, values, mask, beta):
        def total(keys):
            found = experimental.retrieve_head(query, keys, values, beta=beta, mask=mask)
            return jnp.sum(found.values**2), found

        return jax.grad(total, has_aux=True)(keys)

    batched = jax.vmap(jax.vmap(run, (0, 0, 0, 0, None)), (0, 0, 0, None, 0))
    slopes, found = jax.jit(batched)(query, keys, values, mask, betas)
    run = jax.jit(run)
    for seed, text in np.ndindex(2, 3):
        at = seed, text
        slope, alone = run(query[at], keys[at], values[at], mask[text], betas[seed])
        assert_same_retrieval(jax.tree.map(lambda leaf, at=at: leaf[at], found), alone)
        np.testing.assert_allclose(slopes[at], slope, rtol=1e-4, atol=1e-6)
    assert len(set(np.ravel(found.num_steps).tolist())) > 2


def test_the_temperature_has_a_gradient_too(arrays):
    def total(beta, retrieve):
        return jnp.sum(jnp.sin(retrieve(*arrays, beta=beta, tol=1e-6, max_steps=200).values))

    got, wanted = (
        jax.grad(partial(total, retrieve=retrieve))(BETA)
        for retrieve in (experimental.retrieve_head, hopfield.attend)
    )
    assert abs(wanted) > 1e-2
    np.testing.assert_allclose(got, wanted, rtol=1e-3)


@pytest.mark.parametrize(
    ("beta", "largest"),
    [(1.3, 2), (3.0, 3), (0.99, 60)],
    ids=["diverging", "overflowing", "slow"],
)
def test_the_adjoint_of_a_saddle_is_the_one_of_states(beta, largest):
    """A query on the ridge between two patterns: terms change by the factor beta each."""
    keys = jnp.array([[1.0, 0.2], [-1.0, 0.2]])
    query = jnp.array([[0.0, 0.7]])

    def total(keys, retrieve):
        return jnp.sum(retrieve(query, keys, keys, beta=beta).values @ jnp.array([1.0, 2.0]))

    def by_states(query, keys, values, *, beta):
        state = hopfield.retrieve(query[0], keys, beta=beta).value
        values_read = jax.nn.softmax(beta * keys @ state) @ values
        return hopfield.Attention(values_read, *3 * [jnp.zeros(())])

    got, wanted = (
        jax.grad(partial(total, retrieve=retrieve))(keys)
        for retrieve in (experimental.retrieve_head, by_states)
    )
    assert largest / 3 < np.abs(wanted).max() < largest
    np.testing.assert_allclose(got, wanted, rtol=1e-4)


def test_second_derivatives_are_errors(arrays):
    query, keys, values = arrays

    def total(keys):
        return jnp.sum(experimental.retrieve_head(query, keys, values, beta=BETA).values ** 2)

    with pytest.raises(TypeError, match="custom_vjp"):
        jax.hessian(total)(keys)
    with pytest.raises(TypeError, match="first derivatives only"):
        jax.grad(lambda keys: jax.grad(total)(keys).sum())(keys)


FIT = [(7, 5), (7, 5), (7, 3)]


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        (FIT, {"beta": 0.0}, "beta must be > 0, got 0.0"),
        (FIT, {"max_steps": 0}, "max_steps must be >= 1, got 0"),
        (FIT, {"dtype": np.float16}, "in float32 or bfloat16, got .*float16"),
        ([(7, 5), (0, 5), (0, 3)], {}, "1 to 512 rows"),
        ([(513, 5), (7, 5), (7, 3)], {}, "1 to 512 rows"),
        ([(7, 129), (7, 129), (7, 3)], {}, "width 1 to 128"),
    ],
)
def test_what_does_not_fit_is_named(shapes, options, message):
    options = {"beta": 1.0} | options
    dtype = options.pop("dtype", np.float32)
    with pytest.raises(ValueError, match=message):
        experimental.retrieve_head(*(np.ones(shape, dtype) for shape in shapes), **options)


def test_the_interpreter_runs_wherever_the_default_device_is_no_gpu(monkeypatch):
    assert not experimental.retrieval._on_gpu(), "tests run on a CPU"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert experimental.retrieval._on_gpu()
    with jax.default_device("cpu"):
        assert not experimental.retrieval._on_gpu()
