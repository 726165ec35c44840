import subprocess
import sys
from pathlib import Path

import pytest

from experiments import __main__ as command_line

STUB = '''"""Stub (Nobody 2026): shows the command line; `stub --budget smoke`, 1.0, one second.

More words.
"""

import dataclasses
from pathlib import Path
from typing import Literal

REPRODUCES = "Table 0 of nothing"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the stub."""

    budget: Literal["smoke", "laptop", "paper"] = "laptop"
    """Size of the run."""
    task: str = "fine"
    """What happens."""


ERRORS = {
    "user": ValueError("beta is -1, wanted above 0: pass --beta 15"),
    "bug": RuntimeError("odd"),
    "stop": KeyboardInterrupt(),
    "full": OSError(28, "No space left on device"),
}


def run(config):
    if config.task in ERRORS:
        raise ERRORS[config.task]
    return Path("runs") / config.budget
'''


@pytest.fixture
def stubs(tmp_path, monkeypatch):
    (tmp_path / "stub_experiment.py").write_text(STUB)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("HOPFAX_DEBUG", raising=False)
    yield {"stub": "stub_experiment", "stencil": "stub_experiment"}
    sys.modules.pop("stub_experiment", None)


def test_without_a_name_every_experiment_is_listed_but_not_imported(stubs, capsys):
    assert command_line.main([], stubs) == 0
    out = capsys.readouterr().out
    assert "Table 0 of nothing" in out and "Stub (Nobody 2026)" in out and "stencil" in out
    assert "stub_experiment" not in sys.modules


def test_a_run_gets_its_flags_and_says_where_the_page_is(stubs, capsys):
    assert command_line.main(["stub", "--budget", "smoke"], stubs) == 0
    assert "page: runs/smoke" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "hint"), [("stbu", "did you mean stub"), ("qqqqqqq", "known: stub, stencil")]
)
def test_an_unknown_experiment_names_the_nearest(stubs, capsys, name, hint):
    assert command_line.main([name], stubs) == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "status", "shown"),
    [
        (["--taks", "x"], 2, ["--task"]),
        (["--budget", "smole"], 2, ["smoke"]),
        (["--help"], 0, ["--budget {smoke,laptop,paper}", "What happens.", "More words"]),
    ],
)
def test_help_has_fields_and_docstrings_and_wrong_flags_a_hint(stubs, capsys, flags, status, shown):
    assert command_line.main(["stub", *flags], stubs) == status
    printed = capsys.readouterr()
    assert all(words in printed.out + printed.err for words in shown)


@pytest.mark.parametrize(
    ("task", "status", "message"),
    [
        ("user", 1, "error: beta is -1, wanted above 0: pass --beta 15\n"),
        ("full", 1, "error: [Errno 28] No space left on device\n"),
        ("stop", 130, "\nstopped; finished work is kept. To resume, run:\n  python -m experiments"),
    ],
)
def test_an_expected_error_is_one_line_and_a_status(stubs, capsys, task, status, message):
    assert command_line.main(["stub", "--task", task], stubs) == status
    err = capsys.readouterr().err
    assert err.startswith(message) and "Traceback" not in err


@pytest.mark.parametrize(("task", "debug"), [("bug", "0"), ("user", "1")])
def test_a_bug_and_debugging_keep_the_traceback(stubs, monkeypatch, task, debug):
    monkeypatch.setenv("HOPFAX_DEBUG", debug)
    with pytest.raises((RuntimeError, ValueError), match=r"odd|beta is -1"):
        command_line.main(["stub", "--task", task], stubs)


def test_a_missing_extra_is_named(stubs, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tyro", None)
    assert command_line.main(["stub"], stubs) == 1
    assert 'tyro is missing: pip install -e ".[experiments]"' in capsys.readouterr().err


def test_an_error_class_of_hopfax_counts_as_expected():
    error = type("CheckpointError", (Exception,), {"__module__": "hopfax.train.checkpoint"})
    assert command_line.is_expected(error("truncated"))


def test_the_real_command_reports_its_status():
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "experiments", "robustnes"], cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 2 and "did you mean robustness?" in done.stderr
