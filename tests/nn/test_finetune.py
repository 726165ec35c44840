import copy
import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from nn import checkpoints

from hopfax import nn
from hopfax.classifier import Classifier
from hopfax.data import Example, encode, read_tokenizer, train_vocabulary
from hopfax.nn import HopfieldAttention, load_pretrained, replace_attention, text_classifier

IDS = np.random.default_rng(0).integers(0, checkpoints.VOCAB, (3, 7))
MASK = np.arange(7) < np.array([[7], [4], [6]])
VOCABULARY = train_vocabulary(["a b c d e f g h i j k l m n o p"])
TYPES = np.random.default_rng(1).integers(0, 2, IDS.shape)

HEADS = {"distilbert": jax.nn.relu, "electra": partial(jax.nn.gelu, approximate=False)}


def load(folder, family, *, num_labels=0, **changes):
    labels = [f"label {number}" for number in range(num_labels)]
    checkpoints.save_random(folder, family, labels=labels, seed=2, scale=0.5, **changes)
    return load_pretrained(folder)


@pytest.fixture(params=["bert", "roberta"])
def loaded(request, tmp_path):
    return load(tmp_path, request.param)


@pytest.fixture
def bert(tmp_path):
    return load(tmp_path, "bert")


def test_attention_without_steps_at_beta_one_is_the_models(loaded):
    """With padding on the right and on the left."""
    embeddings = loaded.embed(IDS)
    softmax = replace_attention(loaded, nn.SoftmaxAttention)
    hopfield = replace_attention(loaded, HopfieldAttention, beta=1.0, max_steps=0)
    for mask, models in ((MASK, (softmax, hopfield)), (MASK[:, ::-1], (hopfield,))):
        expected = loaded.forward(embeddings, mask, token_types=TYPES).hidden_states
        weights = loaded.attention_maps(embeddings, mask, token_types=TYPES)
        real = np.broadcast_to(mask[:, None, :, None], weights.shape[1:])
        for model in models:
            states = model.forward(embeddings, mask, token_types=TYPES).hidden_states
            assert states.shape == expected.shape
            assert np.abs(states - expected)[:, mask].max() < 1e-5
            maps = model.attention_maps(embeddings, mask, token_types=TYPES)
            assert maps.shape == weights.shape
            assert np.abs(maps - weights)[:, real].max() < 1e-5


def test_models_can_be_pickled_and_copied(bert):
    for model in (bert, replace_attention(bert, HopfieldAttention, beta=1.0, max_steps=1)):
        want = model.forward(model.embed(IDS), MASK).output
        for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
            np.testing.assert_array_equal(again.forward(again.embed(IDS), MASK).output, want)


def test_iteration_changes_the_output_and_has_gradients_in_all_parameters(bert):
    """Where padding is nan, as of ids outside the vocabulary."""
    model = replace_attention(bert, HopfieldAttention, beta=8.0, max_steps=2, gradient="unrolled")

    def loss(params):
        embeddings = jnp.where(MASK[..., None], bert.embed(IDS, params=params), jnp.nan)
        output = model.forward(embeddings, MASK, params=params).output
        return jnp.square(jnp.where(MASK[..., None], output, 0)).sum(), output

    gradients, output = jax.jit(jax.grad(loss, has_aux=True))(bert.params)
    assert abs(output - bert.forward(bert.embed(IDS), MASK).output)[MASK].max() > 1e-3
    sizes = [float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradients)]
    assert min(sizes) > 0 and np.isfinite(sizes).all()


