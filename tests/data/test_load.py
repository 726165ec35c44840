import dataclasses

import numpy as np
import pytest

from hopfax.data import TASKS, load_task, task

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "was")


def write_sst2(folder):
    (folder / "SST-2").mkdir()
    for file, rows in (("train.tsv", 50), ("dev.tsv", 20)):
        lines = [f"{file[:3]} word{number}\t{number % 2}\n" for number in range(rows)]
        (folder / "SST-2" / file).write_text("sentence\tlabel\n" + "".join(lines))


@pytest.mark.parametrize("name", ["sentiment", "entailment", "paraphrase"])
def test_synthetic_tasks_require_no_files(tmp_path, name):
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    data, few = load_task(name), load_task(name, vocabulary=tmp_path, train_size=64)
    assert few.vocabulary.tokens == WORDS
    sizes = [len(part.labels) for part in (few.train, data.train, data.validation, data.test)]
    assert sizes == [64, 2000, 400, 500]
    assert data.train.ids.max() < data.vocabulary.size < 512
    assert not data.is_partial


def test_train_file_is_split_without_overlap(tmp_path, monkeypatch):
    write_sst2(tmp_path)
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
