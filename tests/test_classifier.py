import copy
import dataclasses
import json
import math
import pickle
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hopfax.classifier import Classifier
from hopfax.data import Example, encode, read_tokenizer, to_buckets, train_vocabulary
from hopfax.data.tokenize import SPECIAL
from hopfax.data.tokenizer_files import tokenizer_settings
from hopfax.nn import Encoder, SoftmaxAttention, functional, robertha, tinybert, with_memory
from hopfax.nn.models import PRESETS, universal_bert
from hopfax.train.evaluate import Noise

TEXTS = ["a wonderful film", "the story drags badly", ("a pair", "of strings, rather long ones")]
VOCABULARY = train_vocabulary(["a wonderful film", "the story drags badly", "a pair of strings"])
SIZES = {"width": 8, "ff_width": 8, "max_length": 48}
LABELS = ("bad", "neutral", "good")


def classifier(model):
    leaves = jax.eval_shape(model.init, jax.random.key(0))
    params = jax.tree.map(lambda x: jax.random.normal(jax.random.key(x.size), x.shape), leaves)
    return Classifier(model, params, VOCABULARY, LABELS)


@pytest.fixture(scope="module")
def small():
    return classifier(tinybert(VOCABULARY.size, 3, num_layers=1, **SIZES))


def test_probabilities_are_the_softmax_of_the_models_logits(small):
    prediction = small.predict(TEXTS)
    rows = [Example(text, 0, number) for number, text in enumerate(TEXTS)]
    encoded = encode(rows, VOCABULARY, max_length=48)
    ids, lengths = encoded.ids[:, 0], encoded.lengths
    output = jax.jit(small.model.apply)(small.params, ids, np.arange(ids.shape[1]) < lengths)
    np.testing.assert_allclose(prediction.probabilities, jax.nn.softmax(output.logits), atol=1e-5)
    assert prediction.labels == [LABELS[i] for i in np.argmax(output.logits, 1)]
    noisy = small.predict(TEXTS, noise=Noise("token", "matched", 1.0))
    assert abs(noisy.probabilities - prediction.probabilities).max() > 1e-3


@pytest.mark.parametrize(
    "model",
    [
        *(robertha(VOCABULARY.size, 3, preset=name, num_layers=2, **SIZES) for name in PRESETS),
        universal_bert(VOCABULARY.size, 3, num_steps=3, halting=True, **SIZES),
        with_memory(tinybert(VOCABULARY.size, 3, num_layers=1, **SIZES), site="embedding"),
        with_memory(tinybert(VOCABULARY.size, 3, num_layers=1, **SIZES), sigma=0.5),
    ],
    ids=[*PRESETS, "universal", "memory", "memory with sigma"],
)
def test_a_saved_classifier_is_the_same(model, tmp_path):
    saved = classifier(model)
    saved.save(tmp_path / "one")
    loaded = Classifier.load(tmp_path / "one")
    assert loaded.labels == LABELS and loaded.vocabulary.tokens == VOCABULARY.tokens
    assert loaded.config == saved.config
    one, other = jax.tree.leaves(saved.params), jax.tree.leaves(loaded.params)
    assert [np.asarray(x).tobytes() for x in one] == [np.asarray(x).tobytes() for x in other]


def test_a_loaded_classifier_gets_memory_and_can_be_copied(small, tmp_path):
    small.save(tmp_path / "plain")
    prior, options = jnp.arange(VOCABULARY.size) / 9, {"site": "embedding", "sigma": 0.5}
    got = Classifier.load(tmp_path / "plain").with_memory(**options, log_prior=prior)
    memory = {"log_prior": prior, "log_scale": jnp.zeros(8), "log_sigma": jnp.log(jnp.full(1, 0.5))}
    params = {**small.params, "memory": memory}
    same = Classifier(with_memory(small.model, **options), params, VOCABULARY, LABELS)
    noise, outputs = Noise("embedding", "matched", 1.0), []
    for each in (got, same, pickle.loads(pickle.dumps(got)), copy.deepcopy(got), small):
        outputs.append(each.predict(TEXTS[:1], noise=noise).probabilities.tolist())
    assert all(each == outputs[0] for each in outputs[:4]) and outputs[4] != outputs[0]
    with pytest.raises(ValueError, match="the model already has memory"):
        got.with_memory()
    with pytest.raises(ValueError, match="log_prior must be finite or -inf"):
        small.with_memory(log_prior=np.full(VOCABULARY.size, -np.inf))


