import re
from collections import Counter

import numpy as np
import pytest

from hopfax import text
from hopfax.text import WordMemory
from hopfax.text.spelling import Retrieved, correct_words

LIST = re.findall(
    r"\S+",
    """the of and a to in it is film movie story character performance wonderful beautiful terrible
    boring funny comedy drama director audience emotional interesting original predictable
    screenplay romantic thriller dialogue cinematography entertaining disappointing charming
    brilliant awkward dreadful hilarious remarkable ordinary visually stunning heartfelt clumsy
    tedious delightful don't café weird received""",
)
COUNTS = {word: 10_000 // (rank + 1) for rank, word in enumerate(LIST)}
MEMORY = WordMemory(COUNTS)


def oracle(query, counts, span, beta, unseen):
    """Dense float64 posterior over the list and the query itself: words and probabilities."""

    def vector(word):
        marked = f"\n{word}\n"
        pairs = [
            (a, b) for i, a in enumerate(marked) for j, b in enumerate(marked) if 0 < j - i <= span
        ]
        return Counter(pairs)

    words = [*sorted(counts), query]
    vectors = [vector(word) for word in words]
    columns = sorted(set().union(*vectors))
    table = np.array([[each[pair] for pair in columns] for each in vectors], np.float64)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    prior = np.log([*(counts[word] for word in words[:-1]), unseen])
    scores = beta * table @ table[-1] + prior
    return words, np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()


@pytest.mark.parametrize("span", [1, 2, 4])
@pytest.mark.parametrize(("beta", "unseen"), [(20.0, 0.01), (6.0, 500.0)])
def test_retrieval_is_the_dense_posterior(span, beta, unseen):
    memory = WordMemory(COUNTS, span=span, beta=beta, unseen=unseen)
    queries = [change[:k] + "e" + change[k + 1 :] for change in LIST for k in (1, 3)]
    retrieved = set()
    for query in {*queries, "zzz", "q", "ooooo", "mississippi"} - set(LIST):
        words, posterior = oracle(query, COUNTS, span, beta, unseen)
        got = memory.retrieve(query)
        assert got.word == words[posterior.argmax()]
        assert got.probability == pytest.approx(posterior.max(), rel=1e-9)
        retrieved.add(got.word == query)
    assert retrieved == {True, False}


def test_known_words_stay_even_beside_frequent_ones():
    memory = WordMemory({"from": 10_000, "form": 1})
    assert memory.retrieve("form") == Retrieved("form", 1.0)
    for word in COUNTS:
        assert MEMORY.correct(word).text == word


def test_the_prior_decides_between_equally_similar_words():
    assert WordMemory({"cat": 2, "cut": 1}, unseen=1e-9).retrieve("cxt").word == "cat"
    assert WordMemory({"cat": 1, "cut": 2}, unseen=1e-9).retrieve("cxt").word == "cut"
    equal = WordMemory({"cut": 1, "cat": 1}, unseen=1e-9)
    assert equal.retrieve("cxt").word == "cat"
    assert equal.retrieve("cxt").probability == pytest.approx(0.5, abs=1e-3)


def test_the_order_of_the_list_does_not_matter():
    backwards = WordMemory(dict(reversed(COUNTS.items())))
    for word in ("wnoderful", "flim", "comdey", "zzz", "directer"):
        assert backwards.retrieve(word) == MEMORY.retrieve(word)


def test_a_larger_count_of_unseen_words_keeps_more():
    stays = []
    for unseen in (1e-9, 1e-2, 10.0, 1e6):
        memory = WordMemory(COUNTS, unseen=unseen)
        stays.append(
            sum(memory.retrieve(w).word == w for w in ("fulm", "stpry", "wnoderful", "wierd"))
        )
    assert stays == sorted(stays)
    assert stays[0] == 0 and stays[-1] == 4


def test_words_far_from_the_list_stay():
    for word in ("q", "zx", "xylophone", "日本", "αβγ"):
        corrected = MEMORY.correct(word)
        assert corrected.text == word
        assert 0.5 < corrected.words[0].probability <= 1


@pytest.mark.parametrize(
    ("clean", "typo"),
    [
        ("A wonderful film.", "A wnoderful film."),
        ("THE STORY, (terrible)!", "THE STROY, (terribel)!"),
        ("Funny—beautiful; it's 1999 ...", "Funyn—beautifull; it's 1999 ..."),
        ("well-original\n\tcomedy ", "well-orignal\n\tcomdey "),
        ("I don't", "I don'tt"),
        ("a Café drama", "a Cafée drama"),
        ("film movie", "fi|m m0vie"),
    ],
)
def test_case_and_everything_between_words_are_kept(clean, typo):
    memory = WordMemory({**COUNTS, "well": 3, "i": 3, "it's": 3})
    assert memory.correct(typo).text == clean


@pytest.mark.parametrize("empty", ["", " \n", "... 1999 !?", "_"])
def test_texts_without_words_stay(empty):
    assert MEMORY.correct(empty) == (empty, ())


def test_every_word_is_reported_with_its_place():
    corrected = MEMORY.correct("A wnoderful, wnoderful flim")
    assert [(each.start, each.before, each.after) for each in corrected.words] == [
        (0, "A", "A"),
        (2, "wnoderful", "wonderful"),
        (13, "wnoderful", "wonderful"),
        (23, "flim", "film"),
    ]
    assert corrected.words[0].probability == 1
    assert corrected.words[1].probability > 0.9


def test_most_words_with_one_typo_are_restored():
    long = [word for word in LIST if len(word) > 3]
    restored = [
        MEMORY.correct(made.text).text == word
        for word in long
        for seed in range(5)
        for corrupt in (text.misspell, text.swap_characters)
        if (made := corrupt(word, rate=1.0, seed=seed)).num_changed
    ]
    assert len(restored) > 400
    assert np.mean(restored) > 0.95


def test_counts_of_words():
    counts = text.word_counts(["Don't! well-known", "don't 1999 2nd fi|m"])
    assert counts == {"don't": 2, "well": 1, "known": 1, "2nd": 1, "fi|m": 1}
    merged = WordMemory({"Film": 1, "film": 2})
    assert merged.counts == {"film": 3}


def test_a_word_that_only_changes_case_stays():
    assert correct_words("NASA", lambda word: Retrieved(word.lower(), 1.0)).text == "NASA"


@pytest.mark.parametrize(
    ("counts", "options", "message"),
    [
        ({}, {}, "counts must have words"),
        ({"": 1}, {}, "counts must have words, none of them empty"),
        ({"film": 0}, {}, r"counts\['film'\] must be > 0 and finite, got 0"),
        ({"film": 1}, {"beta": 0.0}, "beta must be > 0"),
        ({"film": 1}, {"unseen": np.nan}, "unseen must be > 0"),
        ({"film": 1}, {"span": 0}, "span must be an integer >= 1, got 0"),
        ({"film": 1}, {"span": 1.5}, "span must be an integer >= 1, got 1.5"),
    ],
)
def test_wrong_arguments_are_named(counts, options, message):
    with pytest.raises(ValueError, match=message):
        WordMemory(counts, **options)
