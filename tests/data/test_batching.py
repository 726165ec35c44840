import itertools

import numpy as np
import pytest

from hopfax.data import Bucket, Encoded, bucket_boundaries, eval_batches, to_buckets


def encoded(lengths):
    """Rows in which all tokens of a choice are one number, and padding is 0."""
    lengths = np.asarray(lengths).reshape(len(lengths), -1)
    numbers = 5 + np.arange(lengths.size).reshape(lengths.shape)[..., None]
    ids = np.where(np.arange(lengths.max()) < lengths[..., None], numbers, 0)
    rows = np.arange(len(lengths))
    return Encoded(ids, lengths, rows % 2, 100 + rows)


def test_every_row_is_in_one_bucket_and_only_padding_is_cut():
    rng = np.random.default_rng(0)
    rows = encoded(rng.integers(3, 33, (57, 2)))
    buckets = to_buckets(rows, boundaries=(8, 16, 24, 40))
    assert sorted(np.concatenate([bucket.index for bucket in buckets])) == list(rows.index)
    assert all((np.diff(bucket.index) > 0).all() for bucket in buckets)
    for bucket, low, width in zip(buckets, (0, 8, 16, 24), (8, 16, 24, 40), strict=True):
        assert isinstance(bucket, Bucket) and bucket.ids.shape[1:] == (2, width)
        assert (bucket.lengths.max(axis=1) > low).all()
        own = bucket.index - 100
        np.testing.assert_array_equal(bucket.labels, rows.labels[own])
        np.testing.assert_array_equal(bucket.lengths, rows.lengths[own])
        padded = np.pad(rows.ids, ((0, 0), (0, 0), (0, 40)))
        np.testing.assert_array_equal(bucket.ids, padded[own, :, :width])


def test_empty_buckets_are_omitted_and_pad_id_fills_wide_ones():
    assert [bucket.ids.shape[2] for bucket in to_buckets(encoded([4, 30, 5, 3]))] == [16, 32]
    (bucket,) = to_buckets(encoded([4]), boundaries=(6,), pad_id=9)
    assert bucket.ids.tolist() == [[[5, 5, 5, 5, 9, 9]]]


@pytest.mark.parametrize("size", [1, 4, 5])
def test_evaluation_drops_no_row(size):
    (bucket,) = to_buckets(encoded([3] * size))
    seen = []
    for batch, weights in eval_batches(bucket, batch_size=4):
        assert all(len(field) == 4 for field in (*batch, weights)) and weights.dtype == np.float32
        seen += batch.index[weights == 1].tolist()
        assert (batch.index[weights == 0] == bucket.index[-1]).all()
    assert seen == bucket.index.tolist()


def test_boundaries_minimize_padding():
    lengths = np.random.default_rng(1).integers(3, 60, 200)
    chosen = bucket_boundaries(lengths, max_buckets=3)

    def padded(boundaries):
        edges = np.asarray(boundaries)
        return edges[np.searchsorted(edges, lengths)].sum()

    candidates = itertools.combinations(range(8, 64, 8), 2)
    assert padded(chosen) == min(padded((*inner, 64)) for inner in candidates)
    assert chosen[-1] == 64 and all(edge % 8 == 0 for edge in chosen)


def test_boundaries_of_few_lengths():
    lengths = np.array([3, 50, 41])
    assert bucket_boundaries(np.array([7, 9, 128])) == (8, 16, 128)
    assert bucket_boundaries(lengths, max_buckets=1) == (56,)
    assert bucket_boundaries(lengths, max_buckets=1, max_length=50) == (50,)
