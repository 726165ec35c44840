"""Scores of a task, and the log of a run: one JSON object per line."""

import json
import math
import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np


def scores(metrics: tuple[str, ...], logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Computes a task's metrics and its score on the papers' scale of 0 to 100.

    The score is the mean over `metrics` of 100·accuracy, 100·F1, and 100·(r + 1)/2 for MCC and the
    correlations. Undefined metrics are 0: F1 without positive labels or predictions, and MCC and
    correlations for constant labels or predictions.

    Args:
        metrics: Some of "accuracy", "f1" (of class 1), "mcc" (for more than two classes Gorodkin's
            R_K), "pearson" and "spearman".
        logits: `(examples, outputs)`, finite: an output per class or choice, whose largest is the
            prediction, or one output for correlations.
        labels: `(examples,)` class numbers, or real numbers for correlations.

    Returns:
        Each metric by name, unscaled, then `"score"`.

    Raises:
        ValueError: Metrics are unknown, shapes or labels do not fit, there are no rows, or logits
            are not finite.

    Example:
        >>> import numpy as np
        >>> from hopfax.train.metrics import scores
        >>> logits = np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
        >>> {name: round(value, 3) for name, value in scores(("f1",), logits, [1, 0, 0]).items()}
        {'f1': 0.667, 'score': 66.667}

    References:
        Gorodkin, Comparing two K-category assignments (2004), Eq. 8.
    """
    if not metrics or not set(metrics) <= _METRICS.keys():
        raise ValueError(f"metrics must be among {', '.join(_METRICS)}, got {metrics!r}")
    # NumPy arithmetic is unreliable in bfloat16, and float32 sums are too imprecise for SST-2.
    logits, labels = np.asarray(logits).astype(np.float64), np.asarray(labels)
    if logits.ndim != 2 or not len(labels) or labels.shape != logits.shape[:1]:
        raise ValueError(
            "logits must have shape (examples, outputs) and labels (examples,) with examples >= 1, "
            f"got {logits.shape} and {labels.shape}"
        )
    if bad := int((~np.isfinite(logits).all(1)).sum()):
        raise ValueError(f"{bad} of {len(logits)} rows have logits that are not finite")
    values, parts = {}, []
    for name in metrics:
        metric, of_classes, signed = _METRICS[name]
        _check_labels(name, labels, logits.shape[1], of_classes)
        predicted = logits.argmax(1) if of_classes else logits[:, 0]
        values[name] = float(metric(predicted, labels))
        parts.append((values[name] + 1) / 2 if signed else values[name])
    return values | {"score": 100 * sum(parts) / len(parts)}


def with_interval(
    metric: str, logits: np.ndarray, labels: np.ndarray
) -> tuple[float, float, float]:
    """Returns 100 times a metric of `scores`, and its 95 % interval over the examples.

    The interval of an accuracy is Wilson's, that of other metrics a bootstrap with 300 resamples.

    Example:
        >>> import numpy as np
        >>> from hopfax.train.metrics import with_interval
        >>> logits = np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
        >>> [round(value) for value in with_interval("accuracy", logits, np.array([1, 0, 0, 1]))]
        [75, 30, 95]
    """
    logits, labels = np.asarray(logits), np.asarray(labels)

    def score(rows: Any) -> float:
        return 100 * scores((metric,), logits[rows], labels[rows])[metric]

    whole, count = score(slice(None)), len(labels)
    if metric == "accuracy":  # the bootstrap has no width if all rows are right
        from scipy.stats import binomtest

        interval = binomtest(round(whole / 100 * count), count).proportion_ci(method="wilson")
        return whole, float(100 * interval.low), float(100 * interval.high)
    low, high = bootstrap(count, score, num_resamples=300)
    return whole, float(low), float(high)


def bootstrap(
    count: int, statistic: Callable[[np.ndarray], Any], *, num_resamples: int = 500
) -> np.ndarray:
    """Returns the ends of the 95 % bootstrap interval of a statistic.

    Args:
        count: Number of independent units, such as test rows.
        statistic: Function of the units' numbers, drawn with replacement; nan is left out.
        num_resamples: Number of times that all units are drawn.

    Example:
        >>> import numpy as np
        >>> from hopfax.train.metrics import bootstrap
        >>> values = np.arange(100.0)
        >>> bootstrap(100, lambda rows: values[rows].mean()).round().tolist()
        [44.0, 55.0]
    """
    rng = np.random.default_rng(0)
    drawn = [statistic(rng.integers(0, count, count)) for _ in range(num_resamples)]
    return np.nanquantile(drawn, [0.025, 0.975])


def _check_labels(name: str, labels: np.ndarray, outputs: int, of_classes: bool) -> None:
    if not of_classes:
        fits = outputs == 1 and np.isfinite(labels).all()
        required = "one output per example and finite labels"
    else:
        fits = outputs > 1 and np.issubdtype(labels.dtype, np.integer)
        fits = fits and 0 <= labels.min() <= labels.max() < outputs
        required = "an output per class or choice and integer labels below their number"
    if not fits:
        raise ValueError(
            f"{name} requires {required}, got {outputs} outputs and labels of {labels.dtype} from "
            f"{labels.min()} to {labels.max()}"
        )


def _f1(predicted: np.ndarray, labels: np.ndarray) -> float:
    hits = ((predicted == 1) & (labels == 1)).sum()
    marked = (predicted == 1).sum() + (labels == 1).sum()
    return 2 * hits / marked if marked else 0.0


def _mcc(predicted: np.ndarray, labels: np.ndarray) -> float:
    """The correlation of the two one-hot codes, summed over classes."""
    if _is_constant(predicted, labels):
        return 0.0
    # Fractions of all rows: products of four counts of a large set overflow.
    kinds = np.union1d(predicted, labels)
    actual, guessed = ((rows[:, None] == kinds).mean(0) for rows in (labels, predicted))
    spread = (1 - actual @ actual) * (1 - guessed @ guessed)
    return ((predicted == labels).mean() - actual @ guessed) / math.sqrt(spread)


def _correlation(name: str, predicted: np.ndarray, labels: np.ndarray) -> float:
    from scipy import stats

    if _is_constant(predicted, labels):
        return 0.0
    with warnings.catch_warnings():
        # Almost constant values lose precision, but the result is still the best estimate.
        warnings.simplefilter("ignore", stats.NearConstantInputWarning)
        return float(getattr(stats, name)(predicted, labels.astype(np.float64)).statistic)


def _is_constant(*arrays: np.ndarray) -> bool:
    return any((array == array[0]).all() for array in arrays)


# name: (function of predictions and labels, predictions are classes, ranges over [-1, 1])
_METRICS = {
    "accuracy": (lambda predicted, labels: (predicted == labels).mean(), True, False),
    "f1": (_f1, True, False),
    "mcc": (_mcc, True, True),
    "pearson": (partial(_correlation, "pearsonr"), False, True),
    "spearman": (partial(_correlation, "spearmanr"), False, True),
}


class MetricsLog:
    """An append-only JSONL file with one record per line, written without buffering by process 0.

    A run that resumes from a step calls `truncate_after(step)`, so that records appear once. Write
    the records of a step before saving its checkpoint.

    Args:
        path: The file; created, with its folder, if absent. An incomplete last line is removed.

    Example:
        >>> import numpy as np
        >>> import tempfile
        >>> from hopfax.train.metrics import MetricsLog
        >>> with tempfile.TemporaryDirectory() as folder, MetricsLog(folder + "/log") as log:
        ...     log.write(1, loss=np.float32(0.5))
        ...     log.write(2, loss=float("nan"))
        ...     print(log.path.read_text(), end="")
        {"step": 1, "loss": 0.5}
        {"step": 2, "loss": null}
    """

    def __init__(self, path: str | os.PathLike[str]):
        from hopfax.train.sharding import is_first  # scores require no jax

        self.path = Path(path if is_first() else os.devnull)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        self._rewrite(lambda line: True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def write(self, step: int, **fields: Any) -> None:
        """Appends one record of JSON values, or of NumPy or jax scalars and arrays.

        NaN and infinities become null.

        Raises:
            OSError: The record cannot be written, for instance because the disk is full.
            TypeError: A value is not JSON-serializable.
        """
        record = {name: _plain(value) for name, value in {"step": step, **fields}.items()}
        text = json.dumps(record, allow_nan=False, ensure_ascii=False)
        rest = text.encode() + b"\n"
        while rest:  # unbuffered, so that a kill can cut off only the last line
            rest = rest[self._file.write(rest) :]

    def truncate_after(self, step: int) -> None:
        """Removes the records after a step, by replacing the file atomically."""
        self._file.close()
        self._rewrite(lambda line: json.loads(line)["step"] <= step)

    def _rewrite(self, keep: Callable[[bytes], bool]) -> None:
        old = self.path.read_bytes()
        complete = old[: old.rfind(b"\n") + 1].splitlines(keepends=True)
        new = b"".join(filter(keep, complete))
        if new != old:
            partial = self.path.with_name(f"{self.path.name}.partial")
            partial.write_bytes(new)
            os.replace(partial, self.path)
        self._file = self.path.open("ab", buffering=0)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
