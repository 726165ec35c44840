"""Labels are derived from the texts again, without the grammar that wrote them."""

import functools
import itertools

import numpy as np
import pytest

from hopfax.data import synthetic_split, task


def words(text):
    return set(text.split())


GOOD = words("brilliant charming clever delightful fresh funny graceful moving superb warm")
BAD = words("awful boring clumsy dreadful dull lazy shallow stale tedious ugly")


def sentiment(texts):
    """The clause that counts, its adjective, and the parity of its negations."""
    (text,) = texts
    if text.startswith("although"):
        clause = text.split(" , ")[1]
    else:
        clause = text.split(" but ")[-1].split(" , even if ")[0].split(" although ")[0]
    words = clause.split()
    (good,) = [word in GOOD for word in words if word in GOOD | BAD]
    negations = sum(word in ("not", "never", "hardly", "no") for word in words)
    return int(good == (negations % 2 == 0))


# A quantifier, of pairs (is of the kind, does the deed), by its phrases.
QUANTIFIERS = (
    dict.fromkeys(("not a single", "not even one", "no"), lambda x: (True, True) not in x)
    | dict.fromkeys(("at least one", "a certain", "some"), lambda x: (True, True) in x)
    | dict.fromkeys(("every", "each", "any"), lambda x: (True, False) not in x)
    | dict.fromkeys(("not every", "not each"), lambda x: (True, False) in x)
)
TRAITS = words("old young small tall brown grey hungry quiet happy tired")


def entailment(texts):
    """0 if every small world in which the premise holds is one in which the hypothesis does."""
    sentences, content = [], []
    for text in texts:
        phrase = next(phrase for phrase in QUANTIFIERS if text.startswith(phrase + " "))
        words = text.removeprefix(phrase + " ").split()
        trait = words.pop(0) if words[0] in TRAITS else None
        kind, deed, *way = words
        sentences.append((phrase, trait is not None, bool(way)))
        content.append((kind, deed, trait, way[0] if way else None))
    assert content[0][:2] == content[1][:2]
    assert all(None in pair or pair[0] == pair[1] for pair in zip(*content, strict=True))
    return int(not _follows(*sentences))


@functools.cache
def _follows(premise, hypothesis):
    # An individual: is it of the kind, has it the trait, does it the deed, in that way.
    individuals = itertools.product((False, True), repeat=4)
    worlds = itertools.combinations_with_replacement(individuals, 3)

    def holds(sentence, world):
        phrase, with_trait, with_way = sentence
        pairs = [(k and (t or not with_trait), d and (w or not with_way)) for k, t, d, w in world]
        return QUANTIFIERS[phrase](pairs)

    return all(holds(hypothesis, world) for world in worlds if holds(premise, world))


SAME = [
    {"in", "inside", "within"}, {"on", "upon", "on top of"}, {"under", "beneath", "below"},
    {"near", "close to", "next to"}, {"behind", "in back of", "at the back of"},
    {"before", "prior to when"}, {"after", "as soon as"}, {"because", "since"},
    {"although", "even though"}, {"unless", "except if"}, {"while", "at the time that"},
]  # fmt: skip


def meaning(text):
    """Who did what to whom; or two facts and the relation between them."""
    words = text.split()
    if words[0] == "the":
        return words[1:3], relation(words[3:-2]), words[-1]
    if "by" in words:
        patient, _, act, _, agent, *time = words
        return agent, act, patient, *time
    if "," in words:
        comma = words.index(",")
        return words[comma + 1 :], relation(words[: comma - 2]), words[comma - 2 : comma]
    if relation(words[2:-2]) is not None:
        return words[:2], relation(words[2:-2]), words[-2:]
    return tuple(words)


def relation(words):
    numbers = [number for number, group in enumerate(SAME) if " ".join(words) in group]
    return numbers[0] if numbers else None


def paraphrase(texts):
    return int(meaning(texts[0]) == meaning(texts[1]))


READ = {"sentiment": sentiment, "entailment": entailment, "paraphrase": paraphrase}


@pytest.mark.parametrize("name", READ)
def test_labels_are_balanced_and_agree_with_an_independent_reading(name):
    rows = synthetic_split(name, "train", size=4001, seed=3)
    assert not [row for row in rows if READ[name](row.texts[0]) != row.label]
    counts = np.bincount([row.label for row in rows])
    assert len(counts) == len(task(name).labels) and np.ptp(counts) <= 1


@pytest.mark.parametrize("name", READ)
def test_seeds_differ_and_larger_splits_extend_smaller_ones(name):
    split = functools.partial(synthetic_split, name, "train")
    rows, few, other = split(size=300, seed=5), split(size=100, seed=5), split(size=300, seed=6)
    assert rows[:100] == few and [row.index for row in rows] == list(range(300))
    assert len({row.texts for row in rows} & {row.texts for row in other}) < 100


def test_rows_are_the_same_on_every_machine():
    first = {name: synthetic_split(name, "train", size=1, seed=0)[0].texts[0] for name in READ}
    assert first == {
        "sentiment": (
            "the dialogue was not at all funny but almost every writer found the editing moving",
        ),
        "entailment": ("not each pilot waits", "not every pilot waits slowly"),
        "paraphrase": ("the ring was behind the tower", "the ring was upon the tower"),
    }


@pytest.mark.parametrize("name", READ)
def test_splits_never_overlap_whatever_their_seeds(name):
    texts = [
        {row.texts for row in synthetic_split(name, split, size=1000, seed=seed)}
        for seed, split in enumerate(("train", "validation", "test"))
    ]
    assert [len(split) for split in texts] == [1000] * 3
    assert all(not one & two for one, two in itertools.combinations(texts, 2))
