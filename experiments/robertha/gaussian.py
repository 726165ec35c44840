"""Scores under Gaussian noise, arranged for figures and tables.

A panel is a site and a protocol. After the embedding LayerNorm the signal's root mean square is 1,
so the same σ is also the same SNR; that measurement is shown once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments import tidy
from experiments.models import VARIANTS, Variant
from experiments.robertha.paper import paper_score
from hopfax.data.tasks import TASKS

BASELINE = "tinybert"
LEARNED = 5.0  # points above the majority baseline that count as having learned a task; on n rows
# at least two standard errors of an accuracy, 100 / sqrt(n)

ACROSS = "Robertha after the LayerNorm, TinyBERT on the tokens"
NOTES = (
    "Scores are on the papers' scale, 0 to 100. Brackets are 95 % intervals of the mean over "
    "training seeds, seeds paired in differences; the test rows are fixed. Bold: excludes zero.",
    "Same σ: one standard deviation for all models. Same SNR: σ in units of the root mean square "
    "of each text's own signal, so all models keep the same signal-to-noise ratio.",
)


SAME_DB = 1.0
"""Largest difference of mean SNR, in dB, at which models count as tested at the same SNR."""


class Panel(NamedTuple):
    """Where noise is added and how its size is set."""

    site: str
    protocol: str
    title: str


PANELS = (
    Panel("token", "sigma", "noise on token embeddings,\nsame σ"),
    Panel("token", "matched", "noise on token embeddings,\nsame SNR"),
    Panel("embedding", "sigma", "noise after the LayerNorm,\nsame σ and SNR"),
    Panel("embedding", "matched", "noise after the LayerNorm,\nsame SNR"),
    Panel("token", "per-token", "noise on token embeddings,\nsame SNR per token"),
)


def panels(scores: pd.DataFrame) -> list[Panel]:
    """Returns the measured panels; of protocols that coincide, only the first."""
    measured = set(zip(scores.site, scores.protocol, strict=True))
    chosen = [each for each in PANELS if (each.site, each.protocol) in measured]
    if ("embedding", "sigma") not in measured:
        return chosen
    if same_snr(scores):
        return [each for each in chosen if each[:2] != ("embedding", "matched")]
    title = "noise at the embedding site,\nsame σ"
    return [
        each._replace(title=title) if each[:2] == ("embedding", "sigma") else each
        for each in chosen
    ]


def same_snr(scores: pd.DataFrame) -> bool:
    """Whether equal σ at the embedding site is equal SNR for all models, as after a LayerNorm."""
    rows = scores[(scores.site == "embedding") & (scores.protocol == "sigma")]
    if "snr_db" not in rows:
        return True
    means = rows.groupby(["level", "model"]).snr_db.mean().groupby("level")
    return not (means.max() - means.min() > SAME_DB).any()


def titles(variants: Mapping[str, Variant], tasks: Iterable[str]) -> dict[str, str]:
    """Names of models and tasks in tables and figures."""
    tasks = list(tasks)
    named = {name: TASKS[name].title if name in TASKS else name for name in tasks}
    average = {"average": f"mean over {len(tasks)} tasks"}
    return {name: each.title for name, each in variants.items()} | named | average


def constants(frame: pd.DataFrame, plan: Mapping[str, Any]) -> dict[str, float]:
    """Returns the majority baseline's score by task, from the rows or from a run's plan."""
    rows = frame[frame.metric == "constant"].drop_duplicates("task")
    return {**plan.get("constants", {}), **dict(zip(rows.task, rows.score, strict=True))}


def hardly_learned(
    scores: pd.DataFrame, constants: Mapping[str, float], titles: Mapping[str, str]
) -> list[str]:
    """Returns a note on tasks where no model is well above the majority baseline, if any."""
    named = []
    for task, clean in scores[scores.level == 0].groupby("task", sort=False):
        if (constant := constants.get(str(task))) is None:
            continue
        best = clean.groupby("model").score.mean().max()
        if best - constant < max(LEARNED, 100 / np.sqrt(clean.num_examples.max())):
            named.append(f"{titles[str(task)]} ({best:.1f}, majority baseline {constant:.1f})")
    if not named:
        return []
    return [
        "Barely learned, so robustness cannot be compared (best clean score of any model in "
        f"brackets): {', '.join(named)}."
    ]


def with_average(scores: pd.DataFrame) -> pd.DataFrame:
    """The mean over all tasks, as a task called "average", in front of the tasks."""
    average = tidy.average(scores, "task").assign(task="average")
    return pd.concat([average, scores], ignore_index=True)


def noise_label(protocol: str, level: float) -> str:
    """Such as "clean", "σ 0.5" or "+6 dB"."""
    if not level:
        return "clean"
    if protocol == "sigma":
        return f"σ {level:g}"
    decibels = round(-20 * np.log10(level)) + 0
    return f"{decibels:+d} dB".replace("-", "−") if decibels else "0 dB"


def paper_scores(table: pd.DataFrame) -> pd.Series:
    """The paper's score of each row, nan where it has none; the paper states σ and no site."""

    def one(row: pd.Series) -> float:
        same_snr = row.protocol in ("matched", "per-token")
        return np.nan if same_snr else paper_score(_title(row.task), row.model, row.level)

    return table.apply(one, axis=1).astype(float) if len(table) else pd.Series(dtype=float)


