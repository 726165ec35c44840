import itertools
import re
import sys

import bags
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hopfax import text
from hopfax.text.flips import NEVER, PIECE, WORD, best_flips, flip_gains
from hopfax.text.victim import Gradients, Victim

WORDS = ("the", "actors", "are", "wonderful", "but", "story", "drags", "badly", "in", "places")
CLEAN = "the actors are wonderful but the story drags badly in places"
SHORT = "fun but odd"
CASES = list(itertools.product(range(3), (0, 1)))


def bag(seed, words=WORDS, **options):
    return bags.Bag(words, seed=seed, **options)


def single_letter_edits(word):
    """All results of one flip, insertion or deletion of a letter."""
    letters = bags.LETTERS
    result = {word[:i] + new + word[i + 1 :] for i in range(len(word)) for new in letters}
    result |= {word[:i] + new + word[i:] for i in range(len(word) + 1) for new in letters}
    result |= {word[:i] + word[i + 1 :] for i in range(len(word)) if len(word) > 1}
    return result - {word}


def best_of(model, clean, label, edits, count):
    """Greatest loss of all texts with `count` changed words, by exhaustive search."""
    words = clean.split()
    best = (-np.inf, "")
    for places in itertools.combinations(range(len(words)), count):
        for new in itertools.product(*(edits(words[place]) for place in places)):
            version = list(words)
            for place, word in zip(places, new, strict=True):
                version[place] = word
            best = max(best, (model.one_loss(" ".join(version), label), " ".join(version)))
    return best


# In a linear model the estimate is exact, so it must find the best edit.


@pytest.mark.parametrize(("seed", "label"), CASES)
def test_characters_equal_brute_force_where_the_loss_is_linear(seed, label):
    model = bag(seed)
    (result,) = text.hotflip(model.victim(), [CLEAN], [label], rate=0.05, beam=1, num_candidates=1)
    loss, _ = best_of(model, CLEAN, label, single_letter_edits, 1)
    assert result.loss == pytest.approx(loss) and result.loss > result.clean_loss
    assert result.loss == pytest.approx(model.one_loss(result.corrupted.text, label))


@pytest.mark.parametrize(("seed", "label"), CASES)
def test_two_characters_equal_brute_force(seed, label):
    model = bag(seed, words=())
    (result,) = text.hotflip(model.victim(), [SHORT], [label], rate=0.67, num_candidates=2)
    # In a linear model each word has its own best edit: two words of the three.
    gains = []
    for word in SHORT.split():
        best = max(model.one_loss(new, label) for new in single_letter_edits(word))
        gains.append(best - model.one_loss(word, label))
    wanted = result.clean_loss + sum(sorted(gains)[1:])
    assert result.loss == pytest.approx(wanted) and result.corrupted.num_changed == 2


@pytest.mark.parametrize(("seed", "label"), CASES)
def test_tokens_equal_brute_force_where_the_loss_is_linear(seed, label):
    model = bag(seed)
    (result,) = text.hotflip(
        model.victim(),
        ["the actors are drags"],
        [label],
        rate=0.5,
        form="tokens",
        num_candidates=4,
    )
    others = [token for token in model.tokens if re.fullmatch("[a-z]+", token)]
    loss, version = best_of(
        model,
        "the actors are drags",
        label,
        lambda word: [new for new in others if new != word],
        2,
    )
    assert result.loss == pytest.approx(loss)
    assert result.corrupted.text == version
    assert [edit.kind for edit in result.corrupted.edits] == ["token", "token"]


def test_each_piece_of_a_character_edit_has_the_gradient_of_its_place():
    lengths = set()
    for seed in range(8):
        model, good = bag(seed, words=()), bag(seed, words=()).victim().gradients
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


def test_pieces_replace_pieces():
    model = bag(0)
    (result,) = text.hotflip(model.victim(), ["odd fun"], [1], rate=1, form="tokens")
    for one, other in zip(["odd", "fun"], result.corrupted.text.split(), strict=True):
        assert len(one) == len(other) and sum(a != b for a, b in zip(one, other, strict=True)) == 1
    assert [linear.ids.size for linear in model.linearize([result.corrupted.text], [1])] == [6]


