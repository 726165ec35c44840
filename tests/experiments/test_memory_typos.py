"""Correction of words before a model reads them, and attacks that know of it."""

import json

import numpy as np
import pandas as pd
import pytest
from text.bags import Bag

from experiments import conditions, runs
from experiments.memory import correction, typos
from experiments.memory.correction import CorrectedTypos, Method
from experiments.models import variant
from experiments.settings import Data, Training
from hopfax import text
from hopfax.text import WordMemory

MEMORY = Method("memory", (("span", 3), ("beta", 20.0), ("unseen", 0.01)))
COUNTS = {"a": 50_000, "wonderful": 2000, "film": 9000, "very": 5000, "long": 4000}
CORRECT = WordMemory(COUNTS).correct
PAIR = (("a very long film", "wonderful"),)


def config(folder, **changes):
    return typos.Config(
        **{"budget": "smoke", "runs": str(folder), "method": ("memory",), **changes},
        data=Data(task=("sentiment",), train_size=64, test_size=40, vocab_size=200, max_length=40),
        training=Training(seeds=(1, 2), epochs=1, width=16),
    )


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    flags = typos.for_task(config(tmp_path_factory.mktemp("runs")), "sentiment")
    job = runs.Job("sentiment", "tinybert", variant("tinybert"), ())
    return runs.open_cell(flags, job, runs.load(flags, "sentiment"))


@pytest.mark.parametrize("texts", ["a very long film", PAIR, PAIR * 2])
def test_spellings_follow_the_log(texts):
    made = text.misspell(texts, rate=0.8, seed=3)
    words = correction.spellings(texts, made.edits)
    clean = ["a", "very", "long", "film", "wonderful"]
    assert [old for old, _ in words] == clean[: len(words)]
    assert sum(old != new for old, new in words) == made.num_changed > 0
    assert correction.redone(texts, made.edits).corrupted() == made
    first = made.text if isinstance(texts, str) else made.text[0][0]
    assert [new for _, new in words][:4] == first.split()


def test_words_are_counted_with_multiplicity():
    pairs = {("film", "flim"): 3, ("long", "xxxx"): 1, ("very", "very"): 2, ("veri", "veri"): 1}
    assert correction.words(CORRECT, pairs) == (4, 3, 3, 1)


def test_gradients_of_the_corrected_text_belong_to_the_words_before():
    """An attack finds the tokens of each word, although the correction moves them."""
    model, clean = Bag([*COUNTS, "."]), "a wndrful flm . very"
    seen = correction.defended(model.victim(), CORRECT)
    assert seen.loss([clean], [1]) == model.one_loss("a wonderful film . very", 1)
    assert seen.gradients is not None
    (linear,) = seen.gradients.linearize([clean], [1])
    spans = list(zip(linear.starts, linear.ends, strict=True))
    words = [clean[start:end] for start, end in spans if start >= 0]
    assert words == ["a", "wndrful", "flm", "very"]
    assert linear.ids[linear.starts < 0].tolist() == [model.number["."]]
    # An edit that is undone has the tokens of the word itself.
    undone, known, far = seen.gradients.pieces(["flim", "film", "xyz"])
    assert undone == known != far


def test_a_fixed_attack_is_that_on_the_model_without_correction(cell):
    shared = {"corruption": "textbugger", "rate": 0.5, "num_texts": 6}
    plain = conditions.predictions(cell, conditions.Typos(**shared))
    test = CorrectedTypos(method=MEMORY, **shared)
    fixed = conditions.predictions(cell, test)
    assert fixed.edits.tolist() == plain.edits.tolist()
    # The corrected words are read.
    rows = conditions.with_words("sentiment", None, 6)
    as_rows = [
        row._replace(texts=test.read(cell, correction.redone(row.texts, log).text))
        for row, log in zip(rows, json.loads(str(plain.edits[1])), strict=True)
    ]
    want = conditions.predict_rows(cell, as_rows, [1]).logits[0]
    np.testing.assert_allclose(fixed.logits[1], want, rtol=1e-4, atol=1e-5)


def test_an_adaptive_attack_raises_the_loss_of_the_model_with_correction(cell):
    rows = conditions.with_words("sentiment", None, 6)
    texts, labels = [row.texts for row in rows], [row.label for row in rows]
    shared = {"method": MEMORY, "corruption": "hotflip", "rate": 0.5, "num_texts": 6, "beam": 1}
    fixed, adaptive = (CorrectedTypos(adaptive=each, **shared) for each in (False, True))
    victim = fixed.victim(cell, 0)
    weak, strong = ([each.text for each in test.corrupted(cell, rows, 0)]
                    for test in (fixed, adaptive))  # fmt: skip
    clean, weak, strong = (victim.loss(each, labels).mean() for each in (texts, weak, strong))
    assert strong > max(clean, weak)


def test_settings_are_chosen_by_the_words_that_are_right(monkeypatch):
    settings = [{"span": 2, "beta": 20.0, "unseen": unseen} for unseen in (1e6, 0.01)]
    monkeypatch.setitem(correction.GRID, "memory", settings)
    texts = ["a very long film", "a wonderful film", "a long wonderful film"] * 10
    table = correction.tune(texts, ["memory"], num_texts=6)
    assert table[0]["restored"] == 0 and table[1]["restored"] > 50
    assert dict(correction.best(table, "memory").settings) == settings[1]


def test_symspell_has_the_same_words_and_keeps_case():
    pytest.importorskip("symspellpy", reason="symspellpy is not installed")
    correct = correction.build(Method("symspell", (("max_distance", 2),)), COUNTS)
    assert correct("A Wnoderful FLIM, xylophone.").text == "A Wonderful FILM, xylophone."


def test_without_symspell_it_is_skipped(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert typos.installed(["memory", "symspell"]) == ["memory"]
    assert "symspellpy is not installed" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no method"):
        typos.installed(["symspell"])


def test_a_run_measures_every_condition_and_writes_its_page(cell, monkeypatch):
    monkeypatch.setitem(correction.GRID, "memory", [dict(MEMORY.settings)])
    folder = typos.run(config(cell.folder.parents[1], corruption=("char_swap", "textbugger")))
    frame = pd.read_csv(folder / "results.csv")
    measured = frame[frame.metric == "score"].groupby(["corruption", "model", "protocol"],
                                                      dropna=False).size()  # fmt: skip
    assert len(measured) == 7 and set(measured) == {2}
    assert set(frame.metric) == {"score", "gain", "words_changed", "restored", "altered"}
    gains = frame[frame.metric == "gain"].set_index(["corruption", "protocol", "seed"]).score
    scores = frame[frame.metric == "score"].set_index(["model", "corruption", "protocol", "seed"])
    at = ("textbugger", "adaptive", 2)
    plain = scores.score["none", "textbugger", "fixed", 2]
    assert gains[at] == pytest.approx(scores.score["memory", *at] - plain, abs=1e-3)
    page = (folder / "report.html").read_text()
    assert "memory, adaptive attack" in page and "settings.csv" in page


def test_epochs_depend_on_the_task_unless_set(tmp_path):
    laptop = typos.Config(data=Data(task=("sst2", "cola"), data_dir="DIR"))
    assert typos.for_task(laptop, "sst2").training.epochs == 1
    assert typos.for_task(laptop, "cola").training.epochs == 6
    own = typos.Config(data=laptop.data, training=Training(epochs=2))
    assert typos.for_task(own, "cola").training.epochs == 2
