"""The Robertha paper's own scores, 0 to 100, nan where it has none.

By task and model in Tables 2, 3 and 5 to 13; with one hyperparameter changed in 21 to 26.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterator
from pathlib import Path

from experiments.models import VARIANTS

# Model ids of this project -> row names of the paper's tables.
PAPER_MODELS = {name: each.paper for name, each in VARIANTS.items() if each.paper}
NONE = float("nan")


def paper_score(
    title: str, model: str, level: float = 0.0, *, corruption: str = "gaussian"
) -> float:
    """Returns the paper's score on a task, a suite or an evaluation set.

    The paper's text adds noise to the sum of token and position embeddings, its released program
    after the embedding LayerNorm. The paper states σ, and no SNR.

    Args:
        title: Name in the paper's tables, e.g. `"SST-2"` or `"AdvSST-2"`, or `"glue"` or
            `"superglue"` for the mean over a suite. The ablations of Table 3 have suites only.
        model: Model id, or a row name of the paper.
        level: σ of the noise, or the share of the words under typos; 0 for clean inputs.
        corruption: `"gaussian"` (Tables 2, 3, 5 to 10, 13), `"misspelling"`, `"char_swap"`,
            `"textbugger"` or `"hotflip"` (Table 12), `"none"` for an evaluation set (Table 11).
    """
    name = PAPER_MODELS.get(model, model)
    return _scores().get((title, name, float(level), corruption), NONE)


def paper_lead(title: str, ours: str, theirs: str, level: float, **corruption: str) -> float:
    """The paper's difference of two models; arguments as in `paper_score`."""
    return paper_score(title, ours, level, **corruption) - paper_score(
        title, theirs, level, **corruption
    )


def paper_setting(title: str, parameter: str, value: float, level: float) -> float:
    """What the paper reports for Robertha with one hyperparameter changed (Tables 21 to 26).

    Args:
        title: `"MRPC"` or `"BoolQ"`.
        parameter: `"esr_target"`, `"esr_weight"` or `"beta"`.
        value: Its value. A target of 1 stands for the paper's 5 (MRPC) and 50 (BoolQ).
        level: σ of the noise, 0 for clean inputs.
    """
    return _settings().get((title, parameter, float(value), float(level)), NONE)


@functools.cache
def _scores() -> dict[tuple[str, str, float, str], float]:
    """(title, paper's model name, level, corruption) -> score; blank fields are references."""
    return {
        (
            row["benchmark"] if row["task"] == "average" else row["task"],
            row["model"],
            float(row["level"] or 0),
            row["corruption"],
        ): float(row["mean"])
        for row in _rows("paper_scores.csv")
        if row["mean"]
    }


@functools.cache
def _settings() -> dict[tuple[str, str, float, float], float]:
    """(task title, parameter, value, σ) -> score."""
    names = {"alpha": "esr_target", "lambda_esr": "esr_weight", "beta": "beta"}
    settings = {}
    for row in _rows("paper_hyperparameters.csv"):
        parameter, value = names[row["parameter"]], float(row["value"])
        value = min(value, 1.0) if parameter == "esr_target" else value
        settings[row["task"], parameter, value, float(row["sigma"])] = float(row["score"])
    return settings


def _rows(name: str) -> Iterator[dict[str, str]]:
    with open(Path(__file__).with_name(name), encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
