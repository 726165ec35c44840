"""Scores under Gaussian noise, arranged for figures and tables.

A panel is a site and a protocol. After the embedding LayerNorm the signal's root mean square is 1
in models trained from scratch, so σ is in the units of `matched`; that measurement is shown once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments import report, tidy
from experiments.models import VARIANTS
from experiments.paper import paper_lead, paper_score
from hopfax.data.adversarial_sets import EVALUATION_SETS
from hopfax.data.tasks import TASKS

BASELINE = "tinybert"
LEARNED = 5.0  # points above the majority baseline that count as having learned a task; on n rows
# at least two standard errors of an accuracy, 100 / sqrt(n)
FEW_ROWS = 400  # test rows; with fewer, the standard error of an accuracy is above 2.5 points

ACROSS = "Robertha after the LayerNorm, TinyBERT on the tokens"
SCORES = (
    "Scores run from 0 to 100, as in the papers: accuracy and F1 in percent, correlations r as "
    "50 · (1 + r), for which chance is 50. Brackets are 95 % intervals of the mean over training "
    "seeds, seeds paired in differences; the test rows are fixed. Bold: excludes zero."
)
PROTOCOLS = {
    "sigma": "Same σ: one standard deviation for all models.",
    "matched": "Same SNR for each text: σ is each text's RMS times a factor that all models share.",
    "per-token": "Same SNR for each token: σ is each token's RMS times that factor.",
}
NO_DIFFERENCE = "No detectable difference"
SAME_DB = 1.0  # models whose mean SNR differs by less count as tested at the same SNR

# Where noise is added and how its size is set -> title of the panel.
PANELS = {
    ("token", "sigma"): "noise on token embeddings,\nsame σ",
    ("token", "matched"): "noise on token embeddings,\nsame SNR for each text",
    ("embedding", "sigma"): "noise after the LayerNorm,\nsame σ, so same SNR",
    ("embedding", "matched"): "noise after the LayerNorm,\nsame SNR for each text",
    ("token", "per-token"): "noise on token embeddings,\nsame SNR for each token",
}


def panels(scores: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Returns the measured panels; of protocols that coincide, only the first."""
    measured = set(zip(scores.site, scores.protocol, strict=True))
    shown = {place: title for place, title in PANELS.items() if place in measured}
    if ("embedding", "sigma") in shown:
        if not same_snr(scores):
            shown["embedding", "sigma"] = "noise at the embedding site,\nsame σ"
        elif unit_signal(scores):
            shown.pop(("embedding", "matched"), None)
    return shown


def same_snr(scores: pd.DataFrame) -> bool:
    """Whether equal σ at the embedding site is equal SNR for all models, as after a LayerNorm."""
    rows = tidy.select(scores, site="embedding", protocol="sigma")
    means = rows.groupby(["level", "model"]).snr_db.mean().groupby("level")
    return not (means.max() - means.min() > SAME_DB).any()


def unit_signal(scores: pd.DataFrame) -> bool:
    """Whether the root mean square is 1 at the embedding site, as without pretraining."""
    rows = tidy.select(scores, site="embedding", protocol="sigma")
    return not ((rows.snr_db + 20 * np.log10(rows.level)).abs() > SAME_DB).any()


class Measured(NamedTuple):
    """What the page of a run starts from.

    Attributes:
        frame, scores: From `tidy.read` and `tidy.scores`.
        titles: Names of models and tasks.
        names: The titles of all tasks.
        notes: Notes on rows, seeds and scores.
    """

    frame: pd.DataFrame
    scores: pd.DataFrame
    titles: dict[str, str]
    names: str
    notes: Sequence[str]


def read(folder: Path) -> Measured:
    """Reads the folder of a run or of published results."""
    frame = tidy.read(folder)
    scores = tidy.scores(frame)
    named = titles(scores.task.unique())
    names = report.joined(named[task] for task in scores.task.unique())
    return Measured(frame, scores, named, names, [report.sizes(frame, named), *notes(scores)])


def notes(scores: pd.DataFrame) -> list[str]:
    """Returns the definitions of scores, intervals and of the protocols that were measured."""
    noise = [text for each, text in PROTOCOLS.items() if (scores.protocol == each).any()]
    return [SCORES, *([" ".join(noise)] if noise else [])]


def few_rows_note(measured: Measured) -> list[str]:
    """A note on accuracies of few test rows, whose sampling the intervals leave out."""
    rows = measured.scores.groupby("task", sort=False).num_examples.max()
    few = {name: count for name, count in rows.items() if count < FEW_ROWS}
    if not few:
        return []
    parts = (
        f"{measured.titles[str(name)]} {count:.0f} (±{98 / count**0.5:.0f} points)"
        for name, count in few.items()
    )
    return [
        f"Few test rows: {report.joined(parts)}. In parentheses: 95 % sampling margin of an "
        "accuracy on as many rows. Intervals over seeds alone do not include it, so their bold "
        "differences hold for these rows only."
    ]


