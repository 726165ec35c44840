"""Sections of the page without training: evaluation, noise, retrieval, scaling, attacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from experiments.speed.publish import markdown_table

WITHOUT_GPU = (
    "No GPU was at hand: neither the Pallas kernel nor anything else has been timed on one, and "
    "the targets for GPUs are open."
)
LABELS = {"tokens": "tokens of a text", "width": "width", "batch": "texts", "depth": "layers"}


def evaluation(report: Mapping[str, Any]) -> list[str]:
    """Forward passes beside PyTorch."""
    case = ("size", "weights", "rows", "iterations")
    rows = [
        (
            *(row[name] for name in case),
            row["program"],
            f"{row['batch']} × {row['tokens']}",
            f"{row['milliseconds']:.1f} ({row['low']:.1f} to {row['high']:.1f})",
            row["rounds"],
        )
        for row in report["table"]
    ]
    ratios = [
        (
            *(row[name] for name in case),
            row["ratio"],
            f"{row['median']:.2f} ({row['low']:.2f} to {row['high']:.2f})",
        )
        for row in report["ratios"]
    ]
    failures = [
        f"`torch.compile` failed ({name}): {why}"
        for name, why in report["torch_compile_failures"].items()
    ]
    heads = (*case, "program", "texts × tokens", "ms (quartiles)", "rounds")
    return [
        f"## Evaluation\n\nLogits at equal padding; {report['clock']}.",
        markdown_table(heads, rows),
        markdown_table((*case, "ratio (goal on a CPU: at least 1)", "median (quartiles)"), ratios),
        *failures,
    ]


def noise(report: Mapping[str, Any]) -> list[str]:
    """Predictions under noise beside plain forward passes."""
    case = ("model", "weights")
    ratios = [
        (
            *(row[name] for name in case),
            row["ratio"].replace("_", " "),
            f"{row['median']:.2f} ({row['low']:.2f} to {row['high']:.2f})",
            row["rounds"],
        )
        for row in report["ratios"]
    ]
    times = ("forward_ms", "predict_ms", "predict_noisy_ms", "forward_given_ms")
    rows = [
        (
            *(row[name] for name in (*case, "site", "level")),
            f"{row['num_steps']:.2f}",
            *(f"{row[name]:.1f}" for name in times),
            f"{row['noisy_over_forward']:.2f}",
            f"{row['noisy_over_given']:.2f}",
        )
        for row in report["table"]
    ]
    heads = (*case, "site", "σ", "iterations a query", "forward, ms", "predict, ms")
    heads += ("predict noisy, ms", "forward given, ms", "noisy over forward", "over given")
    return [
        f"## Evaluation under noise\n\n{report['texts']} rows: {report['rows']}; times are "
        f"{report['clock']}. *Predict noisy* is what an experiment calls, *forward* a plain pass "
        "over the clean rows, none to fill a batch; *forward given* gets the same noise ready-made "
        "and moves the queries as often. Of all sites and levels together:",
        markdown_table(
            (
                *case,
                "ratio (goal, noisy over forward: at most 1.3)",
                "median (quartiles)",
                "rounds",
            ),
            ratios,
        ),
        markdown_table(heads, rows),
    ]


def retrieval(report: Mapping[str, Any]) -> list[str]:
    """The grid of retrievals, and latencies beside Table 4."""
    shape = ("tokens", "width", "batch", "steps")
    grid: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
    latencies = []
    for row in report["table"]:
        if row["cell"].startswith("latency"):
            latencies.append(_latency(row, report["table_4"]))
        else:
            place = (row["cell"], *(row[name] for name in shape))
            grid.setdefault(place, {})[row["program"]] = row
    known = ("hopfax XLA", "hopfax Pallas", "PyTorch loop", "PyTorch fused")
    programs = tuple(name for name in known if any(name in found for found in grid.values()))
    rows = [
        (*place, *(_time(found.get(name)) for name in programs)) for place, found in grid.items()
    ]
    provenance = report["provenance"]
    on_gpu = any("Pallas" in row["program"] for row in report["table"])
    ours = "hopfax Pallas" if on_gpu else "hopfax XLA"
    missing = report["missing_cells"]
    peaks = ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in report["peaks"].items())
    return [
        f"## Retrieval\n\nT updates of all queries and the read-out: n tokens, two heads of width "
        f"d, no projections; {provenance['clock']}. Tolerance 0: hopfax stops a query "
        "early only where an update changes nothing at all, PyTorch never does.",
        *([] if on_gpu else [WITHOUT_GPU]),
        *([f"Not measured: {'; '.join(missing)}."] if missing else []),
        f"Seconds of PyTorch over those of {ours}: above 1, hopfax is faster. Over d, batch and T "
        "the median (least to most), and in how many cells hopfax wins. Gradients are hopfax's "
        "implicit one at the last state and PyTorch's through all T updates: the same where "
        "queries have come to rest, which at 32 tokens and after one update few have. There the "
        "times compare two different gradients.",
        markdown_table(
            ("what", "n", "PyTorch loop", "cells won", "PyTorch fused", "cells won"),
            summary(grid, ours),
        ),
        "All cells: milliseconds, and beside those of a forward pass the share of the rate at "
        f"which a large product runs here (GFLOP/s: {peaks}).",
        markdown_table(("what", "n", "d", "batch", "T", *programs), rows),
        "Latency over single-pass attention of the same shape (n 128, two heads of 64, batch 32). "
        "*Fixed* stops early only where nothing moves at all, *adaptive* where a step changes a "
        "query by at most 1e-4 of its norm; the paper's text has 2.88 for that at T = 50. Goals on "
        "a GPU: 1.15 at T = 5, 1.5 adaptive.",
        markdown_table(("what", "run", "ms", "over single pass", "paper, Table 4"), latencies),
    ]


def summary(
    grid: Mapping[tuple[Any, ...], Mapping[str, Mapping[str, Any]]], ours: str
) -> Iterator[tuple[Any, ...]]:
    """Rows of the grid's summary: what and tokens, then of each peer its time over ours."""
    for what, tokens in dict.fromkeys((place[0], place[1]) for place in grid):
        cells = []
        for peer in ("PyTorch loop", "PyTorch fused"):
            ratios = [
                found[peer]["milliseconds"] / found[ours]["milliseconds"]
                for place, found in grid.items()
                if place[:2] == (what, tokens)
            ]
            cells += [
                f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
                f"{sum(ratio > 1 for ratio in ratios)} of {len(ratios)}",
            ]
        yield (what, tokens, *cells)


