"""Every way to change one word once, by kind: pure lists from which typos and attacks choose.

A letter is one code point with the combining marks that follow it, so that an accent is never left
without its letter, however the text is normalised. A replacement takes the case of what it
replaces. No change gives back the same word, whatever the case.
"""

import itertools
import re
from collections.abc import Callable
from typing import NamedTuple

from hopfax.text.tables import ALPHABET, KEYBOARD, LOOK_ALIKES, PHONETIC

_MARK = "[\u0300-\u036f]"
_LETTER = re.compile(rf".{_MARK}*", re.DOTALL)


class Change(NamedTuple):
    """A change of one word.

    Attributes:
        kind: Name of the way it is changed.
        offset: Where in the word, in characters.
        before: What stands there.
        after: What comes in its place.
    """

    kind: str
    offset: int
    before: str
    after: str

    def of(self, word: str) -> str:
        """The word as changed."""
        end = self.offset + len(self.before)
        return word[: self.offset] + self.after + word[end:]


Changes = Callable[[str], list[Change]]


class _Letter(NamedTuple):
    offset: int
    text: str


def _letters(word: str) -> list[_Letter]:
    found = (_Letter(match.start(), match.group()) for match in _LETTER.finditer(word))
    return [letter for letter in found if letter.text not in "'’"]


def cased(new: str, like: str) -> str:
    """`new` in upper case, capitalised or as it is, as `like` is written."""
    if like.isupper():
        # One capital among small letters makes no word of capitals.
        return new.upper() if len(like) > 1 or len(new) == 1 else new.capitalize()
    return new.capitalize() if like[:1].isupper() else new


def _substitutes(kind: str, word: str, table: Callable[[str], str], first: int) -> list[Change]:
    return [
        Change(kind, letter.offset, letter.text, cased(new, letter.text))
        for letter in _letters(word)[first:]
        for new in table(letter.text.lower())
    ]


def keyboard(word: str) -> list[Change]:
    """A letter, not the first, becomes one that its key touches; words of 3 letters or more."""
    if len(_letters(word)) < 3:
        return []
    return _substitutes("keyboard", word, lambda letter: KEYBOARD.get(letter, ""), 1)


def omission(word: str) -> list[Change]:
    """A letter, not the first, is left out; words of 3 letters or more."""
    letters = _letters(word)
    if len(letters) < 3:
        return []
    return [
        Change("omission", letter.offset, letter.text, "")
        for letter in letters[1:]
        if letter.text[0].isalpha()
    ]


def doubling(word: str) -> list[Change]:
    """A letter is written twice; words of 3 letters or more."""
    letters = _letters(word)
    if len(letters) < 3:
        return []
    return [
        Change("doubling", letter.offset + len(letter.text), "", letter.text.lower())
        for letter in letters
        if letter.text[0].isalpha()
    ]


def phonetic(word: str) -> list[Change]:
    """A spelling becomes one that sounds alike; words of 3 letters or more."""
    small = word.lower()
    if len(_letters(word)) < 3 or len(small) != len(word):  # İ has two small code points
        return []
    return [
        Change("phonetic", at, (old := word[at : at + len(before)]), cased(after, old))
        for before, after in PHONETIC
        for at in range(len(word))
        if small.startswith(before, at) and not re.match(_MARK, word[at + len(before) :])
    ]


def _swaps(word: str, fewest: int) -> list[Change]:
    letters = _letters(word)
    if len(letters) < fewest:
        return []
    inner = letters[1:-1]
    return [
        Change("swap", one.offset, one.text + other.text, other.text + one.text)
        for one, other in itertools.pairwise(inner)
        if one.text.lower() != other.text.lower()
        and one.offset + len(one.text) == other.offset  # no apostrophe between them
    ]


def swap(word: str) -> list[Change]:
    """Two different neighbours change places, first and last stay; words of 4 letters or more."""
    return _swaps(word, 4)


# TextBugger's bugs, with the lengths of words its section III-B allows them for.


def bug_insert(word: str) -> list[Change]:
    """A blank inside the word; words of 2 to 5 letters, since long halves may be words."""
    letters = _letters(word)
    if not 2 <= len(letters) < 6:
        return []
    return [Change("insert", letter.offset, "", " ") for letter in letters[1:]]


def bug_delete(word: str) -> list[Change]:
    """A letter is left out, first and last stay."""
    return [Change("delete", letter.offset, letter.text, "") for letter in _letters(word)[1:-1]]


def bug_swap(word: str) -> list[Change]:
    """Two different neighbours change places, first and last stay; more than 4 letters."""
    return _swaps(word, 5)


def bug_substitute(word: str) -> list[Change]:
    """A letter becomes a sign that looks like it."""
    return _substitutes("substitute", word, lambda letter: LOOK_ALIKES.get(letter, ""), 0)


# HotFlip's operations, over the 26 letters.


def flip(word: str) -> list[Change]:
    """A letter becomes any other."""
    return _substitutes("flip", word, lambda letter: ALPHABET.replace(letter, ""), 0)


def insertion(word: str) -> list[Change]:
    """Any letter comes in, anywhere."""
    places = [letter.offset for letter in _letters(word)] + [len(word)]
    return [Change("insertion", place, "", new) for place in places for new in ALPHABET]


def deletion(word: str) -> list[Change]:
    """A letter is left out; words of 2 letters or more."""
    letters = _letters(word)
    if len(letters) < 2:
        return []
    return [Change("deletion", letter.offset, letter.text, "") for letter in letters]
