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


def test_parameters_are_nested_dicts_of_arrays(model):
    params = model.init(jax.random.key(0))
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        assert isinstance(leaf, jax.Array)
        assert {type(key) for key in path} == {jax.tree_util.DictKey}
    assert type(params) is type(params["blocks"]) is dict
    assert set(params["blocks"]) == {0}


def test_init_follows_its_key(model):
    one, again, other = (model.init(jax.random.key(seed)) for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, one, again)
    assert one["classifier"]["kernel"].tolist() != other["classifier"]["kernel"].tolist()
    kernels = [leaf for leaf in jax.tree.leaves(one) if leaf.std() > 0]
    assert len({float(leaf.ravel()[0]) for leaf in kernels}) == len(kernels)
    assert 0.01 < float(one["blocks"][0]["attention"]["key"]["kernel"].std()) < 0.03


def test_parameters_are_the_only_state(model):
    params = model.init(jax.random.key(0))
    network = model.apply(params, method=lambda module: module)
    network.classifier.kernel[...] = network.classifier.kernel[...] * 0
    assert np.any(params["classifier"]["kernel"])
    with pytest.raises(ValueError, match="Non-exhaustive filters"):
        functional(lambda rngs: nnx.BatchNorm(3, rngs=rngs))


@pytest.fixture
def tree_mode():
    """Sets what NNX_GRAPH_MODE=false and NNX_GRAPH_UPDATES=false set at import of flax."""
    before = {name: getattr(config, name) for name in ("nnx_graph_mode", "nnx_graph_updates")}
    for name in before:
        config.update(name, False)
    yield
    for name, value in before.items():
        config.update(name, value)


def test_flax_in_tree_mode_gives_the_same(model, tree_mode, redraw):
    rebuilt, params = robertha(7, 2, **SIZES), redraw(model)
    assert jax.tree.map(jnp.shape, redraw(rebuilt)) == jax.tree.map(jnp.shape, params)
    outputs, expected = (jax.jit(m.apply)(params, IDS, MASK).logits for m in (rebuilt, model))
    np.testing.assert_allclose(outputs, expected, rtol=1e-6)
