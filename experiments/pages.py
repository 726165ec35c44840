"""The written pages of results: templates in `pages/` with values inserted by name.

`python -m experiments.pages` renders them into `results/`, with their figures. Every value is
computed here from `results/data/`, one CSV file per command with a column `run`;
`results/runs.json` has each run's command, commit and machine.
"""

from __future__ import annotations

import functools
import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from experiments import published, report, tidy
from experiments.rundir import write_whole

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


# The pages noise_stability and speed: rows of `published.TABLES`.
named(report.bracketed)


@named
def lines(name: str, /, **where: Any) -> pd.DataFrame:
    """Rows of a table that have these values."""
    return tidy.select(published.table(name), **where)


@named
def line(name: str, /, **where: Any) -> pd.Series:
    """The only row of a table with these values."""
    return lines(name, **where).squeeze(axis=0)


@named
def command(suite: str, run: str) -> str:
    """The command of a published run."""
    return json.loads((RESULTS / "runs.json").read_text())[suite][run]["command"][0]


def pages() -> list[str]:
    """Names of the pages: README and one per subject."""
    return sorted(path.name.removesuffix(".md.j2") for path in TEMPLATES.glob("*.md.j2"))


def main() -> None:
    """Writes all pages and figures."""
    for page in pages():
        write_whole(RESULTS / f"{page}.md", render(page))


if __name__ == "__main__":
    main()
