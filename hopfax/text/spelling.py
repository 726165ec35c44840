"""Correction of misspelled words by retrieval from a word list.

Retrieval works as in `hopfax.hopfield.denoise`: an unknown word plays the role of a noisy vector.
"""

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from hopfax.text.changes import cased
from hopfax.text.log import LETTER

# One symbol between letters counts as a letter (fi|m), unless it separates words.
_WORD = re.compile(rf"(?:{LETTER})+(?:[^\w\s.,:;?/\"…–—-](?:{LETTER})+)*")
_EDGE = "\n"  # before the first letter and after the last
_MAX_CACHED = 1 << 17  # retrieved words


class Retrieved(NamedTuple):
    """A word in lower case, and its posterior probability: 1 for a word of the list."""

    word: str
    probability: float


class WordCorrection(NamedTuple):
    """A word of a text and its correction.

    Attributes:
        start: Position of the word in the text before correction.
        before: The word.
        after: Its correction; the same if it stays.
        probability: Posterior probability of the correction, or of no change.
    """

    start: int
    before: str
    after: str
    probability: float


class Correction(NamedTuple):
    """A corrected text.

    Attributes:
        text: The text with its words corrected; all other characters stay.
        words: Every word in order, changed or not.
    """

    text: str
    words: tuple[WordCorrection, ...]


def word_counts(texts: Iterable[str]) -> Counter[str]:
    """Returns how often each word occurs in texts, in lower case: a list for `WordMemory`.

    A word is a run of letters and digits with at least one letter. One symbol between them belongs
    to it (`don't`, `fi|m`, `l!ne`), except hyphens, dashes, slashes and any of `.,:;?"…`.

    Raises:
        TypeError: `texts` is one string.

    Example:
        >>> from hopfax import text
        >>> text.word_counts(["A well-known film.", "a film"]).most_common(2)
        [('a', 2), ('film', 2)]
    """
    if isinstance(texts, str):
        raise TypeError("texts must be several strings, got one: put it in a list")
    return Counter(match.group().lower() for text in texts for match in _words(text))


