"""Trains all seeds of a model at once, with early stopping, checkpoints and resumption."""

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from hopfax.data.batching import Bucket
from hopfax.nn.encoder import Encoder
from hopfax.nn.functional import Functional, Params
from hopfax.train import interrupt
from hopfax.train.checkpoint import CheckpointError, Checkpoints
from hopfax.train.evaluate import Predictor, make_predictor, predict
from hopfax.train.metrics import MetricsLog
from hopfax.train.objectives import Batch, Objective
from hopfax.train.placement import Placement
from hopfax.train.progress import Progress
from hopfax.train.schedule import epoch_chunks, shapes
from hopfax.train.state import adamw, init_states, seed_keys
from hopfax.train.step import StepMetrics, make_chunk

Score = Callable[[np.ndarray, np.ndarray], float]


class DivergedError(FloatingPointError):
    """A loss or gradient was not finite."""


class Fitted(NamedTuple):
    """The best of a run, per seed, all stacked along a first axis.

    Attributes:
        params: Parameters of each seed's best epoch.
        scores: `(seeds,)` their validation scores.
        epochs: `(seeds,)` the epochs they are from, the first is 1.
        steps: Steps the whole run took.
    """

    params: Params
    scores: np.ndarray
    epochs: np.ndarray
    steps: int


class _Selection(NamedTuple):
    """Early stopping of each seed by itself, as if it were alone."""

    scores: np.ndarray
    epochs: np.ndarray
    waited: np.ndarray

    def after(self, scores: np.ndarray, epoch: int, patience: int) -> tuple["_Selection", Any]:
        """The selection after an epoch, and the seeds that improved."""
        better = (scores > self.scores) & (self.waited < patience)
        return _Selection(
            np.where(better, scores, self.scores),
            np.where(better, epoch, self.epochs),
            np.where(better, 0, self.waited + 1),
        ), better


