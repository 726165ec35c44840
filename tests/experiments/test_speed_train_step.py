"""What the train step's table says of programs that take known times."""

import argparse
import json

import numpy as np
import pytest

from experiments.speed import train_step
from experiments.speed.entrants import Entrant
from experiments.speed.train_step import cases, compare


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def entrant(clock, program, seconds, *, seeds=1, shares=(1.0,), steps=2):
    """Takes `seconds[bucket]` a step."""

    def run(bucket, count):
        clock.now += seconds[bucket] * count

    told = (lambda: 7.0, lambda: 20.0)
    return Entrant(program, "8/16", seeds, run, np.array(shares), steps, *told)


def test_a_mean_step_is_an_epochs_and_ratios_are_of_steps():
    clock = Clock()
    halves = {"shares": (0.75, 0.25), "steps": 4}
    programs = {
        "buckets, 1": entrant(clock, "hopfax", (1.0, 5.0), **halves),
        "buckets, 20": entrant(clock, "hopfax", (10.0, 50.0), seeds=20, **halves),
        "padded": entrant(clock, "hopfax", (8.0,)),
        "torch": entrant(clock, "PyTorch", (12.0,)),
        "torch, compiled": entrant(clock, "PyTorch, compiled", (6.0,)),
    }
    case = {"size": "base", "weights": "fresh", "batch_size": 32}
    table, ratios = compare(programs, **case, seconds=0, clock=clock)
    assert {name: ratio.median for name, ratio in ratios.items()} == pytest.approx(
        {
            "buckets_over_torch": 6.0,
            "equal_padding_over_torch": 1.5,
            "equal_padding_over_compiled_torch": 0.75,
            "20_seeds_over_one": 10.0,
        }
    )
    rates = [row["examples_per_second"] for row in table]
    assert rates == pytest.approx([32 / 2, 20 * 32 / 20, 32 / 8, 32 / 12, 32 / 6])
    assert [row["program"] for row in table][-1] == "PyTorch, compiled"
    assert {row["iterations_per_query"] for row in table} == {7.0}


def test_large_has_no_buckets_and_no_ratio_of_them():
    clock = Clock()
    programs = {
        "padded": entrant(clock, "hopfax", (8.0,)),
        "torch": entrant(clock, "PyTorch", (4.0,)),
    }
    case = {"size": "large", "weights": "fresh", "batch_size": 4}
    table, ratios = compare(programs, **case, seconds=0, clock=clock)
    assert ratios.keys() == {"equal_padding_over_torch"} and len(table) == 2


@pytest.mark.parametrize(
    ("sizes", "steps", "wanted"),
    [
        (["base", "large"], 300, [("base", 0), ("base", 300), ("large", 0)]),
        (["base"], 0, [("base", 0)]),
        (["large"], 300, [("large", 0)]),
    ],
)
def test_what_is_compared(sizes, steps, wanted):
    assert cases(argparse.Namespace(sizes=sizes, train_steps=steps)) == wanted


@pytest.mark.parametrize("flags", [("--chunk", "0"), ("--seeds", "1"), ("--sizes", "huge")])
def test_flags_out_of_range_end_the_program(flags, capsys):
    with pytest.raises(SystemExit) as ended:
        train_step.main(flags)
    assert ended.value.code == 2 and flags[0] in capsys.readouterr().err


def test_what_is_measured_stays_where_a_later_case_breaks(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="the PyTorch peer is an optional extra: speed")
    clock = Clock()

    def entrants(rows, params, *, size, **_):
        if size == "large":
            raise MemoryError
        return {"padded": entrant(clock, "hopfax", (8.0,))}, "no compiler"

    monkeypatch.setattr(train_step, "entrants", entrants)
    monkeypatch.setattr(train_step, "trained", lambda rows, steps: None)
    monkeypatch.setattr(train_step, "fresh_large", lambda: None)
    monkeypatch.setattr(train_step, "clock_of", lambda _: clock)
    with pytest.raises(MemoryError):
        train_step.main(["--seconds", "0", "--train-steps", "0", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "train_step.json").read_text())
    assert [row["size"] for row in found["table"]] == ["base"]
    assert found["missing_cells"] == ["large, fresh"]
    assert found["torch_compile_failures"] == {"base, fresh": "no compiler"}
