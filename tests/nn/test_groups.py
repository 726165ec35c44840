"""Cut into groups or not, a layer computes the same."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from hopfax.nn import HopfieldAttention, groups
from hopfax.nn.functional import functional


def test_a_group_is_the_largest_divisor_that_fits(monkeypatch):
    size = partial(groups.group_size, elements=2**15)
    assert [size(32, cores=cores) for cores in (1, 2, 3, 16, 64)] == [2, 4, 4, 32, 32]
    assert size(30, cores=3) == 6 and size(31, cores=4) == 1 and size(0, cores=4) == 1
    assert groups.group_size(32, elements=2**20, cores=2) == 1, "a text that fits nowhere"
    monkeypatch.setattr(groups, "usable_cores", lambda: 5)
    assert groups.group_size(30, elements=2**15) == 10


@pytest.mark.parametrize("texts", [0, 3, 4])
def test_trees_come_back_as_they_went(texts):
    x = jnp.arange(2.0 * texts).reshape(texts, 2)
    seen = []

    def fn(pair):
        seen.append(pair["a"].shape)
        return pair["a"] + 1, {"b": jnp.sum(pair["b"], axis=-1)}

    cut = groups.by_groups(fn, {"a": x, "b": -x}, elements=2**30, on_cpu=True)
    whole = groups.by_groups(fn, {"a": x, "b": -x}, elements=2**30, on_cpu=False)
    jax.tree.map(np.testing.assert_array_equal, cut, whole)
    assert seen[0] == ((1, 2) if texts else (0, 2))
    assert seen[-1] == (texts, 2)


def test_each_device_of_a_mesh_calls_on_its_own_texts():
    seen = []

    def fn(x):
        seen.append(x.shape)
        return {"doubled": 2 * x}

    def shapes(count, *axes):
        """What `fn` is called on in a mesh of such axes, (size, who manages it), and returns."""
        names = tuple("abc"[: len(axes)])
        sizes, types = zip(*axes, strict=True)
        mesh = AbstractMesh(sizes, names, axis_types=types)
        with jax.sharding.use_abstract_mesh(mesh):
            texts = jax.ShapeDtypeStruct((count, 2), jnp.float32)
            found = jax.eval_shape(partial(groups.by_devices, fn), texts)
        return seen.pop(), found["doubled"].shape

    auto, explicit = AxisType.Auto, AxisType.Explicit
    assert shapes(6, (2, auto)) == ((3, 2), (6, 2))
    assert shapes(12, (2, auto), (3, auto)) == ((2, 2), (12, 2))
    assert shapes(6, (2, auto), (3, explicit)) == ((3, 2), (6, 2)), "the others are not XLA's"
    assert shapes(4, (2, auto), (3, auto)) == ((2, 2), (4, 2)), "as far as they divide"
    assert shapes(5, (2, auto)) == shapes(5, (1, auto)) == ((5, 2), (5, 2)), "all on each"

    # Inside of a program of one device, such as that of its own seeds.
    mesh = jax.make_mesh((1,), ("a",), axis_types=(auto,))
    lies = PartitionSpec()
    jax.jit(
        jax.shard_map(partial(groups.by_devices, fn), mesh=mesh, in_specs=lies, out_specs=lies)
    )(jnp.ones((4, 2)))
    assert seen.pop() == (4, 2)

    x = jnp.arange(8.0).reshape(4, 2)
    assert jnp.array_equal(groups.by_devices(fn, x)["doubled"], 2 * x)
    assert seen.pop() == (4, 2) and not seen


@pytest.mark.parametrize("gradient", ["implicit", "unrolled"])
def test_attention_by_groups_is_attention(monkeypatch, gradient):
    layer = functional(
        lambda rngs: HopfieldAttention(8, beta=30.0, max_steps=30, gradient=gradient, rngs=rngs)
    )
    params = jax.tree.map(lambda leaf: 25 * leaf, layer.init(jax.random.key(0)))
    x = jax.random.normal(jax.random.key(1), (6, 5, 8))
    mask = jnp.arange(5) < jnp.array([5, 2, 4, 1, 5, 3])[:, None]

    monkeypatch.setattr(groups, "usable_cores", lambda: 1)
    outcomes = []
    for texts in (6, 3):
        monkeypatch.setattr(groups, "_PER_CORE", texts * 2 * 5**2)

        @jax.jit
        def run(params, x):
            found = layer.apply(params, x, mask)
            return jnp.sum(jnp.where(mask[..., None], found.values, 0) ** 2), found

        assert f"f32[{texts},2,5,5]" in str(jax.make_jaxpr(run)(params, x))
        outcomes.append(jax.value_and_grad(run, (0, 1), has_aux=True)(params, x))
    whole, cut = outcomes
    assert len(np.unique(whole[0][1].num_steps)) > 3, "queries that stop at different steps"
    np.testing.assert_array_equal(cut[0][1].num_steps, whole[0][1].num_steps)
    np.testing.assert_array_equal(cut[0][1].converged, whole[0][1].converged)
    np.testing.assert_allclose(cut[0][0], whole[0][0], rtol=1e-5)
    scale = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(whole[1]))
    for ours, theirs in zip(jax.tree.leaves(cut[1]), jax.tree.leaves(whole[1]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6 * scale)
