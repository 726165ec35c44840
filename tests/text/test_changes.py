import pytest

from hopfax.text import changes
from hopfax.text.tables import ALPHABET, KEYBOARD, LOOK_ALIKES, PHONETIC

ALL = [
    changes.keyboard,
    changes.omission,
    changes.doubling,
    changes.phonetic,
    changes.swap,
    changes.bug_insert,
    changes.bug_delete,
    changes.bug_swap,
    changes.bug_substitute,
    changes.flip,
    changes.insertion,
    changes.deletion,
]
WORDS = ["film", "Philosophy", "don't", "NAÏVE", "naïve", "nai\u0308ve", "2nd", "a", "is", "hello"]


def results(kind, word):
    return [change.of(word) for change in kind(word)]


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("word", WORDS)
def test_changes_match_the_word_and_change_it(kind, word):
    for change in kind(word):
        assert word[change.offset : change.offset + len(change.before)] == change.before
        assert change.of(word).lower() != word.lower()
        # A combining mark stays with its letter.
        assert not change.after.startswith("\u0308") and not change.of(word).startswith("\u0308")
        if change.before:
            assert word[change.offset + len(change.before) :][:1] != "\u0308"


def test_all_changes():
    assert set(results(changes.keyboard, "the")) == {"tge", "tye", "tue", "tje", "tbe", "tne"} | {
        "thw",
        "thr",
        "ths",
        "thd",
    }
    assert results(changes.omission, "Film") == ["Flm", "Fim", "Fil"]
    assert results(changes.doubling, "Film") == ["Ffilm", "Fiilm", "Fillm", "Filmm"]
    assert results(changes.swap, "hello") == ["hlelo"]
    assert results(changes.swap, "film") == ["flim"]
    assert results(changes.bug_insert, "film") == ["f ilm", "fi lm", "fil m"]
    assert results(changes.bug_delete, "film") == ["flm", "fim"]
    assert results(changes.bug_swap, "films") == ["flims", "fimls"]
    assert results(changes.bug_substitute, "Cow") == ["(ow", "C0w"]
    assert {"fysics", "phisics", "phycics", "physiks"} < set(results(changes.phonetic, "physics"))
    assert len(changes.flip("ab")) == 2 * 25
    assert len(changes.insertion("ab")) == 3 * 26
    assert results(changes.deletion, "ab") == ["b", "a"]


def test_case_follows_what_is_replaced():
    assert "Fone" in results(changes.phonetic, "Phone")
    assert "FONE" in results(changes.phonetic, "PHONE")
    assert "phone" not in results(changes.phonetic, "Fone") and "Phone" in results(
        changes.phonetic, "Fone"
    )
    assert all(word.isupper() for word in results(changes.keyboard, "FILM"))


def test_short_words_stay():
    for kind in (changes.keyboard, changes.omission, changes.doubling, changes.phonetic):
        assert kind("of") == [] and kind("a") == []
    assert changes.swap("the") == [] and changes.swap("film") != []
    assert changes.bug_swap("film") == [] and changes.bug_swap("films") != []
    assert changes.bug_insert("letters") == [] and changes.bug_insert("a") == []
    assert changes.bug_delete("of") == [] and changes.deletion("a") == []


def test_apostrophes_stay_and_digits_only_swap():
    assert results(changes.swap, "d'you've") == ["d'oyu've", "d'yuo've"]
    assert all("'" in word for word in results(changes.omission, "don't"))
    assert results(changes.omission, "2nd") == ["2d", "2n"]
    assert results(changes.doubling, "2nd") == ["2nnd", "2ndd"]


def test_accents_move_with_their_letter():
    assert results(changes.omission, "nai\u0308ve")[1] == "nave"
    assert results(changes.swap, "nai\u0308ve")[1] == "navi\u0308e"


def test_tables():
    assert set(KEYBOARD) == set(ALPHABET)
    for letter, neighbours in KEYBOARD.items():
        assert letter not in neighbours and len(set(neighbours)) == len(neighbours)
        assert all(letter in KEYBOARD[other] for other in neighbours), letter
    assert len(set(PHONETIC)) == len(PHONETIC)
    assert all(before != after for before, after in PHONETIC)
    assert ("ph", "f") in PHONETIC and ("f", "ph") in PHONETIC
    assert ("kn", "n") in PHONETIC and ("n", "kn") not in PHONETIC
    for letter, signs in LOOK_ALIKES.items():
        assert letter not in signs and all(ord(sign) < 128 for sign in signs)
    assert "0" in LOOK_ALIKES["o"] and "1" in LOOK_ALIKES["l"] and "@" in LOOK_ALIKES["a"]
