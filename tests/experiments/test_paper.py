import csv
import re
from pathlib import Path

import numpy as np
import pytest

from experiments import paper
from experiments.__main__ import EXPERIMENTS, introduction
from experiments.paper import paper_score


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


@pytest.mark.parametrize("name", ["scores", "hyperparameters"])
def test_the_copy_is_the_reference(shared, name):
    ours = Path(paper.__file__).with_name(f"paper_{name}.csv").read_text()
    assert ours == (shared / "reference" / f"robertha_{name}.csv").read_text()


@pytest.mark.parametrize(
    ("title", "model", "level", "corruption", "expected"),
    [
        ("SST-2", "tinybert", 0.5, "gaussian", 55.1),
        ("SST-2", "robertha", 5, "gaussian", 60.0),
        ("SST-2", "robertha", 0, "gaussian", 81.2),
        ("glue", "robertha-no-iteration-no-esr", 2, "gaussian", 51.6),
        ("AdvSST-2", "robertha", 0, "none", 48.4),
        ("glue", "freelb", 0.1, "misspelling", 62.8),
        ("SST-2", "robertha-no-esr", 0.5, "gaussian", np.nan),  # suite averages only
        ("SST-2", "tinybert", 0.25, "gaussian", np.nan),
        ("Sentiment", "tinybert", 0, "gaussian", np.nan),
    ],
)
def test_scores(title, model, level, corruption, expected):
    np.testing.assert_equal(paper_score(title, model, level, corruption=corruption), expected)


@pytest.mark.parametrize("model", ["tinybert", "robertha"])
@pytest.mark.parametrize(("suite", "size"), [("glue", 9), ("superglue", 4)])
def test_suite_averages_agree_with_their_tasks(suite, size, model):
    with open(Path(paper.__file__).with_name("paper_scores.csv"), newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["corruption"] == "gaussian"]
    tasks = {row["task"] for row in rows if row["benchmark"] == suite} - {"average"}
    assert len(tasks) == size
    for level in (0, 0.5, 1, 2, 5):
        mean = np.mean([paper_score(task, model, level) for task in tasks])
        assert paper_score(suite, model, level) == pytest.approx(mean, abs=0.12)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (("MRPC", "esr_target", 0.2, 5), 68.4),
        (("BoolQ", "esr_weight", 0, 0.5), 63.9),
        (("MRPC", "esr_target", 1, 1), 75.2),  # where 5 (MRPC) and 50 (BoolQ) push
        (("BoolQ", "esr_target", 1, 5), 61.1),
        (("BoolQ", "beta", 100, 2), np.nan),
    ],
)
def test_scores_by_hyperparameter(setting, expected):
    np.testing.assert_equal(paper.paper_setting(*setting), expected)