@interrupt.listening()
@interrupt.held()
def fit(
    model: Functional[Encoder],
    objective: Objective,
    *,
    train: Sequence[Bucket],
    validation: Sequence[Bucket],
    score: Score,
    seeds: Sequence[int],
    epochs: int,
    learning_rate: float,
    batch_size: int = 32,
    patience: int = 10,
    weight_decay: float = 0.01,
    warmup: float = 0.1,
    clip: float = 1.0,
    chunk_steps: int = 16,
    checkpoints: Checkpoints | None = None,
    checkpoint_seconds: float = 60.0,
    log: MetricsLog | None = None,
    predictor: Predictor | None = None,
    placement: Placement | None = None,
    title: str = "",
    on_progress: Callable[..., None] | None = None,
) -> Fitted:
    """Trains, validates after every epoch, and returns each seed's best parameters.

    A run with checkpoints continues from the last one, to the same bits as if it had never
    stopped: every random draw is a function of seed and step. It may continue on another number of
    devices; it is then the same run but for rounding. Ctrl-C ends a run after the chunk or
    validation that is running: with checkpoints the state is saved first.

    Args:
        model: What to train.
        objective: What to minimise, see `hopfax.train.objectives.classification`.
        train: Rows to fit, in buckets of one padded length.
        validation: Rows that decide when to stop.
        score: `score(logits, labels)` of one seed on the validation rows; more is better.
        seeds: One number a run. They train side by side and do not affect each other.
        epochs: Most passes over the rows, >= 1; the learning rate is scheduled over all of them.
        learning_rate: Peak rate, > 0.
        batch_size: Most rows a step.
        patience: A seed stops after this many epochs without a better score, >= 1.
        weight_decay: See `adamw`.
        warmup: See `adamw`.
        clip: See `adamw`.
        chunk_steps: Wanted steps per compiled call.
        checkpoints: Where states are kept; None keeps none.
        checkpoint_seconds: Save within an epoch when this long has passed since the last save.
        log: Where metrics go.
        predictor: Of this model and placement, from `make_predictor`, if the caller goes on using
            it: it is then compiled once.
        placement: How several devices share the run, from `hopfax.train.placement.place`; None
            for the default device alone.
        title: Shown in front of the progress bar.
        on_progress: `on_progress(share, **fields)` replaces the progress bar: the share of the
            steps done, in [0, 1], and the latest loss or validation score.

    Returns:
        A `Fitted`.

    Raises:
        DivergedError: A loss or gradient is not finite; step, seed and last good checkpoint named.
        KeyboardInterrupt: Ctrl-C was pressed; a second press raises it without saving.
        ValueError: A number is out of its range, there are no rows, or the placement does not
            divide them.
    """
    if epochs < 1 or patience < 1 or not seeds or not train or not validation:
        raise ValueError(
            "fit wants epochs >= 1, patience >= 1, a seed and rows to train and validate on; got "
            f"{epochs}, {patience}, {len(seeds)} seeds, {len(train)} and {len(validation)} buckets"
        )
    if placement:
        placement.check(num_seeds=len(seeds), batch_size=batch_size)
    sizes = [len(bucket.labels) for bucket in train]
    cuts = shapes(sizes, batch_size=batch_size, chunk_steps=chunk_steps)
    total_steps = epochs * sum(cut.chunks * cut.steps for cut in cuts)
    optimizer = adamw(
        learning_rate,
        total_steps=total_steps,
        warmup=warmup,
        weight_decay=weight_decay,
        clip=clip,
    )
    run_chunk = make_chunk(objective, optimizer, placement=placement)
    predictor = predictor or make_predictor(model, placement=placement)
    keys, rows = seed_keys(seeds), [_on_device(bucket) for bucket in train]
    states = init_states(model, optimizer, seeds)
    if placement:
        keys, states = jax.device_put((keys, states), placement.states)
        rows = jax.device_put(rows, placement.everywhere)
    best = jax.tree.map(jnp.copy, states.params)
    selection = _Selection(
        np.full(len(seeds), -np.inf), np.zeros(len(seeds), int), np.zeros(len(seeds), int)
    )
    epoch = chunk_number = step = 0
    if checkpoints and (found := checkpoints.restore_last({"state": states, "best": best})):
        states, best = found.tree["state"], found.tree["best"]
        epoch, chunk_number, step = found.extra["epoch"], found.extra["chunk"], found.step
        selection = _Selection(*(np.asarray(found.extra[name]) for name in _Selection._fields))
    if log:
        log.truncate_after(step)

    def save() -> None:
        if checkpoints:
            notes = {name: values.tolist() for name, values in selection._asdict().items()}
            notes |= {"epoch": epoch, "chunk": chunk_number}
            checkpoints.save_last(step, {"state": states, "best": best}, notes)

    def book(first_step: int, metrics: StepMetrics) -> float:
        """Checks and logs the metrics of one chunk; called when the next is already running."""
        metrics = jax.tree.map(np.asarray, metrics)
        going = selection.waited < patience
        _check_finite(metrics, going, first_step, seeds, checkpoints)
        if log:
            means = {name: part.mean(0) for name, part in metrics._asdict().items()}
            log.write(first_step + len(metrics.loss), epoch=epoch + 1, **means)
        return float(metrics.loss[:, going].mean())

    saved_at = time.monotonic()
    bar = None if on_progress else Progress(total_steps, title=title, done=step)
    with bar or contextlib.nullcontext():

        def show(examples: int = 0, **fields: float) -> None:
            if on_progress:
                on_progress(step / total_steps, **fields)
            elif bar:
                bar.update(step, examples, **fields)

        while epoch < epochs and (selection.waited < patience).any():
            chunks = epoch_chunks(
                sizes, batch_size=batch_size, seeds=seeds, epoch=epoch, chunk_steps=chunk_steps
            )
            running: tuple[int, StepMetrics] | None = None
            for plan in chunks[chunk_number:]:
                before = running
                states, metrics = run_chunk(
                    states, rows[plan.bucket], plan.picks, plan.weights, keys
                )
                running = (step, metrics)
                step, chunk_number = step + len(plan.picks), chunk_number + 1
                if before:
                    show(loss=book(*before))
                # Not at the epoch's end: resumed from there, it would log its validation twice.
                unfinished, stop = chunk_number < len(chunks), interrupt.requested()
                if unfinished and (stop or time.monotonic() - saved_at > checkpoint_seconds):
                    show(loss=book(*running))
                    running = None
                    save()
                    saved_at = time.monotonic()
                    if stop:
                        _stop(checkpoints)
                show(int(plan.weights.sum()))
            loss = book(*running) if running else float("nan")
            found = predict(predictor, states.params, validation, placement=placement)
            # A stopped seed is done, come what may: its later states are nobody's concern.
            going = selection.waited < patience
            scores = np.full(len(seeds), np.nan)
            scores[going] = [score(logits, found.labels) for logits in found.logits[going]]
            epoch, chunk_number = epoch + 1, 0
            selection, better = selection.after(scores, epoch, patience)
            best = _take(better, states.params, best)
            if log:
                log.write(step, epoch=epoch, validation=scores, best=selection.scores)
            show(loss=loss, validation=float(scores[going].mean()))
            if checkpoints and better.any():
                notes = {"scores": selection.scores.tolist(), "epochs": selection.epochs.tolist()}
                checkpoints.save_best(step, best, notes)
            save()
            saved_at = time.monotonic()
            if interrupt.requested():
                _stop(checkpoints)
    if checkpoints:
        checkpoints.wait()
    return Fitted(best, selection.scores, selection.epochs, step)


def _stop(checkpoints: Checkpoints | None) -> NoReturn:
    """Ends a run on Ctrl-C, once its checkpoints are on the disk."""
    if checkpoints:
        checkpoints.wait()
    raise KeyboardInterrupt


@jax.jit
def _take(better: jax.Array, new: Params, old: Params) -> Params:
    def choose(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return jax.tree.map(choose, new, old)


def _on_device(bucket: Bucket) -> Batch:
    ones = np.ones(len(bucket.labels), np.float32)
    return Batch(*map(jnp.asarray, (bucket.ids, bucket.lengths, bucket.labels, ones)))


def _check_finite(
    metrics: StepMetrics,
    going: np.ndarray,
    first_step: int,
    seeds: Sequence[int],
    checkpoints: Checkpoints | None,
) -> None:
    bad = going & ~(np.isfinite(metrics.loss) & np.isfinite(metrics.gradient_norm))
    if not bad.any():
        return
    row, column = np.argwhere(bad)[0]
    kept = "none was asked for"
    if checkpoints:
        # A full disk must not hide what happened here: the newest one on it is named all the same.
        with contextlib.suppress(CheckpointError):
            checkpoints.wait()
        kept = checkpoints.newest() or "none yet"
    raise DivergedError(
        f"loss {metrics.loss[row, column]:g} with gradient norm "
        f"{metrics.gradient_norm[row, column]:g} at step {first_step + row + 1}, seed "
        f"{seeds[column]}. Last good checkpoint: {kept}. Lower the learning rate, or look for the "
        "batch that did it."
    )
