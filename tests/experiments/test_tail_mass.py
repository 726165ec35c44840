"""Bounds on weight of high degree: exact weights, unbiased estimates, the page."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pandas as pd
import pytest
from nn import checkpoints

from experiments import report
from experiments.noise_stability import tail_mass
from hopfax.nn import load_pretrained, tinybert
from hopfax.stability import spectral_tail_bound


def test_exact_weights_are_those_of_all_replacements(tmp_path):
    rng = np.random.default_rng(0)
    # Without biases the tokens decide more.
    tensors = {
        name: (0.3 * rng.normal(size=shape) * ("bias" not in name)).astype("f")
        for name, shape in checkpoints.shapes("bert").items()
    }
    model = load_pretrained(checkpoints.save(tmp_path, checkpoints.CONFIGS["bert"], tensors))
    ids, others = np.array([[5, 6, 7, 8]]), np.array([[9, 10, 11, 4]])

    def embedding(ids):
        embeddings = model.embed(jnp.array([[1, *ids, 2]]))
        states = model.forward(embeddings, jnp.ones((1, 6), bool)).output[0]
        mean = np.asarray(states, float).mean(0)
        return mean / np.linalg.norm(mean)

    table = []
    for number in range(16):
        changed = [number >> place & 1 for place in range(4)]
        table.append(embedding(np.where(changed, others, ids)[0]) @ embedding(ids[0]))
    agree = partial(tail_mass.agreement, tail_mass.embedding(model), ((1,), (2,)))
    (frame,) = tail_mass.exact(agree, model.params, (ids, others))
    assert table[0] == pytest.approx(1) and min(table) < 0.9
    np.testing.assert_allclose(frame.score, oracles.walsh_weights(table, 4), rtol=1e-3, atol=1e-6)


def test_the_function_of_a_classifier_is_the_probability_of_its_class():
    model = tinybert(12, 3, width=8, num_layers=1, ff_width=8, max_length=8)
    params = jax.tree.map(lambda leaf: 9 * leaf, model.init(jax.random.key(0)))
    ids, others, bits = jnp.array([5, 6]), jnp.array([7, 8]), jnp.array([1.0, -1.0])
    output = tail_mass.probability(model)
    agreement = jax.jit(tail_mass.agreement, static_argnums=(0, 1))
    value = agreement(output, ((1,), (2,)), params, ids, others, bits)
    texts, mask = jnp.array([[1, 5, 6, 2], [1, 5, 8, 2]]), jnp.ones((2, 4), bool)
    before, after = jax.nn.softmax(jax.jit(model.apply)(params, texts, mask).logits)
    assert value == pytest.approx(float(after[before.argmax()]), abs=1e-5)


def test_estimates_are_unbiased_with_right_errors():
    coefficients = {(): 0.3, (0,): 1.0, (1, 2): 0.5, (0, 3, 4): 0.4, (1, 2, 4, 5): 0.2}
    bits = tail_mass.draw(np.random.default_rng(0), 20_000, 6)
    values = sum(c * bits[..., list(each)].prod(-1) for each, c in coefficients.items())
    frame = tail_mass.estimates(np.asarray(values), 6).fillna({"level": -1})
    frame = frame.set_index(["metric", "level"])
    weights = np.bincount([len(each) for each in coefficients],
                          [c**2 for c in coefficients.values()], minlength=7)  # fmt: skip
    k = np.arange(7)
    expected = {
        ("influence", -1): weights @ k,
        ("pairs", -1): weights @ (k * (k - 1)),
        ("second moment", -1): weights.sum(),
        ("variance", -1): weights[1:].sum(),
        **{("distance", rho): weights @ (1 - rho**k) for rho in tail_mass.RHOS},
    }
    assert set(expected) == set(frame.index)
    for key, value in expected.items():
        score, error = frame.loc[key, "score"], frame.loc[key, "standard_error"]
        assert abs(score - value) < 4 * error < 0.4 * value, key


def test_the_draws_flip_every_bit_once():
    x, *_, flips = np.split(tail_mass.draw(np.random.default_rng(0), 6, 24),
                            [1, 1 + len(tail_mass.RHOS)], axis=1)  # fmt: skip
    changed = (flips != x)[:, : -tail_mass.PAIRS]
    assert (changed.sum((0, 1)) == 1).all() and (changed.sum(2) == 1).all()
    pairs = (flips != x)[:, -tail_mass.PAIRS :]
    assert (pairs == changed[:, :3:2] | changed[:, 1:4:2]).all()


def test_the_variance_of_few_draws_is_unbiased():
    rng, found = np.random.default_rng(0), []
    for _ in range(1000):
        frame = tail_mass.estimates(tail_mass.draw(rng, 3, 5)[..., 0], 5)
        found.append(frame[frame.metric == "variance"].score.item())
    assert np.mean(found) == pytest.approx(1, abs=5 * np.std(found) / 1000**0.5)


@pytest.fixture
def frame():
    """Results of texts with known weights, exact and estimated without error."""
    rng, tables = np.random.default_rng(0), []
    for name in ("trained", "random"):
        for seed in range(5):
            weights = np.array([0.5, 1 + 0.1 * rng.random(), 0.1, 0, 0, 0, 0])
            k = np.arange(len(weights))
            exact = pd.DataFrame({"metric": "weight", "level": k, "score": weights})
            rows = [("variance", 0, weights[1:].sum()), ("influence", 0, weights @ k),
                    ("second moment", 0, weights.sum()),
                    ("pairs", 0, weights @ (k * (k - 1)))]  # fmt: skip
            rows += [("distance", rho, weights @ (1 - rho**k)) for rho in tail_mass.RHOS]
            estimated = pd.DataFrame(rows, columns=["metric", "level", "score"])
            for task, table in (("exact", exact), ("Monte Carlo", estimated)):
                tables.append(table.assign(task=task, model=name, seed=seed))
    return pd.concat(tables).assign(corruption="replaced tokens")


def test_bounds_are_shares_of_the_variance(frame):
    table = tail_mass.bounds(frame)
    frame = frame[(frame.task == "exact") & (frame.model == "trained")]
    weights = frame.pivot(index="seed", columns="level", values="score").mean().to_numpy()
    variance, k = weights[1:].sum(), np.arange(7)
    rows = table[(table.panel == "6 tokens, T = 2") & (table.weights == "trained")]
    rows = rows.set_index(["quantity", "rho"])["mean"]
    stability = weights[1:] @ 0.5 ** k[1:]
    expected = {
        (tail_mass.TAIL, 1.0): weights[2:].sum() / variance,
        (tail_mass.MARKOV, 1.0): weights @ k / 2 / variance,
        (tail_mass.LEMMA, 0.5): spectral_tail_bound(stability, variance, rho=0.5, degree=2)
        / variance,
        ("D", 1.0): weights @ k**2 / (weights @ k),
        ("variance", 1.0): variance / weights.sum(),
    }
    for key, value in expected.items():
        assert rows[key] == pytest.approx(float(value), rel=1e-3), key
    estimated = table[(table.panel == "Monte Carlo, T = 15") & (table.quantity == tail_mass.D)]
    assert estimated["mean"].iloc[0] == pytest.approx(float(expected["D", 1.0]), rel=1e-3)


def test_the_page_has_the_best_bound_of_each_case(tmp_path, frame):
    report.write_results(tmp_path, frame)
    page = tail_mass.page(tmp_path)
    (table,) = page.tables
    assert len(table.rows) == 6 and all(line[3].endswith(" at ρ = 0.99") for line in table.rows)
    assert page.pictures["tail_mass"].figure.axes


def test_bad_flags_are_errors(tmp_path):
    flags: dict[str, Any] = {"pretrained": str(tmp_path), "data_dir": str(tmp_path)}
    for wrong, message in (
        ({}, "set --pretrained and --data-dir"),
        (flags | {"num_draws": 2}, "num-draws must be >= 3"),
        (flags | {"num_bits": 4}, r"--num-bits must be in \[5, 20\]"),
    ):
        with pytest.raises(ValueError, match=message):
            tail_mass.run(tail_mass.Config(**wrong))
