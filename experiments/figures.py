"""The project's figures: lines in facets, differences as a forest plot, and separate panels.

A model has the same look in every figure. Open marks are the paper's scores.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, GRID = "#333333", "#8a8a8a", "#e6e6e6"
MOST_TICKS = 8  # with more named levels, only about five are labeled
MOST_BANDS = 4  # more bands would hide each other
MIN_RANGE = 10.0  # of a score axis, so that differences from rounding look small
SNR = "signal-to-noise ratio in dB"  # axes with this label decrease, so that noise grows
LEVELS = {"constant": ":", "clean": "--"}  # columns drawn as horizontal lines, and their dashes


class Look(NamedTuple):
    """Appearance of one series, distinct for color-blind readers and in black and white."""

    color: str
    marker: str
    dashes: str


LOOKS = {
    "tinybert": Look("#4d4d4d", "s", "-"),
    "robertha": Look("#0072B2", "o", "-"),
    "tinybert-unit-scale": Look("#E69F00", "P", "-."),
    "tinybert-mean": Look("#44AA99", "D", "--"),
    "tinybert-mean-prenorm": Look("#8C564B", "<", "--"),
    "tinybert-mean-prenorm-dropout": Look("#999933", "d", "-."),
    "freelb": Look("#009E73", "^", "--"),
    "data-augment": Look("#882255", "h", "--"),
    "universal": Look("#AA4499", "v", "-"),
    "robertha-no-esr": Look("#D55E00", "^", "--"),
    "tinybert-memory": Look("#CC79A7", "D", "--"),
    "noise-trained": Look("#E69F00", "P", "-."),
    "baseline": Look("#4d4d4d", "s", "-"),
    "stability_reg": Look("#0072B2", "o", "-"),
    "stability_reg-negative": Look("#D55E00", "^", "--"),
    "trained": Look("#0072B2", "o", "-"),
    "random": Look("#8a8a8a", "s", "--"),
    "nearest": Look("#009E73", "^", "-."),
    "unigram": Look("#E69F00", "P", "--"),
    "bigram": Look("#882255", "h", ":"),
    "greedy": Look("#D55E00", "v", "--"),
    "beam": Look("#0072B2", "o", "-"),
    "measured": Look("#333333", "o", "none"),
}
OURS = LOOKS["robertha"]
# One look for one method, whatever the encoder.
SAME = {
    "pretrained": "tinybert",
    "pretrained-memory": "tinybert-memory",
    "pretrained-noise-trained": "noise-trained",
    "pretrained-freelb": "freelb",
    "pretrained-nearest": "nearest",
    "none": "tinybert",
    "memory": "tinybert-memory",
}
LOOKS |= {name: LOOKS[same] for name, same in SAME.items()}
SPARE = (
    Look("#0072B2", "v", "--"),
    Look("#D55E00", "o", ":"),
    Look("#009E73", "s", "-."),
    Look("#CC79A7", "D", "--"),
    Look("#E69F00", "<", ":"),
    Look("#56B4E9", ">", "-."),
    Look("#882255", "p", "--"),
    Look("#999933", "*", ":"),
)
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": GRID,
    "lines.linewidth": 2,
    "lines.markersize": 6,
    "legend.frameon": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.dpi": 110,
    "savefig.dpi": 130,
}


def look(name: str, names: Sequence[str]) -> Look:
    """Returns the look of a series; names that are not in `LOOKS` take spare looks in order."""
    others = [each for each in names if each not in LOOKS]
    return LOOKS[name] if name in LOOKS else SPARE[others.index(name) % len(SPARE)]


def facets(
    table: pd.DataFrame,
    *,
    x: str,
    hue: str = "model",
    row: str | None = None,
    col: str | None = None,
    titles: Mapping[Any, str] | None = None,
    xlabel: str = "",
    ylabel: str | Mapping[Any, str] = "score",
    least_range: float = MIN_RANGE,
    log: bool = False,
) -> Figure:
    """Lines with 95 % bands over an ordered axis, one panel per value of `row` and `col`.

    The table has `x`, `hue`, `row`, `col`, and `mean`, `low`, `high`; optionally `paper`, drawn as
    open marks, and as lines `constant`, the score of the majority baseline, `clean`, the score
    without noise, and `limit`, the SNR below which no method can work. Values keep the order of the
    table. Numbers of `x` are drawn to scale, texts at equal steps. `titles` has what to print for
    values; `ylabel` may be one for each value of `row`. The vertical axis has at least the range
    `least_range`; `log` makes the horizontal one logarithmic.
    """
    names, hues = titles or {}, list(table[hue].unique())
    rows, cols = _values(table, row), _values(table, col)
    words = max(len(str(names.get(each, each))) for each in hues)  # of the legend
    width = max(1.2 + 3.4 * len(cols), 0.6 + 0.08 * words)
    size = width, 1.3 + 2.7 * len(rows) + 0.13 * len(hues)
    with _figure(size) as figure:
        grid = figure.subplots(len(rows), len(cols), squeeze=False, sharey="row")
        for axes_of_row, of_row in zip(grid, rows, strict=True):
            subset = _where(table, row, of_row)
            for axes, of_col in zip(axes_of_row, cols, strict=True):
                _lines(axes, _where(subset, col, of_col), x=x, hue=hue, hues=hues, names=names)
                if col and of_row == rows[0]:
                    axes.set_title(names.get(of_col, str(of_col)))
                if of_row == rows[-1]:
                    axes.set_xlabel(xlabel)
                if xlabel == SNR:
                    axes.invert_xaxis()
                if log:
                    axes.set_xscale("log")
            axes_of_row[0].set_ylim(*_range(subset, least_range))
            name = f"{names.get(of_row, of_row)}\n" if len(rows) > 1 else ""
            label = ylabel if isinstance(ylabel, str) else ylabel[of_row]
            axes_of_row[0].set_ylabel(f"{name}{label}")
        looks = {names.get(each, str(each)): look(each, hues) for each in hues}
        if pd.api.types.is_numeric_dtype(table[x]):  # lines without marks
            looks = {label: style._replace(marker="") for label, style in looks.items()}
        _legend(figure, table, looks, names)
    return figure


def forest(
    table: pd.DataFrame,
    *,
    label: str,
    col: str | None = None,
    hue: str | None = None,
    titles: Mapping[Any, str] | None = None,
    xlabel: str = "difference in points",
    least: float = -np.inf,
) -> Figure:
    """Differences with 95 % intervals: one line per label, one panel per value of `col`.

    The table has `label`, `col`, `hue` (marks on one line), and `mean`, `low`, `high`; optionally
    `paper`, drawn as open marks, and `faint`, True where the line is gray. Values keep the order of
    the table; `titles` has what to print for them. The axis begins at `least`: an arrow marks an
    interval that goes beyond it, with its mean if that does, too.
    """
    names, labels = titles or {}, list(table[label].unique())
    cols, hues = _values(table, col), _values(table, hue)
    looks = {each: look(str(each), list(map(str, hues))) for each in hues if hue}
    each = 0.34 if len(hues) == 1 else 0.2 + 0.16 * len(hues)
    words = max(len(str(names.get(name, name))) for name in labels)
    size = 0.6 + 0.085 * words + max(2.6 * len(cols), 4), 1.4 + each * len(labels)
    with _figure(size) as figure:
        grid = figure.subplots(1, len(cols), squeeze=False, sharey=True, sharex=True)[0]
        for axes, of_col in zip(grid, cols, strict=True):
            axes.axvline(0, color=FAINT, lw=1)
            for number, of_hue in enumerate(hues):
                marks = _where(_where(table, col, of_col), hue, of_hue)
                style = looks.get(of_hue, OURS)
                faint = marks.faint if "faint" in marks else np.zeros(len(marks), bool)
                colors = np.where(faint, FAINT, style.color)
                apart = 0.7 * ((number + 0.5) / len(hues) - 0.5)
                places = np.array([labels.index(name) for name in marks[label]]) + apart
                ends = np.maximum(marks[["low", "high"]].to_numpy().T, least)
                axes.hlines(places, *ends, color=colors, lw=2)
                beyond = marks["low"].to_numpy() < least
                axes.scatter(ends[0][beyond], places[beyond], marker="<", color=colors[beyond])
                for mean, place, color in zip(marks["mean"], places, colors, strict=True):
                    if mean >= least:
                        axes.plot(mean, place, style.marker, color=color)
                    elif np.isfinite(mean):
                        axes.text(least, place, f"     {mean:.1f}".replace("-", "−"), va="center")
                if "paper" in marks:  # below, so that neither mark hides the other
                    below = places + 0.2 / len(hues)
                    axes.plot(marks.paper, below, **_open(style.color, style.marker))
            if col:
                axes.set_title(names.get(of_col, str(of_col)))
            axes.grid(axis="x")
            axes.set_xlabel(xlabel)
        grid[0].set_yticks(range(len(labels)), [names.get(name, str(name)) for name in labels])
        grid[0].set_ylim(len(labels) - 0.4, -0.6)
        shown = {names.get(each, str(each)): mark._replace(dashes="none")
                 for each, mark in looks.items()}  # fmt: skip
        if shown or _has(table, "paper"):
            _legend(figure, table, shown or {"hopfax": OURS}, names)
    return figure


def heat(
    table: pd.DataFrame, *, x: str, y: str, row: str, col: str, xlabel: str, ylabel: str, label: str
) -> Figure:
    """Heat maps of `mean`, by `row` and `col`, on one log scale without the 2 % at either end."""
    from matplotlib.colors import LogNorm

    rows, cols = _values(table, row), _values(table, col)
    norm = LogNorm(*np.quantile(table["mean"], (0.02, 0.98)))
    with _figure((1.4 + 1.6 * len(cols), 0.8 + 1.7 * len(rows))) as figure:
        grid = figure.subplots(len(rows), len(cols), squeeze=False, sharex=True, sharey=True)
        for axes, (of_row, of_col) in zip(grid.flat, product(rows, cols), strict=True):
            cells = _where(_where(table, row, of_row), col, of_col)
            if cells.empty:
                axes.set_axis_off()
                continue
            cells = cells.pivot(index=y, columns=x, values="mean")
            image = axes.pcolormesh(cells.columns, cells.index, cells, norm=norm, shading="nearest")
            axes.set(xlabel=xlabel, ylabel=f"{of_row}\n{ylabel}")
            axes.set_title(of_col if of_row == rows[0] else "")
            axes.label_outer()
        ticks = {"ticks": [0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 100], "format": "%g"}
        figure.colorbar(image, ax=grid, label=label, extend="both", **ticks).minorticks_off()
    return figure


class Panel(NamedTuple):
    """A panel with separate axes."""

    title: str
    xlabel: str
    ylabel: str
    log: bool = False  # whether the vertical axis is logarithmic
    connected: bool = True  # whether lines connect the points
    formula: str = ""  # label of lines through points; if empty, they share the points' label


def panels(
    table: pd.DataFrame,
    specs: Mapping[str, Panel],
    *,
    col: str,
    x: str,
    hue: str,
    titles: Mapping[Any, str] | None = None,
) -> Figure:
    """Panels with separate axes: points with 95 % bars, joined by lines or with a formula's curve.

    The table has `col`, `x` (numbers), `hue`, `mean`, `low`, `high` and `formula`. Where a line has
    values of `formula`, these are drawn as the line, and `mean` as points. nan is left out, and so
    are panels of `specs`, by the value of `col`, without rows. `titles` are labels of `hue`.
    """
    shown = [name for name in specs if (table[col] == name).any()]
    nrows = -(-len(shown) // 2)
    with _figure((2 * 5.2, 4.4 * nrows)) as figure:
        grid = figure.subplots(nrows, 2, squeeze=False).flat
        for axes in grid[len(shown) :]:
            axes.remove()
        for axes, name in zip(grid, shown, strict=False):
            rows = table[table[col] == name]
            _panel(axes, rows, specs[name], x=x, hue=hue, titles=titles or {})
    return figure


def _panel(
    axes: Axes, table: pd.DataFrame, spec: Panel, *, x: str, hue: str, titles: Mapping[Any, str]
) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    hues, handles = list(table[hue].unique()), []
    colors = set()  # of lines through points
    for name in hues:
        line = table[table[hue] == name].sort_values(x)
        style = look(name, hues)
        has_points = line["mean"].notna().any()
        if line.formula.notna().any():
            axes.plot(line[x], line.formula, color=style.color)
            colors |= {style.color} if has_points else set()
            style = style._replace(dashes="none") if has_points else style._replace(marker="")
        elif not spec.connected:
            style = style._replace(dashes="none")
        if has_points:
            ends = np.abs(line[["low", "high"]].sub(line["mean"], axis=0).to_numpy().T)
            axes.errorbar(line[x], line["mean"], ends, elinewidth=1.5, zorder=3, **_style(style))
        if not has_points or (line.formula.notna().any() and not spec.formula):
            style = style._replace(dashes="-")
        handles.append(Line2D([], [], label=titles.get(name, str(name)), **_style(style)))
    if colors and spec.formula:
        color = INK if len(colors) > 1 else colors.pop()
        handles.append(Line2D([], [], label=spec.formula, color=color))
    axes.set(title=spec.title, xlabel=spec.xlabel, ylabel=spec.ylabel)
    whole = bool((table[x] % 1 == 0).all())
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=whole))
    if spec.xlabel == SNR:
        axes.invert_xaxis()
    if spec.log:
        axes.set_yscale("log", nonpositive="mask")
        axes.yaxis.set_minor_formatter("")
    axes.grid(axis="y")
    # Below the axes: no curve there.
    columns = min(2, _columns(handles, 5.2))
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=columns)


def _lines(
    axes: Axes, table: pd.DataFrame, *, x: str, hue: str, hues: list[Any], names: Mapping[Any, str]
) -> None:
    from matplotlib.ticker import MaxNLocator

    if table.empty:
        axes.text(0.5, 0.5, "not measured", ha="center", transform=axes.transAxes, color=FAINT)
        axes.set_xticks([])
        return
    ticks = list(table[x].unique())
    numeric = pd.api.types.is_numeric_dtype(table[x])
    for number, name in enumerate(hues):
        line = table[table[hue] == name]
        style = look(name, hues)
        if numeric:
            places = line[x].to_numpy(float)
            style = style._replace(marker="") if len(line) > 1 else style
        else:
            # Marks of several series at one place would hide each other.
            apart = 0.16 * ((number + 0.5) / len(hues) - 0.5)
            places = np.array([ticks.index(value) for value in line[x]]) + apart
        axes.plot(places, line["mean"], zorder=3, **_style(style))
        if len(line) == 1:  # too narrow for a band
            axes.vlines(places, line.low, line.high, color=style.color, lw=1.5)
        elif len(hues) <= MOST_BANDS:
            axes.fill_between(places, line.low, line.high, color=style.color, alpha=0.15, lw=0)
        if "paper" in line:
            axes.plot(places, line.paper, zorder=4, **_open(style.color, style.marker))
    for column, lines in LEVELS.items():
        if _has(table, column):
            axes.axhline(table[column].dropna().iloc[0], color=FAINT, ls=lines, lw=1.5, zorder=1)
    if _has(table, "limit"):
        limit = table.limit.iloc[0]  # shown even if no level is below it
        axes.axvspan(min(table[x].min(), limit - 1), limit, color=FAINT, alpha=0.15, lw=0)
        axes.margins(x=0)
    if numeric:
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    else:
        step = 1 if len(ticks) <= MOST_TICKS else -(-len(ticks) // 5)
        shown = [
            names.get(value, f"{value}") if n % step == 0 else "" for n, value in enumerate(ticks)
        ]
        axes.set_xticks(range(len(ticks)), shown)
        axes.set_xlim(-0.4, len(ticks) - 0.6)  # room for the outer labels
    axes.grid(axis="y")


def _range(table: pd.DataFrame, least: float) -> tuple[float, float]:
    """Returns limits that show every mean and paper's score; very wide bands are cut off."""
    columns = [name for name in ("mean", "paper", *LEVELS) if name in table]
    values = table[columns].to_numpy(float)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    room = 0.1 * (high - low) + max(least - (high - low), 0) / 2
    return low - room, high + room