def test_models_that_store_padding_read_texts_of_one_length():
    saved = classifier(robertha(VOCABULARY.size, 3, preset="released", num_layers=1, **SIZES))
    encoded = encode([Example(TEXTS[0], 0, 0)], VOCABULARY, max_length=48)
    (row,) = to_buckets(encoded, boundaries=(48,))
    # Evaluation pads a batch on a CPU to eight rows.
    ids, lengths = (np.repeat(each, 8, axis=0) for each in (row.ids[:, 0], row.lengths))
    output = jax.jit(saved.model.apply)(saved.params, ids, np.arange(48) < lengths)
    expected = jax.nn.softmax(output.logits[0])
    np.testing.assert_allclose(saved.predict(TEXTS[:1]).probabilities[0], expected, rtol=1e-3)


def test_other_libraries_find_the_settings_of_the_tokenizer(tmp_path):
    """transformers lower-cases a BERT's texts unless `tokenizer_config.json` forbids it."""
    (tmp_path / "vocab.txt").write_text("\n".join((*SPECIAL, "A", "b")))
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    cased = read_tokenizer(tmp_path)
    model = tinybert(cased.size, 2, num_layers=1, **SIZES)
    Classifier(model, model.init(jax.random.key(0)), cased, ("x", "y")).save(tmp_path / "saved")
    written = json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())
    expected = {"pad_token": "[PAD]", "model_max_length": 48, "do_lower_case": False}
    assert written == expected | {"strip_accents": None, "tokenize_chinese_chars": True}
    assert read_tokenizer(tmp_path / "saved").tokens == cased.tokens
    split = {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}, "normalizer": None}
    tokenizer: Any = SimpleNamespace(to_str=lambda: json.dumps(split))
    assert tokenizer_settings(tokenizer) == {"add_prefix_space": True}


def test_damaged_folders_are_errors(small, tmp_path):
    folder = tmp_path / "one"
    small.save(folder)
    config, weights = folder / "config.json", folder / "model.safetensors"
    document, data = json.loads(config.read_text()), weights.read_bytes()

    def refused(message):
        with pytest.raises(ValueError, match=message):
            Classifier.load(folder)

    for changes, message in (
        ({"num_layers": 2}, r"missing tensor blocks\.1\.attention\.key\.kernel"),
        ({"class": None}, r"config\.json cannot be used: class must be .*, got None"),
    ):
        settings = {"hopfax": document["hopfax"] | changes}
        config.write_text(json.dumps(document | settings))
        refused(message)
    config.write_text(json.dumps(document | {"id2label": {"0": "bad", "2": "good"}}))
    refused(r"config\.json cannot be used: KeyError\('1'\)")
    config.write_text(json.dumps(document))
    weights.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    refused(r"model\.safetensors is damaged: its SHA-256 differs")
    (folder / "model.safetensors.sha256").unlink()  # as of other programs
    assert Classifier.load(folder).labels == LABELS
    weights.write_bytes(data[:-1])
    refused(r"model\.safetensors is incomplete")


def test_a_failed_save_leaves_nothing(small, tmp_path):
    unsaved = Classifier(small.model, small.params, VOCABULARY, ("bad", "good", "\ud800"))
    with pytest.raises(UnicodeEncodeError):
        unsaved.save(tmp_path / "one")
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileExistsError, match="must not exist"):
        small.save(tmp_path)


