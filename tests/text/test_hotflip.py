import itertools
import re

import numpy as np
import pytest
from text import bags
from text.bags import CLEAN, WORDS, Bag

from hopfax import text
from hopfax.text import Victim

SHORT = "fun but odd"
CASES = list(itertools.product(range(3), (0, 1)))
FORMS = pytest.mark.parametrize("form", ["characters", "tokens"])


def attack(model, clean=CLEAN, label=1, **options):
    (result,) = text.hotflip(model.victim(), [clean], [label], **{"rate": 1} | options)
    assert text.restore(result.version) == clean
    assert result.loss == pytest.approx(model.one_loss(result.version.text, label))
    return result


def single_letter_edits(word):
    """All results of one flip, insertion or deletion of a letter."""
    letters = bags.LETTERS
    edits = {word[:i] + new + word[i + 1 :] for i in range(len(word)) for new in letters}
    edits |= {word[:i] + new + word[i:] for i in range(len(word) + 1) for new in letters}
    edits |= {word[:i] + word[i + 1 :] for i in range(len(word)) if len(word) > 1}
    return edits - {word}


def best_gain(model, word, label, form):
    """Greatest increase of a linear model's loss by one edit of a word."""
    edits = [token for token in model.tokens if re.fullmatch("[a-z]+", token)]
    if form == "characters":
        edits = single_letter_edits(word)
    return max(model.one_loss(new, label) for new in edits) - model.one_loss(word, label)


@pytest.mark.parametrize(("seed", "label"), CASES)
@pytest.mark.parametrize(
    ("words", "clean", "form", "count", "options"),
    [
        (WORDS, CLEAN, "characters", 1, {"beam": 1, "num_candidates": 1}),
        ((), SHORT, "characters", 2, {"num_candidates": 2}),
        (WORDS, "the actors are drags", "tokens", 2, {"num_candidates": 4}),
    ],
)
def test_linear_models_get_the_best_edits(words, clean, form, count, options, seed, label):
    model = Bag(words, seed=seed)
    rate = count / len(clean.split())
    result = attack(model, clean, label, rate=rate, form=form, **options)
    gains = sorted(best_gain(model, word, label, form) for word in clean.split())
    assert result.loss == pytest.approx(result.clean_loss + sum(gains[-count:]))
    assert result.version.num_changed == count


def test_each_piece_of_a_character_edit_has_the_gradient_of_its_place():
    lengths = set()
    for seed in range(8):
        model, good = Bag(seed=seed, words=()), Bag(seed=seed, words=()).victim().gradients
        slopes = np.random.default_rng(seed).normal(size=(3, bags.WIDTH)).astype(np.float32)

        def linearize(texts, labels, model=model, slopes=slopes):
            return [each._replace(gradient=slopes) for each in model.linearize(texts, labels)]

        def estimate(word, model=model, slopes=slopes):
            ids = model.pieces(word)
            return sum(model.table[v] @ slopes[min(j, 2)] for j, v in enumerate(ids))

        victim = Victim(model.loss, good._replace(linearize=linearize))
        text.hotflip(victim, ["fun"], [1], rate=1, beam=1, num_candidates=1)
        (proposal,) = model.calls[-1][1]
        assert estimate(proposal) == pytest.approx(max(map(estimate, single_letter_edits("fun"))))
        lengths.add(len(proposal))
    assert 4 in lengths


@pytest.mark.parametrize("seed", range(3))
def test_flips_that_are_tokenized_differently_are_dropped(seed):
    # Most flips of "oa" give a word of the vocabulary, which the model reads as one token.
    model = Bag(seed=seed, words=[f"o{letter}" for letter in bags.LETTERS if letter not in "ayz"])
    result = attack(model, "oa", form="tokens", beam=1, num_candidates=1)
    others = [letter + "a" for letter in bags.LETTERS] + ["oy", "oz"]
    others = [other for other in others if len(model.pieces(other)) == 2]
    assert result.loss == pytest.approx(max(model.one_loss(other, 1) for other in others))
    assert len(model.pieces(result.version.text)) == 2


@FORMS
def test_a_wider_beam_is_never_worse_and_sometimes_better(form):
    losses, clean = [], "the story drags in places"
    for seed in (0, 1, 2, 3, 27):  # at 27, the best texts of the beam alone lose the greedy path
        model = Bag(seed=seed, curvature=0.3)
        options = {"rate": 0.6, "form": form, "num_candidates": 4}
        losses.append([attack(model, clean, beam=n, **options).loss for n in (1, 2, 4)])
    greedy, two, four = np.transpose(losses)
    assert (two >= greedy - 1e-9).all() and (four >= greedy - 1e-9).all()
    assert (four > greedy + 1e-6).any()


