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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopfax import __version__
from hopfax.hub import local_path, optional_import

if TYPE_CHECKING:  # imports jax, which --help does not wait for
    from hopfax.measure import Page

COMMANDS = {
    "robustness": "Scores under Gaussian noise on the embeddings.",
    "influence": "Influence of a sentence's tokens on each layer and the output.",
    "stability": "Agreement of outputs when tokens are replaced at random.",
}
_HELP = {
    "folder": "folder or Hugging Face name of a BERT, RoBERTa, GPT-2, Gemma-2, Llama or Classifier",
    "text": "sentence to measure",
    "--dev": "texts and labels: .csv, .tsv or .jsonl",
    "--text": "column of the texts (default: %(default)s)",
    "--pair": "column of the second texts; required unless MODEL is a text classifier",
    "--label": "column of the labels, or of similarity scores of pairs (default: %(default)s)",
    "--labels": "names in the label column, in the order of the model's labels",
    "--memory": "also score denoised token embeddings (slower)",
    "--texts": "text file, one text per line; blank lines are skipped",
    "--rows": "maximum number of rows, evenly spaced (default: %(default)s)",
    "--out": "folder for the results (default: %(default)s)",
}


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    top = argparse.ArgumentParser(prog="hopfax", description=__doc__)
    top.add_argument("--version", action="version", version=f"hopfax {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for command, text in COMMANDS.items():
        each = commands.add_parser(command, help=text, description=text)
        each.set_defaults(command=command)

        def add(name: str, each: argparse.ArgumentParser = each, **options: Any) -> None:
            each.add_argument(name, help=_HELP[name], **options)

        add("folder", metavar="MODEL")
        if command == "influence":
            add("text", metavar="SENTENCE")
        elif command == "stability":
            add("--texts", type=local_path, required=True, metavar="FILE")
        else:
            add("--dev", type=local_path, required=True, metavar="FILE")
            add("--text", default="text", metavar="COLUMN")
            add("--pair", metavar="COLUMN")
            add("--label", default="label", metavar="COLUMN")
            add("--labels", nargs="+", metavar="NAME")
            add("--memory", action="store_true")
        if command != "influence":
            add("--rows", type=_count, default=400, metavar="INT")
        add("--out", type=local_path, default=Path(f"hopfax_{command}"), metavar="FOLDER")
    return top


def _count(text: str) -> int:
    """Parses an integer >= 2."""
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"must be an integer >= 2, got {text}")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 0, 130 after Ctrl-C, or 1 after an error or a closed pipe."""
    warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # tokens that the terminal cannot show
    try:
        try:
            flags = parser().parse_args(arguments)
            _check_out(flags)
            from hopfax import measure

            print(f"page: {_write(flags, getattr(measure, flags.command)(flags))}")
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
    values = {name: value for name, value in vars(flags).items() if name != "out"}
    if Path(flags.folder).is_dir():
        values["folder"] = Path(flags.folder)
    return json.dumps(values, indent=2, default=lambda path: str(path.absolute())).encode()


def _check_out(flags: argparse.Namespace) -> None:
    """Raises an error before the measurement if its results could not be written."""
    folder, record = flags.out, flags.out / "config.json"
    optional_import("matplotlib")
    parent = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not parent.is_dir():
        raise NotADirectoryError(f"--out must be a folder, got the file {parent}")
    if any(folder.glob("*")) and not (record.is_file() and record.read_bytes() == _record(flags)):
        raise FileExistsError(f"--out must be new, or a folder of the same command, got {folder}")
    if not os.access(parent, os.W_OK):
        raise PermissionError(f"--out must be in a writable folder, got {folder}")


def _write(flags: argparse.Namespace, page: "Page") -> Path:
    """Writes config.json, results.csv, README.md and figure.png; returns the path of README.md."""
    from matplotlib.figure import Figure

    folder, data = flags.out, io.StringIO(newline="")
    writer = csv.DictWriter(data, list(page.rows[0]))
    writer.writeheader()
    writer.writerows(page.rows)
    # Names of files may not be UTF-8.
    title, table = page.title.encode(errors="replace").decode(), page.table or page.rows
    lines = [f"# {_escaped(title)}", "", f"![{_escaped(title)}](figure.png)", ""]
    lines += [f"| {' | '.join(table[0])} |", f"|{'---|' * len(table[0])}"]
    lines += [f"| {' | '.join(map(_escaped, row.values()))} |" for row in table]
    lines += ["", f"{page.note} Data: [results.csv](results.csv).", ""]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_bytes(_record(flags))
    (folder / "results.csv").write_bytes(data.getvalue().encode())
    (folder / "README.md").write_text("\n".join(lines), encoding="utf-8")
    # The picture comes last: it may fail.
    figure = Figure(figsize=(7, max(3.6, 0.24 * len(table))), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=10, loc="left", parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    page.draw(axes)
    figure.savefig(folder / "figure.png", dpi=130)
    return folder / "README.md"


def _escaped(value: Any) -> str:
    """Returns a value as one line of Markdown that shows it unchanged, also in a table."""
    return re.sub(r"([\\|<>*_`~\[\]&])", r"\\\1", " ".join(str(value).split("\n")))


if __name__ == "__main__":
    sys.exit(main())
