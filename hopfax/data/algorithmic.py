"""Algorithmic tasks on which small transformers grok: modular addition and noisy sparse parity.

Numbers out of range raise a ValueError.
"""

from typing import NamedTuple

import numpy as np

from hopfax.data.batching import Encoded
from hopfax.data.tasks import check_integer


class AlgorithmicData(NamedTuple):
    """Training rows, and validation and test rows without label noise; no row occurs twice.

    `relevant` has the positions that determine the label, in increasing order.
    """

    train: Encoded
    validation: Encoded
    test: Encoded
    vocab_size: int
    num_classes: int
    relevant: tuple[int, ...]


def modular_addition(
    seed: int,
    *,
    modulus: int = 113,
    num_train: int = 2000,
    num_validation: int = 200,
    num_test: int = 200,
) -> AlgorithmicData:
    """Returns sums modulo K as texts of five tokens: begin, a, plus, b, equals.

    Splits share no text, but a + b may be in one split and b + a in another: this holds for a
    fraction of about `num_train` / K^2 of the validation rows (16 % by default).

    Args:
        seed: Seed of the choice of pairs, >= 0.
        modulus: K, >= 2; the vocabulary has K numbers and five other tokens; 0 is padding.
        num_train: Training rows, >= 1; the splits have at most K * K rows in all.
        num_validation: Validation rows, >= 1.
        num_test: Test rows, >= 1.

    Example:
        >>> from hopfax.data import modular_addition
        >>> data = modular_addition(0, modulus=7, num_train=30, num_validation=9, num_test=10)
        >>> data.train.ids.shape, data.vocab_size, data.num_classes
        ((30, 1, 5), 12, 7)

    References:
        Noise Stability of Transformer Models, Table 2.
    """
    check_integer("modulus", modulus, 2)
    sizes = _sizes(modulus**2, train=num_train, validation=num_validation, test=num_test)
    pairs = np.random.default_rng([seed, modulus]).permutation(modulus**2)[: sum(sizes)]
    first, second = np.divmod(pairs, modulus)
    begin, plus, equals, numbers = 1, 2, 3, 5  # 0 is padding, 4 is reserved for an end token
    columns = np.broadcast_arrays(begin, first + numbers, plus, second + numbers, equals)
    splits = _split(np.stack(columns, axis=1), (first + second) % modulus, sizes)
    size = modulus + numbers
    return AlgorithmicData(*splits, vocab_size=size, num_classes=modulus, relevant=(1, 3))


def sparse_parity(
    seed: int,
    *,
    num_bits: int = 20,
    num_relevant: int = 2,
    noise: float = 0.1,
    num_train: int = 1000,
    num_validation: int = 200,
    num_test: int = 200,
) -> AlgorithmicData:
    """Returns the parity of a few hidden bits among many, with some training labels flipped.

    Args:
        seed: Seed of the hidden bits, the rows and the flips, >= 0.
        num_bits: n, >= 1; a text has n tokens: 1 for a zero bit, 2 for a one (0 is padding).
        num_relevant: k, from 1 to n.
        noise: Probability that a training label is flipped, in [0, 0.5).
        num_train: Training rows, >= 1; the splits have at most 2**n rows in all.
        num_validation: Validation rows, >= 1.
        num_test: Test rows, >= 1.

    Example:
        >>> from hopfax.data import sparse_parity
        >>> data = sparse_parity(0, num_bits=12, num_relevant=3)
        >>> data.train.ids.shape, len(data.relevant)
        ((1000, 1, 12), 3)

    References:
        Noise Stability of Transformer Models, section 6.
    """
    check_integer("num_bits", num_bits, 1)
    check_integer("num_relevant", num_relevant, 1, num_bits)
    if not 0 <= noise < 0.5:
        raise ValueError(f"noise must be in [0, 0.5), got {noise}")
    sizes = _sizes(2**num_bits, train=num_train, validation=num_validation, test=num_test)
    rng = np.random.default_rng([seed, num_bits, num_relevant])
    relevant = np.sort(rng.choice(num_bits, num_relevant, replace=False))
    bits = _distinct_rows(rng, sum(sizes), num_bits)
    labels = bits[:, relevant].sum(axis=1) % 2
    flipped = rng.random(len(labels)) < noise
    flipped[num_train:] = False
    splits = _split(bits + 1, labels ^ flipped, sizes)
    hidden = tuple(relevant.tolist())
    return AlgorithmicData(*splits, vocab_size=3, num_classes=2, relevant=hidden)


def _sizes(num_texts: int, **sizes: int) -> list[int]:
    for split, size in sizes.items():
        check_integer(f"num_{split}", size, 1)
    if (total := sum(sizes.values())) > num_texts:
        raise ValueError(f"the splits require {total} distinct texts, only {num_texts} exist")
    return list(sizes.values())


def _distinct_rows(rng: np.random.Generator, count: int, num_bits: int) -> np.ndarray:
    if num_bits <= 16:
        numbers = rng.permutation(2**num_bits)[:count]
        return (numbers[:, None] >> np.arange(num_bits)) & 1
    rows = np.zeros((0, num_bits), int)
    while len(rows) < count:
        drawn = np.concatenate([rows, rng.integers(0, 2, (2 * count, num_bits))])
        first_occurrences = np.unique(drawn, axis=0, return_index=True)[1]
        rows = drawn[np.sort(first_occurrences)]
    return rows[:count]


def _split(ids: np.ndarray, labels: np.ndarray, sizes: list[int]) -> list[Encoded]:
    lengths = np.full((len(ids), 1), ids.shape[1], np.int32)
    index = np.concatenate([np.arange(size, dtype=np.int32) for size in sizes])
    fields = ids[:, None].astype(np.int32), lengths, labels.astype(np.int32), index
    ends = np.cumsum(sizes)[:-1]
    return list(map(Encoded, *(np.split(field, ends) for field in fields)))