def _style(look: Look) -> dict[str, Any]:
    return {"color": look.color, "marker": look.marker, "linestyle": look.dashes}


def _open(color: str, marker: str) -> dict[str, Any]:
    mark = {"marker": marker, "mec": color, "mfc": "white", "mew": 1.5, "ms": 7.5}
    return {**mark, "linestyle": "none"}


@contextlib.contextmanager
def _figure(size: tuple[float, float]) -> Iterator[Figure]:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        yield Figure(figsize=size, layout="constrained")


def _legend(
    figure: Figure, table: pd.DataFrame, looks: Mapping[str, Look], names: Mapping[Any, str]
) -> None:
    """Draws a legend above the panels: series, the paper and the majority baseline."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Line2D([], [], label=label, **_style(each)) for label, each in looks.items()
    ]
    if _has(table, "paper"):
        handles.append(Line2D([], [], label="the paper (open marks)", **_open(INK, "o")))
    for column, lines in LEVELS.items():
        if _has(table, column):
            label = {"constant": "majority baseline", **names}.get(column, column)
            handles.append(Line2D([], [], label=label, color=FAINT, ls=lines, lw=1.5))
    if _has(table, "limit"):
        handles.append(Patch(label="below the Shannon limit", color=FAINT, alpha=0.15, lw=0))
    columns = _columns(handles, figure.get_figwidth())
    figure.legend(handles=handles, loc="outside upper left", ncols=columns)


def _values(table: pd.DataFrame, column: str | None) -> list[Any]:
    return list(table[column].unique()) if column else [None]


def _where(table: pd.DataFrame, column: str | None, value: Any) -> pd.DataFrame:
    return table[table[column] == value] if column else table


def _has(table: pd.DataFrame, column: str) -> bool:
    return column in table and bool(table[column].notna().any())


def _columns(handles: Sequence[Any], width: float) -> int:
    """Returns the number of legend entries that fit in one row."""
    longest = max(len(str(handle.get_label())) for handle in handles)
    return max(1, min(len(handles), int(width / (0.6 + 0.095 * longest))))
