import sys

import pytest

from experiments import __main__ as command_line

STUB = '''"""Stub (Nobody 2026): shows the command line."""

import dataclasses
from pathlib import Path
from typing import Literal

REPRODUCES = "Table 0 of nothing"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    budget: Literal["smoke", "laptop", "paper"] = "laptop"
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


@pytest.mark.parametrize(
    ("words", "status", "shown"),
    [
        (["stbu"], 2, ["did you mean stub"]),
        (["qqqqqqq"], 2, ["unknown experiment 'qqqqqqq': allowed: "]),
        (["stub", "--taks", "x"], 2, ["--task"]),
        (["stub", "--budget", "smole"], 2, ["smoke"]),
        (["stub", "--budget", "smoke"], 0, ["page: runs/smoke"]),
        (["stub", "--task", "user"], 1, ["error: beta is -1, wanted above 0: pass --beta 15\n"]),
        (["stub", "--task", "full"], 1, ["error: [Errno 28] No space left on device\n"]),
        (["stub", "--task", "stop"], 130, ["\nstopped; trained models are kept."]),
        (["stub", "--help"], 0, ["--budget {smoke,laptop,paper}", "What happens."]),
    ],
)
def test_a_command_line_has_a_status_and_mistakes_have_a_hint(stubs, capsys, words, status, shown):
    assert command_line.main(words, stubs) == status
    printed = capsys.readouterr()
    assert all(each in printed.out + printed.err for each in shown)
    assert "Traceback" not in printed.err


def test_a_bug_and_debugging_keep_the_traceback(stubs, monkeypatch):
    for task, debug in (("bug", "0"), ("user", "1")):
        monkeypatch.setenv("HOPFAX_DEBUG", debug)
        with pytest.raises((RuntimeError, ValueError), match=r"odd|beta is -1"):
            command_line.main(["stub", "--task", task], stubs)


def test_a_missing_extra_is_named(stubs, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tyro", None)
    assert command_line.main(["stub"], stubs) == 1
    assert 'tyro is missing: pip install -e ".[experiments]"' in capsys.readouterr().err
