"""Builds the site: pip install -e ".[docs]" && python docs/build.py; open build/site/index.html.

Gathers docs/, results, notebooks and CONTRIBUTING.md in build/docs, and adapts their links: a link
to a file that is not part of the site, such as a module, becomes text.
"""

import contextlib
import json
import os
import re
import shutil
import sys
from pathlib import Path

import zensical

from hopfax.command import COMMANDS, parser

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
PAGES = (
    "docs/**/*.[mp][dn]*",
    "notebooks/*.ipynb",
    "CONTRIBUTING.md",
    "experiments/results/**/*.[mp][dn]*",
)
PLACES = {"docs": "", "experiments/results": "results", ".": ""}
LINK = re.compile(r"(?ms)^```.*?^```|(!?)\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
EXTERNAL = re.compile(r"<(?!a\b)[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>|url\([\"']?http")


def place(path: Path) -> Path:
    """Returns where build/docs has a file of the repository."""
    folder = next(each for each in PLACES if path.is_relative_to(ROOT / each))
    page = BUILD / "docs" / PLACES[folder] / path.relative_to(ROOT / folder)
    page = page.with_name("index.md") if page.match("results/README.md") else page
    return page.with_suffix(".md") if page.suffix == ".ipynb" else page


def adapted(path: Path, pages: dict[Path, Path]) -> str:
    """Returns a page of the repository as Markdown, with the links that the site needs."""

    def link(match: re.Match) -> str:
        image, words, target, anchor = match.groups(default="")
        if not target:  # a block of code
            return match[0]
        linked = place(Path(os.path.normpath(path.parent / target)))
        relative = os.path.relpath(linked, place(path).parent).replace(os.sep, "/")
        return f"{image}[{words}]({relative}{anchor})" if linked in pages else words

    text = path.read_text(encoding="utf-8")
    return LINK.sub(link, markdown(json.loads(text)) if path.suffix == ".ipynb" else text)


def markdown(notebook: dict) -> str:
    """Returns a notebook as Markdown, with its pictures."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
        for output in cell.get("outputs", []):
            if png := output.get("data", {}).get("image/png", "").replace("\n", ""):
                parts.append(f"![Figure](data:image/png;base64,{png})")
            else:
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
    return "\n\n".join(parts)


def main() -> None:
    """Gathers the pages, builds the site, and checks that no page loads from another host."""
    shutil.rmtree(BUILD, ignore_errors=True)
    pages = {place(path): path for pattern in PAGES for path in ROOT.glob(pattern)}
    for page, path in pages.items():
        page.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".png":
            shutil.copyfile(path, page)
        else:
            page.write_text(adapted(path, pages), encoding="utf-8")
    with open(BUILD / "docs/reference/command.md", "a", encoding="utf-8") as page:
        for name in COMMANDS:
            print(f"\n## hopfax {name}\n\n```text", file=page)
            with contextlib.redirect_stdout(page), contextlib.suppress(SystemExit):
                parser().parse_args([name, "--help"])
            print("```", file=page)
    zensical.build(str(ROOT / "zensical.toml"), {"clean": True, "strict": True})
    for path in (*BUILD.glob("site/**/*.html"), *BUILD.glob("site/**/*.css")):
        if external := EXTERNAL.search(path.read_text(encoding="utf-8")):
            sys.exit(f"{path} loads {external[0]}")


if __name__ == "__main__":
    main()
