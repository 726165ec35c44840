"""A run that is killed and started again is the run that was never killed."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import tiny

from hopfax.train import interrupt
from hopfax.train.checkpoint import Checkpoints
from hopfax.train.evaluate import make_predictor
from hopfax.train.loop import fit
from hopfax.train.metrics import MetricsLog
from hopfax.train.objectives import classification
from hopfax.train.state import adamw

ROOT = Path(__file__).resolve().parents[2]
MODEL = tiny.bag()
OBJECTIVE = classification(MODEL)
OPTIMIZER = partial(adamw, 0.05)
PREDICTOR = make_predictor(MODEL)
pytestmark = pytest.mark.usefixtures("compiled_once", "default_handler")


def run(folder, interval=0.0, epochs=3):
    with (
        Checkpoints(folder, config={"a": 1}, interval=interval) as checkpoints,
        MetricsLog(folder / "metrics.jsonl") as log,
    ):
        return fit(
            PREDICTOR,
            OBJECTIVE,
            train=tiny.buckets(20),
            validation=tiny.buckets(8, seed=1),
            score=tiny.accuracy,
            seeds=(23, 42),
            epochs=epochs,
            optimizer=OPTIMIZER,
            batch_size=4,
            checkpoints=checkpoints,
            log=log,
        )


def assert_same_run(folder, got, want):
    """The same bits, and every step logged once with the same numbers."""
    assert tiny.same_bits(got, want)
    logs = [tiny.records(folder / name / "metrics.jsonl") for name in ("cut", "complete")]
    assert logs[0] == logs[1]


def test_a_real_kill_while_saving_changes_no_bit(tmp_path):
    program = (
        "import sys; from pathlib import Path; from hopfax.train import schedule\n"
        "schedule.CHUNK_STEPS = 2\n"
        "import test_resume; test_resume.run(Path(sys.argv[1]), epochs=40)"
    )
    paths = os.pathsep.join(map(str, (ROOT, Path(__file__).parent)))
    filters = f"error::UserWarning,{tiny.HALF_WRITTEN}"
    cut, output = tmp_path / "cut", tmp_path / "output.txt"
    with output.open("w") as file:  # a pipe could fill up
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(cut)],
            env=os.environ | {"PYTHONPATH": paths, "PYTHONWARNINGS": filters},
            stdout=file,
            stderr=file,
        )
    log, steps = cut / "metrics.jsonl", cut / "checkpoints"
    while process.poll() is None and not (
        log.exists() and log.read_bytes().count(b"\n") >= 20 and any(steps.glob("*tmp*"))
    ):
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, output.read_text()
    got, want = run(cut, epochs=40), run(tmp_path / "complete", interval=1e6, epochs=40)
    assert_same_run(tmp_path, got, want)


class Killed(BaseException):
    """Replaces a kill at a chosen place."""


@pytest.mark.parametrize(("name", "after"), [("write", False), ("save", False), ("save", True)])
def test_stopping_next_to_any_write_changes_no_bit(tmp_path, monkeypatch, name, after):
    owner = MetricsLog if name == "write" else Checkpoints
    function = getattr(owner, name)
    want = run(tmp_path / "complete")
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
    kills, got = 0, None
    for calls in (1, 2, 3, 4, 1000):  # counted from 0 in each process
        left = calls
        try:
            got = run(tmp_path / "cut")
        except Killed:
            kills += 1
    assert kills and got
    assert_same_run(tmp_path, got, want)


def test_ctrl_c_saves_and_the_run_resumes_to_the_same_bits(tmp_path, monkeypatch):
    want = run(tmp_path / "complete", interval=1e6)
    write, stops = MetricsLog.write, 0
    for calls in (1, 2, 3, 1000):  # counted from 0 in each process
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
                newest = max(int(path.name) for path in (tmp_path / "cut/checkpoints").iterdir())
                assert newest == tiny.records(tmp_path / "cut/metrics.jsonl")[-1]["step"]
    assert stops == 3 and not interrupt.requested()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert_same_run(tmp_path, got, want)


def test_a_finished_run_is_read_not_repeated(tmp_path):
    want = run(tmp_path)
    log = (tmp_path / "metrics.jsonl").read_bytes()
    assert tiny.same_bits(run(tmp_path), want)
    assert (tmp_path / "metrics.jsonl").read_bytes() == log
