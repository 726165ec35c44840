"""Scores of a task, and the log of a run: one JSON object a line."""

import json
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np


def scores(
    metrics: tuple[str, ...],
    logits: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None = None,
) -> dict[str, float]:
    """Computes a task's metrics and its score on the papers' scale of 0 to 100.

    The score is the mean over `metrics` of 100·accuracy, 100·F1, and 100·(r + 1)/2 for MCC and the
    correlations. Where a metric is 0/0 it is 0: F1 with no positive row, given or predicted; MCC
    and the correlations when predictions or labels are all the same.

    Args:
        metrics: some of "accuracy", "f1" (of class 1), "mcc" (for more than two classes Gorodkin's
            R_K), "pearson" and "spearman".
        logits: (examples, outputs) finite; the class is the largest of a row (the first among
            equals). Correlations want one output; a choice task has one output a choice.
        labels: (examples,) class numbers, or real numbers for correlations.
        weights: (examples,) 1 for rows that count, 0 for rows that only fill a batch.

    Returns:
        Each metric by name, raw (fractions in [0, 1], or in [-1, 1]), then `"score"`.

    Raises:
        ValueError: unknown metrics, shapes or labels that do not fit, no rows that count, or logits
            that are not finite (it says how many).

    References:
        Gorodkin, Comparing two K-category assignments by a K-category correlation coefficient,
        Computational Biology and Chemistry 28 (2004), Eq. 8.
    """
    if not metrics or not set(metrics) <= _METRICS.keys():
        raise ValueError(f"metrics must be some of {', '.join(_METRICS)}, not {metrics!r}")
    logits, labels = _rows_that_count(np.asarray(logits), np.asarray(labels), weights)
    results: dict[str, float] = {}
    for name in metrics:
        metric, of_classes, _ = _METRICS[name]
        given = _classes(name, logits, labels) if of_classes else _numbers(name, logits, labels)
        results[name] = float(metric(*given))
    signed = {name: _METRICS[name][2] for name in metrics}
    parts = [(results[name] + 1) / 2 if signed[name] else results[name] for name in metrics]
    return results | {"score": 100 * sum(parts) / len(parts)}


