"""The examples of docstrings, pages and notebooks run, links resolve, the reference is complete."""

import doctest
import importlib
import inspect
import pkgutil
import re
import runpy
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import hopfax

MODULES = sorted(info.name for info in pkgutil.walk_packages(hopfax.__path__, "hopfax."))
ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(ROOT.glob("docs/**/*.md"))
run = runpy.run_path(str(ROOT / ".ci" / "examples.py"))["run"]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings(name):
    module = importlib.import_module(name)
    result = doctest.testmod(module, globs={}, optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


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
def test_every_public_name_has_an_entry_in_the_reference_and_functions_an_example(package):
    module = importlib.import_module(f"hopfax.{package}")
    functions = dict(inspect.getmembers(module, inspect.isfunction))
    reference = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    shown = re.findall(rf"::: hopfax\.{package}\.(?:\w+\.)?(\w+)$", reference, re.MULTILINE)
    assert {*functions, *dict(inspect.getmembers(module, inspect.isclass))} <= set(shown)
    assert not [key for key, each in functions.items() if ">>>" not in (each.__doc__ or "")]


@pytest.mark.parametrize("path", sorted(ROOT.glob("notebooks/*.ipynb")), ids=lambda path: path.stem)
# Jupyter's own: sockets and event loops that its client leaves to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:jupyter_client")
def test_notebook_runs(path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    # Figures are to be shown in the notebook, not drawn into the void as in the other tests.
    monkeypatch.delenv("MPLBACKEND", raising=False)
    # A deprecated call in a notebook is an error here, as it is in the other tests.
    monkeypatch.setenv("PYTHONWARNINGS", "error::DeprecationWarning:__main__")
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in shown if output.get("name") == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in shown)
