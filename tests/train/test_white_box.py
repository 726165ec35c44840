import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from hopfax import text
from hopfax.data import Example, encode
from hopfax.data.tokenize import SPECIAL, WordPiece
from hopfax.nn.encoder import Perturbation
from hopfax.nn.functional import Functional
from hopfax.train.objectives import Batch, classification
from hopfax.train.white_box import white_box

SENTENCE = "the film was dull but very fun in a way that no one could say it is bad or good"
WORDS = SENTENCE.split()
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SINGLE = [letter for letter in LETTERS if letter not in WORDS]
VOCABULARY = WordPiece(
    tokens=(*SPECIAL, *WORDS, *SINGLE, *(f"##{letter}" for letter in LETTERS), *".,?'")
)
SIZES = {"width": 16, "num_layers": 1, "ff_width": 16, "max_length": 24}
TEXTS = [
    "the film was dull",
    ("is it fun ?", "the film is very fun, in a way"),
    "no one could say it is bad, or say that it was good",
    ("The FILM", "was bad"),
]
PAIRS = [(("is it fun?", "it is"), ("is it fun?", "no")), (("a way", "fun"), ("a way", "dull"))]


class Placed(tiny.Bag):
    """A bag that weights words by position, so that no two texts have the same loss."""

    embedding_scale = 3.0

    def embed_tokens(self, ids):
        return self.embedding_scale * super().embed_tokens(ids)

    def embed(self, tokens, types=None, *, key=None):
        return tokens * (1 + jnp.arange(tokens.shape[-2]) / 7)[:, None]


def bag(num_outputs=2):
    rng = np.random.default_rng(0)
    params = {
        "tokens": {"embedding": rng.normal(size=(VOCABULARY.size, 4)).astype(np.float32)},
        "out": rng.normal(size=(4, num_outputs)).astype(np.float32) / 3,
    }
    return Functional(None, tiny.apply_of(Placed), config=tiny.Config()), params


def victim(model, params, vocabulary=VOCABULARY, **options):
    options = {"max_length": 24, "lengths": (12, 24), "batch_sizes": (2, 8)} | options
    return white_box(model, params, vocabulary, **options)


def batch_of(texts, labels):
    """The same texts, encoded as for training."""
    examples = [Example(*pair, row) for row, pair in enumerate(zip(texts, labels, strict=True))]
    rows = encode(examples, VOCABULARY, max_length=24)
    return Batch(*map(jnp.asarray, (rows.ids, rows.lengths, rows.labels, np.ones(len(texts)))))


def test_losses_and_gradients_are_those_of_the_objective():
    """Of a model with attention and token types; the other tests use a bag of words."""
    types = {"num_types": 2, "separator": VOCABULARY.sep_id}
    model = tiny.robertha(VOCABULARY.size, 2, **SIZES, **types)
    texts, labels = [*TEXTS, " ".join(WORDS * 3)], [0, 1, 1, 0, 1]  # the last one is truncated
    params = tiny.lively(model, scale=0.3)
    attacked = victim(model, params, lengths=(24,), batch_sizes=(8,))
    linearized, batch = attacked.gradients.linearize(texts, labels), batch_of(texts, labels)
    objective = classification(model)

    def loss(delta, batch):
        return objective(params, batch, None, Perturbation(delta))[0]

    slope, zeros = jax.jit(jax.value_and_grad(loss)), jnp.zeros((*batch.ids[:, 0].shape, 16))
    for row, (one_text, linear) in enumerate(zip(texts, linearized, strict=True)):
        expected, gradient = slope(zeros, batch._replace(weights=jnp.arange(5.0) == row))
        assert linear.loss == pytest.approx(float(expected), abs=1e-5)
        ids = np.asarray(batch.ids)[row, 0]
        real = ids >= 4  # no special tokens
        assert linear.ids.tolist() == ids[real].tolist()
        np.testing.assert_allclose(linear.gradient, gradient[row][real], atol=1e-5)
        assert np.abs(linear.gradient).max() > 1e-3
        fields = (one_text,) if isinstance(one_text, str) else one_text
        spellings = [VOCABULARY.tokens[number].removeprefix("##") for number in linear.ids]
        spans = zip(linear.fields, linear.starts, linear.ends, strict=True)
        assert [fields[field][start:end].lower() for field, start, end in spans] == spellings


