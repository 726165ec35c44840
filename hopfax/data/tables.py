"""Tasks from your own data, in lists or in a table or JSON file."""

import codecs
import csv
import gzip
import io
import json
import os
import re
import reprlib
import shlex
import sys
import threading
import warnings
import zlib
from collections.abc import Iterator, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hopfax.data.load import TaskData, tokenize_splits
from hopfax.data.raw import SkippedRow, by_column, json_rows, numbered_lines
from hopfax.data.tasks import Example, Names, TaskSpec, check_integer
from hopfax.data.tokenize import WordPiece, check_unicode, is_blank
from hopfax.hub import local_path

# Not "01" or "1_000", which are names.
_NUMBER = re.compile(
    r"\s*[+-]?((0|[1-9]\d*|(?=\.\d))(\.\d*)?(e[+-]?\d+)?|inf(inity)?|nan)\s*", re.A | re.I
)
_LARGEST = float(np.finfo(np.float32).max)
_ENDINGS = (".csv", ".tsv", ".txt", ".jsonl", ".json")
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


class Table(NamedTuple("Table", [("texts", list[Any]), ("labels", list[Any])])):
    """The texts and labels of a file: a pair.

    Attributes:
        notes: What `read_table` detected: format, encoding, and how many rows it skipped.
    """

    notes: tuple[str, ...] = ()


def read_table(
    path: str | os.PathLike, *, text: str = "text", pair: str | None = None, label: str = "label"
) -> Table:
    r"""Returns the texts and labels of a file, for `from_rows`.

    A table starts with a header line. Its separator is the one of `,`, `;`, tab and `|` with which
    the header has the columns; tab-separated cells are quoted only if the header is. Labels of a
    table are stripped, and become numbers if all labels are numbers (01 is a string). JSON is an
    array of objects, or one object a line. Rows without a text are skipped. A cell has any length.

    Args:
        path: A `.csv`, `.tsv`, `.txt`, `.jsonl` or `.json` file, perhaps with `.gz`, or `"-"` for
            standard input; in UTF-8, UTF-16 with a byte-order mark, or else Latin-1 (Windows-1252).
        text: Column of the texts; in JSON, `a.b` is the key `b` of the object `a`.
        pair: Column of the second texts of pairs.
        label: Column of the labels.

    Returns:
        Texts and labels; the attribute `notes` says what was detected.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file has another ending, is not text, or has no rows; if a row is
            malformed or has no label; or if all labels are -1, as in the test files of GLUE.

    Example:
        >>> import pathlib, tempfile
        >>> from hopfax.data import read_table
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "films.csv"
        >>> _ = path.write_text('review;stars\n"good; long";4\n;\ndull;1\n')
        >>> texts, labels = table = read_table(path, text="review", label="stars")
        >>> texts, labels, table.notes
        (['good; long', 'dull'], [4, 1], ("separator ';'", 'UTF-8', 'skipped rows without text: 1'))
    """
    name, content, encoding = _read(path)
    columns, skipped = [text, *([pair] if pair else []), label], 0
    if is_json := content.lstrip().startswith(("{", "[")):
        kind, rows = "JSON", _json_rows(name, content)
    else:
        kind, skipped, rows = _table_rows(name, content, columns)
    texts, labels = [], []
    for place, row in rows:
        where = f"{name}, {place}"
        if isinstance(row, SkippedRow):
            raise ValueError(f"{where}: {row.args[1]}")
        *parts, value = (_cell(row, column, where) for column in columns)
        if any(part is None or is_blank(str(part)) for part in parts):
            skipped += 1
            continue
        for column, part in zip(columns, parts, strict=False):
            if not isinstance(part, str):
                raise ValueError(f"{where}: {column!r} must be a string, got {reprlib.repr(part)}")
        if value is None or is_blank(str(value)):
            raise ValueError(f"{where}: {label!r} is empty")
        texts.append(tuple(parts) if pair else parts[0])
        labels.append(value if is_json else value.strip())
    if not texts:
        raise ValueError(f"{name} has no rows with a text")
    if not is_json and all(map(_NUMBER.fullmatch, labels)):
        try:
            labels = list(map(int, labels))
        except ValueError:
            labels = list(map(float, labels))
    if all(each == -1 for each in labels):
        raise ValueError(f"{name}: all labels are -1, as in GLUE's test rows: use validation rows")
    table = Table(texts, labels)
    table.notes = (kind, encoding, *[f"skipped rows without text: {skipped}"] * (skipped > 0))
    return table


