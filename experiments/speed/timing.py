"""Times several programs in turns, so that whatever else the machine does hits all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

Name = TypeVar("Name", bound=Hashable)


class Spread(NamedTuple):
    """Median and quartiles of a measurement over rounds."""

    median: float
    low: float
    high: float
    rounds: int


def clock_of(cpu_seconds: bool) -> Callable[[], float]:
    """Processor time, for a machine that others use, or wall time."""
    return time.process_time if cpu_seconds else time.perf_counter


def clock_title(cpu_seconds: bool) -> str:
    """That clock's name on the page."""
    return "processor time" if cpu_seconds else "wall time"


def spread(values: Sequence[float] | np.ndarray) -> Spread:
    """Summarises rounds; at least one."""
    low, median, high = np.percentile(np.asarray(values, float), (25, 50, 75)).tolist()
    return Spread(median, low, high, len(values))


def interleaved(
    programs: Mapping[Name, Callable[[], object]],
    *,
    seconds: float,
    min_rounds: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Name, np.ndarray]:
    """Runs every program once a round, in an order drawn anew for each.

    In a fixed or rotating order each would always come after the same other one, and pay for what
    that leaves in the caches.

    Args:
        programs: Each returns only when its work is done.
        seconds: No round starts after this long, once there are `min_rounds`.
        min_rounds: At least so many are measured. A first one, for compilation and caches, is not.
        clock: Where the time comes from.

    Returns:
        `(rounds,)` seconds of each program.
    """
    for program in programs.values():
        program()
    names = list(programs)
    taken: dict[Name, list[float]] = {name: [] for name in names}
    begin, rounds, draws = clock(), 0, np.random.default_rng(0)
    while rounds < min_rounds or clock() - begin < seconds:
        for turn in draws.permutation(len(names)):
            name = names[turn]
            start = clock()
            programs[name]()
            taken[name].append(clock() - start)
        rounds += 1
    return {name: np.asarray(values) for name, values in taken.items()}
