"""Reads the raw files of GLUE and SuperGLUE.

Tab-separated files are split at tabs only; quotes are text. A byte-order mark is dropped.
Malformed rows raise an error that names the file and line.
"""

import contextlib
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hopfax.data.tasks import Example, TaskSpec, named, task

_PARENTS = {
    "glue": (".", "glue_data", "glue", "GLUE"),
    "superglue": (".", "superglue", "SuperGLUE", "super_glue"),
}
_SOURCE = {"glue": "gluebenchmark.com/tasks", "superglue": "super.gluebenchmark.com/tasks"}
_DAMAGED = "lacking columns or a text"


class _SkippedRow(ValueError):
    """A row that the task may allow to drop: the reason and, for a damaged row, the error."""


def first_existing(
    title: str, data_dir: str | os.PathLike, candidates: Sequence[str], source: str
) -> Path:
    """Returns the first candidate under `data_dir` that exists; the error lists all candidates."""
    root = Path(os.path.expanduser(data_dir))
    paths = [root / candidate for candidate in candidates]
    for path in paths:
        if path.is_file():
            return path
    missing = "" if root.is_dir() else f" ({root} itself does not exist)"
    raise FileNotFoundError(
        f"no {title} under {root}{missing}: looked for {', '.join(map(str, paths))}. Get it from "
        f"{source}"
    )


def raw_file(spec: TaskSpec, data_dir: str | os.PathLike, split: str) -> Path:
    """Returns the file of a split, in `data_dir` or its folder `glue_data` or `superglue`."""
    if spec.suite == "synthetic":
        raise ValueError(f"{spec.name} is synthetic and has no files: omit data_dir")
    file = named(f"split of {spec.title}", split, spec.files)
    candidates = [f"{parent}/{spec.folder}/{file}" for parent in _PARENTS[spec.suite]]
    title = f"{split} file of {spec.title}"
    return first_existing(title, data_dir, candidates, _SOURCE[spec.suite])


def read_split(spec: TaskSpec | str, data_dir: str | os.PathLike, split: str) -> list[Example]:
    r"""Returns one raw split as examples, in file order.

    Args:
        spec: A task with files, or its name: a key of `hopfax.data.TASKS`.
        data_dir: Folder that contains the task's folder, or `glue_data` and `superglue`.
        split: ``"train"`` or ``"validation"``, the official dev file. `load_task` reports it as
            `test`, since the labels of the official test file are hidden.

    Raises:
        FileNotFoundError: If the folder or the file is missing.
        ValueError: If the task or split is unknown, or a row has a wrong number of columns, an
            unknown label or an empty text.

    Warns:
        UserWarning: If rows without a gold label or damaged rows were dropped.

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
    path = raw_file(spec, data_dir, split)
    rows = json_rows(path) if path.suffix == ".jsonl" else tab_rows(spec, path)
    return usable_rows(spec, path, rows)


def usable_rows(
    spec: TaskSpec,
    path: Path,
    rows: Iterable[tuple[int, dict[str, Any] | _SkippedRow]],
    *,
    unit: str = "line",
) -> list[tuple[dict[str, str], Example]]:
    """Parses numbered rows of a file; drops rows that the task allows to drop, with a warning."""
    usable, total = [], 0
    skipped: dict[str, dict[int, _SkippedRow]] = {}
    for total, (number, row) in enumerate(rows, start=1):
        try:
            if isinstance(row, _SkippedRow):
                raise row
            usable.append(_parse(spec, row, total - 1))
        except _SkippedRow as error:
            skipped.setdefault(error.args[0], {})[number] = error
        except ValueError as error:
            raise ValueError(f"{path}, {unit} {number}: {error}") from None
    damaged = skipped.get(_DAMAGED, {})
    if len(damaged) > spec.damaged_share * total:
        number, error = next(iter(damaged.items()))
        raise ValueError(
            f"{path}, {unit} {number}: {error.args[1]} ({len(damaged)} of {total} rows are damaged)"
        )
    for reason, numbers in skipped.items():
        shown = ", ".join(map(str, list(numbers)[:5])) + (", ..." if len(numbers) > 5 else "")
        warnings.warn(
            f"{path}: dropped {len(numbers)} of {total} rows {reason} ({unit}s {shown})",
            stacklevel=4,
        )
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


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields lines, separated by newlines only, with numbers from 1; drops empty last lines."""
    text = read_text(path).rstrip("\r\n")
    for number, line in enumerate(text.split("\n") if text else (), start=1):
        yield number, line.removesuffix("\r")


def json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the objects of a JSONL file with their line numbers; lines may be blank."""
    for number, line in numbered_lines(path):
        try:
            if line.strip():
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(f"expected an object, got {type(row).__name__}")
                yield number, row
        except (ValueError, RecursionError) as error:
            where = f"line {number}, column {getattr(error, 'colno', 1)}"
            raise ValueError(
                f"{path}, {where}: not JSON ({getattr(error, 'msg', error)})"
            ) from None


def tab_rows(spec: TaskSpec, path: Path) -> Iterator[tuple[int, dict[str, str] | _SkippedRow]]:
    """Yields the rows of a tab-separated file by column name."""
    lines = numbered_lines(path)
    header = spec.header
    if not header:
        header = tuple(next(lines, (1, ""))[1].split("\t"))
        missing = [name for name in (*spec.columns, spec.label_column) if name not in header]
        if missing:
            raise ValueError(
                f"{path}, line 1: no column {' or '.join(missing)} in the header "
                f"({', '.join(header)})"
            )
    expected = f"expected {len(header)} tab-separated columns ({', '.join(header)})"
    for number, line in lines:
        cells = line.split("\t")
        if len(cells) == len(header):
            yield number, dict(zip(header, cells, strict=True))
        else:
            yield number, _SkippedRow(_DAMAGED, f"{expected}, got {len(cells)}")


def _parse(spec: TaskSpec, row: Any, index: int) -> tuple[dict[str, str], Example]:
    if not isinstance(row, dict):
        raise ValueError(f"expected a JSON object, got {type(row).__name__}")
    columns = {}
    for column in spec.columns:
        value: Any = row
        for key in column.split("."):
            if not isinstance(value, dict) or key not in value:
                raise _SkippedRow(_DAMAGED, f"no {column!r} (the row has {', '.join(row)})")
            value = value[key]
        if not isinstance(value, str):
            raise ValueError(f"{column!r} must be a string, got {value!r}")
        if value.strip() == spec.placeholder:
            raise _SkippedRow(f"marked {spec.placeholder}")
        if not value.strip():
            raise _SkippedRow(_DAMAGED, f"empty text in {column!r}")
        columns[column] = value
    if spec.label_column not in row:
        raise ValueError(f"no label {spec.label_column!r} (the row has {', '.join(row)})")
    return columns, Example(spec.join(columns), _label(spec, row[spec.label_column]), index)


def _label(spec: TaskSpec, value: Any) -> int | float:
    written = str(value).lower() if isinstance(value, bool) else str(value).strip()
    if written == spec.unlabeled:
        raise _SkippedRow("without a gold label")
    if spec.label_range is None:
        if written in spec.labels:
            return spec.labels.index(written)
        raise ValueError(f"unknown label {written!r}; {spec.title} has {', '.join(spec.labels)}")
    low, high = spec.label_range
    with contextlib.suppress(ValueError):
        if low <= (score := float(written)) <= high:
            return score
    raise ValueError(f"label must be from {low} to {high}, got {written!r}")
