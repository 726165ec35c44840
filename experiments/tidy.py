"""One tidy frame: a row is one score of one trained model under one condition.

Every experiment stores `results.csv` in this schema. This module computes what pages and figures
show: means over seeds, paired differences, intervals and verdicts.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

from hopfax.train.metrics import bootstrap as bootstrap

CONDITION = ["corruption", "site", "protocol", "level"]
CELL = ["task", "model", "denoiser", *CONDITION]
# First columns of results.csv.
COLUMNS = (
    "task", "model", "denoiser", "corruption", "level", "site", "seed", "metric", "score",
    "num_examples", "snr_db",
)  # fmt: skip
CLAIMS = ("subject", "claim", "paper", "mean", "low", "high", "verdict")  # of a page's verdicts
CHECKSUM = "results.csv.sha256"  # beside results.csv in runs, as sha256sum writes it
CONFIDENCE = 0.95
# With two seeds, Student's interval is very wide, or has no width by accident.
MIN_SEEDS = 3

Verdict = Literal["holds", "smaller", "no difference", "reversed", "too weak to tell", "n/a"]


def read(source: str | Path, *, run: str | None = None) -> pd.DataFrame:
    """Reads results, one row per measurement; without noise, corruption is "none" and level 0.

    `source` is the folder `runs/NAME/ID`, or a file of published results, of which `run` is taken.

    Raises:
        FileNotFoundError: The folder has no `results.csv`.
        ValueError: It differs from its checksum, or lacks a column, the run, or a score.
    """
    path = Path(source) if Path(source).suffix == ".csv" else Path(source) / "results.csv"
    checksum = path.with_name(CHECKSUM)
    content, expected = path.read_bytes(), ""
    with contextlib.suppress(FileNotFoundError):  # another process may be writing both
        expected = checksum.read_text()
    if expected and hashlib.sha256(content).hexdigest() not in expected:
        raise ValueError(
            f"{path} differs from its checksum: repeat the run's command to write it again, or "
            f"delete {CHECKSUM} to read it as it is"
        )
    names = ["run", "task", "model", "denoiser", "corruption", "site", "protocol", "metric"]
    text = dict.fromkeys(names, str)
    frame = pd.read_csv(io.BytesIO(content), dtype=text, keep_default_na=False, na_values=[""])
    if run is not None and (frame := frame[frame["run"] == run].reset_index(drop=True)).empty:
        raise ValueError(f"{path} has no run {run}")
    if missing := {"task", "model", "corruption", "level", "metric", "score"} - set(frame):
        raise ValueError(f"{path}: no column {', '.join(sorted(missing))}")
    if frame.score.isna().any():
        line = int(np.flatnonzero(frame.score.isna())[0]) + 2
        raise ValueError(f"{path}, line {line}: score must be a number; delete the line and rerun")
    for name in ("corruption", "site", "protocol"):
        frame[name] = frame[name].fillna("") if name in frame else ""
    frame["denoiser"] = frame.denoiser.fillna("none") if "denoiser" in frame else "none"
    frame["level"] = frame.level.fillna(0.0).astype(float)
    clean = frame.corruption.isin(["none", ""]) & (frame.level == 0)
    frame.loc[clean, CONDITION] = ["none", "", "", 0.0]
    return frame


def scores(frame: pd.DataFrame, metric: str = "score") -> pd.DataFrame:
    """Returns a metric, mean over noise draws; "score" is on the papers' scale from 0 to 100."""
    kept = frame[frame.metric == metric]
    keys = [name for name in ("run", *CELL, "seed") if name in kept]
    means = [name for name in ("score", "snr_db", "num_examples") if name in kept]
    return kept.groupby(keys, sort=False, as_index=False)[means].mean()


