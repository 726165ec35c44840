"""The recovery experiment: predictions against brute force, kinds of errors, one whole run."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from experiments import report
from experiments.memory import recovery
from hopfax import hopfield

draw = np.random.default_rng(0)


def simulated(table, v, sigma, log_prior, count=40_000):
    noisy = table[v] + sigma * draw.normal(size=(count, table.shape[1]))
    distances = np.square(noisy[:, None] - table).sum(2)
    return np.mean((log_prior - distances / (2 * sigma**2)).argmax(1) == v)


def test_prediction_is_exact_for_two_vectors():
    table, prior = draw.normal(size=(2, 6)), np.log([0.8, 0.2])
    apart = np.linalg.norm(table[0] - table[1])
    rates, bounds = recovery.predicted(table, [0, 1], sigma=0.7, log_prior=prior)
    margins = apart / 1.4 + 0.7 / apart * (prior - prior[::-1])
    np.testing.assert_allclose(rates, norm.cdf(margins), atol=1e-3)  # the quadrature's error
    np.testing.assert_allclose(bounds, norm.cdf(margins), rtol=1e-9)


@pytest.mark.parametrize("uniform", [True, False])
def test_prediction_is_exact_for_orthogonal_vectors_and_the_bound_is_below(uniform):
    table = np.eye(8) * draw.uniform(0.7, 1.4, (8, 1))
    prior = np.zeros(8) if uniform else np.log(draw.dirichlet(np.ones(8)))
    rates, bounds = recovery.predicted(table, range(8), sigma=0.5, log_prior=prior)
    exact = np.array([simulated(table, v, 0.5, prior) for v in range(8)])
    np.testing.assert_allclose(rates, exact, atol=0.013)  # five standard errors
    assert (bounds <= exact + 0.013).all() and (exact - bounds).max() > 0.05
    library = hopfield.recovery_bound(table, sigma=0.5, log_prior=prior)
    np.testing.assert_allclose(bounds, library, atol=1e-5)


@pytest.mark.parametrize(
    ("token", "decoded", "expected"),
    [
        ("##ing", "ing", "inflection"), ("Ġhouse", "house", "inflection"),
        ("US", "us", "inflection"),
        ("a", "an", "inflection"), ("was", "were", "inflection"),
        ("device", "devices", "inflection"), ("pricing", "priced", "inflection"),
        ("removes", "removing", "inflection"), ("running", "runs", "inflection"),
        ("1978", "56", "signs"), (",", ".", "signs"), ("to", "the", "function"),
        ("pricing", "prince", "unrelated"), ("the", "relic", "unrelated"),
        ("1978", "a", "unrelated"),
    ],
)  # fmt: skip
def test_errors_have_kinds(token, decoded, expected):
    assert recovery.kind(token, decoded) == recovery.kind(decoded, token) == expected


def test_shares_are_means_over_members_and_intervals_resample_rows():
    right, row = np.array([1, 0, 1, 1, 0.5]), np.array([0, 0, 1, 1, 1])
    got = recovery.share(right, row, np.array([True, True, True, False, True]))
    assert got["score"] == pytest.approx(100 * 2.5 / 4)
    # Only the two rows can be drawn: means 1/2 and 3/4.
    assert (got["low"], got["high"]) == pytest.approx((50, 75))


def test_a_run_measures_predicts_and_renders(tmp_path):
    tokens = ["the", "of", "[SEP]", *(f"word{number}" for number in range(21))]
    table = draw.normal(size=(24, 12)).astype("f")
    prior = np.log(draw.dirichlet(np.ones(24))).astype("f")
    ids = draw.choice(24, 2000, p=np.exp(prior) / np.exp(prior).sum())
    texts = recovery.Texts(ids, np.arange(2000) // 100, tokens, table, prior)
    budget = recovery.Budget(10, 2, (0.0, recovery.EXPLAINED))
    decode = recovery.decoder(table, prior)
    rows = [row for db in budget.snr_db for row in recovery.measure(texts, decode, db, budget)]
    frame = pd.DataFrame(rows)
    frame = frame.assign(task="mrpc", corruption="gaussian", site="token", seed=0)
    frame.reindex(columns=list(recovery.COLUMNS)).to_csv(tmp_path / "results.csv")
    at = frame[(frame.snr_db == 0) & (frame.group == "all")].set_index(["model", "metric"]).score
    for reader in recovery.DECODERS:
        assert at[reader, "predicted"] == pytest.approx(at[reader, "recovered"], abs=8)
    assert at["memory", "recovered"] > at["nearest", "recovered"]
    bins = frame[(frame.metric == "measured") & (frame.group == "norm")]
    assert bins.groupby("model").size().between(3, recovery.NUM_BINS).all()
    page = recovery.page(tmp_path)
    text = report.markdown(page, tmp_path)
    assert "Tokens recovered, %" in text and "nan" not in text
    assert len(page.pictures["recovery"].figure.axes) == 4
