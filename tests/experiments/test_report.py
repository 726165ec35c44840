"""Numbers of pages."""

import pytest

from experiments import report

NAN = float("nan")


@pytest.mark.parametrize(
    ("mean", "low", "high", "text"),
    [
        (2.0, 1.0, 3.0, "**+2.0 [+1.0, +3.0]**"),
        (-0.01, 0.0, 5.0, "0.0 [0.0, +5.0]"),
        (1.26, 0.021, 2.5, "**+1.26 [+0.02, +2.50]**"),  # the bound is not rounded to zero
        (5.2, NAN, NAN, "+5.2 [n/a]"),
    ],
)
def test_differences_have_a_sign_and_are_bold_without_zero(mean, low, high, text):
    assert report.with_interval({"mean": mean, "low": low, "high": high}) == text