def test_flips_that_are_tokenised_differently_are_dropped():
    # `od` and `of` are words: no piece of "oa" may become a letter that makes one of them.
    for seed in range(20):
        model = bag(
            seed, words=tuple("o" + letter for letter in bags.LETTERS if letter not in "ay")
        )
        (result,) = text.hotflip(model.victim(), ["oa"], [1], rate=1, form="tokens", beam=1)
        (edit,) = result.corrupted.edits or [None]
        new = result.corrupted.text
        assert len(model.pieces(new)) == 2
        assert edit is None or new == "oy" or (edit.position == 0 and new[1] == "a")
        others = [letter + "a" for letter in bags.LETTERS] + ["oy", "oa"]
        others = [other for other in others if len(model.pieces(other)) == 2]
        assert result.loss == pytest.approx(max(model.one_loss(other, 1) for other in others))


class Contractions(bags.Bag):
    """Reads an apostrophe as a token of its own, also within a word."""

    def __init__(self, seed):
        super().__init__(("was", "it", "good"), seed=seed)
        self.tokens = (*self.tokens, "'")
        self.number["'"] = len(self.table)
        # With the lowest gain, so that its flips come first.
        least = np.full((1, bags.WIDTH), -9.0) * np.sign(self.weights)
        self.table = np.concatenate([self.table, least]).astype(np.float32)

    def pieces(self, word):
        if word == "'" or "'" not in word:
            return super().pieces(word)
        return tuple(token[0] for token in self.tokenized(word))


@pytest.mark.parametrize("seed", range(4))
def test_a_contraction_keeps_its_apostrophe(seed):
    model = Contractions(seed)
    asked = {"rate": 1, "form": "tokens", "beam": 1, "num_candidates": 1}
    (result,) = text.hotflip(model.victim(), ["it was'nt"], [1], **asked)
    assert result.corrupted.num_changed == 2
    assert result.corrupted.text.count("'") == 1


def test_more_flips_are_tried_until_enough_are_valid():
    # The best flips are words of the vocabulary, which the model reads as one token.
    words = [f"o{letter}" for letter in bags.LETTERS if letter not in "ayz"]
    for seed in range(20):
        model = bag(seed, words=words)
        asked = {"rate": 1, "form": "tokens", "beam": 1, "num_candidates": 1}
        (result,) = text.hotflip(model.victim(), ["oa"], [1], **asked)
        others = [letter + "a" for letter in bags.LETTERS if letter != "o"] + ["oy", "oz"]
        others = [other for other in others if len(model.pieces(other)) == 2]
        assert result.corrupted.num_changed == 1
        assert result.loss == pytest.approx(max(model.one_loss(other, 1) for other in others))


@pytest.mark.parametrize("form", ["characters", "tokens"])
def test_a_wider_beam_is_never_worse_and_sometimes_better(form):
    losses = {1: [], 2: [], 4: []}
    for seed, width in itertools.product(range(5), losses):
        model = bag(seed, curvature=0.3)
        (result,) = text.hotflip(
            model.victim(),
            ["the story drags in places"],
            [1],
            rate=0.6,
            form=form,
            beam=width,
            num_candidates=4,
        )
        losses[width].append(result.loss)
    greedy, two, four = map(np.asarray, losses.values())
    assert (two >= greedy - 1e-9).all() and (four >= greedy - 1e-9).all()
    assert (four > greedy + 1e-6).any()


@pytest.mark.parametrize("form", ["characters", "tokens"])
def test_logs_rates_and_counts(form):
    for rate in (0, 0.1, 0.2, 0.3, 1):
        model = bag(5)
        (result,) = text.hotflip(model.victim(), [CLEAN], [1], rate=rate, form=form)
        assert text.restore(result.corrupted) == CLEAN
        # Few words of a linear model are such that no edit helps.
        assert result.corrupted.num_changed == min(10, text.num_changes(rate, 11))
        assert len(result.corrupted.text.split()) == 11
        assert result.loss == pytest.approx(model.one_loss(result.corrupted.text, 1))
        asked = {kind: sum(len(t) for k, t in model.calls if k == kind) for kind in
                 ("loss", "gradient")}  # fmt: skip
        assert asked == {"loss": result.num_losses, "gradient": result.num_gradients}


