import io
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hopfax.train.progress import Progress, _clock_face

ROOT = Path(__file__).resolve().parents[2]


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def plain(*updates, total=10, **settings):
    """Lines printed for (seconds since the last, done, examples, fields)."""
    clock, stream = Clock(), io.StringIO()
    with Progress(total, stream=stream, clock=clock, **settings) as progress:
        for seconds, done, examples, fields in updates:
            clock.now += seconds
            progress.update(done, examples, **fields)
    return stream.getvalue().splitlines()


def test_plain_line_says_how_far_how_fast_and_how_long():
    lines = plain((4.0, 1, 8_000, {"loss": 0.69314718}), title="sst2 [CLS]", total=1000)
    assert lines == ["sst2 [CLS]  1/1,000 (0%)  2,000 examples/s  1:06:36 left  loss 0.6931"]


def test_plain_lines_are_few_but_first_and_last_are_there():
    lines = plain(*[(1.25, step, 10, {}) for step in range(1, 11)])
    assert [line.split("/")[0] for line in lines] == ["1", "5", "9", "10"]
    assert lines[-1] == "10/10 (100%)  8 examples/s  done"


def test_run_that_stops_early_still_shows_its_last_state():
    lines = plain((1.0, 1, 1, {}), (1.0, 2, 1, {}), (1.0, 3, 1, {}))
    assert [line.split("/")[0] for line in lines] == ["1", "3"]
    stream = io.StringIO()
    with pytest.raises(RuntimeError), Progress(9, stream=stream) as progress:
        progress.update(1, 1, loss=1)
        progress.update(2, 1, loss=7)
        raise RuntimeError
    assert "2/9" in stream.getvalue().splitlines()[-1]


def test_nothing_done_prints_nothing():
    assert plain() == []


def test_finished_line_is_printed_once_with_the_last_that_was_learned():
    assert len(plain((1.0, 10, 5, {}))) == 1
    (line,) = plain((9.0, 10, 5, {"loss": 1.0}), (1.0, 10, 0, {"loss": 1.0, "validation": 2.0}))
    assert line.endswith("done  loss 1  validation 2")


def test_resumed_steps_do_not_count_for_speed():
    (line,) = plain((2.0, 60, 100, {}), total=100, done=50)
    assert line == "60/100 (60%)  50 examples/s  0:08 left"


def test_speed_forgets_the_compilation():
    updates = [(100.0, 1, 10, {})] + [(1.0, step, 10, {}) for step in range(2, 8)]
    line = plain(*updates, total=20, window=3)[-1]
    assert line == "7/20 (35%)  10 examples/s  0:13 left"


def test_clock_that_stands_still_gives_no_speed():
    assert plain((0.0, 1, 10, {}), (0.0, 2, 10, {})) == ["1/10 (10%)", "2/10 (20%)"]


def test_fields_of_every_kind():
    (line,) = plain(
        (
            1.0,
            10,
            0,
            {"loss": np.float32(0.5), "n": np.int64(12345), "at": "best", "x": float("nan")},
        )
    )
    assert line.endswith("done  loss 0.5  n 12,345  at best  x nan")
    assert plain((1.0, 0, 0, {}), total=0) == ["0/0 (100%)  done"]


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
        Progress(1000, title="rte [mask]", stream=stream, clock=clock) as progress,
    ):
        clock.now += 2
        progress.update(500, 4000, loss=0.25, score=81.2)
        progress._bar.refresh()
        raise RuntimeError
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert "rte [mask]" in shown
    assert "━" in shown
    assert "500/1,000 (50%)  2,000 examples/s  0:02 left  loss 0.25  score 81.2" in shown
    assert stream.getvalue().count("\n") <= 2  # drawn over itself, not line by line
    assert "\x1b[?25h" in stream.getvalue()  # the cursor is back, also after an error


def test_rich_is_not_imported_for_plain_lines():
    program = """
import io, sys
from hopfax.train.progress import Progress
with Progress(1, stream=io.StringIO()) as progress:
    progress.update(1, 1)
assert "rich" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=60)
