"""Trains a WordPiece vocabulary, to the same bits on every machine.

The trainer of `tokenizers` breaks ties by the order of a randomised hash map: two processes get
two vocabularies from the same texts. This one breaks them by the alphabet.
"""

import heapq
import itertools
import reprlib
from collections import Counter, defaultdict
from collections.abc import Iterable

from hopfax.data.optional import optional_import
from hopfax.data.tasks import check_number
from hopfax.data.tokenize import SPECIAL, WordPiece

_PREFIX = "##"


def train_vocabulary(
    texts: Iterable[str], *, vocab_size: int = 8000, min_count: int = 2
) -> WordPiece:
    """Trains a vocabulary by merging the most frequent pair of pieces again and again.

    The merges of byte-pair encoding (Sennrich et al. 2016) with WordPiece's ``##`` before
    pieces inside a word, as the WordPiece trainer of `tokenizers` does it. Ties go to the pair
    first in the alphabet.

    Args:
        texts: Training texts; lower-cased and split as `encode` does it.
        vocab_size: Most tokens to end up with; every character seen is kept even beyond it.
        min_count: Pairs rarer than this are not merged, >= 1.

    Raises:
        TypeError: `texts` is one string, or has something else than strings.
        ValueError: No words in the texts, or `vocab_size` too small for the special tokens.
    """
    check_number("vocab_size", vocab_size, len(SPECIAL) + 1)
    check_number("min_count", min_count, 1)
    if isinstance(texts, str):
        raise TypeError(f"texts must be several strings, got one: {reprlib.repr(texts)}")
    words, counts = _count_words(texts)
    if not words:
        raise ValueError("the training texts hold no words to train a vocabulary on")
    tokens = dict.fromkeys((*SPECIAL, *sorted({piece for word in words for piece in word})))

    pairs: Counter[tuple[str, str]] = Counter()
    homes: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for number, word in enumerate(words):
        for pair in itertools.pairwise(word):
            pairs[pair] += counts[number]
            homes[pair].add(number)
    queue = [(-count, pair) for pair, count in pairs.items()]
    heapq.heapify(queue)
    while queue and len(tokens) < vocab_size:
        count, pair = heapq.heappop(queue)
        if -count != pairs[pair]:  # out of date: the pair's true count is queued too
            continue
        if -count < min_count:
            break
        merged = pair[0] + pair[1].removeprefix(_PREFIX)
        tokens[merged] = None
        changed = set()
        for number in homes.pop(pair):
            word = words[number]
            new = _merge(word, pair, merged)
            for old_pair in itertools.pairwise(word):
                pairs[old_pair] -= counts[number]
                changed.add(old_pair)
            for new_pair in itertools.pairwise(new):
                pairs[new_pair] += counts[number]
                homes[new_pair].add(number)
                changed.add(new_pair)
            words[number] = new
        for touched in changed:
            if pairs[touched] > 0:
                heapq.heappush(queue, (-pairs[touched], touched))
    return WordPiece(
        tokens=tuple(tokens), source=f"trained on the training texts ({len(tokens):,} tokens)"
    )


def _count_words(texts: Iterable[str]) -> tuple[list[tuple[str, ...]], list[int]]:
    """Distinct words as tuples of single-character pieces, with their counts."""
    tokenizers = optional_import("tokenizers")
    normalise = tokenizers.normalizers.BertNormalizer(lowercase=True).normalize_str
    split = tokenizers.pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    words: Counter[str] = Counter()
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"texts must be strings, got {reprlib.repr(text)}")
        words.update(word for word, _ in split(normalise(text)))
    ordered = sorted(words)
    pieces = [(word[0], *(_PREFIX + letter for letter in word[1:])) for word in ordered]
    return pieces, [words[word] for word in ordered]


def _merge(word: tuple[str, ...], pair: tuple[str, str], merged: str) -> tuple[str, ...]:
    """The word with every occurrence of the pair merged, from the left."""
    new = []
    position = 0
    while position < len(word):
        if word[position : position + 2] == pair:
            new.append(merged)
            position += 2
        else:
            new.append(word[position])
            position += 1
    return tuple(new)