@pytest.mark.parametrize("num_labels", [0, 3], ids=["new", "loaded"])
@pytest.mark.parametrize("family", checkpoints.HEADS_OF)
def test_a_classifier_starts_from_the_loaded_parameters(tmp_path, family, num_labels):
    loaded = load(tmp_path, family, num_labels=num_labels)
    model = text_classifier(loaded, None if num_labels else 3, separator=5)
    first, second = (model.init(jax.random.key(seed)) for seed in (0, 1))
    same = jax.tree.map(lambda a, b: bool((a == b).all()), first, second)
    assert same["classifier"].pop("kernel") == bool(num_labels) and all(jax.tree.leaves(same))
    assert model.config.attention["dropout"] == model.config.dropout == 0.1
    types = model.apply(first, jnp.asarray(IDS), method="token_types")
    assert types.any() == (family in ("bert", "electra"))  # RoBERTa's are all 0
    known = {"token_types": types} if "types" in first else {}
    hidden = loaded.forward(loaded.embed(IDS), MASK, **known).output
    if num_labels:
        pooler, classifier = (loaded.params[name] for name in ("pooler", "classifier"))
        pooled = HEADS.get(family, np.tanh)(hidden[:, 0] @ pooler["kernel"] + pooler["bias"])
        logits = pooled @ classifier["kernel"] + classifier["bias"]
    else:
        pooled = jnp.where(MASK[..., None], hidden, 0).sum(1) / MASK.sum(1, keepdims=True)
        logits = pooled @ first["classifier"]["kernel"]
    output = model.apply(first, jnp.asarray(IDS), jnp.asarray(MASK))
    np.testing.assert_allclose(output.logits, logits, atol=1e-5)
    assert "pooler" not in text_classifier(loaded, 2).init(jax.random.key(0))


def test_recorded_logits_and_gradients_of_a_distilbert(shared):
    path = shared / "golden" / "hf_distilbert_classifier_tiny"
    if not path.is_dir():
        pytest.skip(f"no recorded run at {path}")
    with np.load(path / "expected.npz") as file:
        ids, mask, logits, _, slopes = map(jnp.asarray, file.values())
    loaded = load_pretrained(path)
    model, params = text_classifier(loaded, dropout=0.0), loaded.params

    def scalar(change):
        added = nn.Perturbation(token=change)
        found = model.apply(params, ids, mask == 1, added=added).logits
        return jnp.linalg.norm(found, axis=-1).sum(), found

    gradient, found = jax.grad(scalar, has_aux=True)(jnp.zeros((*ids.shape, 32)))
    assert loaded.labels == ("bad", "fair", "good")
    np.testing.assert_allclose(found, logits, atol=1e-6)
    np.testing.assert_allclose(jnp.linalg.norm(gradient, axis=-1), slopes, rtol=1e-4)


@pytest.mark.parametrize("num_labels", [0, 3], ids=["mean", "head"])
@pytest.mark.parametrize("family", checkpoints.HEADS_OF)
def test_a_saved_classifier_is_a_model_of_its_family(tmp_path, family, num_labels):
    (tmp_path / "original").mkdir()
    options = {"num_labels": num_labels, "pad_token_id": VOCABULARY.pad_id}
    loaded = load(tmp_path / "original", family, **options)
    model = text_classifier(loaded, None if num_labels else 3, separator=VOCABULARY.sep_id)
    params = jax.tree.map(lambda leaf: 1.5 * leaf, model.init(jax.random.key(0)))  # "trained"
    assert VOCABULARY.size == checkpoints.VOCAB
    classifier = Classifier(model, params, VOCABULARY, ("label 0", "label 1", "label 2"))
    classifier.save(tmp_path / "saved")

    again = load_pretrained(tmp_path / "saved")
    assert again.config["model_type"] == family
    assert again.labels == (classifier.labels if num_labels else ())
    types = model.apply(params, jnp.asarray(IDS), method="token_types")
    known = {"token_types": types} if "types" in params else {}
    hidden = again.forward(again.embed(IDS), MASK, **known).output
    tokens = model.apply(params, jnp.asarray(IDS), method="embed_tokens")
    first = model.apply(params, tokens, types, method="embed")
    expected = model.apply(params, first, jnp.asarray(MASK), method="hidden_states")[-1]
    np.testing.assert_allclose(hidden[MASK], expected[MASK], atol=1e-5)
    stored = Classifier.load(tmp_path / "saved")
    jax.tree.map(np.testing.assert_array_equal, stored.params, params)
    assert stored.config == classifier.config and stored.labels == classifier.labels


