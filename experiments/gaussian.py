"""Scores of trained models, arranged for figures and tables, and the page of a suite.

A method is a model with a denoiser, such as `tinybert-memory`. A panel is a site and a protocol of
Gaussian noise, or a corruption of texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from experiments import models, report, tidy
from experiments.models import VARIANTS
from experiments.paper import paper_score
from hopfax.data.adversarial_sets import EVALUATION_SETS
from hopfax.data.tasks import TASKS

MOST_LINES = 6  # more methods are drawn as a forest plot of differences
LEARNED = 5.0  # points above the majority baseline that count as having learned a task; on n rows
# at least two standard errors of an accuracy, 100 / sqrt(n)
PROTOCOLS = {"matched": "same SNR per text", "per-token": "same SNR per token", "sigma": "same σ"}
# Where noise is added and how its size is set -> title of the panel, the most telling first.
PANELS = {
    ("token", "matched"): "token embeddings,\nsame SNR per text",
    ("token", "per-token"): "token embeddings,\nsame SNR per token",
    ("embedding", "sigma"): "after the LayerNorm,\nsame σ",
    ("embedding", "matched"): "after the LayerNorm,\nsame SNR per text",
    ("embedding", "per-token"): "after the LayerNorm,\nsame SNR per token",
    ("token", "sigma"): "token embeddings,\nsame σ",
}
CORRUPTIONS = {
    "misspelling": "misspelling", "char_swap": "char swap", "textbugger": "TextBugger",
    "hotflip": "HotFlip",
}  # fmt: skip


def by_method(scores: pd.DataFrame) -> pd.DataFrame:
    """Returns scores with the denoiser, if any, as a suffix of the model's name."""
    suffix = ("-" + scores.denoiser).where(scores.denoiser != "none", "")
    return scores.assign(model=scores.model + suffix).drop(columns="denoiser")


