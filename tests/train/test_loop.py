from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from hopfax.train.checkpoint import CheckpointError, Checkpoints
from hopfax.train.evaluate import make_predictor, predict
from hopfax.train.loop import DivergedError, fit
from hopfax.train.metrics import MetricsLog, read_metrics
from hopfax.train.objectives import classification
from hopfax.train.state import adamw, seed_keys

MODEL = tiny.bag()
OBJECTIVE = classification(MODEL)
TRAIN, VALIDATION = tiny.buckets(24, boundaries=(12,)), tiny.buckets(16, seed=1, boundaries=(12,))
STEPS = 6  # an epoch
OPTIMIZER = partial(adamw, 0.05)
predictor = make_predictor(MODEL)

pytestmark = pytest.mark.usefixtures("compiled_once")


def run(*, model=MODEL, objective=OBJECTIVE, seeds=(23, 42), score=tiny.accuracy, **changes):
    options = {"epochs": 3, "optimizer": OPTIMIZER, "batch_size": 4, "chunk_steps": 2} | changes
    rows = {"train": TRAIN, "validation": VALIDATION} | {
        name: options.pop(name) for name in ("train", "validation") if name in options
    }
    return fit(model, objective, score=score, seeds=seeds, **rows, **options)


def test_seeds_side_by_side_are_seeds_by_themselves():
    """The whole of it: Hopfield attention, ESR and dropout."""
    model = tiny.hopfield(max_steps=4)
    objective = classification(model, esr_weight=0.05)
    both, one, other = (
        run(model=model, objective=objective, seeds=seeds, optimizer=partial(adamw, 3e-3), epochs=2)
        for seeds in ((23, 42), (23,), (42,))
    )
    for number, alone in enumerate((one, other)):
        assert alone.steps == both.steps == 2 * STEPS
        assert alone.scores[0] == both.scores[number]
        assert alone.epochs[0] == both.epochs[number]
        # Not bit for bit: XLA multiplies two seeds' matrices in another order than one's.
        tiny.assert_close(
            tiny.take(alone.params, 0), tiny.take(both.params, number), rtol=1e-4, atol=1e-5
        )
    kernels = both.params["classifier"]["kernel"]
    assert not np.allclose(kernels[0], kernels[1], atol=1e-3)


def open_in(folder, interval):
    return Checkpoints(folder, config={}, interval=interval)


def test_training_learns():
    first, last = (run(epochs=epochs, optimizer=partial(adamw, 0.1)) for epochs in (1, 12))
    assert (last.scores > first.scores).all()


def scripted(*scores):
    """Gives these scores one after the other, and keeps the logits that they were asked for."""
    asked, left = [], iter(scores)

    def score(logits, labels):
        assert np.array_equal(labels, tiny.encoded(16, seed=1).labels)
        asked.append(logits)
        return next(left)

    return score, asked


def test_each_seed_stops_by_itself_and_keeps_its_best():
    # Epochs 1 to 3 ask for both seeds, 4 and 5 for seed 42 alone, then both have stopped.
    score, asked = scripted(5, 1, 4, 2, 3, 3, 2, 2.5)
    fitted = run(score=score, epochs=9, patience=2)
    assert len(asked) == 8
    assert fitted.scores.tolist() == [5, 3]
    assert fitted.epochs.tolist() == [1, 3]
    assert fitted.steps == 5 * STEPS
    found = predict(predictor, fitted.params, VALIDATION)
    np.testing.assert_allclose(found.logits[0], asked[0], rtol=1e-6)
    np.testing.assert_allclose(found.logits[1], asked[5], rtol=1e-6)


def test_a_stopped_seed_stays_as_if_alone_though_others_go_on():
    script = {23: (2, 1, 1), 42: (1, 2, 3, 4, 5)}
    alone = run(seeds=(23,), score=scripted(*script[23])[0], epochs=5, patience=2)
    both = run(score=scripted(2, 1, 1, 2, 1, 3, 4, 5)[0], epochs=5, patience=2)
    assert (alone.steps, both.steps) == (3 * STEPS, 5 * STEPS)
    assert both.epochs.tolist() == [1, 5]
    tiny.assert_close(tiny.take(alone.params, 0), tiny.take(both.params, 0), rtol=1e-5, atol=1e-6)


def test_the_first_of_equal_epochs_is_kept_and_nan_is_no_score():
    fitted = run(score=scripted(1, float("nan"), 1, 0, 1, 0)[0])
    assert fitted.epochs.tolist() == [1, 2]
    assert fitted.scores.tolist() == [1, 0]


def test_everything_is_logged(tmp_path):
    score, _ = scripted(5, 1, 4, 2, 3, 3)
    with MetricsLog(tmp_path / "m.jsonl") as log:
        run(score=score, patience=2, log=log)
    lines = read_metrics(tmp_path / "m.jsonl")
    steps = [line for line in lines if "loss" in line]
    assert [line["step"] for line in steps] == list(range(2, 3 * STEPS + 1, 2))
    assert [line["epoch"] for line in steps] == [1] * 3 + [2] * 3 + [3] * 3
    parts = {"loss", "task", "esr", "num_steps", "unconverged", "gradient_norm"}
    names = {"step", "epoch", *parts}
    assert all(line.keys() == names and len(line["loss"]) == 2 for line in steps)
    epochs = [line for line in lines if "validation" in line]
    assert [(line["step"], line["epoch"]) for line in epochs] == [(6, 1), (12, 2), (18, 3)]
    assert [line["validation"] for line in epochs] == [[5, 1], [4, 2], [3, 3]]
    assert [line["best"] for line in epochs] == [[5, 1], [5, 2], [5, 3]]


