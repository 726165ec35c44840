import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx
from nn import slow

from hopfax.nn import PRESETS, find_preset, functional, robertha, tinybert

SIZES = {"width": 8, "num_layers": 1, "ff_width": 12, "max_length": 8}


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


def test_init_follows_its_key():
    model = robertha(7, 2, **SIZES)
    one, again, other = (model.init(jax.random.key(seed)) for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, one, again)
    assert one["classifier"]["kernel"].tolist() != other["classifier"]["kernel"].tolist()
    kernels = [leaf for leaf in jax.tree.leaves(one) if leaf.std() > 0]
    assert len({float(leaf.ravel()[0]) for leaf in kernels}) == len(kernels)
    assert 0.01 < float(one["blocks"][0]["attention"]["key"]["kernel"].std()) < 0.03


def test_parameters_are_the_only_state():
    model = robertha(7, 2, **SIZES)
    params = model.init(jax.random.key(0))
    network = slow.bind(model, params)
    network.classifier.kernel[...] = network.classifier.kernel[...] * 0
    assert np.any(params["classifier"]["kernel"])
    with pytest.raises(ValueError, match="Non-exhaustive filters"):
        functional(lambda rngs: nnx.BatchNorm(3, rngs=rngs))
