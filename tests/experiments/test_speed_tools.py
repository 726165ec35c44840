"""Rows, clocks and pictures of the benchmarks; nothing here is timed."""

import builtins
import importlib
import itertools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.speed import memory, page, timing, workload


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
