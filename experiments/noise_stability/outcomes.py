"""Times to an event that may never happen: medians, intervals, reductions.

A run without the event counts as infinity: the median is finite if more than half of the runs
arrive.
"""

from functools import partial
from typing import NamedTuple

import numpy as np

from experiments.tidy import CONFIDENCE, MIN_SEEDS

RESAMPLES = 10_000

median = partial(np.median, axis=-1)  # infinities are the largest numbers


class Interval(NamedTuple):
    """A number with its 95 % bootstrap interval, nan below `MIN_SEEDS` runs.

    It covers less with few runs: the median of eight about 92 %, of three about 75 %.
    """

    value: float
    low: float
    high: float


def median_time(times: np.ndarray) -> Interval:
    """Median over runs, `(runs,)`, inf for never, with a percentile bootstrap interval.

    Raises:
        ValueError: There are fewer than two runs.
    """
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

    Raises:
        ValueError: There are fewer than two runs.
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
