"""Random typos in a fraction of the words.

Seeds are integers >= 0 for NumPy: text is edited on the host, where JAX keys would be slow. Rates
outside [0, 1] and negative seeds raise a ValueError.
"""

import math
from collections.abc import Sequence

import numpy as np

from hopfax.text import changes
from hopfax.text.changes import Changes
from hopfax.text.log import T, Version, edit, split_words

Seed = int | tuple[int, ...]


def misspell(text: T, *, rate: float, seed: Seed) -> Version[T]:
    """Misspells a fraction of the words.

    Each chosen word gets one of four mistakes: a neighboring key, an omitted letter, a doubled
    letter, or a spelling that sounds alike. Mistakes that fit the word are equally likely. The
    first letter is never mistyped or omitted, but its sound may change (physics, fysics). Words of
    one or two letters, and digits, do not change.

    Args:
        text: A string, a pair of strings, or the choices of an example; see `hopfax.text.log`.
        rate: Fraction of all words to change, in [0, 1]; see `num_changes`. If fewer words can
            change, `Version.rate` is smaller. Words changed at one rate change in the same way at
            any higher rate.
        seed: One or several integers >= 0, for instance `(seed, row)`, so that the typos of a text
            do not depend on other texts.

    Returns:
        The text and the log of its edits, from which `restore` recovers the clean text.

    Example:
        >>> from hopfax import text
        >>> text.misspell("a wonderful film", rate=0.3, seed=1).num_changed
        1
    """
    mistakes = (changes.keyboard, changes.omission, changes.doubling, changes.phonetic)
    return _change_words(text, rate, seed, mistakes)


def swap_characters(text: T, *, rate: float, seed: Seed) -> Version[T]:
    """Swaps two neighboring letters in a fraction of the words.

    The first and last letter stay, so only words of four letters or more change. Arguments are
    those of `misspell`.

    Example:
        >>> from hopfax import text
        >>> text.swap_characters("a wonderful film", rate=0.3, seed=1).text
        'a wnoderful film'
    """
    return _change_words(text, rate, seed, (changes.swap,))


def num_changes(rate: float, num_words: int) -> int:
    """Returns the number of words to change, rounded half up, at least one.

    Args:
        rate: Fraction of the words, in [0, 1]; 0 changes no word.
        num_words: Number of words of the text, including those that cannot change.

    Example:
        >>> from hopfax import text
        >>> text.num_changes(0.1, 24), text.num_changes(0.1, 25), text.num_changes(0.1, 2)
        (2, 3, 1)
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must be in [0, 1], got {rate}")
    if rate == 0 or num_words == 0:
        return 0
    return max(1, math.floor(round(rate * num_words, 9) + 0.5))  # 0.7 * 45 < 31.5 in floating point


def _change_words(text: T, rate: float, seed: Seed, kinds: Sequence[Changes]) -> Version[T]:
    clean, rng = split_words(text), np.random.default_rng(seed)
    count, chosen = num_changes(rate, len(clean.words)), {}
    for index in rng.permutation(len(clean.words)).tolist():
        if len(chosen) == count:
            break
        word = clean.spelling(index)
        if options := [fitting for kind in kinds if (fitting := kind(word))]:
            of_kind = options[rng.integers(len(options))]
            chosen[index] = of_kind[rng.integers(len(of_kind))]
    return edit(clean, chosen)
