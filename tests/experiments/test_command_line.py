"""The command line, and flags: budgets fill what is left out, values are checked once."""

import sys
from types import SimpleNamespace

import pytest
import tyro

from experiments import __main__ as command_line
from experiments.robertha.suites import Hyperparameters, Typos
from experiments.robertha.suites import Robustness as Config
from experiments.settings import BUDGETS, EMBEDDED_LAPTOP, Data, Encoders, Noise, Training, resolved

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


def test_threads_of_a_write_that_failed_are_silent(monkeypatch):
    monkeypatch.setattr(sys, "__unraisablehook__", pytest.fail)
    command_line.quiet(SimpleNamespace(exc_value="Event loop is closed"))


def test_a_missing_extra_is_named(stubs, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tyro", None)
    assert command_line.main(["stub"], stubs) == 1
    assert 'tyro is missing: pip install -e ".[experiments]"' in capsys.readouterr().err


OWN = {"dev": "d.csv", "text": "review", "label": "stars"}


def test_the_budget_fills_what_is_left_out():
    filled = resolved(Config(data=Data(task=("sst2",)), training=Training(epochs=2)))
    laptop = BUDGETS["laptop"]
    assert (filled.training.epochs, filled.training.seeds) == (2, laptop.seeds)
    assert filled.noise.noise_draws == laptop.noise_draws
    assert resolved(Config()).training.learning_rate == EMBEDDED_LAPTOP.learning_rate
    for rate in (None, 1e-4):
        tuned = Config(encoder=Encoders(pretrained="f"), training=Training(learning_rate=rate))
        assert resolved(tuned).training.learning_rate == rate
    own = resolved(Config(data=Data(train="data/films.csv", **OWN)))
    assert own.data.task == ("films",) and own.training.width == laptop.width


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"training": Training(epochs=0)}, "--epochs must be >= 1, got 0"),
        ({"training": Training(seeds=(1, 1))}, r"--seeds requires one or more distinct values"),
        ({"training": Training(learning_rate=float("nan"))}, "--learning-rate must be > 0"),
        ({"data": Data(max_length=4)}, r"--max-length must be in \[5, 8192\], got 4"),
        ({"data": Data(pair="b")}, "set together; missing: --train, --dev, --text, --label"),
        ({"data": Data(train="SST-2.tsv", **OWN)}, "--train must not have a task's name.*: SST-2"),
        ({"data": Data(train="=cmd|\udce9.csv", **OWN)}, r"=\+-@ first: =cmd\|\?"),
        ({"noise": Noise(levels=(-1.0,))}, "--levels must be > 0 and finite, got -1.0"),
        ({"encoder": Encoders(esr_target=-1.0)}, "--esr-target must be >= 0 and finite, got -1.0"),
    ],
)
def test_wrong_values_are_refused_by_flag(flags, message):
    with pytest.raises(ValueError, match=message):
        resolved(Config(**flags))


def test_a_smoke_run_shortens_only_lists_that_were_left_out():
    def smoke(*flags):
        arguments = ["--budget", "smoke", *flags]
        parsed = tyro.cli(Typos, args=arguments, config=(tyro.conf.OmitArgPrefixes,))
        filled = resolved(parsed, Typos.DEFAULTS)
        return filled.rates, filled.texts

    assert smoke() == ((0.1,), 4)
    assert smoke("--rates", "0.2", "0.3", "--texts", "9") == ((0.2, 0.3), 9)
    assert len(Hyperparameters().names()) == 19
    assert Hyperparameters(budget="smoke").names() == ("robertha", "robertha-esr-target-0.1")
    named = Hyperparameters(budget="smoke", model=("robertha-beta-1",))
    assert named.names() == ("robertha-beta-1",)
