"""The benchmark of attacks: all programs do the same work, and its page says so."""

import json

import pytest

from experiments.speed import attack, page

SMALL = {"width": 8, "num_layers": 1, "ff_width": 8}


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(attack, "PROGRAMS", {
        "in batches": ((32,), (8,), 4),
        "one text a call": ((32,), (1,), 1),
    })  # fmt: skip
    monkeypatch.setitem(attack.MODELS, "tinybert", lambda *sizes: TINYBERT(*sizes, **SMALL))


TINYBERT = attack.MODELS["tinybert"]


def test_the_page_has_its_table(small, tmp_path, capsys):
    flags = ["--seconds", "0", "--rounds", "1", "--texts", "3"]
    flags += ["--models", "tinybert", "--attacks", "textbugger"]
    attack.main([*flags, "--out", str(tmp_path)])
    batched, single = json.loads((tmp_path / "attack.json").read_text())["table"]
    assert batched["texts"] == single["texts"] == single["calls"] > 5 * batched["calls"]
    assert batched["times"] == 1 and single["times"] == pytest.approx(
        batched["texts_per_second"] / single["texts_per_second"], rel=0.05
    )
    assert "tinybert, textbugger, one text a call:" in capsys.readouterr().out
    page.main([str(tmp_path)])
    text = (tmp_path / "README.md").read_text()
    assert "## Attacks on text" in text
    assert f"| tinybert | textbugger | one text a call | {single['texts']} |" in text


@pytest.mark.parametrize("kind", ["losses alone", "gradients alone"])
def test_the_model_alone_reads_the_same_texts(small, kind, tmp_path):
    flags = ["--seconds", "0", "--rounds", "1", "--texts", "3", "--models", "tinybert"]
    attack.main([*flags, "--attacks", kind, "--out", str(tmp_path)])
    batched, single = json.loads((tmp_path / "attack.json").read_text())["table"]
    assert batched["texts"] == single["texts"] == single["calls"] == 3 * attack.VERSIONS
    assert batched["calls"] == 2, "15 versions at once, eight a call"
    page.main([str(tmp_path)])
    goals = (tmp_path / "README.md").read_text()
    assert "speed of an attack's model calls in batches over one text a call |" in goals
    assert "speed of an attack in batches" not in goals or "| not measured |" in goals


def test_the_vocabulary_is_that_of_the_data_where_none_is_named(tmp_path):
    (tmp_path / "glue_data" / "SST-2").mkdir(parents=True)
    (tmp_path / "glue_data" / "SST-2" / "dev.tsv").write_text("sentence\tlabel\na fine film\t1\n")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "film"]
    for place in (tmp_path / "vocab" / "bert-base-uncased", tmp_path / "other"):
        place.mkdir(parents=True)
        (place / "vocab.txt").write_text("\n".join(words) + "\n")
        words.append("fine")
    assert attack.rows(tmp_path, None, 5)[0].size == 7
    vocabulary, texts, labels = attack.rows(tmp_path, tmp_path / "other", 5)
    assert vocabulary.size == 8 and len(texts) == len(labels) == 1
