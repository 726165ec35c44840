"""The page of the evaluation sets: a picture, a table beside the paper's, and a CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.report_page import Table, write_report
from experiments.robertha.compared import difference, plain_axes
from experiments.robertha.findings import baseline_of
from experiments.robertha.labels import number
from experiments.robertha.measurements import (
    Measurements,
    load,
    missing,
    model_title,
    task_title,
    title_with_rows,
)
from experiments.robertha.panel import PAPER_KEY, draw_paper, line_style
from experiments.robertha.paper import evaluation_score
from experiments.robertha.statistics import paired_difference, summarize
from experiments.rundir import read_config, write_csv
from hopfax.data import EVALUATION_SETS

COLUMNS = ("set", "trained_on", "model", "rows", "known_texts", "larger_class", "mean", "std")
COLUMNS += ("low", "high", "difference", "difference_low", "difference_high")
COLUMNS += ("paper", "paper_std", "num_seeds")
NOTES = (
    "Accuracies, 0 to 100, means over seeds ± their deviation; brackets are differences to the "
    "first model, the seeds paired, with Student's 95 % interval: they speak about training again, "
    "not about other rows.",
    "The larger class is what always giving the set's most frequent label scores. These sets were "
    "made to be hard: less than that is no better than not reading.",
    "Known texts: rows with a whole text, letter by letter, of the training file. Files may share "
    "sentences by nature; but where a set was made from the very rows that a part of a task trains "
    "on, as AdvQNLI from QNLI's dev rows, its accuracy is none of unseen rows.",
    "The paper's figures are of models trained on all of the task's rows, five seeds.",
)


def write_page(folder: Path) -> Table:
    """Writes adversarial.csv, adversarial.png and report.html; returns the table.

    Works on partial results: what is not measured is left out, and said to be missing.
    """
    found, plan = load(folder), read_config(folder)["plan"]
    rows = summaries(found, plan)
    write_csv(folder / "adversarial.csv", COLUMNS, rows)
    lines = table(found, rows)
    pictures = {}
    if rows:
        draw(rows, folder / "adversarial.png")
        pictures["adversarial.png"] = "Accuracy ± its deviation over seeds, and the paper's"
    write_report(
        folder,
        "Sets that were made to fool a model",
        pictures=pictures,
        tables=[lines],
        notes=[*NOTES, *(f"Missing: {line}" for line in missing(found))],
    )
    return lines


def summaries(found: Measurements, plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a set and model, a task's own test split before the sets made from it."""
    rows, baseline = [], baseline_of(found)
    for trial in found.grid.tasks:
        name, _, trained_on = trial.partition(":")
        for model in found.grid.models:
            here = found.at(trial, model, "", "", 0.0)
            summary = summarize(here)
            if summary is None:
                continue
            apart = None
            if model != baseline:
                apart = paired_difference(here, found.at(trial, baseline, "", "", 0.0))
            # The paper's models are of the set's own task: PAWS tests those of QQP.
            known = EVALUATION_SETS.get(name)
            same = known is not None and known.task == trained_on
            paper = evaluation_score(title(name), model) if same else None
            rows.append(
                {
                    "set": name,
                    "trained_on": trained_on or name,
                    "num_train": found.num_train(trial),  # for its label
                    "model": model,
                    "rows": plan["rows"][trial],
                    # Runs of before it was counted do not say.
                    "known_texts": plan.get("known_texts", {}).get(trial),
                    "larger_class": plan["classes"][trial],
                    "mean": summary.mean,
                    "std": summary.std,
                    "low": summary.low,
                    "high": summary.high,
                    "difference": apart.mean if apart else None,
                    "difference_low": apart.low if apart else None,
                    "difference_high": apart.high if apart else None,
                    "paper": paper.mean if paper else None,
                    "paper_std": paper.std if paper else None,
                    "num_seeds": summary.num_seeds,
                }
            )
    return rows


def title(name: str) -> str:
    """A set's or a task's name in the paper."""
    return EVALUATION_SETS[name].title if name in EVALUATION_SETS else task_title(name)


def label(row: Mapping[str, Any]) -> str:
    """A set's name, and the task of the models where it is not its own or a part of it."""
    trained_on = title_with_rows(row["trained_on"], row["num_train"])
    if row["set"] == row["trained_on"]:
        return f"{trained_on}, its test split"
    known = EVALUATION_SETS.get(row["set"])
    if known and known.task == row["trained_on"] and trained_on == title(row["trained_on"]):
        return title(row["set"])
    return f"{title(row['set'])}, trained on {trained_on}"


def table(found: Measurements, rows: Sequence[dict[str, Any]]) -> Table:
    """A line a set and a column a model: accuracy, difference, and the paper's figure."""
    models = [model for model in found.grid.models if any(row["model"] == model for row in rows)]
    lines = [["set", "rows", "known texts", "larger class", *map(model_title, models)]]
    for place in dict.fromkeys((row["set"], row["trained_on"]) for row in rows):
        here = {row["model"]: row for row in rows if (row["set"], row["trained_on"]) == place}
        one = next(iter(here.values()))
        known = "–" if one["known_texts"] is None else str(one["known_texts"])
        head = [label(one), str(one["rows"]), known, number(one["larger_class"])]
        lines.append([*head, *(_entry(here.get(model)) for model in models)])
    return lines


def _entry(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    text = number(row["mean"]) + (f" ± {number(row['std'])}" if row["std"] is not None else "")
    if row["difference"] is not None:
        text += f" ({difference(row)})"
    if row["paper"] is not None:
        text += f"; paper {number(row['paper'])}"
    return text


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """A group a set: models with their deviation, the paper's hollow, the larger class a bar."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    places = list(dict.fromkeys((row["set"], row["trained_on"]) for row in rows))
    models = list(dict.fromkeys(row["model"] for row in rows))
    figure = Figure(figsize=(4.5 + 1.1 * len(places), 5), layout="constrained")
    axes = figure.add_subplot()
    step = 0.7 / max(1, len(models) - 1)
    names = [label(next(r for r in rows if (r["set"], r["trained_on"]) == p)) for p in places]
    for number_of, model in enumerate(models):
        part = [row for row in rows if row["model"] == model]
        where = [places.index((row["set"], row["trained_on"])) for row in part]
        across = [place - 0.35 + step * number_of for place in where]
        style = {**line_style(model, models), "linestyle": ""}
        axes.errorbar(
            across,
            [row["mean"] for row in part],
            yerr=[row["std"] or 0 for row in part],
            **style,
            markersize=5,
            capsize=2,
            label=model_title(model),
        )
        papers = {x: row["paper"] for x, row in zip(across, part, strict=True) if row["paper"]}
        draw_paper(axes, list(papers), list(papers.values()), style)
    for at, place in enumerate(places):
        one = next(row for row in rows if (row["set"], row["trained_on"]) == place)
        axes.hlines(one["larger_class"], at - 0.45, at + 0.45, color="#999", linewidth=1.2)
    axes.plot([], [], **PAPER_KEY, label="paper")
    axes.plot([], [], color="#999", label="always the larger class")
    axes.set_xticks(range(len(places)), names, rotation=20, ha="right")
    axes.set_ylabel("accuracy (± deviation over seeds)")
    plain_axes(axes)
    axes.legend(frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    figure.savefig(path, dpi=130)
