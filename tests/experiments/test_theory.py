"""The theory experiment: what it measures, and what it writes."""

import base64
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import __main__ as command
from experiments.noise_stability import layers, theory
from experiments.noise_stability import theory_page as page
from experiments.noise_stability.theory_page import Measured
from experiments.rundir import read_csv


def test_layers_of_random_networks_keep_their_variance():
    """On average: a single network of this width strays by a fourth within four layers."""

    @jax.vmap
    def squares(key):
        weights = layers.random_network(key, width=64, depth=4)
        inputs = jax.random.normal(jax.random.fold_in(key, 1), (20, 64))
        found = jax.vmap(lambda x: layers.activations(weights, x))(inputs)
        return jnp.mean(found**2, axis=(0, 2))

    # E ReLU(X)^2 is half of the variance before it.
    found = squares(jax.random.split(jax.random.key(0), 200))
    assert found.shape == (200, 4)
    error = found.std(axis=0) / 200**0.5
    assert np.all(np.abs(found.mean(axis=0) - 0.5) < 5 * error)
    assert error.max() < 0.05


def test_attention_pairs_share_their_weights_and_correlate_their_tokens():
    pair = layers.attention_pair(3, 400)
    first, second = pair(jax.random.key(0), (404, 400), rho=0.5)
    np.testing.assert_array_equal(first[3:], second[3:])
    found = jnp.mean(first[:3] * second[:3])
    assert abs(found - 0.5) < 5 * (1.25 / 1200) ** 0.5
    assert jnp.array_equal(pair(jax.random.key(0), (404, 400), rho=0.1)[0], first)


def test_attention_is_the_formula_by_hand():
    rows = np.asarray(jax.random.normal(jax.random.key(2), (2 + 3 + 1, 3)), np.float64) / 2
    x, w, v = rows[:2], rows[2:5], rows[5]
    scores = np.array([x[0] @ w @ x[j] for j in range(2)])
    weights = np.exp(scores) / np.exp(scores).sum()
    expected = sum(weights[j] * (x[j] @ v) for j in range(2)) / 3**0.5
    np.testing.assert_allclose(layers.attention(2)(jnp.asarray(rows)), expected, rtol=1e-5)


def test_training_lowers_the_loss():
    params = layers.init_mlp(jax.random.key(0), (2, 32, 1))
    _, loss = layers.train_mlp(
        params, jax.random.key(1), lambda x: x[0], steps=300, learning_rate=1e-2
    )
    assert loss < 0.05


def test_comparison_names_the_worst_point_of_each_formula():
    rows = [
        Measured("c", "f", 0.0, 1.0, 0.1, 1.2),
        Measured("c", "f", 1.0, 1.0, 0.5, 1.4),
        Measured("c", "g", 0.0, 1.0, 0.0, 1.0),
        Measured("c", "none", 0.0, 1.0, 0.1, None),
    ]
    _, *lines = page.comparison(rows)
    assert lines == [("c", "f", "0.4000", "2.0"), ("c", "g", "0.0000", "0.0")]


def test_a_run_writes_its_numbers_its_picture_and_its_page(tmp_path, monkeypatch):
    tiny = theory.Budget(1000, 2, 8, 2, 5, tokens=(4,), copies=(4,), functions=3)
    monkeypatch.setitem(theory.BUDGETS, "smoke", tiny)
    folder = theory.run(theory.Config(budget="smoke", runs=str(tmp_path)))
    rows = read_csv(folder / "results.csv")
    assert {row["task"] for row in rows} == set(page.PANELS)
    needed = {"task", "model", "corruption", "level", "site", "seed", "metric", "score"}
    needed |= {"num_examples", "snr_db"}
    assert needed <= set(rows[0])
    assert all(np.isfinite(float(row["score"])) for row in rows)
    relu = [row for row in rows if row["model"] == "Theorem 5.1"]
    for row in relu:
        distance = abs(float(row["score"]) - float(row["formula"]))
        assert distance < 5 * float(row["standard_error"]) + 1e-3
    html = (folder / "report.html").read_text()
    image = re.search(r"base64,([^\"]+)", html)
    assert base64.b64decode(image[1]) == (folder / "theory.png").read_bytes()
    assert len(read_csv(folder / "theory.csv")) == len(rows)


@pytest.mark.parametrize("flags", [["--num-samples", "10"], ["--networks", "1"]])
def test_flags_out_of_range_are_named(flags, capsys):
    assert command.main(["theory", "--budget", "smoke", *flags]) == command.FAILED
    assert flags[1] in capsys.readouterr().err
