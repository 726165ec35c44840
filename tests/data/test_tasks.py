import pytest

from hopfax.data import TASKS, task


def test_the_thirteen_tasks_and_three_more():
    for suite, names in (
        ("glue", "cola sst2 mrpc qqp stsb mnli qnli rte wnli"),
        ("superglue", "boolq copa wic wsc"),
        ("synthetic", "sentiment entailment paraphrase"),
    ):
        assert [name for name, spec in TASKS.items() if spec.suite == suite] == names.split()
    outputs = {name: spec.num_outputs for name, spec in TASKS.items()}
    assert outputs == dict.fromkeys(TASKS, 2) | {"mnli": 3, "stsb": 1, "copa": 1}


@pytest.mark.parametrize("name", TASKS)
def test_specification_is_consistent(name):
    spec = task(name)
    assert spec.name == name
    assert spec.regression == (not spec.labels)
    assert bool(spec.files) == (spec.suite != "synthetic") == bool(spec.folder)
    assert (spec.train_rows is None) == (spec.suite == "synthetic")
    texts = spec.join(dict.fromkeys(spec.columns, " cause ") | {"question": "cause"})
    assert len(texts) == spec.num_choices
    assert all(len(choice) in (1, 2) and all(choice) for choice in texts)


def test_joins_of_superglue():
    copa = {"premise": "It rained.", "choice1": "A.", "choice2": "B.", "question": "effect"}
    assert task("copa").join(copa) == (
        ("It rained. What happened as a result?", "A."),
        ("It rained. What happened as a result?", "B."),
    )
    with pytest.raises(ValueError, match="'cause' or 'effect', got 'why'"):
        task("copa").join(copa | {"question": "why"})
    wic = {"word": "run", "sentence1": "Run rogue.", "sentence2": "She ran."}
    assert task("wic").join(wic) == (("run : Run rogue.", "She ran."),)
    wsc = {"text": "Ann saw Bo.", "target.span1_text": "Ann", "target.span2_text": "she"}
    assert task("wsc").join(wsc) == (("Ann saw Bo.", "she refers to Ann"),)
