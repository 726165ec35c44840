"""The leading indicator: the target function's stability, times of fall, and verdicts."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from experiments.noise_stability import grokking, indicator


@pytest.mark.parametrize(("classes", "tokens", "relevant"), [(3, 8, 2), (2, 3, 3)])
def test_the_stability_of_a_target_function_is_exact(classes, tokens, relevant):
    """Every noisy copy of one input; tokens from `classes` on are no numbers."""
    outputs = {
        y: np.eye(classes)[sum(y) % classes] if max(y) < classes else np.full(classes, 1 / classes)
        for y in product(range(tokens), repeat=relevant)
    }
    kept, first = (1 + 0.5) / 2, (1,) * relevant
    odds = [np.prod(kept * (np.array(y) == first) + (1 - kept) / tokens) for y in outputs]
    expected = np.dot(odds, np.stack([*outputs.values()]) @ outputs[first])
    assert indicator.target_stability(classes, relevant, rho=0.5) == pytest.approx(expected)


def test_leads_and_costs_are_those_of_hand_made_curves():
    """The second run never reaches the target; its validation loss only rises."""
    loss = np.stack([[4.0, 5, 6, 3.5, 2], [1, 2, 3, 4, 5]], axis=1)
    history = SimpleNamespace(loss=loss, confidence=np.ones((5, 2)))
    history.agreement = np.array([[1, 0.9, 0.7, 0.5, 0.4]] * 2).T
    history.train_loss = np.array([[4, 2, 1, 1, 1]] * 2).T
    history.accuracy = np.array([[0, 0.1, 0.2, 0.9, 1]] * 2).T
    history.train_accuracy = np.array([[0, 0, 1, 1, 1]] * 2).T
    found = indicator.measurements(history, 0.6, np.array([4, np.inf]))
    assert [round(each[0], 9) for each in found.values()] == [75, 25, -25, 0, 20, -10, 80, 0]
    assert np.isnan([each[1] for each in found.values()]).tolist() == [True] * 6 + [False] * 2


def test_an_interval_decides_and_two_seeds_have_none():
    table = pd.DataFrame({"task": "t", "model": "m", "seed": [*range(3)], "metric": "lead"})
    lead = table.assign(score=[20.0, 22, 24])
    cost = table.assign(metric="cost of lowest", score=[4.0, 4.1, 4.2])
    assert indicator.claims(pd.concat([lead, cost])).verdict.tolist() == ["holds", "does not hold"]
    assert indicator.claims(lead[:2]).verdict.tolist() == ["n/a"]


def test_a_flag_of_another_task_is_named():
    grokking.resolved(grokking.Config(task=("grokking",), modulus=7))
    with pytest.raises(ValueError, match="--modulus requires --task addition, got parity"):
        grokking.resolved(grokking.Config(task=("parity",), modulus=7))
