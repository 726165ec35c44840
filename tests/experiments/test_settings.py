"""Flags: budgets fill what is left out, values are checked once, help is honest and quick."""

import subprocess
import sys
from pathlib import Path

import pytest

from experiments.__main__ import EXPERIMENTS
from experiments.robertha.robustness import Config
from experiments.settings import BUDGETS, EMBEDDED_LAPTOP, Data, Noise, Training, resolved

ROOT = Path(__file__).resolve().parents[2]


def test_the_budget_fills_what_is_left_out():
    given = resolved(Config(data=Data(task=("sst2",)), training=Training(epochs=2)))
    laptop = BUDGETS["laptop"]
    assert (given.training.epochs, given.training.seeds) == (2, laptop.seeds)
    assert (given.noise.noise_draws, given.data.vocab_size) == (
        laptop.noise_draws,
        laptop.vocab_size,
    )
    synthetic = resolved(Config())
    assert synthetic.training.learning_rate == EMBEDDED_LAPTOP.learning_rate
    assert resolved(Config(budget="paper")).training.epochs == 30


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"training": Training(epochs=0)}, "--epochs must be >= 1, got 0"),
        ({"training": Training(seeds=(1, 1))}, r"--seeds requires one or more distinct values"),
        ({"training": Training(seeds=())}, r"--seeds requires one or more distinct values"),
        ({"training": Training(learning_rate=float("nan"))}, "--learning-rate must be > 0"),
        ({"data": Data(max_length=4)}, r"--max-length must be in \[5, 8192\], got 4"),
        ({"noise": Noise(levels=(-1.0,))}, "--levels must be >= 0 and finite, got -1.0"),
    ],
)
def test_wrong_values_are_refused_by_flag(flags, message):
    with pytest.raises(ValueError, match=message):
        resolved(Config(**flags))


@pytest.mark.parametrize("name", ["robustness", "grokking"])
def test_help_shows_what_the_budgets_take_and_loads_no_jax(name):
    code = f"""
import sys
from experiments.__main__ import main
main([{name!r}, "--help"])
assert "jax" not in sys.modules, "jax is imported"
"""
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert EXPERIMENTS[name]
    if name == "robustness":
        words = " ".join(found.stdout.replace("│", " ").split())
        assert "2e-05 (paper)" in words
        assert "training options" in found.stdout
