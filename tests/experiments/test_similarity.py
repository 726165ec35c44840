"""The experiments `memory` and `memory-recovery`, and the pipeline they share."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.memory import pipeline, recovery, similarity

MODEL: Any = SimpleNamespace(forward=lambda x, mask: SimpleNamespace(output=np.asarray(x) + 1))


@pytest.mark.parametrize(("task", "similar"), [("mrpc", 1), ("rte", 0)])
def test_classes_are_scored_by_the_share_of_pairs_in_the_right_order(task, similar):
    labels = np.where([True, True, False, False], similar, 1 - similar)
    assert pipeline.score(task, np.array([0.9, 0.4, 0.5, 0.1]), labels) == 75  # three of four
    assert pipeline.score(task, np.array([0.9, 0.5, 0.5, 0.1]), labels) == 87.5  # a tie is half
    assert np.isnan(pipeline.score(task, np.ones(4), np.zeros(4)))


def test_stsb_is_scored_by_ranks():
    assert pipeline.score("stsb", np.array([0.1, 0.2, 0.9]), np.array([0.0, 4.0, 5.0])) == 100


def test_pairs_are_a_text_of_each_half_and_intervals_are_of_the_mean_over_draws():
    first = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.6, 0.8]])  # cosines 0.6 and 0.8
    outputs, pairs = [first, first[[1, 0, 2, 3]]], pipeline.Pairs("mrpc", [], np.array([0, 1]))
    rows = pipeline.score_rows(pipeline.condition("memory", "matched", -10.0), pairs, outputs)
    assert [row["score"] for row in rows] == [100, 0]
    assert {(row["low"], row["high"]) for row in rows} == {(50, 50)}
    assert rows[0]["level"] == pytest.approx(10**0.5) and rows[0]["num_examples"] == 2


def test_methods_are_compared_with_the_scores_without_noise(rng):
    table = rng.normal(size=(9, 4)).astype("f")
    ids = [rng.integers(9, size=size) for size in rng.integers(2, 7, 20)]
    encoder = pipeline.Encoder(MODEL, SimpleNamespace(), table, {}, "")  # pyright: ignore
    pairs, shares = pipeline.Pairs("stsb", ids, np.arange(10.0)), []

    def methods(noisy, sigma):
        ends = np.cumsum([len(text) for text in ids])[:-1]
        return {
            "none": (np.split(noisy, ends), None),
            "oracle": ([table[text] for text in ids], np.concatenate(ids)),
        }

    cases = [("matched", 0.0), ("per-token", -10.0)]
    frame = pd.DataFrame(pipeline.under_noise(encoder, pairs, methods, cases, 2, shares.append))
    assert shares == [0.5, 1.0]
    assert len(frame) == 1 + 2 * (2 * 2 + 2)
    clean = frame.score[frame.level == 0].item()
    oracle = frame[frame.model == "oracle"].groupby("metric").score.unique()
    assert {name: values.tolist() for name, values in oracle.items()} == {
        "score": [clean], "recovered": [100],
    }  # fmt: skip
    assert (frame.score[(frame.model == "none") & (frame.level > 0)] != clean).all()


def test_noise_is_relative_to_the_text_or_to_each_token():
    clean = np.array([[1.0], [3.0]], np.float32) * np.ones((2, 5000), np.float32)
    for protocol, rms in (("matched", [5**0.5] * 2), ("per-token", [1, 3])):
        noisy, sigma = pipeline.add_noise([clean], 20.0, protocol=protocol, seed=0)
        np.testing.assert_allclose(sigma, np.multiply(rms, 0.1), rtol=1e-6)
        np.testing.assert_allclose((noisy - clean).std(1), sigma, rtol=0.05)


def test_the_wiener_filter_is_that_of_the_vocabulary():
    draw = np.random.default_rng(0)
    table = draw.normal(size=(5, 8)).astype(np.float32)
    weights = np.array([0.4, 0.3, 0.1, 0.1, 0.1], np.float32)
    noisy, sigma = draw.normal(size=(2, 8)).astype(np.float32), np.float32([0.5, 1.0])
    values, _ = pipeline.denoiser(table, np.log(weights))(noisy, sigma)
    mean = weights @ table
    covariance = (table - mean).T @ np.diag(weights) @ (table - mean)
    for row, level, value in zip(noisy, sigma, values["linear"], strict=True):
        gain = covariance @ np.linalg.inv(covariance + level**2 * np.eye(8))
        np.testing.assert_allclose(value, mean + gain @ (row - mean), rtol=1e-3, atol=1e-4)


def test_outputs_are_means_over_real_tokens():
    vectors = [np.random.default_rng(n).normal(size=(n, 4)) for n in (20, 3)]
    means = np.array([(each + 1).sum(0) for each in vectors])
    expected = means / np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(pipeline.unit_outputs(MODEL, vectors), expected, rtol=1e-5)


def test_the_page_shows_the_lowest_snr_that_keeps_the_score(tmp_path):
    rows = [{**pipeline.condition("none"), "metric": "score", "score": 80.0}]
    for method, scores in {
        "none": (79.5, 50.0, 79.8),
        "memory": (80.0, 79.1, 60.0),
        "linear": (70.0, 80.0, 80.0),
    }.items():
        for db, score in zip((0.0, -10.0, -20.0), scores, strict=True):
            at = pipeline.condition(method, "matched", db)
            rows.append({**at, "metric": "score", "score": score, "low": 40.0, "high": 90.0})
    pd.DataFrame(rows).assign(task="stsb", seed=0, limit=-14.0).to_csv(tmp_path / "results.csv")
    (kept,) = similarity.page(tmp_path).tables
    assert [end for _, end in kept.rows] == ["0.0 dB", "none", "−10.0 dB"]


def test_shares_are_means_over_tokens_and_intervals_resample_rows():
    got = recovery.share(np.array([1, 0, 1, 0.5]), np.array([0, 0, 1, 1]))
    assert got["score"] == pytest.approx(100 * 2.5 / 4)
    # Only the two rows can be drawn: means 1/2 and 3/4.
    assert (got["low"], got["high"]) == pytest.approx((50, 75))


def test_recovery_is_measured_predicted_and_limited(rng):
    table = rng.normal(size=(24, 12)).astype("f")
    prior = np.log(rng.dirichlet(np.ones(24))).astype("f")
    ids = rng.choice(24, 2000, p=np.exp(prior) / np.exp(prior).sum())
    decode, row, rows = pipeline.denoiser(table, prior), np.arange(2000) // 100, []
    for db in (0.0, -12.0):
        rows += recovery.measure(ids, row, table, prior, decode, 2, db)
    rows += recovery.limits(table, prior)
    white, colored = (row["score"] for row in rows[-2:])
    assert white < colored < white + 3
    frame = pd.DataFrame(rows)
    at = frame[frame.snr_db == 0].set_index(["model", "metric"]).score
    for reader in ("nearest", "memory"):
        assert at[reader, "predicted"] == pytest.approx(at[reader, "recovered"], abs=8)
    assert at["memory", "recovered"] > at["nearest", "recovered"]
