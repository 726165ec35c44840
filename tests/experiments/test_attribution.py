"""The ladder from TinyBERT to Robertha: its steps, its page, a run of it."""

import json

import numpy as np
import pytest

from experiments import __main__ as command
from experiments import rundir
from experiments.robertha import attribution
from experiments.robertha import attribution_page as page
from experiments.robertha.attribution_page import Rung
from experiments.robertha.measurements import measurements
from experiments.robertha.models import MODELS
from experiments.robertha.paper import paper_score

SHORT = (
    Rung("start", "tinybert", "token", None),
    Rung("site", "tinybert", "embedding", 0),
    Rung("all else", "robertha", "embedding", 1),
    Rung("scale", "robertha", "token", 0, beside=True),
)


def test_every_rung_is_a_model_and_starts_from_an_earlier_one():
    places = {(rung.model, rung.site, rung.after) for rung in attribution.LADDER}
    assert len(places) == len(attribution.LADDER)
    for place, rung in enumerate(attribution.LADDER):
        assert rung.model in MODELS
        assert (rung.after is None) == (place == 0)
        assert rung.after is None or 0 <= rung.after < place
    steps = [rung.after for rung in attribution.LADDER if not rung.beside]
    assert steps[1:] == list(range(len(steps) - 1)), "the ladder has no gap"


def test_steps_are_paired_differences_of_the_mean_over_tasks(fake):
    rows = fake.fake_rows(models=("tinybert", "robertha"))
    found = measurements(rundir_text(rows))
    steps = {(row["rung"], row["protocol"], row["level"]): row for row in page.steps(found, SHORT)}

    def by_hand(model, site, protocol, level, seed):
        chosen = [
            row["score"]
            for row in rows
            if (row["model"], row["seed"], row["metric"]) == (model, seed, "score")
            and (row["level"] == level)
            and (not level or (row["site"], row["protocol"]) == (site, protocol))
        ]
        return np.mean(chosen)  # as many draws for each task

    for protocol, level in (("clean", 0.0), ("sigma", 2.0), ("matched", 2.0)):
        gaps = [
            by_hand("robertha", "embedding", protocol, level, seed)
            - by_hand("tinybert", "embedding", protocol, level, seed)
            for seed in fake.SEEDS
        ]
        step = steps[2, protocol, level]
        np.testing.assert_allclose(step["step"], np.mean(gaps), atol=1e-9)
        assert step["step_low"] < np.mean(gaps) < step["step_high"]
    # Clean scores do not know of sites.
    assert steps[1, "clean", 0.0]["step"] == 0
    assert steps[0, "sigma", 2.0]["step"] is None
    assert steps[0, "sigma", 2.0]["snr_db"] < steps[1, "sigma", 2.0]["snr_db"]


def test_the_ends_of_the_ladder_stand_beside_the_paper(fake):
    found = measurements(rundir_text(fake.fake_rows(tasks=("sst2", "cola"))))
    ladder = (SHORT[0]._replace(in_paper=True), SHORT[1])
    theirs = {
        (row["rung"], row["protocol"], row["level"]): row["paper"]
        for row in page.steps(found, ladder)
    }
    # Tables 6 and 7, TinyBERT at σ = 0.5.
    both = paper_score("SST-2", "tinybert", 0.5).mean + paper_score("CoLA", "tinybert", 0.5).mean
    assert theirs[0, "sigma", 0.5] == pytest.approx(both / 2)
    assert theirs[0, "matched", 0.5] is None and theirs[1, "sigma", 0.5] is None
    lines = page.table(found, ladder, page.steps(found, ladder), "sigma")
    assert f"; paper {both / 2:.1f}" in lines[1][2]


def rundir_text(rows):
    """Rows as read from the file: text, blank for None."""
    return [{name: "" if v is None else str(v) for name, v in row.items()} for row in rows]