def titles(tasks: Iterable[str]) -> dict[str, str]:
    """Names of models and tasks in tables and figures; a task may be `SET:TASK`."""
    named = {name: each.title for name, each in VARIANTS.items()}
    tasks = list(tasks)
    for trial in tasks:
        name, _, task = trial.partition(":")
        named[trial] = EVALUATION_SETS[name].title if task else _title(trial)
        if task and EVALUATION_SETS[name].task != task:
            named[trial] += f" (models of {_title(task)})"
    return named | {"average": f"mean over {len(tasks)} tasks"}


def score_names(tasks: Iterable[str]) -> dict[str, str]:
    """Returns what each task's score is, for an axis."""
    names = {
        ("accuracy",): "accuracy, %",
        ("f1", "accuracy"): "mean of F1 and accuracy, %",
        ("mcc",): "50 · (1 + Matthews correlation)",
        ("pearson", "spearman"): "50 · (1 + r)",
    }
    return {
        task: names.get(TASKS[task].metrics, "score") if task in TASKS else "score"
        for task in tasks
    }


def reference(models: Sequence[str]) -> str:
    """Returns the model that others are compared with: TinyBERT, or the first."""
    return BASELINE if BASELINE in models else models[0]


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

    def any_above(rows: pd.DataFrame) -> bool:
        return len(near_baseline(rows, constants)) < rows.model.nunique()

    keys = ["task", *tidy.CONDITION]
    unlearned = not_learned(scores, constants).reset_index()
    learned = ~tidy.among(scores, unlearned, "task", "model")
    able = scores[(scores.level > 0) & learned].groupby(keys, sort=False).filter(any_above)
    places = ["task", "site", "protocol"]
    strongest = able.groupby(places, as_index=False)["level"].max()
    most = scores[places].merge(strongest, on=places, how="left")["level"].to_numpy()
    return scores[(scores.level <= most) | (scores.level == 0)]


def evidence(
    differences: pd.DataFrame, unlearned: Collection[tuple[str, str]], baseline: str
) -> pd.DataFrame:
    """Sets `bold`, which is False where a model or the baseline did not learn the task."""
    bold = [
        not {(row.task, row.model), (row.task, baseline)} & {*unlearned}
        for _, row in differences.iterrows()
    ]
    return differences.assign(bold=bold)


def named_levels(differences: pd.DataFrame, averaged: pd.DataFrame) -> pd.DataFrame:
    """Names the noise level in panels whose average is over a single one."""
    levels = averaged[averaged.level > 0].groupby(["site", "protocol"])["level"]
    single = levels.first()[levels.nunique() == 1]
    names = [
        f"{row.panel}: {noise_label(row.protocol, single[row.site, row.protocol])}"
        if (row.site, row.protocol) in single
        else row.panel
        for _, row in differences.iterrows()
    ]
    return differences.assign(panel=names)


def left_out_note(scores: pd.DataFrame, kept: pd.DataFrame, titles: Mapping[Any, str]) -> list[str]:
    """Returns the note on noise levels that `informative` leaves out of averages, if any."""
    parts, several = [], scores.task.nunique() > 1
    for (site, protocol), panel in panels(scores).items():
        for task, rows in tidy.select(scores, site=site, protocol=protocol).groupby("task"):
            same = tidy.select(kept, task=task, site=site, protocol=protocol)
            if levels := sorted({*rows.level} - {*same.level}):
                name = panel.replace("\n", " ") + (f", {titles[task]}" if several else "")
                labels = report.joined(noise_label(protocol, level) for level in levels)
                parts.append(f"{name}: {labels}")
    text = (
        "Averages leave out the strongest noise, under which no model that learned the task is at "
        f"least {LEARNED:g} points above the majority baseline (on n < {FEW_ROWS} rows, 100 / √n)"
    )
    return [f"{text}. Left out: {'; '.join(parts)}."] if parts else []


def learned_by_none(scores: pd.DataFrame, unlearned: pd.DataFrame) -> list[str]:
    """Returns the tasks of `not_learned` that no model has learned."""
    counts = scores[scores.level == 0].groupby("task").model.nunique().to_dict()
    sizes = unlearned.groupby("task", sort=False).size().to_dict()
    return [str(task) for task, size in sizes.items() if size == counts[task]]


