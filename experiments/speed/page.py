"""Writes the page of a folder of results from its .json files: tables, origin and a picture.

python -m experiments.speed.page experiments/results/speed
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.rundir import write_whole
from experiments.speed import draws, forward_sections, goals, stability_section, training_sections

COLORS = {"hopfax": "#3465a4", "PyTorch": "#c17d11", "PyTorch, compiled": "#e9b96e"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes `README.md`, and pictures of train step and scaling where those were measured."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.speed.page",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="of results; the page is written there")
    folder: Path = parser.parse_args(arguments).folder
    parts = [
        "# Speed and memory",
        "What is measured, and how: [`experiments/speed/README.md`](../../speed/README.md).",
    ]
    sections = (
        ("train_step", training_sections.train_step),
        ("profile_step", training_sections.profile_step),
        ("evaluation", forward_sections.evaluation),
        ("noise", forward_sections.noise),
        ("retrieval", forward_sections.retrieval),
        ("scaling", forward_sections.scaling),
        ("memory", training_sections.memory),
        ("stability", stability_section.stability),
        ("seeds", training_sections.seeds),
        ("draws", draws.section),
        ("esr", training_sections.esr),
        ("attack", forward_sections.attack),
        ("waiting", training_sections.waiting),
    )
    paths = {name: folder / f"{name}.json" for name, _ in sections}
    reports = {
        name: json.loads(path.read_text(encoding="utf-8"))
        for name, path in paths.items()
        if path.is_file()
    }
    if not reports:
        names = ", ".join(f"{name}.json" for name, _ in sections)
        parser.error(f"{folder} has none of {names}: measure one first, see experiments/speed")
    parts += goals.section(reports)
    for name, section in sections:
        if report := reports.get(name):
            parts += [*section(report), _origin(report["provenance"])]
            if name == "train_step":
                draw(report["table"], folder / "train_step.png")
            elif name == "scaling":
                draw_scaling(report, folder / "scaling.png")
    write_whole(folder / "README.md", "\n\n".join(parts) + "\n")


def draw(table: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Bars of examples per second; the numbers are in the .csv of the same name."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    cases = list(dict.fromkeys((row["size"], row["weights"]) for row in table))
    heights = [0.8 + sum((row["size"], row["weights"]) == case for row in table) for case in cases]
    figure = Figure(figsize=(8, 0.9 + 0.38 * sum(heights)), layout="constrained")
    grid = figure.add_gridspec(len(cases), 1, height_ratios=heights)
    for number, case in enumerate(cases):
        axes = figure.add_subplot(grid[number])
        rows = [row for row in table if (row["size"], row["weights"]) == case][::-1]
        labels = [_label(row) for row in rows]
        rates = [row["examples_per_second"] for row in rows]
        below = [row["examples_per_second"] - row["low"] for row in rows]
        above = [row["high"] - row["examples_per_second"] for row in rows]
        colors = [COLORS[row["program"]] for row in rows]
        axes.barh(labels, rates, xerr=(below, above), color=colors, error_kw={"linewidth": 1})
        for place, row in enumerate(rows):
            text = f" {training_sections.rate(row['examples_per_second'])}"
            axes.annotate(text, (row["high"], place), (3, 0), textcoords="offset points")
        axes.set_xlim(0, 1.2 * max(row["high"] for row in rows))
        axes.set_title(f"{case[0]}, weights: {case[1]}", fontsize=10, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("training examples per second (median and quartiles)", fontsize=10)
    figure.savefig(path, dpi=120)


def _label(row: Mapping[str, Any]) -> str:
    seeds = "" if row["seeds"] == 1 else f", {row['seeds']} seeds"
    return f"{row['program']}, padded to {row['padding']}{seeds}"


def draw_scaling(report: Mapping[str, Any], path: Path) -> None:
    """A small panel for every factor, both axes logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.6), layout="constrained")
    first = None
    for number, (factor, label) in enumerate(forward_sections.LABELS.items(), start=1):
        axes = figure.add_subplot(1, len(forward_sections.LABELS), number, sharey=first)
        first = first or axes
        rows = [row for row in report["table"] if row["factor"] == factor]
        values = [row["value"] for row in rows]
        costs = [row["microseconds_per_token"] for row in rows]
        axes.loglog(values, costs, "o-", color="#3465a4", base=2, markersize=4)
        axes.fill_between(
            values, [row["low"] for row in rows], [row["high"] for row in rows], alpha=0.25
        )
        axes.set_xticks(values, [str(value) for value in values], fontsize=8)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel(label, fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        if number > 1:
            axes.tick_params(labelleft=False)
    assert first is not None
    first.set_ylabel("µs a token", fontsize=9)
    figure.savefig(path, dpi=120)


def _origin(origin: Mapping[str, Any]) -> str:
    versions = [f"{name} {origin[name]}" for name in ("python", "jax", "flax")]
    if "torch" in origin:
        versions.append(f"torch {origin['torch']} with {origin['torch_threads']} threads")
    changed = " with changes" if origin["dirty"] else ""
    return (
        f"`{origin['command']}`, {origin['date'][:10]}, commit {origin['commit'][:10]}{changed}; "
        f"{origin['cpu']}, {origin['cores']} cores, jax on {origin['device']}; "
        f"{', '.join(versions)}."
    )


if __name__ == "__main__":
    main()