def test_a_page_of_a_ladder_that_is_not_finished(tmp_path, fake):
    rows = fake.fake_rows(models=("tinybert",), tasks=("sst2",))
    rundir.add_results(tmp_path, rows)
    plan = {"models": ["tinybert", "robertha"], "tasks": ["sst2"], "seeds": list(fake.SEEDS)}
    document = {"plan": plan, "config": {}, "provenance": []}
    (tmp_path / "config.json").write_text(json.dumps(document))
    tables = page.write_page(tmp_path, SHORT)
    for lines, head in zip(tables, ("same σ (the paper's)", "same SNR (matched)"), strict=True):
        assert [line[0] for line in lines] == [head, "start", "site"]
    html = (tmp_path / "report.html").read_text()
    assert "Missing: SST-2: Robertha" in html
    assert "data:image/png" in html


def test_a_run_of_a_short_ladder(tmp_path, monkeypatch):
    monkeypatch.setattr(
        attribution, "LADDER", (*SHORT[:2], Rung("pooling", "tinybert-mean", "embedding", 1))
    )
    flags = ["--budget", "smoke", "--task", "sentiment", "--levels", "1.0", "--train-size", "32"]
    assert command.main(["attribution", *flags, "--runs", str(tmp_path)]) == command.OK
    (folder,) = (tmp_path / "attribution").iterdir()
    rows = rundir.read_csv(folder / "attribution.csv")
    noises = [("clean", 0.0), ("sigma", 1.0), ("matched", 1.0)]
    assert [(row["rung"], row["protocol"], float(row["level"])) for row in rows] == [
        (rung, *noise) for rung in "012" for noise in noises
    ]
    assert all(np.isfinite(float(row["mean"])) for row in rows)
    before = (folder / "results.csv").read_bytes()
    assert command.main(["attribution", *flags, "--runs", str(tmp_path)]) == command.OK
    assert (folder / "results.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("flags", "words"),
    [(["--levels", "-1"], "must be >= 0"), (["--task", "sst3"], "did you mean sst2")],
)
def test_flags_out_of_range_are_named(flags, words, capsys):
    assert command.main(["attribution", "--budget", "smoke", *flags]) == command.FAILED
    assert words in capsys.readouterr().err


@pytest.fixture
def robustness_run(fake, tmp_path):
    rows = fake.fake_rows(models=("tinybert", "robertha"), tasks=("sst2", "cola"))
    plan = {"tasks": ("sst2", "cola"), "models": ("tinybert", "robertha"), "seeds": fake.SEEDS}
    plan |= {"levels": fake.LEVELS, "sites": fake.SITES, "protocols": fake.PROTOCOLS}
    return fake.write_fake_run(tmp_path / "robustness", rows, plan)


def test_the_ladder_of_a_run_that_is_there_needs_no_training(robustness_run, tmp_path, monkeypatch):
    monkeypatch.setattr(attribution.robustness, "fill", lambda *_: pytest.fail("trained"))
    folder = attribution.run(attribution.Config(run=str(robustness_run), runs=str(tmp_path)))
    rows = rundir.read_csv(folder / "attribution.csv")
    assert {row["model"] for row in rows} == {"tinybert", "robertha"}
    steps = {row["change"]: row["step"] for row in rows if row["level"] == "2.0"}
    assert not steps["ESR: Robertha"] and steps["all six together: Robertha"]
    html = (folder / "report.html").read_text()
    assert "(its start is not measured)" in html and "Missing: SST-2" in html
    assert "TinyBERT, mean pooling (seed" in html
    theirs = {rundir.key_of(row): row["score"] for row in rundir.read_results(robustness_run)}
    ours = rundir.read_results(folder)
    assert ours and all(theirs[rundir.key_of(row)] == row["score"] for row in ours)
    assert {row["protocol"] for row in ours} == {"clean", "sigma", "matched"}


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--epochs", "2", "--train-size", "8"), "leave out --epochs --train-size"),
        (("--task", "rte"), "--task sst2 cola"),
    ],
)
def test_flags_that_do_not_go_with_a_run(robustness_run, tmp_path, capsys, flags, told):
    line = ["attribution", "--run", str(robustness_run), "--runs", str(tmp_path), *flags]
    assert command.main(line) == 1
    assert told in capsys.readouterr().err
