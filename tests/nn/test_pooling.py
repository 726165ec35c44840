"""Folders of sentence-transformers: their modules against NumPy, and what is refused."""

import json
from math import erf, sqrt

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from hopfax.nn.pooling import Pooling

MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
TOKENS, POOLING, DENSE = (
    f"my_{name}" for name in ("Transformer/sentence_bert_config", "Pooling/config", "Dense/config")
)
WEIGHT, BIAS = np.array([[1, 2, -3], [0, 1, 2]]), np.array([1, -1])
TEXTS = "config_sentence_transformers"
MODULES = [
    {"path": f"my_{name}", "type": f"sentence_transformers.models.{name}"}
    for name in ("Transformer", "Pooling", "Normalize", "Dense", "Dropout")
]


def folder_with(path, **files):
    """Writes a model's files, with modules in folders of other names than usual."""
    files = {
        "modules": MODULES,
        POOLING: {"pooling_mode": "mean"},
        DENSE: {"in_features": 3, "out_features": 2},
        **files,
    }
    for name, content in files.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / f"{name}.json").write_text(json.dumps(content))
    weights = {"linear.weight": np.array(WEIGHT, "f"), "linear.bias": np.array(BIAS, "f")}
    save_file(weights, path / "my_Dense" / "model.safetensors")
    return path


@pytest.mark.parametrize("skip", [0, 2])
def test_modes_pool_the_real_tokens_after_the_prompt(tmp_path, rng, skip):
    states, mask = rng.normal(size=(2, 6, 3)), np.arange(6) < np.array([[6], [4]])
    filled = jnp.where(mask[..., None], states, jnp.nan)
    folder_with(tmp_path, **{POOLING: {"pooling_mode": MODES}}, modules=MODULES[:2])
    got = Pooling(tmp_path)(filled, jnp.asarray(mask), skip=skip)
    for row, text, length in zip(got, states, (6, 4), strict=True):
        real, places = text[skip:length], np.arange(skip, length) + 1
        mean = real.mean(0)
        want = [real[0], real.max(0), mean, mean * sqrt(len(real)), places @ real / places.sum()]
        np.testing.assert_allclose(row, np.concatenate([*want, real[-1]]), rtol=1e-5)


def test_layers_follow_in_their_order(tmp_path, rng):
    states = rng.normal(size=(1, 4, 3))
    linear = WEIGHT @ (states[0, 0] / np.linalg.norm(states[0, 0])) + BIAS
    exact = linear / 2 * (1 + np.vectorize(erf)(linear / sqrt(2)))
    flags = {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
    for name, want in ((None, np.tanh(linear)), ("linear.Identity", linear), ("a.GELU", exact)):
        dense = {"in_features": 3, "out_features": 2}
        dense |= {"activation_function": f"torch.nn.modules.{name}"} if name else {}
        pooling = Pooling(folder_with(tmp_path, **{DENSE: dense, POOLING: flags}))
        got = pooling(jnp.asarray(states), jnp.ones((1, 4), bool))[0]
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_settings_of_texts(tmp_path):
    folder_with(tmp_path, **{"my_Transformer/tokenizer_config": {"model_max_length": 7}})
    assert Pooling(tmp_path).max_length == 7 and Pooling(tmp_path).prepare("A") == "A"
    texts = {"prompts": {"query": "Query: "}, "default_prompt_name": "query"}
    tokens = {"max_seq_length": 5, "do_lower_case": True}
    pooling = Pooling(folder_with(tmp_path, **{TEXTS: texts, TOKENS: tokens}))
    assert pooling.prepare("A") == "query: a" and pooling.max_length == 5


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("modules", [{"type": "my.Transformer", "path": ""}], r"list .*, got my\.Transformer$"),
        ("modules", [{"type": "a", "path": "../b"}], "path must be within the folder"),
        ("modules", [1], "modules.json or a file of its modules is broken"),
        (POOLING, {"pooling_mode": ["mean", "sum"]}, "pooling_mode must be cls, max, mean"),
        (DENSE, {"activation_function": "my.Tanh"}, "activation_function must be one of Tanh"),
        (DENSE, {"use_residual": True}, "use_residual must be False, got True"),
        (DENSE, {"module_input_name": "x"}, "module_input_name must be 'sentence_embedding'"),
        (DENSE, {"in_features": 4, "out_features": 2}, r"must have shape \(2, 4\)"),
        (TEXTS, {"default_prompt_name": "q"}, "default_prompt_name must be a prompt's, got 'q'"),
        (TEXTS, {"model_type": "SparseEncoder"}, "model_type must be 'SentenceTransformer'"),
        (TOKENS, {"transformer_task": "fill-mask"}, "transformer_task must be 'feature-extr"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=message):
        Pooling(folder_with(tmp_path, **{name: content}))
