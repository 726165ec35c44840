"""Trains a WordPiece vocabulary deterministically.

The trainer of `tokenizers` breaks ties by the order of a randomized hash map, so its result differs
between processes. This one breaks ties alphabetically.
"""

import heapq
import itertools
import reprlib
from collections import Counter, defaultdict
from collections.abc import Iterable

from hopfax.data.tokenize import SPECIAL, WordPiece
from hopfax.hub import optional_import

_PREFIX = "##"


def train_vocabulary(texts: Iterable[str], *, vocab_size: int = 8000) -> WordPiece:
    """Returns a vocabulary trained by repeatedly merging the most frequent pair of pieces.

    This is byte-pair encoding (Sennrich et al. 2016) with WordPiece's ``##`` before pieces inside a
    word, like the WordPiece trainer of `tokenizers`. Pairs that occur once are not merged.

    Args:
        texts: Training texts with one or more words, lower-cased and split as in `encode`.
        vocab_size: Maximum number of tokens, exceeded only to keep all characters.

    Example:
        >>> from hopfax.data import train_vocabulary
        >>> train_vocabulary(["low lower", "low"], vocab_size=12).tokens[4:]
        ('##e', '##o', '##r', '##w', 'l', '##ow', 'low')
    """
    if isinstance(texts, str):
        raise TypeError(f"texts must be several strings, got one: {reprlib.repr(texts)}")
    tokenizers = optional_import("tokenizers")
    normalize = tokenizers.normalizers.BertNormalizer(lowercase=True).normalize_str
    split = tokenizers.pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    frequencies = Counter(word for text in texts for word, _ in split(normalize(text)))
    words = [(*word[:1], *(_PREFIX + letter for letter in word[1:])) for word in frequencies]
    if not words:
        raise ValueError("texts must have at least one word")
    counts = list(frequencies.values())
    tokens = dict.fromkeys((*SPECIAL, *sorted({piece for word in words for piece in word})))

    pairs: Counter[tuple[str, str]] = Counter()
    containing: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for number, word in enumerate(words):
        for pair in itertools.pairwise(word):
            pairs[pair] += counts[number]
            containing[pair].add(number)
    queue = [(-count, pair) for pair, count in pairs.items()]
    heapq.heapify(queue)
    while queue and len(tokens) < vocab_size:
        count, pair = heapq.heappop(queue)
        if -count != pairs[pair]:  # outdated: the current count is in the queue too
            continue
        if -count < 2:  # rarer pairs are not merged
            break
        merged = pair[0] + pair[1].removeprefix(_PREFIX)
        tokens[merged] = None
        changed = set()
        for number in containing.pop(pair):
            old = words[number]
            words[number] = new = _merge(old, pair, merged)
            for old_pair in itertools.pairwise(old):
                pairs[old_pair] -= counts[number]
            for new_pair in itertools.pairwise(new):
                pairs[new_pair] += counts[number]
                containing[new_pair].add(number)
            changed.update(itertools.pairwise(old), itertools.pairwise(new))
        for changed_pair in changed:
            if pairs[changed_pair] > 0:
                heapq.heappush(queue, (-pairs[changed_pair], changed_pair))
    return WordPiece(tokens=tuple(tokens))


def _merge(word: tuple[str, ...], pair: tuple[str, str], merged: str) -> tuple[str, ...]:
    new = []
    position = 0
    while position < len(word):
        matches = word[position : position + 2] == pair
        new.append(merged if matches else word[position])
        position += 2 if matches else 1
    return tuple(new)
