"""The page of the sizes: score against parameters, tables, what the gap is at the largest size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.report_page import Table, write_report
from experiments.robertha import compared
from experiments.robertha.compared import Row
from experiments.robertha.labels import level_label, signed, with_interval
from experiments.robertha.measurements import (
    CLEAN,
    PROTOCOL_TITLES,
    SITE_TITLES,
    Cell,
    Measurements,
    load,
    missing,
    task_title,
)
from experiments.robertha.models import Variant
from experiments.robertha.paper import paper_score
from experiments.robertha.statistics import mean_by_seed, paired_difference
from experiments.rundir import read_csv, write_csv

MODEL_COLUMNS = ("task", "model", "kind", "size", "layers", "width", "vocabulary", "parameters")
MODEL_COLUMNS += ("recompute", "stored_mb", "recomputed_mb")
COLUMNS = ("task", "model", "kind", "size", "parameters", *compared.COLUMNS)
KIND_TITLES = {"tinybert": "BERT", "robertha": "Robertha"}
BASELINE = "tinybert"
NOTES = (
    compared.INTERVALS,
    "Differences in the tables are Robertha's to the BERT of its size, the seeds paired.",
    compared.SITES,
    "BERT has TinyBERT's architecture at every size: post-LN, softmax attention, [CLS]. The "
    "paper's figures for tiny are its TinyBERT and Robertha, those for base Table 5.",
)
MEMORY_NOTE = (
    "Megabytes are what XLA plans on this machine's device beside parameters and optimizer for a "
    "train step of one seed on 32 rows of 128 tokens: blocks kept, or computed anew."
)


class Entrant(NamedTuple):
    """A model of a size.

    Attributes:
        model: Its name in results.csv.
        kind: One of `KIND_TITLES`.
        size: By name.
    """

    model: str
    kind: str
    size: str


def title(entrant: Entrant) -> str:
    """A model's name for tables and pictures."""
    return f"{KIND_TITLES[entrant.kind]} {entrant.size}"


def write_page(
    folder: Path, entrants: Sequence[Entrant], variants: Mapping[str, Variant]
) -> list[Table]:
    """Writes scaling.csv, scaling.png and report.html; returns the tables, one a task.

    Works on partial results: what is not measured is left out, and said to be missing.
    """
    found = load(folder)
    models = read_csv(folder / "models.csv", MODEL_COLUMNS)
    rows = measured(found, entrants, variants, models)
    write_csv(folder / "scaling.csv", COLUMNS, rows)
    tables = [table(found, rows, models, task) for task in found.grid.tasks]
    pictures = {}
    if rows:
        draw(found, rows, folder / "scaling.png")
        pictures["scaling.png"] = (
            "Score against the number of parameters, bars the deviation over seeds"
            + ("; hollow: the paper's figures" if any(row["paper"] for row in rows) else "")
        )
    notes = [*NOTES]
    if any(each["stored_mb"] for each in models):
        notes.append(MEMORY_NOTE)
    notes += [f"Missing: {line}" for line in missing(found, variants)]
    write_report(
        folder,
        "BERT and Robertha as they grow",
        pictures=pictures,
        tables=tables,
        notes=notes,
        findings=findings(found, rows, variants),
    )
    return tables


def measured(
    found: Measurements,
    entrants: Sequence[Entrant],
    variants: Mapping[str, Variant],
    models: Sequence[Mapping[str, str]],
) -> list[Row]:
    """One row a task, model and noise: Robertha's with the difference to the BERT of its size."""
    parameters = {(each["task"], each["model"]): int(each["parameters"]) for each in models}
    rows = []
    for task in found.grid.tasks:
        for each in entrants:
            for site, protocol, level in compared.conditions(found.grid):
                name = variants[each.model].paper
                paper = paper_score(task_title(task), name, level) if name else None
                row = compared.compared(
                    found,
                    Cell(task, each.model, site, protocol, level),
                    baseline=None if each.kind == BASELINE else f"{BASELINE}-{each.size}",
                    paper=paper.mean if paper else None,
                )
                if row is not None:
                    here = {"task": task, **each._asdict()}
                    rows.append(here | {"parameters": parameters[task, each.model]} | row)
    return rows


def findings(
    found: Measurements, rows: Sequence[Row], variants: Mapping[str, Variant]
) -> list[str]:
    """Robertha minus BERT at the largest size that all tasks have, noise by noise."""
    tasks = found.grid.tasks
    for size in reversed(list(dict.fromkeys(row["size"] for row in rows))):
        names = [f"{kind}-{size}" for kind in ("robertha", BASELINE)]
        lines = [
            line
            for site, protocol, level in compared.conditions(found.grid)
            if (line := gap(found, names, variants, site, protocol, level))
        ]
        if lines:
            titles = ", ".join(map(found.title, tasks))
            over = titles if len(tasks) == 1 else f"mean over {titles}"
            return [f"Robertha minus BERT at {size}, {over}: " + "; ".join(lines) + "."]
    return []