def select(scores: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """Returns the rows in which every named column has the value, or one of the listed values."""
    for name, value in values.items():
        several = value if isinstance(value, (list, tuple)) else [value]
        scores = scores[scores[name].isin(several)]
    return scores


def average(scores: pd.DataFrame, *over: str) -> pd.DataFrame:
    """Returns the unweighted mean over columns such as "level", for each seed.

    Seeds that lack values that other models have are dropped: all means cover the same values.
    """
    values = ("score", "snr_db", "num_examples")
    keys = [name for name in scores if name not in (*values, *over)]
    groups = scores.groupby(keys, sort=False, as_index=False)
    means = groups[[name for name in values if name in scores]].mean()
    parts = groups.size()
    shared = [key for key in keys if key not in ("seed", "model")]
    every = scores[[*shared, *over]].drop_duplicates().groupby(shared, as_index=False).size()
    most = parts[shared].merge(every, how="left")["size"]
    return means[parts["size"].to_numpy() == most.to_numpy()].reset_index(drop=True)


def difference(scores: pd.DataFrame, **baseline: Any) -> pd.DataFrame:
    """Returns other rows minus their partners in a baseline such as `model="tinybert"`, by seed.

    With `model="tinybert", site="token"`, the score at one site is subtracted at every site.
    """
    if unknown := set(baseline) - set(scores):
        raise ValueError(f"no column {', '.join(sorted(unknown))}; choose among {list(scores)}")
    is_baseline = np.logical_and.reduce([scores[name] == baseline[name] for name in baseline])
    keys = [n for n in ("run", *CELL, "seed") if n in scores and n not in baseline]
    return paired(scores[~is_baseline], scores[is_baseline], on=keys)


def paired(ours: pd.DataFrame, theirs: pd.DataFrame, *, on: Sequence[str]) -> pd.DataFrame:
    """Returns `ours` minus the scores of `theirs` that match `on`; rows without are dropped."""
    partner = theirs.set_index(list(on)).score.rename("partner")
    joined = ours.join(partner, on=list(on), how="inner", validate="many_to_one")
    joined["score"] -= joined.partner
    return joined.drop(columns="partner").reset_index(drop=True)


def summarize(scores: pd.DataFrame) -> pd.DataFrame:
    """Returns the mean over seeds, its standard deviation (n - 1) and Student's 95 % interval.

    The interval is of the mean over training seeds, with the test rows fixed. It is nan for fewer
    than `MIN_SEEDS` seeds, and where all seeds agree exactly, which on few test rows is no evidence
    of zero variance.
    """
    keys = [name for name in scores if name not in ("seed", "score", "snr_db", "num_examples")]
    extra = {"snr_db": ("snr_db", "mean")} if "snr_db" in scores else {}
    table = scores.groupby(keys, sort=False, as_index=False).agg(
        mean=("score", "mean"), std=("score", "std"), num_seeds=("score", "size"), **extra
    )
    count = table.num_seeds
    half = stdtrit(np.maximum(count - 1, 1), (1 + CONFIDENCE) / 2) * table["std"] / np.sqrt(count)
    half = half.where((count >= MIN_SEEDS) & (table["std"] > 1e-9))
    return table.assign(low=table["mean"] - half, high=table["mean"] + half)


def sampling_error(accuracy: Any, num_rows: Any) -> Any:
    """Returns the standard error, in points, of an accuracy in percent on a sample of rows."""
    share = accuracy / 100
    return 100 * np.sqrt(share * (1 - share) / num_rows)


def widened(summary: pd.DataFrame, errors: Any) -> pd.DataFrame:
    """Returns intervals of `summarize` that include another, independent standard error."""
    half = np.hypot((summary.high - summary.low) / 2, 1.96 * errors)
    return summary.assign(low=summary["mean"] - half, high=summary["mean"] + half)


def with_rows(table: pd.DataFrame, frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Widens intervals over seeds, if any, from `summarize`, by those over rows in results.csv."""
    rows = frame[frame.metric == metric].groupby(CELL, sort=False)[["low", "high"]].first()
    table = table.join(rows.add_suffix("_rows"), on=CELL)
    # Seeds that agree have no interval of their own.
    table = table.assign(**{end: table[end].fillna(table["mean"]) for end in ("low", "high")})
    return widened(table, (table.high_rows - table.low_rows) / 2 / 1.96)


def verdict(low: float, high: float, effect: float) -> Verdict:
    """Compares the interval of a difference with the effect, not 0, that a paper reports.

    It is "holds" if the interval is on the effect's side of zero and its middle reaches half of the
    effect, "smaller" if it is on that side and its middle does not, "no difference" if it contains
    zero and excludes half of the effect, "reversed" on the other side of zero, "too weak to tell"
    if it contains both, "n/a" without an interval or an effect.
    """
    if np.isnan([low, high, effect]).any():
        return "n/a"
    low, high = sorted((low * np.sign(effect), high * np.sign(effect)))
    half = abs(effect) / 2
    if low > 0:
        return "holds" if (low + high) / 2 >= half else "smaller"
    if high < 0:
        return "reversed"
    return "no difference" if high < half else "too weak to tell"


def rejected(table: pd.DataFrame) -> pd.Series:
    """Whether each mean of `summarize` differs from 0, with Holm's correction for all intervals."""
    rows = table[table.low.notna() & table.high.notna()]
    degrees, half = rows.num_seeds - 1, (rows.high - rows.low) / 2
    t = rows["mean"].abs() / half * stdtrit(degrees, (1 + CONFIDENCE) / 2)
    p = pd.Series(2 * stdtr(degrees, -t), rows.index).sort_values(kind="stable")
    below = (p * np.arange(len(p), 0, -1) < 1 - CONFIDENCE).cummin()
    return below.reindex(table.index, fill_value=False)


def clear(differences: pd.DataFrame) -> int:
    """The number of intervals that exclude zero."""
    return int(((differences.low > 0) | (differences.high < 0)).sum())


def ordered(table: pd.DataFrame, column: str, known: Sequence[str]) -> pd.DataFrame:
    """Returns the rows sorted by a column: known values first and in their order, then others."""
    order = list(dict.fromkeys([*known, *table[column]]))
    return table.sort_values(column, key=lambda values: values.map(order.index), kind="stable")
