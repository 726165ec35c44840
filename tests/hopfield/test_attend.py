"""Attention by retrieval is `retrieve` for every query, and a read-out, whichever way is taken."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hopfax import hopfield

BETA, KEYS = 0.8, 6
# At most as many keys as the width iterate scores, others states.
WIDTHS = pytest.mark.parametrize("width", [8, 3], ids=["scores", "states"])


def head(rng, width=8):
    """Queries far from convergence, so that they differ in their steps."""
    shapes = (5, width), (KEYS, width), (KEYS, 2)
    queries, keys, values = (jnp.asarray(rng.normal(size=shape)) for shape in shapes)
    return 2 * queries, keys, values


def by_retrieve(queries, keys, values, *, beta, mask=None, readout_beta=None, **options):
    def one(query):
        found = hopfield.retrieve(query, keys, beta=beta, mask=mask, **options)
        logits = (readout_beta or beta) * keys @ found.value
        if mask is not None:
            logits = jnp.where(mask, logits, -1e30)
        values_read = jax.nn.softmax(logits) @ values
        return hopfield.Attention(values_read, found.num_steps, found.residual, found.converged)

    return jax.vmap(one)(queries)


@WIDTHS
@pytest.mark.parametrize("stop", ["relative", "absolute"])
@pytest.mark.parametrize("gradient", ["implicit", "unrolled"])
def test_each_query_takes_the_steps_of_retrieve(x64, rng, width, stop, gradient):
    arrays = head(rng, width)
    options = {"stop": stop, "gradient": gradient, "mask": jnp.arange(KEYS) != 2}
    both = [
        jax.jit(partial(fn, readout_beta=1.5, **options)) for fn in (by_retrieve, hopfield.attend)
    ]
    for beta, tol in ((0.1, 1e-4), (BETA, 1e-4), (3.0, 1e-4), (BETA, jnp.inf)):
        wanted, attention = (run(*arrays, beta=beta, tol=tol) for run in both)
        np.testing.assert_allclose(attention.values, wanted.values, rtol=1e-8, atol=1e-12)
        assert attention.num_steps.tolist() == wanted.num_steps.tolist()
        assert attention.converged.tolist() == wanted.converged.tolist()
        np.testing.assert_allclose(attention.residual, wanted.residual, rtol=1e-4, atol=1e-9)
    # Far from convergence a state's norm differs from the next one's.
    early = [run(*arrays, beta=BETA, tol=10.0) for run in both]
    assert all(set(each.num_steps.tolist()) == {2} for each in early)
    np.testing.assert_allclose(*(each.residual for each in early), rtol=1e-8)


@WIDTHS
def test_gradients_are_those_of_retrieve(x64, rng, width):
    arrays = head(rng, width)

    def slopes(fn, **options):
        def value(queries, keys, values, beta):
            attention = fn(queries, keys, values, beta=beta, tol=1e-12, **options)
            return jnp.sum(jnp.cos(jnp.arange(10.0)) * jnp.tanh(attention.values).ravel())

        return jax.jit(jax.grad(value, argnums=(0, 1, 2, 3)))(*arrays, BETA)

    for max_steps in (1, 300):
        wanted = slopes(by_retrieve, max_steps=max_steps)
        assert min(np.abs(slope).max() for slope in wanted[1:]) > 1e-2
        for gradient in ("implicit", "unrolled"):
            slope = slopes(hopfield.attend, max_steps=max_steps, gradient=gradient)
            for got, right in zip(slope, wanted, strict=True):
                np.testing.assert_allclose(got, right, rtol=1e-7, atol=1e-9)
            if (max_steps, gradient) == (300, "implicit"):
                assert not np.any(slope[0]), "exactly zero"


def test_an_absolute_tolerance_does_not_cut_the_gradient_short(x64, rng):
    queries, keys, values = head(rng, 4)
    settled = hopfield.attend(queries, keys, keys, beta=BETA, tol=1e-12, max_steps=300).values

    def slope(**options):
        def total(keys):
            return jnp.sum(jnp.sin(hopfield.attend(settled, keys, values, beta=BETA, **options)[0]))

        return jax.jit(jax.grad(total))(keys)

    wanted = slope(tol=1e-12, max_steps=300)
    np.testing.assert_allclose(slope(tol=1.0, stop="absolute"), wanted, atol=1e-3)
    assert np.abs(slope(tol=1.0) - wanted).max() > 1e-2


@WIDTHS
def test_padding_changes_nothing_and_gets_no_gradient(x64, rng, width):
    queries, keys, values = head(rng, width)
    real = np.array([0, 2, 3, 4, 6, 7])
    mask = jnp.isin(jnp.arange(8), real)

    def value(keys, values, mask=None):
        attention = hopfield.attend(queries, keys, values, beta=BETA, mask=mask)
        return jnp.sum(attention.values**2), attention

    evaluate = jax.jit(jax.grad(value, argnums=(0, 1), has_aux=True))
    wanted, bare = evaluate(keys, values)
    for filler in (1e3, np.nan):
        padded = [jnp.full((8, row.shape[1]), filler).at[real].set(row) for row in (keys, values)]
        slopes, attention = evaluate(*padded, mask)
        assert attention.num_steps.tolist() == bare.num_steps.tolist()
        np.testing.assert_allclose(attention.values, bare.values, rtol=1e-9)
        for got, right in zip(slopes, wanted, strict=True):
            np.testing.assert_allclose(got[real], right, rtol=1e-7, atol=1e-12)
            assert not np.any(got[~mask]), "exactly zero"


@WIDTHS
def test_nothing_but_padding_reads_zeros_without_a_gradient(rng, width):
    queries = head(rng, width)[0]
    keys, values = jnp.full((KEYS, width), jnp.nan), jnp.full((KEYS, 2), jnp.nan)

    def total(*arrays):
        attention = hopfield.attend(*arrays, beta=1.0, mask=jnp.zeros(KEYS, bool))
        return jnp.sum(attention.values), attention

    slope_of = jax.jit(jax.grad(total, argnums=(0, 1, 2), has_aux=True))
    slopes, attention = slope_of(queries, keys, values)
    assert attention.converged.all() and set(attention.num_steps.tolist()) == {2}
    assert not np.any(attention.values)
    assert not any(np.any(slope) for slope in slopes)


@WIDTHS
@pytest.mark.parametrize(("dtype", "bound"), [(jnp.float32, 2e-3), (jnp.bfloat16, 2e-2)])
def test_both_precisions_are_iterated_in_float32(rng, width, dtype, bound):
    # The squared change is a product of two small differences: 1e-8 of the squares at tol 1e-4.
    arrays = [array.astype(dtype) for array in head(rng, width)]
    attention = hopfield.attend(*arrays, beta=BETA)
    wanted = by_retrieve(*(array.astype(jnp.float32) for array in arrays), beta=BETA)
    assert attention.values.dtype == dtype
    assert attention.residual.dtype == jnp.float32
    assert attention.converged.all()
    assert np.abs(attention.num_steps - wanted.num_steps).max() <= 1
    np.testing.assert_allclose(attention.values.astype(jnp.float32), wanted.values, atol=bound)


@WIDTHS
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_stop_at_once(rng, width, bad):
    run = jax.jit(partial(hopfield.attend, beta=BETA))
    queries, keys, values = head(rng, width)
    attention = run(queries.at[1, 1].set(bad), keys, values)
    others = np.arange(len(queries)) != 1
    assert attention.num_steps[1] == 0
    assert attention.converged.tolist() == others.tolist()
    assert np.isfinite(attention.values).all(1).tolist() == others.tolist()
    attention = run(queries, keys.at[2, 1].set(bad), values)
    assert attention.num_steps.max() <= 1 and not attention.converged.any()
    # Not finite only from the first step on.
    huge = run(1e30 * queries, 1e30 * keys, values)
    assert huge.num_steps.max() <= 1 and not huge.converged.any()
