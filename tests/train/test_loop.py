import re
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from hopfax.train.checkpoint import Checkpoints
from hopfax.train.evaluate import make_predictor, predict
from hopfax.train.loop import DivergedError, fit
from hopfax.train.metrics import MetricsLog
from hopfax.train.objectives import classification
from hopfax.train.state import adamw, seed_keys

MODEL = tiny.bag()
OBJECTIVE = classification(MODEL)
buckets = partial(tiny.buckets, boundaries=(12,))
ROWS = {"train": buckets(24), "validation": buckets(16, seed=1)}
STEPS = 6  # an epoch
OPTIMIZER = cache(partial(adamw, 0.05))
predictor = cache(make_predictor)

pytestmark = pytest.mark.usefixtures("compiled_once")


def run(*, model=MODEL, objective=OBJECTIVE, seeds=(23, 42), score=tiny.accuracy, **changes):
    options = {"epochs": 3, "optimizer": OPTIMIZER, "batch_size": 4} | ROWS | changes
    return fit(predictor(model), objective, score=score, seeds=seeds, **options)


def scripted(*scores):
    """A `score` that returns these scores in sequence, and the list of the logits it received."""
    received, left = [], iter(scores)

    def score(logits, labels):
        assert np.array_equal(labels, tiny.encoded(16, seed=1).labels)
        received.append(logits)
        return next(left)

    return score, received


def test_training_learns():
    assert (run(epochs=12).scores > run(epochs=1).scores).all()


def test_seeds_stop_independently_and_keep_their_best():
    # Epochs 1 to 3 score both seeds, 4 and 5 seed 42 only; then both have stopped.
    # Seed 42 improves after an epoch without improvement, which resets its patience.
    score, received = scripted(5, 1, 4, 0, 3, 3, 2, 2.5)
    result = run(score=score, epochs=9, patience=2)
    assert len(received) == 8
    assert result.scores.tolist() == [5, 3] and result.epochs.tolist() == [1, 3]
    assert result.steps == 5 * STEPS
    predicted = predict(predictor(MODEL), result.params, ROWS["validation"])
    np.testing.assert_allclose(predicted.logits, [received[0], received[5]], rtol=1e-6)
    # The first of equal epochs is kept, and nan never is.
    result = run(score=scripted(1, float("nan"), 1, 0, 1, 0)[0])
    assert result.epochs.tolist() == [1, 2] and result.scores.tolist() == [1, 0]


def test_everything_is_logged_and_reported(tmp_path):
    score, _ = scripted(5, 1, 4, 2, 3, 3)
    reports = []
    with MetricsLog(tmp_path / "m.jsonl") as log:
        run(score=score, patience=2, log=log, on_progress=lambda *a, **b: reports.append((*a, b)))
    lines = tiny.records(tmp_path / "m.jsonl")
    steps, epochs = ([line for line in lines if name in line] for name in ("loss", "validation"))
    assert [(line["step"], line["epoch"]) for line in steps] == [
        (step, 1 + (step - 1) // STEPS) for step in range(2, 3 * STEPS + 1, 2)
    ]
    assert all({"task", "esr", "num_steps", "gradient_norm"} < line.keys() for line in steps)
    assert [(line["step"], line["epoch"]) for line in epochs] == [(6, 1), (12, 2), (18, 3)]
    assert [line["validation"] for line in epochs] == [[5, 1], [4, 2], [3, 3]]
    assert [line["best"] for line in epochs] == [[5, 1], [5, 2], [5, 3]]
    shares = [share for share, fields in reports if "validation" in fields]
    assert reports[0][0] == 0 and shares == [1 / 3, 2 / 3, 1]


def test_progress_is_shown_by_default(capsys):
    run(epochs=1, on_progress=lambda *_, **__: None)
    assert capsys.readouterr() == ("", "")
    run(epochs=1)
    assert re.fullmatch(r"0%\n(.+\n)*100%  done  validation \S+\n", capsys.readouterr().err)


@cache
def breaking(seed, step, value):
    """An objective whose loss and gradient are not finite for one seed at one step (from 0)."""
    # The step's key derives from both.
    (key,) = seed_keys([seed])
    wrong = jax.random.key_data(jax.random.fold_in(jax.random.fold_in(key, 2**31), step))

    def objective(params, batch, key):
        loss, parts = OBJECTIVE(params, batch, key)
        breaks = jnp.all(jax.random.key_data(key) == wrong)
        return loss * jnp.where(breaks, value, 1.0), parts

    return objective


@pytest.mark.parametrize(("interval", "good"), [(0.0, 2 * STEPS + 2), (1e6, 2 * STEPS)])
def test_divergence_names_step_seed_and_the_last_finite_checkpoint(tmp_path, interval, good):
    with (
        MetricsLog(tmp_path / "m.jsonl") as log,
        Checkpoints(tmp_path, config={}, interval=interval) as checkpoints,
    ):
        with pytest.raises(DivergedError) as error:
            run(objective=breaking(42, 2 * STEPS + 3, np.nan), checkpoints=checkpoints, log=log)
        assert f"at step {2 * STEPS + 4}, seed 42" in str(error.value)
        assert f"step {good} in {tmp_path / 'checkpoints' / str(good)}" in str(error.value)
        assert "loss nan" in str(error.value)
        # Without the fault, the run continues to the same result.
        assert tiny.same_bits(run(checkpoints=checkpoints, log=log), run())
    steps = [line["step"] for line in tiny.records(tmp_path / "m.jsonl") if "loss" in line]
    assert steps == list(range(2, 3 * STEPS + 1, 2))


def test_an_update_that_diverges_at_the_end_of_an_epoch_is_an_error():
    step = partial(optax.sgd, 1e38)  # its loss and gradient, from before the update, are finite
    with pytest.raises(DivergedError, match="logits are not finite after step 1, seed 23"):
        run(optimizer=lambda total_steps: step(), batch_size=24)


def test_a_stopped_seed_may_diverge_and_keeps_its_result(tmp_path):
    alone = run(seeds=(23,), score=scripted(2, 1, 1)[0], epochs=5, patience=2)
    score, objective = scripted(2, 1, 1, 2, 1, 3, 4, 5)[0], breaking(23, 3 * STEPS + 1, np.nan)
    with MetricsLog(tmp_path / "m.jsonl") as log:
        both = run(score=score, objective=objective, epochs=5, patience=2, log=log)
    assert (alone.steps, both.steps) == (3 * STEPS, 5 * STEPS)
    assert both.epochs.tolist() == [1, 5]
    tiny.assert_close(tiny.take(alone.params, 0), tiny.take(both.params, 0), rtol=1e-5, atol=1e-6)
    lines = tiny.records(tmp_path / "m.jsonl")
    assert [line["validation"] for line in lines if "best" in line][3:] == [[None, 4], [None, 5]]
    assert [line["loss"][0] for line in lines if "loss" in line][-1] is None
