import re
from collections import Counter

import pytest

from hopfax.data import train_vocabulary
from hopfax.data.vocabulary import _merge

TEXTS = ["low lower lowest", "new newer newest", "low new wide wider", "Café, wide!"] * 2


def slow_oracle(words, size):
    """Byte-pair merges that count all pairs in every step."""
    pieces = {word: (word[0], *("##" + letter for letter in word[1:])) for word in words}
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokens += sorted({piece for word in pieces.values() for piece in word})
    while len(tokens) < size:
        pairs = Counter()
        for word, count in words.items():
            for pair in zip(pieces[word], pieces[word][1:], strict=False):
                pairs[pair] += count
        if not pairs or max(pairs.values()) < 2:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merged = best[0] + best[1].removeprefix("##")
        if merged not in tokens:
            tokens.append(merged)
        pieces = {word: _merge(piece, best, merged) for word, piece in pieces.items()}
    return tuple(tokens)


@pytest.mark.parametrize("size", [25, 30, 60])
def test_equals_the_slow_oracle(size):
    words = Counter(re.findall(r"\w+|[,!]", " ".join(TEXTS).lower().replace("é", "e")))
    assert train_vocabulary(TEXTS, vocab_size=size).tokens == slow_oracle(words, size)


def test_repeated_letters_merge_from_the_left():
    assert _merge(("a", "##a", "##a", "##a"), ("##a", "##a"), "##aa") == ("a", "##aa", "##a")
