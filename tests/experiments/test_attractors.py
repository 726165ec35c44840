"""The experiment on Theorems 2 and 3, and on capacity."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import tidy
from experiments.robertha import attractors
from hopfax.data import Encoded
from hopfax.nn import robertha


@pytest.mark.parametrize(("scale", "width", "c"), [(3, 20, 3.1546), (1, 75, 1.3718)])
def test_capacity_has_the_values_of_the_theorem(scale, width, c):
    """Those of Ramsauer et al. (2021), Theorem 3, at β = 1 and p = 0.001."""
    root_of_n = (attractors.log2_capacity(width, scale=scale) - np.log2(0.001) / 2) / (width - 1)
    assert 0 <= 2 ** (4 * root_of_n) - c < 1e-4  # the theorem's are rounded down


def test_patterns_are_stored_unless_they_are_too_close():
    patterns = 6 * jnp.eye(4)
    assert attractors.stores(patterns, 0.1 * jnp.ones((4, 4)))
    assert not attractors.stores(patterns.at[0].set(patterns[1] + 0.5), 0.1 * jnp.ones((4, 4)))


def test_close_keys_share_an_attractor_and_basins_end_where_scores_are_equal():
    keys = jnp.zeros((3, 4)).at[:, 0].set(jnp.array([4.0, -2.0, -2.0]))  # variance 8, mean 0
    by_set, by_delta = attractors.measured(keys, jax.random.key(0), beta=50.0, directions=64)
    assert by_set["attractors"] == pytest.approx(2 / 3)
    assert by_set["own basin"] == pytest.approx(4 / 8**0.5, rel=0.05)  # the distance to 0
    assert by_delta["violations"].sum() == 0 and by_delta["score"][0] < 0.01


def test_correlations_are_of_ranks_and_require_three_values():
    x = np.array([1.0, 2, 3, 4, np.nan])
    assert attractors.correlation(np.stack([x, np.exp(x)]), np.arange(5)) == pytest.approx(1)
    assert np.isnan(attractors.correlation(np.stack([x, x]), np.array([0, 1, 1, 4])))


@pytest.fixture
def cell():
    """An untrained Robertha of two seeds, and texts of 3 to 20 tokens."""
    model = robertha(9, 2, width=8, ff_width=8, num_layers=2, max_length=20, beta=6.0)
    lengths = np.array([[20], [3], [16], [18], [4]])
    data = SimpleNamespace(test=Encoded(np.full((5, 1, 20), 4), lengths, *np.zeros((2, 5))))
    params = jax.vmap(model.init)(jax.random.split(jax.random.key(0)))
    return SimpleNamespace(model=model, params=params, data=data, spec=SimpleNamespace(task="t"))


def test_a_run_measures_random_and_trained_keys_and_writes_its_page(tmp_path, monkeypatch, cell):
    small = {"SPECTRA": {"flat": np.ones(4), "spike": np.array([9, 1, 1, 1])}, "WIDTH": 4}
    small |= {"SHARPNESS": (16.0,), "WIDTHS": {3: (4, 16)}}
    for name, value in small.items():
        monkeypatch.setattr(attractors, name, value)
    monkeypatch.setattr("experiments.runner.open_trained", lambda *_, **__: (cell, None))
    config = attractors.Config(budget="smoke", runs=str(tmp_path), run="folder")
    folder = attractors.run(config)
    frame = tidy.read(folder)
    assert frame.violations.sum() == 0 and (folder / "attractors.png").exists()
    trained = frame[(frame.task == "t") & (frame.metric == "basin")]
    assert trained.model.value_counts().to_dict() == {"layer 1": 12, "layer 2": 12}  # 2 x 3 x 2
    claims = attractors.claims(frame).set_index(["subject", "claim"])
    assert claims.verdict["K = 3", "exceeds Ramsauer's bound"] == "holds"
    cell.data.test.lengths[0] = 5
    for wrong, message in (({}, "3 texts of 16 tokens or more, got 2"), ({"num_sets": 2}, "got 2")):
        with pytest.raises(ValueError, match=message):
            attractors.run(replace(config, **wrong))