def lines(scores: pd.DataFrame, constants: Mapping[str, float] | None = None) -> pd.DataFrame:
    """Means and intervals for `figures.facets`: `panel` and `noise` added, clean in each panel.

    Args:
        scores: From `tidy.scores`.
        constants: Score of the majority baseline, by task.

    Returns:
        `tidy.summarise`'s table with `panel`, `noise`, the paper's score and the majority
        baseline's.
    """
    table = tidy.summarise(scores)
    table["paper"] = paper_scores(table)
    table["constant"] = table.task.map(constants or {}).astype(float)
    parts = []
    for panel in panels(scores):
        at = (table.site == panel.site) & (table.protocol == panel.protocol)
        rows = table[at | (table.level == 0)].sort_values("level", kind="stable")
        labels = [noise_label(panel.protocol, level) for level in rows.level]
        parts.append(rows.assign(panel=panel.title, noise=labels))
    return tidy.ordered(pd.concat(parts), "model", list(VARIANTS))


def differences(
    scores: pd.DataFrame, *, baseline: str = BASELINE, order: Sequence[str] = tuple(VARIANTS)
) -> pd.DataFrame:
    """Differences from a model, paired by seed: one row per task, model, panel and level."""
    return _placed(tidy.summarise(tidy.difference(scores, model=baseline)), scores, order)


def contrasts(
    scores: pd.DataFrame, *, baseline: str = BASELINE, order: Sequence[str] = tuple(VARIANTS)
) -> pd.DataFrame:
    """Differences from a model, mean over noise levels: one row per task, model and panel."""
    means = tidy.average(tidy.difference(scores, model=baseline), "level")
    return _placed(tidy.summarise(means), scores, order)


def _placed(table: pd.DataFrame, scores: pd.DataFrame, order: Sequence[str]) -> pd.DataFrame:
    """Rows with their `panel`, "clean" first, sorted by model; panels shown once."""
    titles = {("", ""): "clean"} | {(p.site, p.protocol): p.title for p in panels(scores)}
    places = zip(table.site, table.protocol, strict=True)
    table = table.assign(panel=[titles.get(place, "") for place in places])
    table = table[table.panel != ""]
    table = tidy.ordered(table, "panel", list(titles.values()))
    return tidy.ordered(table, "model", order)


def finding(differences: pd.DataFrame) -> str:
    """Returns what the intervals say about a lead, as the start of a sentence."""
    if differences.low.isna().any():
        return "No interval, so no verdict on a lead"
    if (differences.low > 0).any():
        return "A lead"
    if (differences.high < 0).all():
        return "Only deficits"
    return "No detectable lead"


def gap(scores: pd.DataFrame, *, model: str = "robertha", baseline: str = BASELINE) -> pd.DataFrame:
    """Returns the gap between two models at the paper's weakest noise, by site and protocol.

    Args:
        scores: From `tidy.scores`.
        model: The model.
        baseline: The model subtracted from it.

    Returns:
        One row per task and `comparison`: `mean`, `low`, `high`, and the paper's `paper`.
    """
    levels = sorted(scores.level[scores.level > 0].unique())
    in_paper = [
        level
        for level in levels
        if any(paper_score(_title(name), model, level) > 0 for name in scores.task.unique())
    ]
    level = (in_paper or levels or [np.nan])[0]
    noisy = tidy.select(scores, model=[model, baseline], level=level)
    across = tidy.difference(tidy.select(noisy, protocol="sigma"), model=baseline, site="token")
    parts = {ACROSS: tidy.select(across, model=model, site="embedding")}
    for site, protocol, name in (
        ("token", "sigma", "both on the tokens, same σ"),
        ("embedding", "sigma", "both after the LayerNorm"),
        ("token", "matched", "both on the tokens, same SNR"),
    ):
        rows = tidy.select(noisy, site=site, protocol=protocol)
        parts[name] = tidy.difference(rows, model=baseline)
    tables = [tidy.summarise(part).assign(comparison=name) for name, part in parts.items()]
    table = pd.concat([each for each in tables if len(each)], ignore_index=True)
    effects = {
        name: paper_score(_title(name), model, level) - paper_score(_title(name), baseline, level)
        for name in table.task.unique()
    }
    return table.assign(paper=table.task.map(effects))


def _title(task: str) -> str:
    return TASKS[task].title if task in TASKS else task
