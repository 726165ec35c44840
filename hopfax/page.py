"""Pages of results: one HTML file, with its figures and its style, that needs no other file."""

import functools
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hopfax.hub import optional_import

TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True)
class Table:
    """A table as text, with Markdown's bold and code: its head, its lines, and its subject."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True)
class Picture:
    """A matplotlib figure, drawn on demand, and its caption: one sentence that names the axes."""

    draw: Callable[[], Any]
    caption: str

    @functools.cached_property
    def figure(self) -> Any:
        """The figure, drawn once."""
        return self.draw()


@dataclass(frozen=True)
class Page:
    """Contents of a page, in order; names of pictures are words, such as "scores"."""

    title: str
    pictures: Mapping[str, Picture] = field(default_factory=dict)
    tables: Sequence[Table] = ()


def html(
    page: Page, template: str = "page.html.j2", *, folders: Sequence[Path] = (), **values: Any
) -> str:
    """Returns a page as one HTML file with SVG figures. It needs no script; text is escaped.

    The Jinja template, which may extend `page.html.j2`, is searched in `folders` first; `values`
    are what else it uses.

    Raises:
        ModuleNotFoundError: `jinja2` is not installed.

    Example:
        >>> from hopfax.page import Page, Table, html
        >>> text = html(Page("Scores", tables=[Table(["", "SST-2"], [["<mine>", "**91.2**"]])]))
        >>> "&lt;mine&gt;" in text, "<b>91.2</b>" in text, "<script" in text
        (True, True, False)
    """
    svgs = {name: svg(picture.figure, name) for name, picture in page.pictures.items()}
    environment = _environment((*folders, TEMPLATES))
    return environment.get_template(template).render(page=page, svgs=svgs, **values)


def svg(figure: Any, name: str) -> Any:
    """Returns a figure as an SVG element whose ids start with `name`: a page has several."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "hopfax"}):
        metadata = dict.fromkeys(["Date", "Creator", "Format", "Type"])
        figure.savefig(buffer, format="svg", metadata=metadata)
    text = "<svg" + buffer.getvalue().partition("<svg")[2]
    used = set(re.findall(r'(?:url\(|href=")#(\w+)', text))
    text = re.sub(
        r' id="([^"]+)"', lambda each: f' id="{name}-{each[1]}"' if each[1] in used else "", text
    )
    text = re.sub(r'(url\(|href=")#', rf"\1#{name}-", text)
    return optional_import("markupsafe").Markup(text)


def number(value: float | None, digits: int = 1) -> str:
    """Returns a number with a proper minus, or n/a."""
    if value is None or not np.isfinite(value):
        return "n/a"
    text = f"{value:.{digits}f}"
    return text.replace("-", "−") if float(text) else text.lstrip("-")


def signed(value: float | None, digits: int = 1) -> str:
    """Returns a difference with its sign, or n/a."""
    text = number(value, digits)
    return text if text == "n/a" or text.startswith("−") or not float(text) else f"+{text}"


@functools.cache
def _environment(folders: Sequence[Path]) -> Any:
    jinja2 = optional_import("jinja2")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders), undefined=jinja2.StrictUndefined,
        autoescape=lambda name: bool(name and name.endswith(".html.j2")),
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"bold": _bold, "number": number, "signed": signed}
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    return environment


def _bold(text: str) -> Any:
    """Markdown's bold and code marks as HTML, the rest escaped."""
    markupsafe = optional_import("markupsafe")
    escaped = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", str(markupsafe.escape(text)))
    return markupsafe.Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", escaped))
