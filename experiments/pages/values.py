"""Published results: scores, differences and verdicts by suite, run and model.

    from experiments.pages import values
    values.lead("robustness", "sst2", "robertha", "tinybert", snr_db=6, paper=24.9)

A cell is a model of a run under one condition: columns of `tidy.CELL`, where `snr_db` or `sigma`
stand for noise on the tokens, the same for each text or for all models; without noise by default.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments import gaussian, report, tidy
from experiments.memory import smoothing
from hopfax.hopfield import capacity_snr_db

RESULTS = Path(__file__).parents[1] / "results"
NOT_LEARNED, AT_BASELINE, UNTESTED = "not learned", "at baseline", "untested"
WORDS = {"no difference": "not found", "smaller": "smaller than claimed", "n/a": "no interval"}
NEAR = 1.0  # points that a kept score may lose
# Run of `robustness` that has a task.
GLUE = dict.fromkeys(("cola", "mrpc", "rte", "wnli"), "seven_tasks") | {
    task: task for task in ("sst2", "stsb", "qqp", "mnli", "qnli")
}


@functools.cache
def frame(suite: str, run: str) -> pd.DataFrame:
    """All rows of a published run, see `tidy.read`."""
    return tidy.read(RESULTS / "data" / f"{suite}.csv", run=run)


@functools.cache
def scores(suite: str, run: str) -> pd.DataFrame:
    """Scores of a published run, see `tidy.scores`."""
    return tidy.scores(frame(suite, run))


def cell(
    suite: str, run: str, model: str, *, snr_db: Any = None, sigma: Any = None, **where: Any
) -> pd.DataFrame:
    """Scores of a cell, one a seed."""
    rows, at = scores(suite, run), {"corruption": "none", "level": 0.0}
    if sigma is not None:
        at = {"site": "token", "protocol": "sigma", "level": sigma}
    if snr_db is not None:
        at = {"site": "token", "protocol": "matched"}
        rows = rows[np.isclose(rows.level, 10 ** (-snr_db / 20), rtol=0.005)]
    return tidy.select(rows, **{"model": model, "denoiser": "none", **at, **where})


def score(suite: str, run: str, model: str, **at: Any) -> float:
    """Mean of a cell over seeds, nan if it was not measured."""
    return float(cell(suite, run, model, **at).score.mean())


def glue(model: str, **at: Any) -> float:
    """Mean over the nine tasks of GLUE, nan for a model that was not tested on all."""
    means = [score("robustness", run, model, task=task, **at) for task, run in GLUE.items()]
    return float(np.mean(means))


@functools.cache
def unlearned(suite: str, run: str) -> set[tuple[str, str]]:
    """Tasks and models that are not well above the majority baseline without noise."""
    rows = tidy.select(scores(suite, run), denoiser="none")
    return {*gaussian.not_learned(rows, gaussian.constants(frame(suite, run))).index}


def is_learned(suite: str, run: str, task: str, model: str) -> bool:
    """Whether a model is well above the majority baseline without noise."""
    return (task, model) not in unlearned(suite, run)


def lead(
    suite: str, run: str, model: str, over: str, *, paper: float = np.nan, than: Any = (), **at: Any
) -> pd.Series:
    """Difference from another model, whose condition may differ, and a verdict on the paper's."""
    untested = {"mean": np.nan, "low": np.nan, "high": np.nan, "verdict": UNTESTED, "bold": False}
    if run not in runs(suite):
        return pd.Series({**untested, "paper": paper})
    ours, theirs = cell(suite, run, model, **at), cell(suite, run, over, **{**at, **dict(than)})
    pairs = tidy.paired(ours, theirs, on=["seed"])[["seed", "score"]]
    if pairs.empty:
        return pd.Series({**untested, "paper": paper})
    summary, both = tidy.summarize(pairs.assign(task="")), pd.concat([ours, theirs])
    sets = both.task.str.contains(":").any()
    if sets or "corruption" in at:  # so few rows that the interval includes their choice
        error = tidy.sampling_error(both.score.mean(), both.num_examples.max())
        summary = tidy.widened(summary, 2**0.5 * error)
    row, constants = summary.iloc[0], gaussian.constants(frame(suite, run))
    verdict = tidy.verdict(row.low, row.high, paper)
    verdict = WORDS.get(verdict, verdict)
    if all(len(gaussian.near_baseline(each, constants)) for each in (ours, theirs)):
        verdict = AT_BASELINE
    if {*zip(both.task, both.model, strict=True)} & unlearned(suite, run) and not sets:
        verdict = NOT_LEARNED
    bold = verdict not in (NOT_LEARNED, AT_BASELINE)
    return pd.concat([row, pd.Series({"verdict": verdict, "bold": bold, "paper": paper})])


@functools.cache
def claims() -> pd.DataFrame:
    """Differences that the Robertha paper reports beside ours: `claims.csv` with `lead`."""
    table = pd.read_csv(Path(__file__).with_name("claims.csv"))
    cells = table.drop(columns=["group", "subject", "claim", "source"])
    cells["than"] = cells.than.map({"clean": {"snr_db": None, "sigma": None}})
    leads = pd.DataFrame([lead(**row.dropna()) for _, row in cells.iterrows()])
    return table.drop(columns="paper").join(leads.drop(columns="task"))


