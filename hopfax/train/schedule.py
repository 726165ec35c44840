"""The rows of every training step: a pure function of the seed and the epoch.

An epoch is a list of chunks; a chunk is several steps within one bucket, compiled as one call. All
seeds share the order of chunks, since they train in one program; each has its own order of rows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

CHUNK_STEPS = 16  # approximate number of steps of a compiled call


class Chunk(NamedTuple):
    """Steps within one bucket."""

    bucket: int
    picks: np.ndarray  # (steps, seeds, batch) row numbers within the bucket
    weights: np.ndarray  # (steps, seeds, batch) 1 for real rows, 0 for padding


def epoch_chunks(
    sizes: Sequence[int], *, batch_size: int, seeds: Sequence[int], epoch: int
) -> list[Chunk]:
    """Returns the chunks of one epoch, in order; every seed trains on every row exactly once.

    The chunks of a bucket have the same number of steps, about `CHUNK_STEPS`, so that each bucket
    compiles once; batches are smaller if this takes more than `ceil(rows / batch_size)` steps.

    Args:
        sizes: Number of rows of each bucket.
        batch_size: Maximum number of rows per step, >= 1.
        seeds: Training seeds; the order of a seed's rows does not depend on the other seeds.
        epoch: Number of the epoch.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be >= 1, got {batch_size}")
    chunks = []
    for bucket, size in enumerate(sizes):
        min_steps = -(-size // batch_size)
        count = max(1, round(min_steps / CHUNK_STEPS))
        # With more steps than rows, some would have no rows.
        while count > 1 and count * -(-min_steps // count) > size:
            count -= 1
        steps = -(-min_steps // count)
        total = count * steps
        generators = [np.random.default_rng([seed, epoch, bucket]) for seed in seeds]
        orders = np.stack([generator.permutation(size) for generator in generators])
        # Row r of the shuffled bucket is in step r mod total: batch sizes differ by at most one.
        positions = np.arange(total)[:, None] + total * np.arange(batch_size)
        picks = orders[:, np.minimum(positions, size - 1)].swapaxes(0, 1).astype(np.int32)
        weights = np.broadcast_to((positions < size).astype(np.float32)[:, None], picks.shape)
        parts = zip(np.split(picks, count), np.split(weights, count), strict=True)
        chunks += [Chunk(bucket, *part) for part in parts]
    order = np.random.default_rng([2**31, epoch]).permutation(len(chunks))
    return [chunks[number] for number in order]