def test_iterated_attention_is_not_saved_as_another_library_s(bert, tmp_path):
    model = text_classifier(bert, 3, attention=HopfieldAttention, beta=1.0, max_steps=1)
    params = model.init(jax.random.key(0))
    Classifier(model, params, VOCABULARY, ("a", "b", "c")).save(tmp_path / "saved")
    with pytest.raises(ValueError, match="holds a hopfax classifier: load it with"):
        load_pretrained(tmp_path / "saved")
    jax.tree.map(np.testing.assert_array_equal, Classifier.load(tmp_path / "saved").params, params)


def test_another_attention_keeps_the_checks_and_the_precision_of_the_model(bert):
    model = replace_attention(bert, HopfieldAttention, beta=1.0, max_steps=0)
    with pytest.raises(ValueError, match="token_types must have shape"):
        model.forward(bert.embed(IDS), MASK, token_types=TYPES[:1])
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), bert.params)
    low = bert.embed(IDS, params=half)
    outputs = [each.forward(low, MASK, params=half).output for each in (bert, model)]
    assert {each.dtype for each in outputs} == {jnp.dtype(jnp.bfloat16)}
    np.testing.assert_allclose(*(np.float32(each[MASK]) for each in outputs), atol=0.1)


@pytest.mark.usefixtures("bert")
def test_a_classifier_of_a_bfloat16_encoder_is_trained_in_float32(tmp_path):
    model = text_classifier(load_pretrained(tmp_path, dtype=jnp.bfloat16), 2)
    params = model.init(jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
    assert model.apply(params, jnp.asarray(IDS), jnp.asarray(MASK)).logits.dtype == jnp.float32


def test_a_classifier_keeps_the_attention_of_the_model(bert):
    options = {"beta": 8.0, "max_steps": 2}
    replaced = text_classifier(replace_attention(bert, HopfieldAttention, **options), 2)
    named = text_classifier(bert, 2, attention=HopfieldAttention, **options)
    assert replaced.config == named.config
    assert named.config.attention["name"] == "HopfieldAttention"


@pytest.mark.parametrize(
    ("family", "changes", "options", "message"),
    [
        ("gpt2", {}, {}, "the model must be an encoder, such as a BERT, got gpt2"),
        ("bert", {}, {"attention": partial(HopfieldAttention, beta=2.0)}, "must be a class, such"),
        ("bert", {}, {"num_heads": 1}, r"num_heads must not be passed: the model has \d+ heads"),
        ("bert", {}, {"num_outputs": None}, "num_outputs is required: the model has no classifier"),
    ],
)
def test_unsupported_models_and_options_are_errors(tmp_path, family, changes, options, message):
    options = {"attention": HopfieldAttention, "num_outputs": 2} | options
    with pytest.raises((TypeError, ValueError), match=message):
        text_classifier(load(tmp_path, family, **changes), **options)


@pytest.mark.parametrize(
    ("beta", "max_steps", "low", "high"),
    [(1.0, 1, 0.15, 1), (1.0, 50, 0, 0.05), (4.0, 50, 0.15, 1)],
)
def test_iterated_at_beta_one_queries_of_a_head_attend_alike(minilm, beta, max_steps, low, high):
    """Total variation between the weights of two queries, in layers 2 to 6."""
    loaded, vocabulary = load_pretrained(minilm), read_tokenizer(minilm)
    text = "The company said it will cut a tenth of its jobs as sales of older products fall."
    ids = encode([Example(text, 0, 0)], vocabulary).ids[0]
    model = replace_attention(loaded, HopfieldAttention, beta=beta, max_steps=max_steps)
    weights = np.array(model.attention_maps(model.embed(ids), np.ones(ids.shape, bool)))[1:, 0]
    apart = np.abs(weights[:, :, :, None] - weights[:, :, None]).sum(-1).mean((1, 2, 3)) / 2
    assert low <= apart.min() and apart.max() <= high
