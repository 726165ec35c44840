"""Flags: budgets fill what is left out, values are checked once, help is quick."""

import pytest
import tyro

from experiments.robertha.suites import Hyperparameters, Typos
from experiments.robertha.suites import Robustness as Config
from experiments.settings import BUDGETS, EMBEDDED_LAPTOP, Data, Encoders, Noise, Training, resolved

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
