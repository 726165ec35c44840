"""Tasks from your own data, in lists or in a CSV, TSV or JSONL file."""

import contextlib
import csv
import io
import os
import re
import reprlib
import threading
import warnings
from collections.abc import Iterator, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from hopfax.data.load import TaskData, tokenize_splits
from hopfax.data.raw import SkippedRow, by_column, json_rows, read_text, tab_cells
from hopfax.data.tasks import Example, Names, TaskSpec, check_integer
from hopfax.data.tokenize import WordPiece, check_unicode, is_blank
from hopfax.hub import local_path

# Not "01" or "1_000", which are names.
_NUMBER = re.compile(
    r"\s*[+-]?((0|[1-9]\d*|(?=\.\d))(\.\d*)?(e[+-]?\d+)?|inf(inity)?|nan)\s*", re.A | re.I
)
_LARGEST = float(np.finfo(np.float32).max)
_csv_limit = threading.Lock()  # the limit of a cell's length is a state of the process
TextsAndLabels = tuple[Sequence[str | Sequence[str]], Sequence[str | int | float]]


def from_rows(
    texts: Sequence[str | Sequence[str]],
    labels: Sequence[str | int | float],
    *,
    validation: TextsAndLabels | None = None,
    test: TextsAndLabels | None = None,
    name: str = "own",
    vocabulary: str | os.PathLike | WordPiece | None = None,
    vocab_size: int = 8000,
    max_length: int = 128,
    train_size: int | None = None,
) -> TaskData:
    """Returns a tokenized task from texts and labels.

    Labels that are strings or integers are classes, with sorted names in `spec.labels`. If any
    label is a float, all labels are scores, and the task is a regression.

    Args:
        texts: Strings or pairs of strings.
        labels: Label of each text.
        validation: Texts and labels for early stopping; None holds out a random tenth, at most
            1000.
        test: Texts and labels to report; None holds out another tenth.
        name: Name of the task.
        vocabulary: See `load_task`.
        vocab_size: Maximum number of tokens of a trained vocabulary.
        max_length: Maximum number of tokens of a row; longer rows are truncated, with a warning.
        train_size: Maximum number of training rows; None uses all.

    Raises:
        TypeError: If an argument has another type, such as a whole table for `texts`.
        ValueError: If a text is empty or not valid Unicode, or labels are missing, mixed, all
            equal, not finite in float32, or not among those of the training rows.

    Example:
        >>> from hopfax.data import from_rows
        >>> data = from_rows(["a fine film", "a dull film"] * 50, ["good", "bad"] * 50)
        >>> data.spec.labels, len(data.train.labels), len(data.test.labels)
        (('bad', 'good'), 80, 10)
    """
    if train_size is not None:
        check_integer("train_size", train_size, 1)
    rows, classes = _examples("training", (texts, labels), None)
    train = [rows[number] for number in np.random.default_rng(0).permutation(len(rows))]
    size, splits = min(max(1, len(rows) // 10), 1000), []
    for split, split_rows in (("validation", validation), ("test", test)):
        if split_rows is None:
            splits.append(train[:size])
            train = train[size:]
        else:
            splits.append(_examples(split, split_rows, classes)[0])
    if not (train := train[:train_size]):
        raise ValueError(f"{len(rows)} rows are too few to hold some out: pass validation and test")
    if missing := set(range(len(classes))) - {row.label for row in train}:
        names = ", ".join(classes[number] for number in sorted(missing))
        warnings.warn(f"no training row has the label {names}", stacklevel=2)
    scores = [row.label for row in rows]
    spec = TaskSpec(
        name=name,
        title=name,
        suite="own",
        columns=("text",),
        labels=classes,
        label_range=None if classes else (min(scores), max(scores)),
        metrics=("accuracy",) if classes else ("pearson", "spearman"),
    )
    splits = train, *splits
    return tokenize_splits(spec, splits, vocabulary, vocab_size=vocab_size, max_length=max_length)


def read_table(
    path: str | os.PathLike, *, text: str = "text", pair: str | None = None, label: str = "label"
) -> tuple[list[Any], list[Any]]:
    r"""Returns the texts and labels of a file, for `from_rows`.

    CSV and TSV files start with a header line; TSV has no quoting. Their labels are stripped, and
    become numbers if all labels are numbers (01 is a string). Each line of a JSONL file is an
    object.

    Args:
        path: A file that ends in `.csv`, `.tsv` or `.jsonl`, in UTF-8.
        text: Column of the texts.
        pair: Column of the second texts of pairs.
        label: Column of the labels.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file has another ending or encoding, no rows, or a malformed line.

    Example:
        >>> import pathlib, tempfile
        >>> from hopfax.data import read_table
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "films.csv"
        >>> _ = path.write_text('review,stars\n"good, long",4\ndull,1\n')
        >>> read_table(path, text="review", label="stars")
        (['good, long', 'dull'], [4, 1])
    """
    path = local_path(path)
    ending = path.suffix.lower()
    if ending not in (".csv", ".tsv", ".jsonl"):
        raise ValueError(f"path must end in .csv, .tsv or .jsonl, got {path}")
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    texts, labels = [], []
    for line, row in json_rows(path) if ending == ".jsonl" else _table_rows(path, ending):
        if isinstance(row, SkippedRow):
            raise ValueError(f"{path}, line {line}: {row.args[1]}")
        for column in filter(None, (text, pair, label)):
            if column not in row:
                names = ", ".join([*map(repr, list(row)[:20]), *(["..."] if len(row) > 20 else [])])
                raise ValueError(f"{path}, line {line}: no column {column!r}; columns: {names}")
            cell = row[column]
            if cell is None or is_blank(str(cell)):
                raise ValueError(f"{path}, line {line}: {column!r} is empty")
            if column != label and not isinstance(cell, str):
                raise ValueError(f"{path}, line {line}: {column!r} must be a string, got {cell!r}")
        texts.append((row[text], row[pair]) if pair else row[text])
        labels.append(row[label] if ending == ".jsonl" else row[label].strip())
    if not texts:
        raise ValueError(f"{path} has no rows")
    if ending != ".jsonl" and all(map(_NUMBER.fullmatch, labels)):
        with contextlib.suppress(ValueError):
            return texts, list(map(int, labels))
        return texts, list(map(float, labels))
    return texts, labels


def _table_rows(path: Path, ending: str) -> Iterator[tuple[int, Any]]:
    """Returns line numbers and rows by column; lines may be blank."""
    separator = "," if ending == ".csv" else "\t"
    rows = (
        _csv_rows(path) if ending == ".csv" else [row for row in tab_cells(path) if row[1] != [""]]
    )
    line, header = next(iter(rows), (1, []))
    if len(header) == 1 and (other := re.search(f"(?!{separator})[,;|\t]", header[0])):
        raise ValueError(f"{path}, line {line}: separator must be {separator!r}, got {other[0]!r}")
    return by_column(path, rows)


def _csv_rows(path: Path) -> list[tuple[int, list[str]]]:
    """The cells of the rows, with the number of their last line."""
    rows: list[tuple[int, list[str]]] = []
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    with _csv_limit:
        limit = csv.field_size_limit(2**31 - 1)
        try:
            rows.extend((reader.line_num, cells) for cells in reader if cells)
        except csv.Error as error:
            reason = str(error).replace("unexpected end of data", "a quote is not closed")
            raise ValueError(f"{path}, after line {rows[-1][0] if rows else 0}: {reason}") from None
        finally:
            csv.field_size_limit(limit)
    return rows


def _examples(
    split: str, rows: TextsAndLabels, classes: Names | None
) -> tuple[list[Example], Names]:
    """Returns examples and the names of their classes, which None takes from the labels."""
    try:
        texts, labels = rows
    except (TypeError, ValueError):
        raise TypeError(f"{split}: expected (texts, labels), got {reprlib.repr(rows)}") from None
    texts, labels = _to_list(f"{split}: texts", texts), _to_list(f"{split}: labels", labels)
    if len(texts) != len(labels):
        raise ValueError(f"{split}: got {len(texts)} texts, but {len(labels)} labels")
    classes = _classes(labels) if classes is None else classes
    examples, numbers = [], {name: number for number, name in enumerate(classes)}
    for number, (text, label) in enumerate(zip(texts, labels, strict=True)):
        where = f"{split}, row {number}"
        parts: Any = tuple(text) if isinstance(text, tuple | list) else (text,)
        strings = all(isinstance(part, str) and not is_blank(part) for part in parts)
        if not strings or len(parts) not in (1, 2):
            allowed = "a string or a pair of strings, none empty"
            raise ValueError(f"{where}: text must be {allowed}, got {reprlib.repr(text)}")
        check_unicode(where, parts)
        if classes and str(label) not in numbers:
            raise ValueError(f"{where}: label {label!r} is not one of {', '.join(classes)}")
        if not (classes or (isinstance(label, Real) and abs(label) <= _LARGEST)):  # pyright: ignore
            raise ValueError(f"{where}: score must be finite in float32, got {reprlib.repr(label)}")
        value = numbers[str(label)] if classes else float(label)
        examples.append(Example(parts, value, number))
    few = len({example.label for example in examples}) < 2
    if few and (split == "training" or len(examples) > 1):
        got = reprlib.repr(labels)
        raise ValueError(f"{split}: labels must have two or more values, got {got}")
    return examples, classes


def _to_list(name: str, values: Any) -> Sequence[Any]:
    """Values of a list, or of an array or a table's column as plain Python values."""
    values = getattr(values, "tolist", getattr(values, "to_list", lambda: values))()
    if isinstance(values, str) or not isinstance(values, Sequence):
        got = f"{type(values).__name__}: {reprlib.repr(values)}"
        raise TypeError(f"{name} must be a list, an array or one column of a table, got {got}")
    return values


def _classes(labels: Sequence[Any]) -> Names:
    if not any(all(isinstance(label, kind) for label in labels) for kind in (str, Real)):
        raise ValueError(f"labels must be all strings or all numbers, got {reprlib.repr(labels)}")
    if not all(isinstance(label, str | Integral) for label in labels):
        return ()
    return tuple(map(str, sorted(set(labels))))
