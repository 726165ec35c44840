"""A few trials of each cheap fault; `python -m tests.faults` runs hundreds."""

import faults
import numpy as np
import pytest


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("faults")


@pytest.mark.parametrize(
    ("case", "count"), [("kill", 2), ("damage", 2), ("checkpoint", 3), ("fuzz", 2000)]
)
def test_a_fault_changes_no_result(case, count, place):
    assert not {*faults.CASES[case][0](place, np.random.default_rng(0), count)} - {""}