def _read(path: str | os.PathLike) -> tuple[str, str, str]:
    """Returns the name of a file, its content and the name of its encoding."""
    if os.fspath(path) == "-":
        name, data = "standard input", sys.stdin.buffer.read()
    else:
        path = local_path(path)
        name, ending = str(path), Path(path.name.lower().removesuffix(".gz")).suffix
        if ending == ".parquet":
            read, write = f"read_parquet({name!r})", f"to_csv({str(path.with_suffix('.csv'))!r}"
            code = f"import pandas; pandas.{read}.{write}, index=False)"
            raise ValueError(f"{name} is in Parquet; run {shlex.join(['python', '-c', code])}")
        if ending not in _ENDINGS:
            raise ValueError(f"path must end in {', '.join(_ENDINGS)}, or so and .gz, got {name}")
        if not path.is_file():
            raise FileNotFoundError(f"no file {name}")
        data = path.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{name} is not a complete gzip file: {error}") from None
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text, encoding = data.decode("utf-16" if wide else "utf-8-sig"), f"UTF-{16 if wide else 8}"
    except UnicodeDecodeError as error:
        byte = f"{data[error.start]:#04x} at {error.start}"
        text, encoding = data.decode("cp1252", "replace"), f"Latin-1, as byte {byte} is not UTF-8"
    if "\0" in text:
        raise ValueError(f"{name} is not text, or in UTF-16 without a byte-order mark")
    return name, text, encoding


def _json_rows(name: str, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the objects of an array, or of lines, with their places."""
    unit, rows = "line", json_rows(name, numbered_lines(text))
    if text.lstrip().startswith("["):
        try:
            unit, rows = "row", enumerate(json.loads(text), start=1)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name}: not JSON ({error})") from None
    for number, row in rows:
        if not isinstance(row, dict):
            raise ValueError(f"{name}, row {number}: expected an object, got {reprlib.repr(row)}")
        yield f"{unit} {number}", row


def _table_rows(name: str, text: str, columns: Sequence[str]) -> tuple[str, int, Iterator[Any]]:
    """Returns the separator, the number of empty rows, and the others by column, with places."""
    headers = {}
    for each in ",;\t|":
        lines = csv.reader(io.StringIO(text[:100_000], newline=""), delimiter=each)
        header = next((cells for cells in lines if not all(map(is_blank, cells))), [])
        headers[each] = [cell.strip() for cell in header]
    separator = max(headers, key=lambda x: ({*columns} <= {*headers[x]}, len(headers[x])))
    if separator == "\t" and '"' not in text.lstrip().partition("\n")[0]:
        rows = [(number, line.split("\t")) for number, line in numbered_lines(text)]
    else:
        rows = _quoted_rows(name, text, separator)
    filled = [at for at, (_, cells) in enumerate(rows) if not all(map(is_blank, cells))]
    empty = filled[-1] - filled[0] + 1 - len(filled) if filled else 0
    rows = [rows[at] for at in filled]
    rows[:1] = [(number, [cell.strip() for cell in cells]) for number, cells in rows[:1]]
    places = ((f"line {number}", row) for number, row in by_column(name, rows))
    return f"separator {'tab' if separator == chr(9) else repr(separator)}", empty, places


def _quoted_rows(name: str, text: str, separator: str) -> list[tuple[int, list[str]]]:
    """The cells of the rows, with the number of their last line."""
    rows: list[tuple[int, list[str]]] = []
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    with _csv_limit:
        limit = csv.field_size_limit(2**31 - 1)
        try:
            rows.extend((reader.line_num, cells) for cells in reader)
        except csv.Error as error:
            reason = str(error).replace("unexpected end of data", "a quote is not closed")
            raise ValueError(f"{name}, after line {rows[-1][0] if rows else 0}: {reason}") from None
        finally:
            csv.field_size_limit(limit)
    return rows


def _cell(row: dict[str, Any], column: str, where: str) -> Any:
    """Returns the value of a column, or the one of nested objects that `a.b` names."""
    value: Any = row
    try:
        for key in [column] if column in row else column.split("."):
            value = value[key]
    except (KeyError, TypeError):
        names = [repr(each)[:100] for each in row][:20] + ["..."] * (len(row) > 20)
        raise ValueError(f"{where}: no column {column!r}; columns: {', '.join(names)}") from None
    return value


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
