"""Tables of the pages `noise_stability` and `speed`, whose rows templates take by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from experiments import tidy
from experiments.noise_stability import encoder, indicator, influence, outcomes, tail_mass, theory
from experiments.pages.values import RESULTS, WORDS, frame, runs
from experiments.robertha import attractors, convergence, norms, spectra

# Percent of steps that the paper's regularizer saves; on addition, 4500 to 3300.
CLAIMED = {
    **dict.fromkeys(("addition", "grokking"), 100 * (1 - 33 / 45)),
    **dict.fromkeys(("parity", "parity_earlier", "parity_10bits", "parity_10bits_earlier"), 35),
}


@functools.cache
def rows_of(suite: str, run: str = "") -> pd.DataFrame:
    """Published rows of a command, of one run or of all."""
    rows = pd.read_csv(RESULTS / "data" / f"{suite}.csv")
    return rows[rows["run"] == run] if run else rows


def ends(run: str) -> pd.DataFrame:
    """Influence of both ends of a text relative to its middle."""
    table = influence.ratios(rows_of("influence", run))
    return table.assign(part=table.part.str.split(" ").str[0], run=run)


def raised_layers() -> pd.DataFrame:
    """Influence of both ends on the layers of MiniLM whose states have a U-shape."""
    layers = tidy.select(rows_of("influence", "minilm"), site="layer", model="trained")
    layers = layers.assign(weights="trained", mean=layers.score)
    return layers[layers.groupby(["corruption", "level"]).low.transform("min") > 1]


def savings() -> pd.DataFrame:
    """Percent of steps and of compute that arms of grokking save against the baseline."""
    steps = tidy.select(rows_of("grokking"), metric="steps").sort_values(["run", "seed"])
    parts = []
    for (run, arm), rows in steps.groupby(["run", "model"], sort=False):
        baseline = tidy.select(steps, run=run, model="baseline")
        for unit, paper in (("steps", CLAIMED[str(run)]), ("compute", np.nan)):
            saved = outcomes.saved(rows, baseline, compute=unit == "compute")
            verdict = tidy.verdict(saved.low, saved.high, paper)
            parts.append((run, unit, arm, *saved, paper, verdict))
    columns = ["run", "unit", "model", "mean", "low", "high", "paper", "verdict"]
    return pd.DataFrame(parts, columns=columns).replace({"verdict": {"no difference": "not found"}})


def encoders(minus: str = "") -> pd.DataFrame:
    """Means over seeds, shares in percent, of trained encoders, or of differences from one."""
    rows = tidy.select(rows_of("encoder-stability"), corruption="gaussian").fillna({"level": -1})
    scale = rows.metric.map({"points lost": 1.0}).fillna(100.0)
    numbers, keys = ["score", "standard_error", "low", "high"], ["run", "arm", "metric", "level"]
    rows[numbers] = rows[numbers].mul(scale, axis=0)
    if not minus:
        return encoder.intervals(rows, [*keys, "model"])
    rows = rows[[*keys, "model", "seed", "score"]]
    return tidy.summarize(tidy.paired(rows, rows[rows.model == minus], on=[*keys, "seed"]))


# Run's suite -> its claims about what the parts of Robertha do.
CLAIMS = {
    "norms": norms.claims, "spectra": spectra.claims, "attractors": attractors.claims,
    "convergence": convergence.claims, "steps": convergence.claims_of_steps,
}  # fmt: skip


def mechanism() -> pd.DataFrame:
    """Claims of the published runs on tokens, keys, updates and attractors."""
    parts = [
        claims(frame(suite, run)).assign(suite=suite)
        for suite, claims in CLAIMS.items()
        for run in runs(suite)
    ]
    return pd.concat(parts).replace({"verdict": WORDS})


MODELS = {"minilm": "MiniLM", "smollm2": "SmolLM2"}  # whose influence was measured
TABLES: dict[str, Callable[[], pd.DataFrame]] = {
    "mechanism": mechanism,
    "theory": lambda: rows_of("theory"),
    "formulas": lambda: theory.distances(rows_of("theory")),
    "ends": lambda: pd.concat(map(ends, MODELS)),
    "juntas": lambda: influence.juntas(rows_of("influence", "minilm")),
    "influential": lambda: pd.concat(
        influence.influential(rows_of("influence", run)).assign(run=run) for run in MODELS
    ),
    "influence": lambda: pd.concat(
        influence.claims(rows_of("influence", run)).assign(run=run) for run in MODELS
    ),
    "raised layers": raised_layers,
    "bounds": lambda: tail_mass.bounds(rows_of("tail-mass", "minilm")),
    "bounds, fine-tuned": lambda: tail_mass.bounds(rows_of("tail-mass", "minilm_sst2")),
    "encoders": encoders,
    "changes": lambda: encoders(minus="pretrained"),
    "savings": savings,
    "indicator": lambda: indicator.claims(rows_of("grokking")),
    "language": lambda: tidy.summarize(
        rows_of("language-model")[["model", "metric", "seed", "score"]]
    ),
    "speed": lambda: rows_of("speed").sort_values("median"),
}


@functools.cache
def table(name: str) -> pd.DataFrame:
    """A table by its name."""
    return TABLES[name]()


def lines(name: str, /, **where: Any) -> pd.DataFrame:
    """Rows of a table that have these values."""
    return tidy.select(table(name), **where)


def line(name: str, /, **where: Any) -> pd.Series:
    """The only row of a table with these values."""
    (row,) = (each for _, each in lines(name, **where).iterrows())
    return row
