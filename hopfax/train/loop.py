"""Trains all seeds of a model at once, with early stopping, checkpoints and resumption."""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hopfax.data.batching import Bucket
from hopfax.nn.functional import Params
from hopfax.train import interrupt
from hopfax.train.checkpoint import Checkpoints
from hopfax.train.evaluate import Predictor, predict
from hopfax.train.metrics import MetricsLog
from hopfax.train.objectives import Batch, Objective
from hopfax.train.progress import Progress
from hopfax.train.schedule import epoch_chunks
from hopfax.train.sharding import any_process, fetch, first
from hopfax.train.state import TrainState, init_states, seed_keys
from hopfax.train.step import Metrics, make_chunk

Score = Callable[[np.ndarray, np.ndarray], float]


class DivergedError(FloatingPointError):
    """A loss, gradient or validation logit was not finite."""


class FitResult(NamedTuple):
    """The best epoch of each seed, stacked along a first axis.

    Attributes:
        params: Parameters.
        scores: `(seeds,)` validation score.
        epochs: `(seeds,)` best epoch, from 1. If every score is nan: epoch 0, initial parameters,
            and score -inf.
        steps: Number of training steps of the run.
    """

    params: Params
    scores: np.ndarray
    epochs: np.ndarray
    steps: int


class _Run(NamedTuple):
    """The contents of a checkpoint. Early stopping treats each seed separately."""

    seeds: np.ndarray
    total_steps: np.ndarray  # on which the learning rate depends
    states: TrainState
    best: Params
    scores: np.ndarray
    epochs: np.ndarray
    waited: np.ndarray  # epochs since the best one
    epoch: np.ndarray = np.array(0)  # complete epochs
    chunk: np.ndarray = np.array(0)  # complete chunks of the current epoch


@interrupt.listen()
@interrupt.hold()
def fit(
    predictor: Predictor,
    objective: Objective,
    *,
    train: Sequence[Bucket],
    validation: Sequence[Bucket],
    score: Score,
    seeds: Sequence[int],
    epochs: int,
    optimizer: Callable[[int], optax.GradientTransformation],
    batch_size: int = 32,
    patience: int = 10,
    checkpoints: Checkpoints | None = None,
    log: MetricsLog | None = None,
    on_progress: Callable[..., None] | None = None,
) -> FitResult:
    """Trains, validates after every epoch, and returns each seed's best parameters.

    A run with checkpoints resumes from the last one, bit for bit on the same number of devices. All
    arguments but `patience`, `log` and `on_progress` must be the same; only the seeds and the
    number of steps are checked. Ctrl-C or SIGTERM ends a run after the current chunk or validation,
    and saves its state.

    Args:
        predictor: From `hopfax.train.evaluate.make_predictor`.
        objective: Loss to minimize, see `hopfax.train.objectives.classification`.
        train: Training rows, from `hopfax.data.to_buckets`.
        validation: Rows for early stopping.
        score: `score(logits, labels)` of one seed on the validation rows; higher is better, nan is
            worst.
        seeds: Training seeds. They train together but independently.
        epochs: Maximum number of epochs, >= 1.
        optimizer: Returns the optimizer for a total number of steps.
        batch_size: Maximum number of rows per step.
        patience: Number of epochs without a better score after which a seed stops, >= 1.
        checkpoints: Saves the state after every epoch and at its `interval`.
        log: Receives the metrics.
        on_progress: `on_progress(share, **fields)`: the share of steps done, in [0, 1], and the
            latest loss or validation score. The first call has the field `restart=True`. None shows
            `hopfax.train.progress.Progress` on standard error.

    Raises:
        DivergedError: A loss, gradient or validation logit is not finite.
        KeyboardInterrupt: Ctrl-C or SIGTERM; a second Ctrl-C raises it without saving.
        ValueError: A number is out of range, rows are missing, or the checkpoint is another run's.

    Example:
        >>> import numpy as np
        >>> from functools import partial
        >>> from hopfax.data import Encoded, to_buckets
        >>> from hopfax.nn import tinybert
        >>> from hopfax.train import evaluate, loop, objectives, state
        >>> ids = np.arange(1, 33, dtype=np.int32).reshape(8, 1, 4)
        >>> rows = Encoded(ids, np.full((8, 1), 4, np.int32), np.arange(8) % 2, np.arange(8))
        >>> rows = to_buckets(rows, boundaries=(4,))
        >>> model = tinybert(40, 2, width=8, ff_width=8, num_layers=1, max_length=4)
        >>> result = loop.fit(
        ...     evaluate.make_predictor(model), objectives.classification(model),
        ...     train=rows, validation=rows, seeds=(23, 42), epochs=2, batch_size=4,
        ...     score=lambda logits, labels: (logits.argmax(1) == labels).mean(),
        ...     optimizer=partial(state.adamw, 1e-3),
        ... )
        >>> result.scores.shape, result.steps
        ((2,), 4)
    """
    if epochs < 1 or patience < 1 or not seeds or not train or not validation:
        raise ValueError(
            "fit requires epochs >= 1, patience >= 1, seeds, and training and validation rows; got "
            f"{epochs}, {patience}, {len(seeds)} seeds, {len(train)} and {len(validation)} buckets"
        )
    sizes = [len(bucket.labels) for bucket in train]
    chunks_of = partial(epoch_chunks, sizes, batch_size=batch_size, seeds=seeds)
    total_steps = epochs * sum(len(chunk.picks) for chunk in chunks_of(epoch=0))
    transformation = optimizer(total_steps)
    train_chunk = make_chunk(objective, transformation, sharding=predictor.sharding)
    weights = [np.ones(size, np.float32) for size in sizes]
    rows = [Batch(*map(jnp.asarray, (*b[:3], w))) for b, w in zip(train, weights, strict=True)]
    keys, states = seed_keys(seeds), init_states(predictor.model, transformation, seeds)
    if predictor.sharding:
        keys, states = predictor.sharding.put((keys, states), "seeds")
        rows = predictor.sharding.put(rows)
    step, zeros = 0, np.zeros(len(seeds), int)
    run = _Run(
        seeds=np.array(seeds),
        total_steps=np.array(total_steps),
        states=states,
        best=_copy(states.params),  # training donates the states
        scores=np.full(len(seeds), -np.inf),
        epochs=zeros,
        waited=zeros,
    )
    if checkpoints and (restored := checkpoints.restore(run)):
        step, stored = restored
        for name in ("seeds", "total_steps"):
            ours, theirs = (getattr(each, name).tolist() for each in (run, stored))
            if ours != theirs:
                raise ValueError(f"the checkpoint has {name} {theirs}, got {ours}")
        run = stored
    if log:
        log.truncate_after(step)
    with contextlib.ExitStack() as stack:
        on_progress = on_progress or stack.enter_context(Progress(1)).update
        on_progress(step / total_steps, restart=True)
        reporter = _Reporter(seeds, total_steps, checkpoints, log, on_progress)
        while run.epoch < epochs and (training := run.waited < patience).any():
            chunks = chunks_of(epoch=int(run.epoch))
            for chunk in chunks[int(run.chunk) :]:
                states, metrics = train_chunk(
                    run.states, rows[chunk.bucket], chunk.picks, chunk.weights, keys
                )
                run = run._replace(states=states, chunk=run.chunk + 1)
                step += len(chunk.picks)
                reporter.flush()
                reporter.pending = step, int(run.epoch) + 1, training, metrics
                due = interrupt.is_requested() or bool(checkpoints and checkpoints.due())
                # At an epoch's end the save follows validation, which is then logged once.
                if any_process(due) and run.chunk < len(chunks):
                    reporter.flush()
                    _save_or_stop(checkpoints, step, run)
            reporter.flush()
            predictions = predict(predictor, run.states.params, validation)
            # Stopped seeds, whose states may not be finite, have no score.
            scores = np.full(len(seeds), np.nan)
            for number in map(int, np.flatnonzero(training)):
                logits = predictions.logits[number]
                if not np.isfinite(logits).all():
                    raise reporter.diverged(
                        f"validation logits are not finite after step {step}", number
                    )
                scores[number] = score(logits, predictions.labels)
            run = _after_epoch(run, scores)
            shown = {"validation": scores[training].mean()}
            reporter.write(step, shown, epoch=int(run.epoch), validation=scores, best=run.scores)
            _save_or_stop(checkpoints, step, run)
    return FitResult(run.best, run.scores, run.epochs, step)


