"""The arithmetic behind every page: means, pairs, intervals, verdicts."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments import tidy

CLEAN = {"corruption": "none", "site": "", "protocol": "", "level": 0.0}
NOISY = {"corruption": "gaussian", "site": "token", "protocol": "sigma", "level": 0.5}


def frame(rows):
    """Measurements with the columns that `tidy.read` returns."""
    blank = {"task": "cola", "metric": "score", "snr_db": np.nan, "draw": 0, **CLEAN}
    return pd.DataFrame([{**blank, **row} for row in rows])


def rows(model, scores, **more):
    return [{"model": model, "seed": s, "score": x, **more} for s, x in enumerate(scores)]


def test_intervals_are_students_over_seeds():
    values = [50.0, 53.0, 55.5, 49.0]
    result = tidy.summarize(tidy.scores(frame(rows("a", values)))).iloc[0]
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    expected = [np.mean(values), np.std(values, ddof=1), low, high, 4]
    assert result[["mean", "std", "low", "high", "num_seeds"]].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("values", [[50.0], [50.0, 51.0], [50.0, 50.0, 50.0]])
def test_fewer_than_three_seeds_or_equal_ones_have_no_interval(values):
    result = tidy.summarize(tidy.scores(frame(rows("a", values)))).iloc[0]
    assert np.isnan(result.low) and np.isnan(result.high)


def test_draws_are_averaged_within_their_seed():
    measured = frame(rows("a", [60.0], **NOISY) + rows("a", [70.0], **NOISY, draw=1))
    assert list(tidy.scores(measured).score) == [65.0]


def test_averages_over_different_tasks_are_not_compared():
    measured = frame([
        *rows("a", [80.0], task="x"), *rows("a", [60.0], task="y"),
        *rows("b", [60.0], task="y"), *rows("b", [50.0], task="z"),
    ])  # fmt: skip
    assert tidy.average(tidy.scores(measured), "task").empty
    shared = measured[measured.task != "z"]  # a has all tasks that are left, b has not
    assert list(tidy.average(tidy.scores(shared), "task").score) == [70.0]


def test_differences_pair_seeds_and_a_baseline_may_differ_in_the_site():
    inner = NOISY | {"site": "embedding"}
    baseline = rows("b", [50.0, 51.0], **NOISY)
    measured = frame([*rows("a", [80.0, 82.0, 84.0], **inner), *baseline])  # one is unpaired
    result = tidy.difference(tidy.scores(measured), model="b", site="token")
    columns = result[["model", "site", "score"]].values.tolist()
    assert columns == [["a", "embedding", 30.0], ["a", "embedding", 31.0]]


def test_means_over_levels_keep_only_complete_seeds():
    measured = frame([
        *rows("a", [60.0, 70.0], **NOISY),
        *rows("a", [40.0], **NOISY | {"level": 1.0}),
        *rows("b", [50.0], **NOISY),
    ])  # fmt: skip
    result = tidy.average(tidy.scores(measured), "level")
    assert result[["seed", "score"]].values.tolist() == [[0, 50.0]]


@pytest.mark.parametrize(
    ("low", "high", "effect", "verdict"),
    [
        (8.0, 12.0, 10.0, "holds"),
        (1.0, 4.0, 10.0, "smaller"),
        (-1.0, 4.0, 10.0, "no difference"),
        (-1.0, 6.0, 10.0, "too weak to tell"),
        (-4.0, -1.0, 10.0, "reversed"),
        (-12.0, -8.0, -10.0, "holds"),
        (-4.0, 1.0, -10.0, "no difference"),
        (np.nan, np.nan, 10.0, "n/a"),
        (-1.0, 4.0, np.nan, "n/a"),
    ],
)
def test_verdicts_need_power(low, high, effect, verdict):
    assert tidy.verdict(low, high, effect) == verdict


def test_holms_correction_counts_significant_differences():
    # p = 0.02, 0.02 and 0.5 with two degrees of freedom; alone, two of the three are below 0.05.
    t = stats.t.isf(np.array([0.02, 0.02, 0.5]) / 2, 2)
    half = 2 * stats.t.isf(0.025, 2)
    table = pd.DataFrame({"mean": 2 * t, "low": 2 * t - half, "high": 2 * t + half, "num_seeds": 3})
    assert tidy.rejected(table).sum() == 0
    assert tidy.rejected(table.iloc[:2]).sum() == 2
    assert tidy.rejected(table.assign(low=np.nan)).sum() == 0
    table.loc[2, "low"] = np.nan  # not tested
    table = table.iloc[[2, 0, 1]]
    assert tidy.rejected(table).tolist() == [False, True, True]


def test_rows_without_noise_are_one_condition(tmp_path):
    measured = frame(rows("a", [50.0])).assign(site="none", protocol="clean")
    measured.to_csv(tmp_path / "results.csv", index=False)
    assert tidy.read(tmp_path)[list(CLEAN)].to_dict("records") == [CLEAN]


def test_a_wrong_file_or_column_is_named(tmp_path):
    table = frame(rows("a", [50.0, np.nan]))
    with pytest.raises(ValueError, match="no column place; choose among"):
        tidy.difference(tidy.scores(table), place="token")
    for wrong, message in [
        (table, r"results\.csv, line 3: score must be a number"),
        (table.drop(columns="level"), "no column level"),
    ]:
        wrong.to_csv(tmp_path / "results.csv", index=False)
        with pytest.raises(ValueError, match=message):
            tidy.read(tmp_path)


def test_intervals_include_the_sampling_of_rows():
    assert tidy.sampling_error(80.0, 400) == pytest.approx(2.0)
    values = [70.0, 72.0, 74.0]
    each = pd.DataFrame({"task": "t", "seed": [1, 2, 3], "score": values})
    plain = tidy.summarize(each)
    wider = tidy.widened(plain, 3.0)
    half = np.hypot((plain.high - plain.low) / 2, 1.96 * 3)
    np.testing.assert_allclose(wider.high - wider["mean"], half)
    np.testing.assert_allclose(wider["mean"] - wider.low, half)
    # From results.csv: an interval over rows for each cell, next to the scores of all seeds.
    frame = each.assign(metric="gain", low=69.0, high=75.0, **dict.fromkeys(tidy.CELL[1:], "x"))
    seeds = tidy.summarize(tidy.scores(frame, "gain"))
    both = tidy.with_rows(seeds, frame, "gain").iloc[0]
    half = np.hypot((plain.high - plain.low).iloc[0] / 2, 3)
    assert both.high - both["mean"] == pytest.approx(half)
    one = frame[frame.seed == 1]
    alone = tidy.with_rows(tidy.summarize(tidy.scores(one, "gain")), one, "gain").iloc[0]
    assert (alone.low, alone.high) == (67.0, 73.0)
