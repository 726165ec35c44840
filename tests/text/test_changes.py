import pytest

from hopfax.text import changes

TYPOS = [changes.keyboard, changes.omission, changes.doubling, changes.phonetic, changes.swap]
BUGS = [changes.bug_insert, changes.bug_delete, changes.bug_swap, changes.bug_substitute]
FLIPS = [changes.flip, changes.insertion, changes.deletion]
WORDS = ["film", "Philosophy", "don't", "NAÏVE", "naïve", "nai\u0308ve", "2nd", "a", "is", "hello"]


def results(kind, word):
    return [change.of(word) for change in kind(word)]


@pytest.mark.parametrize("kind", TYPOS + BUGS + FLIPS)
@pytest.mark.parametrize("word", WORDS)
def test_changes_match_the_word_and_change_it(kind, word):
    for change in kind(word):
        assert word[change.offset : change.offset + len(change.before)] == change.before
        assert change.of(word).lower() != word.lower()
        # A combining mark stays with its letter.
        assert not change.after.startswith("\u0308") and not change.of(word).startswith("\u0308")
        if change.before:
            assert word[change.offset + len(change.before) :][:1] != "\u0308"


@pytest.mark.parametrize(
    ("kind", "word", "expected"),
    [
        (changes.keyboard, "the", "tge tye tue tje tbe tne thw ths thd thr"),
        (changes.omission, "Film", "Flm Fim Fil"),
        (changes.doubling, "Film", "Ffilm Fiilm Fillm Filmm"),
        (changes.swap, "hello", "hlelo"),
        (changes.bug_delete, "film", "flm fim"),
        (changes.bug_swap, "films", "flims fimls"),
        (changes.bug_substitute, "Cow", "(ow C0w"),
        (changes.deletion, "ab", "b a"),
        # Short words stay.
        *((kind, "of", "") for kind in [*TYPOS, changes.bug_delete]),
        (changes.swap, "the", ""),
        (changes.bug_insert, "letter", ""),
        # Apostrophes stay, digits only swap, accents move with their letter.
        (changes.swap, "d'you've", "d'oyu've d'yuo've"),
        (changes.doubling, "2nd", "2nnd 2ndd"),
        (changes.swap, "nai\u0308ve", "ni\u0308ave navi\u0308e"),
    ],
)
def test_all_changes(kind, word, expected):
    assert sorted(results(kind, word)) == sorted(expected.split())


def test_changes_of_more_words():
    assert results(changes.bug_insert, "film") == ["f ilm", "fi lm", "fil m"]
    assert {"fysics", "phisics", "phycics", "physiks"} < set(results(changes.phonetic, "physics"))
    assert len(changes.flip("ab")) == 2 * 25
    assert len(changes.insertion("ab")) == 3 * 26


def test_case_follows_what_is_replaced():
    for word, other in (("Phone", "Fone"), ("PHONE", "FONE"), ("Fone", "Phone")):
        assert other in results(changes.phonetic, word)
    assert all(word.isupper() for word in results(changes.keyboard, "FILM"))
