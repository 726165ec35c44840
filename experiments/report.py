"""The page of a run: one HTML file with figures, tables, an interactive chart and the command.

An experiment's module turns results.csv into a `Page`; this module renders it.
"""

from __future__ import annotations

import functools
import hashlib
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments import figures, tidy
from experiments.provenance import origin_line
from experiments.rundir import read_config, write_whole
from hopfax import page as pages
from hopfax.page import Picture as Picture
from hopfax.page import Table as Table
from hopfax.page import number as number
from hopfax.page import signed as signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATES = Path(__file__).with_name("templates")
MOST_LINES = 6  # the interactive chart starts with at most so many


def _picture(draw: Callable[..., Figure]) -> Callable[..., Picture]:
    """Returns a function of a caption, a table and the options of `draw`."""
    return lambda caption, table, **axes: Picture(functools.partial(draw, table, **axes), caption)


forest, facets, panels = map(_picture, (figures.forest, figures.facets, figures.panels))
heat = _picture(figures.heat)


@dataclass(frozen=True)
class Explorer:
    """Data for the page's interactive chart: lines over x for each hue, chosen by menus."""

    # With the columns below, mean, low, high, num_seeds, and perhaps paper and constant.
    table: pd.DataFrame
    x: str
    hue: str
    menus: Mapping[str, str]  # columns that menus choose a value of, and their labels
    titles: Mapping[str, str] = field(default_factory=dict)  # what to print for values
    xlabel: str = "level"


@dataclass(frozen=True)
class Page(pages.Page):
    """Contents of a page, in order, with the data of the chart."""

    explorer: Explorer | None = None


def write_results(folder: Path, table: pd.DataFrame, *, complete: bool = True) -> None:
    """Writes a run's results.csv, the columns of all experiments first, and its checksum."""
    path, checksum = folder / "results.csv", folder / tidy.CHECKSUM
    if not complete and path.exists() and path.read_bytes().count(b"\n") > len(table) + 1:
        return  # incomplete results never replace a file with more rows
    columns = list(dict.fromkeys([*tidy.COLUMNS, *table]))
    text = table.reindex(columns=columns).to_csv(index=False, lineterminator="\n").encode()
    checksum.unlink(missing_ok=True)  # a kill after this leaves a file without one
    write_whole(path, text)
    write_whole(checksum, f"{hashlib.sha256(text).hexdigest()}  {path.name}\n")


def write_report(folder: Path, page: Page) -> Path:
    """Writes a run's report.html, which needs no other file, and one PNG per picture."""
    for name, picture in page.pictures.items():
        buffer = io.BytesIO()
        picture.figure.savefig(buffer, metadata={"Software": None})
        write_whole(folder / f"{name}.png", buffer.getvalue())
        picture.figure.set_layout_engine("none")  # laid out once, also for the SVG
    path = folder / "report.html"
    write_whole(path, html(page, folder))
    return path


def html(page: Page, folder: Path) -> str:
    """The page as one HTML file with SVG pictures and, if it has data, the interactive chart."""
    chart = _chart(page.explorer) if page.explorer else None
    return pages.html(page, "report.html.j2", folders=(TEMPLATES,), run=_run(folder), chart=chart)


def bracketed(row: Any, digits: int = 1) -> str:
    """A number with its 95 % interval, if it has one."""
    mean, low, high = (number(row[name], digits) for name in ("mean", "low", "high"))
    return mean if np.isnan(row["low"]) else f"{mean} [{low}, {high}]"


def with_interval(row: Mapping[str, Any] | pd.Series) -> str:
    """A difference with its 95 % interval, in bold where that excludes zero, unless not `bold`."""
    mean, low, high = (float(row[name]) for name in ("mean", "low", "high"))
    if not np.isfinite(mean):
        return "–"
    if not np.isfinite(low):
        return f"{signed(mean)} [n/a]"
    digits, excludes_zero = 1, low > 0 or high < 0
    while excludes_zero and digits < 4 and not round(min(abs(low), abs(high)), digits):
        digits += 1  # to show that it does
    text = f"{signed(mean, digits)} [{signed(low, digits)}, {signed(high, digits)}]"
    return f"**{text}**" if excludes_zero and row.get("bold", True) else text


