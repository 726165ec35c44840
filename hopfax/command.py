"""Measure the robustness, stability and influence of a text model."""

import argparse
import csv
import io
import json
import os
import re
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopfax import __version__
from hopfax.hub import local_path, optional_import

if TYPE_CHECKING:  # imports jax, which --help does not wait for
    from hopfax.measure import Page


def _integer(low: int, text: str) -> int:
    """Parses an integer from `low` to 2³¹ - 1."""
    if not text.isdecimal() or not low <= int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"must be an integer >= {low}, got {text}")
    return int(text)


def _label_map(text: str) -> dict[str, str]:
    from hopfax.data.labels import parse_label_map  # not for --help

    return parse_label_map(text)


COMMANDS = {
    "report": "What typos and noise cost a model, and what helps, as one HTML page.",
    "typos": "Scores under misspelled words and swapped letters.",
    "robustness": "Scores under Gaussian noise on the embeddings.",
    "influence": "Influence of a sentence's tokens on each layer and the output.",
    "stability": "Agreement of outputs when tokens are replaced at random.",
}
_PAGES = {"md": "README.md", "json": "results.json"}
_DEV, _ALL = "report typos robustness", " ".join(COMMANDS)
_ROWS = f"{_DEV} stability"
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
    "--pair": (_DEV, "column of the second texts; required without labels of MODEL", _COLUMN),
    "--label": (_DEV, "column of labels, or of pairs' similarity scores (default: label)",
                _COLUMN | {"default": "label"}),
    "--label-map": (_DEV, "the model's label, or its number, for labels of the file",
                    {"type": _label_map, "metavar": "VALUE=LABEL,..."}),
    "--memory": ("robustness", "also score denoised token embeddings (slower)", _SWITCH),
    "--compare": ("report", "second model, shown side by side", {"metavar": "MODEL"}),
    "--texts": ("stability", "text file, one text per line; blank lines are skipped", _FILE),
    "--rows": (_ROWS, "maximum number of rows, evenly spaced (default: 400)",
               {"type": partial(_integer, 2), "default": 400, "metavar": "INT"}),
    "--batch-size": (_ROWS, "texts computed at a time (default: what fits the device)",
                     {"type": partial(_integer, 1), "metavar": "INT"}),
    "--seed": (_ALL, "seed of typos, noise and replacements (default: 0)",
               {"type": partial(_integer, 0), "default": 0, "metavar": "INT"}),
    "--format": (_ALL.replace("report ", ""), "format of the page (default: md)",
                 {"choices": _PAGES, "default": "md"}),
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
            from hopfax import measure, report

            if flags.command == "report":
                rows, files = report.report(flags)
                written = _save(flags, {"results.csv": _csv(rows), **files}, "report.html")
            else:
                written = _write(flags, getattr(measure, flags.command)(flags))
            print(f"page: {written}")
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
    if flags.format == "md":
        optional_import("matplotlib")
    parent = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not parent.is_dir():
        raise NotADirectoryError(f"--out must be a folder, got the file {parent}")
    earlier = record.read_bytes() if record.is_file() else b""
    replaces = flags.force and b'"command": ' in earlier and (folder / "results.csv").exists()
    if any(folder.glob("*")) and earlier != _record(flags) and not replaces:
        allowed = "new, or a folder of the same command (with --force, of another)"
        raise FileExistsError(f"--out must be {allowed}, got {folder}")
    if not os.access(parent, os.W_OK):
        raise PermissionError(f"--out must be in a writable folder, got {folder}")


def _write(flags: argparse.Namespace, page: "Page") -> Path:
    """Writes the configuration, the data and the page, all or nothing; returns the page's path."""
    files = {"results.csv": _csv(page.rows)}
    # Names of files may not be UTF-8.
    title, table = page.title.encode(errors="replace").decode(), page.table or page.rows
    if page.examples:
        files["examples.csv"] = _csv(page.examples)
    if flags.format == "json":
        # JSON has no infinity, the ratio without noise.
        rows = [
            {key: None if x == float("inf") else x for key, x in row.items()} for row in page.rows
        ]
        values = {"title": title, "note": page.note, "rows": rows, "examples": page.examples}
        text = json.dumps(values, indent=2, ensure_ascii=False)
    else:
        lines = [f"# {_escaped(title)}", "", f"![{_escaped(title)}](figure.png)", ""]
        lines += [*_table(table), "", f"{page.note} Data: [results.csv](results.csv).", ""]
        if page.examples:
            lines += ["Texts whose label changes: [examples.csv](examples.csv); the first:", ""]
            lines += [*_table(page.examples[:10]), ""]
        text = "\n".join(lines)
    files[_PAGES[flags.format]] = text.encode(errors="replace")
    try:
        if flags.format == "md":
            files["figure.png"] = _picture(title, page, len(table))
    finally:  # a measurement is kept if its picture fails
        path = _save(flags, files, _PAGES[flags.format])
    return path


def _save(flags: argparse.Namespace, files: dict[str, bytes], page: str) -> Path:
    """Writes the configuration and files, all or nothing; returns the path of the page."""
    out = flags.out.absolute()
    folder = out if out.exists() else out.with_name(f"{out.name}.partial")
    folder.mkdir(parents=True, exist_ok=True)
    known = {"examples.csv", "figure.png", "report.html", "report.json", *_PAGES.values()}
    for name in known - files.keys():
        (folder / name).unlink(missing_ok=True)  # of another run
    for name, content in {"config.json": _record(flags), **files}.items():
        (folder / name).write_bytes(content)
    if folder != out:
        folder.rename(out)
    return flags.out / page


def _picture(title: str, page: "Page", lines: int) -> bytes:
    """Returns the figure as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, max(3.6, 0.24 * lines)), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=10, loc="left", parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    page.draw(axes)
    figure.savefig(data := io.BytesIO(), dpi=130)
    return data.getvalue()


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