def test_models_that_store_padding_read_texts_of_one_length():
    model = tiny.robertha(VOCABULARY.size, 2, preset="released", **SIZES)
    params, options = tiny.lively(model), {"batch_sizes": (1,)}
    one, other = (victim(model, params, lengths=n, **options) for n in ((12, 24), (24,)))
    assert one.loss(TEXTS[:1], [0]).tolist() == other.loss(TEXTS[:1], [0]).tolist()


def test_losses_do_not_depend_on_batches_or_gradients():
    inputs = TEXTS * 5, [0, 1, 1, 0] * 5
    many, single = (victim(*bag(), batch_sizes=sizes) for sizes in ((2, 8), (1,)))
    losses = many.loss(*inputs)
    np.testing.assert_allclose(losses, single.loss(*inputs), rtol=1e-5)
    linearized = many.gradients.linearize(*inputs)
    np.testing.assert_allclose(losses, [linear.loss for linear in linearized], rtol=1e-5)
    assert len(set(losses[:4].round(4))) == 4


def test_choices_and_scores():
    model, params = bag(num_outputs=1)
    attacked = victim(model, params)
    losses = np.asarray([attacked.loss(PAIRS, [label, label]) for label in (0, 1)])
    np.testing.assert_allclose(np.exp(-losses).sum(0), 1, rtol=1e-5)  # two choices
    (one, _) = attacked.gradients.linearize(PAIRS, [0, 1])
    assert set(one.fields.tolist()) == {0, 1, 2, 3}
    assert one.ids[one.fields == 0].tolist() == one.ids[one.fields == 2].tolist()
    assert not np.allclose(one.gradient[one.fields == 0], one.gradient[one.fields == 2])
    scores = victim(model, params, regression=True)
    root = [np.sqrt(scores.loss(TEXTS, [label] * 4)) for label in (-50.0, 50.0)]
    np.testing.assert_allclose(root[0] + root[1], 100, rtol=1e-4)


def test_flipped_tokens_are_those_of_the_corrupted_text():
    attacked = victim(*bag())
    results = text.hotflip(attacked, TEXTS, [0, 1, 1, 0], rate=0.5, form="tokens")
    assert sum(len(result.version.edits) for result in results) >= 8
    for clean, result in zip(TEXTS, results, strict=True):
        before, after = attacked.gradients.linearize([clean, result.version.text], [0, 0])
        assert len(before.ids) == len(after.ids)
        assert np.sum(before.ids != after.ids) == result.version.num_changed
        assert (after.ids >= 4).all()


def test_a_word_may_end_in_an_accent_that_the_tokens_omit():
    options = {"rate": 1, "form": "tokens", "beam": 1}
    plain, accented = text.hotflip(victim(*bag()), ["fun", "fun\u0301"], [1, 1], **options)
    assert plain.version.num_changed == 1
    assert accented.version.text == plain.version.text + "\u0301"
    assert accented.loss == pytest.approx(plain.loss)


MODEL, PARAMS = bag()
STACKED = jax.tree.map(lambda leaf: leaf[None], PARAMS)
POSITIONS = PARAMS | {"positions": {"embedding": np.zeros((24, 4))}}
LARGER = WordPiece(tokens=(*VOCABULARY.tokens, "more"))


@pytest.mark.parametrize(
    ("options", "texts", "label", "message"),
    [
        ({"params": STACKED}, TEXTS, 0, r"shape \(tokens, width\) .* got \(1, "),
        ({"batch_sizes": (8, 4)}, TEXTS, 0, "batch_sizes must be positive and increase"),
        ({"vocabulary": LARGER}, TEXTS, 0, f"tokens >= {LARGER.size}"),
        ({"params": POSITIONS, "max_length": 128}, TEXTS, 0, r"max_length .* \[5, 24\], got 128"),
        ({}, TEXTS, 2, r"labels must be in \[0, 2\), got 2"),
        ({}, [("it is", "a film", "a way")], 0, "texts must be a string, a pair .* got "),
        ({}, [PAIRS[0], (*PAIRS[0], PAIRS[0][0])], 0, r"many choices, got \[2, 3\]"),
    ],
)
def test_what_does_not_fit_is_an_error(options, texts, label, message):
    with pytest.raises((ValueError, TypeError), match=message):
        victim(MODEL, **{"params": PARAMS} | options).loss(texts, [label] * len(texts))
