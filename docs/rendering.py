"""Rendering of pages: formulas as MathML, and sections of docstrings for mkdocstrings."""

import html
import re
import textwrap

from griffe import Extension as Griffe
from griffe import Object
from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.postprocessors import Postprocessor

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
# A prime in a superscript is tiny in fonts without tables for mathematics.
PRIME = re.compile(r"<msup>(<mi>[^<]*</mi>)(<mi>&#x02032;</mi>)</msup>")
LETTERS = re.compile(r'(?:<mi mathvariant="normal">\w</mi>)+')
SECTION = re.compile(r"^(Differentiation|References):\n((?:(?: {4}.*)?(?:\n|\Z))+)", re.MULTILINE)


class Docstrings(Griffe):
    """Turns the sections that mkdocstrings does not know into ones that it does, or into text."""

    def on_object(self, *, obj: Object, **_: object) -> None:
        """Rewrites the docstring of an object."""
        if obj.docstring:
            text = SECTION.sub(_paragraph, f"{obj.docstring.value}\n")
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)


def _paragraph(section: re.Match) -> str:
    return f"**{section[1]}:**\n\n{textwrap.dedent(section[2])}"


class MathML(Postprocessor):
    """Replaces the formulas that `pymdownx.arithmatex` found."""

    def run(self, text: str) -> str:
        """Returns the page with MathML."""
        return FORMULA.sub(_element, text)


def _element(formula: re.Match) -> str:
    tag, latex = formula.groups()
    latex = " ".join(html.unescape(latex).split())
    element = convert(latex, display="block" if tag == "div" else "inline")
    element = PRIME.sub(r"<mrow>\1\2</mrow>", element)
    element = LETTERS.sub(lambda word: f"<mi>{re.sub('<.*?>', '', word[0])}</mi>", element)
    return f'<div style="overflow-x: auto">{element}</div>' if tag == "div" else element


class Formulas(Extension):
    """Markdown extension that registers `MathML` after the processors of other extensions."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Called by Markdown."""
        md.postprocessors.register(MathML(), "mathml", -10)


def makeExtension(**settings: object) -> Formulas:
    """Returns the Markdown extension; Markdown looks for a function of this name."""
    return Formulas(**settings)
