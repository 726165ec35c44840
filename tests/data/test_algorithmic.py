"""Labels are recomputed row by row."""

import numpy as np
import pytest

from hopfax.data import modular_addition, next_words, read_wikitext2, sparse_parity
from hopfax.data.language import END, UNKNOWN

TEXTS = {
    "train": ["a b a c", "", " a b d ", "a <unk> b b"],
    "validation": ["a e", "b c a b"],
    "test": ["c c c c c c c"],
}


def rows(split):
    return [tuple(row) for row in split.ids[:, 0]]


def test_sums_are_right():
    data = modular_addition(3, modulus=7, num_train=30, num_validation=9, num_test=10)
    assert (data.vocab_size, data.num_classes, data.relevant) == (12, 7, (1, 3))
    for split, size in zip(data[:3], (30, 9, 10), strict=True):
        assert len(split.labels) == size
        assert (split.ids[:, 0, [0, 2, 4]] == [1, 2, 3]).all()
        numbers = split.ids[:, 0, [1, 3]] - 5
        assert numbers.min() >= 0 and numbers.max() < 7
        assert (numbers.sum(axis=1) % 7 == split.labels).all()


@pytest.mark.parametrize(("num_bits", "num_relevant"), [(10, 1), (40, 3)])
def test_only_training_parities_are_noisy(num_bits, num_relevant):
    sizes = {"num_train": 600, "num_validation": 100, "num_test": 100}
    data = sparse_parity(0, num_bits=num_bits, num_relevant=num_relevant, noise=0.45, **sizes)
    assert len(data.relevant) == num_relevant
    wrong = []
    for split in data[:3]:
        assert set(split.ids.flat) == {1, 2}
        parities = (split.ids[:, 0][:, data.relevant] == 2).sum(axis=1) % 2
        wrong.append(np.mean(parities != split.labels))
    assert abs(wrong[0] - 0.45) < 5 * (0.25 / 600) ** 0.5
    assert wrong[1:] == [0, 0]


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (modular_addition, {"modulus": 11, "num_train": 80, "num_validation": 20, "num_test": 21}),
        (sparse_parity, {"num_bits": 7, "num_train": 100, "num_validation": 14, "num_test": 14}),
        (sparse_parity, {"num_bits": 17, "num_train": 5000}),
    ],
)
def test_splits_share_no_row_and_depend_on_the_seed(make, options):
    data = make(1, **options)
    seen = [row for split in data[:3] for row in rows(split)]
    assert len(set(seen)) == len(seen)
    assert rows(data.train) != rows(make(2, **options).train)


def test_rows_are_the_same_on_every_machine():
    data = modular_addition(3, modulus=7, num_train=30, num_validation=9, num_test=10)
    assert data.test.labels.tolist() == [2, 1, 5, 4, 1, 2, 2, 2, 5, 6]
    for bits, relevant, labels in ((12, (6, 8), [1, 1, 1, 0, 1]), (20, (1, 9), [1, 1, 0, 1, 1])):
        data = sparse_parity(3, num_bits=bits)
        assert data.relevant == relevant and data.train.labels[:5].tolist() == labels


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
        spans = ((start, start + num_tokens) for start in starts)
        assert sorted(rows) == sorted(ids[a:b] + ids[a + 1 : b + 1] for a, b in spans)


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
    sizes = {"train": 1000, "validation": 200, "test": 200}
    data = next_words(read_wikitext2(shared / "data"), 0, rows=sizes)
    assert data.vocabulary[1] == "the" and len(data.vocabulary) == 500
    assert data.train.ids.shape == (1000, 20) and 0.2 < np.mean(data.train.labels == 0) < 0.5
