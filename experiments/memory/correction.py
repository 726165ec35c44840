"""Typos whose words are corrected before the model reads them, and the correctors.

A corrector has a list of words with their frequencies, from training texts. `memory` is
`hopfax.text.WordMemory`; `symspell` is the program symspellpy, an optional package, with the same
list and the same words.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from experiments.cells import Cell
from experiments.conditions import Typos, predictions
from hopfax import text
from hopfax.data import Example, training_rows
from hopfax.text import Corrupted, Linearized, Text, Victim
from hopfax.text.changes import Change
from hopfax.text.log import Draft, edited, strings
from hopfax.text.spelling import Correction, Retrieved, correct_words

Corrector = Callable[[str], Correction]
GRID: dict[str, Sequence[dict[str, Any]]] = {
    "memory": [
        {"span": span, "beta": beta, "unseen": unseen}
        for span, beta, unseen in itertools.product(
            (1, 2, 3, 4, 5), (10.0, 20.0, 30.0, 40.0), (0.0001, 0.001, 0.01, 0.1)
        )
    ],
    "symspell": [{"max_distance": distance} for distance in (1, 2, 3)],
}


class Method(NamedTuple):
    """A corrector, a key of `GRID`, and its settings, hashable."""

    name: str
    settings: tuple[tuple[str, float], ...]


def build(method: Method, counts: Mapping[str, int]) -> Corrector:
    """Returns the corrector with a list of words."""
    settings: dict[str, Any] = dict(method.settings)
    if method.name == "memory":
        return text.WordMemory(counts, **settings).correct
    return _symspell(counts, **settings)


@functools.lru_cache(maxsize=8)
def corrector(method: Method, task: str, data_dir: str | None) -> Corrector:
    """Returns the corrector with the words of a task's training texts."""
    return build(method, text.word_counts(training_texts(task, data_dir)))


def training_texts(task: str, data_dir: str | None) -> list[str]:
    """Returns all strings of a task's training rows."""
    return [each for row in training_rows(task, data_dir=data_dir) for each in strings(row.texts)]


def _symspell(counts: Mapping[str, int], *, max_distance: int) -> Corrector:
    from symspellpy import SymSpell, Verbosity

    speller = SymSpell(max_dictionary_edit_distance=max_distance)
    for word, count in counts.items():
        speller.create_dictionary_entry(word, count)

    @functools.lru_cache(maxsize=1 << 17)
    def retrieve(word: str) -> Retrieved:
        best, *_ = speller.lookup(
            word.lower(), Verbosity.TOP, max_edit_distance=max_distance, include_unknown=True
        )
        return Retrieved(best.term, 1.0)

    return functools.partial(correct_words, retrieve=retrieve)


@dataclass(frozen=True, kw_only=True)
class CorrectedTypos(Typos):
    """Typos, with the words corrected before the model reads them.

    An attack that is not adaptive targets the model without correction: its texts are those of
    `Typos`. An adaptive one targets the model with correction, see `defended`.

    Attributes:
        method: The corrector.
        adaptive: Whether the attack targets the model with correction.
    """

    method: Method
    adaptive: bool = False

    def columns(self, cell: Cell) -> Mapping[str, Any]:
        """See `Condition`."""
        protocol = "adaptive" if self.adaptive else "fixed"
        return {**super().columns(cell), "protocol": protocol}

    def corrector(self, cell: Cell) -> Corrector:
        """Returns the corrector with the words of the task's training file."""
        return corrector(self.method, cell.spec.task, self.data_dir)

    def read(self, cell: Cell, texts: Any) -> Any:
        """Returns the corrected texts."""
        return corrected(self.corrector(cell), texts)

    def victim(self, cell: Cell, seed: int) -> Victim:
        """Returns the model of a seed with correction."""
        return defended(super().victim(cell, seed), self.corrector(cell))

    def corrupted(self, cell: Cell, rows: Sequence[Example], seed: int) -> Sequence[Corrupted]:
        """See `Typos`; the texts of an attack that is not adaptive are read from its log."""
        if self.adaptive or not self.attacks:
            return super().corrupted(cell, rows, seed)
        plain = Typos(**{each.name: getattr(self, each.name) for each in fields(Typos)})
        logs = json.loads(predictions(cell, plain).edits[seed])
        return [redone(row.texts, log).corrupted() for row, log in zip(rows, logs, strict=True)]


def corrected(correct: Corrector, part: Any) -> Any:
    """Returns a text with every string corrected, in the same structure."""
    if isinstance(part, str):
        return correct(part).text
    return tuple(corrected(correct, each) for each in part)