@cache
def breaking(seed, step, value):
    """An objective whose loss and gradient are not finite for one seed at one step (from 0).

    It knows them by the step's key, which is made of the two.
    """
    (key,) = seed_keys([seed])
    wrong = jax.random.key_data(jax.random.fold_in(jax.random.fold_in(key, 2**31), step))

    def objective(params, batch, key):
        loss, parts = OBJECTIVE(params, batch, key)
        here = jnp.all(jax.random.key_data(key) == wrong)
        return loss * jnp.where(here, value, 1.0), parts

    return objective


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_divergence_names_step_seed_and_the_last_good_checkpoint(tmp_path, value):
    with MetricsLog(tmp_path / "m.jsonl") as log, open_in(tmp_path, 0.0) as checkpoints:
        with pytest.raises(DivergedError) as error:
            run(
                objective=breaking(42, 2 * STEPS + 3, value),
                checkpoints=checkpoints,
                log=log,
            )
        good = 2 * STEPS + 2
        text = str(error.value)
        assert f"at step {2 * STEPS + 4}, seed 42" in text
        assert f"step {good} in {tmp_path / 'checkpoints' / str(good)}" in text
        assert f"loss {value}" in text
        # With the fault gone, the run goes on from there as if there had been none.
        fitted = run(checkpoints=checkpoints, log=log)
        assert tiny.same_bits(fitted, run())
    assert [line["step"] for line in read_metrics(tmp_path / "m.jsonl") if "loss" in line] == list(
        range(2, 3 * STEPS + 1, 2)
    )


@pytest.mark.parametrize("seconds", [0.0, 1e6])
def test_what_divergence_leaves_is_finite(tmp_path, seconds):
    saved = []

    class Watched(Checkpoints):
        def save(self, step, tree):
            saved.append((step, jax.tree.map(np.array, tree)))
            super().save(step, tree)

    with Watched(tmp_path, config={}, interval=seconds) as checkpoints:
        with pytest.raises(DivergedError, match=f"step {STEPS + 4}, seed 23"):
            run(
                objective=breaking(23, STEPS + 3, np.nan),
                checkpoints=checkpoints,
            )
        step, tree = saved[-1]
        assert step == (STEPS + 2 if seconds == 0 else STEPS)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))
        assert tiny.same_bits(checkpoints.restore(tree).tree, tree)


def test_divergence_without_checkpoints_says_so(tmp_path):
    with pytest.raises(DivergedError, match="Last checkpoint: none"):
        run(objective=breaking(23, 0, np.nan))
    with (
        Checkpoints(tmp_path, config={}) as checkpoints,
        pytest.raises(DivergedError, match=r"at step 1, seed 23\. .*: none yet"),
    ):
        run(objective=breaking(23, 0, np.nan), checkpoints=checkpoints)


def test_a_full_disk_does_not_hide_divergence(tmp_path):
    class Full(Checkpoints):
        started = False

        def restore(self, like):
            super().restore(like)
            self.started = True

        def wait(self):
            if self.started:
                raise CheckpointError("no space left")
            super().wait()

    with (
        pytest.raises(DivergedError, match="at step 1, seed 23"),
        Full(tmp_path, config={}) as checkpoints,
    ):
        run(objective=breaking(23, 0, np.nan), checkpoints=checkpoints)


def test_a_seed_that_stopped_may_diverge(tmp_path):
    """Alone it would have been finished by then."""
    scores = (2, 1, 1, 2, 1, 3, 4, 5)
    with MetricsLog(tmp_path / "m.jsonl") as log:
        options = {"epochs": 5, "patience": 2, "log": log}
        fitted = run(score=scripted(*scores)[0], **options)
        log.truncate_after(0)
        got = run(
            score=scripted(*scores)[0], objective=breaking(23, 3 * STEPS + 1, np.nan), **options
        )
    tiny.assert_close(got, fitted, rtol=1e-5, atol=1e-6)
    lines = read_metrics(tmp_path / "m.jsonl")
    assert [line["validation"] for line in lines if "best" in line][3:] == [[None, 4], [None, 5]]
    assert [line["loss"][0] for line in lines if "loss" in line][-1] is None


def test_a_checkpoint_of_another_state_is_refused(tmp_path):
    with Checkpoints(tmp_path, config={"width": 4}) as checkpoints:
        run(checkpoints=checkpoints, epochs=1)
        with pytest.raises(ValueError, match=r"does not fit .*\n(.*\n)*.*params/out: "):
            wider = tiny.bag(5)
            run(checkpoints=checkpoints, model=wider, objective=classification(wider), epochs=1)
        with pytest.raises(ValueError, match="does not fit"):
            run(checkpoints=checkpoints, seeds=(1, 2, 3), epochs=1)
    with pytest.raises(ValueError, match="width: 4 → 5"):
        Checkpoints(tmp_path, config={"width": 5})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epochs": 0}, "epochs >= 1.*got 0, 10, 2 seeds, 1 and 1 buckets"),
        ({"patience": 0}, "patience >= 1"),
        ({"seeds": ()}, "0 seeds"),
        ({"train": []}, "0 and 1 buckets"),
        ({"validation": []}, "1 and 0 buckets"),
        ({"batch_size": 0}, "batch_size and chunk_steps must be >= 1, got 0 and 2"),
    ],
)
def test_bad_numbers_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        run(**changes)