def unlearned_note(
    scores: pd.DataFrame, unlearned: pd.DataFrame, titles: Mapping[Any, str]
) -> list[str]:
    """Returns the note on the models of `not_learned`, if there are any."""
    parts = []
    for task, rows in unlearned.groupby("task", sort=False):
        if task in learned_by_none(scores, unlearned):
            models = f"all models: at most {rows.score.max():.1f}"
        else:
            found = rows.score.droplevel("task").to_dict()
            models = report.joined(
                f"{titles[model]}: {score:.1f}"
                for model, score in found.items()
                if str(model).removesuffix("-memory") == model  # memory keeps the clean score
                or str(model).removesuffix("-memory") not in found
            )
        parts.append(f"{titles[task]} ({models}; majority baseline {rows.constant.iloc[0]:.1f})")
    text = "Clean scores too close to the majority baseline for a verdict on robustness: "
    return [f"{text}{report.joined(parts)}."] if parts else []


def noise_label(protocol: str, level: float) -> str:
    """Such as "clean", "σ 0.5" or "+6 dB"."""
    if not level:
        return "clean"
    if protocol == "sigma":
        return f"σ {level:g}"
    decibels = round(-20 * np.log10(level), 1)
    return f"{decibels:+g} dB".replace("-", "−") if decibels else "0 dB"


def lines(scores: pd.DataFrame, constants: Mapping[str, float]) -> pd.DataFrame:
    """Means and intervals for `figures.facets`: `panel` and `noise` added, clean in each panel.

    Args:
        scores: From `tidy.scores`.
        constants: Score of the majority baseline, by task.

    Returns:
        `tidy.summarize`'s table with `panel`, `noise`, the paper's score and the majority
        baseline's.
    """
    table = tidy.summarize(scores)
    table["paper"] = [
        paper_score(_title(row.task), row.model, row.level)
        if row.protocol in ("", "sigma")
        else np.nan
        for _, row in table.iterrows()
    ]
    table["constant"] = table.task.map(constants).astype(float)
    parts = []
    for (site, protocol), title in panels(scores).items():
        at = (table.site == site) & (table.protocol == protocol)
        rows = table[at | (table.level == 0)].sort_values("level", kind="stable")
        labels = [noise_label(protocol, level) for level in rows.level]
        parts.append(rows.assign(panel=title, noise=labels))
    return tidy.ordered(pd.concat(parts), "model", list(VARIANTS))


def differences(
    scores: pd.DataFrame,
    *,
    baseline: str = BASELINE,
    order: Sequence[str] = tuple(VARIANTS),
    over: Sequence[str] = (),
) -> pd.DataFrame:
    """Differences from a model, paired by seed: one row per task, model, `panel` and level.

    Args:
        scores: From `tidy.scores`.
        baseline: The model subtracted from the others.
        order: Order of the models.
        over: Columns to average over, such as "level".

    Returns:
        `tidy.summarize`'s table with `panel`, "clean" first; panels shown once.
    """
    pairs = tidy.difference(scores, model=baseline)
    table = tidy.summarize(tidy.average(pairs, *over) if over else pairs)
    titles = {("", ""): "clean"} | panels(scores)
    places = zip(table.site, table.protocol, strict=True)
    table = table.assign(panel=[titles.get(place, "") for place in places])
    table = tidy.ordered(table[table.panel != ""], "panel", list(titles.values()))
    return tidy.ordered(table, "model", order)


def finding(differences: pd.DataFrame) -> str:
    """Returns what the intervals say about a lead, as the start of a sentence."""
    above, below = int((differences.low > 0).sum()), int((differences.high < 0).sum())
    count = len(differences)
    if differences.low.isna().any():
        return "No interval, so no verdict on a lead"
    if above and below:
        return f"Higher scores in {above} and lower scores in {below} of {count} comparisons"
    if above:
        return "Higher scores" + (f" in {above} of {count} comparisons" if above < count else "")
    if below:
        return "Lower scores" + (f" in {below} of {count} comparisons" if below < count else "")
    return NO_DIFFERENCE


def gap(scores: pd.DataFrame, *, model: str = "robertha", baseline: str = BASELINE) -> pd.DataFrame:
    """Returns `model` minus `baseline` at the paper's weakest noise, by site and protocol.

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
    tables = [tidy.summarize(part).assign(comparison=name) for name, part in parts.items()]
    if not (tables := [each for each in tables if len(each)]):
        return pd.DataFrame(columns=["task", "comparison", "level", "mean", "low", "high", "paper"])
    table = pd.concat(tables, ignore_index=True)
    effects = {
        name: paper_lead(_title(name), model, baseline, level) for name in table.task.unique()
    }
    return table.assign(paper=table.task.map(effects))


def _title(task: str) -> str:
    return TASKS[task].title if task in TASKS else task
