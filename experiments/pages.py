"""The written pages of results: templates in `pages/` with values inserted by name.

`python -m experiments.pages` renders them into `results/`, with their figures. Every value is
computed here from `results/data/`, one CSV file per command with a column `run`; `results/runs.json`
has each run's command, commit and machine.
"""

from __future__ import annotations

import functools
import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np
import pandas as pd

from experiments import figures, gaussian, report, tidy
from experiments.noise_stability import encoder, influence, outcomes, tail_mass, theory
from experiments.rundir import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS = Path(__file__).with_name("results")
TEMPLATES = Path(__file__).with_name("pages")
NAMES: dict[str, Callable[..., Any]] = {}  # functions that templates call


def named(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function of values or tables known to the templates under its name."""
    NAMES[function.__name__] = function
    return function


@functools.cache
def scores(suite: str, run: str) -> pd.DataFrame:
    """Scores of a published run, see `tidy.scores`."""
    return tidy.scores(tidy.read(RESULTS / "data" / f"{suite}.csv", run=run))


def render(page: str) -> str:
    """Returns a page in Markdown; its template is `pages/PAGE.md.j2`."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= NAMES
    environment.filters |= {
        "number": report.number,
        "signed": report.signed,
        "interval": report.with_interval,
    }
    return wrapped(environment.get_template(f"{page}.md.j2").render())


def wrapped(text: str) -> str:
    """Returns Markdown without lines of prose over 120 characters; other lines stay whole."""
    lines, code = [], False
    for line in text.splitlines():
        code ^= line.startswith("```")
        if code or line.startswith(("|", "#", "!", "    ", "```")):
            lines.append(line)
            continue
        # Not inside `code`: a command must stay one line to be copied.
        whole = re.sub(r"`[^`]*`", lambda part: part[0].replace(" ", "\0"), line)
        indent = "  " if line.startswith("- ") else ""
        broken = textwrap.wrap(
            whole, 117, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        lines += [part.replace("\0", " ") for part in broken or [""]]
    return "\n".join(lines) + "\n"


# The pages noise_stability and speed: named tables, of which templates pick rows.


@functools.cache
def rows_of(suite: str, run: str = "") -> pd.DataFrame:
    """Published rows of a command, of one run or of all."""
    table = pd.read_csv(RESULTS / "data" / f"{suite}.csv")
    return table[table["run"] == run] if run else table


# Percent of steps saved in the paper: 4500 to 3300 on addition.
CLAIMED = {"addition": 100 * (1 - 33 / 45), "parity": 35.0, "parity_earlier": 35.0,
           "parity_10bits": 35.0}  # fmt: skip


def savings() -> pd.DataFrame:
    """Percent of steps and of compute that each arm of grokking saves against the baseline."""
    steps = tidy.select(rows_of("grokking"), metric="steps").sort_values(["run", "seed"])
    units = {"steps": 1.0, "compute": steps.rows_per_step}
    both = pd.concat(steps.assign(unit=unit, scale=scale) for unit, scale in units.items())
    both = both.assign(time=both.score * both.scale, end=both.horizon * both.scale)
    parts = []
    for (run, unit, arm), ours in both.groupby(["run", "unit", "model"], sort=False):
        theirs = tidy.select(both, run=run, unit=unit, model="baseline")
        times, ends = zip(*((each.time.to_numpy(), each.end.max()) for each in (ours, theirs)))
        parts.append((run, unit, arm, *outcomes.reduction(*times, followed=ends)))
    table = pd.DataFrame(parts, columns=["run", "unit", "model", "mean", "low", "high"])
    table["paper"] = table.run.map(CLAIMED).where(table.unit == "steps")
    verdicts = map(tidy.verdict, table.low, table.high, table.paper)
    return table.assign(verdict=list(verdicts))


def encoders(minus: str = "") -> pd.DataFrame:
    """Means over seeds of trained encoders, shares in percent; or differences from a model."""
    rows = tidy.select(rows_of("encoder-stability"), corruption="gaussian").fillna({"level": -1})
    scale = rows.metric.map({"points lost": 1.0}).fillna(100.0)
    numbers = rows[["score", "standard_error", "low", "high"]].mul(scale, axis=0)
    rows, keys = rows.assign(**numbers), ["run", "arm", "metric", "level"]
    if not minus:
        return encoder.intervals(rows, [*keys, "model"])
    rows = rows[[*keys, "model", "seed", "score"]]
    return tidy.summarize(tidy.paired(rows, rows[rows.model == minus], on=[*keys, "seed"]))


TABLES: dict[str, Callable[[], pd.DataFrame]] = {
    "theory": lambda: rows_of("theory"),
    "formulas": lambda: theory.distances(rows_of("theory")).assign(
        theorem=lambda table: table.model.str.contains("Theorem")
    ),
    "ends": lambda: influence.ratios(rows_of("influence")),
    "juntas": lambda: influence.juntas(rows_of("influence")),
    "shares": lambda: influence.influential(rows_of("influence")).reset_index(),
    "layers": lambda: influence.by_layer(rows_of("influence")),
    "bounds": lambda: tail_mass.bounds(rows_of("tail-mass", "minilm")),
    "bounds, fine-tuned": lambda: tail_mass.bounds(rows_of("tail-mass", "minilm_sst2")),
    "encoders": encoders,
    "changes": lambda: encoders(minus="pretrained"),
    "savings": savings,
    "language": lambda: tidy.summarize(
        rows_of("language-model")[["model", "metric", "seed", "score"]]
    ),
    "guesses": lambda: rows_of("language-model-guesses"),
    "speed": lambda: rows_of("speed").sort_values("median").assign(
        group=lambda table: table.setting.str.rpartition(":")[0]
    ),
}
tables = functools.cache(lambda name: TABLES[name]())
named(report.bracketed)


@named
def command(suite: str, run: str) -> str:
    """The command of a published run."""
    return json.loads((RESULTS / "runs.json").read_text())[suite][run]["command"][0]


@named
def lines(table: str, **where: Any) -> pd.DataFrame:
    """Rows of a table that have these values."""
    return tidy.select(tables(table), **where)


@named
def line(table: str, **where: Any) -> pd.Series:
    """The only row with these values."""
    return lines(table, **where).squeeze(axis=0)


def noise_stability_figures() -> dict[str, Figure]:
    """Figures of the page noise_stability, by the stems of their files."""
    curves = tidy.select(rows_of("influence"), metric="relative influence")
    half = 1.96 * curves.standard_error
    curves = curves.assign(mean=curves.score, low=curves.score - half, high=curves.score + half,
                           weights=curves.model.str.split(" ").str[0])  # fmt: skip
    curves = curves.groupby(["corruption", "weights", "level"], sort=False, as_index=False)
    shown = ("attention", "depth", "relu", "transformer")
    runs = {"addition": "modular addition", "parity": "parity of 20 bits",
            "parity_earlier": "20 bits, earlier run", "parity_10bits": "parity of 10 bits"}  # fmt: skip
    return {
        "theory": figures.panels(
            theory.drawn(tables("theory")), {name: theory.PANELS[name] for name in shown},
            col="task", x="level", hue="model",
        ),
        "influence": figures.facets(
            curves[["mean", "low", "high"]].mean(), x="level", hue="weights", col="corruption",
            titles={"trained": "MiniLM", "random": "random weights"}, xlabel="position of the token",
            ylabel="influence / mean", least_range=1.0,
        ),
        "encoders": figures.facets(
            lines("encoders", run="minilm_sst2_5e-5", arm="trained", metric="correlation"),
            x="level", titles=gaussian.titles(["sst2"]), xlabel="correlation of the noise",
            ylabel="correlation of the outputs", least_range=0.0,
        ),
        "savings": figures.forest(
            lines("savings", model="stability_reg").set_index("run").loc[[*runs]].reset_index(),
            label="run", hue="unit", titles=runs, xlabel="percent saved", least=-200,
        ),
    }  # fmt: skip


def speed_figures() -> dict[str, Figure]:
    """The figure of the page speed: time of PyTorch relative to hopfax, in powers of two."""
    table = lines("speed", kind="ratio")
    table = table[table["name"].str.match("PyTorch.* / hopfax")]
    parts = table.assign(what=table.group + " " + table["name"]).groupby(["run", "what"], sort=False)
    ends = parts.agg(mean=("median", "median"), low=("median", "min"), high=("median", "max"))
    return {"speed": figures.forest(
        np.log2(ends).reset_index(), label="what", xlabel="log2 of PyTorch's time / hopfax's time"
    )}  # fmt: skip


def pages() -> list[str]:
    """Names of the pages: README and one per subject."""
    return sorted(path.name.removesuffix(".md.j2") for path in TEMPLATES.glob("*.md.j2"))


def main() -> None:
    """Writes all pages and figures."""
    for page in pages():
        write_whole(RESULTS / f"{page}.md", render(page))


if __name__ == "__main__":
    main()
