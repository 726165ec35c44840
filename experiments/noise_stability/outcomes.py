"""Times until something happens, of which some never do: medians, intervals, comparisons.

A run that never arrived counts as infinity, so that a median is right as long as half of the runs
arrived, and infinite otherwise.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 10_000


Statistic = Callable[[np.ndarray], np.ndarray]


class Interval(NamedTuple):
    """A number and the ends of its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


def median_time(times: np.ndarray, *, seed: int = 0) -> Interval:
    """Median over runs, with a percentile interval from resampled runs.

    Args:
        times: `(runs,)`, > 0; inf for a run that never arrived.
        seed: Of the resampling.
    """
    return _bootstrap(times[None], lambda drawn: median(drawn[0]), seed)


def reduction(times: np.ndarray, baseline: np.ndarray, *, seed: int = 0) -> Interval:
    """By how many percent the median time falls from the baseline's; negative where it rises.

    Args:
        times: `(runs,)`.
        baseline: The same runs (seed by seed) without what is compared: they are resampled
            together.
        seed: Of the resampling.

    Returns:
        Percent; 100 where the baseline alone never arrives (all one can say), minus infinity where
        it alone does, nan where neither does.
    """

    def percent(drawn: np.ndarray) -> np.ndarray:
        ours, theirs = median(drawn[0]), median(drawn[1])
        ratio = np.where(np.isinf(ours) & np.isinf(theirs), np.nan, ours) / np.where(
            np.isinf(theirs), np.inf, theirs
        )
        return 100 * (1 - ratio)

    return _bootstrap(np.stack([times, baseline]), percent, seed)


def median(times: np.ndarray) -> np.ndarray:
    """Median along the last axis in which infinities are the largest numbers."""
    ordered = np.sort(times, axis=-1)
    count = times.shape[-1]
    low, high = ordered[..., (count - 1) // 2], ordered[..., count // 2]
    # Not their mean at once: of inf and a number numpy would make inf, but warn.
    return np.where(np.isinf(high), high, (low + np.where(np.isinf(high), low, high)) / 2)


def survival(times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Share of runs still on their way after each time at which one arrived, and those times.

    All runs are followed equally long, so this is the Kaplan-Meier curve.
    """
    arrived = np.sort(times[np.isfinite(times)])
    shares = 1 - np.arange(len(arrived) + 1) / len(times)
    return np.concatenate([[0.0], arrived]), shares


def _bootstrap(samples: np.ndarray, statistic: Statistic, seed: int) -> Interval:
    count = samples.shape[1]
    if count < 2:
        raise ValueError(f"an interval wants at least two runs, got {count}")
    picks = np.random.default_rng(seed).integers(0, count, (RESAMPLES, count))
    drawn = np.sort(statistic(samples[:, picks]))
    drawn = drawn[~np.isnan(drawn)]
    value = float(statistic(samples[:, None])[0])
    if not len(drawn):
        return Interval(value, np.nan, np.nan)
    # Order statistics, not interpolation: between a number and infinity there is nothing.
    tail = (1 - CONFIDENCE) / 2
    low, high = (drawn[int(np.floor(q * (len(drawn) - 1)))] for q in (tail, 1 - tail))
    return Interval(value, float(low), float(high))
