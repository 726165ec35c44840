"""Builds the site into build/site: python docs/build.py, after pip install ".[docs]".

Gathers docs/, the results, the notebooks and CONTRIBUTING.md in build/docs, with their links. A link
to a file that the site does not have, such as a module, becomes text.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE, SITE = ROOT / "build" / "docs", ROOT / "build" / "site"
CODE = re.compile(r"(```.*?^```)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
EXTERNAL = re.compile(r"<(?!a\b)[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>|@import|url\([\"']?http")
COMMANDS = ("robustness", "influence", "stability")


def place(path: Path) -> Path:
    """Returns where the site has a file of the repository."""
    for folder, name in (("docs", "."), ("experiments/results", "results"), (".", ".")):
        if path.is_relative_to(ROOT / folder):
            break
    path = SOURCE / name / path.relative_to(ROOT / folder)
    index = path.parent.name == "results" and path.name == "README.md"
    return path.with_suffix(".md") if path.suffix == ".ipynb" else path.with_name("index.md" if index else path.name)


def relink(page: str, path: Path) -> str:
    """Returns a page with its links as the site has them."""

    def link(match: re.Match) -> str:
        image, text, target, anchor = match.groups(default="")
        linked = place((path.parent / target).resolve())
        if not linked.exists():
            return "" if image else text
        return f"{image}[{text}]({os.path.relpath(linked, place(path).parent)}{anchor})"

    parts = CODE.split(page)
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


def notebook(path: Path) -> str:
    """Returns a notebook as Markdown, and writes its pictures beside the page."""
    parts, pictures = [], 0
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", []):
            if png := output.get("data", {}).get("image/png"):
                pictures += 1
                name = f"{path.stem}_{pictures}.png"
                (place(path).parent / name).write_bytes(base64.b64decode(png))
                parts.append(f"![Figure {pictures}]({name})")
            elif "text" in output:
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
    return "\n\n".join(parts)


def main() -> None:
    """Gathers the pages, builds the site, and checks that it loads nothing from another host."""
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    pages = [ROOT / "CONTRIBUTING.md", *ROOT.glob("notebooks/*.ipynb")]
    pages += [path for path in ROOT.glob("docs/**/*") if path.suffix != ".py" and path.is_file()]
    pages += [path for path in ROOT.glob("experiments/results/**/*") if path.suffix in (".md", ".png")]
    for path in pages:
        place(path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place(path))
    for path in pages:
        if path.suffix == ".ipynb":
            place(path).write_text(notebook(path), encoding="utf-8")
        elif path.suffix == ".md":
            place(path).write_text(relink(path.read_text("utf-8"), path), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'docs'}{os.pathsep}{ROOT}", "COLUMNS": "90"}
    with open(SOURCE / "reference" / "command.md", "a", encoding="utf-8") as page:
        for name in COMMANDS:
            call = [sys.executable, "-m", "hopfax.command", name, "--help"]
            text = subprocess.run(call, env=environment, check=True, capture_output=True, text=True)
            page.write(f"\n## hopfax {name}\n\n```text\n{text.stdout}```\n")
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    for path in (*SITE.rglob("*.html"), *SITE.rglob("*.css")):
        if found := EXTERNAL.search(path.read_text(encoding="utf-8")):
            sys.exit(f"{path} loads {found[0]}")


if __name__ == "__main__":
    main()
