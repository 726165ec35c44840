import itertools

import numpy as np
import pytest

from hopfax import text
from hopfax.text.log import split_words

FILM = "A wonderful, delightful film that nobody with any sense of humour should ever miss."
PAIR = ("How do I learn programming?", "What’s the best way to learn to program quickly?")
CAUSE = "The man lost weight. What was the cause?"
COPA = ((CAUSE, "He ate less food."), (CAUSE, "He moved house."))
# A swap may make the choices equal.
ALIKE = (("Why?", "the cat sat"), ("Why?", "the cta sat"))
ODD = [
    "café naïve über",
    "cafe\u0301 nai\u0308ve u\u0308ber",
    "Привет, как дела?",
    "ΟΔΥΣΣΕΎΣ και Πηνελόπη",
    "İstanbul'da güzel",
    "那是一个很好的电影 emoji 👍🏽 inside words👍 like this",
    "tabs\tand\nnew lines\u2028and  blanks ",
    "it 's do n't -lrb- well-known -rrb- ...",
    "",
    "1999 ... !!! 3.14",
]
BOTH = pytest.mark.parametrize("corrupt", [text.misspell, text.swap_characters])


@BOTH
@pytest.mark.parametrize("clean", [FILM, PAIR, COPA, (FILM,), ALIKE, *ODD], ids=str)
def test_the_clean_text_comes_back(corrupt, clean):
    for rate, seed in itertools.product((0, 0.1, 0.3, 1), range(8)):
        corrupted = corrupt(clean, rate=rate, seed=seed)
        assert text.restore(corrupted) == clean
        assert (corrupted.text != clean) == bool(corrupted.edits) == (corrupted.num_changed > 0)
        assert corrupted.num_changed <= text.num_changes(rate, corrupted.num_words)


@BOTH
def test_rates_are_met(corrupt):
    cases = [(0, 20), (0.1, 20), (0.1, 25), (0.1, 24), (0.7, 45), (0.01, 3), (1, 3), (0.2, 0)]
    assert [text.num_changes(*case) for case in cases] == [0, 2, 3, 2, 32, 1, 3, 0]
    words = " ".join(f"word{letter}" for letter in "abcdefghijklmnopqrst")
    for rate in (0.1, 0.3, 1):
        corrupted = corrupt(words, rate=rate, seed=3)
        assert corrupted.rate == rate and corrupted.num_words == 20
        changed = np.sum(np.array(words.split()) != np.array(corrupted.text.split()))
        assert changed == corrupted.num_changed == len(corrupted.edits)
    few = corrupt("of to an in film", rate=1, seed=0)
    assert (few.num_changed, few.num_words, few.rate) == (1, 5, 0.2)
    for seed in range(5):  # at least one word changes, if any can
        assert corrupt("the best film", rate=0.01, seed=seed).num_changed == 1
        assert corrupt("a to of", rate=1, seed=seed) == text.split_words("a to of")


@BOTH
def test_seeds_decide_and_rates_are_nested(corrupt):
    seeds = [*((23, row) for row in range(10)), *((seed, 7) for seed in range(10))]
    assert len({corrupt(FILM, rate=0.2, seed=seed).text for seed in seeds}) == 20
    low, high = (corrupt(FILM, rate=rate, seed=4) for rate in (0.1, 0.3))
    assert high.edits[: len(low.edits)] == low.edits and len(low.edits) < len(high.edits)


def test_typos_are_the_same_on_every_machine():
    ends = [
        (text.misspell, 4, "of humowr should evor miss."),
        (text.misspell, (23, 7), "any swnse of humour should ever miss."),
        (text.swap_characters, 4, "of hmuour should eevr miss."),
        (text.swap_characters, (23, 7), "any sesne of humour should ever miss."),
    ]
    for corrupt, seed, end in ends:
        assert corrupt(FILM, rate=0.3, seed=seed).text.endswith(end)


def test_all_words_are_equally_likely():
    words = " ".join(f"word{letter}" for letter in "abcdefghij")
    changed = [text.swap_characters(words, rate=0.1, seed=seed).text for seed in range(1000)]
    differ = np.array([each.split() for each in changed]) != np.array(words.split())
    assert (np.abs(differ.sum(axis=0) - 100) < 5 * 90**0.5).all()


def test_strings_shared_by_choices_change_together_and_count_once():
    words = split_words(COPA).words
    assert len(words) == 8 + 4 + 3
    corrupted = text.misspell(COPA, rate=1, seed=2)
    assert corrupted.text[0][0] == corrupted.text[1][0] != COPA[0][0]
    assert text.restore(corrupted) == COPA
    shared = sum(word.fields == (0, 2) for word in words)
    assert shared == 8 and len(corrupted.edits) > corrupted.num_changed
    # The two strings of a pair are never shared.
    twice = text.misspell(("the same film", "the same film"), rate=0.4, seed=0)
    assert twice.num_words == 6 and twice.num_changed == 2


@pytest.mark.parametrize(
    ("clean", "words"),
    [
        ("it 's well-known, don't 1999 the", "it s well known don't the"),
        ("2nd O’Neill _x_ 3.14", "2nd O’Neill x"),
        ("cafe\u0301 Привет 那是", "cafe\u0301 Привет 那是"),
        ("यह फिल्म अच्छी है", "यह फिल्म अच्छी है"),  # vowel signs and joined letters
        (("one", "two three"), "one two three"),
    ],
)
def test_what_a_word_is(clean, words):
    now = split_words(clean)
    assert [now.spelling(index) for index in range(len(now.words))] == words.split()


def test_a_log_of_another_text_is_an_error():
    with pytest.raises(ValueError, match="the log does not match the text"):
        text.restore(text.Version("ABC", (), (text.Edit(0, 9, "flip", "b", "Z"),)))
