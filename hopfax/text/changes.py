"""All single changes of a word, by kind, from which typos and attacks choose.

A letter is one code point with the combining marks that follow it, so accents stay with their
letter in any normalization. Replacements keep the case. No change returns the same word, ignoring
case.
"""

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import NamedTuple

from hopfax.text.tables import ALPHABET, KEYBOARD, LOOK_ALIKES, PHONETIC

_MARKS = (
    mark
    for mark in map(chr, range(0x300, 0x20000))  # none beyond, but for variants of characters
    if unicodedata.category(mark) in ("Mn", "Mc")
)
# Accents, vowel signs, and the joiners between letters. `re` searches the class slowly, so that the
# lookahead saves time in most scripts.
MARK = rf"(?:(?![\0-\u02ff])[{''.join(_MARKS)}\u200c\u200d])"
_MARK = re.compile(MARK)
_LETTER = re.compile(rf".{MARK}*", re.DOTALL)


class Change(NamedTuple):
    """Replaces the characters `before`, at `offset` in a word, by `after`."""

    kind: str
    offset: int
    before: str
    after: str

    def of(self, word: str) -> str:
        """Returns the changed word."""
        return word[: self.offset] + self.after + word[self.offset + len(self.before) :]


Changes = Callable[[str], list[Change]]


def _letters(word: str, at_least: int = 1) -> list[re.Match[str]]:
    """The letters and digits of a word; none if there are fewer than `at_least`."""
    letters = [letter for letter in _LETTER.finditer(word) if letter.group() not in "'’"]
    return letters if len(letters) >= at_least else []


def cased(new: str, like: str) -> str:
    """Returns `new` in the case of `like`: upper case, capitalized or unchanged."""
    if like.isupper():
        # A single capital does not make a word of capitals.
        return new.upper() if len(like) > 1 or len(new) == 1 else new.capitalize()
    return new.capitalize() if like[:1].isupper() else new


def _replacements(
    kind: str, letters: Iterable[re.Match[str]], options: Callable[[str], Iterable[str]]
) -> list[Change]:
    return [
        Change(kind, letter.start(), letter.group(), cased(new, letter.group()))
        for letter in letters
        for new in options(letter.group().lower())
    ]


def _swaps(letters: list[re.Match[str]]) -> list[Change]:
    return [
        Change("swap", one.start(), one.group() + other.group(), other.group() + one.group())
        for one, other in itertools.pairwise(letters[1:-1])
        if one.group().lower() != other.group().lower() and one.end() == other.start()
    ]


def keyboard(word: str) -> list[Change]:
    """A letter other than the first becomes a neighboring key; 3 letters or more."""
    return _replacements("keyboard", _letters(word, 3)[1:], lambda x: KEYBOARD.get(x, ""))


def omission(word: str) -> list[Change]:
    """A letter other than the first is omitted; 3 letters or more."""
    letters = (letter for letter in _letters(word, 3)[1:] if letter.group()[0].isalpha())
    return _replacements("omission", letters, lambda _: [""])


def doubling(word: str) -> list[Change]:
    """A letter is doubled; 3 letters or more."""
    letters = (letter for letter in _letters(word, 3) if letter.group()[0].isalpha())
    return [Change("doubling", letter.end(), "", letter.group().lower()) for letter in letters]


def phonetic(word: str) -> list[Change]:
    """A spelling becomes one that sounds alike; 3 letters or more."""
    lower = word.lower()
    if not _letters(word, 3) or len(lower) != len(word):  # the lower case of İ has two code points
        return []
    return [
        Change("phonetic", at, (old := word[at : at + len(before)]), cased(after, old))
        for before, after in PHONETIC
        for at in range(len(word))
        if lower.startswith(before, at) and not _MARK.match(word, at + len(before))
    ]


def swap(word: str) -> list[Change]:
    """Two different neighbors swap, the first and last letter stay; 4 letters or more."""
    return _swaps(_letters(word, 4))


# The bugs of TextBugger, with the word lengths of its section III-B.


def bug_insert(word: str) -> list[Change]:
    """A space within the word; 2 to 5 letters, since halves of longer words may be words."""
    letters = _letters(word)
    return [Change("insert", letter.start(), "", " ") for letter in letters[1:] if len(letters) < 6]


def bug_delete(word: str) -> list[Change]:
    """A letter is omitted; the first and last letter stay."""
    return _replacements("delete", _letters(word)[1:-1], lambda _: [""])


def bug_swap(word: str) -> list[Change]:
    """Two different neighbors swap, the first and last letter stay; 5 letters or more."""
    return _swaps(_letters(word, 5))


def bug_substitute(word: str) -> list[Change]:
    """A letter becomes a similar-looking character."""
    return _replacements("substitute", _letters(word), lambda x: LOOK_ALIKES.get(x, ""))


# The operations of HotFlip, over 26 letters.


def flip(word: str) -> list[Change]:
    """A letter becomes any other letter."""
    return _replacements("flip", _letters(word), lambda x: ALPHABET.replace(x, ""))


def insertion(word: str) -> list[Change]:
    """Any letter is inserted anywhere."""
    offsets = [*(letter.start() for letter in _letters(word)), len(word)]
    return [Change("insertion", offset, "", new) for offset in offsets for new in ALPHABET]


def deletion(word: str) -> list[Change]:
    """A letter is omitted; 2 letters or more."""
    return _replacements("deletion", _letters(word, 2), lambda _: [""])
