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


class OddError(Exception):
    """Not one a user can mend."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the stub."""

    budget: Literal["smoke", "laptop", "paper"] = "laptop"
    """Size of the run."""
    task: str = "fine"
    """What happens."""


def run(config):
    if config.task == "user":
        raise ValueError("beta is -1, wanted above 0: pass --beta 15")
    if config.task == "bug":
        raise OddError("odd")
    if config.task == "stop":
        raise KeyboardInterrupt
    if config.task == "full":
        raise OSError(28, "No space left on device")
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


def test_help_shows_fields_docs_and_docstring(stubs, capsys):
    assert command_line.main(["stub", "--help"], stubs) == 0
    out = capsys.readouterr().out
    assert "--budget {smoke,laptop,paper}" in out and "What happens." in out and "More words" in out


@pytest.mark.parametrize(
    ("name", "hint"), [("stbu", "did you mean stub"), ("qqqqqqq", "known: stub, stencil")]
)
def test_an_unknown_experiment_names_the_nearest(stubs, capsys, name, hint):
    assert command_line.main([name], stubs) == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--taks", "x"], ["--budget", "smole"]])
def test_an_unknown_flag_or_value_names_the_nearest(stubs, capsys, flags):
    assert command_line.main(["stub", *flags], stubs) == 2
    printed = capsys.readouterr()
    assert ("--task" in printed.err) if flags[0] == "--taks" else ("smoke" in printed.err)


def test_a_user_error_is_one_line_and_status_1(stubs, capsys):
    assert command_line.main(["stub", "--task", "user"], stubs) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: beta is -1, wanted above 0: pass --beta 15\n")
    assert "Traceback" not in err


def test_a_missing_extra_is_named(stubs, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tyro", None)
    assert command_line.main(["stub"], stubs) == 1
    assert 'tyro is missing: pip install -e ".[experiments]"' in capsys.readouterr().err


def test_a_full_disk_is_a_user_error(stubs, capsys):
    assert command_line.main(["stub", "--task", "full"], stubs) == 1
    assert "No space left" in capsys.readouterr().err


def test_debug_shows_where_a_user_error_was_raised(stubs, monkeypatch):
    monkeypatch.setenv("HOPFAX_DEBUG", "1")
    with pytest.raises(ValueError, match="beta is -1"):
        command_line.main(["stub", "--task", "user"], stubs)


def test_a_bug_keeps_its_traceback(stubs):
    with pytest.raises(Exception, match="odd"):
        command_line.main(["stub", "--task", "bug"], stubs)


def test_an_error_class_of_hopfax_counts_as_expected():
    error = type("CheckpointError", (Exception,), {"__module__": "hopfax.train.checkpoint"})
    assert command_line.is_expected(error("truncated"))
    assert not command_line.is_expected(KeyError("x"))


def test_an_interrupt_says_how_to_continue(stubs, capsys):
    assert command_line.main(["stub", "--task", "stop"], stubs) == 130
    assert "python -m experiments stub --task stop" in capsys.readouterr().err


def test_the_real_command_reports_its_status():
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "experiments", "robustnes"], cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 2 and "did you mean robustness?" in done.stderr
