"""Limits on the size of the repository: lower one where it is beaten, never raise one for a fix."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "experiments" / "results"


def lines(folder):
    return sum(len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py"))


def long_files():
    paths = (path for folder in ("hopfax", "experiments") for path in (ROOT / folder).rglob("*.py"))
    return sum(len(path.read_text().splitlines()) > 450 for path in paths)


def words(*paths):
    return sum(len(path.read_text().split()) for path in paths)


def files():
    return sum(path.is_file() for path in RESULTS.rglob("*"))


@pytest.mark.parametrize(
    ("measured", "limit"),
    [
        pytest.param(lambda: lines("hopfax"), 14_860, id="lines of hopfax"),
        pytest.param(lambda: lines("experiments"), 15_470, id="lines of experiments"),
        pytest.param(lambda: lines("tests"), 16_670, id="lines of tests"),
        pytest.param(long_files, 14, id="files of more than 450 lines"),
        pytest.param(files, 367, id="files of results"),
        pytest.param(lambda: len([*RESULTS.rglob("*.md")]), 90, id="pages of results"),
        pytest.param(lambda: words(*RESULTS.rglob("*.md")), 64_130, id="words of results"),
        pytest.param(lambda: words(ROOT / "README.md"), 2_518, id="words of README"),
    ],
)
def test_the_repository_keeps_within_its_limits(measured, limit):
    assert measured() <= limit
