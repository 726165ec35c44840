"""Modules as plain dicts of parameters under every JAX transform."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import config, nnx

from hopfax.nn import functional, robertha

SIZES = {"width": 6, "num_layers": 1, "ff_width": 8, "max_length": 5}
IDS = np.array([[3, 1, 4, 1, 5], [2, 6, 5, 0, 0]])
MASK = IDS > 0


@pytest.fixture
def model():
    return robertha(7, 2, **SIZES)


def logits(model, params):
    return model.apply(params, IDS, MASK).logits


def test_parameters_are_nested_dicts_of_arrays(model):
    def check(tree):
        if type(tree) is dict:
            assert len({type(name) for name in tree}) == 1, "sortable"
            for branch in tree.values():
                check(branch)
        else:
            assert isinstance(tree, jax.Array)

    params = model.init(jax.random.key(0))
    check(params)
    assert set(params["blocks"]) == {0}
    # Copied leaf by leaf, as optimizers and checkpoints do, they still fit.
    copied = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), params)
    assert logits(model, copied).tolist() == logits(model, params).tolist()


def test_init_follows_its_key(model):
    one, again, other = (model.init(jax.random.key(seed)) for seed in (0, 0, 1))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(again), strict=True):
        assert a.tolist() == b.tolist()
    assert one["classifier"]["kernel"].tolist() != other["classifier"]["kernel"].tolist()
    kernels = [leaf for leaf in jax.tree.leaves(one) if leaf.std() > 0]
    assert len({float(leaf.ravel()[0]) for leaf in kernels}) == len(kernels), "no draw used twice"
    blocks = [block["attention"]["key"]["kernel"] for block in one["blocks"].values()]
    assert 0.01 < float(jnp.std(jnp.stack(blocks))) < 0.03


def test_vmapped_seeds_are_separate_runs(model):
    keys = jax.random.split(jax.random.key(3), 3)
    run = partial(logits, model)
    together = jax.vmap(model.init)(keys)
    outputs, run = jax.jit(jax.vmap(run))(together), jax.jit(run)
    for seed in range(3):
        alone = model.init(keys[seed])
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(a[seed], b, rtol=1e-6)
        np.testing.assert_allclose(outputs[seed], run(alone), rtol=1e-4, atol=1e-6)


def test_transforms_take_it_as_any_function(model, redraw):
    def loss(params):
        return jnp.sum(jnp.square(logits(model, params) - 1))

    params = redraw(model)

    def step(params, _):
        value, gradient = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.005 * g, params, gradient), value

    last, losses = jax.jit(lambda params: jax.lax.scan(step, params, length=5))(params)
    assert np.all(np.diff(losses) < 0)
    assert jax.tree.structure(last) == jax.tree.structure(params)


def test_parameters_are_the_only_state(model):
    params = model.init(jax.random.key(0))
    network = model.apply(params, method=lambda module: module)
    network.classifier.kernel[...] = network.classifier.kernel[...] * 0
    assert np.any(params["classifier"]["kernel"]), "a bound module is a copy"
    with pytest.raises(ValueError):
        functional(lambda rngs: nnx.BatchNorm(3, rngs=rngs))


def test_missing_parameters_are_noticed(model):
    params = model.init(jax.random.key(0))
    del params["classifier"]["bias"]
    with pytest.raises((KeyError, ValueError, AttributeError)):
        logits(model, params)


@pytest.fixture
def tree_mode():
    """What NNX_GRAPH_MODE=false and NNX_GRAPH_UPDATES=false set when flax is imported."""
    names = ("nnx_graph_mode", "nnx_graph_updates")
    before = {name: getattr(config, name) for name in names}
    for name in names:
        config.update(name, False)
    yield
    for name, value in before.items():
        config.update(name, value)


def test_flax_in_tree_mode_gives_the_same(model, tree_mode, redraw):
    """Flax is moving from graphs to trees."""
    rebuilt, params = robertha(7, 2, **SIZES), redraw(model)
    assert jax.tree.map(jnp.shape, redraw(rebuilt)) == jax.tree.map(jnp.shape, params)
    outputs, expected = (jax.jit(partial(logits, m))(params) for m in (rebuilt, model))
    np.testing.assert_allclose(outputs, expected, rtol=1e-6)
