"""The page of the typos: a picture, tables beside the paper's, and the numbers in a CSV."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.report_page import Table, write_report
from experiments.robertha.compared import plain_axes
from experiments.robertha.labels import number, with_interval
from experiments.robertha.measurements import (
    BASELINE,
    finite,
    is_part,
    model_title,
    task_suite,
    task_title,
    title_with_rows,
)
from experiments.robertha.panel import line_style
from experiments.robertha.paper import suite_score
from experiments.robertha.statistics import mean_by_seed, paired_difference, summarize
from experiments.robertha.subjects import SUITE_TITLES
from experiments.rundir import read_config, read_results, write_csv

CLEAN = "none"
CORRUPTIONS = {
    "misspelling": "misspelling",
    "char_swap": "char swap",
    "textbugger": "TextBugger",
    "hotflip": "HotFlip",
}
COLUMNS = (
    "task",
    "model",
    "corruption",
    "rate",
    "mean",
    "std",
    "low",
    "high",
    "change",
    "change_low",
)
COLUMNS += ("change_high", "difference", "difference_low", "difference_high")
COLUMNS += ("words_changed", "paper", "paper_std", "num_seeds")
NOTES = (
    "Scores are 0 to 100, means over seeds ± their deviation. In brackets: what is gained or lost "
    "against the clean texts, or how far one model is ahead of another on the same texts, seeds "
    "paired, with Student's 95 % interval. It speaks about training again, not about other texts.",
    "Behind each score stands the share of a text's words that was changed, the mean over texts: "
    "more than was asked for where they are short, since one word is changed at least, and less "
    "where nothing was left to change or an attack did better without.",
    "Random typos are the same for all models. An attack meets each seed's model by itself, and "
    "is scored on it.",
    "The paper has averages over whole suites only; where fewer tasks were run, its line is of "
    "other tasks.",
)
Spot = tuple[str, str, str, float]  # task, model, corruption, rate


class Found(NamedTuple):
    """What a run measured.

    Attributes:
        plan: What it set out to measure.
        scores: By task or suite average, model, corruption and rate, then by seed.
        changed: Share of the words that were changed, in the same places.
        averages: Suite by the name of its average.
        trained: Rows that a task was trained on, where they are known.
    """

    plan: Mapping[str, Any]
    scores: dict[Spot, dict[int, float]]
    changed: dict[Spot, dict[int, float]]
    averages: dict[str, str]
    trained: dict[str, int]

    @property
    def baseline(self) -> str:
        """The model that the others are held against: TinyBERT, or the first without it."""
        models = self.plan["models"]
        return BASELINE if BASELINE in models else models[0]

    @property
    def subjects(self) -> list[str]:
        """Averages first, then the tasks with any score."""
        tasks = [name for name in self.plan["tasks"] if any(s[0] == name for s in self.scores)]
        return [*self.averages, *tasks]

    def title(self, subject: str) -> str:
        """An average's name, or a task's, see `title_with_rows`."""
        return title_with_rows(subject, self.trained.get(subject, 0))


def read(folder: Path) -> Found:
    """Sorts the rows of results.csv, and averages the suites' tasks that every model finished.

    A task trained on a part of the official rows is in no average.
    """
    plan = read_config(folder)["plan"]
    parts: dict[str, dict[Spot, dict[int, float]]] = {
        "score": defaultdict(dict),
        "words_changed": defaultdict(dict),
    }
    trained = {}
    for row in read_results(folder):
        if row["num_train"]:
            trained[row["task"]] = int(row["num_train"])
        if row["metric"] in parts:
            spot = row["task"], row["model"], row["corruption"], float(row["level"])
            parts[row["metric"]][spot][int(row["seed"])] = finite(row, "score")
    scores, changed = parts["score"], parts["words_changed"]
    conditions = [(CLEAN, 0.0)]
    conditions += [(kind, float(rate)) for kind in plan["corruptions"] for rate in plan["rates"]]
    tested = [model for model in plan["models"] if any(spot[1] == model for spot in scores)]
    averages = {}
    for suite in dict.fromkeys(map(task_suite, plan["tasks"])):
        tasks = [
            task
            for task in plan["tasks"]
            if task_suite(task) == suite
            and not is_part(task, trained.get(task, 0))
            and all(scores.get((task, model, *each)) for model in tested for each in conditions)
        ]
        if len(tasks) < 2:
            continue
        name = f"{SUITE_TITLES.get(suite, suite)}, mean of {len(tasks)} tasks"
        averages[name] = suite
        for model in tested:
            for each in conditions:
                for one in (scores, changed):
                    by_task = [one.get((task, model, *each), {}) for task in tasks]
                    one[name, model, *each] = mean_by_seed(by_task)
    return Found(plan, dict(scores), dict(changed), averages, trained)


def write_page(folder: Path) -> Table:
    """Writes typos.csv, typos.png and report.html; returns the table of what comes first.

    Works on partial results: what is not measured is left out, and said to be missing.
    """
    found = read(folder)
    rows = summaries(found)
    write_csv(folder / "typos.csv", COLUMNS, rows)
    tables = [table(found, rows, subject) for subject in found.subjects]
    tables += [
        apart
        for subject in found.subjects
        if len(apart := table_of_differences(found, rows, subject)) > 1
    ]
    pictures = {}
    if tables:
        draw(found, rows, found.subjects[0], folder / "typos.png")
        pictures["typos.png"] = (
            f"Score against the share of words: {found.title(found.subjects[0])}"
        )
    write_report(
        folder,
        "Typos and attacks on letters",
        pictures=pictures,
        tables=tables,
        notes=[
            *NOTES,
            *(left_out(*each) for each in found.plan.get("without_words", {}).items()),
            *(f"Missing: {line}" for line in missing(found)),
        ],
    )
    return tables[0] if tables else [["nothing measured yet"]]


def summaries(found: Found) -> list[dict[str, Any]]:
    """One row a subject, model, corruption and rate."""
    rows = []
    for (subject, model, kind, rate), by_seed in found.scores.items():
        summary = summarize(by_seed)
        if summary is None:
            continue
        clean = found.scores.get((subject, model, CLEAN, 0.0), {})
        change = paired_difference(by_seed, clean) if kind != CLEAN else None
        apart = None
        if model != found.baseline:
            same = found.scores.get((subject, found.baseline, kind, rate), {})
            apart = paired_difference(by_seed, same)
        suite = found.averages.get(subject)
        paper = suite_score(suite, model, kind, rate) if suite and kind != CLEAN else None
        rows.append(
            {
                "task": subject,
                "model": model,
                "corruption": kind,
                "rate": rate,
                "mean": summary.mean,
                "std": summary.std,
                "low": summary.low,
                "high": summary.high,
                "change": change.mean if change else None,
                "change_low": change.low if change else None,
                "change_high": change.high if change else None,
                "difference": apart.mean if apart else None,
                "difference_low": apart.low if apart else None,
                "difference_high": apart.high if apart else None,
                "words_changed": float(
                    np.mean(list(found.changed[subject, model, kind, rate].values()))
                ),
                "paper": paper.mean if paper else None,
                "paper_std": paper.std if paper else None,
                "num_seeds": summary.num_seeds,
            }
        )
    return rows


def table(found: Found, rows: Sequence[dict[str, Any]], subject: str) -> Table:
    """A line a corruption and model, and one of the paper's where it has it; a column a rate."""
    rates, at = _rates(found), _by_condition(rows, subject)
    lines = [[found.title(subject), "model", "clean", *map(_share, rates)]]
    for kind in found.plan["corruptions"]:
        for model in found.plan["models"]:
            here = [at.get((model, kind, rate)) for rate in rates]
            if not any(here):
                continue
            clean = at.get((model, CLEAN, 0.0))
            title = CORRUPTIONS[kind], model_title(model)
            lines.append([*title, _entry(clean), *map(_entry, here)])
            if any(row and row["paper"] is not None for row in here):
                paper = [number(row["paper"]) if row and row["paper"] else "–" for row in here]
                lines.append(["", f"{model_title(model)}, paper, whole suite", "–", *paper])
    return lines


