"""A run that is killed and started again is the run that was never killed."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tiny

from hopfax.train import interrupt
from hopfax.train.checkpoint import Checkpoints
from hopfax.train.loop import fit
from hopfax.train.metrics import MetricsLog, read_metrics
from hopfax.train.objectives import classification
from hopfax.train.state import adamw

ROOT = Path(__file__).resolve().parents[2]
TRAINING = """
import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np
import tiny
from hopfax.train.checkpoint import Checkpoints
from hopfax.train.loop import fit
from hopfax.train.metrics import MetricsLog
from hopfax.train.objectives import classification
from hopfax.train.state import adamw

folder = Path(sys.argv[1])
model = tiny.softmax(dropout=0.2)
with Checkpoints(folder, config={"model": "tiny"}, interval=0.0) as checkpoints:
    with MetricsLog(folder / "metrics.jsonl") as log:
        fitted = fit(
            model,
            classification(model),
            train=tiny.buckets(40, boundaries=(12,)),
            validation=tiny.buckets(12, seed=1, boundaries=(12,)),
            score=tiny.accuracy,
            seeds=(23, 42),
            epochs=10,
            optimizer=partial(adamw, 1e-2),
            batch_size=4,
            chunk_steps=2,
            checkpoints=checkpoints,
            log=log,
        )
leaves = jax.tree.leaves(fitted.params)
np.savez(folder / "fitted.npz", *leaves, scores=fitted.scores, epochs=fitted.epochs)
"""


def start(folder):
    folder.mkdir(exist_ok=True)
    paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    with open(folder / "said.txt", "w") as said:  # a pipe that nobody reads may fill up
        return subprocess.Popen(
            [sys.executable, "-c", TRAINING, str(folder)],
            env=os.environ
            | {"PYTHONPATH": paths, "PYTHONWARNINGS": f"error::UserWarning,{tiny.HALF_WRITTEN}"}
            | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},  # four processes compile: let them be quick
            stdout=said,
            stderr=said,
        )


def finish(folder):
    assert start(folder).wait(timeout=300) == 0, (folder / "said.txt").read_text()
    with np.load(folder / "fitted.npz") as found:
        return dict(found)


def lines(folder):
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_real_kills_change_no_bit(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    want = finish(whole)
    total = lines(whole)

    def saving():
        return any((cut / "checkpoints").glob("*tmp*"))

    # Early in the first epoch; and later, while a checkpoint is being written.
    for share, moment in ((0.02, lambda: True), (0.4, saving)):
        process = start(cut)
        while process.poll() is None and not (lines(cut) >= share * total and moment()):
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, (cut / "said.txt").read_text()
        assert 0 < lines(cut) < total
    got = finish(cut)
    assert got.keys() == want.keys()
    for name, array in want.items():
        assert got[name].tobytes() == array.tobytes(), name
    # Every step is logged once, in order, with the same numbers to the last digit.
    assert read_metrics(cut / "metrics.jsonl") == read_metrics(whole / "metrics.jsonl")
    steps = [line["step"] for line in read_metrics(whole / "metrics.jsonl") if "loss" in line]
    assert steps == sorted(set(steps))


class Killed(BaseException):
    """Stands for a kill at a chosen place."""


MODEL = tiny.bag()
OBJECTIVE = classification(MODEL)
OPTIMIZER = partial(adamw, 0.05)


def run(folder, interval=0.0):
    with (
        Checkpoints(folder, config={"a": 1}, interval=interval) as checkpoints,
        MetricsLog(folder / "metrics.jsonl") as log,
    ):
        return fit(
            MODEL,
            OBJECTIVE,
            train=tiny.buckets(20),
            validation=tiny.buckets(8, seed=1),
            score=tiny.accuracy,
            seeds=(23, 42),
            epochs=3,
            optimizer=OPTIMIZER,
            batch_size=4,
            chunk_steps=2,
            checkpoints=checkpoints,
            log=log,
        )


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", ["write", "save"])
@pytest.mark.usefixtures("compiled_once")
def test_stopping_beside_any_write_changes_no_bit(tmp_path, monkeypatch, name, after):
    owner = MetricsLog if name == "write" else Checkpoints
    function = getattr(owner, name)
    want = run(tmp_path / "whole")
    left = 0

    def interruptible(self, *args, **kwargs):
        nonlocal left
        left -= 1
        if not left and not after:
            raise Killed
        function(self, *args, **kwargs)
        if not left:
            if owner is Checkpoints:
                self.wait()
            raise Killed

    monkeypatch.setattr(owner, name, interruptible)
    kills, got = 0, None
    for calls in (1, 2, 3, 4, 1000):  # counted anew by each process
        left = calls
        try:
            got = run(tmp_path / "cut")
        except Killed:
            kills += 1
    assert kills and got
    assert tiny.same_bits(got, want)
    logs = [read_metrics(tmp_path / folder / "metrics.jsonl") for folder in ("cut", "whole")]
    assert logs[0] == logs[1]


@pytest.mark.usefixtures("compiled_once")
def test_ctrl_c_saves_and_the_run_resumes_to_the_same_bits(tmp_path, monkeypatch):
    want = run(tmp_path / "whole", interval=1e6)
    write, stops = MetricsLog.write, 0
    for calls in (1, 2, 3, 1000):  # counted anew by each process
        with monkeypatch.context() as patched:
            left = iter(range(calls, -1000, -1))

            def pressed(self, *args, left=left, **kwargs):
                write(self, *args, **kwargs)
                if not next(left) - 1:
                    signal.raise_signal(signal.SIGINT)

            patched.setattr(MetricsLog, "write", pressed)
            try:
                got = run(tmp_path / "cut", interval=1e6)
            except KeyboardInterrupt:
                stops += 1
    assert stops == 3 and not interrupt.requested()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert tiny.same_bits(got, want)
    logs = [read_metrics(tmp_path / folder / "metrics.jsonl") for folder in ("cut", "whole")]
    assert logs[0] == logs[1]


@pytest.mark.usefixtures("compiled_once")
def test_a_second_ctrl_c_stops_at_once(tmp_path, monkeypatch):
    def pressed(self, *args, **kwargs):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("the second should have raised")

    monkeypatch.setattr(MetricsLog, "write", pressed)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)


@pytest.mark.usefixtures("compiled_once")
def test_a_finished_run_is_read_not_repeated(tmp_path):
    want = run(tmp_path)
    log = (tmp_path / "metrics.jsonl").read_bytes()
    assert tiny.same_bits(run(tmp_path), want)
    assert (tmp_path / "metrics.jsonl").read_bytes() == log


@pytest.mark.usefixtures("compiled_once")
def test_saving_seldom_gives_the_same_run(tmp_path):
    often, seldom = (run(tmp_path / str(s), interval=s) for s in (0.0, 1e6))
    assert tiny.same_bits(often, seldom)
