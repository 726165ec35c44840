"""Which rows a seed trains on in which step: a pure function of the seed and the epoch.

Rows come in buckets of one padded length. An epoch is a list of chunks; a chunk is several steps
within one bucket, compiled as one call. The order of the chunks is common to all seeds (they train
in one array program); the rows inside are each seed's own.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Chunk(NamedTuple):
    """Steps within one bucket.

    Attributes:
        bucket: Index of the bucket.
        picks: `(steps, seeds, batch)` row numbers inside the bucket.
        weights: `(steps, seeds, batch)` 1 for real rows, 0 for padding.
    """

    bucket: int
    picks: np.ndarray
    weights: np.ndarray


class Shape(NamedTuple):
    """Number of chunks of a bucket in every epoch, and number of steps of a chunk."""

    chunks: int
    steps: int


def shapes(sizes: Sequence[int], *, batch_size: int, chunk_steps: int = 16) -> list[Shape]:
    """Splits buckets into chunks of equal length, so that each compiles once.

    Args:
        sizes: Number of rows of each bucket.
        batch_size: Maximum number of rows of a step, >= 1.
        chunk_steps: Approximate number of steps of a chunk, >= 1.

    Returns:
        A shape for each bucket. Equal chunks may need more steps than `ceil(rows / batch_size)`;
        the batches of the bucket are then slightly smaller.

    Raises:
        ValueError: `batch_size` or `chunk_steps` is below 1.

    Example:
        >>> shapes([110], batch_size=10, chunk_steps=4)
        [Shape(chunks=3, steps=4)]
    """
    if batch_size < 1 or chunk_steps < 1:
        raise ValueError(
            f"batch_size and chunk_steps must be >= 1, got {batch_size} and {chunk_steps}"
        )
    cuts = []
    for size in sizes:
        steps = -(-size // batch_size)
        chunks = max(1, round(steps / chunk_steps))
        # With more steps than rows, some would have no rows.
        while chunks > 1 and chunks * -(-steps // chunks) > size:
            chunks -= 1
        cuts.append(Shape(chunks, -(-steps // chunks)))
    return cuts


def epoch_chunks(
    sizes: Sequence[int],
    *,
    batch_size: int,
    seeds: Sequence[int],
    epoch: int,
    chunk_steps: int = 16,
) -> list[Chunk]:
    """Returns the chunks of one epoch, in order; every seed trains on every row exactly once.

    Args:
        sizes: Number of rows of each bucket.
        batch_size: Maximum number of rows of a step.
        seeds: Training seeds; a seed's rows do not depend on the other seeds.
        epoch: Number of the epoch.
        chunk_steps: Approximate number of steps of a chunk.

    Example:
        >>> (chunk,) = epoch_chunks([3], batch_size=2, seeds=[23], epoch=0)
        >>> chunk.picks.shape, chunk.weights.sum()
        ((2, 1, 2), np.float32(3.0))
    """
    chunks = []
    for bucket, (size, shape) in enumerate(
        zip(sizes, shapes(sizes, batch_size=batch_size, chunk_steps=chunk_steps), strict=True)
    ):
        total = shape.chunks * shape.steps
        orders = np.stack(
            [np.random.default_rng([seed, epoch, bucket]).permutation(size) for seed in seeds]
        )
        # Row r of the shuffled bucket is in step r mod total: batch sizes differ by at most one.
        places = np.arange(total)[:, None] + total * np.arange(batch_size)
        weights = (places < size).astype(np.float32)
        picks = orders[:, np.minimum(places, size - 1)].swapaxes(0, 1).astype(np.int32)
        weights = np.broadcast_to(weights[:, None], picks.shape)
        for start in range(0, total, shape.steps):
            part = slice(start, start + shape.steps)
            chunks.append(Chunk(bucket, picks[part], weights[part]))
    order = np.random.default_rng([2**31, epoch]).permutation(len(chunks))
    return [chunks[number] for number in order]
