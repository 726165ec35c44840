"""Does stability fall before the validation loss, and does it choose a good checkpoint?

Paper: Haris, Zhang and Yoshida (2026), Appendix J.2 and Figure 11. Claims, from single runs: along
training, stability falls to the target function's; it falls before the validation loss; it can
replace that loss in the choice of a checkpoint.

Measured on the runs of `grokking`, with S = E Σ M(X)M(Y) / E Σ M(X)² on the validation rows. The
fall of a curve is the first epoch after its maximum at which it is half-way down to its end: the
target's stability for S, the minimum for a loss, whose maximum is taken before the minimum. A lead
is the fall of a loss minus that of S, in percent of the run's steps to the target accuracy; a run
that never reaches it has none.

Rules, written before the runs, on Student's 95 % interval over seeds:

- "lead" over the validation loss; "lead over training loss"; "fall after fit", points by which S
  falls between 95 % training accuracy and the target accuracy. The paper gives signs only:
  `tidy.verdict` takes an effect of 10.
- "stability minus target" in points, at the target accuracy; "cost of choice" and "cost of lowest",
  points of validation accuracy lost if the epoch with S closest to the target's, or lowest, is
  chosen instead of that with the least validation loss. An interval inside the margins (±5; 2 for
  costs) holds, one outside does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from experiments import tidy

FITTED = 0.95  # training accuracy
EFFECTS = {"lead": 10.0, "lead over training loss": 10.0, "fall after fit": 10.0}
MARGINS = {
    "stability minus target": (-5.0, 5.0),
    "cost of choice": (-np.inf, 2.0),
    "cost of lowest": (-np.inf, 2.0),
}


def target_stability(num_classes: int, num_relevant: int, *, rho: float) -> float:
    r"""Returns E Σ f(X)f(Y) of a target function f with one-hot outputs, Y a copy by Eq. 7.

    $$(1 + (C - 1) ((1 + \rho) / 2)^k) / C$$

    Exact for modular addition (C sums, k = 2) and parity (C = 2), at any X and any size of the
    vocabulary, if f is uniform where a relevant token is no number: f's characters are products
    over the k tokens, and a redrawn token averages each to zero.
    """
    return (1 + (num_classes - 1) * ((1 + rho) / 2) ** num_relevant) / num_classes


def measurements(history: Any, target: float, reached: np.ndarray) -> dict[str, np.ndarray]:
    """The metrics above, `(runs,)`, nan for none.

    Args:
        history: `training.Epoch`.
        target: The target function's stability.
        reached: `(runs,)` epochs to the target accuracy, inf for never.
    """
    runs, epochs = np.arange(len(reached)), np.where(np.isfinite(reached), reached, np.nan)
    stability = history.agreement / history.confidence
    fit = (history.train_accuracy >= FITTED).argmax(axis=0)
    at_end = stability[np.nan_to_num(epochs, nan=1).astype(int) - 1, runs] + 0 * epochs
    fall, of_validation, of_training = (
        fall_time(curves, end)
        for curves, end in (
            (stability, target),
            (history.loss, history.loss.min(axis=0)),
            (history.train_loss, history.train_loss.min(axis=0)),
        )
    )
    best, closest, lowest = (
        100 * history.accuracy[curves.argmin(axis=0), runs]
        for curves in (history.loss, abs(stability - target), stability)
    )
    return {
        "lead": 100 * (of_validation - fall) / epochs,
        "lead over training loss": 100 * (of_training - fall) / epochs,
        "fall after fit": 100 * (stability[fit, runs] - at_end),
        "stability minus target": 100 * (at_end - target),
        "cost of choice": best - closest,
        "cost of lowest": best - lowest,
    }


def fall_time(curves: np.ndarray, end: np.ndarray | float) -> np.ndarray:
    """`(runs,)` epochs, from 0, at which curves, `(epochs, runs)`, fall half-way to `end`."""
    epochs = np.arange(len(curves))[:, None]
    peak = np.where(epochs <= curves.argmin(axis=0), curves, -np.inf).argmax(axis=0)
    half = (curves[peak, np.arange(len(peak))] + end) / 2
    met = (epochs > peak) & (curves <= half)
    return np.where(met.any(axis=0), met.argmax(axis=0), np.nan)


def claims(frame: pd.DataFrame) -> pd.DataFrame:
    """Verdicts by the rules above, `tidy.CLAIMS`; "n/a" with fewer than three seeds."""
    rows, lines = tidy.select(frame, metric=[*EFFECTS, *MARGINS]), []
    for _, row in tidy.summarize(rows[["task", "model", "metric", "seed", "score"]]).iterrows():
        low, high, paper = row.low, row.high, np.nan
        verdict = tidy.verdict(low, high, EFFECTS.get(row.metric, np.nan))
        if row.metric in MARGINS and np.isfinite(low):
            (least, most), paper = MARGINS[row.metric], 0.0
            inside, outside = least < low and high < most, low > most or high < least
            verdict = "holds" if inside else "does not hold" if outside else "too weak to tell"
        subject = f"{row.task}, {row.model}, {row.num_seeds} runs"
        lines.append((subject, row.metric, paper, row["mean"], low, high, verdict))
    return pd.DataFrame(lines, columns=[*tidy.CLAIMS])
