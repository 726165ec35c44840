"""Randomized smoothing: its certificates hold where the exact radius is known."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from experiments import __main__ as command_line
from experiments.memory import smoothing
from hopfax.hopfield import certified_radius
from hopfax.nn import tinybert

MODEL = tinybert(20, 2, width=16, ff_width=16, num_layers=1, max_length=16)
IDS = np.array([3, 9, 4, 7, 5])


@pytest.fixture(scope="module")
def params():
    """With vectors far apart, and labels that depend on them."""
    params = MODEL.init(jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), 2)
    params["tokens"] = {"embedding": jax.random.normal(keys[0], (20, 16))}
    params["classifier"]["kernel"] = jax.random.normal(keys[1], (16, 2))
    return params


def test_the_radius_of_a_linear_classifier_is_at_most_its_distance():
    """Smoothing does not change a linear classifier, whose radius is the distance to its plane."""
    sigma = 0.5

    def counts(distance, key, count):
        right = int((distance + sigma * jax.random.normal(key, (count,)) > 0).sum())
        return np.array([count - right, right])

    for number, distance in enumerate((-0.4, 0.1, 0.5, 0.9)):
        label, radius = smoothing.certificate(
            lambda *each, distance=distance: counts(distance, *each), number, sigma, 20_000
        )
        assert label == (distance > 0)
        assert 0.8 * abs(distance) - 0.02 < radius <= abs(distance)


def test_copies_that_agree_certify_most_and_a_tie_nothing():
    for votes, expected in (
        ([0, 200], 0.3 * norm.ppf(0.001 ** (1 / 200))),
        ([100, 100], 0.0),
        ([0, 0, 7], 0.0),  # too few
    ):
        _, radius = smoothing.certificate(lambda *_, votes=votes: np.array(votes), 0, 0.3, 200)
        assert radius == pytest.approx(expected)


def test_votes_are_the_labels_of_noisy_copies(params):
    def count(sigma, prior=None, draws=100):
        key, mask = jax.random.key(1), np.ones(5, bool)
        table = params["tokens"]["embedding"]
        memory = None if prior is None else (table, prior)
        return smoothing.votes(MODEL, params, IDS, mask, sigma, memory, key, draws)

    clean = MODEL.apply(params, IDS[None], np.ones((1, 5), bool)).logits.argmax()
    assert count(1e-6)[clean] == 100
    size = len(params["tokens"]["embedding"])
    noisy, recalled = count(0.6, draws=300), count(0.6, jnp.zeros(size), draws=300)
    assert 0.5 < noisy[clean] / 300 < 0.95 and recalled[clean] > 280
    padding = np.pad(IDS, (0, 3)), np.arange(8) < 5
    votes = smoothing.votes(MODEL, params, *padding, 0.6, None, jax.random.key(1), 300)
    assert abs(votes[clean] - noisy[clean]) < 40  # other draws


def test_the_nearest_token_is_certified_up_to_the_smallest_radius(params):
    table = np.asarray(params["tokens"]["embedding"])
    masks = [np.ones(5, bool), np.arange(5) < 2]
    texts = smoothing.Texts(np.arange(2), [IDS, IDS], masks, np.array([0, 1]))
    stacked = jax.tree.map(lambda leaf: leaf[None], params)
    data = SimpleNamespace(vocabulary=SimpleNamespace(size=len(table)))
    cell: Any = SimpleNamespace(model=MODEL, params=stacked, data=data)
    frame = pd.DataFrame(smoothing.nearest(cell, texts))
    unit = np.sqrt(np.square(table[[*IDS, *IDS[:2]]]).sum(1).mean())
    radius = certified_radius(jnp.asarray(table)) / unit
    np.testing.assert_allclose(frame.score, [radius[IDS].min(), radius[IDS[:2]].min()], rtol=1e-5)
    for mask, label in zip(masks, frame.predicted, strict=True):
        assert label == MODEL.apply(params, IDS[None], mask[None]).logits.argmax()


def test_texts_are_padded_to_few_lengths():
    for length, longest, expected in ((3, 64, 16), (17, 64, 32), (17, 20, 20)):
        ids, mask = smoothing.padded(np.arange(1, length + 1), longest)
        assert len(ids) == len(mask) == expected and mask.sum() == length
        assert ids[mask].tolist() == list(range(1, length + 1))


def test_shares_count_right_and_certified_texts():
    frame = pd.DataFrame({
        "model": "memory", "snr_db": -6.0, "label": [0, 1, 1, 0], "predicted": [0, 1, 0, 0],
        "score": [0.1, 0.3, 0.5, 0.0],
    })  # fmt: skip
    middle, table = smoothing.by_system(frame)
    table = table[table.x.isin([0.0, 0.1, 0.2, 0.4])]
    assert table["mean"].tolist() == [50, 50, 25, 0]  # the last text has no certificate
    assert (table.low < table["mean"]).sum() == 3 and (table.high > table["mean"]).all()
    assert middle["mean"].tolist() == [0.05]


def test_a_run_certifies_the_model_of_another_run(tmp_path, capsys):
    runs = ["--runs", str(tmp_path)]
    train = ["--task", "sentiment", "--train-size", "64", "--test-size", "20", "--width", "16"]
    budget = ["--budget", "smoke", "--model", "tinybert", "--protocols", "matched"]
    assert command_line.main(["robustness", *train, *budget, *runs, "--levels", "1"]) == 0
    (run,) = (tmp_path / "robustness").iterdir()
    few = ["--num-texts", "4", "--num-draws", "50", "--snr-db", "40"]
    words = ["memory-smoothing", "--run", str(run), "--noise-trained", str(run), *few, *runs]
    assert command_line.main(words) == 0
    (folder,) = (tmp_path / "memory-smoothing").iterdir()
    frame = pd.read_csv(folder / "results.csv")
    assert frame.groupby("model").size().to_dict() == {
        "nearest": 4, "none": 4, "memory": 4, "noise-trained": 4,
    }  # fmt: skip
    (table,) = smoothing.page(folder).tables
    assert len(table.rows) == 4
    # Under so little noise all votes agree, and σ follows from the SNR.
    most = norm.ppf(0.001 ** (1 / 50)) * 10 ** (-40 / 20) / 16**0.5
    for system in "none", "memory":
        assert frame[frame.model == system].score.max() == pytest.approx(most)
    capsys.readouterr()
    for changes, message in (
        ([], "--run is required"),
        (["--run", str(run), "--num-draws", "51"], "--num-draws must be a multiple of 50, got 51"),
    ):
        assert command_line.main(["memory-smoothing", *changes]) == 1
        assert message in capsys.readouterr().err
