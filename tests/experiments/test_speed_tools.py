"""Rows, clocks and pictures of the benchmarks; nothing here is timed."""

import builtins
import importlib
import itertools
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.speed import goals, memory, page, timing, workload


def test_made_up_rows_have_the_stored_lengths():
    rows = workload.workload(None)
    counts = np.loadtxt(workload.LENGTHS, delimiter=",", skiprows=1, dtype=int)
    assert rows.padded.ids.shape == (counts[:, 1].sum(), 1, workload.MAX_LENGTH)
    found = np.unique(rows.padded.lengths, return_counts=True)
    np.testing.assert_array_equal(np.transpose(found), counts)
    assert sum(len(bucket.labels) for bucket in rows.buckets) == len(rows.padded.labels)
    row, length = rows.padded.ids[0, 0], rows.padded.lengths[0, 0]
    assert row[0] == workload.CLS and row[length - 1] == workload.SEP
    assert (row[:length] > 0).all() and (row[length:] == 0).all()


def test_every_program_takes_its_turn_and_the_first_round_is_not_counted():
    now, calls = [0.0], []

    def program(name, seconds):
        def call():
            calls.append(name)
            now[0] += seconds if calls.count(name) > 1 else 100

        return call

    taken = timing.interleaved(
        {"a": program("a", 1), "b": program("b", 2)}, seconds=8, min_rounds=2, clock=lambda: now[0]
    )
    np.testing.assert_array_equal(taken["a"], [1, 1, 1])
    np.testing.assert_array_equal(taken["b"], [2, 2, 2])
    assert [sorted(calls[i : i + 2]) for i in range(0, 8, 2)] == [["a", "b"]] * 4


def test_a_program_comes_after_every_other_one():
    calls = []
    programs = {name: (lambda name=name: calls.append(name)) for name in "abcd"}
    timing.interleaved(programs, seconds=0, min_rounds=40)
    rounds = [calls[i : i + 4] for i in range(4, len(calls), 4)]
    before = {(one, two) for each in rounds for one, two in itertools.pairwise(each)}
    assert len(before) == 4 * 3, "a rotating order has four"


def test_spread_is_median_and_quartiles():
    assert timing.spread([5, 1, 2, 4, 3]) == (3, 2, 4, 5)


def test_temporary_bytes_sees_an_intermediate_array():
    def fn(x):
        return jnp.linalg.eigvalsh(x @ x.T).sum()

    assert memory.temporary_bytes(fn, jax.ShapeDtypeStruct((64, 64), jnp.float32)) >= 64 * 64 * 4


def test_without_torch_the_message_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest, **more):
        if name.split(".")[0] == "torch":
            raise ImportError("No module named 'torch'")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.delitem(sys.modules, "experiments.speed.torch_robertha", raising=False)
    with pytest.raises(ImportError, match=r"optional extra: pip install -e '\.\[speed\]'"):
        importlib.import_module("experiments.speed.torch_robertha")


def test_a_page_and_a_picture_come_from_the_reports(tmp_path):
    origin = {"command": "python -m x", "cpu": "a cpu", "cores": 2, "device": "cpu", "commit": "c"}
    origin |= {"dirty": False, "date": "2026-01-01T00:00:00+00:00", "python": "3", "jax": "0"}
    spread = {"median": 6.0, "low": 5.0, "high": 7.0, "rounds": 9}
    row = {"size": "base", "weights": "fresh", "program": "hopfax", "padding": "8/16", "seeds": 1}
    row |= {"examples_per_second": 100.0, "low": 90.0, "high": 110.0, "rounds": 9}
    row |= {"milliseconds_per_step": 320.0, "iterations_per_query": 4.0, "loop_trips": 20.0}
    ratios = {"buckets_over_torch": spread, "equal_padding_over_torch": spread}
    report = {"provenance": origin | {"flax": "0", "torch": "2", "torch_threads": 2}}
    report |= {"rows": "SST-2", "clock": "wall time", "table": [row]}
    report |= {"ratios": {"base, fresh": ratios | {"20_seeds_over_one": spread}}}
    report |= {"torch_compile_failures": {"large, fresh": "no compiler"}}
    (tmp_path / "train_step.json").write_text(json.dumps(report))
    page.main([str(tmp_path)])
    text = (tmp_path / "README.md").read_text()
    assert "| base | fresh | hopfax | 8/16 | 1 | 100 (90 to 110) |" in text
    assert "time of 20 vmapped seeds over time of one" in text and "failed (large, fresh)" in text
    assert "6.0 (5.0 to 7.0)" in text and "python -m x" in text
    assert (tmp_path / "train_step.png").read_bytes()[:4] == b"\x89PNG"
    assert "over PyTorch's padded to 128 | at least 5 | 6 | yes |" in text


def test_a_goal_holds_in_all_some_or_no_cases_or_was_not_measured():
    assert goals.Goal("speed", 3, True, [3.0, 4.0]).holds() == "yes"
    assert goals.Goal("speed", 3, True, [2.9, 4.0]).holds() == "in 1 of 2 cases"
    assert goals.Goal("speed", 3, True, [2.0]).holds() == "no"
    assert goals.Goal("time", 3, False, [3.0]).holds() == "yes"
    assert goals.Goal("time", 3, False, [3.1]).holds() == "no"
    assert goals.Goal("time", 3, False, []).holds() == "not measured"


@pytest.mark.parametrize("device", ["cpu", "2 x cpu", "NVIDIA H100 80GB HBM3"])
def test_goals_for_a_gpu_take_no_figure_of_a_cpu(device):
    added = {"entropy": "shannon", "weights": "fresh", "tokens": "8/16", "added": 12.5}
    report = {"table": [added, added | {"tokens": 128, "added": 99.0}], "errors": []}
    report |= {"provenance": {"device": device}}
    lines = goals.section({"esr": report})[1].splitlines()
    cpu, gpu = (next(line for line in lines if f"on a {kind}" in line) for kind in ("CPU", "GPU"))
    measured, missing = (cpu, gpu) if "cpu" in device else (gpu, cpu)
    assert measured.endswith("| 12.5 | yes |") and missing.endswith("|  | not measured |")


@pytest.mark.parametrize("peer", ["PyTorch", "NumPy"])
def test_noise_stability_is_held_against_the_quicker_peer(peer):
    names = (f"{peer} over hopfax", f"{peer} over hopfax, pairs")
    names += (f"{peer} over hopfax, at equal error", "ten rhos over one")
    ratios = {name: {"median": float(place)} for place, name in enumerate(names)}
    found = list(goals.stability({"ratios": ratios}))
    assert [goal.values for goal in found] == [[0.0], [2.0], [3.0]]
    assert all(f"{peer}'s loop" in goal.what for goal in found[:2])


def test_the_page_kept_meets_or_misses_each_goal_by_name():
    """Every benchmark with a goal in its published report has it in the page's first table."""
    folder = Path(__file__).parents[2] / "experiments" / "results" / "speed"
    reports = {name: json.loads((folder / f"{name}.json").read_text()) for name in goals.GOALS}
    text = (folder / "README.md").read_text()
    assert goals.section(reports)[1] in text
