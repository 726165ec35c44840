"""Which rows a seed sees in which step: a pure function of the seed and the epoch.

Rows come in buckets of one padded length. An epoch is a list of chunks; a chunk is several steps
within one bucket, compiled as one call. The order of the chunks is common to all seeds (they train
side by side in one array program), the rows inside are each seed's own.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Chunk(NamedTuple):
    """Steps within one bucket.

    Attributes:
        bucket: Number of the bucket.
        picks: `(steps, seeds, batch)` row numbers inside the bucket.
        weights: `(steps, seeds, batch)` 1 where a row counts, 0 where it fills the batch.
    """

    bucket: int
    picks: np.ndarray
    weights: np.ndarray


class Shape(NamedTuple):
    """How a bucket is cut up in every epoch: so many chunks of so many steps."""

    chunks: int
    steps: int


def shapes(sizes: Sequence[int], *, batch_size: int, chunk_steps: int = 16) -> list[Shape]:
    """Cuts buckets into chunks of equal length, so that each compiles once.

    Args:
        sizes: Rows of each bucket.
        batch_size: Most rows a step, >= 1.
        chunk_steps: Wanted steps a chunk, >= 1.

    Returns:
        A shape for each bucket. Steps that equal chunks need beyond `ceil(rows / batch_size)` are
        won by making every batch of the bucket a little smaller.

    Raises:
        ValueError: If `batch_size` or `chunk_steps` is below 1.
    """
    if batch_size < 1 or chunk_steps < 1:
        raise ValueError(f"batch_size and chunk_steps must be >= 1: {batch_size}, {chunk_steps}")
    found = []
    for size in sizes:
        steps = -(-size // batch_size)
        chunks = max(1, round(steps / chunk_steps))
        # More steps than rows would leave steps without one.
        while chunks > 1 and chunks * -(-steps // chunks) > size:
            chunks -= 1
        found.append(Shape(chunks, -(-steps // chunks)))
    return found


def epoch_chunks(
    sizes: Sequence[int],
    *,
    batch_size: int,
    seeds: Sequence[int],
    epoch: int,
    chunk_steps: int = 16,
) -> list[Chunk]:
    """The chunks of one epoch, in their order. Every seed meets every row exactly once.

    Args:
        sizes: Rows of each bucket.
        batch_size: Most rows a step.
        seeds: One number a run; a seed's rows do not depend on the other seeds.
        epoch: Number of the epoch.
        chunk_steps: Wanted steps a chunk.
    """
    chunks = []
    for bucket, (size, shape) in enumerate(
        zip(sizes, shapes(sizes, batch_size=batch_size, chunk_steps=chunk_steps), strict=True)
    ):
        total = shape.chunks * shape.steps
        orders = np.stack(
            [np.random.default_rng([seed, epoch, bucket]).permutation(size) for seed in seeds]
        )
        # Row r of the shuffled bucket goes to step r mod total: batches differ by one row at most.
        places = np.arange(total)[:, None] + total * np.arange(batch_size)
        weights = (places < size).astype(np.float32)
        picks = orders[:, np.minimum(places, size - 1)].swapaxes(0, 1).astype(np.int32)
        weights = np.broadcast_to(weights[:, None], picks.shape)
        for start in range(0, total, shape.steps):
            part = slice(start, start + shape.steps)
            chunks.append(Chunk(bucket, picks[part], weights[part]))
    order = np.random.default_rng([2**31, epoch]).permutation(len(chunks))
    return [chunks[number] for number in order]