def table_of_differences(found: Found, rows: Sequence[dict[str, Any]], subject: str) -> Table:
    """How far each model is ahead of the baseline: a line a corruption and model, a column a rate.

    Only the header where no other model was measured.
    """
    rates, at = _rates(found), _by_condition(rows, subject)
    title = f"{found.title(subject)}, minus {model_title(found.baseline)}"
    lines = [[title, "model", *map(_share, rates)]]
    others = [model for model in found.plan["models"] if model != found.baseline]
    for model in others:
        clean = at.get((model, CLEAN, 0.0))
        if clean and clean["difference"] is not None:
            # One number for all rates: nothing was changed.
            lines.append(["clean", model_title(model), _apart(clean), *["" for _ in rates[1:]]])
    for kind in found.plan["corruptions"]:
        for model in others:
            here = [at.get((model, kind, rate)) for rate in rates]
            if any(row and row["difference"] is not None for row in here):
                lines.append([CORRUPTIONS[kind], model_title(model), *map(_apart, here)])
    return lines


def _rates(found: Found) -> list[float]:
    return [float(rate) for rate in found.plan["rates"]]


def _share(rate: float) -> str:
    return f"{100 * rate:g} % of the words"


def _by_condition(
    rows: Sequence[dict[str, Any]], subject: str
) -> dict[tuple[str, str, float], dict[str, Any]]:
    """A subject's rows by model, corruption and rate."""
    return {
        (row["model"], row["corruption"], row["rate"]): row
        for row in rows
        if row["task"] == subject
    }


