"""Reads the raw files of GLUE and SuperGLUE.

Tab-separated files are split at tabs only; quotes are text. A byte-order mark is dropped.
Malformed rows raise an error that names the file and line.
"""

import contextlib
import json
import os
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hopfax.data.tasks import Example, TaskSpec, look_up, task
from hopfax.hub import local_path, read_json

# Possible folders of a suite's files, and where to get them.
_SUITES = {
    "glue": ("glue_data glue GLUE", "gluebenchmark.com/tasks"),
    "superglue": ("superglue SuperGLUE super_glue", "super.gluebenchmark.com/tasks"),
    "advglue": ("advglue AdvGLUE adversarial-glue", "github.com/AI-secure/adversarial-glue"),
    "paws": ("paws PAWS pawsx paws-x PAWS-X", "github.com/google-research-datasets/paws"),
}
_DAMAGED = "lacking columns or a text"


class SkippedRow(ValueError):
    """A row that may be dropped: the reason and, for a damaged row, the error."""


def raw_file(spec: TaskSpec, data_dir: str | os.PathLike, split: str) -> Path:
    """Returns the file of a split, in `data_dir` or in its folder of the suite."""
    if spec.suite == "synthetic":
        raise ValueError(f"{spec.name} is synthetic and has no files: omit data_dir")
    file = look_up(f"split of {spec.title}", split, spec.files)
    (folders, source), root = _SUITES[spec.suite], local_path(data_dir)
    paths = [root / folder / file for folder in (".", *folders.split())]
    for path in paths:
        if path.is_file():
            return path
    missing = "" if root.is_dir() else f" ({root} itself does not exist)"
    raise FileNotFoundError(
        f"no {split} file of {spec.title} under {root}{missing}: looked for "
        f"{', '.join(map(str, paths))}. Get it from {source}"
    )


def read_split(spec: TaskSpec | str, data_dir: str | os.PathLike, split: str) -> list[Example]:
    r"""Returns one raw split as examples, in file order.

    Rows without a gold label, and a few damaged rows of QQP, are dropped with a warning.

    Args:
        spec: A task with files, or its name: a key of `hopfax.data.TASKS`.
        data_dir: Folder that contains the task's folder, or `glue_data` and `superglue`.
        split: ``"train"`` or ``"validation"``, the official dev file, which `load_task` tests on.

    Raises:
        FileNotFoundError: If the folder or the file is missing.
        ValueError: If the task or split is unknown, or a row has a wrong number of columns, an
            unknown label or an empty text.

    Example:
        >>> import pathlib, tempfile
        >>> from hopfax.data import read_split
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> (folder / "SST-2").mkdir()
        >>> _ = (folder / "SST-2" / "dev.tsv").write_text("sentence\tlabel\na fine film\t1\n")
        >>> read_split("sst2", folder, "validation")
        [Example(texts=(('a fine film',),), label=1, index=0)]
    """
    return [example for _, example in read_rows(task(spec), data_dir, split)]


def read_rows(
    spec: TaskSpec, data_dir: str | os.PathLike, split: str
) -> list[tuple[dict[str, str], Example]]:
    """Returns the text columns and examples of `read_split`."""
    path, unit = raw_file(spec, data_dir, split), "line"
    if spec.section:
        unit, rows = f"{spec.section} row", read_json(path).get(spec.section)
        if not isinstance(rows, list):
            got = type(rows).__name__
            raise ValueError(f"{path}: {spec.section!r} must be a list of rows, got {got}")
        rows = enumerate(rows, start=1)
    elif path.suffix == ".jsonl":
        rows = json_rows(path, numbered_lines(read_text(path)))
    else:
        cells = ((line, each.split("\t")) for line, each in numbered_lines(read_text(path)))
        rows = by_column(path, cells, spec.header)
    usable, skipped = [], defaultdict(list)
    for index, (number, row) in enumerate(rows := list(rows)):
        try:
            usable.append(_parse(spec, row, index))
        except SkippedRow as error:
            skipped[error.args[0]].append((number, error.args[-1]))
        except ValueError as error:
            raise ValueError(f"{path}, {unit} {number}: {error}") from None
    if len(damaged := skipped.get(_DAMAGED, [])) > spec.damaged_share * len(rows):
        (number, message), share = damaged[0], f"{len(damaged)} of {len(rows)}"
        raise ValueError(f"{path}, {unit} {number}: {message} ({share} rows are damaged)")
    for reason, dropped in skipped.items():
        numbers = ", ".join(str(number) for number, _ in dropped[:5])
        numbers += ", ..." if len(dropped) > 5 else ""
        message = f"{path}: dropped {len(dropped)} of {len(rows)} rows {reason} ({unit}s {numbers})"
        warnings.warn(message, stacklevel=3)
    if not usable:
        raise ValueError(f"{path} has no rows: it is empty or truncated")
    return usable


