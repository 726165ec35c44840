import numpy as np
import pytest

from hopfax.data import next_words, read_wikitext2
from hopfax.data.language import END, UNKNOWN

TEXTS = {
    "train": ["a b a c", "", " a b d ", "a <unk> b b"],
    "validation": ["a e", "b c a b"],
    "test": ["c c c c c c c"],
}


def stream(lines, vocabulary):
    words = [word for line in lines if line.split() for word in [*line.split(), END]]
    return [vocabulary.index(word) if word in vocabulary else 0 for word in words]


@pytest.mark.parametrize("num_tokens", [1, 5])
def test_rows_are_consecutive_words_and_labels_the_next_words(num_tokens):
    sizes = {split: (len(stream(TEXTS[split], [])) - 1) // num_tokens for split in TEXTS}
    data = next_words(TEXTS, 3, num_tokens=num_tokens, vocab_size=4, rows=sizes)
    for split, lines in TEXTS.items():
        ids = stream(lines, data.vocabulary)
        starts = range(0, sizes[split] * num_tokens, num_tokens)
        rows = np.concatenate(getattr(data, split), axis=1).tolist()
        assert sorted(rows) == sorted(
            ids[start : start + num_tokens] + ids[start + 1 : start + num_tokens + 1]
            for start in starts
        )


def test_the_vocabulary_has_the_most_frequent_words_and_the_seed_chooses_the_rows():
    for size in (4, 99):
        data = next_words(TEXTS, 0, num_tokens=2, vocab_size=size, rows=dict.fromkeys(TEXTS, 1))
        assert data.vocabulary == (UNKNOWN, "a", "b", END, "c", "d")[:size]
    sizes = {"train": 5, "validation": 2, "test": 2}
    first, other = (
        next_words(TEXTS, seed, num_tokens=2, vocab_size=6, rows=sizes).train.ids.tolist()
        for seed in (0, 1)
    )
    assert first == [[2, 5], [3, 1], [0, 2], [3, 1], [1, 2]] != other  # on every machine


def test_wikitext2(shared):
    data = next_words(
        read_wikitext2(shared / "data"), 0, rows={"train": 1000, "validation": 200, "test": 200}
    )
    assert data.vocabulary[1] == "the" and len(data.vocabulary) == 500
    assert data.train.ids.shape == (1000, 20) and 0.2 < np.mean(data.train.labels == 0) < 0.5
