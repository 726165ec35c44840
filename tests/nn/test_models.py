"""The papers' models and presets."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from hopfax.nn import (
    PRESETS,
    SoftmaxAttention,
    find_preset,
    robertha,
    tinybert,
)

SIZES = {"width": 8, "num_layers": 1, "ff_width": 12, "max_length": 8}


def module(model):
    return model.apply(model.init(jax.random.key(0)), method=lambda module: module)


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


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_models_have_the_options_of_their_preset(preset):
    options = {"beta": 7.0, "tol": 1e-3, "max_steps": 9, **SIZES, "num_layers": 2}
    network = module(robertha(10, 3, preset=preset, **options))
    config = json.loads(network.config)
    attention = config.pop("attention")
    assert attention["name"] == "HopfieldAttention" and config["pooling"] == "mean"
    expected = dataclasses.asdict(preset) | options
    del expected["esr_in_nats"]  # of the objective
    assert expected.items() <= (config | attention).items()
    assert (network.norm is not None) == preset.embedding_norm
    assert [block.norm_first for block in network.blocks] == [preset.norm_first] * 2
    layer = network.blocks[1].attention
    scale = (8 / preset.num_heads) ** -0.5
    np.testing.assert_allclose(layer.beta, 7 * scale)
    assert layer.readout_beta == (layer.beta if preset.readout_beta else scale)


def test_tinybert_is_post_norm_with_a_pooler():
    network = module(tinybert(10, 3, **SIZES))
    assert network.pooler is not None
    assert network.norm.epsilon == network.blocks[0].ff_norm.epsilon == 1e-12
    for block in network.blocks:
        assert isinstance(block.attention, SoftmaxAttention)
        assert not block.norm_first


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
