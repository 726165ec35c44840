"""The page of a run: pictures, tables and where they come from, in one file."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from experiments.provenance import origin_line
from experiments.rundir import read_config, write_whole

Table = Sequence[Sequence[str]]


def write_report(
    folder: Path,
    title: str,
    *,
    pictures: Mapping[str, str],
    tables: Sequence[Table],
    notes: Sequence[str] = (),
    findings: Sequence[str] = (),
) -> None:
    """Writes report.html, which needs no other file.

    Args:
        folder: The run's, with its config.json and pictures.
        title: Of the page.
        pictures: Captions by the file's name.
        tables: Each with its head as the first line.
        notes: What a reader must know of the numbers.
        findings: What was found, above all else.
    """
    config = read_config(folder)
    drawn = "".join(
        f'<figure><img alt="{escape(caption)}" src="data:image/png;base64,'
        f'{base64.b64encode((folder / name).read_bytes()).decode()}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
        for name, caption in pictures.items()
    )
    origin = "<br>".join(escape(origin_line(each)) for each in config["provenance"])
    page = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem}}
img{{width:100%}}figure{{margin:1rem 0}}figcaption{{color:#555}}
table{{font-size:.9rem;margin:1rem 0}}td,th{{text-align:left;padding:.2rem 1rem .2rem 0}}</style>
<h1>{escape(title)}</h1>
{"".join(f"<p>{escape(finding)}</p>" for finding in findings)}
{drawn}
{"".join(map(_table, tables))}
<ul>{"".join(f"<li>{escape(note)}" for note in notes)}</ul>
<p>Plan: {escape(str(config["plan"]))}</p>
<p>{origin}</p>
</html>
"""
    write_whole(folder / "report.html", page)


def print_table(lines: Table) -> None:
    """Prints a table in columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(f"{part:<{width}}" for part, width in zip(line, widths, strict=True)))


def _table(lines: Table) -> str:
    rows = (
        "<tr>" + "".join(f"<{tag}>{escape(part)}</{tag}>" for part in line) + "</tr>"
        for tag, line in zip(["th", *["td"] * (len(lines) - 1)], lines, strict=True)
    )
    return f"<table>{''.join(rows)}</table>"
