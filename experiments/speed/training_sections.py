"""Sections of the page: ESR, attacks, waiting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.speed.publish import markdown_table


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


def attack(report: Mapping[str, Any]) -> list[str]:
    """Attacks in batches and one text a call."""
    unit = "processor second" if report["cpu_seconds"] else "second"
    rows = [
        (
            row["model"],
            row["attack"],
            row["program"],
            row["texts"],
            row["calls"],
            f"{row['texts_per_second']:.0f}",
            f"{row['times']:.1f} ({row['low']:.1f} to {row['high']:.1f})",
            row["rounds"],
        )
        for row in report["table"]
    ]
    heads = ("model", "attack", "program", "texts the model read", "calls", f"texts a {unit}")
    heads += ("batches are faster by (goal: at least 5)", "rounds")
    return ["## Attacks on text", markdown_table(heads, rows)]


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
        "## Time the device waits for the host\n\nOne epoch of base Robertha with ESR, batch 32, "
        f"its validation, log and checkpoints, in a profiler's trace; rows: {report['rows']}.",
        markdown_table(heads, rows),
    ]