def surviving() -> pd.DataFrame:
    """Claims that differ from zero after Holm's correction for all comparisons."""
    return claims()[tidy.rejected(claims()) & claims().bold.astype(bool)]


def kept(suite: str, run: str, model: str, *, than: str = "", **where: Any) -> float:
    """Lowest tested SNR in dB down to which the mean is near a clean score; inf if none."""
    where = {"model": model, "denoiser": "none", "protocol": "matched", **where}
    means = tidy.select(scores(suite, run), **where).groupby("level").score.mean()
    where |= {"model": than or model, "denoiser": "none", "protocol": ""}
    lost = means.index[means <= score(suite, run, **where) - NEAR].min()
    near = means.index[~(means.index >= lost)]
    return float(-20 * np.log10(near.max())) if len(near) else np.inf


def value(suite: str, run: str, **where: Any) -> pd.Series:
    """Means over the rows with these values: scores, ends of intervals and Shannon limits."""
    rows = pd.read_csv(RESULTS / "data" / f"{suite}.csv")
    rows = rows.rename(columns={"score": "mean", "median": "mean"})
    rows = tidy.select(rows, run=run, **where)
    return rows.reindex(columns=["mean", "low", "high", "limit"]).mean()


def gain(run: str, model: str, snr_db: float) -> pd.Series:
    """What memory adds to a trained model, with an interval over seeds and test rows."""
    where = {"denoiser": "memory", "protocol": "matched", "draw": 0}
    rows = tidy.select(frame("memory-trained", run), metric="gain", model=model, **where)
    rows = rows[np.isclose(rows.level, 10 ** (-snr_db / 20), rtol=0.005)]
    table = tidy.summarize(tidy.scores(rows, "gain"))
    return tidy.with_rows(table, rows, "gain").iloc[0]


def differences(suite: str, run: str, over: str, **where: Any) -> pd.DataFrame:
    """All differences from a model, with intervals."""
    rows = tidy.select(scores(suite, run), **where)
    return tidy.summarize(tidy.difference(rows, model=over))


def recovered(prior: str, task: str, share: float) -> float:
    """The SNR in dB at which a share of the tokens is recovered with a prior, interpolated."""
    where = {"model": prior, "metric": "recovered", "protocol": "matched"}
    rows = tidy.select(frame("memory-language", task), **where)
    means = rows.groupby("snr_db")["score"].mean().sort_values()
    return float(np.interp(share, means, means.index, left=np.nan, right=np.nan))


def more(model: str, over: str, snr_db: float) -> pd.Series:
    """Percent of MRPC's tokens that a decoder recovers more than another, paired by draw."""
    where = {"metric": "recovered", "protocol": "matched", "snr_db": snr_db}
    rows = tidy.select(frame("memory-language", "mrpc"), **where)
    wide = rows.pivot(index="seed", columns="model", values="score")
    each = (wide[model] - wide[over]).rename("score").reset_index()
    return tidy.summarize(each.assign(task="mrpc")).iloc[0]


def shannon(prior: str, task: str) -> float:
    """The Shannon limit in dB of a prior of a language model's tokens."""
    rows: Any = tidy.select(frame("memory-language", task), metric="bits", model=prior)
    return float(capacity_snr_db(rows.score.iloc[0], width=int(rows.width.iloc[0])))


@functools.cache
def smoothed() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Radii and shares of certified texts by system, each at its best SNR."""
    return smoothing.at_best(pd.read_csv(RESULTS / "data" / "memory-smoothing.csv"))


def certified(system: str) -> pd.Series:
    """The radius that half of the texts reach with the right label, at the best SNR."""
    return tidy.select(smoothed()[0], model=system).iloc[0]


def runs(suite: str) -> dict[str, Any]:
    """Provenance of a command's published runs."""
    return json.loads((RESULTS / "runs.json").read_text(encoding="utf-8")).get(suite, {})


def command(suite: str, run: str) -> str:
    """The command of a published run."""
    return runs(suite)[run]["command"][0]


def cost(suite: str, *names: str) -> str:
    """Minutes that runs take on two cores, or else the machines of the published runs."""
    entries = [runs(suite)[name] for name in names]
    minutes = sum(each.get("minutes", np.nan) for each in entries)
    machines = {session["machine"] for each in entries for session in each["sessions"]}
    devices = {machine.removesuffix(", cpu").rpartition(", ")[2] for machine in machines}
    if np.isnan(minutes):
        return f"not recorded; {report.joined(sorted(devices))}"
    return f"{minutes:.0f} min"


def number(value: float, digits: int = 1) -> str:
    """A number, or a dash for one that was not measured."""
    return report.number(value, digits) if np.isfinite(value) else "–"


def snr(value: float) -> str:
    """An SNR with its unit; a dash for inf."""
    return gaussian.noise_label("matched", 10 ** (-value / 20)) if np.isfinite(value) else "–"
