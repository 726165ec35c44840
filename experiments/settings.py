"""Flags that experiments share, in groups, and the budgets that fill what a user leaves out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import tyro

from hopfax.data.tasks import task

Config = TypeVar("Config", bound=Any)
BudgetName = Literal["smoke", "laptop", "paper"]


class Budget(NamedTuple):
    """What a size of run means, where no flag says otherwise."""

    seeds: tuple[int, ...]
    epochs: int
    patience: int
    learning_rate: float
    draws: int
    train_size: int | None
    test_size: int | None
    vocab_size: int
    width: int
    num_layers: int


PAPER_SEEDS = (23, 42, 77, 112, 135)
BUDGETS: dict[str, Budget] = {
    "smoke": Budget(PAPER_SEEDS[:2], 1, 1, 1e-3, 1, 128, 64, 2000, 32, 1),
    "laptop": Budget(PAPER_SEEDS[:3], 8, 3, 3e-4, 3, None, None, 8000, 128, 2),
    # Table 15 of the Robertha paper.
    "paper": Budget(PAPER_SEEDS, 30, 10, 2e-5, 3, None, None, 30522, 128, 2),
}
# Enough to learn the synthetic tasks: halfway there, rounding on another processor moves scores by
# points. Small models on short rows, without early stopping.
EMBEDDED_LAPTOP = BUDGETS["laptop"]._replace(
    epochs=6, patience=6, learning_rate=1e-3, draws=1, train_size=8000, width=64
)


def _by_budget(name: str) -> Any:
    """A hint in place of "(default: None)": what each budget takes."""

    def said(value: Any) -> str:
        if value is None:
            return "all"
        return " ".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}"

    hints = [
        f"{said(getattr(BUDGETS[each], name))} ({each})" for each in ("laptop", "smoke", "paper")
    ]
    embedded = getattr(EMBEDDED_LAPTOP, name)
    if embedded != getattr(BUDGETS["laptop"], name):
        hints.insert(1, f"{said(embedded)} (laptop, synthetic tasks)")
    return tyro.conf.arg(help_behavior_hint=f"(default: {', '.join(hints)})")


@dataclass(frozen=True, kw_only=True)
class Data:
    """Which rows to train and test on."""

    task: tuple[str, ...] = ("entailment",)
    """Tasks. Synthetic, without files: sentiment entailment paraphrase. From --data-dir: cola sst2
    mrpc qqp stsb mnli qnli rte wnli boolq copa wic wsc."""
    data_dir: str | None = None
    """Folder of raw sets (glue_data/SST-2/train.tsv, ...) or of built TFDS sets."""
    vocab: str | None = None
    """A vocab.txt or its folder. Default: a vocabulary trained on the training texts."""
    train_size: Annotated[int | None, _by_budget("train_size")] = None
    """Number of training rows; validation has no more."""
    test_size: Annotated[int | None, _by_budget("test_size")] = None
    """Number of test rows, the first ones."""
    vocab_size: Annotated[int | None, _by_budget("vocab_size")] = None
    """Most tokens of a trained vocabulary."""
    max_length: int = 128
    """Longest text in tokens; longer ones are cut."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """How to train."""

    seeds: Annotated[tuple[int, ...] | None, _by_budget("seeds")] = None
    """Training seeds, trained side by side."""
    epochs: Annotated[int | None, _by_budget("epochs")] = None
    """Most epochs; the learning rate decays over all of them."""
    patience: Annotated[int | None, _by_budget("patience")] = None
    """Epochs without a better validation score before a seed stops."""
    learning_rate: Annotated[float | None, _by_budget("learning_rate")] = None
    """Peak learning rate."""
    batch_size: int = 32
    """Rows a training step."""
    width: Annotated[int | None, _by_budget("width")] = None
    """Token width; feed-forward parts are four times as wide."""
    num_layers: Annotated[int | None, _by_budget("num_layers")] = None
    """Number of layers."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What blocks compute in: float32 or bfloat16. Parameters, retrieval, softmax and loss stay in
    float32."""
    devices: int | None = None
    """Number of this machine's devices. Default: the most that seeds or batches divide among."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Which noise to test under."""

    levels: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0)
    """Noise levels σ; clean inputs are always tested."""
    sites: tuple[str, ...] = ("token", "embedding")
    """Where noise is added: "token", on the token embeddings, or "embedding", after their
    LayerNorm."""
    protocols: tuple[str, ...] = ("sigma", "matched")
    """Same σ for all models, or same signal-to-noise ratio."""
    draws: Annotated[int | None, _by_budget("draws")] = None
    """Independent noise draws per test row."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Flags of every experiment that trains encoders."""

    budget: BudgetName = "laptop"
    """Size of the run: seconds (few rows, two models), minutes, or as published. Other flags
    override it."""
    runs: str = "runs"
    """Folder of all runs."""
    data: Data = Data()
    training: Training = Training()