class WordMemory:
    r"""A list of words that corrects misspelled words.

    A word $w$ is the vector $\phi(w)$ of the counts of its *open bigrams*: ordered pairs of letters
    at most `span` apart, with a mark at both ends of the word, scaled to norm 1. The posterior of
    an unknown word $q$ is one Hopfield update with a log-prior,

    $$p(w \mid q) \propto \exp(\beta\, \phi(q) \cdot \phi(w) + \log n_w),$$

    over the words of the list, which occur $n_w$ times, and $q$ itself, with similarity 1 and
    `unseen` occurrences. The most probable of them is retrieved; ties go to the more frequent word,
    then to the first in alphabetical order. Words of the list stay as they are.

    The defaults are the best settings for random typos in CoLA's training texts, see
    `experiments/memory/typos.py`.

    Args:
        counts: Occurrences of each word, > 0. Words that differ in case are one word. The attribute
            has them in lower case.
        span: Maximum distance of the two letters of a pair, >= 1; 1 gives bigrams.
        beta: Inverse temperature, > 0.
        unseen: Occurrences of a word that the list lacks, > 0; larger values leave more words
            as they are.

    Raises:
        ValueError: The list is empty or has an empty word, or a number is out of its range.

    Example:
        >>> from hopfax import text
        >>> memory = text.WordMemory({"a": 50, "wonderful": 2, "film": 9, "firm": 1})
        >>> memory.correct("A wnoderful flim!").text
        'A wonderful film!'
        >>> memory.retrieve("wnoderful").word, memory.retrieve("xylophone").word
        ('wonderful', 'xylophone')

    References:
        Ramsauer et al., Hopfield Networks is All You Need (ICLR 2021), for the update. Grainger and
        Whitney, Does the huamn mnid raed wrods as a wlohe? (Trends in Cognitive Sciences, 2004),
        for open bigrams.
    """

    def __init__(
        self,
        counts: Mapping[str, float],
        *,
        span: int = 4,
        beta: float = 30.0,
        unseen: float = 0.001,
    ):
        numbers = {f"counts[{word!r}]": count for word, count in counts.items()}
        for name, value in {"beta": beta, "unseen": unseen, **numbers}.items():
            if not 0 < value < np.inf:
                raise ValueError(f"{name} must be > 0 and finite, got {value}")
        if not 1 <= span < float("inf") or span != int(span):
            raise ValueError(f"span must be an integer >= 1, got {span}")
        if not counts or "" in counts:
            raise ValueError(f"counts must have words, none of them empty, got {len(counts)} words")
        total: Counter[str] = Counter()
        for word, count in counts.items():
            total[word.lower()] += count  # pyright: ignore[reportArgumentType]
        self.counts: dict[str, float] = dict(
            sorted(total.items(), key=lambda each: (-each[1], each[0]))
        )
        self._words, self._span, self._beta = list(self.counts), int(span), beta
        self._log_prior = np.log(np.array(list(self.counts.values()), float))
        self._log_unseen = float(np.log(unseen))
        pairs = [_open_bigrams(word, self._span) for word in self._words]
        self._inverse_norms = 1 / np.array(list(map(_norm, pairs)))
        owners: dict[str, list[int]] = {}  # words with a pair, as often as they have it
        for number, counter in enumerate(pairs):
            for pair in counter.elements():
                owners.setdefault(pair, []).append(number)
        self._index = {pair: np.array(words, np.intp) for pair, words in owners.items()}
        self._cached = functools.lru_cache(_MAX_CACHED)(self._retrieve)

    def retrieve(self, word: str) -> Retrieved:
        """Returns the most probable word for one word, without its case."""
        word = word.lower()
        return Retrieved(word, 1.0) if word in self.counts else self._cached(word)

    def correct(self, text: str) -> Correction:
        """Returns a text with its words corrected; case and all other characters are kept."""
        return correct_words(text, self.retrieve)

    def _retrieve(self, word: str) -> Retrieved:
        pairs = _open_bigrams(word, self._span)
        owners = [self._index[pair] for pair in pairs.elements() if pair in self._index]
        # Counting integers is several times as fast as adding up the entries of the vectors.
        owners = np.concatenate([np.zeros(0, np.intp), *owners])
        products = np.bincount(owners, minlength=len(self._words))
        scores = self._log_prior + self._beta / _norm(pairs) * products * self._inverse_norms
        best, unchanged = int(np.argmax(scores)), self._beta + self._log_unseen
        most = max(float(scores[best]), unchanged)
        near = scores[scores > most - 40]  # smaller terms vanish in the sum
        total = np.exp(near - most).sum() + np.exp(unchanged - most)
        stays = unchanged >= scores[best]
        return Retrieved(word if stays else self._words[best], float(1 / total))


def correct_words(text: str, retrieve: Callable[[str], Retrieved]) -> Correction:
    """Returns a text with its words replaced by those that a function retrieves.

    Args:
        text: Any text; see `word_counts` for its words.
        retrieve: A word -> a word, whose case is ignored.

    Example:
        >>> from hopfax.text.spelling import Retrieved, correct_words
        >>> known = {"Teh": "the"}
        >>> correct_words("Teh film", lambda word: Retrieved(known.get(word, word), 1.0)).text
        'The film'
    """
    parts, words, end = [], [], 0
    for match in _words(text):
        before, (new, probability) = match.group(), retrieve(match.group())
        after = before if new.lower() == before.lower() else cased(new, before)
        words.append(WordCorrection(match.start(), before, after, probability))
        parts += [text[end : match.start()], after]
        end = match.end()
    return Correction("".join([*parts, text[end:]]), tuple(words))


def _open_bigrams(word: str, span: int) -> Counter[str]:
    """How often each pair of letters at most `span` apart occurs, ends included."""
    marked = f"{_EDGE}{word}{_EDGE}"
    return Counter(
        first + second
        for distance in range(1, span + 1)
        for first, second in zip(marked, marked[distance:], strict=False)
    )


def _words(text: str) -> list[re.Match[str]]:
    return [each for each in _WORD.finditer(text) if any(map(str.isalpha, each.group()))]


def _norm(pairs: Counter[str]) -> float:
    return float(np.sqrt(sum(count * count for count in pairs.values())))
