"""The rows both programs train on: SST-2's, or made-up ones of SST-2's lengths.

`python -m experiments.speed.workload --data-dir DIR` writes the counts of lengths anew.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hopfax.data import bucket_boundaries, bucketed, load_task
from hopfax.data.batching import Bucket, Encoded

VOCAB_SIZE = 30522  # bert-base-uncased
MAX_LENGTH = 128  # what the paper pads to
CLS, SEP = 101, 102
LENGTHS = Path(__file__).with_name("sst2_lengths.csv")


class Workload(NamedTuple):
    """Training rows three times: in length buckets, and padded to 128; and where they are from."""

    buckets: list[Bucket]
    padded: Bucket
    source: str


def workload(data_dir: str | None, *, seed: int = 0) -> Workload:
    """Tokenised SST-2 from `data_dir`, or rows of its lengths with random tokens and labels.

    Args:
        data_dir: Folder with `glue_data/SST-2` and `vocab/bert-base-uncased/vocab.txt`; None for
            made-up rows.
        seed: Of the made-up rows.

    Raises:
        FileNotFoundError: Something is missing in `data_dir`.
    """
    if data_dir is None:
        rows, source = _made_up(seed), "random tokens, SST-2's lengths"
    else:
        rows, source = _sst2(data_dir), "SST-2"
    boundaries = bucket_boundaries(rows.lengths)
    padded = bucketed(rows, boundaries=(MAX_LENGTH,))[0]
    return Workload(bucketed(rows, boundaries=boundaries), padded, source)


def first_rows(buckets: Sequence[Bucket], rows: float) -> list[Bucket]:
    """About so many rows, the same share of every bucket, but at least one row of each."""
    share = rows / sum(len(bucket.labels) for bucket in buckets)
    return [
        Bucket(*(field[: max(1, round(share * len(bucket.labels)))] for field in bucket))
        for bucket in buckets
    ]


def _sst2(data_dir: str) -> Encoded:
    vocab = Path(data_dir) / "vocab" / "bert-base-uncased" / "vocab.txt"
    return load_task("sst2", data_dir=data_dir, vocab=vocab, max_length=MAX_LENGTH).train


def _made_up(seed: int) -> Encoded:
    with LENGTHS.open(newline="", encoding="utf-8") as stream:
        counts = [(int(row["length"]), int(row["rows"])) for row in csv.DictReader(stream)]
    rng = np.random.default_rng(seed)
    lengths = rng.permutation(np.repeat(*np.transpose(counts))).astype(np.int32)
    places = np.arange(lengths.max())
    ids = rng.integers(1000, VOCAB_SIZE, (lengths.size, places.size), dtype=np.int32)
    ids = np.where(places < lengths[:, None] - 1, ids, 0)
    ids[:, 0] = CLS
    ids[np.arange(lengths.size), lengths - 1] = SEP
    labels = rng.integers(0, 2, lengths.size, dtype=np.int32)
    index = np.arange(lengths.size, dtype=np.int32)
    return Encoded(ids[:, None], lengths[:, None], labels, index)


def main(arguments: Sequence[str] | None = None) -> None:
    """Counts the lengths of SST-2's training rows, [CLS] and [SEP] included."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.speed.workload", description=__doc__
    )
    parser.add_argument("--data-dir", required=True, help="with glue_data/SST-2 and the vocabulary")
    found, counts = np.unique(
        _sst2(parser.parse_args(arguments).data_dir).lengths, return_counts=True
    )
    with LENGTHS.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("length", "rows"))
        writer.writerows(zip(found.tolist(), counts.tolist(), strict=True))
    print(f"{counts.sum()} rows, mean {np.average(found, weights=counts):.1f} tokens")


if __name__ == "__main__":
    main()
