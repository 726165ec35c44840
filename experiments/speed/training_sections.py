"""Sections of the page about training: the step, its parts and memory, many runs, ESR, waiting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.speed.publish import markdown_table

RATIOS = {
    "buckets_over_torch": "hopfax in length buckets over PyTorch padded to 128 (goal: at least 5)",
    "equal_padding_over_torch": "both padded to 128 (goal: at least 1)",
    "equal_padding_over_compiled_torch": "both padded to 128, PyTorch by `torch.compile`",
}


def train_step(report: Mapping[str, Any]) -> list[str]:
    """Train steps beside PyTorch, and their ratios."""
    rows = [
        (
            row["size"],
            row["weights"],
            row["program"],
            row["padding"],
            row["seeds"],
            f"{rate(row['examples_per_second'])} ({rate(row['low'])} to {rate(row['high'])})",
            f"{row['milliseconds_per_step']:.1f}",
            f"{row['iterations_per_query']:.1f}",
            f"{row['loop_trips']:.0f}",
            row["rounds"],
        )
        for row in report["table"]
    ]
    heads = ("size", "weights", "program", "padded to", "seeds", "examples/s (quartiles)")
    heads += ("ms a step", "iterations a query", "loop trips, all layers", "rounds")
    ratios = [
        (weights, _ratio_title(name), f"{r['median']:.1f} ({r['low']:.1f} to {r['high']:.1f})")
        for weights, found in report["ratios"].items()
        for name, r in found.items()
    ]
    return [
        "## Train step\n\nRobertha with ESR, batch 32 (large: 4), rows: "
        f"{report['rows']}; {report['clock']}.",
        markdown_table(heads, rows),
        markdown_table(("size and weights", "ratio", "median (quartiles) over rounds"), ratios),
        *(
            f"`torch.compile` failed ({case}): {why}."
            for case, why in report["torch_compile_failures"].items()
        ),
        *(f"Not measured: {case}." for case in report.get("missing_cells", ())),
        "![examples per second](train_step.png)",
    ]


def rate(value: float) -> str:
    """Examples a second; a large model makes few."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"


def _ratio_title(name: str) -> str:
    if name in RATIOS:
        return RATIOS[name]
    return f"time of {name.split('_')[0]} vmapped seeds over time of one"


def profile_step(report: Mapping[str, Any]) -> list[str]:
    """Parts of the train step."""
    rows = [
        (
            row["part"].replace("  ", "&nbsp;&nbsp;"),
            row["calls"],
            "" if row["forward_ms"] is None else f"{row['forward_ms']:.1f}",
            f"{row['both_ms']:.1f} ({row['low']:.1f} to {row['high']:.1f})",
            f"{row['share']:.0%}",
        )
        for row in report["table"]
    ]
    heads = ("part", "calls", "forward, ms", "with its gradient, ms (quartiles)", "share")
    return [
        f"## Profile of the base train step\n\nBatch {report['batch']} of {report['tokens']} real "
        f"tokens, fresh weights; {report['clock']}. Each part is compiled by itself, so "
        "the shares need not add up.",
        markdown_table(heads, rows),
    ]


def memory(report: Mapping[str, Any]) -> list[str]:
    """What XLA plans for a gradient."""
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


def seeds(report: Mapping[str, Any]) -> list[str]:
    """Runs under one vmap, beside the same one after another."""
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


def esr(report: Mapping[str, Any]) -> list[str]:
    """What each entropy adds to a train step."""
    entropies = list(dict.fromkeys(row["entropy"] for row in report["table"]))
    entropies.remove("none")
    cells: dict[tuple[Any, ...], dict[str, str]] = {}
    for row in report["table"]:
        text = f"{row['milliseconds']:.{1 if row['weights'] else 2}f}"
        if row["entropy"] != "none" and row["weights"]:
            text += f", {row['added']:+.1f} % ({row['added_low']:+.1f} to {row['added_high']:+.1f})"
        place = (row["what"], row["weights"], row["tokens"], row["width"], row["rounds"])
        cells.setdefault(place, {})[row["entropy"]] = text
    steps = [
        (weights, tokens, found["none"], *(found[name] for name in entropies), rounds)
        for (_, weights, tokens, _, rounds), found in cells.items()
        if weights
    ]
    alone = [
        (what, width, tokens, *(found[name] for name in entropies), rounds)
        for (what, weights, tokens, width, rounds), found in cells.items()
        if not weights
    ]
    errors = [
        (
            row["weights"],
            row["tokens"],
            f"{100 * row['value']:.2f} %",
            f"{100 * row['gradient']:.2f} %",
            row["keys"],
        )
        for row in report["errors"]
    ]
    names = [name.replace("_", " ") for name in entropies]
    return [
        f"## ESR by entropy\n\nBase Robertha's train step, batch 32, rows: {report['rows']}; "
        f"milliseconds of {report['clock']}, and what ESR adds to the step without it (goal: at "
        "most 30 % on a CPU, 15 % on a GPU), medians and quartiles over rounds.",
        markdown_table(("weights", "padded to", "no ESR", *names, "rounds"), steps),
        "The penalty alone, milliseconds for the keys of 32 texts in two layers, normally "
        "distributed:",
        markdown_table(("what", "width", "tokens", *names, "rounds"), alone),
        "Shannon by matrix products, largest relative error over texts and layers (goal: under "
        "1 %), beside eigenvalues in float64:",
        markdown_table(
            ("weights", "padded to", "of the entropy", "of its gradient", "keys of"), errors
        ),
    ]


def waiting(report: Mapping[str, Any]) -> list[str]:
    """How long the device waits for the host."""
    rows = [
        (
            row["seeds"],
            row["steps"],
            f"{row['seconds']:.1f}",
            f"{row['waiting_percent']:.2f}",
            f"{row['longest_wait_ms']:.0f}",
        )
        for row in report["table"]
    ]
    heads = ("seeds", "steps", "seconds", "waiting, % (goal: under 2)", "longest wait, ms")
    return [
        "## Time the device waits for the host\n\nSo many steps of base Robertha with ESR, batch "
        "32, their validation, log and checkpoints, in a profiler's trace; rows: "
        f"{report['rows']}.",
        markdown_table(heads, rows),
    ]
