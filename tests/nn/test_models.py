import dataclasses
import json

import jax
import numpy as np
import pytest

from hopfax.nn import PRESETS, find_preset, robertha, tinybert

SIZES = {"width": 8, "num_layers": 1, "ff_width": 12, "max_length": 8}


def module(model):
    return model.apply(model.init(jax.random.key(0)), method=lambda module: module)


def count(model):
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))


def test_presets_are_those_of_the_design():
    assert tuple(PRESETS) == ("hopfax", "paper", "algorithm", "released")
    default = dataclasses.asdict(find_preset("hopfax"))
    paper, algorithm, released = (
        dict(dataclasses.asdict(find_preset(name)).items() - default.items())
        for name in ("paper", "algorithm", "released")
    )
    absent = ("norm_first", "output_projection", "embedding_norm", "bias")
    common = {**dict.fromkeys(absent, False), "stop": "absolute", "min_steps": 1}
    common |= {"gradient": "unrolled", "dropout": 0.0}
    own = dict.fromkeys(("query_projection", "scale_beta", "readout_beta"), False)
    assert paper == common | own
    assert algorithm == common | {"scope": "text"}
    assert released == {
        "num_heads": 1, "mask_keys": False, "scope": "batch", "min_steps": 1,
        "gradient": "unrolled", "stop_gradient_keys": True, "padding_idx": 0,
        "esr_in_nats": True, "drop_hidden": True, "drop_pooled": False,
    }  # fmt: skip


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
    np.testing.assert_allclose(layer.beta, 7 * (scale if preset.scale_beta else 1))
    np.testing.assert_allclose(layer.readout_beta, scale * (7 if preset.readout_beta else 1))


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
