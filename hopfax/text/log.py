"""Texts, their words, and a log of edits that recovers the clean text.

A text is a string, a tuple of strings (a pair of sentences), or a tuple of such tuples: the choices
of one example, as in `hopfax.data.Example.texts`. Strings that choices share at the same position,
as in COPA, count as one: their words count once and change together.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from hopfax.text.changes import MARK, Change

Text = str | tuple[str, ...] | tuple[tuple[str, ...], ...]
T = TypeVar("T", bound=Text)

_LETTER = rf"[^\W_]{MARK}*"
_WORD = re.compile(rf"(?:{_LETTER})+(?:['’](?:{_LETTER})+)*")


class Edit(NamedTuple):
    """One entry of the log: replaces the characters `before` by `after`.

    Attributes:
        field: Index of the edited string among all strings of all choices.
        position: First edited character of that string at the time of the edit.
        kind: Name of the edit.
    """

    field: int
    position: int
    kind: str
    before: str
    after: str


class Word(NamedTuple):
    """A word of a text, in one string or in those of all choices that share it."""

    fields: tuple[int, ...]
    start: int
    end: int
    changed: bool = False


class Version(NamedTuple, Generic[T]):
    """A version of a text: the words of the clean one, as they are now, and the edits in order."""

    text: T
    words: tuple[Word, ...]
    edits: tuple[Edit, ...] = ()

    @property
    def num_words(self) -> int:
        """Number of words of the clean text."""
        return len(self.words)

    @property
    def num_changed(self) -> int:
        """Number of changed words."""
        return sum(word.changed for word in self.words)

    @property
    def rate(self) -> float:
        """Fraction of changed words; 0 if there are no words."""
        return self.num_changed / max(self.num_words, 1)

    def spelling(self, index: int) -> str:
        """Returns the current spelling of a word."""
        word = self.words[index]
        return strings(self.text)[word.fields[0]][word.start : word.end]


def strings(text: Text) -> tuple[str, ...]:
    """Returns all strings of a text in order."""
    if isinstance(text, str):
        return (text,)
    if not isinstance(text, tuple):
        raise TypeError(
            "a text must be a string, a tuple of strings or a tuple of such tuples, got "
            f"{type(text).__name__}: {text!r}"
        )
    return tuple(string for part in text for string in strings(part))


def _replace(part: Any, new: Iterator[str]) -> Any:
    return next(new) if isinstance(part, str) else tuple(_replace(inner, new) for inner in part)


def split_words(text: T) -> Version[T]:
    """Returns a clean text with its words, to edit.

    A word is a run of letters and digits of any script with at least one letter, possibly with
    apostrophes inside (`don't`): `2nd` is a word, `1999` and `...` are not, `well-known` is two
    words. In scripts without spaces, a word is a clause.

    Raises:
        TypeError: If the text is not a string, or tuples of strings.

    Example:
        >>> from hopfax import text
        >>> text.split_words("don't see it").num_words
        3
    """
    parts, nested = strings(text), any(isinstance(part, tuple) for part in text)
    # Strings that choices share at the same position, with their indices.
    shared: dict[tuple[int, str], tuple[int, ...]] = {}
    keys = (key for choice in (text if nested else (text,)) for key in enumerate(strings(choice)))
    for number, key in enumerate(keys):
        shared[key] = (*shared.get(key, ()), number)
    words = [
        Word(fields, match.start(), match.end())
        for fields in shared.values()
        for match in _WORD.finditer(parts[fields[0]])
        if any(character.isalpha() for character in match.group())
    ]
    return Version(text, tuple(words))


def edit(before: Version[T], changes: Mapping[int, Change]) -> Version[T]:
    """Changes the spellings of words, in all choices that share them, and logs the edits."""
    texts, log, words = list(strings(before.text)), list(before.edits), []
    grown = defaultdict[Any, np.ndarray](lambda: np.zeros(len(before.words), int))  # by string
    for index, change in changes.items():
        word = before.words[index]
        start = word.start + change.offset + int(grown[word.fields][:index].sum())
        for field in word.fields:
            old, end = texts[field], start + len(change.before)
            texts[field] = f"{old[:start]}{change.after}{old[end:]}"
            log.append(Edit(field, start, change.kind, change.before, change.after))
        grown[word.fields][index] = len(change.after) - len(change.before)
    shifts = {fields: [0, *growth.cumsum().tolist()] for fields, growth in grown.items()}
    for index, word in enumerate(before.words):
        if shift := shifts.get(word.fields):
            start, end = word.start + shift[index], word.end + shift[index + 1]
            word = Word(word.fields, start, end, word.changed or index in changes)
        words.append(word)
    return Version(_replace(before.text, iter(texts)), tuple(words), tuple(log))


def restore(version: Version[T]) -> T:
    """Returns the clean text, by undoing the log from its end.

    Raises:
        ValueError: If the log does not match the text.

    Example:
        >>> from hopfax import text
        >>> version = text.swap_characters("a wonderful film", rate=0.3, seed=1)
        >>> version.text, version.edits[0][1:]
        ('a wnoderful film', (3, 'swap', 'on', 'no'))
        >>> text.restore(version)
        'a wonderful film'
    """
    clean = list(strings(version.text))
    for edit in reversed(version.edits):
        string, end = clean[edit.field], edit.position + len(edit.after)
        if string[edit.position : end] != edit.after:
            raise ValueError(f"the log does not match the text: {edit} is not in {string!r}")
        clean[edit.field] = string[: edit.position] + edit.before + string[end:]
    return _replace(version.text, iter(clean))
