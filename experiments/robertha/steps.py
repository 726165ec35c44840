"""What the maximum number of Hopfield updates T gains and costs on the same trained weights.

Verdicts: points gained over T = 0, paired by seed, and time over that of T = 0, minus 1, are
compared with Table 4 by `tidy.verdict`, whose margin is half of the paper's value. Points gained
without noise, which the paper does not list, only undo the change from training to T = 0.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from experiments import cells, gaussian, report, tidy
from experiments.cells import Cell
from experiments.conditions import Condition, Gaussian
from experiments.robertha.convergence import Iterated
from experiments.robertha.spectra import ON, judged, page
from experiments.settings import Noise
from hopfax.data import evenly_spaced

BATCHES = (1, 32)
REPEATS = {"smoke": 2, "laptop": 15, "paper": 15}
# Table 4: σ -> T, points gained, and time over that without iteration.
TABLE4 = {0.5: (5, 11.1, 1.25), 1.0: (10, 21.7, 1.80), 2.0: (20, 20.6, 2.52), 5.0: (30, 15.9, 3.54)}


@dataclass(frozen=True, kw_only=True)
class Steps(Iterated):
    """What do more Hopfield updates gain under noise, and what do they cost?

    Paper: Podasca and Das (2026), Table 4. Claim: T = 5, 10, 20 and 30 updates gain 11 to 22 points
    at σ = 0.5, 1, 2 and 5, and take 1.25 to 3.5 times as long.

    Command: `python -m experiments steps --task sst2 --data-dir DIR`, with the flags of the run
    whose models to test; they are not trained again.

    Expected: gains are below the paper's, and as large without noise. Beyond convergence, a larger
    T changes neither scores nor times, as the loop ends.

    Times are those of the encoder on 32 clean texts, one by one and together, padded to the
    longest; models take turns.
    """

    NAME = "steps"
    REPRODUCES = "Robertha, Table 4: points gained and time taken by T Hopfield updates"
    SMOKE = ("robertha",)

    model: tuple[str, ...] = ("robertha", "robertha-no-esr")
    noise: Noise = Noise(sites=("embedding",), protocols=("sigma",), noise_draws=1)
    steps: tuple[int, ...] = (0, 1, 2, 5, 10, 20, 30, 50)
    """Maximum numbers of updates T; 0 is always tested."""

    def rows(self, cell: Cell, condition: Condition, *, model: str) -> Iterable[dict[str, Any]]:
        """Scores at every T, and without noise times."""
        models = {steps: cells.with_steps(cell, steps) for steps in sorted({0, *self.steps})}
        row: dict[str, Any] = {}
        for steps, each in models.items():
            for row in super().rows(each, condition, model=model):
                yield {**row, "T": steps}
        for batch in BATCHES if condition == Gaussian() else ():
            table = times([*models.values()], batch, REPEATS[self.budget])
            for steps, column in zip(models, table.T, strict=True):
                row = {**row, "T": steps, "seed": cell.spec.seeds[0]}
                for metric, values in (("milliseconds", column), ("time", column / table[:, 0])):
                    draw = partial(np.take, values)
                    low, high = tidy.bootstrap(
                        len(values), lambda turns, d=draw: np.median(d(turns))
                    )
                    measured = {"score": np.median(values), "low": low, "high": high}
                    yield {**row, "metric": f"{metric}, batch {batch}", **measured}

    def page(self, folder: Path) -> report.Page:
        """Scores and times against T, and claims."""
        frame = tidy.read(folder)
        table = tidy.summarize(by_steps(frame, "score"))
        noise = zip(table.protocol, table.level, strict=True)
        panels = [gaussian.noise_label(*each) for each in noise]
        table = table.assign(panel=panels, T=table["T"].map("{:.0f}".format), metric="score")
        times = frame[frame.metric.str.startswith("milliseconds")].rename(columns={"score": "mean"})
        grid = report.grid(
            times.assign(line=times.task + ", " + times.model + ", " + times.metric),
            "line", "T", "Times per text", cell=partial(report.bracketed, digits=2),
        )  # fmt: skip
        whole = page("Updates, points and times", table, claims(frame), x="T", xlabel="T")
        return replace(whole, tables=[*whole.tables, grid])


def times(models: Sequence[Cell], batch: int, repeats: int) -> np.ndarray:
    """Returns milliseconds per text of the first seed's encoders, (repeats, models), in turns."""
    test = models[0].data.test
    ids, lengths = (evenly_spaced(each, BATCHES[-1]) for each in (test.ids, test.lengths))
    ids, lengths = ids[:, 0, : lengths.max()], lengths[:, :1]
    params = jax.tree.map(lambda leaf: leaf[0], models[0].params)

    def run(cell: Cell) -> float:
        start = time.perf_counter()
        for first in range(0, len(ids), batch):
            part = slice(first, first + batch)
            mask = np.arange(ids.shape[1]) < lengths[part]
            jax.block_until_ready(cell.model.apply(params, ids[part], mask))
        return 1000 * (time.perf_counter() - start) / len(ids)

    return np.array([[run(cell) for cell in models] for _ in range(repeats + 1)])[1:]  # compiled


def by_steps(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Returns `tidy.scores` of every T."""
    parts = [tidy.scores(rows, metric).assign(T=steps) for steps, rows in frame.groupby("T")]
    return pd.concat(parts)


def claims(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the paper's claims beside ours with intervals and verdicts, see the module."""
    scores = by_steps(frame, "score")
    gains = tidy.paired(scores[scores["T"] > 0], scores[scores["T"] == 0], on=["model", *ON])
    gains = tidy.summarize(gains.assign(metric="points gained"))
    ratios = frame[frame.metric.str.startswith("time, ")].assign(mean=frame.score)
    parts = []
    for sigma, (steps, points, ratio) in TABLE4.items():
        for level in (0.0, sigma):
            at = gains[(gains["T"] == steps) & (gains.level == level)]
            parts.append(
                at.assign(paper=points if level else np.nan, verdict=None if level else "n/a")
            )
        at = ratios[ratios["T"] == steps]
        ends = zip(at.low - 1, at.high - 1, strict=True)
        verdict = [tidy.verdict(*each, ratio - 1) for each in ends]
        parts.append(at.assign(paper=ratio, verdict=verdict, level=np.nan))
    table = pd.concat(parts)
    names = zip(table["T"], table.metric, strict=True)
    return judged(table.assign(claim=[f"T = {steps:.0f}: {metric}" for steps, metric in names]))
