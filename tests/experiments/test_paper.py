import csv
import re
from pathlib import Path

import pytest

from experiments.__main__ import EXPERIMENTS, introduction
from experiments.robertha import paper
from experiments.robertha.paper import paper_average, paper_score


def test_every_table_of_scores_is_some_experiment_s():
    named = set()
    for module in EXPERIMENTS.values():
        tables = re.search(r"Robertha, Tables? ([^:F]*)", introduction(module)[0])
        for part in re.findall(r"[\d-]+", tables.group(1) if tables else ""):
            first, _, last = part.partition("-")
            named |= set(range(int(first), int(last or first) + 1))
    with open(Path(paper.__file__).with_name("paper_scores.csv"), newline="") as file:
        tables = {int(row["table"].removeprefix("table")) for row in csv.DictReader(file)}
    assert tables <= named and 13 in tables


def test_the_copy_is_the_reference(shared):
    ours = (Path(paper.__file__).with_name("paper_scores.csv")).read_text()
    assert ours == (shared / "reference" / "robertha_scores.csv").read_text()


@pytest.mark.parametrize(
    ("title", "model", "level", "expected"),
    [
        ("SST-2", "tinybert", 0.5, (55.1, 2.9)),
        ("SST-2", "robertha", 5, (60.0, 1.8)),
        ("SST-2", "robertha", 0, (81.2, 0.8)),
    ],
)
def test_task_scores(title, model, level, expected):
    assert paper_score(title, model, level) == expected


def test_what_the_paper_does_not_have_is_none():
    assert paper_score("SST-2", "robertha-no-esr", 0.5) is None  # suite averages only
    assert paper_score("SST-2", "tinybert", 0.25) is None
    assert paper_score("Sentiment", "tinybert", 0) is None
    assert paper_average("synthetic", ["Sentiment"], "tinybert", 0) is None


def tasks_of(suite):
    with open(Path(paper.__file__).with_name("paper_scores.csv"), newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["corruption"] == "gaussian"]
    return sorted({r["task"] for r in rows if r["benchmark"] == suite} - {"average"})


@pytest.mark.parametrize("model", ["tinybert", "robertha"])
@pytest.mark.parametrize("suite", ["glue", "superglue"])
@pytest.mark.parametrize("level", [0, 0.5, 1, 2, 5])
def test_suite_averages_agree_with_their_tasks(suite, model, level):
    tasks = tasks_of(suite)
    assert len(tasks) == paper.SUITE_SIZE[suite]
    whole = paper_average(suite, tasks, model, level)
    assert whole is not None and whole.std is not None
    mean = sum(paper_score(task, model, level).mean for task in tasks) / len(tasks)
    assert whole.mean == pytest.approx(mean, abs=0.12)


def test_ablations_have_suite_averages():
    glue = tasks_of("glue")
    assert paper_average("glue", glue, "robertha-no-iteration-no-esr", 2).mean == 51.6
    assert paper_average("glue", glue, "robertha-no-esr", 0.5) is not None
    assert paper_average("glue", glue[:4], "robertha-no-esr", 0.5) is None


def test_part_of_a_suite_is_the_mean_of_its_tasks():
    part = paper_average("glue", ["SST-2", "CoLA"], "tinybert", 0)
    assert part == ((80.3 + 55.3) / 2, None)


def test_every_model_has_all_five_levels_for_both_suites():
    for suite in paper.SUITE_SIZE:
        for model in paper.PAPER_MODELS:
            for level in (0, 0.5, 1, 2, 5):
                assert paper_average(suite, tasks_of(suite), model, level) is not None


def test_the_copy_of_the_hyperparameters_is_the_reference(shared):
    ours = (Path(paper.__file__).with_name("paper_hyperparameters.csv")).read_text()
    assert ours == (shared / "reference" / "robertha_hyperparameters.csv").read_text()


@pytest.mark.parametrize(
    ("title", "parameter", "value", "level", "expected"),
    [
        ("MRPC", "esr_target", 0.2, 5, 68.4),
        ("BoolQ", "esr_weight", 0, 0.5, 63.9),
        ("MRPC", "beta", 100, 2, 74.2),
        # A target of 1 is where 5 (MRPC) and 50 (BoolQ) push.
        ("MRPC", "esr_target", 1, 1, 75.2),
        ("BoolQ", "esr_target", 1, 5, 61.1),
        ("BoolQ", "beta", 100, 2, None),
        ("Paraphrase", "beta", 15, 2, None),
    ],
)
def test_scores_by_hyperparameter(title, parameter, value, level, expected):
    assert paper.paper_setting(title, parameter, value, level) == expected
