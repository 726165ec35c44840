"""A few trials of each cheap fault; `python -m tests.faults` runs hundreds."""

import faults
import numpy as np
import pytest


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:  # for runs, which start like this process
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        yield tmp_path_factory.mktemp("faults")


@pytest.mark.parametrize("fault", [faults.kill, faults.checkpoint, faults.fuzz])
def test_a_fault_changes_no_result(fault, place):
    assert {*fault(place, np.random.default_rng(0), 2000 if fault is faults.fuzz else 2)} == {""}
