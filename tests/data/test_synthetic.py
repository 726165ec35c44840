"""Labels are derived from the texts again, without the grammar that wrote them."""

import functools
import itertools

import numpy as np
import pytest

from hopfax.data import synthetic_split, task

TASKS = ("sentiment", "entailment", "paraphrase")


def words(text):
    return set(text.split())


GOOD = words("brilliant charming clever delightful fresh funny graceful moving superb warm")
BAD = words("awful boring clumsy dreadful dull lazy shallow stale tedious ugly")


def sentiment(texts):
    """The clause that counts, its adjective, and the parity of its negations."""
    (text,) = texts
    if text.startswith("although"):
        clause = text.split(" , ")[1]
    elif " but " in text:
        clause = text.split(" but ")[1]
    else:
        clause = text.split(" , even if ")[0].split(" although ")[0]
    words = clause.split()
    (good,) = [word in GOOD for word in words if word in GOOD | BAD]
    turns = sum(word in ("not", "never", "hardly", "no") for word in words)
    return int(good == (turns % 2 == 0))


def some(kinds, does):
    return any(does for kind, does in zip(kinds, does, strict=True) if kind)


def every(kinds, does):
    return all(does for kind, does in zip(kinds, does, strict=True) if kind)


def no(kinds, does):
    return not some(kinds, does)


def not_every(kinds, does):
    return not every(kinds, does)


QUANTIFIERS = (
    dict.fromkeys(("not a single", "not even one", "no"), no)
    | dict.fromkeys(("not every", "not each"), not_every)
    | dict.fromkeys(("at least one", "a certain", "some"), some)
    | dict.fromkeys(("every", "each", "any"), every)
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
    individuals = list(itertools.product((False, True), repeat=4))
    worlds = itertools.chain.from_iterable(
        itertools.combinations_with_replacement(individuals, size) for size in (1, 2, 3)
    )

    def holds(sentence, world):
        phrase, with_trait, with_way = sentence
        kinds = [kind and (trait or not with_trait) for kind, trait, _, _ in world]
        does = [deed and (way or not with_way) for _, _, deed, way in world]
        return QUANTIFIERS[phrase](kinds, does)

    return all(holds(hypothesis, world) for world in worlds if holds(premise, world))


SAME = [
    {"in", "inside", "within"},
    {"on", "upon", "on top of"},
    {"under", "beneath", "below"},
    {"near", "close to", "next to"},
    {"behind", "in back of", "at the back of"},
    {"before", "prior to when"},
    {"after", "as soon as"},
    {"because", "since"},
    {"although", "even though"},
    {"unless", "except if"},
    {"while", "at the time that"},
]


def meaning(text):
    """Who did what to whom; or two facts and the relation between them."""
    words = text.split()
    if words[0] == "the":
        return tuple(words[1:3]), relation(" ".join(words[3:-2])), words[-1]
    if "by" in words:
        patient, _, act, _, agent, *time = words
        return agent, act, patient, *time
    if "," in words:
        comma = words.index(",")
        return " ".join(words[comma + 1 :]), relation(words[: comma - 2]), words[comma - 2 : comma]
    if len(words) > 4 and any(" ".join(words[2:-2]) in group for group in SAME):
        return " ".join(words[:2]), relation(words[2:-2]), words[-2:]
    agent, act, patient, *time = words
    return agent, act, patient, *time


def relation(words):
    phrase = words if isinstance(words, str) else " ".join(words)
    (number,) = [number for number, group in enumerate(SAME) if phrase in group]
    return number


def paraphrase(texts):
    return int(meaning(texts[0]) == meaning(texts[1]))


READ = {"sentiment": sentiment, "entailment": entailment, "paraphrase": paraphrase}


@pytest.mark.parametrize("name", TASKS)
def test_labels_agree_with_an_independent_reading(name):
    rows = synthetic_split(name, "train", size=4000, seed=3)
    wrong = [row for row in rows if READ[name](row.texts[0]) != row.label]
    assert not wrong, wrong[:5]


@pytest.mark.parametrize("name", TASKS)
def test_a_seed_determines_the_rows_and_larger_splits_extend_smaller_ones(name):
    rows = synthetic_split(name, "train", size=300, seed=5)
    assert rows == synthetic_split(name, "train", size=300, seed=5)
    assert rows[:100] == synthetic_split(name, "train", size=100, seed=5)
    other = synthetic_split(name, "train", size=300, seed=6)
    assert len({row.texts for row in rows} & {row.texts for row in other}) < 100
    assert [row.index for row in rows] == list(range(300))


def test_rows_are_the_same_on_every_machine():
    first = {name: synthetic_split(name, "train", size=1, seed=0)[0].texts[0] for name in TASKS}
    assert first == {
        "sentiment": (
            "the dialogue was not at all funny but almost every writer found the editing moving",
        ),
        "entailment": ("not each pilot waits", "not every pilot waits slowly"),
        "paraphrase": ("the ring was behind the tower", "the ring was upon the tower"),
    }


@pytest.mark.parametrize("name", TASKS)
def test_splits_never_overlap_whatever_their_seeds(name):
    texts = [
        {row.texts for row in synthetic_split(name, split, size=1000, seed=seed)}
        for seed, split in enumerate(("train", "validation", "test"))
    ]
    assert [len(split) for split in texts] == [1000] * 3
    assert all(not one & two for one, two in itertools.combinations(texts, 2))


@pytest.mark.parametrize("name", TASKS)
def test_labels_are_balanced_and_sentences_short(name):
    rows = synthetic_split(name, "test", size=1001, seed=0)
    counts = np.bincount([row.label for row in rows])
    assert len(counts) == len(task(name).labels) and np.ptp(counts) <= 1
    longest = max(len(text.split()) for row in rows for text in row.texts[0])
    assert longest <= 20
    lexicon = {word for row in rows for text in row.texts[0] for word in text.split()}
    assert len(lexicon) <= 200


FUNCTION = words(
    "the was but although , even if not never hardly at all by no means very truly quite so "
    "every each almost many a any one found some least certain single in inside within on "
    "upon top of under beneath below near close to next behind back before prior when after "
    "as soon because since though unless except while time that"
)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("kind", ["content", "function"])
def test_a_bag_of_content_or_of_function_words_does_not_solve_it(name, kind):
    rows = synthetic_split(name, "train", size=3000, seed=0)
    tests = synthetic_split(name, "test", size=1000, seed=0)
    columns = {}

    def bag(examples, grow):
        counts = np.zeros((len(examples), 500))
        counts[:, 0] = 1
        for number, row in enumerate(examples):
            for position, text in enumerate(row.texts[0]):
                for word in text.split():
                    if (word in FUNCTION) == (kind == "function"):
                        if grow:
                            columns.setdefault((position, word), len(columns) + 1)
                        counts[number, columns.get((position, word), 499)] += 1
        return counts

    features = bag(rows, True)
    target = np.asarray([row.label for row in rows]) - 0.5
    weights = np.linalg.solve(features.T @ features + np.eye(500), features.T @ target)
    guess = bag(tests, False) @ weights > 0
    accuracy = np.mean(guess == np.asarray([row.label for row in tests]))
    assert accuracy < 0.7, accuracy
