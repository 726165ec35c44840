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


def test_equally_probable_words_are_in_alphabetical_order():
    tied = WordMemory({"cut": 1, "cat": 1}, unseen=1e-9).retrieve("cxt")
    assert tied.word == "cat" and tied.probability == pytest.approx(0.5, abs=1e-3)


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
        *((empty, empty) for empty in ("", " \n", "... 1999 !?", "_")),
    ],
)
def test_case_and_everything_between_words_are_kept(clean, typo):
    memory = WordMemory({**COUNTS, "well": 3, "i": 3, "it's": 3})
    assert memory.correct(typo).text == clean


def test_every_word_is_reported_with_its_place():
    corrected = MEMORY.correct("A 1999 wnoderful flim")
    words = [(0, "A", "A"), (7, "wnoderful", "wonderful"), (17, "flim", "film")]
    assert [word[:3] for word in corrected.words] == words
    assert [word.probability for word in corrected.words] == pytest.approx([1, 1, 1], abs=0.1)


def test_most_words_with_one_typo_are_restored():
    restored = [
        MEMORY.correct(corrupt(word, rate=1.0, seed=seed).text).text == word
        for word in LIST
        if len(word) > 3
        for seed in range(5)
        for corrupt in (text.misspell, text.swap_characters)
    ]
    assert np.mean(restored) > 0.95


def test_counts_of_words():
    with pytest.raises(TypeError, match="put it in a list"):
        text.word_counts("a film")
    counts = text.word_counts(["Don't! well-known", "don't 1999 2nd fi|m"])
    assert counts == {"don't": 2, "well": 1, "known": 1, "2nd": 1, "fi|m": 1}
    assert WordMemory({"Film": 1, "film": 2}).counts == {"film": 3}


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
