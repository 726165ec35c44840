"""The site's pages: their examples run, their links resolve, and the reference is complete."""

import importlib
import inspect
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(ROOT.glob("docs/**/*.md"))
run = runpy.run_path(str(ROOT / ".ci" / "examples.py"))["run"]


def name(page):
    return page.relative_to(ROOT / "docs").as_posix()


# `.ci/package` runs the examples of all pages.
@pytest.mark.parametrize("page", ["index.md", "guides/beta.md", "guides/stability.md"])
def test_examples_print_what_the_page_shows(page):
    assert run(ROOT / "docs" / page) > 0


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_resolve(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", text)
    assert not [link for link in links if not (page.parent / link).is_file()]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_pages_are_short_and_in_the_navigation(page):
    assert len(page.read_text(encoding="utf-8").split()) <= 900
    assert f'"{name(page)}"' in (ROOT / "zensical.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("package", ["hopfield", "stability", "nn", "data", "text"])
def test_reference_has_every_public_function_and_class(package):
    members = inspect.getmembers(importlib.import_module(f"hopfax.{package}"))
    public = {key for key, each in members if inspect.isfunction(each) or inspect.isclass(each)}
    reference = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    shown = re.findall(rf"::: hopfax\.{package}\.(?:\w+\.)?(\w+)$", reference, re.MULTILINE)
    assert public == public.intersection(shown)
