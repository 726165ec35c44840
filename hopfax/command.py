"""Measure how typos and noise change a text model."""

import argparse
import csv
import io
import json
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from hopfax import __version__
from hopfax.hub import local_path, optional_import


def _integer(low: int, text: str) -> int:
    """Parses an integer from `low` to 2³¹ - 1."""
    if not text.isdecimal() or not low <= int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"must be an integer >= {low}, got {text}")
    return int(text)


COMMANDS = {
    "report": "What typos and noise cost a model, and what helps, as one HTML page.",
    "typos": "Scores under misspelled words and swapped letters.",
    "robustness": "Scores under Gaussian noise on the embeddings.",
    "influence": "Influence of a sentence's tokens on each layer and the output.",
    "stability": "Agreement of outputs when tokens are replaced at random.",
}
_PAGES = {"md": "README.md", "html": "page.html", "json": "results.json"}
_FILES = {"examples.csv", "figure.png", "report.html", "report.json", *_PAGES.values()}
_DEV, _PAGE = "report typos robustness", "typos robustness influence stability"
_ALL, _ROWS = f"report {_PAGE}", f"{_DEV} stability"
_SWITCH: dict[str, Any] = {"action": "store_true"}
_COLUMN = {"metavar": "COLUMN"}
_FILE = {"type": local_path, "required": True, "metavar": "FILE"}
# name: (commands, help text, options)
_FLAGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "folder": (_ALL, "folder or Hugging Face name of a text model", {"metavar": "MODEL"}),
    "text": ("influence", "sentence to measure", {"metavar": "SENTENCE"}),
    "second": ("influence", "second sentence of a pair", {"metavar": "SECOND", "nargs": "?"}),
    "--dev": (_DEV, "table or JSON with texts and labels; - for standard input", _FILE),
    "--text": (_DEV, "column of the texts (default: text)", _COLUMN | {"default": "text"}),
    "--pair": (_DEV, "column of the second texts; required if MODEL has no classifier", _COLUMN),
    "--label": (_DEV, "column of labels, or of pairs' similarity scores (default: label)",
                _COLUMN | {"default": "label"}),
    "--label-map": (_DEV, "model label, or class number, for labels of the file",
                    {"type": lambda text: import_module("hopfax.data.labels").parse_label_map(text),
                     "metavar": "VALUE=LABEL,..."}),
    "--memory": ("robustness", "also score denoised token embeddings (slower)", _SWITCH),
    "--compare": ("report", "second model, shown side by side", {"metavar": "MODEL"}),
    "--texts": ("stability", "text file, one text per line; blank lines are skipped", _FILE),
    "--rows": (_ROWS, "maximum number of rows, evenly spaced (default: 400)",
               {"type": partial(_integer, 2), "default": 400, "metavar": "INT"}),
    "--batch-size": (_ROWS, "texts computed at a time (default: what fits the device)",
                     {"type": partial(_integer, 1), "metavar": "INT"}),
    "--device": (_ALL, "cpu, gpu or another device of jax or PyTorch", {"metavar": "NAME"}),
    "--revision": (_ALL, "branch, tag or commit on the Hugging Face hub", {"metavar": "NAME"}),
    "--trust-remote-code": (_ALL, "run Python code from MODEL, with your permissions", _SWITCH),
    "--seed": (_ALL, "seed of typos, noise and replacements (default: 0)",
               {"type": partial(_integer, 0), "default": 0, "metavar": "INT"}),
    "--format": (_PAGE, "format of the page (default: md)", {"choices": _PAGES, "default": "md"}),
    "--out": (_ALL, "folder for the results (default: %(default)s)",
              {"type": local_path, "metavar": "FOLDER"}),
    "--force": (_ALL, "replace the results of another run in the folder", _SWITCH),
}  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    top = argparse.ArgumentParser(prog="hopfax", description=__doc__)
    top.add_argument("--version", action="version", version=f"hopfax {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for command, text in COMMANDS.items():
        each = commands.add_parser(command, help=text, description=text)
        for name, (users, text, options) in _FLAGS.items():
            if command in users:
                each.add_argument(name, help=text, **options)
        each.set_defaults(command=command, format="md", out=Path(f"hopfax_{command}"))
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 0, 130 after Ctrl-C, or 1 after an error or a closed pipe."""
    warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # tokens that the terminal cannot show
    try:
        try:
            flags = parser().parse_args(arguments)
            _check_out(flags)
            print(f"page: {_write(flags, _measured(flags))}")
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Python would report the error again when it flushes the stream at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _record(flags: argparse.Namespace) -> bytes:
    """Returns config.json: the command and its flags, which tell whose results a folder has."""
    values = {name: value for name, value in vars(flags).items() if name not in ("out", "force")}
    if Path(flags.folder).is_dir():
        values["folder"] = Path(flags.folder)
    return json.dumps(values, indent=2, default=lambda path: str(path.absolute())).encode()


def _check_out(flags: argparse.Namespace) -> None:
    """Raises an error before the measurement if its results could not be written."""
    folder, record = flags.out, flags.out / "config.json"
    for name in {"md": ("matplotlib",), "html": ("matplotlib", "jinja2")}.get(flags.format, ()):
        optional_import(name)
    parent = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not parent.is_dir():
        raise NotADirectoryError(f"--out must be a folder, got the file {parent}")
    earlier = record.read_bytes() if record.is_file() else b""
    replaces = flags.force and b'"command": ' in earlier and (folder / "results.csv").exists()
    if any(folder.glob("*")) and earlier != _record(flags) and not replaces:
        allowed = "new, or hold results of the same command (--force replaces others)"
        raise FileExistsError(f"--out must be {allowed}, got {folder}")
    if not os.access(parent, os.W_OK):
        raise PermissionError(f"--out must be in a writable folder, got {folder}")


def _measured(flags: argparse.Namespace) -> Iterator[tuple[str, bytes]]:
    """Yields the names and contents of the results' files, the data first."""
    from hopfax import measure, report

    if flags.command == "report":
        rows, files = report.report(flags)
        yield from ({"results.csv": _csv(rows)} | files).items()
        return
    page = getattr(measure, flags.command)(flags)
    # Names of files may not be UTF-8.
    title, table = page.title.encode(errors="replace").decode(), page.table or page.rows
    parts = [(table, page.note), (page.examples[:10], "Texts whose label changes; at most 10.")]
    parts = [(rows, note) for rows, note in parts if rows]
    yield "results.csv", _csv(page.rows)
    if page.examples:
        yield "examples.csv", _csv(page.examples)
    if flags.format == "json":
        values = {"title": title, "note": page.note, "rows": page.rows, "examples": page.examples}
        # JSON has no infinity, the ratio without noise.
        values = json.loads(json.dumps(values), parse_constant=lambda _: None)
        yield _PAGES["json"], json.dumps(values, indent=2).encode()
    elif flags.format == "html":
        pages = optional_import("hopfax.page")
        tables = [
            pages.Table([*x[0]], [[*map(str, row.values())] for row in x], y) for x, y in parts
        ]
        picture = pages.Picture(lambda: _figure("", page), title)
        text = pages.html(pages.Page(title, {"figure": picture}, tables))
        yield _PAGES["html"], text.encode(errors="replace")
    else:
        lines = [f"# {_escaped(title)}", "", f"![{_escaped(title)}](figure.png)", ""]
        for rows, note in parts:
            lines += [*_table(rows), "", note, ""]
        yield _PAGES["md"], "\n".join(lines).encode(errors="replace")
        _figure(title, page).savefig(data := io.BytesIO(), dpi=130)
        yield "figure.png", data.getvalue()


def _write(flags: argparse.Namespace, results: Iterable[tuple[str, bytes]]) -> Path:
    """Writes the results' files, all or nothing; returns the path of the page."""
    files, out = {}, flags.out.absolute()
    try:
        files.update(results)
    finally:  # the data is kept if the page fails
        if files:
            folder = out if out.exists() else out.with_name(f"{out.name}.partial")
            folder.mkdir(parents=True, exist_ok=True)
            for name in _FILES - files.keys():
                (folder / name).unlink(missing_ok=True)  # of another run
            for name, content in {"config.json": _record(flags), **files}.items():
                (folder / name).write_bytes(content)
            if folder != out:
                folder.rename(out)
    return flags.out / ("report.html" if flags.command == "report" else _PAGES[flags.format])


def _figure(title: str, page: Any) -> Any:
    """Draws the figure of a page."""
    from matplotlib.figure import Figure

    height = max(3.6, 0.24 * len(page.table or page.rows))
    figure = Figure(figsize=(7, height), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=10, loc="left", parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    page.draw(axes)
    return figure


def _csv(rows: Sequence[dict[str, Any]]) -> bytes:
    def cell(value: Any) -> Any:  # a spreadsheet would compute "=1+1"
        return re.sub(r"^(?=[-=+@].)", "'", value) if isinstance(value, str) else value

    data = io.StringIO(newline="")
    csv.writer(data).writerows([rows[0], *(map(cell, row.values()) for row in rows)])
    return data.getvalue().encode(errors="replace")


def _table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the lines of a Markdown table."""
    cells = [rows[0].keys(), ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return [f"| {' | '.join(map(_escaped, line))} |" for line in cells]


def _escaped(value: Any) -> str:
    """Returns a value as one line of Markdown that shows it unchanged, also in a table."""
    return re.sub(r"([\\|<>*_`~\[\]&])", r"\\\1", " ".join(str(value).split("\n")))


if __name__ == "__main__":
    sys.exit(main())
