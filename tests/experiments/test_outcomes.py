"""Medians of times some of which are never, their intervals, and comparisons of them."""

import numpy as np
import pytest

from experiments.noise_stability.outcomes import median_time, reduction

NEVER = np.inf


def test_half_that_never_arrive_leave_an_interval_open_at_the_top():
    found = median_time(np.array([10.0, 20, 30, 40, 50, NEVER, NEVER, NEVER]))
    assert found.value == 45
    assert found.low < 40
    assert found.high == NEVER


def test_the_interval_covers_the_median_as_often_as_it_says():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(100):
        found = median_time(rng.exponential(size=25))
        inside += found.low <= np.log(2) <= found.high
    assert 88 <= inside <= 99  # 95 % within three standard deviations


def test_few_runs_have_no_interval():
    """Two that agree would have one without width."""
    two = np.array([10.0, 10.0])
    for found in (median_time(two), reduction(0.5 * two, two)):
        assert np.isfinite(found.value) and np.isnan(found[1:]).all()
    with pytest.raises(ValueError, match="needs at least two runs, got 1"):
        median_time(two[:1])


def test_pairs_are_resampled_together():
    """Every run a fifth sooner than its twin: the spread over seeds must not show."""
    plain = np.exp(np.linspace(0, 6, 15))
    found = reduction(0.8 * plain, plain)
    np.testing.assert_allclose(found, 20, atol=1e-9)
    mixed = reduction(0.8 * plain[::-1], plain)
    assert mixed.low < 0 < mixed.high


def test_what_is_known_of_those_who_never_arrive():
    arrived, never = np.array([1.0, 2, 3]), np.full(3, NEVER)
    # Plain is beyond the horizon of 8: at least 3/4 is saved, at most all.
    assert reduction(arrived, never, followed=(8, 8))[::2] == (75, 100)
    # The arm takes at least 8, the baseline at most 3.
    value, low, high = reduction(never, arrived, followed=(8, 8))
    assert value == low == -NEVER and high == pytest.approx(100 * (1 - 8 / 3))
    found = reduction(never, never, followed=(8, 8))
    assert np.isnan(found.value)
    assert found[1:] == (-NEVER, 100), "nothing is known"
    assert np.isnan(reduction(never, never).value)


def test_late_arrivals_save_nothing_that_was_not_seen():
    """Half of plain arrives early, half of the arm late: no interval may start above zero."""
    plain = np.array([100.0] * 4 + [NEVER] * 4)
    arm = np.array([2990.0] * 5 + [NEVER] * 3)
    found = reduction(arm, plain, followed=(3000, 3000))
    # Plain's median is between 100 and the first that is unknown, at least 3000: 1550 or more.
    assert found.value == pytest.approx(100 * (1 - 2990 / 1550))
    assert found.low < 0


def test_a_baseline_that_was_observed_counts_whole():
    """An arm that was followed for fewer steps loses only its own late runs."""
    plain, arm = np.array([10.0, 10, 10]), np.array([5.0, 5, NEVER])
    assert reduction(arm, plain, followed=(8, 20)).value == 50
    few = reduction(np.array([5.0, NEVER, NEVER]), plain, followed=(8, 20))
    # Its median is above 8: it may save up to 20 %, or nothing; some resamples save half.
    assert np.isnan(few.value) and few[1:] == (-NEVER, 50)
    assert reduction(np.array([5.0, NEVER, NEVER]), plain, followed=(20, 20)).value == -NEVER
