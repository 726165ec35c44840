"""The Robertha paper's own scores (Tables 2, 3, 5 to 13), 0 to 100, nan where it has none."""

from __future__ import annotations

import csv
import functools
from pathlib import Path

from experiments.models import VARIANTS


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
    name = VARIANTS[model].paper if model in VARIANTS else None
    return _scores().get((title, name or model, float(level), corruption), float("nan"))


@functools.cache
def _scores() -> dict[tuple[str, str, float, str], float]:
    """(title, paper's model name, level, corruption) -> score; blank fields are references."""
    with open(Path(__file__).with_name("paper_scores.csv"), encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["mean"]]
    return {
        (
            row["benchmark"] if row["task"] == "average" else row["task"],
            row["model"],
            float(row["level"] or 0),
            row["corruption"],
        ): float(row["mean"])
        for row in rows
    }