def _save_or_stop(checkpoints: Checkpoints | None, step: int, run: _Run) -> None:
    if checkpoints:
        checkpoints.save(step, run)
    if any_process(interrupt.is_requested()):
        if checkpoints:
            checkpoints.wait()
        raise KeyboardInterrupt


def _after_epoch(run: _Run, scores: np.ndarray) -> _Run:
    """Counts an epoch, and updates the seeds that improved; stopped seeds have the score nan."""
    better, epoch = scores > run.scores, run.epoch + 1
    return run._replace(
        best=_where(better, run.states.params, run.best),
        scores=np.where(better, scores, run.scores),
        epochs=np.where(better, epoch, run.epochs),
        waited=np.where(better, 0, run.waited + 1),
        epoch=epoch,
        chunk=np.array(0),
    )


_where = jax.jit(jax.vmap(optax.tree.where))
_copy = jax.jit(partial(jax.tree.map, jnp.copy))


@dataclass
class _Reporter:
    """Checks, logs and shows the metrics of a chunk while the next one runs."""

    seeds: Sequence[int]
    total_steps: int
    checkpoints: Checkpoints | None
    log: MetricsLog | None
    on_progress: Callable[..., None]
    pending: tuple[int, int, np.ndarray, Metrics] | None = None

    def flush(self) -> None:
        if not self.pending:
            return
        (step, epoch, training, metrics), self.pending = self.pending, None
        metrics = jax.tree.map(fetch, metrics)
        loss, norm = metrics["loss"], metrics["gradient_norm"]
        bad = training & ~(np.isfinite(loss) & np.isfinite(norm))
        if bad.any():
            row, column = np.argwhere(bad)[0]
            raise self.diverged(
                f"loss {loss[row, column]:g} with gradient norm {norm[row, column]:g} at step "
                f"{step - len(bad) + row + 1}",
                column,
            )
        means = {name: part.mean(0) for name, part in metrics.items()}
        self.write(step, {"loss": loss[:, training].mean()}, epoch=epoch, **means)

    def write(self, step: int, shown: dict[str, float], **logged: Any) -> None:
        if log := self.log:
            first(lambda: log.write(step, time=round(time.time(), 1), **logged))
        shown = {name: float(value) for name, value in shown.items()}
        self.on_progress(step / self.total_steps, **shown)

    def diverged(self, event: str, number: int) -> DivergedError:
        newest = "none"
        if self.checkpoints:
            with contextlib.suppress(OSError):  # the divergence is the error to report
                self.checkpoints.wait()
            newest = self.checkpoints.newest()
        return DivergedError(
            f"{event}, seed {self.seeds[number]}. Last checkpoint: {newest}. Lower the learning "
            "rate, or inspect the rows; classes must be below the number of outputs."
        )
