"""Sections of the page: evaluation, retrieval, profile of a step, scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
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
        f"## Evaluation\n\nLogits at equal padding; seconds of {report['clock']}.",
        markdown_table(heads, rows),
        markdown_table((*case, "ratio (goal on a CPU: at least 1)", "median (quartiles)"), ratios),
        *failures,
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
    programs = ("hopfax XLA", "hopfax Pallas", "PyTorch loop", "PyTorch fused")
    rows = [
        (*place, *(_time(found.get(name)) for name in programs)) for place, found in grid.items()
    ]
    provenance = report["provenance"]
    on_gpu = any("Pallas" in row["program"] for row in report["table"])
    missing = report["missing_cells"]
    peaks = ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in report["peaks"].items())
    return [
        f"## Retrieval\n\nT updates of all queries and the read-out, two heads, no projections, "
        f"tolerance 0; seconds of {provenance['clock']}. Milliseconds, and beside those of a "
        "forward pass the share of the rate at which a large product runs here (GFLOP/s: "
        f"{peaks}).",
        *([] if on_gpu else [WITHOUT_GPU]),
        *([f"{missing} cells are missing."] if missing else []),
        markdown_table(("what", "n", "d", "batch", "T", *programs), rows),
        "Latency over single-pass attention of the same shape (n 128, two heads of 64, batch 32). "
        "*Fixed* stops early only where nothing moves at all, *adaptive* where a step changes a "
        "query by at most 1e-4 of its norm; the paper's text has 2.88 for that at T = 50. Goals on "
        "a GPU: 1.15 at T = 5, 1.5 adaptive.",
        markdown_table(("what", "run", "ms", "over single pass", "paper, Table 4"), latencies),
    ]


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
        f"tokens, fresh weights; seconds of {report['clock']}. Each part is compiled by itself, so "
        "the shares need not add up.",
        markdown_table(heads, rows),
    ]


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
        f"not grow: {shape}; seconds of {report['clock']}.",
        "![cost per token](scaling.png)",
        markdown_table(("what grows", "to", "µs a token (quartiles)"), rows),
    ]


def draw_scaling(report: Mapping[str, Any], path: Path) -> None:
    """A small panel for every factor, both axes logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.6), layout="constrained")
    first = None
    for number, (factor, label) in enumerate(LABELS.items(), start=1):
        axes = figure.add_subplot(1, len(LABELS), number, sharey=first)
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
