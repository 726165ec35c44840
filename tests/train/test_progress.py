import io
import re
import sys

import numpy as np
import pytest

from hopfax.train import progress as module
from hopfax.train.progress import Progress


@pytest.fixture
def shown(monkeypatch, capsys):
    """Runs updates of (seconds since the last, done, fields); returns what is written."""

    def show(*updates, total=10, title=""):
        now = 100.0
        monkeypatch.setattr(module.time, "monotonic", lambda: now)
        with Progress(total) as progress:
            progress.title = title
            for seconds, done, fields in updates:
                now += seconds
                progress.update(done, **fields)
        return capsys.readouterr().err.splitlines()

    return show


def test_plain_line_has_title_share_time_left_and_fields(shown):
    fields = {"loss": np.float32(0.69314718), "n": np.int64(12345), "at": "best", "x": float("nan")}
    (line,) = shown((4.0, 1, fields), title="sst2 [CLS]", total=1000)
    assert line == "sst2 [CLS]  0%  1:06:36 left  loss 0.6931  n 12,345  at best  x nan"


@pytest.mark.parametrize(
    ("updates", "total", "expected"),
    [
        # Few lines, the first and the last among them.
        (
            [*((1.25, step, {}) for step in range(1, 10)), (1.0, 10, {"loss": 1.0})],
            10,
            ["10%  0:00:11 left", "50%  0:00:06 left", "90%  0:00:01 left", "100%  done  loss 1"],
        ),
        # The last line is printed once, with the last fields.
        ([(9.0, 10, {"n": 1}), (1.0, 10, {"n": 2})], 10, ["100%  done  n 2"]),
        # The time left of a resumed run leaves out earlier work.
        ([(1.0, 90, {"restart": True}), (10.0, 91, {})], 100, ["90%", "91%  0:01:30 left"]),
        ([], 10, []),
        ([(0.0, 1, {}), (0.0, 2, {})], 10, ["10%", "20%"]),
        ([(1.0, 0, {})], 0, ["100%  done"]),
    ],
)
def test_plain_lines(shown, updates, total, expected):
    assert shown(*updates, total=total) == expected


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_bar_on_a_terminal(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(RuntimeError), Progress(4) as progress:
        progress.title = "rte [mask]"
        progress.part(1, 2)(0.5, loss=0.25)
        progress._bar.refresh()
        raise RuntimeError
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert all(part in text for part in ("rte [mask]", "━", "50%", "loss 0.25"))
    assert text.count("\n") <= 2  # drawn over itself, not line by line
    assert "\x1b[?25h" in terminal.getvalue()  # the cursor is back, also after an error
