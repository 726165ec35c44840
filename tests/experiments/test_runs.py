"""Many runs in one program: the same as one by one, as by hand, and as uninterrupted."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.noise_stability import runs
from experiments.noise_stability.cells import Problem, run_cell
from experiments.noise_stability.program import MEASURED_RHO, Dials, Recipe, Rows
from experiments.noise_stability.runs import train_runs
from hopfax.data import sparse_parity
from hopfax.nn import decoder
from hopfax.stability import bonami_beckner_pair
from hopfax.train.checkpoint import Checkpoints
from hopfax.train.loop import DivergedError

SEEDS = np.array([3, 5])
MODEL = decoder(3, 2, width=4, num_layers=1, num_heads=1, ff_width=4)
STILL = decoder(3, 2, width=4, num_layers=1, num_heads=1, ff_width=4, dropout=0.0)
PLAIN = Recipe(batch_size=8, monitor=None)


def rows(split, seeds=SEEDS):
    sets = [
        sparse_parity(
            int(seed),
            num_bits=5,
            num_relevant=1,
            noise=0,
            num_train=16,
            num_validation=8,
            num_test=8,
        )
        for seed in seeds
    ]
    parts = [getattr(each, split) for each in sets]
    return Rows(
        jnp.stack([part.ids[:, 0] for part in parts]), jnp.stack([part.labels for part in parts])
    )


def train(recipe=PLAIN, dials=None, *, model=MODEL, seeds=SEEDS, **options):
    options = {"epochs": 4, "epochs_per_call": 2, "target": 1.1} | options
    return train_runs(
        model,
        recipe,
        dials or Dials(learning_rate=1e-2),
        rows("train", seeds),
        rows("validation", seeds),
        seeds=seeds,
        num_tokens=3,
        **options,
    )


@pytest.fixture(scope="module")
def plain():
    return train()


def test_runs_side_by_side_are_runs_by_themselves(plain):
    history, params = plain
    assert history.loss.shape == (4, 2)
    alone, own = train(seeds=SEEDS[1:])
    for together, apart in zip(history, alone, strict=True):
        np.testing.assert_allclose(together[:, 1], apart[:, 0], rtol=1e-4, atol=1e-6)
    for together, apart in zip(jax.tree.leaves(params), jax.tree.leaves(own), strict=True):
        np.testing.assert_allclose(together[1], apart[0], rtol=1e-3, atol=1e-5)


def test_arms_are_paired(plain):
    """Without weight the penalty changes nothing: same rows, same dropout, same start."""
    dials = Dials(learning_rate=1e-2, gamma=np.array([0.0, 2.0]), rho=0.2)
    history, _ = train(PLAIN._replace(penalized=True), dials)
    np.testing.assert_allclose(history.train_loss[:, 0], plain[0].train_loss[:, 0], rtol=1e-5)
    assert not np.allclose(history.train_loss[:, 1], plain[0].train_loss[:, 1], rtol=1e-3)


def test_steps_are_adamw_by_hand():
    """Four steps over all rows, so that neither their order nor a key matters."""
    recipe = PLAIN._replace(batch_size=16)
    dials = Dials(learning_rate=1e-2, weight_decay=0.5)
    history, params = train(recipe, dials, model=STILL, epochs=4)
    optimizer = optax.adamw(1e-2, weight_decay=0.5)
    for run, seed in enumerate(SEEDS):
        expected = STILL.init(jax.random.key(int(seed)))
        state = optimizer.init(expected)
        batch = jax.tree.map(lambda part, run=run: part[run], rows("train"))

        def loss(params, batch=batch):
            log_probs = jax.nn.log_softmax(STILL.bind(params)(batch.ids))
            return -jnp.mean(log_probs[jnp.arange(16), batch.labels])

        for epoch in range(4):
            value, gradient = jax.value_and_grad(loss)(expected)
            np.testing.assert_allclose(history.train_loss[epoch, run], value, rtol=1e-3)
            updates, state = optimizer.update(gradient, state, expected)
            expected = optax.apply_updates(expected, updates)
        for found, wanted in zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True):
            # Where a gradient is all but 0, Adam's steps are its sign: a coin's toss.
            close = np.abs(found[run] - wanted) < 1e-4
            assert close.mean() > 0.75


def test_what_is_measured_by_hand():
    """At a learning rate of 0 the parameters are still those of the start."""
    dials = Dials(learning_rate=0.0, input_dropout=0.9)
    history, _ = train(dials=dials, model=STILL, epochs=2)
    rows_here, seen = rows("validation"), rows("train")
    for run, seed in enumerate(SEEDS):
        key = jax.random.key(int(seed))
        network = STILL.bind(STILL.init(key))
        _, noisy = bonami_beckner_pair(
            jax.random.split(jax.random.fold_in(key, 2**31), 3)[2],
            rows_here.ids[run],
            rho=MEASURED_RHO,
            num_tokens=3,
        )
        logits = network(rows_here.ids[run])
        probs, noisy_probs = jax.nn.softmax(logits), jax.nn.softmax(network(noisy))
        expected = {
            "accuracy": np.mean(np.argmax(logits, -1) == rows_here.labels[run]),
            "train_accuracy": np.mean(
                np.argmax(network(seen.ids[run, :8]), -1) == seen.labels[run, :8]
            ),
            "agreement": np.mean(np.sum(probs * noisy_probs, -1)),
            "confidence": np.mean(np.sum(probs**2, -1)),
            "loss": -np.mean(np.log(probs[np.arange(8), rows_here.labels[run]])),
        }
        for name, value in expected.items():
            np.testing.assert_allclose(getattr(history, name)[:, run], value, rtol=1e-5)


@pytest.mark.parametrize("monitor", ["train", "validation"])
def test_a_plateau_lowers_the_rate(plain, monitor):
    """Nothing is learned at a rate of 0: of a full batch, no epoch after the first is better."""
    recipe = Recipe(batch_size=16, monitor=monitor, patience=2, factor=0.5)
    history, _ = train(recipe, Dials(learning_rate=0.0), model=STILL, epochs=6)
    # The first epoch is the best one; after two more the rate is halved, and the count begins anew.
    assert history.scale.tolist() == [[scale] * 2 for scale in (1, 1, 1, 0.5, 0.5, 0.25)]
    assert np.all(plain[0].scale == 1), "no schedule where nothing is watched"


def test_training_stops_when_all_have_arrived():
    history, _ = train(epochs=100, target=0.0)
    assert len(history.loss) == 2, "one call"
    assert history.reached(0.0).tolist() == [1, 1]
    assert history.reached(1.1).tolist() == [np.inf, np.inf]
    assert history.reached(1.1, "train").tolist() == [np.inf, np.inf]


def test_a_broken_off_arm_continues_to_the_same_bits(plain, tmp_path, monkeypatch):
    check = runs._check_finite

    def killed(measured, done, seeds):
        check(measured, done, seeds)
        if done == 2:
            raise KeyboardInterrupt

    def once():
        with Checkpoints(tmp_path, config={}) as checkpoints:
            return train(checkpoints=checkpoints, checkpoint_seconds=-1.0)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(runs, "_check_finite", killed)
        once()
    history, params = once()
    for found, wanted in zip(
        jax.tree.leaves((history, params)), jax.tree.leaves(plain), strict=True
    ):
        assert np.asarray(found).tobytes() == np.asarray(wanted).tobytes()


def test_a_loss_that_is_not_finite_is_named():
    with pytest.raises(DivergedError, match=r"run 1 \(seed 5\) is not finite in epoch [12]\."):
        train(dials=Dials(learning_rate=np.array([1e-3, np.inf])), model=STILL)


def test_a_batch_beyond_the_rows_is_refused():
    with pytest.raises(ValueError, match=r"batch_size must be in \[1, 16\].*17"):
        train(PLAIN._replace(batch_size=17))


@pytest.mark.parametrize(
    ("changes", "passes"),
    [({}, 1), ({"penalized": True}, 2), ({"penalized": True, "share": 0.25, "every": 2}, 1.125)],
)
def test_the_cost_of_a_recipe(changes, passes):
    assert PLAIN._replace(**changes).passes == passes


def test_a_finished_arm_is_read_again(tmp_path, monkeypatch):
    problem = Problem(
        name="parity",
        model=MODEL,
        train=rows("train"),
        validation=rows("validation"),
        test=rows("test"),
        seeds=SEEDS,
        num_tokens=3,
        epochs=2,
        target=0.0,
    )
    cell = run_cell(tmp_path, problem, "an-arm", PLAIN, Dials(), epochs_per_call=1)
    assert cell.steps.tolist() == [2, 2]
    assert cell.passes_per_step == 8
    assert cell.final["test_accuracy"].shape == (2,)
    monkeypatch.setattr("experiments.noise_stability.cells.train_runs", None)
    again = run_cell(tmp_path, problem, "an-arm", PLAIN, Dials(), epochs_per_call=1)
    assert again.history.loss.tolist() == cell.history.loss.tolist()
    assert again.final["test_accuracy"].tolist() == cell.final["test_accuracy"].tolist()
    assert [path.name for path in (tmp_path / "cells").iterdir()] == ["parity-an-arm.npz"]
    with pytest.raises(ValueError, match=r"other settings(.|\n)*gamma"):
        run_cell(tmp_path, problem, "an-arm", PLAIN, Dials(gamma=1.0), epochs_per_call=1)
    other = problem._replace(train=problem.validation)
    with pytest.raises(ValueError, match=r"other settings(.|\n)*rows"):
        run_cell(tmp_path, other, "an-arm", PLAIN, Dials(), epochs_per_call=1)