def resolved(config: Config) -> Config:
    """The configuration with the budget's values where a flag was left out.

    Args:
        config: A dataclass with `budget` and some of the groups above.

    Raises:
        ValueError: A value is out of its range, or a list is empty or repeats itself.
    """
    embedded = all(task(name).suite == "synthetic" for name in config.data.task)
    budget = BUDGETS[config.budget]
    if embedded and config.budget == "laptop":
        budget = EMBEDDED_LAPTOP
    groups = {}
    for group in dataclasses.fields(config):
        flags = getattr(config, group.name)
        if not dataclasses.is_dataclass(flags):
            continue
        missing = {
            each.name: getattr(budget, each.name)
            for each in dataclasses.fields(flags)
            if getattr(flags, each.name) is None and each.name in Budget._fields
        }
        groups[group.name] = dataclasses.replace(flags, **missing)  # pyright: ignore[reportArgumentType]
    filled = dataclasses.replace(config, **groups)
    check(filled)
    return filled


class Range(NamedTuple):
    """Values that a flag may have, in words after "must be", and as a predicate."""

    wanted: str
    holds: Callable[[float], bool]


_AT_LEAST_ONE = Range(">= 1", lambda value: value >= 1)
_POSITIVE = Range("> 0 and finite", lambda value: 0 < value < float("inf"))
_NOT_NEGATIVE = Range(">= 0 and finite", lambda value: 0 <= value < float("inf"))
RANGES: dict[str, Range] = {
    "seeds": Range("in [0, 2**32)", lambda value: 0 <= value < 2**32),
    "epochs": _AT_LEAST_ONE,
    "patience": _AT_LEAST_ONE,
    "learning_rate": _POSITIVE,
    "train_size": _AT_LEAST_ONE,
    "test_size": _AT_LEAST_ONE,
    "vocab_size": Range(">= 6, more than the special tokens", lambda value: value >= 6),
    "width": _AT_LEAST_ONE,
    "num_layers": _AT_LEAST_ONE,
    "draws": _AT_LEAST_ONE,
    "levels": _NOT_NEGATIVE,
    "rates": Range("a share of the words in [0, 1]", lambda value: 0 <= value <= 1),
    "texts": _AT_LEAST_ONE,
    "beta": _POSITIVE,
    "tol": _NOT_NEGATIVE,
    "max_steps": _AT_LEAST_ONE,
    "esr_weight": _NOT_NEGATIVE,
    "esr_target": Range("an entropy in [0, 1]", lambda value: 0 <= value <= 1),
    "dropout": Range("in [0, 1)", lambda value: 0 <= value < 1),
    "adversarial_radius": _POSITIVE,
    "batch_size": _AT_LEAST_ONE,
    # A pair with its special tokens; a vector for each position of the longest.
    "max_length": Range("in [5, 8192]", lambda value: 5 <= value <= 8192),
}


def check(config: Any) -> None:
    """Checks every flag of a dataclass and its groups.

    Raises:
        ValueError: A number is out of its range, or a list of values is empty or repeats one.
    """
    for each in dataclasses.fields(config):
        value, flag = getattr(config, each.name), f"--{each.name.replace('_', '-')}"
        if dataclasses.is_dataclass(value):
            check(value)
            continue
        values = value if isinstance(value, tuple) else (value,)
        if isinstance(value, tuple) and (not value or len(set(value)) < len(value)):
            raise ValueError(f"{flag} takes one or more different values, got {value}")
        if each.name in RANGES:
            wanted, holds = RANGES[each.name]
            for one in values:
                if one is not None and not holds(one):
                    raise ValueError(f"{flag} must be {wanted}, got {one}")
