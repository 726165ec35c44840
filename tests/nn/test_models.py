"""The papers' models and presets."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hopfax import hopfield
from hopfax.nn import (
    PRESETS,
    HopfieldAttention,
    SoftmaxAttention,
    find_preset,
    robertha,
    tinybert,
)

SIZES = {"width": 8, "num_layers": 1, "ff_width": 12, "max_length": 8}
IDS = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 0, 0]])
MASK = IDS > 0


MODELS = {
    **{name: robertha(10, 3, preset=name, **SIZES) for name in PRESETS},
    "no-iteration": robertha(10, 3, max_steps=0, **SIZES),
    "tinybert": tinybert(10, 3, **SIZES),
}


def count(model):
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))


def test_presets_are_those_of_the_design():
    names = ("hopfax", "paper", "released")
    assert tuple(PRESETS) == names
    expected = {
        "num_heads": (2, 2, 1),
        "norm_first": (True, False, True),
        "query_projection": (True, False, True),
        "output_projection": (True, False, True),
        "embedding_norm": (True, False, True),
        "bias": (True, False, True),
        "readout_beta": (True, False, True),
        "mask_keys": (True, True, False),
        "stop": ("relative", "absolute", "relative"),
        "scope": ("query", "query", "batch"),
        "gradient": ("implicit", "unrolled", "unrolled"),
        "stop_gradient_keys": (False, False, True),
        "padding_idx": (None, None, 0),
        "esr_in_nats": (False, False, True),
        "dropout": (0.3, 0.0, 0.3),
    }
    presets = [dataclasses.asdict(find_preset(name)) for name in names]
    assert {field: tuple(preset[field] for preset in presets) for field in presets[0]} == expected


def test_an_unknown_preset_is_an_error_that_lists_all():
    with pytest.raises(ValueError, match="one of hopfax, paper, released, got 'Paper'"):
        find_preset("Paper")


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_models_have_the_options_of_their_preset(preset):
    options = {"beta": 7.0, "tol": 1e-3, "max_steps": 9, **SIZES, "num_layers": 2}
    model = robertha(10, 3, preset=preset, **options)
    network = model.apply(model.init(jax.random.key(0)), method=lambda module: module)
    assert network.pooler is None
    assert network.dropout == preset.dropout
    assert network.padding_idx == preset.padding_idx
    assert (network.norm is not None) == preset.embedding_norm
    assert len(network.blocks) == 2
    for number, block in enumerate(network.blocks):
        layer = block.attention
        assert isinstance(layer, HopfieldAttention)
        assert block.norm_first == preset.norm_first
        assert block.stop_gradient_keys == (preset.stop_gradient_keys and number > 0)
        for option in ("num_heads", "stop", "scope", "gradient", "mask_keys"):
            assert getattr(layer, option) == getattr(preset, option)
        assert (layer.tol, layer.max_steps) == (1e-3, 9)
        assert (layer.query is not None) == preset.query_projection
        assert (layer.out is not None) == preset.output_projection
        assert (layer.key.bias is not None) == preset.bias
        scale = (8 / preset.num_heads) ** -0.5
        np.testing.assert_allclose(layer.beta, 7 * scale)
        assert layer.readout_beta == (layer.beta if preset.readout_beta else scale)


def test_tinybert_is_post_norm_with_a_pooler():
    model = tinybert(10, 3, **SIZES)
    network = model.apply(model.init(jax.random.key(0)), method=lambda module: module)
    assert network.pooler is not None
    assert network.norm.epsilon == network.blocks[0].ff_norm.epsilon == 1e-12
    for block in network.blocks:
        assert isinstance(block.attention, SoftmaxAttention)
        assert not block.norm_first


@pytest.mark.parametrize("name", MODELS)
def test_each_model_runs_and_trains(redraw, name):
    model = MODELS[name]

    def loss(params, key):
        out = model.apply(params, IDS, MASK, key=key)
        task = -jnp.mean(jax.nn.log_softmax(out.logits)[jnp.arange(2), jnp.array([0, 2])])
        of_text = jax.vmap(lambda keys, mask: hopfield.eigen_entropy(keys, mask=mask))
        entropy = jax.vmap(of_text, (0, None))
        return task + 0.05 * jnp.sum(entropy(out.encoding.keys, MASK)), out

    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    for params in (redraw(model, scale=0.02), redraw(model)):
        (value, out), gradient = step(params, jax.random.key(1))
        assert out.logits.shape == (2, 3)
        for leaf in (value, *jax.tree.leaves(gradient)):
            assert np.all(np.isfinite(leaf))
        iterates = name not in ("tinybert", "no-iteration")
        assert np.all((out.encoding.num_steps > 0) == iterates)
        assert np.any(gradient["blocks"][0]["attention"]["key"]["kernel"])


@pytest.mark.parametrize("name", ["hopfax", "tinybert"])
def test_more_padding_changes_nothing(redraw, name):
    params = redraw(MODELS[name])
    run = jax.jit(lambda ids, mask: MODELS[name].apply(params, ids, mask))
    short = run(IDS, MASK)
    wider = run(np.pad(IDS, ((0, 0), (0, 3)), constant_values=7), np.pad(MASK, ((0, 0), (0, 3))))
    np.testing.assert_allclose(wider.logits, short.logits, rtol=0, atol=2e-5)
    real = np.broadcast_to(MASK[:, None], short.encoding.num_steps.shape)
    steps = wider.encoding.num_steps[..., :5]
    np.testing.assert_array_equal(steps[real], short.encoding.num_steps[real])


def test_sizes_are_the_papers():
    """Design, section 3: base about 4.4 million, large as BERT's base."""
    for build in (robertha, tinybert):
        base = build(30522, 2, width=128, num_layers=2, ff_width=512, max_length=128)
        assert 4.2e6 < count(base) < 4.5e6
    preset = dataclasses.replace(PRESETS["hopfax"], num_heads=12)
    large = robertha(
        30522, 2, preset=preset, width=768, num_layers=12, ff_width=3072, max_length=512
    )
    assert 1.05e8 < count(large) < 1.12e8


def test_leaving_iteration_out_leaves_the_parameters():
    iterated, plain = (
        jax.eval_shape(robertha(10, 3, max_steps=steps, **SIZES).init, jax.random.key(0))
        for steps in (50, 0)
    )
    assert iterated == plain
