"""Ranges of the flags that `robustness` and the experiments around it share."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Range(NamedTuple):
    """Values that a flag may have.

    Attributes:
        wanted: In words, after "must be".
        holds: Whether a value is one of them; not a number never is.
    """

    wanted: str
    holds: Callable[[float], bool]


_AT_LEAST_ONE = Range(">= 1", lambda value: value >= 1)
_POSITIVE = Range("> 0 and finite", lambda value: 0 < value < float("inf"))
_NOT_NEGATIVE = Range(">= 0 and finite", lambda value: 0 <= value < float("inf"))

# What is not here is told by the parts that know it: names, devices, --max-steps.
RANGES: dict[str, Range] = {
    "seeds": Range("in [0, 2**32)", lambda value: 0 <= value < 2**32),
    "epochs": _AT_LEAST_ONE,
    "patience": _AT_LEAST_ONE,
    "learning_rate": _POSITIVE,
    "train_size": _AT_LEAST_ONE,
    "vocab_size": Range(">= 6, more than the special tokens", lambda value: value >= 6),
    "width": _AT_LEAST_ONE,
    "draws": _AT_LEAST_ONE,
    "levels": _NOT_NEGATIVE,
    "beta": _POSITIVE,
    "tol": _NOT_NEGATIVE,
    "esr_weight": _NOT_NEGATIVE,
    "esr_target": Range("an entropy in [0, 1]", lambda value: 0 <= value <= 1),
    "dropout": Range("in [0, 1)", lambda value: 0 <= value < 1),
    "ball": _POSITIVE,
    "batch_size": _AT_LEAST_ONE,
    # A pair with its special tokens; a vector for each position of the longest.
    "max_length": Range("in [5, 8192]", lambda value: 5 <= value <= 8192),
}


def check_ranges(flags: Mapping[str, Any]) -> None:
    """Looks at every number that a flag was given.

    Args:
        flags: By name, of an experiment's configuration; a number, several, or None for a flag
            that was left out. Those that `RANGES` does not know are not looked at.

    Raises:
        ValueError: A value is out of its range; says the flag, the range and the value.
    """
    for name, (wanted, holds) in RANGES.items():
        given = flags.get(name)
        for value in given if isinstance(given, tuple) else (given,):
            if value is not None and not holds(value):
                raise ValueError(f"--{name.replace('_', '-')} must be {wanted}, got {value}")