@pytest.mark.parametrize("form", ["characters", "tokens"])
def test_a_batch_equals_one_text_at_a_time(form):
    texts = [CLEAN, "the story", ("in places", "badly"), "wonderful actors are odd"]
    many, few = bag(1, curvature=0.2), bag(1, curvature=0.2)
    together = text.hotflip(many.victim(), texts, [0, 1, 0, 1], rate=0.3, form=form)
    alone = text.hotflip(few.victim(), texts, [0, 1, 0, 1], rate=0.3, form=form, batch_size=1)
    assert together == alone
    assert len(many.calls) < len(few.calls) and together[2].corrupted.text != texts[2]


@pytest.mark.parametrize("form", ["characters", "tokens"])
def test_words_shared_by_choices_have_the_sum_of_their_gradients(form):
    choices = (("the story drags", "in places"), ("the story drags", "badly"))
    for seed, label in itertools.product(range(3), (0, 1)):
        model = bag(seed)
        (result,) = text.hotflip(
            model.victim(), [choices], [label], rate=0.1, form=form, beam=1, num_candidates=1,
        )  # fmt: skip
        assert text.restore(result.corrupted) == choices
        assert (result.corrupted.num_words, result.corrupted.num_changed) == (6, 1)
        others = [token for token in model.tokens if re.fullmatch("[a-z]+", token)]
        edits = single_letter_edits if form == "characters" else lambda word: others  # noqa: B023
        gains = [
            (1 + (word in ["the", "story", "drags"]))
            * max(model.one_loss(new, label) - model.one_loss(word, label) for new in edits(word))
            for word in ["the", "story", "drags", "in", "places", "badly"]
        ]
        assert result.loss - result.clean_loss == pytest.approx(max(gains), rel=1e-5)


def test_words_that_the_model_does_not_read_stay():
    class Short(bags.Bag):
        def tokenized(self, text):
            return super().tokenized(text)[:2]

    for form in ("characters", "tokens"):
        model = Short(WORDS, seed=0)
        (result,) = text.hotflip(model.victim(), [CLEAN], [1], rate=1, form=form, beam=1)
        assert 0 < result.corrupted.num_changed <= 2
        assert result.corrupted.text.endswith(" are wonderful but the story drags badly in places")


def test_stop_at_and_the_best_version():
    model = bag(0)
    (whole,) = text.hotflip(model.victim(), [CLEAN], [1], rate=1)
    half = (whole.clean_loss + whole.loss) / 2
    (result,) = text.hotflip(model.victim(), [CLEAN], [1], rate=1, stop_at=half)
    assert half <= result.loss < whole.loss
    assert 0 < result.corrupted.num_changed < whole.corrupted.num_changed
    # If no edit raises the loss, the clean text remains.
    least = Victim(
        lambda texts, labels: np.asarray([0.0 if t == CLEAN else -1.0 for t in texts]),
        model.victim().gradients,
    )
    (none,) = text.hotflip(least, [CLEAN], [1], rate=0.2)
    assert none.corrupted.text == CLEAN and none.loss == 0 and none.num_losses > 1


def test_case_is_kept():
    model = bag(0)
    (result,) = text.hotflip(model.victim(), ["THE Actors"], [1], rate=1, form="tokens")
    first, second = result.corrupted.text.split()
    assert first.isupper() and second[0].isupper() and second[1:] == second[1:].lower()
    assert text.restore(result.corrupted) == "THE Actors"


