"""The search for a learning rate: every model at every rate, scored on validation rows."""

import json

import pandas as pd

from experiments.robertha import learning_rates
from experiments.settings import Data


def test_a_search_lists_the_best_validation_score_of_every_rate(tmp_path):
    folder = learning_rates.run(
        learning_rates.Config(
            budget="smoke",
            runs=str(tmp_path),
            data=Data(task=("sentiment",), train_size=64, test_size=8, vocab_size=200),
            training=learning_rates.AnyRate(seeds=(1, 2, 3), epochs=2, patience=2, width=16),
            model=("tinybert",),
            learning_rates=(1e-5, 3e-2),
        )
    )
    table = pd.read_csv(folder / "results.csv")
    assert table.groupby("learning_rate").seed.apply(list).to_dict() == {
        1e-5: [1, 2, 3],
        3e-2: [1, 2, 3],
    }
    stored = {}
    for cell in (tmp_path / "cells").iterdir():
        lines = map(json.loads, (cell / "metrics.jsonl").read_text().splitlines())
        config = json.loads((cell / "config.json").read_text())
        stored[config["learning_rate"]] = [line["best"] for line in lines if "best" in line][-1]
    for rate, rows in table.groupby("learning_rate"):
        assert rows.score.tolist() == stored[rate]


def test_the_page_names_the_best_rate_of_each_model(tmp_path):
    scores = {
        ("pretrained", 2e-5): [60, 61, 63],
        ("pretrained", 5e-5): [80, 81, 82],
        ("pretrained", 1e-4): [76, 81, 81],
        ("pretrained-esr", 2e-5): [70, 71, 73],
        ("pretrained-esr", 5e-5): [74, 75, 75],
        ("pretrained-esr", 1e-4): [74, 75, 76],
    }
    rows = [
        {"task": "mrpc", "model": model, "learning_rate": rate, "seed": seed, "score": score}
        for (model, rate), each in scores.items()
        for seed, score in enumerate(each)
    ]
    rows = [{**row, "constant": 73.0, "num_examples": 367, "num_train": 3301} for row in rows]
    pd.DataFrame(rows).to_csv(tmp_path / "results.csv", index=False)
    page = learning_rates.page(tmp_path)
    assert page.answer == (
        "**Highest mean validation score on MRPC**: 5e-5 for fine-tuned encoder; "
        "1e-4 for fine-tuned encoder + ESR. Of the other rates, 2 of 4 differ "
        "significantly from the best (paired by seed)."
    )
    (table,) = page.tables
    assert [cell.startswith("**") for cell in table.rows[0]] == [False, False, True, False]
    assert [cell.startswith("**") for cell in table.rows[1]] == [False, False, False, True]
    assert page.notes[1] == "Best at the end of the range of rates: fine-tuned encoder + ESR."
    assert page.notes[2].endswith("choice means little: fine-tuned encoder + ESR.")
    close = [row for row in rows if row["learning_rate"] > 2e-5]
    pd.DataFrame(close).to_csv(tmp_path / "results.csv", index=False)
    assert learning_rates.page(tmp_path).answer.endswith(
        "No other rates differ significantly from the best (paired by seed), so the search does "
        "not tell rates apart."
    )
    pd.DataFrame(rows).assign(constant=78.0).to_csv(tmp_path / "results.csv", index=False)
    assert learning_rates.page(tmp_path).answer == (
        "**On MRPC, no model is 5 points above the majority baseline (78.0) at any tested rate**: "
        "fine-tuned encoder and fine-tuned encoder + ESR."
    )
    part = [row for row in rows if row["model"] == "pretrained" or row["learning_rate"] == 5e-5]
    pd.DataFrame(part).to_csv(tmp_path / "results.csv", index=False)
    (table,) = learning_rates.page(tmp_path).tables
    assert table.rows[1][1::2] == ["not tested", "not tested"] and "74.7" in table.rows[1][2]
    rows += [{**row, "task": "rte", "score": 70.0 - row["seed"]} for row in rows]
    pd.DataFrame(rows).to_csv(tmp_path / "results.csv", index=False)
    answer = learning_rates.page(tmp_path).answer
    assert "5e-5 for MRPC, fine-tuned encoder; 2e-5 for RTE, fine-tuned encoder and" in answer
