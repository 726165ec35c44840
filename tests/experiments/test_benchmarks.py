"""Harness, command line, page and cases of the benchmarks; nothing is timed."""

import types
from unittest import mock

import numpy as np
import pandas as pd
import pytest

from experiments.benchmarks import harness, workloads
from experiments.benchmarks.cases import stability
from experiments.pages.values import RESULTS
from experiments.provenance import provenance


@pytest.fixture
def program(monkeypatch):
    """Makes programs that take known seconds, but for the first call; `program.calls` has names."""
    now = [0.0]
    monkeypatch.setattr(harness.time, "perf_counter", lambda: now[0])

    def make(name, seconds):
        def call():
            make.calls.append(name)
            now[0] += seconds if make.calls.count(name) > 1 else 100

        return call

    make.calls = []
    return make


@pytest.fixture
def cases(program, monkeypatch):
    """A case of two settings, the second of which fails before it is mended; one of figures."""
    works = {"ours": program("ours", 2.0), "peer": program("peer", 8.0)}
    mended = mock.Mock(side_effect=RuntimeError("does not run"), return_value=works)
    settings = {"sizes: one": lambda _: works, "sizes: two": mended}
    ratios = {"peer / ours": "≥ 5", "other / ours": ""}
    figures = {"one": lambda _: {"error, %": 0.5}}
    modules = {
        "stability": types.SimpleNamespace(SETTINGS=settings, RATIOS=ratios),
        "memory": types.SimpleNamespace(SETTINGS=figures, RATIOS={"error, %": "≤ 1"}),
    }
    monkeypatch.setattr(harness, "load", modules.get)
    return mended


def test_programs_take_turns_in_every_order_after_a_round_that_is_not_counted(program):
    parts = [(0.75, program("a", 1)), (0.25, program("b", 2))]
    named = {"mean": parts, "c": program("c", 3)}
    times = harness.interleaved(named, seconds=0, min_rounds=40)
    np.testing.assert_allclose(times["mean"], [1.25] * 40)
    np.testing.assert_allclose(times["c"], [3.0] * 40)
    rounds = [tuple(program.calls[i : i + 3]) for i in range(3, 123, 3)]
    assert len(set(rounds)) == 6 and {"".join(sorted(each)) for each in rounds} == {"abc"}


def test_programs_that_disagree_are_named():
    ones = np.ones((200, 2))
    workloads.check_equal({"a": ones, "b": ones + 1e-5})
    late = ones.copy()
    late[[3, 90], 1] += 0.005  # an update more
    workloads.check_equal({"a": ones, "b": late})
    for rows, error in ((8, 0.1), (8, np.nan), (3, 0.005)):
        other = ones.copy()
        other[:rows, 1] += error
        with pytest.raises(RuntimeError, match="b and a must agree"):
            workloads.check_equal({"a": ones, "b": other})


def test_a_run_measures_what_is_missing_and_writes_its_page(cases, tmp_path, capsys, monkeypatch):
    origin = provenance() | {"dirty": False, "device": "cpu"}
    monkeypatch.setattr(harness, "provenance", lambda: origin)
    line = ["stability", "memory", "--runs", str(tmp_path)]
    assert harness.main(line) == 1
    output, errors = capsys.readouterr()
    assert "sizes: two: RuntimeError: does not run" in errors
    (folder,) = tmp_path.glob("benchmarks/*")
    assert output.splitlines()[-1] == str(folder / "report.html")
    frame = pd.read_csv(folder / "results.csv").set_index("name")
    medians = frame["median"].drop("load average").to_dict()
    assert medians == {"ours": 2, "peer": 8, "peer / ours": 4, "error, %": 0.5}
    assert set(frame.kind) == {"seconds", "ratio", "figure"}
    cases.side_effect = None
    assert harness.main(line) == 0
    assert "sizes: one: already measured" in capsys.readouterr().out
    assert set(pd.read_csv(folder / "results.csv").setting) == {"sizes: one", "sizes: two", "one"}
    page = harness.page(folder)
    assert page.tables[0].rows == [
        ("stability, sizes: peer / ours", "2", "4", "4", "4", "≥ 5"),
        ("memory, error, %", "1", "0.5", "0.5", "0.5", "≤ 1"),
    ]
    (axes,) = page.pictures["ratios"].figure.axes
    assert axes.lines[-1].get_xdata().tolist() == [2.0], "the logarithm of the ratio"


def test_cases_declare_ratios_of_which_the_published_results_have_every_goal():
    frame = pd.read_csv(RESULTS / "data" / "speed.csv")
    assert set(frame) == {"run", *harness.COLUMNS}
    for name in harness.CASES:
        case = harness.load(name)
        published = frame[frame.case == name]
        assert set(published.setting) & set(case.SETTINGS), name
        for ratio, goal in case.RATIOS.items():
            assert not goal or ratio in set(published["name"]), (name, ratio)


def test_the_closed_form_has_its_limits():
    hidden, readout = stability.network()
    mean = np.linalg.norm(hidden, axis=0) @ readout / (2 * np.pi) ** 0.5
    np.testing.assert_allclose(stability.exact_stability(0.0), mean**2, rtol=1e-6)
    mean, error = stability.estimator(20_000, rho=1.0)()
    assert abs(stability.exact_stability(1.0) - mean) < 5 * error < 0.05
