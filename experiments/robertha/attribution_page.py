"""The page of the ladder from TinyBERT to Robertha: a picture, a table, and the steps as a CSV."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.report_page import Table, write_report
from experiments.robertha.compared import dodged, plain_axes
from experiments.robertha.labels import level_label, number, with_interval
from experiments.robertha.measurements import Measurements, load, missing
from experiments.robertha.statistics import mean_by_seed, paired_difference, summarize
from experiments.rundir import write_csv

COLUMNS = ("rung", "change", "model", "site", "after", "level", "snr_db")
COLUMNS += ("mean", "std", "step", "step_low", "step_high", "num_seeds")
NOTES = (
    "Scores are 0 to 100, means over the tasks and over the seeds. A step is what a change adds to "
    "the rung it starts from, the seeds paired; brackets are Student's 95 % intervals over seeds: "
    "they speak about training again, not about other tasks.",
    "Noise has the same σ everywhere. All rungs but the first, and the one with unit-scale "
    "embeddings, have it after the embedding LayerNorm.",
)


class Rung(NamedTuple):
    """A step of the ladder.

    Attributes:
        change: What it changes.
        model: The model it arrives at.
        site: Where that one's noise is added.
        after: Number of the rung it starts from; None for the first.
        beside: Whether it stands beside the ladder.
    """

    change: str
    model: str
    site: str
    after: int | None
    beside: bool = False


def write_page(folder: Path, ladder: Sequence[Rung]) -> Table:
    """Writes attribution.csv, attribution.png and report.html; returns the table.

    Works on partial results: rungs that are not measured are left out, and said to be missing.
    """
    found = load(folder)
    rows = steps(found, ladder)
    write_csv(folder / "attribution.csv", COLUMNS, rows)
    lines = table(found, ladder, rows)
    pictures = {}
    if rows:
        draw(found, ladder, rows, folder / "attribution.png")
        tasks = ", ".join(map(found.title, found.grid.tasks))
        pictures["attribution.png"] = f"Score from rung to rung: mean over {tasks}"
    lacking = [f"Missing: {line}" for line in missing(found)]
    write_report(
        folder,
        "From TinyBERT to Robertha, one change at a time",
        pictures=pictures,
        tables=[lines],
        notes=[*NOTES, *lacking],
    )
    return lines


def steps(found: Measurements, ladder: Sequence[Rung]) -> list[dict[str, Any]]:
    """One row a rung and level: the score, and what the change added."""
    rows = []
    for place, rung in enumerate(ladder):
        for level in (0.0, *found.grid.levels):
            here = scores(found, rung, level)
            summary = summarize(here)
            if summary is None:
                continue
            added = None
            if rung.after is not None:
                added = paired_difference(here, scores(found, ladder[rung.after], level))
            rows.append(
                {
                    "rung": place,
                    "change": rung.change,
                    "model": rung.model,
                    "site": rung.site,
                    "after": rung.after,
                    "level": level,
                    "snr_db": ratio(found, rung, level),
                    "mean": summary.mean,
                    "std": summary.std,
                    "step": added.mean if added else None,
                    "step_low": added.low if added else None,
                    "step_high": added.high if added else None,
                    "num_seeds": summary.num_seeds,
                }
            )
    return rows


def scores(found: Measurements, rung: Rung, level: float) -> dict[int, float]:
    """By seed, the mean over the tasks; empty unless all of them are there."""
    return mean_by_seed(
        [found.at(task, rung.model, rung.site, "sigma", level) for task in found.grid.tasks]
    )


def ratio(found: Measurements, rung: Rung, level: float) -> float | None:
    """Mean over the tasks of the realised SNR, in dB."""
    cells = [
        cell
        for cell in found.snr_db
        if (cell.model, cell.site, cell.level) == (rung.model, rung.site, level)
    ]
    return sum(found.snr_db[cell] for cell in cells) / len(cells) if cells else None


def table(found: Measurements, ladder: Sequence[Rung], rows: Sequence[dict[str, Any]]) -> Table:
    """A line a rung: its score at every level, and the step to it in brackets."""
    levels = (0.0, *found.grid.levels)
    heads = [level_label("sigma", level) if level else "clean" for level in levels]
    lines = [["change", *heads]]
    by_place = {(row["rung"], row["level"]): row for row in rows}
    for place in dict.fromkeys(row["rung"] for row in rows):
        parts = [by_place.get((place, level)) for level in levels]
        change = ("beside: " if ladder[place].beside else "") + ladder[place].change
        lines.append([change, *map(_entry, parts)])
    return lines


def _entry(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    text = number(row["mean"])
    if row["step"] is None:
        return text
    return f"{text} ({with_interval(row['step'], row['step_low'], row['step_high'])})"


def draw(
    found: Measurements, ladder: Sequence[Rung], rows: Sequence[dict[str, Any]], path: Path
) -> None:
    """Scores from rung to rung, a line a level, with the deviation over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    names = {row["rung"]: row["change"] for row in rows}
    beside = {place for place, rung in enumerate(ladder) if rung.beside}
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.add_subplot()
    levels = (0.0, *found.grid.levels)
    for number_of, level in enumerate(levels):
        here = [row for row in rows if row["level"] == level]
        color = (0.1, 0.25, 0.45 + 0.1 * number_of) if not level else f"C{number_of}"
        for apart in (False, True):
            part = [row for row in here if (row["rung"] in beside) == apart]
            axes.errorbar(
                [row["rung"] + 0.5 * dodged(number_of, len(levels)) for row in part],
                [row["mean"] for row in part],
                yerr=[row["std"] or 0 for row in part],
                color=color,
                marker="s" if apart else "o",
                markersize=4,
                linestyle="" if apart else "-",
                capsize=2,
                linewidth=1.4,
                label=None if apart else (f"σ = {level:g}" if level else "clean"),
            )
    titles = [("beside: " if place in beside else "") + title for place, title in names.items()]
    axes.set_xticks(list(names), titles, rotation=30, ha="right")
    axes.set_ylabel("score (± deviation over seeds)")
    plain_axes(axes)
    axes.legend(frameon=False, ncols=len(levels), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    figure.savefig(path, dpi=130)
