"""Evenly spaced rows, length buckets and evaluation batches."""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from hopfax.data.tasks import check_integer


class Encoded(NamedTuple):
    """One tokenized split of one task.

    Attributes:
        ids: `(examples, choices, length)` int32, padded at the end; `choices` is 1 except for COPA.
        lengths: `(examples, choices)` int32, number of real tokens including [CLS] and [SEP].
        labels: `(examples,)` int32 classes, or float32 scores for regression.
        index: `(examples,)` int32 row numbers in the split, which seed random draws.
    """

    ids: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray
    index: np.ndarray


class Bucket(Encoded):
    """Rows of an `Encoded` that share one padded length."""

    __slots__ = ()


def evenly_spaced(rows: Any, count: int | None) -> Any:
    """Returns at most `count` evenly spaced rows, the first and last among them.

    Args:
        rows: A list or an array, in the order of its file.
        count: Number of rows to return, >= 1; None for all.

    Example:
        >>> from hopfax.data import evenly_spaced
        >>> evenly_spaced(["a", "b", "c", "d", "e"], 3)
        ['a', 'c', 'e']
    """
    if count is None or count >= len(rows):
        return rows
    picks = np.linspace(0, len(rows) - 1, count).round().astype(int)
    return rows[picks] if isinstance(rows, np.ndarray) else [rows[place] for place in picks]


def bucket_boundaries(
    lengths: np.ndarray, *, max_buckets: int = 4, multiple: int = 8, max_length: int | None = None
) -> tuple[int, ...]:
    """Returns the increasing padded lengths that minimize the number of padding tokens.

    Every boundary is a shape to compile, so use few. The last is at least the longest row.

    Args:
        lengths: `(examples,)` or `(examples, choices)` numbers of real tokens.
        max_buckets: Maximum number of boundaries, >= 1.
        multiple: Boundaries are multiples of this number, >= 1.
        max_length: Longest input of the model; boundaries are not rounded up beyond it.

    Example:
        >>> import numpy as np
        >>> from hopfax.data import bucket_boundaries
        >>> bucket_boundaries(np.array([3, 5, 30, 120]), max_buckets=2)
        (32, 120)
    """
    rows = lengths.reshape(len(lengths), -1).max(axis=1)
    rounded = -(-np.maximum(rows, 1) // multiple) * multiple
    if max_length is not None:
        rounded = np.maximum(np.minimum(rounded, max_length), rows)
    candidates, counts = (values.tolist() for values in np.unique(rounded, return_counts=True))
    num_rows = [0, *itertools.accumulate(counts)]  # cumulative, by candidate

    @functools.cache
    def best(start: int, num_buckets: int) -> tuple[int, tuple[int, ...]]:
        """Minimal number of tokens and its boundaries, for rows from candidate `start` on."""
        if start == len(candidates):
            return 0, ()
        options = []
        for end in range(start + 1 if num_buckets > 1 else len(candidates), len(candidates) + 1):
            total, boundaries = best(end, num_buckets - 1)
            boundary = candidates[end - 1]
            total += boundary * (num_rows[end] - num_rows[start])
            options.append((total, (boundary, *boundaries)))
        return min(options)

    return best(0, max_buckets)[1]


def to_buckets(
    encoded: Encoded, *, boundaries: Sequence[int] = (16, 32, 64, 128), pad_id: int = 0
) -> list[Bucket]:
    """Groups rows into nonempty buckets of one padded length each, shortest first.

    Every row is in exactly one bucket, which keeps the order of its rows.

    Args:
        encoded: The rows.
        boundaries: Padded lengths, increasing. A row is in the first bucket that fits its longest
            choice.
        pad_id: Id of the padding token.

    Raises:
        ValueError: If the boundaries do not increase, or a row is longer than the last.

    Example:
        >>> import numpy as np
        >>> from hopfax.data import Encoded, to_buckets
        >>> ids, lengths = np.ones((2, 1, 20), int), np.array([[3], [20]])
        >>> rows = Encoded(ids, lengths, np.zeros(2, int), np.arange(2))
        >>> [bucket.ids.shape for bucket in to_buckets(rows)]
        [(1, 1, 16), (1, 1, 32)]
    """
    if list(boundaries) != sorted(set(boundaries)):
        raise ValueError(f"boundaries must increase, got {boundaries!r}")
    longest = encoded.lengths.max(axis=1, initial=0)
    if longest.max(initial=0) > boundaries[-1]:
        raise ValueError(
            f"row {encoded.index[longest.argmax()]} has {longest.max()} tokens, the last boundary "
            f"is {boundaries[-1]}: tokenize with a smaller max_length or add a longer boundary"
        )
    bucket_numbers = np.searchsorted(boundaries, longest)
    buckets = []
    for number in np.unique(bucket_numbers):
        rows = np.flatnonzero(bucket_numbers == number)
        ids = encoded.ids[rows, :, : boundaries[number]]
        padding = ((0, 0), (0, 0), (0, boundaries[number] - ids.shape[2]))
        ids = np.pad(ids, padding, constant_values=pad_id)
        buckets.append(Bucket(ids, *(field[rows] for field in encoded[1:])))
    return buckets


def eval_batches(bucket: Bucket, *, batch_size: int) -> Iterator[tuple[Bucket, np.ndarray]]:
    """Yields a bucket in batches of equal size, without dropping rows.

    Args:
        bucket: Rows of one padded length.
        batch_size: Rows of each batch, >= 1.

    Yields:
        A batch of exactly `batch_size` rows and its weights `(batch_size,)` float32: 1 for a
        row, 0 for the copies of the last row that fill the last batch.

    Example:
        >>> import numpy as np
        >>> from hopfax.data import Bucket, eval_batches
        >>> bucket = Bucket(np.ones((3, 1, 8), int), np.ones((3, 1)), np.zeros(3), np.arange(3))
        >>> [(batch.index.tolist(), w.tolist()) for batch, w in eval_batches(bucket, batch_size=2)]
        [([0, 1], [1.0, 1.0]), ([2, 2], [1.0, 0.0])]
    """
    check_integer("batch_size", batch_size, 1)
    size = len(bucket.labels)
    for start in range(0, size, batch_size):
        rows = np.arange(start, start + batch_size)
        weights = (rows < size).astype(np.float32)
        yield Bucket(*(field[np.minimum(rows, size - 1)] for field in bucket)), weights
