"""Limits on the size of the repository: lower one where it is beaten, never raise one for a fix."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENTS = ROOT / "experiments"
RESULTS = EXPERIMENTS / "results"
PAGES = {"robertha": 1_300, "noise_stability": 940, "memory": 1_150, "speed": 380, "README": 270}


def files(folder, pattern="*"):
    return [path for path in folder.rglob(pattern) if path.is_file()]


def lines(*paths):
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def words(*paths):
    return sum(len(path.read_text(encoding="utf-8").split()) for path in paths)


def first_screen():
    head, _, _ = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## ")
    return len(head.split())


@pytest.mark.parametrize(
    ("measured", "limit"),
    [
        pytest.param(lambda: lines(*files(ROOT / "hopfax", "*.py")), 16_399, id="hopfax"),
        pytest.param(lambda: lines(*files(EXPERIMENTS, "*.py")), 12_257, id="experiments"),
        pytest.param(lambda: lines(*files(ROOT / "tests", "*.py")), 15_572, id="tests"),
        pytest.param(lambda: max(map(lines, files(EXPERIMENTS, "*.py"))), 450, id="longest file"),
        pytest.param(lambda: lines(*files(EXPERIMENTS / "pages", "*.py")), 660, id="written pages"),
        pytest.param(lambda: len(files(RESULTS)), 44, id="files of results"),
        pytest.param(
            lambda: sum(path.stat().st_size for path in files(RESULTS)), 7_000_000, id="bytes"
        ),
        pytest.param(lambda: len(files(RESULTS, "*.md")), 5, id="pages of results"),
        pytest.param(lambda: words(*files(RESULTS, "*.md")), 4_400, id="words of results"),
        pytest.param(lambda: words(ROOT / "README.md"), 640, id="words of README"),
        pytest.param(first_screen, 200, id="words of the first screen"),
        *(
            pytest.param(lambda name=name: words(RESULTS / f"{name}.md"), limit, id=f"{name}.md")
            for name, limit in PAGES.items()
        ),
    ],
)
def test_the_repository_keeps_within_its_limits(measured, limit):
    assert measured() <= limit


def is_exempt(node):
    """Whether strings of a node are a docstring, a help text, or a message on an error."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign):
        return getattr(node.targets[0], "id", "") == "REPRODUCES"
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        to_stderr = any(each.arg == "file" for each in node.keywords)
        return to_stderr or name in ("optional", "by_budget", "arg", "warn") or "Error" in name
    return isinstance(node, (ast.Raise, ast.Assert))


def sentences(tree):
    """Strings of eight or more words that code may put together or show."""
    exempt = {id(part) for node in ast.walk(tree) if is_exempt(node) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            exempt |= {id(part) for part in ast.walk(node)} - {id(node)}
    for node in ast.walk(tree):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        text = " ".join(str(getattr(each, "value", "")) for each in parts if is_text(each))
        if id(node) not in exempt and sum(word[0].isalpha() for word in text.split()) >= 8:
            yield text


def is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@pytest.mark.parametrize(
    "path", files(EXPERIMENTS, "*.py"), ids=lambda path: str(path.relative_to(ROOT))
)
def test_no_code_assembles_english(path):
    assert not [*sentences(ast.parse(path.read_text(encoding="utf-8")))]


def test_sentences_are_found_in_code_and_not_in_docstrings_or_errors():
    source = '''
def page(n):
    """A docstring may have as many words as it needs to have."""
    if n < 0:
        raise ValueError(f"n must be at least zero or a little more, got {n}")
    return f"this is a finding about {n} of the models that were tested"
'''
    (found,) = sentences(ast.parse(source))
    assert found.startswith("this is a finding")
