"""Loaded encoders as `Encoder`: same outputs, other attention, a classifier on top."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_pretrained import CONFIGS, VOCAB, save, shapes

from hopfax.nn import (
    HopfieldAttention,
    SoftmaxAttention,
    load_pretrained,
    replace_attention,
    text_classifier,
)

IDS = np.random.default_rng(0).integers(0, VOCAB, (3, 7))
MASK = np.arange(7) < np.array([[7], [4], [6]])
TYPES = np.random.default_rng(1).integers(0, 2, IDS.shape)


def load(folder, family, **changes):
    rng = np.random.default_rng(2)
    tensors = {n: rng.normal(size=s).astype("f") / 2 for n, s in shapes(family).items()}
    return load_pretrained(save(folder, CONFIGS[family] | changes, tensors))


@pytest.fixture(params=["bert", "roberta"])
def loaded(request, tmp_path):
    return load(tmp_path, request.param)


def test_attention_without_steps_at_beta_one_is_the_loaded_one(loaded):
    embeddings = loaded.embed(IDS)
    expected = loaded.forward(embeddings, MASK, token_types=TYPES)
    softmax = replace_attention(loaded, SoftmaxAttention)
    hopfield = replace_attention(loaded, HopfieldAttention, beta=1.0, max_steps=0)
    for model in (softmax, hopfield):
        output = model.forward(embeddings, MASK, token_types=TYPES)
        states = np.abs(output.hidden_states - expected.hidden_states)[:, MASK]
        assert states.max() < 1e-5
        assert output.hidden_states.shape == expected.hidden_states.shape


def test_padding_on_the_left_changes_nothing(loaded):
    model = replace_attention(loaded, HopfieldAttention, beta=1.0, max_steps=0)
    embeddings, left = loaded.embed(IDS), MASK[:, ::-1]
    states = model.forward(embeddings[:, ::-1], left).hidden_states
    expected = loaded.forward(embeddings[:, ::-1], left).hidden_states
    assert np.abs(states - expected)[:, left].max() < 1e-5


def test_sizes_may_be_missing_from_the_configuration(loaded):
    missing = {"type_vocab_size": None, "intermediate_size": None}
    model = loaded._replace(config={**loaded.config, **missing})
    shapes = jax.tree.map(jnp.shape, text_classifier(model, 2).init(jax.random.key(0)))
    assert shapes == jax.tree.map(jnp.shape, text_classifier(loaded, 2).init(jax.random.key(0)))


def test_iterating_changes_the_output_and_has_gradients_in_all_parameters(loaded):
    embeddings = loaded.embed(IDS)
    model = replace_attention(loaded, HopfieldAttention, beta=8.0, max_steps=2, gradient="unrolled")
    plain = loaded.forward(embeddings, MASK).output
    assert abs(model.forward(embeddings, MASK).output - plain)[MASK].max() > 1e-3

    def loss(params):
        output = model.forward(model.embed(IDS, params=params), MASK, params=params).output
        return jnp.square(output * MASK[..., None]).sum()

    sizes = jax.tree.map(lambda g: float(jnp.abs(g).max()), jax.grad(loss)(loaded.params))
    zero = [path for path, size in jax.tree_util.tree_leaves_with_path(sizes) if not size > 0]
    assert not zero


def test_a_classifier_starts_from_the_loaded_parameters(loaded):
    model = text_classifier(loaded, 3, separator=5)
    first, second = (model.init(jax.random.key(seed)) for seed in (0, 1))
    same = jax.tree.map(lambda a, b: bool((a == b).all()), first, second)
    assert not same["classifier"].pop("kernel") and all(jax.tree.leaves(same))
    network = model.apply(first, method=lambda module: module)
    types = network.token_types(jnp.asarray(IDS))
    hidden = loaded.forward(loaded.embed(IDS), MASK, token_types=types).output
    pooled = jnp.where(MASK[..., None], hidden, 0).sum(1) / MASK.sum(1, keepdims=True)
    logits = pooled @ first["classifier"]["kernel"]
    output = model.apply(first, jnp.asarray(IDS), jnp.asarray(MASK))
    np.testing.assert_allclose(output.logits, logits, atol=1e-5)
    with pytest.raises(ValueError, match="at most max_length="):
        model.apply(first, jnp.zeros((1, 40), int), jnp.ones((1, 40), bool))


def test_the_paper_s_attention_has_no_projections_of_its_own(loaded):
    options = {"query_projection": False, "output_projection": False}
    model = text_classifier(loaded, 2, attention=HopfieldAttention, **options)
    layer = model.init(jax.random.key(0))["blocks"][0]["attention"]
    assert sorted(layer) == ["key", "value"]


def test_decoders_are_refused(tmp_path):
    with pytest.raises(ValueError, match="requires bert or roberta, got 'gpt2'"):
        text_classifier(load(tmp_path, "gpt2"), 2)


def test_activations_other_than_gelu_are_refused(tmp_path):
    with pytest.raises(ValueError, match="hidden_act must be \"gelu\", got 'relu'"):
        text_classifier(load(tmp_path, "bert", hidden_act="relu"), 2)
