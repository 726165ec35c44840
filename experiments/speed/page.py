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
from experiments.speed import forward_sections, training_sections
from experiments.speed.publish import markdown_table

RATIOS = {
    "buckets_over_torch": "hopfax in length buckets over PyTorch padded to 128 (goal: at least 5)",
    "equal_padding_over_torch": "both padded to 128 (goal: at least 1)",
    "five_seeds_over_one": "time of five vmapped seeds over time of one",
}
STABILITY_GOALS = {"ten rhos over one": "at most 6"}
COLORS = {"hopfax": "#3465a4", "PyTorch": "#c17d11"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes `README.md`, and pictures of train step and scaling where those were measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args(arguments).folder
    parts = [
        "# Speed and memory",
        "What is measured, and how: [`experiments/speed/README.md`](../../speed/README.md).",
    ]
    sections = (
        ("train_step", _train_step),
        ("profile_step", forward_sections.profile_step),
        ("evaluation", forward_sections.evaluation),
        ("retrieval", forward_sections.retrieval),
        ("scaling", forward_sections.scaling),
        ("memory", _memory),
        ("stability", _stability),
        ("seeds", _seeds),
        ("esr", training_sections.esr),
        ("attack", training_sections.attack),
        ("waiting", training_sections.waiting),
    )
    if not any((folder / f"{name}.json").is_file() for name, _ in sections):
        names = ", ".join(f"{name}.json" for name, _ in sections)
        parser.error(f"{folder} has none of {names}: measure one first, see experiments/speed")
    for name, section in sections:
        path = folder / f"{name}.json"
        if path.exists():
            report = json.loads(path.read_text(encoding="utf-8"))
            parts += [*section(report), _origin(report["provenance"])]
            if name == "train_step":
                draw(report["table"], folder / "train_step.png")
            elif name == "scaling":
                forward_sections.draw_scaling(report, folder / "scaling.png")
    write_whole(folder / "README.md", "\n\n".join(parts) + "\n")


def draw(table: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Bars of examples per second; the numbers are in the .csv of the same name."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    weights = list(dict.fromkeys(row["weights"] for row in table))
    figure = Figure(figsize=(8, 0.9 + 1.9 * len(weights)), layout="constrained")
    for number, name in enumerate(weights, start=1):
        axes = figure.add_subplot(len(weights), 1, number)
        rows = [row for row in table if row["weights"] == name][::-1]
        labels = [_label(row) for row in rows]
        rates = [row["examples_per_second"] for row in rows]
        below = [row["examples_per_second"] - row["low"] for row in rows]
        above = [row["high"] - row["examples_per_second"] for row in rows]
        colors = [COLORS[row["program"]] for row in rows]
        axes.barh(labels, rates, xerr=(below, above), color=colors, error_kw={"linewidth": 1})
        for place, rate in enumerate(rates):
            axes.annotate(f" {rate:,.0f}", (rate, place), (6, 0), textcoords="offset points")
        axes.set_xlim(0, 1.2 * max(row["high"] for row in rows))
        axes.set_title(f"weights: {name}", fontsize=10, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("training examples per second (median and quartiles)", fontsize=10)
    figure.savefig(path, dpi=120)


def _label(row: Mapping[str, Any]) -> str:
    seeds = "" if row["seeds"] == 1 else f", {row['seeds']} seeds"
    return f"{row['program']}, padded to {row['padding']}{seeds}"


def _train_step(report: Mapping[str, Any]) -> list[str]:
    rows = [
        (
            row["weights"],
            row["program"],
            row["padding"],
            row["seeds"],
            f"{row['examples_per_second']:.0f} ({row['low']:.0f} to {row['high']:.0f})",
            f"{row['milliseconds_per_step']:.1f}",
            f"{row['iterations_per_query']:.1f}",
            f"{row['loop_trips']:.0f}",
            row["rounds"],
        )
        for row in report["table"]
    ]
    heads = ("weights", "program", "padded to", "seeds", "examples/s (quartiles)", "ms a step")
    heads += ("iterations a query", "loop trips, both layers", "rounds")
    ratios = [
        (weights, RATIOS[name], f"{r['median']:.1f} ({r['low']:.1f} to {r['high']:.1f})")
        for weights, found in report["ratios"].items()
        for name, r in found.items()
    ]
    return [
        f"## Train step\n\nBase Robertha with ESR, batch 32, rows: {report['rows']}; "
        f"seconds of {report['clock']}.",
        markdown_table(heads, rows),
        markdown_table(("weights", "ratio", "median (quartiles) over rounds"), ratios),
        "![examples per second](train_step.png)",
    ]


def _memory(report: Mapping[str, Any]) -> list[str]:
    rows = [
        (
            row["what"],
            row["max_steps"],
            f"{row['implicit_mb']:.1f}",
            f"{row['unrolled_mb']:.1f}",
            f"{row['unrolled_over_implicit']:.1f}",
        )
        for row in report["table"]
    ]
    heads = ("gradient of", "T", "implicit, MB", "unrolled, MB", "ratio (goal: at least 5)")
    return ["## Temporary memory of the compiled gradient", markdown_table(heads, rows)]


def _stability(report: Mapping[str, Any]) -> list[str]:
    timed = [
        (
            row["program"],
            f"{row['seconds']:.2f} ({row['low']:.2f} to {row['high']:.2f})",
            f"{1e6 * row['seconds'] / report['num_samples']:.2f}",
            # Of peers nothing is compiled, and ten rhos have ten errors.
            f"{row['compile_seconds']:.1f}" if row["compile_seconds"] else "",
            f"{row['mean']:.5f} ± {row['standard_error']:.5f}" if row["rhos"] == 1 else "",
            f"{row['seconds_at_equal_error']:.2f}" if row["rhos"] == 1 else "",
            row["copies"],
            row["rounds"],
        )
        for row in report["table"]
    ]
    heads = ("program", "seconds (quartiles)", "µs a pair", "compilation, s")
    heads += ("mean ± standard error", "seconds to the peer's error", "copies", "rounds")
    ratios = [
        (
            f"{name} (goal: {STABILITY_GOALS.get(name, 'at least 3')})",
            f"{r['median']:.2f} ({r['low']:.2f} to {r['high']:.2f})",
        )
        for name, r in report["ratios"].items()
    ]
    memory = [
        (
            row["copies"],
            f"{row['num_samples']:,}",
            *(f"{row[name]:.1f}" for name in ("peak_mb", "before_mb", "temporary_mb")),
        )
        for row in report["memory"]
    ]
    exact = next(row["exact"] for row in report["table"] if row["rhos"] == 1)
    width, batch = report["width"], report["batch_size"]
    threads = ", ".join(f"{k}={v}" for k, v in report["provenance"]["threads_set"].items())
    return [
        f"## Noise stability\n\n{report['num_samples']:,} Gaussian pairs at rho {report['rho']}, "
        f"network {width}-{width}-1 with ReLU, batches of {batch}; seconds of {report['clock']}. "
        f"Exactly {exact:.5f}, and every estimate within 5 standard errors of it; numpy "
        f"{report['provenance']['numpy']}, threads set: {threads or 'none'}.",
        markdown_table(heads, timed),
        markdown_table(("ratio of seconds", "median (quartiles) over rounds"), ratios),
        "Memory, each row in a process of its own; the peak before the estimate is that of imports "
        "and compilation. A pilot takes some pairs to run at all, and then is part of the program.",
        markdown_table(
            ("copies", "pairs", "peak, MB", "before it, MB", "XLA's temporaries, MB"), memory
        ),
    ]


def _seeds(report: Mapping[str, Any]) -> list[str]:
    rows = [
        (
            row["size"],
            row["arm"],
            f"{row['together_seconds']:.2f}",
            f"{row['apart_seconds']:.2f}",
            f"{row['apart_over_together']:.2f} ({row['low']:.2f} to {row['high']:.2f})",
            row["rounds"],
            f"{row['together_compile_seconds']:.0f}, {row['apart_compile_seconds']:.0f}",
        )
        for row in report["table"]
    ]
    runs = report["table"][0]["runs"]
    heads = ("modular addition", "arm", "one vmap, s", "one after another, s")
    heads += ("ratio (goal: at least 3)", "rounds", "compilation, s: all runs, one run")
    return [
        f"## {runs} runs at once\n\n{report['epochs']} epochs of {runs} runs, compiled before.",
        markdown_table(heads, rows),
    ]


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
