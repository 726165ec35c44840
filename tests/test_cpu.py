"""Grouping of texts leaves results unchanged."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hopfax import cpu
from hopfax.nn import HopfieldAttention, functional


def test_a_group_is_the_largest_divisor_that_fits(monkeypatch):
    def size(texts, cores, elements=2**15):
        monkeypatch.setattr(cpu, "usable_cores", lambda: cores)
        return cpu.group_size(texts, elements=elements)

    assert [size(32, cores) for cores in (1, 2, 3, 16, 64)] == [2, 4, 4, 32, 32]
    assert (size(30, 5), size(31, 4), size(0, 4)) == (10, 1, 1)
    assert size(32, 2, elements=2**20) == 1  # no text fits


@pytest.mark.parametrize("texts", [0, 3, 4])
def test_groups_give_the_trees_of_one_call(monkeypatch, texts):
    x = jnp.arange(2.0 * texts).reshape(texts, 2)
    shapes = []

    def fn(pair):
        shapes.append(pair["a"].shape)
        return pair["a"] + 1, {"b": jnp.sum(pair["b"], axis=-1)}

    grouped = cpu.by_groups(fn, {"a": x, "b": -x}, elements=2**30)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    expected = cpu.by_groups(fn, {"a": x, "b": -x}, elements=2**30)
    jax.tree.map(np.testing.assert_array_equal, grouped, expected)
    assert shapes[0] == (min(texts, 1), 2) and shapes[-1] == (texts, 2)


@pytest.mark.parametrize("gradient", ["implicit", "unrolled"])
def test_attention_by_groups_is_attention(monkeypatch, gradient):
    layer = functional(
        lambda rngs: HopfieldAttention(8, beta=30.0, max_steps=30, gradient=gradient, rngs=rngs)
    )
    params = jax.tree.map(lambda leaf: 25 * leaf, layer.init(jax.random.key(0)))
    x = jax.random.normal(jax.random.key(1), (6, 5, 8))
    mask = jnp.arange(5) < jnp.array([5, 2, 4, 1, 5, 3])[:, None]

    monkeypatch.setattr(cpu, "usable_cores", lambda: 1)
    outcomes = []
    for texts in (6, 3):
        monkeypatch.setattr(cpu, "_PER_CORE", texts * 2 * 5**2)

        @jax.jit
        def run(params, x):
            retrieved = layer.apply(params, x, mask)
            return jnp.sum(jnp.where(mask[..., None], retrieved.values, 0) ** 2), retrieved

        assert f"f32[{texts},2,5,5]" in str(jax.make_jaxpr(run)(params, x))
        outcomes.append(jax.value_and_grad(run, (0, 1), has_aux=True)(params, x))
    ((expected_loss, expected), gradient), ((loss, retrieved), grouped_gradient) = outcomes
    assert len(np.unique(expected.num_steps)) > 3  # queries stop at different steps
    np.testing.assert_array_equal(retrieved.num_steps, expected.num_steps)
    np.testing.assert_array_equal(retrieved.converged, expected.converged)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    atol = 1e-6 * max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradient))
    chex.assert_trees_all_close(grouped_gradient, gradient, rtol=1e-4, atol=atol)
