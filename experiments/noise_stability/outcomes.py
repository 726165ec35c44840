"""Steps of training runs to a target that some never reach: medians, intervals, and savings.

An arm is one way to train; its runs differ in their seeds. A run that never reaches the target
counts as infinity: the median is finite if more than half of the runs arrive.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments import report, tidy
from experiments.noise_stability import indicator
from experiments.tidy import CONFIDENCE, MIN_SEEDS

RESAMPLES = 10_000
SWEEP, BASELINE = "sweep", "baseline"
DRAWN = ("baseline", "stability_reg", "stability_reg-negative")  # more curves tangle

median = partial(np.median, axis=-1)  # infinities are the largest numbers


class Interval(NamedTuple):
    """A number with its 95 % bootstrap interval, nan below `MIN_SEEDS` runs.

    It covers less with few runs: the median of eight about 92 %, of three about 75 %.
    """

    value: float
    low: float
    high: float


def median_time(times: np.ndarray) -> Interval:
    """Median over runs, `(runs,)`, inf for never, with a percentile bootstrap interval."""
    medians = median(_resampled(times[None])[0])
    return Interval(float(median(times)), *_ends(medians, medians, len(times)))


def reduction(
    times: np.ndarray, baseline: np.ndarray, *, followed: tuple[float, float] = (np.inf, np.inf)
) -> Interval:
    """By how many percent the median time falls from the baseline's; negative where it rises.

    Args:
        times: `(runs,)`, inf for never.
        baseline: `(runs,)`, the baseline's times; runs are paired by seed and resampled together.
        followed: How long the runs of both were followed.

    Returns:
        Percent. If a median is never, it is only known to exceed the time that its runs were
        followed. If the baseline's is never, that time replaces it in the value and the lower end,
        and the upper end is 100. If the median of `times` is never, the value and the lower end are
        minus infinity, and that time replaces it in the upper end. The value is nan if both are
        never, or if the runs of `times` were followed for less than the baseline's median.
    """
    both = np.stack([times, baseline])
    drawn, (own, other) = _resampled(both), followed
    # The median of an even number of runs may average a time and a censored one.
    value, least = (
        _percent(median(each[0]), median(np.minimum(each[1], other))) for each in (both, drawn)
    )
    ours, theirs = median(both)
    if np.isinf(ours) and (own < theirs or np.isinf(theirs)):
        value = np.nan
    most = _percent(median(np.minimum(drawn[0], own)), median(drawn[1]))
    most = np.where(np.isinf(median(drawn[1])), 100.0, most)
    return Interval(float(value), *_ends(least, most, len(times)))


def _percent(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    share = np.divide(ours, theirs, out=np.zeros(np.shape(ours)), where=np.isfinite(theirs))
    return np.where(np.isinf(ours), -np.inf, 100 * (1 - share))


def _resampled(samples: np.ndarray) -> np.ndarray:
    """`(..., resamples, runs)`, the same runs in every row of `samples`."""
    count = samples.shape[-1]
    if count < 2:
        raise ValueError(f"an interval needs at least two runs, got {count}")
    return samples[..., np.random.default_rng(0).integers(0, count, (RESAMPLES, count))]


def _ends(least: np.ndarray, most: np.ndarray, runs: int) -> tuple[float, float]:
    if runs < MIN_SEEDS:
        return np.nan, np.nan
    # Order statistics: there is nothing to interpolate between a number and infinity.
    tail, last = (1 - CONFIDENCE) / 2, len(least) - 1
    low = np.sort(least)[int(np.floor(tail * last))]
    high = np.sort(most)[int(np.ceil((1 - tail) * last))]
    return float(low), float(high)


def saved(arm: pd.DataFrame, baseline: pd.DataFrame, *, compute: bool = False) -> Interval:
    """Percent fewer steps than the baseline to the target, or less compute.

    Both are rows of results.csv on the steps of an arm, in the order of the seeds.
    """
    scaled = [
        each[["score", "horizon"]].mul(each.rows_per_step if compute else 1.0, axis=0)
        for each in (arm, baseline)
    ]
    ours, theirs = (each.score.to_numpy() for each in scaled)
    ends = [float(each.horizon.iloc[0]) for each in scaled]
    return reduction(ours, theirs, followed=(ends[0], ends[1]))


def text(interval: Interval) -> str:
    """Such as "633 [528, 786]"; ∞ is never."""
    value, low, high = (f"{np.round(each) + 0.0:,.0f}" for each in interval)
    words = f"{value} [{low}, {high}]".replace("inf", "∞").replace("nan", "n/a")
    return words.replace("-", "−")


def page(folder: Path, title: str, tables: Sequence[report.Table] = ()) -> report.Page:
    """The page of a run; `tables` are further ones of the experiment."""
    frame = tidy.read(folder)
    steps = tidy.select(frame, metric="steps").sort_values("seed", kind="stable")
    curves, lines = pd.read_csv(folder / "curves.csv"), []
    for (task, arm), rows in steps[steps.model != SWEEP].groupby(["task", "model"], sort=False):
        baseline = tidy.select(steps, task=task, model=BASELINE)
        lines.append([
            f"{task}, {arm}",
            f"{np.isfinite(rows.score).sum()} of {len(rows)}",
            text(median_time(rows.score.to_numpy())),
            *(text(saved(rows, baseline, compute=unit)) for unit in (False, True)),
        ])  # fmt: skip
    heads = ["", "reached", "median steps", "steps saved, %", "compute saved, %"]
    metrics = {
        "validation accuracy": 100 * curves.accuracy,
        "training accuracy": 100 * curves.train_accuracy,
        "normalized stability": 100 * curves.agreement / curves.confidence,
        "validation loss": curves.loss,
        "training loss": curves.train_loss,
        "stability": 100 * curves.agreement,
    }
    parts = [curves.assign(metric=name, mean=each) for name, each in metrics.items()]
    drawn = tidy.select(pd.concat(parts), arm=DRAWN).assign(low=np.nan, high=np.nan)
    drawn["constant"] = 100 * drawn.target.where(drawn.metric.str.endswith("stability"))
    units = {"validation loss": "nats", "training loss": "nats", "stability": "%"}
    first, second = drawn[~drawn.metric.isin(units)], drawn[drawn.metric.isin(units)]
    options: Any = {"x": "step", "hue": "arm", "xlabel": "step"}
    options["titles"] = {"constant": "target function"}
    pictures = {
        "curves": report.facets("Medians over runs", first, col="metric", row="task", ylabel="%",
                                **options),
        "losses": report.facets("Losses and stability, medians", second, col="task", row="metric",
                                ylabel=units, least_range=0.5, log=True, **options),
    }  # fmt: skip
    table = report.Table(heads, lines, "Steps to the target accuracy")
    claims = indicator.claims(frame[frame.model != SWEEP])
    tables = [table, *tables, *([report.verdicts(claims)] if len(claims) else [])]
    return report.Page(title, pictures=pictures, tables=tables)