def test_long_texts_are_truncated_with_a_warning(small):
    long = "a film " * 40
    ids = encode([Example(long, 0, 0)], VOCABULARY, max_length=48).ids[0, 0]
    with pytest.warns(UserWarning, match="1 of 2 texts have more than 48 tokens") as caught:
        truncated = small.predict([long, "a film"])
    assert caught[0].filename == __file__
    pieces = [VOCABULARY.tokens[number] for number in ids[1:-1]]
    short = small.predict([" ".join(pieces).replace(" ##", "")])  # without a warning
    np.testing.assert_allclose(truncated.probabilities[0], short.probabilities[0], atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "texts", "message"),
    [
        ({}, "a film", "texts must be several strings, got one: 'a film'"),
        ({}, ["a film", ("a", "\u200b\0")], "text 1 is empty"),
        ({}, [], "texts must not be empty"),
        ({}, [(("a", "b"), ("c", "d"))], "text 0 must be .* a pair of strings, got choices"),
        ({"labels": ("bad", "good")}, TEXTS, "labels must be distinct .* model's 3 outputs"),
        ({"labels": ("bad", "good", "bad")}, TEXTS, r"got \('bad', 'good', 'bad'\)"),
        ({"labels": (0, "bad", "good")}, TEXTS, r"labels must be .* got \(0, 'bad', 'good'"),
        ({"params": lambda leaf: leaf[None]}, TEXTS, r"of one seed .* shape .*, got \(1, "),
        ({"params": lambda leaf: leaf.astype("bfloat16")}, TEXTS, "must be float32, got bfloat16 "),
        ({"params": lambda leaf: leaf * np.nan}, TEXTS, "outputs are not finite for text 0"),
    ],
)
def test_wrong_parts_and_texts_are_errors(small, changes, texts, message):
    params = jax.tree.map(changes.get("params", lambda leaf: leaf), small.params)
    with pytest.raises((TypeError, ValueError), match=message):
        Classifier(small.model, params, VOCABULARY, changes.get("labels", LABELS)).predict(texts)


def test_vocabulary_and_parameters_must_fit_the_model(small):
    for tokens in ((*VOCABULARY.tokens, "more"), VOCABULARY.tokens[:-9]):
        message = f"must have {math.ceil(0.9 * VOCABULARY.size)} to {VOCABULARY.size} tokens"
        with pytest.raises(ValueError, match=message):
            other = dataclasses.replace(VOCABULARY, tokens=tokens)
            Classifier(small.model, small.params, other, LABELS)
    fewer = {name: leaf for name, leaf in small.params.items() if name != "norm"}
    with pytest.raises(ValueError, match=r"missing tensor norm\.bias"):
        Classifier(small.model, fewer, VOCABULARY, LABELS)


@pytest.mark.parametrize(
    ("changes", "family"),
    [
        ({"num_types": 2, "separator": 3}, "bert"),
        ({"num_types": 2, "position_offset": VOCABULARY.pad_id + 1}, "roberta"),
        ({"num_types": 2, "position_offset": 2}, "hopfax"),  # RoBERTa counts from the padding's id
        ({"num_types": 2, "separator": 4}, "hopfax"),
        ({"num_types": 2}, "hopfax"),  # BERT gives the second text another type
        ({"num_types": 2, "separator": 3, "norm_first": True}, "hopfax"),
        ({"num_types": 2, "separator": 3, "attention": SoftmaxAttention}, "hopfax"),
    ],
)
def test_only_what_other_libraries_compute_alike_is_saved_as_theirs(tmp_path, changes, family):
    attention = partial(SoftmaxAttention, num_heads=2)
    options = {"attention": attention, "num_layers": 1, "norm_first": False, **SIZES, **changes}
    saved = classifier(functional(lambda rngs: Encoder(VOCABULARY.size, 3, **options, rngs=rngs)))
    saved.save(tmp_path / "one")
    document = json.loads((tmp_path / "one" / "config.json").read_text())
    assert document["model_type"] == family
    loaded = Classifier.load(tmp_path / "one")
    jax.tree.map(np.testing.assert_array_equal, loaded.params, saved.params)
    modes = {path.stat().st_mode for path in (tmp_path / "one").iterdir()}
    assert len(modes) == 1  # whoever reads one file can read all