def _rows_that_count(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise ValueError(
            "logits must be (examples, outputs) and labels (examples,), "
            f"not {logits.shape} and {labels.shape}"
        )
    if weights is not None:
        weights = np.asarray(weights)
        if weights.shape != labels.shape or not np.isin(weights, (0, 1)).all():
            raise ValueError(f"weights must be {labels.shape} zeros and ones")
        logits, labels = logits[weights == 1], labels[weights == 1]
    if not len(labels):
        raise ValueError("there are no rows to score")
    # bfloat16 has no NumPy arithmetic worth trusting, and float32 sums are too short for SST-2
    logits = logits.astype(np.float64)
    if bad := int((~np.isfinite(logits)).sum()):
        rows = int((~np.isfinite(logits).all(1)).sum())
        raise ValueError(
            f"{bad} of {logits.size} logits are not finite, in {rows} of {len(logits)} rows: "
            "the model has diverged"
        )
    return logits, labels


def _classes(name: str, logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    outputs = logits.shape[1]
    if outputs < 2:
        raise ValueError(f"{name} wants an output per class or choice, not {outputs}")
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{name} wants class numbers as labels, not {labels.dtype}")
    if labels.min() < 0 or labels.max() >= outputs:
        raise ValueError(
            f"labels run from {labels.min()} to {labels.max()}, but there are {outputs} outputs"
        )
    return logits.argmax(1), labels


def _numbers(name: str, logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if logits.shape[1] != 1:
        raise ValueError(f"{name} wants one output per example, not {logits.shape[1]}")
    labels = labels.astype(np.float64)
    if bad := int((~np.isfinite(labels)).sum()):
        raise ValueError(f"{bad} of {len(labels)} labels are not finite")
    return logits[:, 0], labels


def _accuracy(predicted: np.ndarray, labels: np.ndarray) -> float:
    return float((predicted == labels).mean())


def _f1(predicted: np.ndarray, labels: np.ndarray) -> float:
    hits = ((predicted == 1) & (labels == 1)).sum()
    marked = (predicted == 1).sum() + (labels == 1).sum()
    return 2 * hits / marked if marked else 0.0


def _mcc(predicted: np.ndarray, labels: np.ndarray) -> float:
    """The correlation of the two one-hot codes, summed over classes."""
    kinds = np.union1d(predicted, labels)
    # Shares of all rows, not counts: products of four counts of a large set overflow.
    given = np.array([(labels == kind).mean() for kind in kinds])
    guessed = np.array([(predicted == kind).mean() for kind in kinds])
    spread = (1 - given @ given) * (1 - guessed @ guessed)
    if (predicted == predicted[0]).all() or (labels == labels[0]).all():
        return 0.0
    return ((predicted == labels).mean() - given @ guessed) / math.sqrt(spread)


def _correlation(name: str) -> Callable[[np.ndarray, np.ndarray], float]:
    def correlation(predicted: np.ndarray, labels: np.ndarray) -> float:
        from scipy import stats

        if (predicted == predicted[0]).all() or (labels == labels[0]).all():
            return 0.0
        with warnings.catch_warnings():
            # Almost constant: the digits left are few, and still the best answer there is.
            warnings.simplefilter("ignore", stats.NearConstantInputWarning)
            return float(getattr(stats, name)(predicted, labels).statistic)

    return correlation


# name: (function of predictions and labels, predictions are classes, ranges over [-1, 1])
_METRICS = {
    "accuracy": (_accuracy, True, False),
    "f1": (_f1, True, False),
    "mcc": (_mcc, True, True),
    "pearson": (_correlation("pearsonr"), False, True),
    "spearman": (_correlation("spearmanr"), False, True),
}


class MetricsLog:
    """An append-only JSONL file: each record is one line, in the file as soon as it is written.

    A run that resumes from the checkpoint of a step calls `truncate_after(step)`, and the lines it
    then writes again appear once. So write the records of a step before saving its checkpoint.

    Args:
        path: the file; made, with its folder, when absent. A last line that a kill cut off is
            removed when the file is opened.

    Raises:
        ValueError: a line before the last is not a JSON object with a step (file and line).
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._keep(lambda record: True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def write(self, step: int, **fields: Any) -> None:
        """Appends one record.

        Args:
            step: the step it is of.
            **fields: JSON values, or NumPy or jax scalars and arrays. NaN and infinities, which
                JSON does not know, become null.

        Raises:
            OSError: the disk is full, say; the file is as it was before this call.
            TypeError: a value is none of these.
        """
        text = json.dumps(_plain({"step": step} | fields), allow_nan=False, ensure_ascii=False)
        rest = text.encode() + b"\n"
        size = os.fstat(self._file.fileno()).st_size
        try:
            # Unbuffered, so that a kill can cut off the last line and no other.
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            os.ftruncate(self._file.fileno(), size)
            raise

    def truncate_after(self, step: int) -> None:
        """Removes the records of later steps, in one go: the old file stays until the new is whole.

        Args:
            step: the last step to keep.
        """
        self._file.close()
        self._keep(lambda record: record["step"] <= step)

    def close(self) -> None:
        """Closes the file; calling it again does nothing."""
        self._file.close()

    def _keep(self, wanted: Callable[[Mapping[str, Any]], bool]) -> None:
        old = self.path.read_bytes() if self.path.exists() else b""
        new = b"".join(line + b"\n" for line, record in _records(self.path, old) if wanted(record))
        if new != old:
            partial = self.path.with_name(f"{self.path.name}.partial")
            partial.write_bytes(new)
            os.replace(partial, self.path)
        self._file = self.path.open("ab", buffering=0)


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads the records of a log, without a last line that is cut off.

    Args:
        path: a file that `MetricsLog` wrote.

    Returns:
        One dict a line, in the file's order.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line before the last is not a JSON object with a step (file and line).
    """
    return [record for _, record in _records(Path(path), Path(path).read_bytes())]


def _records(path: Path, data: bytes) -> Iterator[tuple[bytes, dict[str, Any]]]:
    lines = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if not isinstance(record["step"], int | float):
                raise TypeError
        except (ValueError, TypeError, KeyError) as error:
            if number == len(lines):  # cut off, or the nothing after the last newline
                return
            raise ValueError(
                f"{path}, line {number}: not a JSON object with a step: {line[:80]!r}. "
                "Repair or remove that line."
            ) from error
        yield line, record


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
