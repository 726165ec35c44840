import io
import re
import sys

import pytest

from hopfax.train import progress as module
from hopfax.train.progress import Progress


@pytest.fixture
def shown(monkeypatch, capsys):
    """Runs updates of (seconds since the last, done, fields); returns what is written."""

    def show(*updates, total):
        now = 100.0
        monkeypatch.setattr(module.time, "monotonic", lambda: now)
        with Progress(total) as progress:
            for seconds, done, fields in updates:
                now += seconds
                progress.update(done, **fields)
        return capsys.readouterr().err.splitlines()

    return show


TEN = [*((1.25, step, {}) for step in range(1, 10)), (1.0, 10, {"loss": 1.0})]
RESTARTED = [(1.0, 90, {"restart": True}), (10.0, 91, {}), (5.0, 92, {})]


@pytest.mark.parametrize(
    ("updates", "total", "expected"),
    [
        # Few lines, the first and the last among them.
        (TEN, 10, ["10%", "50%  0:00:06 left", "90%  0:00:01 left", "100%  done  loss 1"]),
        # The time left leaves out earlier work and the first update, which compiles.
        (RESTARTED, 100, ["90%", "91%", "92%  0:00:40 left"]),
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
        progress.update(2, loss=0.25)
        progress._bar.refresh()
        raise RuntimeError
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert all(part in text for part in ("rte [mask]", "━", "50%", "loss 0.25"))
    assert text.count("\n") <= 2  # drawn over itself, not line by line
    assert "\x1b[?25h" in terminal.getvalue()  # the cursor is back, also after an error
