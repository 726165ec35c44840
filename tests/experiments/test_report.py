"""Numbers and figures of pages."""

import pandas as pd
import pytest

from experiments import figures, report

NAN = float("nan")


@pytest.mark.parametrize(
    ("mean", "low", "high", "text"),
    [
        (2.0, 1.0, 3.0, "**+2.0 [+1.0, +3.0]**"),
        (1.25, -1.25, 5.0, "+1.2 [−1.2, +5.0]"),
        (-0.01, 0.0, 5.0, "0.0 [0.0, +5.0]"),
        (1.26, 0.021, 2.5, "**+1.26 [+0.02, +2.50]**"),
        (0.1, 0.004, 0.2, "**+0.100 [+0.004, +0.200]**"),
        (5.2, NAN, NAN, "+5.2 [n/a]"),
    ],
)
def test_differences_have_a_sign_and_are_bold_without_zero(mean, low, high, text):
    row = {"mean": mean, "low": low, "high": high}
    assert report.with_interval(row) == text
    unsigned = text.replace("+", "").strip("*").removesuffix(" [n/a]")
    digits = {0.021: 2, 0.004: 3}.get(low, 1)
    assert report.bracketed(row, digits=digits) == unsigned
    assert report.signed(NAN) == "n/a"


@pytest.mark.parametrize(("levels", "marker"), [((0.0,), "s"), ((0.0, -6.0), "")])
def test_a_single_point_is_marked(levels, marker):
    lines = pd.DataFrame({"snr_db": levels, "model": "tinybert", "mean": 90.0})
    axes = figures.facets(lines.assign(low=89.0, high=91.0), x="snr_db").axes[0]
    assert axes.lines[0].get_marker() == marker


@pytest.mark.parametrize("limit", [-8.0, -15.2])
def test_a_limit_is_shaded_from_where_it_is_also_beyond_the_data(limit):
    lines = pd.DataFrame({"snr_db": [0.0, -14.0], "model": "tinybert", "mean": [90.0, 80.0]})
    lines = lines.assign(low=lines["mean"] - 1, high=lines["mean"] + 1, limit=limit)
    axes = figures.facets(lines, x="snr_db", xlabel=figures.SNR).axes[0]
    (span,) = axes.patches
    assert span.get_x() + span.get_width() == pytest.approx(limit)
    assert axes.get_xlim() == pytest.approx((0.0, min(-14.0, limit - 1)))  # decreases
