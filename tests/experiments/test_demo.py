"""The demo at tiny sizes: its command, results and page."""

import re

from experiments import __main__, demo, tidy

EXPERIMENTS = {"demo": "experiments.demo"}


def test_the_demo_scores_noise_without_and_with_memory(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "SIZES", {**demo.SIZES, "width": 8, "ff_width": 8})
    monkeypatch.setattr(demo, "TRAINING", {**demo.TRAINING, "epochs": 1})
    monkeypatch.setattr(demo, "TRAIN_SIZE", 64)
    monkeypatch.setattr(demo, "TEST_SIZE", 24)
    monkeypatch.setattr(demo, "SNR_DB", (6, -12))
    line = ["demo", "--runs", str(tmp_path)]
    assert __main__.main(line, EXPERIMENTS) == 0
    estimate, *_, page = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"about \d+ seconds", estimate) and "demo" in page
    (folder,) = tmp_path.glob("demo/*")
    scores = tidy.scores(tidy.read(folder))
    cells = {(row.denoiser, round(row.snr_db)) for row in scores[scores.level > 0].itertuples()}
    assert cells == {(name, snr_db) for name in ("none", "memory") for snr_db in (6, -12)}
    assert {path.name for path in folder.iterdir()} >= {"results.csv", "demo.png", "report.html"}
    assert [row[0] for row in demo.page(folder).tables[0].rows] == ["+6 dB", "−12 dB"]
