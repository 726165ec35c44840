"""Labels are recomputed row by row."""

import numpy as np
import pytest

from hopfax.data.algorithmic import modular_addition, sparse_parity

SPLITS = ("train", "validation", "test")


def rows(split):
    return [tuple(row) for row in split.ids[:, 0]]


def test_sums_are_right():
    modulus = 7
    sizes = {"num_train": 30, "num_validation": 9, "num_test": 10}
    data = modular_addition(3, modulus=modulus, **sizes)
    assert (data.vocab_size, data.num_classes) == (modulus + 5, modulus)
    for name in SPLITS:
        split = getattr(data, name)
        assert len(split.labels) == sizes[f"num_{name}"]
        for row, label in zip(rows(split), split.labels, strict=True):
            numbers = [row[place] - 5 for place in data.relevant]
            assert all(0 <= number < modulus for number in numbers)
            assert sum(numbers) % modulus == label
            assert (row[0], row[2], row[4]) == (1, 2, 3)


@pytest.mark.parametrize(("num_bits", "num_relevant"), [(10, 1), (40, 3)])
def test_only_training_parities_are_noisy(num_bits, num_relevant):
    sizes = {"num_train": 50, "num_validation": 10, "num_test": 10}
    wrong = dict.fromkeys(SPLITS, 0)
    for seed in range(12):
        data = sparse_parity(
            seed, num_bits=num_bits, num_relevant=num_relevant, noise=0.45, **sizes
        )
        assert len(data.relevant) == num_relevant
        for name in SPLITS:
            for row, label in zip(
                rows(getattr(data, name)), getattr(data, name).labels, strict=True
            ):
                assert set(row) <= {1, 2}
                wrong[name] += sum(row[place] == 2 for place in data.relevant) % 2 != label
    assert abs(wrong["train"] / 600 - 0.45) < 5 * (0.25 / 600) ** 0.5
    assert wrong["validation"] == wrong["test"] == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: modular_addition(
            seed, modulus=11, num_train=80, num_validation=20, num_test=21
        ),
        lambda seed: sparse_parity(seed, num_bits=7, num_train=100, num_validation=14, num_test=14),
        lambda seed: sparse_parity(seed, num_bits=17, num_train=5000),
    ],
)
def test_splits_share_no_row_and_depend_on_the_seed(make):
    data = make(1)
    seen = [row for name in SPLITS for row in rows(getattr(data, name))]
    assert len(set(seen)) == len(seen)
    again, other = make(1), make(2)
    for name in SPLITS:
        for one, same in zip(getattr(data, name), getattr(again, name), strict=True):
            np.testing.assert_array_equal(one, same)
    assert rows(data.train) != rows(other.train)


def test_rows_are_the_same_on_every_machine():
    data = modular_addition(3, modulus=7, num_train=30, num_validation=9, num_test=10)
    assert data.test.labels.tolist() == [2, 1, 5, 4, 1, 2, 2, 2, 5, 6]
    for num_bits, relevant, labels in (
        (12, (6, 8), [1, 1, 1, 0, 1]),
        (20, (1, 9), [1, 1, 0, 1, 1]),
    ):
        data = sparse_parity(3, num_bits=num_bits)
        assert data.relevant == relevant and data.train.labels[:5].tolist() == labels
