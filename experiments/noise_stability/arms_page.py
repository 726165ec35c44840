"""Arms of a comparison as pictures, tables and one page: who arrives when, and at what cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.noise_stability import arms
from experiments.noise_stability.cells import Cell
from experiments.noise_stability.outcomes import survival
from experiments.report_page import print_table, write_report
from experiments.rundir import write_csv

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOTES = (
    "Medians over runs. Intervals: 95 %, from resampled runs, an arm's and plain's seed by seed; "
    "from fewer than six runs they cover less (from three some 75 %).",
    "never: at most half of the runs reached the target accuracy while they were followed. Where "
    "that is so of plain, the percentage is what is saved at least. ?: it is so of both.",
    "Runs of an arm are followed until the slowest has arrived, or the budget ends: what is "
    "measured at the end is of different steps in different arms.",
    "Equal compute: rows that went through the network forward and backward, noisy copies too.",
    "The paper's figures are of its own sizes and single runs.",
)
COLOURS = ("#000000", "#0072B2", "#D55E00", "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#999999")


def write_page(
    folder: Path,
    cells: Mapping[str, Sequence[Cell]],
    *,
    title: str,
    extra: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Writes results.csv, arms.csv, a figure with its csv for each task, and report.html.

    Args:
        folder: The run's.
        cells: Arms by task.
        title: Of the page.
        extra: One more table, its columns the first row's.
    """
    rows = [row for task, each in cells.items() for row in arms.summary(task, each)]
    write_csv(folder / "results.csv", *arms.results(cells))
    write_csv(folder / "arms.csv", *arms.flat(rows))
    for task, each in cells.items():
        write_csv(folder / f"{task}.csv", *arms.curves(each))
        draw(task, each, rows, folder / f"{task}.png")
    pictures = {f"{task}.png": task for task in cells}
    write_report(folder, title, pictures=pictures, tables=_tables(rows, extra), notes=NOTES)


