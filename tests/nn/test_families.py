"""What families add to BERT and Llama, against slow NumPy, and against PyTorch if installed."""

from functools import partial

import jax
import numpy as np
import pytest
from nn.checkpoints import CONFIGS, PAD, VOCAB, save_random
from safetensors.numpy import load_file

from hopfax.classifier import Classifier
from hopfax.data import train_vocabulary
from hopfax.nn import language_prior, load_pretrained
from hopfax.nn.families import FAMILIES

LABELS = ("no", "maybe", "yes")
LENGTHS = np.array([7, 5, 2])
MASK = np.arange(7) < LENGTHS[:, None]
IDS = np.where(MASK, np.random.default_rng(0).integers(PAD + 1, VOCAB, (3, 7)), PAD)
VOCABULARY = train_vocabulary(["a b c d e f g h i j k l m n o p"])
WINDOWS = {"llama": (99, 99), "mistral": (3, 3), "qwen2": (99, 3), "qwen3": (99, 3)}  # of layers


def slow_llama(tensors, ids, windows):
    """Returns the logits of one text, with a loop over tokens and heads."""

    def norm(name, x):
        scale = np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
        return x / scale * tensors[f"model.{name}.weight"]

    def linear(name, x):
        return x @ tensors[f"model.{name}.weight"].T + tensors.get(f"model.{name}.bias", 0)

    def rotate(x):
        angles = np.arange(len(x))[:, None, None] * 100.0 ** (-np.arange(3) / 3)
        z = (x[..., :3] + 1j * x[..., 3:]) * np.exp(1j * angles)
        return np.concatenate([z.real, z.imag], axis=-1)

    x = tensors["model.embed_tokens.weight"][ids]
    for layer, window in enumerate(windows):
        at, own = f"layers.{layer}", f"layers.{layer}.self_attn"
        h = norm(f"{at}.input_layernorm", x)
        query, key, value = (linear(f"{own}.{n}_proj", h).reshape(len(ids), -1, 6) for n in "qkv")
        if f"model.{own}.q_norm.weight" in tensors:
            query, key = norm(f"{own}.q_norm", query), norm(f"{own}.k_norm", key)
        query, key, mixed = rotate(query), rotate(key), np.zeros((len(ids), 4, 6))
        for t, head in np.ndindex(len(ids), 4):
            seen = np.s_[max(0, t + 1 - window) : t + 1, head // 2]
            weights = np.exp(key[seen] @ query[t, head] / np.sqrt(6))
            mixed[t, head] = weights @ value[seen] / weights.sum()
        x = x + linear(f"{own}.o_proj", mixed.reshape(len(ids), -1))
        h = norm(f"{at}.post_attention_layernorm", x)
        gate = linear(f"{at}.mlp.gate_proj", h)
        hidden = gate / (1 + np.exp(-gate)) * linear(f"{at}.mlp.up_proj", h)
        x = x + linear(f"{at}.mlp.down_proj", hidden)
    return norm("norm", x) @ tensors["lm_head.weight"].T


@pytest.mark.parametrize("family", WINDOWS)
def test_llama_s_relatives_equal_the_slow_reference(tmp_path, family):
    model = load_pretrained(save_random(tmp_path, family, scale=0.5))
    tensors = {n: x.astype(float) for n, x in load_file(tmp_path / "model.safetensors").items()}
    output = model.forward(model.embed(IDS), MASK).output
    for row, ids, length in zip(output, IDS, LENGTHS, strict=True):
        expected = slow_llama(tensors, ids[:length], WINDOWS[family])
        np.testing.assert_allclose(row[:length], expected, atol=2e-5)


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "llama"])
def test_a_causal_classifier_reads_the_last_token_that_is_not_padding(tmp_path, family):
    changes = {"final_logit_softcapping": 0.1} if family == "gemma2" else {}  # for words only
    model = load_pretrained(save_random(tmp_path, family, labels=LABELS, **changes))
    assert model.labels == LABELS and model.problem == "single_label_classification"
    score = load_file(tmp_path / "model.safetensors")["score.weight"]
    right = model.forward(model.embed(IDS), MASK)
    logits = model.classify(right.hidden_states[-1], MASK)
    last = np.arange(3), LENGTHS - 1
    expected = right.hidden_states[-1][last] @ score.T
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(right.output[last], expected, rtol=1e-3, atol=1e-4)
    rolled = np.stack([np.roll(row, 7 - n) for row, n in zip(IDS, LENGTHS, strict=True)])
    left = model.forward(model.embed(rolled), MASK[:, ::-1]).hidden_states[-1]
    np.testing.assert_allclose(model.classify(left, MASK[:, ::-1]), logits, rtol=1e-3, atol=1e-4)
    for use in (partial(language_prior, model, 3, start=1), partial(Classifier.load, tmp_path)):
        with pytest.raises(ValueError, match=r"got (a )?\w+ with 3 labels"):
            use()


@pytest.mark.parametrize(
    ("labels", "stated", "problem"),
    [
        (LABELS, None, "single_label_classification"),
        (LABELS, "multi_label_classification", "multi_label_classification"),
        (LABELS, "regression", "regression"),
        (("score",), None, "regression"),
        ((), None, None),
    ],
)
def test_the_problem_says_what_the_logits_are(tmp_path, labels, stated, problem):
    model = load_pretrained(save_random(tmp_path, "bert", labels=labels, problem_type=stated))
    assert (model.labels, model.problem) == (labels, problem)
    if labels:
        hidden = model.forward(model.embed(IDS), MASK).output
        assert model.classify(hidden, MASK).shape == (3, len(labels))
    if problem != "single_label_classification":
        with pytest.raises(ValueError, match=f"{len(labels)} labels and problem {problem}"):
            Classifier.load(tmp_path)


@pytest.mark.parametrize("family, site", [("distilbert", "token"), ("electra", "embedding")])
def test_a_classifier_is_loaded_gets_memory_and_is_saved(tmp_path, family, site):
    save_random(tmp_path / "one", family, labels=LABELS, scale=0.5, pad_token_id=VOCABULARY.pad_id)
    (tmp_path / "one" / "vocab.txt").write_text("\n".join(VOCABULARY.tokens))
    plain = Classifier.load(tmp_path / "one")
    robust, texts = plain.with_memory(site=site), ["a b", ("c d", "e f")]
    clean, denoised = (each.predict(texts).probabilities for each in (plain, robust))
    assert plain.labels == LABELS and np.ptp(clean, axis=0).max() > 1e-3
    np.testing.assert_allclose(denoised, clean, atol=1e-4)  # there is no noise
    for name, model in (("plain", plain), ("robust", robust)):
        model.save(tmp_path / name)
        again = Classifier.load(tmp_path / name)
        assert again.config == model.config
        jax.tree.map(np.testing.assert_array_equal, again.params, model.params)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_pytorch(tmp_path, family):
    torch, transformers = map(pytest.importorskip, ("torch", "transformers"))
    sizes = CONFIGS.get(family, CONFIGS["roberta"]) | {"model_type": family, "pad_token_id": PAD}
    config = transformers.AutoConfig.for_model(**sizes, num_labels=3, initializer_range=0.3)
    torch.manual_seed(0)
    theirs = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    theirs.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = theirs(torch.tensor(IDS), attention_mask=torch.tensor(MASK).long()).logits
    model = load_pretrained(tmp_path)
    hidden = model.forward(model.embed(IDS), MASK).hidden_states[-1]
    np.testing.assert_allclose(model.classify(hidden, MASK), expected.numpy(), atol=1e-5)