def read_text(path: Path) -> str:
    """Returns the text of a file in UTF-8, without a byte-order mark and with its line ends."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = f"{error.object[error.start]:#04x} at {error.start}"
        raise ValueError(f"{path} must be encoded in UTF-8, got byte {byte}") from None


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields lines, separated by newlines only, with numbers from 1; drops empty last lines."""
    text = text.rstrip("\r\n")
    for number, line in enumerate(text.split("\n") if text else (), start=1):
        yield number, line.removesuffix("\r")


def json_rows(path: Path | str, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, Any]]:
    """Yields the objects of the lines of a JSONL file; lines may be blank."""
    for number, line in lines:
        try:
            if line.strip():
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(f"expected an object, got {type(row).__name__}")
                yield number, row
        except (ValueError, RecursionError) as error:
            where = f"line {number}, column {getattr(error, 'colno', 1)}"
            reason = getattr(error, "msg", error)
            raise ValueError(f"{path}, {where}: not JSON ({reason})") from None


def by_column(
    path: Path | str, rows: Iterable[tuple[int, list[str]]], header: Sequence[str] = ()
) -> Iterator[tuple[int, dict[str, str] | SkippedRow]]:
    """Yields cells by column name; the first row is the header, unless it is given."""
    rows = iter(rows)
    if not header:
        number, header = next(rows, (1, []))
        if twice := [name for name, count in Counter(header).items() if name and count > 1]:
            names = f"column names must differ, got {twice[0]!r} twice"
            raise ValueError(f"{path}, line {number}: {names}")
    for number, cells in rows:
        if len(cells) == len(header):
            yield number, dict(zip(header, cells, strict=True))
        else:
            expected = f"expected {len(header)} columns, got {len(cells)}"
            yield number, SkippedRow(_DAMAGED, expected)


def _parse(spec: TaskSpec, row: Any, index: int) -> tuple[dict[str, str], Example]:
    if isinstance(row, SkippedRow):
        raise row
    if not isinstance(row, dict):
        raise ValueError(f"expected an object, got {type(row).__name__}")
    columns = {}
    for column in spec.columns:
        value: Any = row
        for key in column.split("."):
            if not isinstance(value, dict) or key not in value:
                raise SkippedRow(_DAMAGED, f"no {column!r} (the row has {', '.join(row)})")
            value = value[key]
        if not isinstance(value, str):
            raise ValueError(f"{column!r} must be a string, got {value!r}")
        if value.strip() == spec.placeholder:
            raise SkippedRow(f"marked {spec.placeholder}")
        if not value.strip():
            raise SkippedRow(_DAMAGED, f"empty text in {column!r}")
        columns[column] = value
    if spec.label_column not in row:
        raise ValueError(f"no label {spec.label_column!r} (the row has {', '.join(row)})")
    return columns, spec.example(columns, _label(spec, row[spec.label_column]), index)


def _label(spec: TaskSpec, value: Any) -> int | float:
    written = str(value).lower() if isinstance(value, bool) else str(value).strip()
    if written == spec.unlabeled:
        raise SkippedRow("without a gold label")
    if spec.label_range is None:
        if written in spec.labels:
            return spec.labels.index(written)
        raise ValueError(f"unknown label {written!r}; {spec.title} has {', '.join(spec.labels)}")
    low, high = spec.label_range
    with contextlib.suppress(ValueError):
        if low <= (score := float(written)) <= high:
            return score
    raise ValueError(f"label must be from {low} to {high}, got {written!r}")
