import sys
from types import SimpleNamespace

import numpy as np
import pytest

from experiments import __main__ as command_line
from experiments import predict

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


@pytest.mark.parametrize(
    ("words", "status", "shown"),
    [
        (["stbu"], 2, ["did you mean stub"]),
        (["qqqqqqq"], 2, ["unknown experiment 'qqqqqqq': allowed: "]),
        (["stub", "--taks", "x"], 2, ["--task"]),
        (["stub", "--budget", "smole"], 2, ["smoke"]),
        (["stub", "--budget", "smoke"], 0, ["page: runs/smoke"]),
        (["stub", "--help"], 0, ["--budget {smoke,laptop,paper}", "What happens.", "More words"]),
    ],
)
def test_a_command_line_has_a_status_and_mistakes_have_a_hint(stubs, capsys, words, status, shown):
    assert command_line.main(words, stubs) == status
    printed = capsys.readouterr()
    assert all(each in printed.out + printed.err for each in shown)


@pytest.mark.parametrize(
    ("task", "status", "message"),
    [
        ("user", 1, "error: beta is -1, wanted above 0: pass --beta 15\n"),
        ("full", 1, "error: [Errno 28] No space left on device\n"),
        ("stop", 130, "\nstopped; trained models are kept. To go on, run:\n  python -m"),
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


def test_labels_of_pairs_have_the_range_over_seeds(monkeypatch, capsys):
    asked = []

    def model(*probabilities):
        def answer(texts):
            asked.extend(texts)
            return SimpleNamespace(probabilities=np.array([probabilities]))

        return SimpleNamespace(labels=("same", "other"), predict=answer)

    monkeypatch.setattr(predict, "load", lambda _: {1: model(0.5, 0.5), 2: model(0.0, 1.0)})
    predict.run(predict.Config(run="", texts=("a",), pair=("b",)))
    assert asked == [("a", "b")] * 2
    legend = "Probabilities: mean over seeds [lowest, highest]"
    lines = ["a | b", "  0.750 [0.500, 1.000] other", "  0.250 [0.000, 0.500] same"]
    assert capsys.readouterr().out.splitlines() == [legend, *lines]
    with pytest.raises(ValueError, match="pass one or more texts, or --save FOLDER"):
        predict.run(predict.Config(run="", texts=()))
