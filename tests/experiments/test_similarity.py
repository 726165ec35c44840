"""The experiment `memory`: stability of the outputs, and its page."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from experiments import report
from experiments.memory import similarity


def test_pairs_are_a_text_of_each_half():
    outputs = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.6, 0.8]])
    np.testing.assert_allclose(similarity.pair_cosines(outputs), [0.6, 0.8])


@pytest.mark.parametrize(("task", "similar"), [("mrpc", 1), ("rte", 0)])
def test_classes_are_scored_by_the_share_of_pairs_in_the_right_order(task, similar):
    labels = np.where([True, True, False, False], similar, 1 - similar)
    assert similarity.score(task, np.array([0.9, 0.4, 0.5, 0.1]), labels) == 75  # three of four
    assert similarity.score(task, np.array([0.9, 0.5, 0.5, 0.1]), labels) == 87.5  # a tie is half


def test_stability_is_the_mean_over_texts_of_each_draw():
    cosines = [np.array([1.0, 0.5, 0.5, 0.5]), np.array([0.5, 0.0, 0.0, 0.0])]
    first, second = similarity.stabilities({("memory", "matched", -10.0): cosines})
    assert (first["score"], second["score"]) == (62.5, 12.5)
    assert first["low"] == second["low"] == 25.0  # of the mean over draws; no first text
    assert first["high"] > 37.5
    assert first["level"] == pytest.approx(10**0.5) and first["num_examples"] == 4


def test_the_page_shows_the_step(tmp_path):
    labels = np.arange(8) % 4
    at = {(name, "matched", db) for name in ("none", "memory") for db in (0.0, -10.0)}
    measured = {each: [labels if each[0] == "memory" else labels[::-1]] for each in at}
    measured |= {("none", "", 0.0): [labels]}
    stable = {each: [np.full(16, 1.0 if each[0] == "memory" else 0.25)] for each in at}
    recovered = {each: [100.0] for each in at if each[0] == "memory"}
    rows = similarity.results("stsb", measured, recovered, labels) + similarity.stabilities(stable)
    frame = pd.DataFrame(rows).assign(task="stsb", limit=-14.0)
    frame.to_csv(tmp_path / "results.csv")
    page = similarity.page(tmp_path)
    assert "down to −10.0 dB** (change: 0.0 [0.0, 0.0])." in page.answer
    worse = frame.assign(score=frame.score.where((frame.level == 0) | (frame.metric != "score"), 0))
    worse.to_csv(tmp_path / "results.csv")
    assert (
        "within 1 point of the clean score (100.0) at no tested SNR"
        in similarity.page(tmp_path).answer
    )
    assert "is 1.00 with memory, and 0.25 without" in page.answer
    (axes,) = page.pictures["stability"].figure.axes
    line = axes.lines[0].get_xdata()
    np.testing.assert_allclose(sorted(line), [(1 + 10) ** -0.5, 0.5**0.5])
    assert "0.30 at −10 dB" in report.markdown(page, tmp_path)


def test_noise_is_relative_to_the_text_or_to_each_token():
    clean = np.array([[1.0], [3.0]], np.float32) * np.ones((2, 5000), np.float32)
    for protocol, rms in (("matched", [5**0.5] * 2), ("per-token", [1, 3])):
        noisy, sigma = similarity.add_noise([clean], 20.0, protocol=protocol, seed=0)
        np.testing.assert_allclose(sigma, np.multiply(rms, 0.1), rtol=1e-6)
        np.testing.assert_allclose((noisy - clean).std(1), sigma, rtol=0.05)


def test_layer_norm_and_the_wiener_filter_are_those_of_the_vocabulary():
    draw = np.random.default_rng(0)
    table = draw.normal(size=(5, 8)).astype(np.float32)
    weights = np.array([0.4, 0.3, 0.1, 0.1, 0.1], np.float32)
    noisy, sigma = draw.normal(size=(2, 8)).astype(np.float32), np.float32([0.5, 1.0])
    values, _ = similarity.denoiser(table, np.log(weights))(noisy, sigma)
    scaled = np.asarray(values["layernorm"])
    np.testing.assert_allclose(scaled.mean(1), 0, atol=1e-6)
    rms = np.sqrt(weights @ (table**2).mean(1))
    np.testing.assert_allclose(np.sqrt((scaled**2).mean(1)), rms, rtol=1e-4)
    np.testing.assert_allclose(np.corrcoef(scaled[0], noisy[0])[0, 1], 1, rtol=1e-5)
    mean = weights @ table
    covariance = (table - mean).T @ np.diag(weights) @ (table - mean)
    for row, level, value in zip(noisy, sigma, values["linear"], strict=True):
        gain = covariance @ np.linalg.inv(covariance + level**2 * np.eye(8))
        np.testing.assert_allclose(value, mean + gain @ (row - mean), rtol=1e-3, atol=1e-4)


def test_outputs_are_means_over_real_tokens():
    model = SimpleNamespace(forward=lambda x, mask: SimpleNamespace(output=np.asarray(x) + 1))
    vectors = [np.random.default_rng(n).normal(size=(n, 4)) for n in (20, 3)]
    means = np.array([(each + 1).sum(0) for each in vectors])
    expected = means / np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(similarity.unit_outputs(model, vectors), expected, rtol=1e-5)


def test_none_is_explained_where_it_occurs():
    assert similarity.absent([["memory", "−6.0 dB"]]) == ""
    assert similarity.absent([["x", "1 dB"], ["y", "none"]]) == " None: at no tested SNR."
    assert similarity.absent([["y", "all"]]) == " All: at every tested SNR."


def test_stsb_is_scored_by_ranks():
    assert similarity.score("stsb", np.array([0.1, 0.2, 0.9]), np.array([0.0, 4.0, 5.0])) == 100
