"""Influence by position: a known function, random weights, the page."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from nn import checkpoints

from experiments.models import is_causal, load_encoder
from experiments.noise_stability import influence, tail_mass
from hopfax.nn import load_pretrained


@pytest.fixture(params=["bert", "gpt2", "gemma2"])
def loaded(request, tmp_path):
    return load_pretrained(checkpoints.save_random(tmp_path, request.param))


def test_influences_have_mean_one_and_are_gradient_norms(loaded, monkeypatch):
    ids = jnp.array([5, 6, 7, 8, 9])
    monkeypatch.setattr(influence, "PROJECTIONS", 3000)
    each = influence.influences(loaded, loaded.params, ids, jax.random.key(0))
    assert float(each.mean()) == pytest.approx(1, abs=1e-5)
    mask = jnp.ones((1, 5), bool)

    def output(embeddings):
        states = loaded.forward(embeddings, mask).output[0]
        if loaded.config["model_type"] != "bert":
            return states[-1]
        mean = states.mean(0)
        return mean / jnp.linalg.norm(mean)

    slopes = jax.jacrev(output)(loaded.embed(ids[None]))[:, 0]
    norms = jnp.sqrt(jnp.square(slopes).sum((0, 2)))
    np.testing.assert_allclose(each, norms / norms.mean(), rtol=0.1)


def test_random_weights_have_the_loaded_shapes_and_the_scales_of_a_new_model(loaded):
    drawn = influence.random_weights(loaded, 0)
    assert jax.eval_shape(lambda: drawn) == jax.eval_shape(lambda: loaded.params)
    assert float(jnp.std(drawn["tokens"]["embedding"])) == pytest.approx(0.02, rel=0.3)
    expected = 0.0 if loaded.config["model_type"] == "gemma2" else 1.0
    (scale,) = (drawn["norm"][name] for name in ("scale", "weight") if name in drawn["norm"])
    assert (scale == expected).all()
    again, other = influence.random_weights(loaded, 0), influence.random_weights(loaded, 1)
    assert (again["tokens"]["embedding"] == drawn["tokens"]["embedding"]).all()
    assert (other["tokens"]["embedding"] != drawn["tokens"]["embedding"]).any()


def test_experiments_on_hidden_states_reject_causal_models(loaded, tmp_path):
    expected = pytest.raises(ValueError, match=r"BERT or RoBERTa, got a g(pt2|emma2)")
    with expected if is_causal(loaded) else contextlib.nullcontext():
        load_encoder(str(tmp_path))


@pytest.mark.parametrize(
    "template, special",
    [("[CLS] $A [SEP]", (["[CLS]"], ["[SEP]"])), ("<bos> $A", (["<bos>"], [])), ("$A", ([], []))],
)
def test_texts_have_the_special_tokens_of_the_model(tmp_path, template, special):
    names = ["[CLS]", "[SEP]", "<bos>", "[PAD]", "a", "b"]
    ids = {name: number for number, name in enumerate(names)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="[PAD]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=template, special_tokens=[(name, ids[name]) for name in names[:3]]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    before, after = influence.special_tokens(str(tmp_path))
    assert ([names[n] for n in before], [names[n] for n in after]) == special
    ((_, rows),) = influence.texts(str(tmp_path), 3, 20).items()
    assert rows.shape == (3, 20) and set(np.array(names)[rows].flat) <= {"a", "b"}


@pytest.mark.parametrize("loaded", ["bert", "gpt2"], indirect=True)
def test_the_last_layer_has_the_influence_of_an_encoders_output(loaded, monkeypatch):
    monkeypatch.setattr(influence, "PROJECTIONS", 2000)
    monkeypatch.setattr(influence, "LAYER_PROJECTIONS", 2000)
    ids, key = jnp.array([5, 6, 7, 8, 9]), jax.random.key(0)
    layers = len(loaded.forward(jnp.zeros((1, 1, 8)), jnp.ones((1, 1))).hidden_states) - 1
    each = influence.inner_influences(loaded, loaded.params, ids, key, layer=layers - 1)
    np.testing.assert_allclose(each.mean(-1), 1, rtol=1e-5)
    if is_causal(loaded):  # its output is logits, and its heads are not measured
        assert each.shape == (1, 5)
        return
    assert each.shape == (1 + loaded.config["num_attention_heads"], 5)
    output = influence.influences(loaded, loaded.params, ids, key)
    np.testing.assert_allclose(each[0], output, rtol=0.1)


@pytest.mark.parametrize("loaded", ["bert"], indirect=True)
def test_heads_are_those_of_the_model(loaded):
    params = loaded.params["blocks"][0]["attention"]
    embeddings, mask = loaded.embed(jnp.array([[5, 6, 7, 8, 9]])), jnp.ones((1, 5), bool)
    (states,) = loaded.forward(embeddings, mask).hidden_states[0]
    maps = loaded.attention_maps(embeddings, mask)[0, 0]
    heads = influence.head_outputs(params, states, len(maps))
    values = states @ params["value"]["kernel"] + params["value"]["bias"]
    expected = jnp.einsum("hqk,khw->qhw", maps, values.reshape(5, len(maps), -1))
    np.testing.assert_allclose(heads, expected, rtol=1e-4, atol=1e-5)


def test_parts_leave_out_special_tokens():
    values = np.tile(np.arange(40.0), (3, 1))
    for special, first, last in (((1, 1), 1.5, 37.5), ((1, 0), 1.5, 38.5), ((0, 0), 0.5, 38.5)):
        parts = influence.positions(values, special=special).groupby("metric").score.mean()
        assert (parts["first"], parts["last"]) == (first, last)


def test_tokens_with_most_of_the_influence_are_counted():
    flat, junta = np.ones(40), np.full(40, 0.01)
    junta[[3, 17]] = 10.0
    counts = influence.parts(np.stack([flat, junta]), special=(1, 1))[influence.JUNTA]
    assert counts.tolist() == [36, 2]
    table = influence.positions(np.stack([junta, junta]), special=(1, 1))
    table = table.assign(model="trained", corruption="uniform tokens")
    (tenth,) = influence.influential(table).itertuples()
    assert tenth.mean == 2 and tenth.largest == pytest.approx(10 / 20.38)


def test_the_ends_of_a_text_are_compared_with_its_middle():
    values = np.exp(0.01 * np.random.default_rng(0).normal(size=(6, 40)))
    values[:, [1, 2, -3, -2]] *= 3
    table = influence.positions(values, special=(1, 1)).assign(model="trained", corruption="text")
    assert influence.ratios(table)["mean"].tolist() == pytest.approx([3, 3], rel=0.02)
    inner = influence.within_model(np.tile(values[:, None, None], (1, 2, 3, 1)), special=(1, 1))
    assert inner.score.tolist() == pytest.approx([3] * 12, rel=0.02)


@pytest.mark.parametrize(
    ("module", "flags", "message"),
    [
        (influence, {}, "set --pretrained"),
        (influence, {"num_texts": 2}, "--num-texts must be >= 3"),
        (influence, {"num_inner": 17}, r"--num-inner must be in \[3, num_texts\]"),
        (tail_mass, {}, "set --pretrained and --data-dir"),
        (tail_mass, {"num_draws": 2, "data_dir": "."}, "num-draws must be >= 3"),
    ],
)
def test_bad_flags_are_errors(module, flags, message):
    flags = {"pretrained": "."} | flags if flags else {}
    with pytest.raises(ValueError, match=message):
        module.run(module.Config(**flags))
