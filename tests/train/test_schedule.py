import chex
import numpy as np
import pytest

from hopfax.train import schedule
from hopfax.train.schedule import Chunk, epoch_chunks

SIZES = (37, 5, 100, 1)


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    monkeypatch.setattr(schedule, "CHUNK_STEPS", 4)


def plan(epoch=0, seeds=(23, 42), sizes=SIZES, batch_size=8):
    return epoch_chunks(sizes, batch_size=batch_size, seeds=seeds, epoch=epoch)


def rows_of(chunks, seed):
    """Rows by bucket, in the order in which this seed trains on them."""
    rows = {}
    for chunk in chunks:
        real = chunk.weights[:, seed] > 0
        rows.setdefault(chunk.bucket, []).extend(chunk.picks[:, seed][real].tolist())
    return rows


@pytest.mark.parametrize("batch_size", [1, 7, 8, 200])
@pytest.mark.parametrize("chunk_steps", [1, 3, 16])
def test_every_seed_takes_every_row_once_an_epoch(monkeypatch, batch_size, chunk_steps):
    monkeypatch.setattr(schedule, "CHUNK_STEPS", chunk_steps)
    for sizes in (SIZES, (33,), (64, 63, 65)):
        chunks = plan(3, sizes=sizes, batch_size=batch_size)
        for seed in range(2):
            rows = {bucket: sorted(rows) for bucket, rows in rows_of(chunks, seed).items()}
            assert rows == {bucket: list(range(size)) for bucket, size in enumerate(sizes)}
        for chunk in chunks:
            assert chunk.picks.shape[1:] == chunk.weights.shape[1:] == (2, batch_size)
            assert (chunk.picks.dtype, chunk.weights.dtype) == (np.int32, np.float32)
            assert set(np.unique(chunk.weights)) <= {0, 1}
            assert 0 <= chunk.picks.min() <= chunk.picks.max() < sizes[chunk.bucket]
        for bucket in range(len(sizes)):
            parts = [chunk for chunk in chunks if chunk.bucket == bucket]
            assert len({chunk.picks.shape for chunk in parts}) == 1, "one compilation"
            counts = np.concatenate([chunk.weights.sum(-1) for chunk in parts])
            assert counts.min() >= 1 and np.ptp(counts) <= 1


def test_orders_differ_by_seed_epoch_and_bucket_and_are_reproducible():
    now, again, later = (plan(epoch, sizes=(40, 40, 100)) for epoch in (0, 0, 1))
    first = rows_of(now, 0)
    assert first[2] != rows_of(now, 1)[2]
    assert first[0] != rows_of(later, 0)[0]  # one chunk: the order of chunks changes nothing
    assert first[0] != first[1]
    assert [chunk.bucket for chunk in now] != [chunk.bucket for chunk in later]
    chex.assert_trees_all_equal(again, now)
    among = plan(2, seeds=(7, 23, 42))  # rows of a seed do not depend on the others
    last = [Chunk(bucket, picks[:, 2:], weights[:, 2:]) for bucket, picks, weights in among]
    chex.assert_trees_all_equal(plan(2, seeds=(42,)), last)
