"""Does stability fall before the validation loss, and does it choose a good checkpoint?

Paper: Haris, Zhang and Yoshida (2026), Appendix J.2, Figure 11. Claims, from single runs: stability
falls to the target function's, before the validation loss, and chooses checkpoints as well.

Expected of `grokking`: on parity of 10 bits, no clear lead and as good a choice. In the grokking
regime, S = E Σ M(X)M(Y) / E Σ M(X)² falls while rows are memorized, to less than the target's; S
closest to it chooses an epoch that does not generalize.

The fall of a curve is the first epoch after its maximum at which it is half-way down to its end:
the target's stability for S, the minimum for a loss, whose maximum is taken before the minimum. A
lead is the fall of a loss minus that of S, in percent of the run's steps to the target accuracy; a
run that never reaches it has none.

Rules, written before the runs, on Student's 95 % interval over seeds. The paper gives only the
signs of `SIGNS`, for which `tidy.verdict` takes an effect of 10; "fall after fit" is in points of
S, from 95 % training accuracy ("fit") to the target accuracy. For `MARGINS`, an interval inside
holds, one outside does not: "stability minus target", at the target accuracy, and costs, points of
validation accuracy lost if S closest to the target's, or lowest, chooses the epoch, not the least
loss. Added with the baseline known: "lead after fit", of S from there to the target accuracy.
"""

from typing import Any

import numpy as np
import pandas as pd

from experiments import tidy

MEASURED_RHO = 0.5  # Figure 11's correlation
SIGNS = ("lead", "lead over training loss", "lead after fit", "fall after fit")
COST = (-np.inf, 2.0)
MARGINS = {"stability minus target": (-5, 5), "cost of closest": COST, "cost of lowest": COST}


def target_stability(num_classes: int, num_relevant: int, rho: float = MEASURED_RHO) -> float:
    r"""Returns E Σ f(X)f(Y) of a target function f with one-hot outputs, Y a copy by Eq. 7.

    $$(1 + (C - 1) ((1 + \rho) / 2)^k) / C$$

    Exact for modular addition (C sums, k = 2) and parity (C = 2), at any X and vocabulary, if f is
    uniform where a relevant token is no number: a redrawn token averages f's characters to zero.
    """
    return (1 + (num_classes - 1) * ((1 + rho) / 2) ** num_relevant) / num_classes


def measurements(history: Any, target: float, reached: np.ndarray) -> dict[str, np.ndarray]:
    """The metrics above, `(runs,)`, nan for none; `reached` has epochs, inf for never."""
    runs, epochs = np.arange(len(reached)), np.where(np.isfinite(reached), reached, np.nan)
    stability = history.agreement / history.confidence
    met = history.train_accuracy >= 0.95
    fit = np.where(met.any(axis=0), met.argmax(axis=0), np.nan)
    at_fit, at_end = (
        stability[np.nan_to_num(each).astype(int), runs] + 0 * each for each in (fit, epochs - 1)
    )
    fall = fall_time(stability, target)
    of_loss, of_training = map(fall_time, (history.loss, history.train_loss))
    after = np.where(np.arange(len(stability))[:, None] < fit, at_fit, stability)
    best, closest, lowest = (
        100 * history.accuracy[each.argmin(axis=0), runs]
        for each in (history.loss, abs(stability - target), stability)
    )
    return {
        "fit": 100 * (fit + 1) / epochs,
        "lead": 100 * (of_loss - fall) / epochs,
        "lead over training loss": 100 * (of_training - fall) / epochs,
        "lead after fit": 100 * (of_loss - fall_time(after, at_end)) / epochs + 0 * fit,
        "fall after fit": 100 * (at_fit - at_end),
        "stability minus target": 100 * (at_end - target),
        "cost of closest": best - closest,
        "cost of lowest": best - lowest,
    }


def fall_time(curves: np.ndarray, end: np.ndarray | float | None = None) -> np.ndarray:
    """`(runs,)` epochs, from 0, at which `(epochs, runs)` fall half-way; nan for one that rises.

    Without an end, curves are losses, which end at their minimum.
    """
    epochs, last = np.arange(len(curves))[:, None], len(curves)
    if end is None:
        end, last = curves.min(axis=0), curves.argmin(axis=0)
    peak = np.where(epochs <= last, curves, -np.inf).argmax(axis=0)
    top = curves[peak, np.arange(len(peak))]
    met = (epochs > peak) & (curves <= (top + end) / 2) & (top > end)
    return np.where(met.any(axis=0), met.argmax(axis=0), np.nan)


def claims(frame: pd.DataFrame) -> pd.DataFrame:
    """Verdicts by the rules above, `tidy.CLAIMS`; "n/a" with fewer than three seeds."""
    rows, lines = tidy.select(frame, metric=[*SIGNS, *MARGINS]), []
    for _, row in tidy.summarize(rows[["task", "model", "metric", "seed", "score"]]).iterrows():
        low, high, paper = row.low, row.high, np.nan
        if row.metric in MARGINS and row.num_seeds >= tidy.MIN_SEEDS:  # seeds may agree exactly
            low, high = (row["mean"] if np.isnan(end) else end for end in (low, high))
        verdict = tidy.verdict(low, high, 10.0)
        if row.metric in MARGINS and verdict != "n/a":
            (least, most), paper = MARGINS[row.metric], 0.0
            inside, outside = least < low and high < most, low > most or high < least
            verdict = "holds" if inside else "does not hold" if outside else "too weak to tell"
        subject = f"{row.task}, {row.model}, {row.num_seeds} runs"
        lines.append((subject, row.metric, paper, row["mean"], low, high, verdict))
    return pd.DataFrame(lines, columns=[*tidy.CLAIMS])
