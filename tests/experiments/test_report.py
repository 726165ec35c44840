"""Pages: every number on a published page is the one its data give."""

import importlib
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
import tyro

from experiments import figures, report
from experiments.__main__ import EXPERIMENTS
from experiments.benchmarks import harness
from experiments.rundir import read_config
from experiments.scorecard import PAGES, RESULTS

FOLDERS = [
    path.parent
    for path in sorted(RESULTS.rglob("config.json"))
    if (path.parent / "results.csv").exists()
]
WORDS = 900


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda f: str(f.relative_to(RESULTS)))
def published(request):
    """A folder of results, its committed page, and the page that its data give."""
    folder = request.param
    module = importlib.import_module(PAGES[read_config(folder)["experiment"]])
    committed = (folder / "README.md").read_text(encoding="utf-8")
    return folder, committed, report.markdown(module.page(folder), folder)


def test_published_pages_are_what_their_data_give(published):
    _, committed, rendered = published
    assert committed == rendered


def test_published_pages_are_short_and_their_links_lead_somewhere(published):
    folder, committed, _ = published
    prose = [line for line in committed.splitlines() if not line.startswith(("|", "!", "python"))]
    assert len(re.findall(r"\S*\w\S*", committed)) <= WORDS  # bars of tables are no words
    assert max(map(len, prose)) <= 120
    for target in re.findall(r"\]\(([^)#:]+)\)", committed):
        assert (folder / target).exists(), target


@pytest.mark.parametrize(
    "name", ["adversarial/rte_minilm", "typos/minilm_sst2", "fine_tuning/cola"]
)
def test_one_model_makes_a_page_without_differences(name, tmp_path):
    frame = pd.read_csv(RESULTS / name / "results.csv")
    alone = frame[(frame.model == "pretrained") | (frame.metric == "constant")]
    alone.to_csv(tmp_path / "results.csv", index=False)
    shutil.copy(RESULTS / name / "config.json", tmp_path)
    module = importlib.import_module(PAGES[read_config(tmp_path)["experiment"]])
    text = report.markdown(module.page(tmp_path), tmp_path)
    assert "fine-tuned encoder" in text
    assert "| fine-tuned encoder + " not in text
    assert "nan" not in text


def test_names_are_joined():
    names = ["CoLA", "MRPC", "RTE"]
    joined = [report.joined(names[:count]) for count in range(4)]
    assert joined == ["", "CoLA", "CoLA and MRPC", "CoLA, MRPC and RTE"]


NAN = float("nan")


@pytest.mark.parametrize(
    ("mean", "low", "high", "text"),
    [
        (2.0, 1.0, 3.0, "**+2.0 [+1.0, +3.0]**"),
        (1.25, -1.25, 5.0, "+1.2 [−1.2, +5.0]"),
        (-0.01, 0.0, 5.0, "0.0 [0.0, +5.0]"),
        (1.26, 0.021, 2.5, "**+1.26 [+0.02, +2.50]**"),
        (0.1, 0.004, 0.2, "**+0.100 [+0.004, +0.200]**"),
        (5.2, NAN, NAN, "+5.2 [n/a]"),
    ],
)
def test_differences_have_a_sign_and_are_bold_without_zero(mean, low, high, text):
    row = {"mean": mean, "low": low, "high": high}
    assert report.with_interval(row) == text
    unsigned = text.replace("+", "").strip("*").removesuffix(" [n/a]")
    digits = {0.021: 2, 0.004: 3}.get(low, 1)
    assert report.bracketed(row, digits=digits) == unsigned
    assert report.signed(NAN) == "n/a"


def test_code_is_not_wrapped():
    command = "`" + "x " * 80 + "`"
    assert report.wrapped(command) == command


def test_titles_of_published_pages_differ():
    titles = [path.read_text(encoding="utf-8").split("\n")[0] for path in RESULTS.rglob("*.md")]
    assert len(titles) == len(set(titles)) > 50


def test_repository_root_is_not_in_a_page():
    root = str(Path(report.__file__).parents[1])
    assert not any(root in path.read_text() for path in RESULTS.rglob("*.md"))


def test_the_first_page_quotes_the_results():
    root = RESULTS.parents[1]
    first, _, _ = (root / "README.md").read_text(encoding="utf-8").partition("## Start")
    pages = re.findall(r"\((experiments/results/[^)]+\.md)\)", first)
    pages = [(root / page).read_text(encoding="utf-8") for page in pages]
    first = re.sub(r"Python [\d.]+|https?://\S+", "", first)
    quoted = re.findall(r"[+−][\d.]+ \[[^\]]+\]|[+−]?\d+\.\d+", first)
    assert quoted and all(any(each in page for page in pages) for each in quoted)


def test_the_commands_of_pages_can_be_run(published):
    for line in read_config(published[0]).get("command", "").splitlines():
        program, name, *words = line[line.index("experiments") :].split()
        if program == "experiments.benchmarks":
            assert {name} <= {"all", *harness.CASES} and words in ([], ["--data-dir", "DIR"])
            continue
        module = importlib.import_module(EXPERIMENTS[name])
        parsed = tyro.cli(module.Config, args=words, config=(tyro.conf.OmitArgPrefixes,))
        data = getattr(parsed, "data", parsed)
        assert getattr(data, "data_dir", None) in (None, "DIR")


@pytest.mark.parametrize(("levels", "marker"), [((0.0,), "s"), ((0.0, -6.0), "")])
def test_a_single_point_is_marked(levels, marker):
    lines = pd.DataFrame({"snr_db": levels, "model": "tinybert", "mean": 90.0})
    axes = figures.facets(lines.assign(low=89.0, high=91.0), x="snr_db").axes[0]
    assert axes.lines[0].get_marker() == marker


@pytest.mark.parametrize("limit", [-8.0, -15.2])
def test_a_limit_is_shaded_from_where_it_is_also_beyond_the_data(limit):
    lines = pd.DataFrame({"snr_db": [0.0, -14.0], "model": "tinybert", "mean": [90.0, 80.0]})
    lines = lines.assign(low=lines["mean"] - 1, high=lines["mean"] + 1, limit=limit)
    axes = figures.facets(lines, x="snr_db", xlabel=figures.SNR).axes[0]
    (span,) = axes.patches
    assert span.get_x() + span.get_width() == pytest.approx(limit)
    assert axes.get_xlim() == pytest.approx((0.0, min(-14.0, limit - 1)))  # decreases