def print_arms(
    cells: Mapping[str, Sequence[Cell]], *, extra: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Prints the tables of the page; see `write_page`."""
    rows = [row for task, each in cells.items() for row in arms.summary(task, each)]
    for lines in _tables(rows, extra):
        print_table(lines)
        print()


def _tables(
    rows: Sequence[arms.ArmRow], extra: Sequence[Mapping[str, Any]]
) -> list[list[tuple[str, ...]]]:
    tables = [arms.table(rows)]
    if extra:
        tables.append([tuple(extra[0]), *(tuple(map(str, row.values())) for row in extra)])
    return tables


def draw(task: str, cells: Sequence[Cell], rows: Sequence[arms.ArmRow], path: Path) -> None:
    """Who has not arrived yet, what was gained, stability over training, and the sweep."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(13, 9), layout="constrained")
    shown = [cell for cell in cells if cell.name != arms.SWEEP]
    if any(np.isfinite(cell.steps).any() for cell in shown):
        _draw_survival(axes[0, 0], shown)
        _draw_reductions(axes[0, 1], task, [row for row in rows if row.task == task])
    else:
        _draw_accuracy(axes[0, 0], shown, of_training=True)
        _draw_nobody(axes[0, 1], shown)
    _draw_stability(axes[1, 0], shown)
    swept = [cell for cell in cells if cell.name == arms.SWEEP]
    if swept:
        _draw_sweep(axes[1, 1], swept[0])
    else:
        _draw_accuracy(axes[1, 1], shown)
    for panel in axes.flat:
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_survival(panel: Axes, cells: Sequence[Cell]) -> None:
    for cell, colour in zip(cells, COLOURS, strict=False):
        times, shares = survival(cell.steps)
        # As far as it was followed: nothing is known of those left after that.
        end = len(cell.history.loss) * cell.steps_per_epoch
        times, shares = np.append(times, end), np.append(shares, shares[-1])
        panel.step(times, shares, where="post", color=colour, label=cell.name)
    panel.set(
        title=f"runs without {cells[0].target:.0%} on the {cells[0].target_on} rows",
        xlabel="step",
        ylabel="share of the runs",
        ylim=(-0.02, 1.02),
    )
    panel.legend(frameon=False, fontsize=8)


def _draw_reductions(panel: Axes, task: str, rows: Sequence[arms.ArmRow]) -> None:
    rivals = [row for row in rows if row.arm != arms.PLAIN]
    low_end = -200.0
    for place, row in enumerate(rivals):
        for shift, (interval, colour, label) in enumerate(
            (
                (row.percent, "#0072B2", "steps"),
                (row.percent_compute, "#D55E00", "compute (rows through the network)"),
            )
        ):
            value, low, high = (max(part, low_end) for part in interval)
            y = place + 0.2 * shift
            panel.plot([low, high], [y, y], color=colour, lw=1.5)
            panel.plot([value], [y], "o", color=colour, ms=4, label=label if not place else None)
    panel.axvline(0, color="0.7", zorder=0)
    claimed = arms.PAPER.get(task, arms.NO_PAPER).percent
    if claimed is not None:
        panel.axvline(claimed, color="#CC79A7", ls=":", label="the paper, steps")
    panel.set(
        title="saved on the way to the target, against plain (95 %)",
        xlabel="percent of the median (cut off at −200)",
        xlim=(low_end - 5, 105),
    )
    panel.set_yticks(range(len(rivals)), [row.arm for row in rivals])
    panel.invert_yaxis()
    if rivals:
        below = {"loc": "upper center", "bbox_to_anchor": (0.4, -0.14), "ncols": 3}
        panel.legend(frameon=False, fontsize=8, **below)


def _draw_stability(panel: Axes, cells: Sequence[Cell]) -> None:
    for cell, colour in zip(cells, COLOURS, strict=False):
        share = cell.history.agreement / cell.history.confidence
        steps = cell.steps_per_epoch * (1 + np.arange(len(share)))
        panel.plot(steps, np.median(share, axis=1), color=colour, label=cell.name, lw=1)
    panel.set(
        title="noise stability at ρ = 1/2, over that at ρ = 1 (medians)",
        xlabel="step",
        ylabel="normalised stability",
    )


def _draw_nobody(panel: Axes, cells: Sequence[Cell]) -> None:
    """In place of what was saved, where there is nothing to compare."""
    steps = max(len(cell.history.loss) * cell.steps_per_epoch for cell in cells)
    text = f"no run of {cells[0].target:.0%} on the {cells[0].target_on} rows\nwithin {steps} steps"
    panel.text(0.5, 0.5, text, ha="center", va="center", fontsize=12, transform=panel.transAxes)
    panel.set_axis_off()


def _draw_accuracy(panel: Axes, cells: Sequence[Cell], *, of_training: bool = False) -> None:
    for cell, colour in zip(cells, COLOURS, strict=False):
        steps = cell.steps_per_epoch * (1 + np.arange(len(cell.history.loss)))
        found = cell.history.train_accuracy if of_training else cell.history.accuracy
        panel.plot(steps, 100 * np.median(found, axis=1), color=colour, lw=1, label=cell.name)
    rows = "training" if of_training else "validation"
    panel.set(title=f"{rows} accuracy (medians)", xlabel="step", ylabel="percent")
    if of_training:
        panel.axhline(100 * cells[0].target, color="0.7", ls=":")
        panel.legend(frameon=False, fontsize=8)


def _draw_sweep(panel: Axes, cell: Cell) -> None:
    gammas, rhos, medians = arms.sweep_table(cell)
    shown = np.where(np.isinf(medians), np.nan, medians)
    panel.imshow(shown, cmap="viridis_r", aspect="auto", alpha=0.5)  # black numbers on it
    for (i, j), value in np.ndenumerate(medians):
        text = "never" if np.isinf(value) else f"{value:.0f}"
        panel.text(j, i, text, ha="center", va="center", color="black", fontsize=9)
    panel.set_xticks(range(len(rhos)), [f"{rho:g}" for rho in rhos])
    panel.set_yticks(range(len(gammas)), [f"{gamma:g}" for gamma in gammas])
    count = len(cell.seeds) // medians.size
    panel.set(title=f"median steps, {count} seeds each", xlabel="ρ", ylabel="γ")
