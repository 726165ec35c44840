import subprocess
import sys

import pytest

from hopfax.data import TASKS, task


def test_the_thirteen_tasks_and_three_more():
    assert [name for name, spec in TASKS.items() if spec.suite == "glue"] == (
        ["cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli"]
    )
    assert [name for name, spec in TASKS.items() if spec.suite == "superglue"] == (
        ["boolq", "copa", "wic", "wsc"]
    )
    assert [name for name, spec in TASKS.items() if spec.suite == "synthetic"] == (
        ["sentiment", "entailment", "paraphrase"]
    )


@pytest.mark.parametrize("name", TASKS)
def test_specification_is_consistent(name):
    spec = task(name)
    assert spec.name == name
    assert spec.regression == (not spec.labels)
    one_output = spec.regression or spec.num_choices > 1
    assert spec.num_outputs == (1 if one_output else len(spec.labels))
    assert bool(spec.files) == (spec.suite != "synthetic") == bool(spec.folder)
    assert (spec.train_rows is None) == (spec.suite == "synthetic")
    texts = spec.join(dict.fromkeys(spec.columns, " cause ") | {"question": "cause"})
    assert len(texts) == spec.num_choices
    assert all(len(choice) in (1, 2) and all(choice) for choice in texts)


@pytest.mark.parametrize(
    ("given", "meant"), [("sst-2", "sst2"), ("STS_B", "stsb"), ("entailmnt", "entailment")]
)
def test_unknown_task_names_the_nearest(given, meant):
    with pytest.raises(ValueError, match=rf"unknown task '{given}': did you mean {meant}"):
        task(given)


def test_unlike_any_task_lists_all():
    with pytest.raises(ValueError, match="the tasks are cola, sst2"):
        task("zzzz")


def test_joins_of_superglue():
    copa = {"premise": "It rained.", "choice1": "A.", "choice2": "B.", "question": "effect"}
    assert task("copa").join(copa) == (
        ("It rained. What happened as a result?", "A."),
        ("It rained. What happened as a result?", "B."),
    )
    with pytest.raises(ValueError, match="'cause' or 'effect', not 'why'"):
        task("copa").join(copa | {"question": "why"})
    wic = {"word": "run", "sentence1": "Run rogue.", "sentence2": "She ran."}
    assert task("wic").join(wic) == (("run : Run rogue.", "She ran."),)
    wsc = {"text": "Ann saw Bo.", "target.span1_text": "Ann", "target.span2_text": "she"}
    assert task("wsc").join(wsc) == (("Ann saw Bo.", "she refers to Ann"),)


def test_importing_the_package_stays_cheap():
    heavy = ("tensorflow", "tensorflow_datasets", "tokenizers", "jax", "flax")
    code = (
        "import sys, hopfax.data; "
        f"found = [name for name in {heavy} if name in sys.modules]; assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