def _latency(row: Mapping[str, Any], table_4: Mapping[str, Sequence[float]]) -> tuple[Any, ...]:
    paper = table_4.get(str(row["steps"]))
    return (
        row["cell"].removeprefix("latency of "),
        row["program"],
        f"{row['milliseconds']:.1f}",
        f"{row['over_single_pass']:.2f}",
        f"{paper[0]:.2f} ± {paper[1]:.2f}" if paper else "",
    )


def _time(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    share = row["roofline_share"]
    return f"{row['milliseconds']:.2f}" + (f" ({share:.0%})" if share else "")


def scaling(report: Mapping[str, Any]) -> list[str]:
    """Cost per token as one factor grows."""
    rows = [
        (
            LABELS[row["factor"]],
            row["value"],
            f"{row['microseconds_per_token']:.1f} ({row['low']:.1f} to {row['high']:.1f})",
        )
        for row in report["table"]
    ]
    shape = ", ".join(f"{LABELS[name]} {value}" for name, value in report["shape"].items())
    return [
        f"## Scaling\n\nForward pass with {report['steps']} iterations in every layer; what does "
        f"not grow: {shape}; {report['clock']}.",
        "![cost per token](scaling.png)",
        markdown_table(("what grows", "to", "µs a token (quartiles)"), rows),
    ]


def attack(report: Mapping[str, Any]) -> list[str]:
    """Attacks in batches and one text a call."""
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
    heads = ("model", "attack", "program", "texts the model read", "calls", "texts a second")
    heads += ("batches are faster by (goal: at least 5)", "rounds")
    return [
        "## Attacks on text\n\nThe same attacks on the same fresh model, which all end at the same "
        "losses, and what the model takes of them: losses or gradients of texts that are ready; "
        f"{report['clock']}.",
        markdown_table(heads, rows),
    ]
