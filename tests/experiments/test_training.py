"""Training of the stability regularizer's runs, and the language model's measurements."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from experiments import tidy
from experiments.noise_stability import grokking, language_model, outcomes, training


def test_baselines_guess_the_commonest_word_and_follower():
    train = np.array([[1, 2, 3, 1, 2, 3, 1]]), np.array([[2, 3, 1, 2, 3, 1, 1]])
    test = np.array([[1, 2, 3, 0]]), np.array([[2, 3, 1, 1]])  # 0 is unseen
    splits = {"train": train, "validation": test, "test": test}
    rows = {name: SimpleNamespace(ids=ids, labels=labels) for name, (ids, labels) in splits.items()}
    guesses = language_model.guesses([SimpleNamespace(vocabulary="-abc", **rows)])
    accuracy = guesses[guesses.split == "test"].set_index("guess").accuracy.to_dict()
    assert accuracy == {"commonest word": 50, "commonest follower": 100}


def test_the_plateau_and_the_target_are_of_the_validation_rows(tmp_path):
    """As in Appendix J.1; the training loss falls throughout."""
    setting = replace(grokking.BUDGETS["smoke"].settings["addition"], epochs=40, plateau=True)
    problem = grokking.make_problem("addition", setting, np.arange(2))
    history, _ = training.train_arm(tmp_path, grokking.make_arm(problem, setting, "baseline"))
    plateau, scales = training.PLATEAU.init(None), []
    for loss in history.loss[:, 0]:
        scales.append(float(plateau.scale))
        _, plateau = training.PLATEAU.update({}, plateau, value=loss)
    np.testing.assert_allclose(history.scale[:, 0], scales, rtol=1e-6)
    assert scales[-1] < 1
    assert np.isinf(problem.reached(history._replace(train_accuracy=np.ones((40, 2))))).all()


def test_the_penalty_raises_agreement_and_its_negative_lowers_it(tmp_path):
    setting = replace(grokking.BUDGETS["smoke"].settings["addition"], epochs=30, gamma=1.0)
    problem, ends = grokking.make_problem("addition", setting, np.arange(2)), []
    for name in ("stability_reg-negative", "stability_reg"):
        history, _ = training.train_arm(tmp_path, grokking.make_arm(problem, setting, name))
        assert ((history.agreement > 0) & (history.agreement <= 1)).all()
        ends.append(history.agreement[-1].mean())
    assert ends == sorted(ends)


def test_a_run_has_the_steps_and_the_compute_of_every_arm(tmp_path, monkeypatch):
    history = training.Epoch(*np.tile(np.linspace(0.1, 1, 10)[:, None], (7, 1, 3)))
    monkeypatch.setattr(training, "train_arm", lambda *_: (history, {}))
    folder = grokking.run(grokking.Config(budget="smoke", seeds=3, runs=str(tmp_path)))
    steps = tidy.select(tidy.read(folder), metric="steps")
    baseline, arm = (tidy.select(steps, model=name) for name in ("baseline", "stability_reg"))
    assert baseline.score.tolist() == [30] * 3 and (arm.horizon == 30).all()
    assert (baseline.rows_per_step == 5).all() and (arm.rows_per_step == 10).all()
    np.testing.assert_allclose(outcomes.saved(arm, baseline), 0)
    np.testing.assert_allclose(outcomes.saved(arm, baseline, compute=True), -100)
    table = outcomes.page(folder, "").tables[0]
    assert table.rows[1][1:] == ["3 of 3", "30 [30, 30]", "0 [0, 0]", "−100 [−100, −100]"]