def gap(
    found: Measurements,
    names: Sequence[str],
    variants: Mapping[str, Variant],
    site: str,
    protocol: str,
    level: float,
) -> str | None:
    """The difference of two models under one noise, and the paper's, in words."""
    here, there = (
        mean_by_seed([found.at(task, name, site, protocol, level) for task in found.grid.tasks])
        for name in names
    )
    difference = paired_difference(here, there)
    if difference is None:
        return None
    gained = with_interval(difference.mean, difference.low, difference.high)
    text = f"{noise_title(site, protocol, level)} {gained}"
    theirs = [paper_gap(task, names, variants, level) for task in found.grid.tasks]
    known = [each for each in theirs if each is not None]
    if protocol != "matched" and len(known) == len(theirs):
        text += f" (the paper's {signed(sum(known) / len(known))})"
    return text


def paper_gap(
    task: str, names: Sequence[str], variants: Mapping[str, Variant], level: float
) -> float | None:
    """The paper's difference of two models on a task, None where it lacks a figure."""
    scores = [paper_score(task_title(task), variants[name].paper or "", level) for name in names]
    here, there = scores
    return here.mean - there.mean if here and there else None


def noise_title(site: str, protocol: str, level: float) -> str:
    """A condition, for the head of a column."""
    return f"{site} site, {level_label(protocol, level)}" if level else "clean"


def table(
    found: Measurements, rows: Sequence[Row], models: Sequence[Mapping[str, str]], task: str
) -> Table:
    """A line a model: how large it is, then its scores."""
    columns = list(compared.conditions(found.grid))
    with_memory = any(each["stored_mb"] for each in models)
    noises = [noise_title(*column) for column in columns]
    memory = ["MB, blocks kept", "MB, recomputed"] if with_memory else []
    lines = [[found.title(task), "parameters", "layers × width", *memory, *noises]]
    for each in models:
        if each["task"] != task:
            continue
        same = {"task": task, "model": each["model"]}
        name = title(Entrant(each["model"], each["kind"], each["size"]))
        size = [f"{int(each['parameters']):,}", f"{each['layers']} × {each['width']}"]
        size += [each["stored_mb"], each["recomputed_mb"]] if with_memory else []
        parts = [compared.at(rows, *column, **same) for column in columns]
        lines.append([name, *size, *map(compared.entry, parts)])
    return lines


def draw(found: Measurements, rows: Sequence[Row], path: Path) -> None:
    """A row of panels a task, a column a protocol and level; a line a model and site."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(row["task"] for row in rows))
    noises = [(p, level) for p in found.grid.protocols for level in found.grid.levels]
    noises = noises or [("clean", 0.0)]
    size = (max(9, 1 + 4.2 * len(noises)), 1.2 + 3 * len(tasks))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(tasks), len(noises), squeeze=False, sharey="row")
    for axes_row, task in zip(panels, tasks, strict=True):
        of_task = [row for row in rows if row["task"] == task]
        for axes, (protocol, level) in zip(axes_row, noises, strict=True):
            draw_panel(axes, found, of_task, protocol, level)
            if task == tasks[0]:
                noise = f"{PROTOCOL_TITLES.get(protocol)}, {level_label(protocol, level)}"
                axes.set_title(noise if level else "", fontsize=10)
        name = found.title(task).replace(" (", "\n(")
        axes_row[0].set_ylabel(f"{name}\nscore")
    handles, names = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(path, dpi=130)


def draw_panel(
    axes: Any, found: Measurements, rows: Sequence[Row], protocol: str, level: float
) -> None:
    """Lines over the number of parameters: noise at each site, and none."""
    sites = {"token": "--", "embedding": "-"}
    looks = {"tinybert": ("#4d4d4d", "s"), "robertha": ("#0072B2", "o")}
    places = [(*CLEAN, 0.0, ":", "clean")]
    places += [
        (site, protocol, level, sites.get(site, "-."), SITE_TITLES.get(site, site))
        for site in found.grid.sites
        if level
    ]
    lines = [(kind, *place) for kind in looks for place in places]
    for number, (kind, site, by, at_level, dashes, words) in enumerate(lines):
        colour, marker = looks[kind]
        wanted = {"kind": kind, "site": site, "protocol": by, "level": at_level}
        here = [row for row in rows if wanted.items() <= row.items()]
        aside = 1 + 0.2 * compared.dodged(number, len(lines))
        x = [aside * row["parameters"] for row in here]
        axes.errorbar(
            x,
            [row["mean"] for row in here],
            yerr=[row["std"] or 0 for row in here],
            color=colour,
            linestyle=dashes,
            marker=marker,
            markersize=4,
            elinewidth=0.8,
            linewidth=1.4,
            label=f"{KIND_TITLES[kind]}, {words}",
        )
        paper = [(at, row["paper"]) for at, row in zip(x, here, strict=True) if row["paper"]]
        if paper:
            look = {"markeredgecolor": colour, "markerfacecolor": "white", "markersize": 7}
            axes.plot(*zip(*paper, strict=True), marker, linestyle="", zorder=4, **look)
    axes.set_xscale("log")
    sizes = {row["size"]: row["parameters"] for row in rows}
    names = [f"{size}\n{count / 1e6:.3g} M" for size, count in sizes.items()]
    axes.set_xticks(list(sizes.values()), names)
    axes.set_xticks([], minor=True)
    compared.plain_axes(axes)