def test_the_cache_saves_work_and_changes_no_result(monkeypatch):
    model = bag(3, curvature=0.1)
    asked = []

    def pieces(words):
        asked.extend(words)
        return list(map(model.pieces, words))

    def attack(cache, clean=CLEAN, rate=0.3):
        asked.clear()
        gradients = model.victim().gradients._replace(pieces=pieces, cache=cache)
        (result,) = text.hotflip(Victim(model.loss, gradients), [clean], [1], rate=rate, beam=2)
        return result.corrupted.edits

    wanted = attack(None)
    tokenised = len(asked)
    assert attack(None) == wanted and len(asked) == tokenised > 0
    cache = {}
    assert attack(cache) == wanted and len(asked) == tokenised
    assert attack(cache) == wanted and asked == []
    assert set(cache) == set(WORDS)
    # Other texts ask for their new words alone, and too many words push the others out.
    shorter = attack(None, SHORT)
    assert attack(cache, SHORT) == shorter and {"fun", "odd"} <= set(cache)
    assert not any("actors" in word for word in asked)
    monkeypatch.setattr(sys.modules["hopfax.text.hotflip"], "_MAX_CACHED", len(cache))
    assert attack(cache, "a new plot") == attack(None, "a new plot")
    assert set(cache) == {"a", "new", "plot"}
    assert attack(cache) == wanted


def test_gains_are_the_formula():
    rng = np.random.default_rng(0)
    table, gradient = rng.normal(size=(7, 3)), rng.normal(size=(4, 3))
    ids = np.array([1, 0, 6, 1])
    wanted = [[(table[v] - table[x]) @ g for v in range(7)] for x, g in zip(ids, gradient)]  # noqa: B905
    np.testing.assert_allclose(flip_gains(table, ids, gradient), wanted, rtol=1e-5, atol=1e-6)
    gains = jax.jit(flip_gains)(jnp.asarray(table), ids, gradient)
    np.testing.assert_allclose(gains, wanted, rtol=1e-5, atol=1e-6)


def test_best_flips_are_the_greatest_allowed_gains():
    rng = np.random.default_rng(1)
    table, gradient = rng.normal(size=(20, 3)), rng.normal(size=(5, 3))
    kinds = np.array([NEVER] * 4 + [WORD] * 9 + [PIECE] * 7)
    ids = np.array([5, 15, 1, 6, 5])  # 1 is unknown to the vocabulary: a word may replace it
    wanted = sorted(
        (
            ((table[v] - table[x]) @ gradient[place], place, v)
            for place, x in enumerate(ids)
            for v in range(20)
            if v != x and kinds[v] == (PIECE if kinds[x] == PIECE else WORD)
        ),
        reverse=True,
    )
    result = best_flips(table, ids, gradient, kinds=kinds, count=12)
    assert [flip[1:] for flip in result] == [(place, v) for _, place, v in wanted[:12]]
    np.testing.assert_allclose([flip[0] for flip in result], [w[0] for w in wanted[:12]], rtol=1e-5)
    everything = best_flips(table, ids, gradient, kinds=kinds, count=10**6)
    assert len(everything) == len(wanted)
    assert best_flips(table, ids[:0], gradient[:0], kinds=kinds, count=3) == []


def test_invalid_gradients():
    model = bag(0)
    good = model.victim().gradients

    def wrong(change):
        return Victim(
            model.loss,
            Gradients(
                lambda texts, labels: [change(linear) for linear in model.linearize(texts, labels)],
                *good[1:],
            ),
        )

    for form in ("characters", "tokens"):
        flat = wrong(lambda linear: linear._replace(gradient=linear.gradient[:, :2]))
        with pytest.raises(ValueError, match=r"gradient must have shape \(11, 5\), got \(11, 2\)"):
            text.hotflip(flat, [CLEAN], [1], rate=0.1, form=form)
        nan = wrong(lambda linear: linear._replace(gradient=np.nan * linear.gradient))
        with pytest.raises(ValueError, match=r"must be finite, which fails on 'the actors"):
            text.hotflip(nan, [CLEAN], [1], rate=0.1, form=form)
    fewer = Victim(model.loss, good._replace(linearize=lambda texts, labels: []))
    with pytest.raises(ValueError, match=r"must return 1 results, got 0"):
        text.hotflip(fewer, [CLEAN], [1], rate=0.1)
