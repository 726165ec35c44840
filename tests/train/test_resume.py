"""A run that is killed and resumed equals the uninterrupted run, bit for bit."""

import signal

import pytest
import test_loop
import tiny

from hopfax.train import interrupt
from hopfax.train.checkpoint import Checkpoints
from hopfax.train.metrics import MetricsLog

ROWS = {"train": tiny.buckets(20), "validation": tiny.buckets(8, seed=1)}
pytestmark = pytest.mark.usefixtures("compiled_once", "default_handler")


def run(folder, interval=0.0):
    with (
        Checkpoints(folder, config={"a": 1}, interval=interval) as checkpoints,
        MetricsLog(folder / "metrics.jsonl") as log,
    ):
        return test_loop.run(checkpoints=checkpoints, log=log, **ROWS)


def assert_same_run(folder, resumed, uninterrupted):
    """Compares results and logs bit for bit."""
    assert tiny.same_bits(resumed, uninterrupted)
    logs = [tiny.records(folder / name / "metrics.jsonl") for name in ("cut", "complete")]
    assert logs[0] == logs[1]


class Killed(BaseException):
    """Replaces a kill at a chosen place."""


@pytest.mark.parametrize(("name", "after"), [("write", False), ("save", False), ("save", True)])
def test_stopping_next_to_any_write_changes_no_bit(tmp_path, monkeypatch, name, after):
    owner = MetricsLog if name == "write" else Checkpoints
    function = getattr(owner, name)
    uninterrupted = run(tmp_path / "complete")
    left = 0

    def interruptible(self, *args, **kwargs):
        nonlocal left
        left -= 1
        if not left and not after:
            raise Killed
        function(self, *args, **kwargs)
        if not left:
            self.wait()
            raise Killed

    monkeypatch.setattr(owner, name, interruptible)
    for calls in (1, 2, 3):
        left = calls
        with pytest.raises(Killed):
            run(tmp_path / "cut")
    left = 1000
    assert_same_run(tmp_path, run(tmp_path / "cut"), uninterrupted)


def test_ctrl_c_or_a_preemption_saves_and_the_run_resumes_to_the_same_bits(tmp_path, monkeypatch):
    uninterrupted, cut = run(tmp_path / "complete", interval=1e6), tmp_path / "cut"
    write, left = MetricsLog.write, 0
    stops = iter((signal.SIGINT, signal.SIGTERM, signal.SIGINT))

    def pressed(self, *args, **kwargs):
        nonlocal left
        write(self, *args, **kwargs)
        left -= 1
        if not left:
            signal.raise_signal(next(stops))

    monkeypatch.setattr(MetricsLog, "write", pressed)
    for calls in (1, 2, 3):
        left = calls
        with pytest.raises(KeyboardInterrupt):
            run(cut, interval=1e6)
        newest = max(int(path.name) for path in (cut / "checkpoints").iterdir())
        assert newest == tiny.records(cut / "metrics.jsonl")[-1]["step"]
    assert not interrupt.is_requested()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    left = 1000
    assert_same_run(tmp_path, run(cut, interval=1e6), uninterrupted)


def test_a_checkpoint_of_another_run_is_an_error(tmp_path):
    run(tmp_path)
    with Checkpoints(tmp_path, config={"a": 1}) as checkpoints:
        for changes, message in (
            ({"seeds": (42, 23)}, r"the checkpoint has seeds \[23, 42\], got \[42, 23\]"),
            ({"epochs": 4}, r"the checkpoint has total_steps \d+, got \d+"),
        ):
            with pytest.raises(ValueError, match=message):
                test_loop.run(checkpoints=checkpoints, **ROWS, **changes)


def test_a_finished_run_is_read_not_repeated(tmp_path):
    first = run(tmp_path)
    log = (tmp_path / "metrics.jsonl").read_bytes()
    assert tiny.same_bits(run(tmp_path), first)
    assert (tmp_path / "metrics.jsonl").read_bytes() == log