def defended(victim: Victim, correct: Corrector) -> Victim:
    """Returns a model that reads corrected texts, for attacks that target it.

    Losses are those of the corrected texts. So are gradients, which flow through the correction as
    far as `hotflip` uses them: the tokens of an edited word are those of its correction. An edit
    that the correction undoes has no gain, and the estimate of any other is as exact as without
    correction. Edits of tokens are not supported.
    """
    gradients = victim.gradients
    assert gradients is not None

    def read(texts: Sequence[Text]) -> list[Any]:
        return [corrected(correct, each) for each in texts]

    def linearize(texts: Sequence[Any], labels: Sequence[Any]) -> list[Linearized]:
        results = gradients.linearize(read(texts), labels)
        return [_placed(*pair, correct) for pair in zip(texts, results, strict=True)]

    def pieces(words: Sequence[str]) -> list[tuple[int, ...]]:
        return gradients.pieces([correct(word).text for word in words])

    return Victim(
        lambda texts, labels: victim.loss(read(texts), labels),
        gradients._replace(
            linearize=linearize, pieces=pieces, cache=_edits_of(correct, gradients.tokens)
        ),
    )


@functools.lru_cache(maxsize=8)
def _edits_of(correct: Corrector, tokens: Any) -> dict[str, Any]:
    """HotFlip's cache for a corrector and a vocabulary, shared by the rates and seeds of a task."""
    return {}


def _placed(clean: Text, linear: Linearized, correct: Corrector) -> Linearized:
    """Moves the tokens of a corrected text to their words in the text before correction.

    Tokens of a corrected word extend over the whole word; tokens outside words get no place.
    """
    starts, ends = np.full_like(linear.starts, -1), np.full_like(linear.ends, -1)
    for field, string in enumerate(strings(clean)):
        growth = 0
        for start, before, after, _ in correct(string).words:
            first = start + growth
            inside = (linear.fields == field) & (linear.starts >= first)
            inside &= linear.ends <= first + len(after)
            if before == after:
                starts[inside] = linear.starts[inside] - growth
                ends[inside] = linear.ends[inside] - growth
            else:
                starts[inside], ends[inside] = start, start + len(before)
            growth += len(after) - len(before)
    return linear._replace(starts=starts, ends=ends)


def redone(clean: Any, edits: Iterable[Sequence[Any]]) -> Draft[Any]:
    """Returns a text after the edits of a log, with its words at their new places."""
    current = text.draft(clean)
    for field, position, kind, before, after in edits:
        for index, word in enumerate(current.words):
            # Choices that share a string share its words: an edit is logged once for each.
            if word.fields[0] == field and word.start <= position <= word.end:
                change = Change(kind, position - word.start, before, after)
                current = edited(current, index, change)
                break
    return current


def spellings(clean: Any, edits: Iterable[Sequence[Any]]) -> list[tuple[str, str]]:
    """Returns every word of a text before and after the edits of a log."""
    old, new = text.draft(clean), redone(clean, edits)
    return [(old.spelling(number), new.spelling(number)) for number in range(len(old.words))]


class Words(NamedTuple):
    """Counts of words: changed by typos, of these restored; unchanged, of these altered."""

    changed: int
    restored: int
    unchanged: int
    altered: int

    def percent(self) -> dict[str, float]:
        """Returns the changed words restored and the unchanged ones altered; nan for no words."""
        return {
            "restored": 100 * self.restored / self.changed if self.changed else np.nan,
            "altered": 100 * self.altered / self.unchanged if self.unchanged else np.nan,
        }


def words(correct: Corrector, pairs: Mapping[tuple[str, str], int]) -> Words:
    """Counts what a corrector does to words before and after typos, given with multiplicities."""
    counts = Counter()
    for (old, new), number in pairs.items():
        counts[old == new, correct(new).text == old] += number
    changed, unchanged = ((counts[same, True], counts[same, False]) for same in (False, True))
    return Words(sum(changed), changed[0], sum(unchanged), unchanged[1])


def tune(texts: Sequence[str], methods: Iterable[str], *, num_texts: int) -> list[dict[str, Any]]:
    """Tries every setting of `GRID` on random typos in texts left out of the word list.

    Every fifth of the texts, up to `num_texts`, is corrupted in a fifth of its words; the others
    give the list of words.

    Returns:
        For each setting, its method and settings; and in percent the words that are `right` after
        correction, the changed words that are `restored` and the unchanged words that are
        `altered`.
    """
    counts = text.word_counts(each for n, each in enumerate(texts) if n % 5)
    pairs: Counter[tuple[str, str]] = Counter()
    for number, clean in enumerate(texts[::5][:num_texts]):
        for corrupt in (text.misspell, text.swap_characters):
            made = corrupt(clean, rate=0.2, seed=(1, number))
            pairs.update(spellings(clean, made.edits))
    table = []
    for name in methods:
        for settings in GRID[name]:
            each = words(build(Method(name, tuple(settings.items())), counts), pairs)
            right = each.restored + each.unchanged - each.altered
            shares = {"right": 100 * right / max(pairs.total(), 1), **each.percent()}
            table.append({"method": name, **settings, **shares})
    return table


def best(table: Sequence[Mapping[str, Any]], name: str) -> Method:
    """Returns a method with the settings that leave the most words right, the first of equals."""
    row = max((each for each in table if each["method"] == name), key=lambda each: each["right"])
    return Method(name, tuple((setting, row[setting]) for setting in GRID[name][0]))
