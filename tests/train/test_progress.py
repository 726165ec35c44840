import io
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hopfax.train import progress as module
from hopfax.train.progress import Progress, _clock_face

ROOT = Path(__file__).resolve().parents[2]


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def plain(*updates, total=10, **settings):
    """Lines printed for (seconds since the last, done, fields)."""
    clock, stream = Clock(), io.StringIO()
    with Progress(total, stream=stream, clock=clock, **settings) as progress:
        for seconds, done, fields in updates:
            clock.now += seconds
            progress.update(done, **fields)
    return stream.getvalue().splitlines()


def test_plain_line_has_title_share_time_left_and_fields():
    fields = {"loss": np.float32(0.69314718), "n": np.int64(12345), "at": "best", "x": float("nan")}
    (line,) = plain((4.0, 1, fields), title="sst2 [CLS]", total=1000)
    assert line == "sst2 [CLS]  0%  1:06:36 left  loss 0.6931  n 12,345  at best  x nan"


def test_plain_lines_are_few_but_first_and_last_are_there():
    lines = plain(*[(1.25, step, {}) for step in range(1, 11)])
    assert [line.split()[0] for line in lines] == ["10%", "50%", "90%", "100%"]
    assert lines[-1] == "100%  done"


def test_run_that_stops_early_still_shows_its_last_state():
    assert [line[:3] for line in plain(*[(1.0, step, {}) for step in (1, 2, 3)])] == ["10%", "30%"]
    stream = io.StringIO()
    with pytest.raises(RuntimeError), Progress(4, stream=stream) as progress:
        progress.update(1, loss=1)
        progress.update(2, loss=7)
        raise RuntimeError
    assert "50%" in stream.getvalue().splitlines()[-1]


def test_last_line_is_printed_once_with_the_last_fields():
    (line,) = plain((9.0, 10, {"loss": 1.0}), (1.0, 10, {"loss": 1.0, "validation": 2.0}))
    assert line.endswith("done  loss 1  validation 2")


def test_time_left_forgets_the_compilation(monkeypatch):
    monkeypatch.setattr(module, "_WINDOW", 3)
    updates = [(100.0, 1, {})] + [(1.0, step, {}) for step in range(2, 8)]
    assert plain(*updates, total=20)[-1] == "35%  0:13 left"


def test_no_work_and_no_time():
    assert plain() == []
    assert plain((0.0, 1, {}), (0.0, 2, {})) == ["10%", "20%"]
    assert plain((1.0, 0, {}), total=0) == ["100%  done"]


@pytest.mark.parametrize(
    ("seconds", "face"),
    [(0, "0:00"), (59.6, "1:00"), (65, "1:05"), (3599.6, "1:00:00"), (90061, "25:01:01")],
)
def test_clock_face(seconds, face):
    assert _clock_face(seconds) == face


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_bar_on_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    stream, clock = Terminal(), Clock()
    with (
        pytest.raises(RuntimeError),
        Progress(1000, title="rte", stream=stream, clock=clock) as progress,
    ):
        clock.now += 2
        progress.title = "rte [mask]"
        progress.update(500, loss=0.25, score=81.2)
        progress._bar.refresh()
        raise RuntimeError
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert "rte [mask]" in shown and "━" in shown
    assert "50%  0:02 left  loss 0.25  score 81.2" in shown
    assert stream.getvalue().count("\n") <= 2  # drawn over itself, not line by line
    assert "\x1b[?25h" in stream.getvalue()  # the cursor is back, also after an error


def test_rich_is_not_imported_for_plain_lines():
    program = """
import io, sys
from hopfax.train.progress import Progress
with Progress(1, stream=io.StringIO()) as progress:
    progress.update(1)
assert "rich" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=60)
