"""The recovery experiment: predictions against measurements, and its page."""

import numpy as np
import pandas as pd
import pytest

from experiments.memory import pipeline, recovery

draw = np.random.default_rng(0)


def test_shares_are_means_over_tokens_and_intervals_resample_rows():
    got = recovery.share(np.array([1, 0, 1, 0.5]), np.array([0, 0, 1, 1]))
    assert got["score"] == pytest.approx(100 * 2.5 / 4)
    # Only the two rows can be drawn: means 1/2 and 3/4.
    assert (got["low"], got["high"]) == pytest.approx((50, 75))


def test_a_run_measures_predicts_and_renders(tmp_path):
    table = draw.normal(size=(24, 12)).astype("f")
    prior = np.log(draw.dirichlet(np.ones(24))).astype("f")
    ids = draw.choice(24, 2000, p=np.exp(prior) / np.exp(prior).sum())
    decode, row, rows = pipeline.denoiser(table, prior), np.arange(2000) // 100, []
    for db in (0.0, -12.0):
        rows += recovery.measure(ids, row, table, prior, decode, 2, db)
    rows += recovery.limits(table, prior)
    white, colored = (row["score"] for row in rows[-2:])
    assert white < colored < white + 3
    frame = pd.DataFrame(rows)
    frame = frame.assign(task="mrpc", corruption="gaussian", site="token", seed=0)
    frame.to_csv(tmp_path / "results.csv")
    at = frame[frame.snr_db == 0].set_index(["model", "metric"]).score
    for reader in ("nearest", "memory"):
        assert at[reader, "predicted"] == pytest.approx(at[reader, "recovered"], abs=8)
    assert at["memory", "recovered"] > at["nearest", "recovered"]
    page = recovery.page(tmp_path)
    (rates,) = page.tables
    assert rates.columns == ["", "0.0 dB", "−12.0 dB"]
    assert rates.rows[0][1].startswith(f"{at['nearest', 'recovered']:.1f} [")
    assert [row[0] for row in rates.rows[:2]] == ["nearest token", "nearest token, predicted"]
    assert len(page.pictures["recovery"].figure.axes) == 1
