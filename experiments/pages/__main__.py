"""Renders the written pages of results: templates of this folder with values inserted by name.

`python -m experiments.pages` writes them and their figures into `results/`. Every value is computed
from `results/data/`, one CSV file per command with a column `run`; `results/runs.json` has each
run's command, commit and machine.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import jinja2

from experiments import report, tidy
from experiments.pages import pictures, tables, values
from experiments.pages.values import RESULTS
from experiments.paper import paper_score
from experiments.rundir import write_whole

TEMPLATES = Path(__file__).parent
# Functions that templates call.
NAMES = {
    each.__name__: each
    for each in (
        values.claims, values.surviving, values.cell, values.score, values.glue, values.lead,
        values.differences, values.value, values.kept, values.gain, values.cost, values.command,
        values.recovered, values.more, values.shannon, values.certified, values.number, values.snr,
        values.is_learned, tables.lines, tables.line, paper_score, report.bracketed, tidy.select,
        tidy.clear,
    )
}  # fmt: skip


def render(page: str) -> str:
    """Returns a page in Markdown; its template is `PAGE.md.j2`."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= NAMES
    environment.filters |= {
        "number": values.number,
        "signed": report.signed,
        "interval": report.with_interval,
        "plain": report.plain_interval,
        "bracketed": report.bracketed,
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


def pages() -> list[str]:
    """Names of the pages: README and one per subject."""
    return sorted(path.name.removesuffix(".md.j2") for path in TEMPLATES.glob("*.md.j2"))


def main() -> None:
    """Writes all pages and figures."""
    (RESULTS / "figures").mkdir(exist_ok=True)
    for name, draw in pictures.FIGURES.items():
        draw().savefig(RESULTS / "figures" / f"{name}.png", metadata={"Software": None})
    for page in pages():
        write_whole(RESULTS / f"{page}.md", render(page))


if __name__ == "__main__":
    main()
