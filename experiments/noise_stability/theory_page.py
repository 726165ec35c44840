"""What `theory` measured as a picture, a table and a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from experiments.report_page import print_table, write_report
from experiments.rundir import write_csv

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Measured(NamedTuple):
    """One number beside what a formula says it is.

    Attributes:
        claim: Which of the paper's claims it belongs to.
        name: Which formula, or which function.
        x: Where: a correlation, a depth or a level.
        value: The measured number.
        standard_error: Of it; 0 where an interval says more.
        formula: The paper's number.
        low: Lower bound or end of the interval.
        high: Upper one.
    """

    claim: str
    name: str
    x: float
    value: float
    standard_error: float
    formula: float | None
    low: float | None = None
    high: float | None = None


# claim -> title, x label, y label
PANELS = {
    "relu": ("a ReLU unit (Theorem 5.1)", "ρ", "stability"),
    "depth": ("random ReLU networks from ρ = 0.5", "layer", "correlation"),
    "attention": ("attention with random weights (Theorem 5.3)", "ρ", "stability"),
    "interval": ("place in the interval of Lemma 11", "ρ", "0 lower end, 1 upper end"),
    "levels": ("a network that learns sign(x₀x₁)", "level", "share of the weight"),
    "estimators": ("U-statistic against pairs, equal cost", "ρ", "variance ratio"),
}
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#777777")


def write_page(folder: Path, rows: Sequence[Measured]) -> None:
    """Writes results.csv, theory.png with theory.csv, and report.html; prints the comparison."""
    results = [
        {
            "task": row.claim,
            "model": row.name,
            "corruption": "correlated pair",
            "level": row.x,
            "site": "input",
            "seed": None,
            "metric": "value",
            "score": row.value,
            "num_examples": None,
            "snr_db": None,
        }
        | {name: getattr(row, name) for name in ("standard_error", "formula", "low", "high")}
        for row in rows
    ]
    write_csv(folder / "results.csv", tuple(results[0]), results)
    write_csv(folder / "theory.csv", Measured._fields, [r._asdict() for r in rows])
    draw(rows, folder / "theory.png")
    lines = comparison(rows)
    print_table(lines)
    write_report(
        folder,
        "Layers against their theorems",
        pictures={"theory.png": "Six panels, one a claim"},
        tables=[lines],
        notes=["Points are measured, with 95 % intervals; lines are the paper's formulas."],
    )


def comparison(rows: Iterable[Measured]) -> list[tuple[str, str, str, str]]:
    """Largest distance from each formula, in the measured units and in standard errors."""
    found: dict[tuple[str, str], list[Measured]] = {}
    for row in rows:
        if row.formula is not None:
            found.setdefault((row.claim, row.name), []).append(row)
    lines = [("claim", "formula", "largest |measured - formula|", "in standard errors")]
    for (claim, name), group in found.items():
        worst = max(group, key=lambda r: abs(r.value - _number(r.formula)))
        distance = abs(worst.value - _number(worst.formula))
        errors = [
            abs(r.value - _number(r.formula)) / r.standard_error
            for r in group
            if r.standard_error > 0
        ]
        lines.append((claim, name, f"{distance:.4f}", f"{max(errors, default=0):.1f}"))
    return lines


def draw(rows: Sequence[Measured], path: Path) -> None:
    """One panel a claim: measured points with their errors over the formulas' lines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(15, 8), layout="constrained")
    for panel, (claim, (title, x_label, y_label)) in zip(axes.flat, PANELS.items(), strict=True):
        group = [row for row in rows if row.claim == claim]
        names = list(dict.fromkeys(row.name for row in group))
        for number, name in enumerate(names):
            colour = COLOURS[number % len(COLOURS)]
            _line(panel, claim, name, [r for r in group if r.name == name], colour, number == 0)
        panel.set(title=title, xlabel=x_label, ylabel=y_label)
        panel.spines[["top", "right"]].set_visible(False)
        if claim == "estimators":
            panel.set_yscale("log")
            panel.axhline(1, color="0.7", zorder=0)
        names_go = {}
        if claim == "interval":
            # Curves everywhere: the names go below them.
            panel.set_ylim(-0.3, 1.05)
            names_go = {"ncols": 3, "loc": "lower center"}
        panel.legend(frameon=False, fontsize=8, **names_go)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _line(
    panel: Axes, claim: str, name: str, group: list[Measured], colour: str, first: bool
) -> None:
    xs = [row.x for row in group]
    values = [row.value for row in group]
    errors = [1.96 * row.standard_error for row in group]
    if claim == "interval":
        # 0/0 where both ends meet.
        wide = [r for r in group if _number(r.high) - _number(r.low) > 1e-9]
        places = [(r.value - _number(r.low)) / (_number(r.high) - _number(r.low)) for r in wide]
        panel.plot([r.x for r in wide], places, "o:", color=colour, label=name, ms=4, lw=1)
    elif claim == "levels":
        below = [max(r.value - _number(r.low), 0) for r in group]
        above = [max(_number(r.high) - r.value, 0) for r in group]
        panel.errorbar(xs, values, yerr=[below, above], fmt="o-", color=colour, label=name, ms=4)
        panel.set_xticks(xs, [*(f"{x:.0f}" for x in xs[:-1]), f"≥{xs[-1]:.0f}"])
    elif claim == "estimators":
        panel.errorbar(xs, values, errors, fmt="o-", color=colour, label=name, ms=4)
    else:
        panel.plot(xs, [_number(row.formula) for row in group], "-", color=colour, label=name)
        # The formulas of one claim speak of the same points, but for attention's, of other sizes.
        own = claim == "attention"
        if own or first:
            label = f"measured, {name.split(', ')[-1]}" if own else "measured, 95 %"
            shade = colour if own else "black"
            panel.errorbar(xs, values, errors, fmt="o", color=shade, ms=4, zorder=3, label=label)


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
