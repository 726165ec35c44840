"""Influence by position: a known function, random weights, the page."""

import contextlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from nn import checkpoints

from experiments.models import is_causal, load_encoder
from experiments.noise_stability import causal as causal_influence
from experiments.noise_stability import influence, tail_mass
from hopfax.nn import causal, load_pretrained
from hopfax.nn.families import find_family


@pytest.fixture(params=["bert", "gpt2", "gemma2", "llama"])
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
    expected = pytest.raises(ValueError, match=r"BERT or RoBERTa, got a (gpt2|gemma2|llama)")
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


@pytest.mark.parametrize("loaded", ["bert"], indirect=True)
def test_the_last_layer_has_the_influence_of_an_encoders_output(loaded, monkeypatch):
    monkeypatch.setattr(influence, "PROJECTIONS", 2000)
    monkeypatch.setattr(influence, "LAYER_PROJECTIONS", 2000)
    ids, key = jnp.array([5, 6, 7, 8, 9]), jax.random.key(0)
    each = influence.inner_influences(loaded, loaded.params, ids, key, layer=1)
    np.testing.assert_allclose(each.mean(-1), 1, rtol=1e-5)
    assert each.shape == (1 + loaded.config["num_attention_heads"], 5)
    output = influence.influences(loaded, loaded.params, ids, key)
    np.testing.assert_allclose(each[0], output, rtol=0.1)


@pytest.mark.parametrize("loaded", ["bert"], indirect=True)
def test_an_encoders_head_has_the_influence_of_its_mean_output(loaded):
    (x,), mask = loaded.embed(jnp.array([[5, 6, 7, 8, 9]])), jnp.ones((1, 5), bool)
    own = loaded.params["blocks"][1]["attention"]

    def head(x):
        states = loaded.forward(x[None], mask).hidden_states[1, 0]
        parts = (states @ own[n]["kernel"] + own[n]["bias"] for n in ("query", "key", "value"))
        query, keys, values = (part.reshape(5, 2, 4) for part in parts)
        return jax.nn.dot_product_attention(query, keys, values)[:, 1].mean(0)

    key = jax.random.key(0)
    signs = jax.random.rademacher(jax.random.split(key)[1], (2, 4), x.dtype)[1]
    norms = jnp.linalg.norm(jax.grad(lambda x: signs @ head(x))(x), axis=-1)
    each = influence.inner_influences(loaded, loaded.params, jnp.arange(5, 10), key, layer=1)
    np.testing.assert_allclose(each[2], norms / norms.mean(), rtol=1e-3)


@pytest.mark.parametrize("loaded", ["gpt2", "gemma2", "llama"], indirect=True)
def test_bands_have_the_norms_of_directional_derivatives(loaded, monkeypatch):
    monkeypatch.setattr(causal_influence, "BANDS", 3)
    ids, key, mask = jnp.arange(3, 10), jax.random.key(0), jnp.ones((1, 7), bool)
    (embeddings,) = loaded.embed(ids[None])
    states = lambda x: loaded.forward(x[None], mask).hidden_states[1:, 0, -1]  # noqa: E731
    signs = jax.random.rademacher(key, embeddings.shape, embeddings.dtype)
    slopes = jnp.einsum("lwtv,tv->tlw", jax.jacrev(states)(embeddings), signs)
    sums = slopes[1:].reshape(3, 2, *slopes.shape[1:]).sum(1)  # not of the special token
    norms = jnp.linalg.norm(sums, axis=-1).T
    each = causal_influence.band_influences(loaded, 1, loaded.params, ids, key)
    np.testing.assert_allclose(each[:, 0], norms / norms.mean(-1, keepdims=True), rtol=1e-3)


@pytest.mark.parametrize("loaded", ["llama"], indirect=True)
def test_a_causal_models_heads_mix_values_by_their_attention(loaded):
    (x,), params = loaded.embed(jnp.arange(3, 8)[None]), loaded.params
    mask, (_, config) = jnp.ones(5, bool), find_family(loaded.config)
    text = causal.llama(config)(params, x, mask)
    states, maps, mixed = text.hidden_states, text.weights, text.mixed
    first = jax.tree.map(lambda each: each[0], params["layers"])
    size = jnp.sqrt(jnp.square(states[0]).mean(-1, keepdims=True) + 1e-6)
    values = (states[0] / size * first["attention_norm"]["weight"]) @ first["value"]["weight"]
    values = jnp.repeat(values.reshape(5, 2, 6), 2, axis=1)
    expected = jnp.einsum("hqk,khw->qhw", maps[0], values)
    np.testing.assert_allclose(mixed[0], expected.reshape(5, 24), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loaded", ["gpt2", "llama"], indirect=True)
def test_samples_are_those_drawn_token_by_token(loaded):
    model = loaded._replace(config=loaded.config | {"bos_token_id": 2})
    key, ids = jax.random.key(1), [2]
    for noise in jax.random.gumbel(key, (9, len(loaded.table))):
        before = jnp.array([ids])
        logits = loaded.forward(loaded.embed(before), jnp.ones(before.shape, bool)).output[0, -1]
        ids.append(int((logits + noise).argmax()))
    draw = jax.jit(partial(causal_influence.sample, model, 9))
    assert draw(loaded.params, key).tolist() == ids[1:]


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
    shares = inner[~inner.metric.str.startswith(influence.BAND)]
    assert shares.score.tolist() == pytest.approx([3] * 12, rel=0.02)


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