@FORMS
def test_budgets_of_words_and_queries(form):
    for rate in (0, 0.3, 1):
        model = Bag(seed=5)
        result = attack(model, rate=rate, form=form)
        # One word has no edit that raises this loss.
        assert result.version.num_changed == min(10, text.num_changes(rate, 11))
        # The clean text, then the gradients of 3 texts and the losses of 16 edits of each.
        kinds = [kind for kind, _ in model.calls]
        assert kinds == ["loss", *["gradient", "loss"] * text.num_changes(rate, 11)]
        most = {"loss": 3 * 16, "gradient": 3}
        assert all(len(texts) <= most[kind] for kind, texts in model.calls)


@FORMS
def test_a_batch_equals_one_text_at_a_time(form):
    texts = [CLEAN, "the story", ("in places", "badly"), "wonderful actors are odd"]
    many, few = Bag(seed=1, curvature=0.2), Bag(seed=1, curvature=0.2)
    options = {"rate": 0.3, "form": form}
    together = text.hotflip(many.victim(), texts, [0, 1, 0, 1], **options)
    assert together == text.hotflip(few.victim(), texts, [0, 1, 0, 1], batch_size=1, **options)
    assert len(many.calls) < len(few.calls) and together[2].version.text != texts[2]


@FORMS
def test_words_shared_by_choices_have_the_sum_of_their_gradients(form):
    choices = (("the story drags", "in places"), ("the story drags", "badly"))
    weights = {"the": 2, "story": 2, "drags": 2, "in": 1, "places": 1, "badly": 1}
    for seed, label in CASES:
        model = Bag(seed=seed)
        options = {"rate": 0.1, "form": form, "beam": 1, "num_candidates": 1}
        result = attack(model, choices, label, **options)
        assert (result.version.num_words, result.version.num_changed) == (6, 1)
        best = max(best_gain(model, word, label, form) * weights[word] for word in weights)
        assert result.loss - result.clean_loss == pytest.approx(best, rel=1e-5)


@FORMS
def test_words_that_the_model_does_not_read_stay(form):
    class Short(bags.Bag):
        def tokenized(self, text):
            return super().tokenized(text)[:2]

    result = attack(Short(seed=0), form=form, beam=1)
    assert 0 < result.version.num_changed <= 2
    assert result.version.text.endswith(" are wonderful but the story drags badly in places")


def test_the_clean_text_remains_if_no_edit_raises_the_loss():
    gradients = Bag(seed=0).victim().gradients
    flat = Victim(lambda texts, labels: -1.0 * (np.array(texts) != CLEAN), gradients)
    (unchanged,) = text.hotflip(flat, [CLEAN], [1], rate=0.2)
    assert unchanged.version.text == CLEAN and unchanged.loss == 0


def test_case_is_kept():
    first, second = attack(Bag(seed=0), "THE Actors", form="tokens").version.text.split()
    assert first.isupper() and second[0].isupper() and second[1:] == second[1:].lower()


def test_the_cache_changes_no_result():
    model, cache = Bag(seed=3, curvature=0.1), {}

    def edits(cache):
        gradients = model.victim().gradients._replace(cache=cache)
        (result,) = text.hotflip(Victim(model.loss, gradients), [CLEAN], [1], rate=0.3, beam=2)
        return result.version.edits

    emptied = type("Emptied", (dict,), {"__setitem__": lambda *_: None})  # by another thread
    assert edits(cache) == edits(cache) == edits(emptied()) == edits(None)
    assert set(cache) == set(WORDS)


@FORMS
def test_tokens_must_not_depend_on_the_space_before_a_word_and_gradients_be_finite(form):
    model = Bag(seed=0)
    victim = model.victim()
    byte_level = victim._replace(gradients=victim.gradients._replace(tokens=("##", "Ġthe", "Ġa")))
    model.weights = np.full(bags.WIDTH, np.nan)
    broken = Victim(lambda texts, labels: np.zeros(len(texts)), model.victim().gradients)
    for wrong, message in (
        (byte_level, r"the space before a word \(WordPiece\), got 'Ġthe'"),
        (broken, "finite, got nan or inf on 'the act"),
    ):
        with pytest.raises(ValueError, match=message):
            text.hotflip(wrong, [CLEAN], [1], rate=0.1, form=form)
