"""The recovery experiment: predictions against brute force, kinds of errors, one whole run."""

import numpy as np
import pandas as pd
import pytest

from experiments.memory import recovery

draw = np.random.default_rng(0)


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


def mean_direction(texts):
    means = np.array([text.mean(0) for text in texts])
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def test_harm_is_relative_to_random_tokens():
    table = np.eye(4)
    ids, text = np.array([0, 1, 2]), np.array([0, 0, 1])
    all_ids = [np.array([3, 0, 1]), np.array([3, 2])]  # 3 is a special token
    texts = recovery.Texts(
        ids, text // 2, text, np.array([1, 2, 1]), all_ids, ["run", "runs", "cat", "."], table,
        np.zeros(4), mean_direction,
    )  # fmt: skip
    rows = recovery.harm(texts, np.array([0, 2, 2]))  # "runs" is read as "cat"
    got = {each["group"]: each for each in rows}
    assert set(got) == {"unrelated", "all"}
    # The random token is 3, which the text has already.
    assert got["unrelated"]["score"] == pytest.approx(100 * (1 - 2 / 3) / (1 - 3 / np.sqrt(15)))
    assert got["unrelated"]["num_examples"] == 1
    assert recovery.harm(texts, ids) == []


def test_a_run_measures_predicts_and_renders(tmp_path):
    tokens = ["the", "of", "[SEP]", *(f"word{number}" for number in range(21))]
    table = draw.normal(size=(24, 12)).astype("f")
    prior = np.log(draw.dirichlet(np.ones(24))).astype("f")
    ids = draw.choice(24, 2000, p=np.exp(prior) / np.exp(prior).sum())
    row, position = np.divmod(np.arange(2000), 100)
    texts = recovery.Texts(
        ids, row, row, position, ids.reshape(20, 100), tokens, table, prior, mean_direction
    )
    decode = recovery.decoder(table, prior)
    levels = 0.0, recovery.EXPLAINED
    rows = [row for db in levels for row in recovery.measure(texts, decode, db, 2)]
    rows += recovery.limits(table, prior)
    white, colored = (row["score"] for row in rows[-2:])
    assert white < colored < white + 3
    frame = pd.DataFrame(rows)
    frame = frame.assign(task="mrpc", corruption="gaussian", site="token", seed=0)
    frame.to_csv(tmp_path / "results.csv")
    at = frame[(frame.snr_db == 0) & (frame.group == "all")].set_index(["model", "metric"]).score
    for reader in recovery.DECODERS:
        assert at[reader, "predicted"] == pytest.approx(at[reader, "recovered"], abs=8)
    assert at["memory", "recovered"] > at["nearest", "recovered"]
    far = frame[(frame.metric == "sigma error")].set_index("snr_db").score
    assert 0 < far[recovery.EXPLAINED] < far[0] < 20
    bins = frame[(frame.metric == "measured") & (frame.group == "norm")]
    assert bins.groupby("model").size().between(3, recovery.NUM_BINS).all()
    page = recovery.page(tmp_path)
    rates, kinds, harm = page.tables
    assert rates.columns == kinds.columns == ["", "0.0 dB", "−12.0 dB"]
    assert rates.rows[0][:2] == ["nearest token: measured", f"{at['nearest', 'recovered']:.1f}"]
    assert harm.rows[-1][0] == "all"
    assert len(page.pictures["recovery"].figure.axes) == 4