def plain_interval(row: Mapping[str, Any] | pd.Series) -> str:
    """A difference with its interval, for a sentence."""
    return with_interval(row).replace("**", "")


def grid(
    table: pd.DataFrame, line: str, head: str, caption: str, *,
    cell: Callable[[Any], str] = with_interval, titles: Mapping[Any, str] | None = None,
) -> Table:  # fmt: skip
    """Returns one line per value of `line` and one column per value of `head`, in their order."""
    heads, names = table[head].unique(), titles or {}
    cells = {(row[line], row[head]): cell(row) for _, row in table.iterrows()}
    lines = [
        [_one_line(names.get(each, each)), *(cells.get((each, other), "–") for other in heads)]
        for each in table[line].unique()
    ]
    return Table(["", *(_one_line(names.get(each, each)) for each in heads)], lines, caption)


def verdicts(claims: pd.DataFrame) -> Table:
    """Returns the table of `tidy.CLAIMS`."""
    lines = [
        [row.subject, row.claim, number(row.paper, 2), bracketed(row, 2), row.verdict]
        for _, row in claims.iterrows()
    ]
    return Table(["", "claim", "paper", "measured", "verdict"], lines, f"{len(lines)} comparisons")


def joined(names: Iterable[str]) -> str:
    """Such as "CoLA, MRPC and RTE"; "" without names."""
    *first, last = list(names) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def _run(folder: Path) -> dict[str, Any]:
    """Returns the template's facts about a run: command, sessions and files."""
    config = read_config(folder) if (folder / "config.json").exists() else {}
    origins = config.get("provenance", [])
    command, lines = origins[-1]["command"] if origins else "", map(origin_line, origins)
    files = sorted(path.name for path in folder.glob("*.csv"))
    return {"command": command, "origins": [*lines], "files": files}


def _chart(explorer: Explorer) -> dict[str, Any]:
    """The data of the interactive chart, for JSON: rows hold places in `titles`, then numbers."""
    table, hue = explorer.table, explorer.hue
    keys = [*explorer.menus, explorer.x, hue]
    values = {name: table[name].unique().tolist() for name in keys}
    columns = ("mean", "low", "high", "num_seeds", "paper", "constant")
    numbers = [name for name in columns if name in table and table[name].notna().any()]
    places = table[keys].apply(lambda column: column.map(values[column.name].index))
    rows = pd.concat([places, table[numbers].astype(float).round(3)], axis=1).astype(object)
    known = table[hue][table.paper.notna()].unique().tolist() if "paper" in numbers else []
    shown = known if len(values[hue]) > MOST_LINES and len(known) > 1 else values[hue]
    looks = {name: figures.look(name, values[hue]) for name in values[hue]}
    axes = {"menus": list(explorer.menus), "x": explorer.x, "hue": hue, "label": "Score"}
    return axes | {
        "numbers": numbers,
        "options": {name: list(map(_one_line, values[name])) for name in keys},
        "titles": {
            name: [_one_line(explorer.titles.get(value, value)) for value in values[name]]
            for name in keys
        },
        "looks": [
            {**each._asdict(), "path": _outline(each.marker), "shown": name in shown[:MOST_LINES]}
            for name, each in looks.items()
        ],
        "rows": rows.where(rows.notna(), None).to_numpy().tolist(),
    }


def _one_line(value: Any) -> str:
    return str(value).replace("\n", " ")


def _outline(marker: str) -> str:
    """A marker of matplotlib as an SVG path one unit wide."""
    from matplotlib.markers import MarkerStyle

    style = MarkerStyle(marker)
    path = style.get_path().transformed(style.get_transform())
    letters = {path.MOVETO: "M", path.LINETO: "L", path.CURVE4: "C", path.CLOSEPOLY: "Z"}
    parts = []
    for points, code in path.iter_segments():
        flipped = np.reshape(points, (-1, 2)) * (1, -1) + 0.0
        numbers = "" if code == path.CLOSEPOLY else " ".join(f"{n:.3g}" for n in flipped.flat)
        parts.append(letters[code] + numbers)
    return "".join(parts)