def panels(scores: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Returns the titles of the measured panels; of protocols that coincide, only the first."""
    measured = {*zip(scores.site, scores.protocol, strict=True)}
    rows = tidy.select(scores, site="embedding", protocol="sigma")
    if len(rows) and ((rows.snr_db + 20 * np.log10(rows.level)).abs() < 1).all():
        measured -= {("embedding", "matched")}  # the signal's root mean square is 1
    return {place: title for place, title in PANELS.items() if place in measured}


def titles(tasks: Iterable[str], methods: Iterable[str] = VARIANTS) -> dict[str, str]:
    """Names of tasks and methods in tables and figures; a task may be `SET:TASK`."""
    named = {**CORRUPTIONS, "none": "clean"} | {each: models.title(each) for each in methods}
    for trial in tasks:
        name, _, task = trial.partition(":")
        named[trial] = EVALUATION_SETS[name].title if task else _title(trial)
        if task and EVALUATION_SETS[name].tasks[0] != task:
            named[trial] += f" (models of {_title(task)})"
    return named


def constants(frame: pd.DataFrame) -> dict[str, float]:
    """Returns the majority baseline's score by task, and their mean as that of "average"."""
    rows = frame[frame.metric == "constant"]
    each = dict(zip(rows.task, rows.score, strict=True))
    return {**each, "average": sum(each.values()) / len(each)} if each else {}


def not_learned(scores: pd.DataFrame, constants: Mapping[str, float]) -> pd.DataFrame:
    """Returns, by task and model, clean scores that are not well above the majority baseline."""
    return near_baseline(scores[scores.level == 0], constants)


def near_baseline(scores: pd.DataFrame, constants: Mapping[str, float]) -> pd.DataFrame:
    """Returns, by task and model, mean scores that are not well above the majority baseline."""
    means = scores.groupby(["task", "model"], sort=False, observed=True)
    means = means.agg(score=("score", "mean"), num_examples=("num_examples", "max"))
    means["constant"] = [constants[str(task)] for task, _ in means.index]
    least = np.maximum(LEARNED, 100 / np.sqrt(means.num_examples))
    return means[means.score - means.constant < least]


def informative(scores: pd.DataFrame, constants: Mapping[str, float]) -> pd.DataFrame:
    """Returns the scores up to the strongest noise at which a model still does the task.

    Beyond, no model that has learned it is well above the majority baseline, and differences only
    show which model stays closer to the majority answer.
    """
    any_above = lambda rows: len(near_baseline(rows, constants)) < rows.model.nunique()  # noqa: E731
    models = pd.MultiIndex.from_frame(scores[["task", "model"]])
    able = scores[(scores.level > 0) & ~models.isin(not_learned(scores, constants).index)]
    able = able.groupby(["task", *tidy.CONDITION], sort=False).filter(any_above)
    places = ["task", "site", "protocol"]
    strongest = able.groupby(places, as_index=False)["level"].max()
    most = scores[places].merge(strongest, on=places, how="left")["level"].to_numpy()
    return scores[(scores.level <= most) | (scores.level == 0)]


def noise_label(protocol: str, level: float) -> str:
    """Such as "clean", "σ 0.5", "+6 dB" or, of a corruption of texts, "10 %"."""
    if not level:
        return "clean"
    if protocol == "sigma":
        return f"σ {level:g}"
    if protocol in CORRUPTIONS:
        return f"{100 * level:.0f} %"
    decibels = round(-20 * np.log10(level), 1)
    return f"{decibels:+g} dB".replace("-", "−") if decibels else "0 dB"


def lines(scores: pd.DataFrame, constants: Mapping[str, float]) -> pd.DataFrame:
    """Means of `by_method` and intervals for `figures.facets`, a row per method, panel and level.

    With `panel`, `noise` (clean inputs in each panel), the paper's and the majority baseline's.
    """
    table = tidy.summarize(scores)
    table["paper"] = [
        paper_score(_title(row.task), row.model, row.level)
        if row.protocol in ("", "sigma") and row.corruption in ("none", "gaussian")
        else np.nan
        for _, row in table.iterrows()
    ]
    table["constant"] = table.task.map(constants).astype(float)
    places = {(title, "gaussian", *place) for place, title in panels(scores).items()}
    order = list(panels(scores).values()) + list(CORRUPTIONS.values())
    places |= {(title, name, "", "") for name, title in CORRUPTIONS.items()}
    parts = []
    for title, *place in sorted(places, key=lambda each: order.index(each[0])):
        at = (table[["corruption", "site", "protocol"]] == place).all(axis=1)
        if at.any():
            rows = table[at | (table.level == 0)].sort_values("level", kind="stable")
            labels = [noise_label(place[-1] or place[0], level) for level in rows.level]
            parts.append(rows.assign(panel=title, noise=labels))
    if not parts:
        return table.assign(panel="", noise="clean")
    return tidy.ordered(pd.concat(parts), "model", list(VARIANTS))


def differences(scores: pd.DataFrame, table: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Differences from a method, paired by seed, mean over noise levels, by task and `panel`.

    `bold` is False where one of the two has not learned the task. `table` has the scores' `lines`.
    """
    places = ["corruption", "site", "protocol"]
    panel = table[table.level > 0].drop_duplicates(places).set_index(places).panel.to_dict()
    panel = {("none", "", ""): "clean", **panel}
    gaps = tidy.average(tidy.difference(scores, model=baseline), "level")
    keys = gaps[places].itertuples(index=False, name=None)
    gaps["panel"] = [panel.get(key, "") for key in keys]
    result = tidy.summarize(gaps[gaps.panel != ""])
    constants = dict(zip(table.task, table.constant, strict=True))
    unlearned = {*not_learned(scores, constants).index}
    result["bold"] = [
        not {(row.task, row.model), (row.task, baseline)} & unlearned for row in result.itertuples()
    ]
    result = tidy.ordered(result, "panel", ["clean", *table.panel.unique()])
    return tidy.ordered(result, "model", list(scores.model.unique()))


def page(folder: Path) -> report.Page:
    """Returns the page of a suite's run."""
    frame = tidy.read(folder)
    scores, constant = by_method(tidy.scores(frame)), constants(frame)
    tasks, methods = list(scores.task.unique()), list(scores.model.unique())
    named = titles(tasks, methods)
    noisy, on_sets = (scores.level > 0).any(), scores.task.str.contains(":").any()
    table = lines(scores, constant)
    if on_sets:  # of so few rows that intervals include their choice
        sizes = table.task.map(scores.groupby("task").num_examples.max())
        table = tidy.widened(table, tidy.sampling_error(table["mean"], sizes))
    kept = informative(scores, constant)
    kept = kept if (kept.level > 0).any() else scores
    of_panel = {"label": "line", "titles": named}
    axes = {"x": "noise", "titles": named, "xlabel": "noise level"}
    gaps = _lined(differences(kept, table, methods[0]), named) if len(methods) > 1 else kept[:0]
    minus = f"Score minus {named[methods[0]]}, mean over levels"
    if noisy and len(methods) <= MOST_LINES:
        picture = report.facets("Score against noise", table, col="panel", row="task", **axes)
    elif noisy:
        picture = report.forest(minus, gaps[gaps.panel != "clean"], col="panel", **of_panel)
    else:
        above = _lined(table.drop(columns=["paper", "constant"]), named)
        ends = ["mean", "low", "high"]
        above[ends] = above[ends].sub(table.constant, axis=0)
        picture = report.forest("Score minus the majority baseline", above, **of_panel)
    panel = table.panel.iloc[0] if noisy else ""
    rows = _lined(table[table.panel == panel], named).sort_values("level", kind="stable")
    caption = f"Scores: {panel}".replace("\n", " ").removesuffix(": ")
    tables = [report.grid(rows, "line", "noise", caption, cell=report.bracketed)]
    tables += [report.grid(gaps, "line", "panel", minus)] if len(gaps) else []
    menus = {"task": "Task", "panel": "Noise"}
    explorer = report.Explorer(table, hue="model", menus=menus, **axes) if noisy else None
    title = f"{', '.join(named[task] for task in tasks)}: scores of {len(methods)} methods"
    stem = "differences" if noisy and len(methods) > MOST_LINES else "scores"
    return report.Page(title, {stem: picture}, tables, explorer)


def _lined(rows: pd.DataFrame, titles: Mapping[str, str]) -> pd.DataFrame:
    """Adds `line`, the name of the method, after the task if there are several."""
    task = rows.task.map(titles) + ", " if rows.task.nunique() > 1 else ""
    return rows.assign(line=task + rows.model.map(titles))


def _title(task: str) -> str:
    return TASKS[task].title if task in TASKS else task
