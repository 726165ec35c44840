import itertools

import numpy as np
import pytest

from hopfax.data import Bucket, Encoded, bucket_boundaries, bucketed, eval_batches

PAD = 0


def encoded(lengths, width=None):
    lengths = np.asarray(lengths, np.int32)
    lengths = lengths[:, None] if lengths.ndim == 1 else lengths
    width = width or int(lengths.max())
    real = np.arange(width) < lengths[..., None]
    ids = np.where(real, 5 + np.arange(lengths.size).reshape(lengths.shape)[..., None], PAD)
    rows = np.arange(len(lengths), dtype=np.int32)
    return Encoded(ids.astype(np.int32), lengths, rows % 2, 100 + rows)


def test_every_row_is_in_one_bucket_and_only_padding_is_cut():
    rng = np.random.default_rng(0)
    rows = encoded(rng.integers(3, 33, (57, 2)))
    buckets = bucketed(rows, boundaries=(8, 16, 24, 40))
    assert sorted(np.concatenate([bucket.index for bucket in buckets])) == list(rows.index)
    assert all((np.diff(bucket.index) > 0).all() for bucket in buckets)
    for bucket, low in zip(buckets, (0, 8, 16, 24), strict=True):
        assert isinstance(bucket, Bucket)
        assert bucket.ids.shape[1:] in {(2, 8), (2, 16), (2, 24), (2, 40)}
        assert (bucket.lengths.max(axis=1) > low).all()
        for ids, lengths, label, index in zip(*bucket, strict=True):
            row = index - 100
            assert label == rows.labels[row]
            for choice, length in enumerate(lengths):
                assert length == rows.lengths[row, choice]
                np.testing.assert_array_equal(ids[choice, :length], rows.ids[row, choice, :length])
                assert (ids[choice, length:] == PAD).all()
                assert (rows.ids[row, choice, length:] == PAD).all()


def test_empty_buckets_are_omitted():
    assert [bucket.ids.shape[2] for bucket in bucketed(encoded([4, 30, 5, 3]))] == [16, 32]


def test_pad_id_fills_wider_buckets():
    (bucket,) = bucketed(encoded([4]), boundaries=(6,), pad_id=9)
    assert bucket.ids.tolist() == [[[5, 5, 5, 5, 9, 9]]]


@pytest.mark.parametrize("size", [1, 4, 5])
def test_evaluation_drops_no_row(size):
    (bucket,) = bucketed(encoded([3] * size))
    seen = []
    for batch, weights in eval_batches(bucket, batch_size=4):
        assert batch.ids.shape[0] == batch.labels.shape[0] == weights.shape[0] == 4
        assert weights.dtype == np.float32
        seen += batch.index[weights == 1].tolist()
        assert (batch.index[weights == 0] == bucket.index[-1]).all()
    assert seen == bucket.index.tolist()


def test_boundaries_minimise_padding():
    lengths = np.random.default_rng(1).integers(3, 60, 200)
    chosen = bucket_boundaries(lengths, max_buckets=3)

    def padded(boundaries):
        edges = np.asarray(boundaries)
        return edges[np.searchsorted(edges, lengths)].sum()

    assert chosen[-1] == 64 - 8 * (lengths.max() <= 56)
    assert all(edge % 8 == 0 for edge in chosen)
    candidates = range(8, chosen[-1], 8)
    best = min(padded((*inner, chosen[-1])) for inner in itertools.combinations(candidates, 2))
    assert padded(chosen) == best


def test_boundaries_of_few_lengths():
    assert bucket_boundaries(np.asarray([[3, 7], [2, 2]])) == (8,)
    assert bucket_boundaries(np.asarray([7, 9, 128])) == (8, 16, 128)


def test_boundaries_stay_within_max_length():
    lengths = np.array([3, 50, 41])
    assert bucket_boundaries(lengths, max_buckets=1) == (56,)
    assert bucket_boundaries(lengths, max_buckets=1, max_length=50) == (50,)
    assert bucket_boundaries(lengths, max_buckets=2, max_length=50)[-1] == 50
