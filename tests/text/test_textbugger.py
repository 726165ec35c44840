import itertools

import numpy as np
import pytest
from text.bags import CLEAN, Bag

from hopfax import text
from hopfax.text.attack import Victim
from hopfax.text.tables import LOOK_ALIKES


def attack(model, texts=(CLEAN,), labels=(1,), **options):
    return text.textbugger(model.victim(), texts, labels, **{"rate": 0.2} | options)


def bugs_of(word):
    """All bugs of a word by kind, written from the paper."""
    inner = range(1, len(word) - 1)
    insert = {word[:i] + " " + word[i:] for i in range(1, len(word))} if len(word) < 6 else set()
    delete = {word[:i] + word[i + 1 :] for i in inner}
    swap = {word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in inner[:-1] if len(word) > 4}
    signs = [(i, sign) for i, letter in enumerate(word) for sign in LOOK_ALIKES.get(letter, "")]
    substitute = {word[:i] + sign + word[i + 1 :] for i, sign in signs}
    return [kind - {word} for kind in (insert, delete, swap, substitute)]


@pytest.mark.parametrize("rate", [0.1, 0.2, 1])
@pytest.mark.parametrize(("seed", "label"), list(itertools.product(range(4), (0, 1))))
def test_the_most_important_words_get_their_worst_bugs(seed, label, rate):
    model, words = Bag(seed=seed), CLEAN.split()
    (result,) = attack(model, labels=[label], rate=rate)
    (_, first), *steps = model.calls
    without = [" ".join(words[:i] + words[i + 1 :]) for i in range(len(words))]
    assert [version.replace("  ", " ").strip() for version in first] == [CLEAN, *without]
    importance = [model.one_loss(version, label) for version in without]
    path = [(model.one_loss(CLEAN, label), CLEAN)]
    spellings = list(words)
    order = np.argsort(-np.asarray(importance), kind="stable")[: text.num_changes(rate, 11)]
    for index, (_, versions) in zip(order, steps, strict=True):
        before, after = spellings[:index], spellings[index + 1 :]
        options = [
            {" ".join([*before, bug, *after]) for bug in kind} for kind in bugs_of(words[index])
        ]
        assert len(versions) <= sum(map(bool, options))
        assert set(versions) <= set.union(*options)
        assert all(kind & set(versions) for kind in options if kind)
        path.append(max((model.one_loss(version, label), version) for version in versions))
        start, end = len(" ".join([*before, ""])), len(" ".join(["", *after]))
        spellings[index] = path[-1][1][start : len(path[-1][1]) - end]
    # A later word may undo the effect of an earlier one.
    loss, worst = max(path)
    assert (result.loss, result.version.text) == (pytest.approx(loss), worst)
    assert result.clean_loss == path[0][0] and text.restore(result.version) == CLEAN
    assert all(kind == "loss" for kind, _ in model.calls)


def test_randomness_depends_on_the_seed_and_row_only():
    texts, labels = [CLEAN, "a wonderful story", CLEAN, "badly done in places"], [1, 0, 0, 1]
    together = attack(Bag(seed=0), texts, labels, rate=0.3, rows=[5, 6, 7, 9])
    for place, row in enumerate([5, 6, 7, 9]):
        alone = attack(Bag(seed=0), [texts[place]], [labels[place]], rate=0.3, rows=[row])
        assert alone == [together[place]]
    for options in ({"rows": [6]}, {"rows": [5], "seed": 1}):
        (other,) = attack(Bag(seed=0), rate=0.3, **options)
        assert other.version != together[0].version


def test_bugs_are_the_same_on_every_machine():
    codes = Victim(lambda texts, labels: np.array([sum(map(ord, each)) for each in texts]))
    for seed, row, start in ((1, 5, "th e actors ar e wond"), (5, 1, "t he actors ar e wond")):
        (result,) = text.textbugger(codes, [CLEAN], [1], rate=0.3, seed=seed, rows=[row])
        assert result.version.text.startswith(start)


@pytest.mark.parametrize("method", [text.textbugger, text.hotflip])
def test_texts_without_words_stay_and_the_others_change(method):
    results = method(Bag(seed=0).victim(), ["1999", CLEAN, ""], [1, 1, 1], rate=0.2)
    assert [bool(result.version.edits) for result in results] == [False, True, False]
    assert results[0] == (text.split_words("1999"), *[Bag(seed=0).one_loss("1999", 1)] * 2)


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        (np.full(12, np.nan), r"the loss must be finite, got nan on 'the actors"),
        (np.zeros(1), r"loss must return shape \(12,\), got \(1,\)"),
    ],
)
def test_invalid_losses(losses, message):
    with pytest.raises(ValueError, match=message):
        text.textbugger(Victim(lambda texts, labels: losses), [CLEAN], [1], rate=0.1)
