"""The theory experiment: what it measures, and what it writes."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from nn.checkpoints import save_random

from experiments import tidy
from experiments.noise_stability import layers, theory
from hopfax.stability import Estimate, gaussian_pair


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


@pytest.mark.parametrize(("kind", "count"), [("identity", 0), ("full", 3), ("low rank", 1)])
def test_attention_is_the_formula_by_hand(kind, count):
    rows = np.asarray(jax.random.normal(jax.random.key(2), (2 + count + 1, 3)), np.float64) / 2
    x, drawn, v = rows[:2], rows[2:-1], rows[-1]
    w = {"identity": np.eye(3), "full": drawn, "low rank": drawn.T @ drawn}[kind]
    weights = np.exp(x[0] @ w @ x.T)
    expected = weights / weights.sum() @ (x @ v) / 3**0.5
    found = layers.attention(2, jnp.asarray(rows), low_rank=kind == "low rank")
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_transformer_layers_are_the_formula_by_hand():
    shapes = {"width": 3, "depth": 2, "value_norm": 0.7}
    x = np.asarray(jax.random.normal(jax.random.key(5), (4, 3)), np.float64)
    for structured in (True, False):
        weights = layers.random_transformer(jax.random.key(4), structured=structured, **shapes)
        expected = x
        for place, (w, v) in enumerate(zip(*np.asarray(weights, np.float64), strict=True)):
            np.testing.assert_allclose(np.linalg.norm(v, axis=0), 0.7, rtol=1e-5)
            assert structured == np.array_equal(w, np.eye(3))
            attended = np.exp(expected @ w @ expected.T)
            attended /= attended.sum(axis=1, keepdims=True)
            expected = np.maximum(attended @ expected @ v, 0)
            found = layers.transformer(weights, jnp.asarray(x))[place]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rho", [0.0, 0.3, 1.0])
def test_pairs_of_lemmas_keep_or_redraw_their_entries(rho):
    mean, std, scale = jnp.array([0.0, 3.0]), jnp.array([1.0, 0.5]), jnp.array([1.0, 2.0])
    key, shape = jax.random.key(1), (20_000, 2)
    first, second = layers.process_pair(mean, std, scale)(key, shape, rho=rho)
    kept = second == scale * first
    assert np.all(np.abs(kept.mean(axis=0) - rho) < 0.02)
    for x in (first, second[~kept[:, 1], :]):
        if rho < 1:
            np.testing.assert_allclose(x[:, 1].mean(), 3, atol=0.02)
            np.testing.assert_allclose(x[:, 1].std(), 0.5, atol=0.02)
    first, second = layers.uniform_pair(key, shape, rho=rho)
    assert abs(jnp.mean(first == second) - rho) < 0.02
    assert abs(jnp.mean(first * second) - rho / 3) < 0.02
    assert jnp.max(jnp.abs(second)) <= 1


def test_a_relu_unit_matches_its_closed_form():
    table = pd.concat(theory.relu_unit(jax.random.key(0), theory.BUDGETS["smoke"]))
    assert theory.distances(table).set_index("model").errors["Theorem 5.1"] < 5
    for wrong in (2.0, np.nan):
        off = theory.distances(table.assign(score=wrong))
        assert (off.beyond == off.points).all()


def test_distances_are_of_the_worst_point_of_each_formula():
    two = theory.rows("c", "f", [0, 1], [1, 1], [0.1, 0.5], formula=[1.2, 1.4])
    one = theory.rows("c", "g", [0], [1], formula=[1])
    table = pd.concat([two, one, theory.rows("c", "none", [0], [1], [0.1])])
    off = theory.distances(table)
    assert off.model.tolist() == ["f", "g"]
    np.testing.assert_allclose(off[["distance", "errors"]], [[0.4, 2], [0, 0]])
    far = table.assign(score=table.score - [0.2, 0.01, 0, 0])  # 4 errors, and 0.8 % in 0.02 errors
    assert theory.distances(far)[["beyond", "points"]].to_numpy().tolist() == [[1, 2], [0, 1]]


def test_points_of_intervals_disagree_outside_and_claims_have_verdicts():
    points = theory.rows("intervals", "f", [1, 2], [1.5, 2.2], [0.1, 0.01], low=[1, 1], high=[2, 2])
    kept = theory.rows(theory.CLAIMED[0], "f", [1], [4.0], [0.5], num_examples=20, formula=40)
    table = pd.concat([points, kept.assign(low=np.nan, high=np.nan)], ignore_index=True)
    (line,), (claim,) = theory.distances(table).itertuples(), theory.claims(table).itertuples()
    assert (line.beyond, line.points, round(line.distance, 6)) == (1, 2, 0.2)
    assert (claim.paper, claim.mean, claim.verdict) == (40, 4, "smaller")


def one_pair(fn, key, *, shape, rho, pair=gaussian_pair, per_output=False, **_):
    """`noise_stability` of a single pair, which compiles in no time."""
    rho = jnp.asarray(rho, float)
    pairs = jax.vmap(lambda each: pair(key, shape, rho=each))(rho.reshape(-1))
    products = jnp.multiply(*map(jax.vmap(fn), pairs))
    if not per_output:
        products = products.reshape(rho.size, -1).sum(1)
    products = products.reshape(rho.shape + products.shape[1:])
    return Estimate(products, jnp.ones_like(products), 1)


def test_a_run_measures_every_panel_and_writes_its_page(tmp_path, monkeypatch):
    monkeypatch.setattr(theory, "noise_stability", one_pair)
    tiny = theory.Budget(1000, 2, 8, 2, tokens=(4,))
    monkeypatch.setitem(theory.BUDGETS, "smoke", tiny)
    pages, model = [], str(save_random(tmp_path, "bert"))
    monkeypatch.setattr("experiments.report.write_report", lambda _, page: pages.append(page))
    folder = theory.run(theory.Config(budget="smoke", runs=str(tmp_path), pretrained=model))
    table = pd.read_csv(folder / "results.csv")
    assert list(table)[: len(tidy.COLUMNS)] == list(tidy.COLUMNS) and {"formula", "low"} < {*table}
    more = {"map weights", "width", "intervals"}
    assert set(table.task) == {*theory.PANELS, *theory.CLAIMED} | more
    assert np.isfinite(table.score).all()
    keys = tidy.select(table, task="maps", model="identity, A_X").score
    assert keys.isin(range(layers.MAP_TOKENS)).all() and len(keys) == layers.MAP_TOKENS
    verdicts, lines, bounds = (each.rows for each in pages[0].tables)
    assert {line[0] for line in lines} == {*theory.PANELS, "intervals"} - {"maps"}
    assert len(verdicts) == 6 and len(bounds) == tiny.depth and len(bounds[0]) == 1 + 3 + 2
    assert len(pages[0].pictures["maps"].figure.axes) == 4
