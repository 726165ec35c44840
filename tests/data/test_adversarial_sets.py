import dataclasses
import json
from collections import Counter

import pytest

from hopfax.data import read_evaluation_set, task

HEADER = "id\tsentence1\tsentence2\tlabel\n"
ROWS = {
    "sst2": [{"idx": 0, "sentence": "a fi1m ", "label": 1}, {"sentence": "dull", "label": 0}],
    "qqp": [{"question1": "Who?", "question2": "Whom?", "label": 1}],
    "mnli": [{"premise": "p", "hypothesis": "h", "label": number} for number in range(3)],
    "mnli-mm": [{"premise": "p", "hypothesis": "h", "label": 2}],
    "qnli": [{"question": "Who?", "sentence": "He.", "label": 1}],
    "rte": [{"sentence1": "a", "sentence2": "b", "label": 0}],
}


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_advglue_in_its_layout(tmp_path):
    write(tmp_path / "advglue" / "dev.json", json.dumps(ROWS))
    rows = {section: read_evaluation_set(f"adv-{section}", tmp_path) for section in ROWS}
    assert rows == {
        "sst2": [((("a fi1m",),), 1, 0), ((("dull",),), 0, 1)],
        "qqp": [((("Who?", "Whom?"),), 1, 0)],
        "mnli": [((("p", "h"),), number, number) for number in range(3)],
        "mnli-mm": [((("p", "h"),), 2, 0)],
        "qnli": [((("Who?", "He."),), 1, 0)],
        "rte": [((("a", "b"),), 0, 0)],
    }


def test_only_paws_x_drops_marked_rows_and_few_empty_ones(tmp_path):
    rows = HEADER + "1\teins\tzwei\t1\n2\tdrei\tNS\t0\n3\tNS\tNS\t1\n4\tNSU\tvier NS\t0\n"
    write(tmp_path / "x-final/de/test_2k.tsv", rows + "5\ta\tb\t1\n" * 99 + "6\t\tb\t1\n")
    with pytest.warns(UserWarning) as caught:
        kept = read_evaluation_set("paws-x-de", tmp_path)
    marked, empty = (str(each.message) for each in caught)
    assert "dropped 2 of 104 rows marked NS (lines 3, 4)" in marked
    assert "dropped 1 of 104 rows lacking" in empty and "(lines 105)" in empty
    assert kept[:2] == [((("eins", "zwei"),), 1, 0), ((("NSU", "vier NS"),), 0, 3)]
    write(tmp_path / "paws/labeled_final/test.tsv", rows)
    assert read_evaluation_set("paws", tmp_path)[2] == ((("NS", "NS"),), 1, 2)


def test_real_sets_have_their_rows(shared):
    manifest = json.loads((shared / "data" / "manifest.json").read_text())
    (entry,) = [entry for entry in manifest if entry["path"] == "advglue/dev.json"]
    for section, labels in entry["labels"].items():
        rows = read_evaluation_set(f"adv-{section}", shared / "data")
        assert [row.index for row in rows] == list(range(len(rows)))
        assert Counter(str(row.label) for row in rows) == labels
    rows = read_evaluation_set("paws", shared / "data")
    assert len(rows) == 8000 and sum(row.label for row in rows) == 3536


TWO_LABELS = dataclasses.replace(task("mnli"), labels=("entailment", "not"))
OWN = dataclasses.replace(task("qqp"), suite="own", labels=("duplicate", "not_duplicate"))
MNLI = dataclasses.replace(task("mnli"), labels=("contradiction", "entailment", "neutral"))
MRPC = dataclasses.replace(task("mrpc"), labels=("1", "0"))


@pytest.mark.parametrize(
    ("name", "trained", "expected"),
    [
        ("adv-mnli", MNLI, [1, 2, 0]),
        ("paws", "qqp", [1, 0]),
        ("paws", "paraphrase", [1, 0]),
        ("paws", MRPC, [0, 1]),
        ("paws", "mnli", "PAWS tests models of qqp or mrpc or paraphrase .* on mnli with entail"),
        ("paws-x-de", "stsb", "trained on stsb with scores"),
        ("adv-mnli", TWO_LABELS, "trained on mnli with entailment, not"),
        ("paws", OWN, "PAWS tests .* labels 0, 1; .* trained on qqp with duplicate, not_dup"),
    ],
)
def test_labels_are_classes_of_the_trained_task(tmp_path, name, trained, expected):
    write(tmp_path / "dev.json", json.dumps(ROWS))
    write(tmp_path / "labeled_final" / "test.tsv", HEADER + "1\ta\tb\t1\n2\ta\tc\t0\n")
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            read_evaluation_set(name, tmp_path, trained=trained)
    else:
        rows = read_evaluation_set(name, tmp_path, trained=trained)
        assert [row.label for row in rows] == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"dev\.json is not a JSON file: Expecting"),
        ('{"sst": []}', r"dev\.json: 'sst2' must be a list of rows, got NoneType"),
        ('{"sst2": [3]}', "sst2 row 1: expected an object, got int"),
        ('{"sst2": [{"sentence": "a", "label": 2}]}', "sst2 row 1: unknown label '2'; AdvSST-2"),
        ('{"sst2": [{"sentence": "a"}]}', "sst2 row 1: no label 'label'"),
    ],
)
def test_malformed_advglue(tmp_path, content, message):
    write(tmp_path / "dev.json", content)
    with pytest.raises(ValueError, match=message):
        read_evaluation_set("adv-sst2", tmp_path)
