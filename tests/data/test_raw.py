import dataclasses
import json
from collections import Counter

import numpy as np
import pytest

from hopfax.data import TASKS, load_task, read_split, task

RAW = [name for name, spec in TASKS.items() if spec.suite != "synthetic"]
PARTIAL = {"mnli", "qqp", "qnli", "boolq"}  # files with a part of the rows


def write(folder, name, text):
    path = folder / task(name).files["train"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(errors="surrogateescape"))
    return path


@pytest.mark.parametrize("name", RAW)
def test_real_sets_have_their_rows_and_labels(shared, name):
    spec, folder = task(name), shared / "data" / ("partial" if name in PARTIAL else ".")
    train, dev = (read_split(spec, folder, split) for split in ("train", "validation"))
    assert all(len(row.texts) == spec.num_choices for row in train)
    assert spec.regression or {row.label for row in train} == set(range(len(spec.labels)))
    assert [row.index for row in dev] == list(range(len(dev)))
    if name in PARTIAL:
        return
    assert len(train) == spec.train_rows
    folder = "glue_data" if spec.suite == "glue" else "superglue"
    manifest = json.loads((shared / "data" / "manifest.json").read_text())
    entries = {entry["path"]: entry for entry in manifest}
    for split, rows in (("train", train), ("validation", dev)):
        entry = entries[f"{folder}/{spec.files[split]}"]
        assert len(rows) == entry["rows"]
        if not spec.regression:
            labels = Counter(spec.labels[row.label] for row in rows)
            assert labels == {label.lower(): count for label, count in entry["labels"].items()}


def test_layouts(tmp_path):
    write(tmp_path, "cola", "x\t1\t\tFirst row counts.\nx\t0\t*\tSo does the second.")
    assert [row.label for row in read_split("cola", tmp_path, "train")] == [1, 0]
    row = json.dumps({"word": "a", "sentence1": "b", "sentence2": "c", "label": True})
    write(tmp_path, "wic", f"{row}\n\n{row}\n\n")
    assert len(read_split("wic", tmp_path, "train")) == 2
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    write(tmp_path, "mrpc", f'\ufeff{header}\r\n1\t1\t2\t" Open\tquote " s\r\n')
    assert read_split("mrpc", tmp_path, "train")[0].texts == (('" Open', 'quote " s'),)
    # Only a newline ends a row, and the folder may be one level below.
    write(tmp_path / "glue_data", "sst2", "sentence\tlabel\none\u2028two\x0bthree \t0\n")
    assert read_split("sst2", tmp_path, "train")[0].texts == (("one\u2028two\x0bthree",),)
    write(tmp_path, "stsb", "index\tsentence1\tsentence2\tscore\n0\ta\tb\t3.800\n\r\n\n")
    assert read_split("stsb", tmp_path, "train")[0] == ((("a", "b"),), 3.8, 0)


def test_joins_of_superglue():
    copa = {"premise": "It rained.", "choice1": "A.", "choice2": "B.", "question": "effect"}
    question = "It rained. What happened as a result?"
    assert task("copa").join(copa) == ((question, "A."), (question, "B."))
    with pytest.raises(ValueError, match="'cause' or 'effect', got 'why'"):
        task("copa").join(copa | {"question": "why"})
    wic = {"word": "run", "sentence1": "Run rogue.", "sentence2": "She ran."}
    assert task("wic").join(wic) == (("run : Run rogue.", "She ran."),)
    wsc = {"text": "Ann saw Bo.", "target.span1_text": "Ann", "target.span2_text": "she"}
    assert task("wsc").join(wsc) == (("Ann saw Bo.", "she refers to Ann"),)


def test_rows_without_gold_label_are_dropped(tmp_path):
    rows = "sentence1\tsentence2\tgold_label\na\tb\t-\na\tb\tneutral\nc\td\tentailment\n"
    write(tmp_path, "mnli", rows)
    with pytest.warns(UserWarning, match=r"dropped 1 of 3 rows without a gold label \(lines 2\)"):
        examples = read_split("mnli", tmp_path, "train")
    assert [(row.label, row.index) for row in examples] == [(1, 1), (0, 2)]


