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


class Corrupted(NamedTuple, Generic[T]):
    """A text with edits.

    Attributes:
        text: The edited text, in the same structure as the clean one.
        edits: The edits, in order.
        num_words: Number of words of the clean text.
        num_changed: Number of changed words.
    """

    text: T
    edits: tuple[Edit, ...]
    num_words: int
    num_changed: int

    @property
    def rate(self) -> float:
        """Fraction of changed words; 0 if there are no words."""
        return self.num_changed / max(self.num_words, 1)


class Word(NamedTuple):
    """A word of a text, in one string or in those of all choices that share it."""

    fields: tuple[int, ...]
    start: int
    end: int
    changed: bool = False


class Draft(NamedTuple, Generic[T]):
    """A text that is being edited; `words` are those of the clean text, where they are now."""

    text: T
    words: tuple[Word, ...]
    edits: tuple[Edit, ...] = ()

    def spelling(self, index: int) -> str:
        """Returns the current spelling of a word."""
        word = self.words[index]
        return strings(self.text)[word.fields[0]][word.start : word.end]

    def corrupted(self) -> Corrupted[T]:
        """Returns the text with its log."""
        changed = sum(word.changed for word in self.words)
        return Corrupted(self.text, self.edits, len(self.words), changed)


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


def _rebuilt(part: Any, new: Iterator[str]) -> Any:
    """A text of the same structure with other strings."""
    return next(new) if isinstance(part, str) else tuple(_rebuilt(inner, new) for inner in part)


def draft(text: T) -> Draft[T]:
    """Opens a text for editing.

    A word is a run of letters and digits of any script with at least one letter, possibly with
    apostrophes inside (`don't`): `2nd` is a word, `1999` and `...` are not, `well-known` is two
    words. In scripts without spaces, a word is a clause.

    Args:
        text: The clean text.

    Raises:
        TypeError: If the text is not a string, or tuples of strings.

    Example:
        >>> from hopfax import text
        >>> len(text.draft("don't see it").words)
        3
    """
    parts = strings(text)
    words = [
        Word(fields, match.start(), match.end())
        for fields in _distinct(text)
        for match in _WORD.finditer(parts[fields[0]])
        if any(character.isalpha() for character in match.group())
    ]
    return Draft(text, tuple(words))


def _distinct(text: Text) -> list[tuple[int, ...]]:
    """Indices of the strings; strings that choices share are in one tuple."""
    nested = not isinstance(text, str) and any(isinstance(part, tuple) for part in text)
    choices = text if nested else (text,)
    shared: dict[tuple[int, str], tuple[int, ...]] = {}
    for number, key in enumerate(key for choice in choices for key in enumerate(strings(choice))):
        shared[key] = (*shared.get(key, ()), number)
    return list(shared.values())


def edited(before: Draft[T], index: int, change: Change) -> Draft[T]:
    """Changes the current spelling of a word, in all choices that share it, and logs the edit."""
    return all_edited(before, {index: change})


def all_edited(before: Draft[T], changes: Mapping[int, Change]) -> Draft[T]:
    """Returns the result of `edited` for one word after the other."""
    words, log = [], list(before.edits)
    grown = defaultdict[Any, np.ndarray](lambda: np.zeros(len(before.words), int))  # by string
    for index, change in changes.items():
        word = before.words[index]
        position = word.start + change.offset + int(grown[word.fields][:index].sum())
        log += [Edit(field, position, change.kind, *change[2:]) for field in word.fields]
        grown[word.fields][index] = len(change.after) - len(change.before)
    shifts = {fields: [0, *growth.cumsum().tolist()] for fields, growth in grown.items()}
    for index, word in enumerate(before.words):
        if shift := shifts.get(word.fields):
            start, end = word.start + shift[index], word.end + shift[index + 1]
            word = Word(word.fields, start, end, word.changed or index in changes)
        words.append(word)
    return Draft(edited_text(before, changes), tuple(words), tuple(log))


def edited_text(before: Draft[T], changes: Mapping[int, Change]) -> T:
    """Returns the text of `all_edited`."""
    texts = list(strings(before.text))
    parts: dict[int, tuple[list[str], int]] = {}
    for index, change in sorted(changes.items()):
        start = before.words[index].start + change.offset
        for field in before.words[index].fields:
            pieces, end = parts.get(field, ([], 0))
            pieces += [texts[field][end:start], change.after]
            parts[field] = pieces, start + len(change.before)
    for field, (pieces, end) in parts.items():
        texts[field] = "".join([*pieces, texts[field][end:]])
    return _rebuilt(before.text, iter(texts))


def restore(corrupted: Corrupted[T]) -> T:
    """Returns the clean text, by undoing the log from its end.

    Raises:
        ValueError: If the log does not match the text.

    Example:
        >>> from hopfax import text
        >>> corrupted = text.swap_characters("a wonderful film", rate=0.3, seed=1)
        >>> corrupted.text, corrupted.edits[0][1:]
        ('a wnoderful film', (3, 'swap', 'on', 'no'))
        >>> text.restore(corrupted)
        'a wonderful film'
    """
    clean = list(strings(corrupted.text))
    for edit in reversed(corrupted.edits):
        string, end = clean[edit.field], edit.position + len(edit.after)
        if string[edit.position : end] != edit.after:
            raise ValueError(f"the log does not match the text: {edit} is not in {string!r}")
        clean[edit.field] = string[: edit.position] + edit.before + string[end:]
    return _rebuilt(corrupted.text, iter(clean))
