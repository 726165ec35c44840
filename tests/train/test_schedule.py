import numpy as np
import pytest

from hopfax.train.schedule import Shape, epoch_chunks, shapes

SIZES = (37, 5, 100, 1)


def plan(epoch=0, seeds=(23, 42), sizes=SIZES, batch_size=8, chunk_steps=4):
    return epoch_chunks(
        sizes, batch_size=batch_size, seeds=seeds, epoch=epoch, chunk_steps=chunk_steps
    )


def met(chunks, seed):
    """Rows by bucket, in the order this seed meets them."""
    rows = {}
    for chunk in chunks:
        counted = chunk.weights[:, seed] > 0
        rows.setdefault(chunk.bucket, []).extend(chunk.picks[:, seed][counted].tolist())
    return rows


@pytest.mark.parametrize("batch_size", [1, 2, 7, 8, 32, 200])
@pytest.mark.parametrize("chunk_steps", [1, 3, 16])
def test_every_seed_meets_every_row_once_an_epoch(batch_size, chunk_steps):
    for sizes in (SIZES, (33,), (64, 63, 65)):
        chunks = plan(3, sizes=sizes, batch_size=batch_size, chunk_steps=chunk_steps)
        cuts = shapes(sizes, batch_size=batch_size, chunk_steps=chunk_steps)
        assert len(chunks) == sum(cut.chunks for cut in cuts)
        for seed in range(2):
            rows = met(chunks, seed)
            assert {bucket: sorted(found) for bucket, found in rows.items()} == {
                bucket: list(range(size)) for bucket, size in enumerate(sizes)
            }
        for chunk in chunks:
            wanted = (cuts[chunk.bucket].steps, 2, batch_size)
            assert chunk.picks.shape == chunk.weights.shape == wanted
            assert chunk.picks.dtype == np.int32
            assert chunk.weights.dtype == np.float32
            assert set(np.unique(chunk.weights)) <= {0, 1}
            assert chunk.weights.sum(axis=-1).min() >= 1  # no step without a row
            assert 0 <= chunk.picks.min() <= chunk.picks.max() < sizes[chunk.bucket]


def test_batches_of_a_bucket_differ_by_one_row_at_most():
    by_bucket = {}
    for chunk in plan(batch_size=16, chunk_steps=3):
        by_bucket.setdefault(chunk.bucket, []).extend(chunk.weights[:, 0].sum(-1))
    for counts in by_bucket.values():
        assert max(counts) - min(counts) <= 1
        assert min(counts) >= 1


def test_orders_differ_by_seed_and_by_epoch_and_repeat_when_asked_again():
    now, later = plan(0), plan(1)
    assert met(now, 0)[2] != met(now, 1)[2]
    assert met(now, 0)[2] != met(later, 0)[2]
    assert [chunk.bucket for chunk in plan(0)] != [chunk.bucket for chunk in later]
    for one, other in zip(now, plan(0), strict=True):
        assert one.bucket == other.bucket
        assert np.array_equal(one.picks, other.picks)


def test_buckets_of_one_size_are_shuffled_apart():
    rows = met(plan(sizes=(40, 40)), 0)
    assert rows[0] != rows[1]


def test_rows_of_a_seed_do_not_depend_on_the_others():
    alone, among = plan(2, seeds=(42,)), plan(2, seeds=(7, 23, 42))
    for one, other in zip(alone, among, strict=True):
        assert one.bucket == other.bucket
        assert np.array_equal(one.picks[:, 0], other.picks[:, 2])
        assert np.array_equal(one.weights[:, 0], other.weights[:, 2])


def test_steps_of_one_length_are_worth_few_smaller_batches():
    assert shapes([100], batch_size=10, chunk_steps=4) == [Shape(2, 5)]
    assert shapes([110], batch_size=10, chunk_steps=4) == [Shape(3, 4)]
    assert shapes([1], batch_size=32) == [Shape(1, 1)]
    for size in range(1, 400):
        ((chunks, steps),) = shapes([size], batch_size=8)
        least = -(-size // 8)
        assert least <= chunks * steps < least + chunks


@pytest.mark.parametrize("numbers", [{"batch_size": 0}, {"batch_size": 4, "chunk_steps": 0}])
def test_numbers_below_one_are_refused(numbers):
    with pytest.raises(ValueError, match="must be >= 1"):
        shapes([3], **numbers)