def test_few_damaged_rows_of_qqp_are_dropped_but_many_are_an_error(tmp_path):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    good, cut = "0\t1\t2\tWhat?\tWhy?\t1\n", "0\t1\t2\tWhat?\n"
    write(tmp_path, "qqp", header + good * 999 + cut)
    with pytest.warns(UserWarning, match=r"dropped 1 of 1000 rows lacking .*\(lines 1001\)"):
        assert len(read_split("qqp", tmp_path, "train")) == 999
    write(tmp_path, "qqp", header + good * 998 + cut)
    with pytest.raises(ValueError, match=r"line 1000: expected 6 columns, got 4"):
        read_split("qqp", tmp_path, "train")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("sst2", "sentence\tlabel\nfine\t1\nfine\n", r"line 3: expected 2 .*, got 1"),
        ("sst2", "sentence\tlabel\nfine\t2\n", r"line 2: unknown label '2'; SST-2 has 0, 1"),
        ("sst2", "sentence\tlabel\n  \t1\n", r"line 2: empty text in 'sentence'"),
        ("sst2", "text\tlabel\nfine\t1\n", r"line 2: no 'sentence' \(the row has text, label\)"),
        ("sst2", "sentence\tlabel\n", r"has no rows"),
        ("stsb", "sentence1\tsentence2\tscore\na\tb\t5.5\n", r"line 2: label .* 5.0, got '5.5'"),
        ("wic", '{"word": "a"}\n', r"line 1: no 'sentence1'"),
        ("wic", "[]\n", r"line 1, column 1: not JSON \(expected an object, got list"),
        ("wsc", '{"text": "a", "target": {"span1_text": 3}}', r"line 1: .*must be a string, got 3"),
    ],
)
def test_errors_name_file_and_line(tmp_path, name, text, message):
    path = write(tmp_path, name, text)
    with pytest.raises(ValueError, match=message) as error:
        read_split(name, tmp_path, "train")
    assert str(path) in str(error.value)


@pytest.mark.parametrize("name", ["sentiment", "entailment", "paraphrase"])
def test_synthetic_tasks_require_no_files(tmp_path, name):
    words = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "was")
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    data, few = load_task(name), load_task(name, vocabulary=tmp_path, train_size=64)
    assert few.vocabulary.tokens == words
    sizes = [len(part.labels) for part in (few.train, data.train, data.validation, data.test)]
    assert sizes == [64, 2000, 400, 500]
    assert data.train.ids.max() < data.vocabulary.size < 512
    assert not data.is_partial


def test_train_file_is_split_without_overlap(tmp_path, monkeypatch):
    (tmp_path / "SST-2").mkdir()
    for file, rows in (("train.tsv", 50), ("dev.tsv", 20)):
        lines = [f"{file[:3]} word{number}\t{number % 2}\n" for number in range(rows)]
        (tmp_path / "SST-2" / file).write_text("sentence\tlabel\n" + "".join(lines))
    data, few = (load_task("sst2", data_dir=tmp_path, train_size=size) for size in (None, 10))
    assert data.validation.index.tolist() == few.validation.index.tolist()
    assert data.validation.index.tolist() == [1, 5, 15, 19, 48]  # on every machine
    assert sorted([*data.train.index, *data.validation.index]) == list(range(50))
    assert (np.diff(data.train.index) > 0).all() and len(data.test.index) == 20
    assert len(few.train.index) == 10 and set(few.train.index) < set(data.train.index)
    # "dev" occurs in the dev file only, so its letters are not merged.
    assert "tra" in data.vocabulary.tokens and "dev" not in data.vocabulary.tokens
    with pytest.raises(ValueError, match=r"train_size must be at most 45 \(sst2 has 50 .* got 46"):
        load_task("sst2", data_dir=tmp_path, train_size=46)
    monkeypatch.setitem(TASKS, "sst2", dataclasses.replace(task("sst2"), train_rows=50))
    assert not load_task("sst2", data_dir=tmp_path).is_partial
    assert load_task("sst2", data_dir=tmp_path, train_size=44).is_partial
