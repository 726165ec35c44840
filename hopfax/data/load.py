"""Loads a task by name as tokenized training, validation and test rows."""

import os
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hopfax.data.batching import Encoded
from hopfax.data.raw import read_split
from hopfax.data.synthetic import synthetic_split
from hopfax.data.tasks import Example, TaskSpec, check_integer, look_up, task
from hopfax.data.tokenize import WordPiece, encode_splits, read_vocabulary
from hopfax.data.vocabulary import train_vocabulary
from hopfax.hub import local_path

_SYNTHETIC_SIZES = {"train": 2000, "validation": 400, "test": 500}


class TaskData(NamedTuple):
    """A task ready for training.

    Attributes:
        spec: The task.
        train: Training rows.
        validation: Rows for early stopping; of raw sets, held out from the train file.
        test: Rows to report; of raw sets, the official dev file (``"validation"`` in `read_split`),
            since the labels of the official test file are hidden.
        vocabulary: Tokens and their ids.
    """

    spec: TaskSpec
    train: Encoded
    validation: Encoded
    test: Encoded
    vocabulary: WordPiece

    @property
    def is_partial(self) -> bool:
        """Whether over 1 % of the official training rows are missing; False for synthetic tasks."""
        # Copies of the official files differ by a few damaged or repeated rows.
        num_rows = len(self.train.labels) + len(self.validation.labels)
        return num_rows < 0.99 * (self.spec.train_rows or 0)


def load_task(
    name: str,
    *,
    data_dir: str | os.PathLike | None = None,
    vocabulary: str | os.PathLike | WordPiece | None = None,
    vocab_size: int = 8000,
    max_length: int = 128,
    train_size: int | None = None,
) -> TaskData:
    """Loads, splits and tokenizes a task.

    A tenth of a raw train file, at most 1000 rows, is held out as `validation`. This split depends
    only on the task, not on `train_size`.

    Args:
        name: A key of `hopfax.data.TASKS`.
        data_dir: Folder of raw files, or of sets that `hopfax.data.builders.build` wrote. Required,
            except for synthetic tasks, which ignore it.
        vocabulary: A vocabulary, or a `vocab.txt` or its folder, which is read as lower-cased
            WordPiece (for other models, pass `read_tokenizer(folder)`); None trains one on the
            training rows.
        vocab_size: Maximum number of tokens of a trained vocabulary.
        max_length: Longest row in tokens. Longer rows are truncated; a warning says how many.
        train_size: Number of training rows; None uses all (2000 for synthetic tasks).

    Raises:
        ValueError: If the task is unknown, a row is malformed, or a number is out of its range.
        FileNotFoundError: If a folder, file or vocabulary is missing.

    Example:
        >>> from hopfax.data import load_task
        >>> data = load_task("sentiment", train_size=100)
        >>> len(data.train.labels), len(data.validation.labels), len(data.test.labels)
        (100, 400, 500)
    """
    spec = task(name)
    if train_size is not None:
        check_integer("train_size", train_size, 1)
    if spec.suite == "synthetic":
        train = _read(spec, None, "train", train_size)
        validation = _read(spec, None, "validation")
    else:
        train, validation = _hold_out(_read(spec, data_dir, "train"), name, train_size)
    splits = train, validation, task_rows(name, "test", data_dir=data_dir)
    return tokenize_splits(spec, splits, vocabulary, vocab_size=vocab_size, max_length=max_length)


def tokenize_splits(
    spec: TaskSpec,
    splits: tuple[list[Example], list[Example], list[Example]],
    vocabulary: str | os.PathLike | WordPiece | None,
    *,
    vocab_size: int,
    max_length: int,
) -> TaskData:
    """Tokenizes with a vocabulary, by default one of the first split."""
    if vocabulary is None:
        texts = (text for row in splits[0] for choice in row.texts for text in choice)
        vocabulary = train_vocabulary(texts, vocab_size=vocab_size)
    elif not isinstance(vocabulary, WordPiece):
        vocabulary = read_vocabulary(vocabulary)
    encoded = encode_splits(splits, vocabulary, max_length, stacklevel=3)
    return TaskData(spec, *encoded, vocabulary=vocabulary)


def task_rows(name: str, split: str, *, data_dir: str | os.PathLike | None = None) -> list[Example]:
    """Returns the rows of a task as `Example`s, before tokenization.

    Args:
        name: A key of `hopfax.data.TASKS`.
        split: `"test"`: the rows of `load_task(...).test`, in the same order; `"train"`: those that
            `load_task` splits into `train` and `validation`, by default.
        data_dir: See `load_task`, as for errors.

    Example:
        >>> from hopfax.data import task_rows
        >>> task_rows("entailment", "test")[0].texts
        (('any pilot smiles slowly', 'every pilot smiles'),)
    """
    spec = task(name)
    if spec.suite == "synthetic":
        splits = {"train": ("train", "validation"), "test": ("test",)}
    else:
        splits = {"train": ("train",), "test": ("validation",)}
    return [row for part in look_up("split", split, splits) for row in _read(spec, data_dir, part)]


def _read(
    spec: TaskSpec, data_dir: str | os.PathLike | None, split: str, size: int | None = None
) -> list[Example]:
    """Synthetic rows, or those of a built set if `data_dir` has one, or of raw files."""
    if spec.suite == "synthetic":
        return synthetic_split(spec.name, split, size=size or _SYNTHETIC_SIZES[split], seed=0)
    if data_dir is None:
        raise ValueError(
            f"{spec.name} requires data_dir (--data-dir), a folder with {spec.title}, glue_data or "
            "superglue; only sentiment, entailment and paraphrase need no files"
        )
    built = local_path(data_dir) / "hopfax_tasks" / spec.name
    if next(built.glob("*/dataset_info.json"), None):  # a failed build leaves an empty folder
        from hopfax.data.builders import read_built

        return read_built(spec, data_dir, split)
    return read_split(spec, data_dir, split)


def _hold_out(
    rows: Sequence[Example], name: str, train_size: int | None
) -> tuple[list[Example], list[Example]]:
    num_held = min(max(1, round(0.1 * len(rows))), 1000)
    num_left = len(rows) - num_held
    if train_size is not None and train_size > num_left:
        held_out = f"{name} has {len(rows)} rows, of which {num_held} are held out for validation"
        raise ValueError(f"train_size must be at most {num_left} ({held_out}), got {train_size}")
    order = np.random.default_rng([0, zlib.crc32(name.encode())]).permutation(len(rows))
    chosen = order[num_held:][:train_size]
    return [rows[i] for i in sorted(chosen)], [rows[i] for i in sorted(order[:num_held])]