def _apart(row: Mapping[str, Any] | None) -> str:
    if row is None or row["difference"] is None:
        return "–"
    return with_interval(row["difference"], row["difference_low"], row["difference_high"])


def _entry(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    text = number(row["mean"]) + (f" ± {number(row['std'])}" if row["std"] is not None else "")
    if row["change"] is None:
        return text
    change = with_interval(row["change"], row["change_low"], row["change_high"])
    return f"{text} ({change}); {100 * row['words_changed']:.1f} % changed"


def left_out(task: str, count: int) -> str:
    """That rows of a test split could not be tested on, and how many."""
    return f"{task_title(task)}: test rows without a word, which were left out: {count:,}."


def missing(found: Found) -> list[str]:
    """Tasks and models of the plan without all their scores, one line a task."""
    wanted = [
        (kind, float(rate)) for kind in found.plan["corruptions"] for rate in found.plan["rates"]
    ]
    lines = []
    for task in found.plan["tasks"]:
        models = [
            model_title(model)
            for model in found.plan["models"]
            if any(
                set(found.plan["seeds"]) - found.scores.get((task, model, *each), {}).keys()
                for each in [(CLEAN, 0.0), *wanted]
            )
        ]
        if models:
            lines.append(f"{task_title(task)}: {', '.join(models)}")
    return lines


def draw(found: Found, rows: Sequence[dict[str, Any]], subject: str, path: Path) -> None:
    """Score against the share of words, a panel a corruption and a line a model."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    kinds = list(found.plan["corruptions"])
    figure = Figure(figsize=(3.2 * len(kinds) + 1.5, 4.4), layout="constrained")
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    here = [row for row in rows if row["task"] == subject]
    models = list(dict.fromkeys(row["model"] for row in here))
    for axes, kind in zip(panels, kinds, strict=True):
        for model in models:
            part = [r for r in here if r["model"] == model and r["corruption"] in (CLEAN, kind)]
            part.sort(key=lambda row: row["rate"])
            axes.errorbar(
                [100 * row["words_changed"] for row in part],
                [row["mean"] for row in part],
                yerr=[row["std"] or 0 for row in part],
                **line_style(model, models),
                markersize=4,
                capsize=2,
                linewidth=1.3,
                label=model_title(model),
            )
        axes.set_title(CORRUPTIONS[kind])
        axes.set_xlabel("words changed, %")
        plain_axes(axes)
    panels[0].set_ylabel("score (± deviation over seeds)")
    figure.suptitle(found.title(subject))
    figure.legend(
        *panels[0].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=3
    )
    figure.savefig(path, dpi=130)
