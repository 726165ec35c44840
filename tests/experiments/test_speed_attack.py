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


@pytest.mark.parametrize("vocab, message", [(False, "--vocab too"), (True, "no folder of ")])
def test_real_sentences_want_their_files(vocab, message, tmp_path, capsys):
    flags = ["--vocab", str(tmp_path)] if vocab else []
    with pytest.raises(SystemExit):
        attack.main(["--data-dir", str(tmp_path), *flags])
    assert "error: " in (told := capsys.readouterr().err) and message in told
