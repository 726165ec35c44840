"""Trains many runs of a decoder at once: one `vmap` over seeds and hyperparameters.

A run is a seed and its `Hyperparameters`. Runs with the same seed share rows, order and initial
parameters, so that arms are paired. A trained arm is stored in `runs/cells/` under a hash of its
settings.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from jaxtyping import Array, Float, Int, PRNGKeyArray

from experiments import runner
from experiments.noise_stability.indicator import MEASURED_RHO, measurements
from experiments.rundir import locked, plain, write_whole
from hopfax import stability
from hopfax.cpu import fast_key
from hopfax.nn import Decoder, Functional, Params
from hopfax.train import interrupt
from hopfax.train.checkpoint import Checkpoints
from hopfax.train.loop import DivergedError

FORMAT = 1  # increase when the same settings no longer give the same runs
FINAL = "final_"  # prefix of final measurements in a stored arm
EPOCHS_PER_CALL = 10
CHECKPOINT_SECONDS = 60.0
ADAM = optax.scale_by_adam()
PLATEAU = optax.contrib.reduce_on_plateau(factor=0.8, patience=10)  # Table 2


class Rows(NamedTuple):
    """Token ids, and a label per row or per token; stacked over runs where stated."""

    ids: Int[Array, "rows tokens"]
    labels: Int[Array, "rows *tokens"]


class Hyperparameters(NamedTuple):
    """Numbers that may differ between runs of one compiled program."""

    learning_rate: Any = 1e-3  # Adam's, before the plateau schedule
    weight_decay: Any = 1e-3  # decoupled; times the learning rate, as in AdamW
    gamma: Any = 0.0  # weight of the stability penalty
    rho: Any = 1.0  # its noise parameter
    input_dropout: Any = 0.0  # probability of zeroing a token's embedding in training


class Static(NamedTuple):
    """Configuration that is compiled in."""

    batch_size: int
    penalized: bool = False  # whether the loss includes the stability penalty
    stabilize: bool = True  # sign of the penalty, Definition 6.1's S
    share: float = 1.0  # share of a batch's rows that the penalty uses
    every: int = 1  # number of steps between two steps with the penalty
    plateau: bool = True  # whether `PLATEAU` lowers the learning rate (Appendix J.1)


class Epoch(NamedTuple):
    """Measurements of an epoch, one per run; a run's history has a leading axis of epochs.

    X are the validation rows, M their outputs, and Y a noisy copy of X, the same in every epoch.
    """

    train_loss: Any  # mean task loss of the steps, with dropout
    loss: Any  # on the validation rows
    accuracy: Any  # on the validation rows, in [0, 1]
    train_accuracy: Any  # on as many training rows, without dropout; flipped labels count as such
    agreement: Any  # E Σ_i M(X)_i M(Y)_i at `MEASURED_RHO`
    confidence: Any  # E Σ_i M(X)_i²: the agreement at ρ = 1
    scale: Any  # the plateau schedule's share of the learning rate


class State(NamedTuple):
    """Parameters, Adam's moments, and the state of the plateau schedule."""

    params: Params
    moments: Any
    plateau: Any


class Splits(NamedTuple):
    """Rows of each split, for a problem with a leading axis of runs."""

    train: Rows
    validation: Rows
    test: Rows


class Problem(NamedTuple):
    """What all arms of a comparison share."""

    name: str
    model: Functional[Decoder]
    settings: Mapping[str, Any]  # how model and rows are made, as JSON
    splits: Splits
    seeds: np.ndarray  # (runs,)
    num_tokens: int  # size of the vocabulary
    epochs: int  # maximum number
    target: float  # validation accuracy to reach, in [0, 1]
    stability: float = float("nan")  # of the target function at `MEASURED_RHO`, if known

    def reached(self, history: Epoch) -> np.ndarray:
        """`(runs,)` epochs, counted from 1, until the target accuracy; inf for never."""
        met = history.accuracy >= self.target
        return np.where(met.any(axis=0), met.argmax(axis=0) + 1.0, np.inf)


def stacked(sets: Sequence[Any]) -> Splits:
    """Splits of one data set per run, with ids of shape (rows, [1,] tokens)."""

    def rows(split: str) -> Rows:
        parts = [getattr(each, split) for each in sets]
        ids, labels = (np.stack([getattr(part, name) for part in parts]) for name in Rows._fields)
        return Rows(jnp.asarray(ids.reshape(*ids.shape[:2], ids.shape[-1])), jnp.asarray(labels))

    return Splits(*map(rows, Splits._fields))


class Arm(NamedTuple):
    """One way to train on a problem."""

    problem: Problem
    name: str
    static: Static
    hyperparameters: Hyperparameters

    @property
    def numbers(self) -> Hyperparameters:
        """The hyperparameters of every run, `(runs,)` each."""
        runs = self.problem.seeds.shape
        return jax.tree.map(lambda x: np.broadcast_to(np.float32(x), runs), self.hyperparameters)

    @property
    def steps_per_epoch(self) -> int:
        """Full batches of the training rows."""
        return self.problem.splits.train.ids.shape[1] // self.static.batch_size

    @property
    def rows_per_step(self) -> float:
        """Rows that go through the network per step, the penalty's noisy copies included."""
        static = self.static
        noisy = static.share / static.every if static.penalized else 0
        return static.batch_size * (1 + noisy)

    @property
    def settings(self) -> str:
        """Everything that the trained runs depend on, as JSON."""
        digest, problem = hashlib.sha256(), self.problem
        for part in jax.tree.leaves(problem.splits):
            digest.update(np.ascontiguousarray(part).tobytes())
        settings = {
            "format": FORMAT,
            "problem": plain(problem.settings),
            "static": plain(self.static),
            "numbers": {name: each.tolist() for name, each in self.numbers._asdict().items()},
            "seeds": problem.seeds.tolist(),
            "epochs": problem.epochs,
            "target": problem.target,
            "rows": digest.hexdigest()[:16],
        }
        return json.dumps(settings, sort_keys=True)

    @property
    def file(self) -> str:
        """Its file in `runs/cells/`."""
        return f"{hashlib.sha256(self.settings.encode()).hexdigest()[:12]}.npz"


def jobs(config: Any, arms: Sequence[Arm]) -> list[runner.Job]:
    """What `runner.fill` measures: "results" and "curves" of every arm."""

    def measure(arm: Arm, on_progress: Callable[..., None]) -> dict[str, pd.DataFrame]:
        history, final = train_arm(Path(config.runs) / "cells", arm, on_progress)
        return {"results": _results(arm, history, final), "curves": _medians(arm, history)}

    return [
        runner.Job(f"{arm.problem.name}, {arm.name}", partial(measure, arm), arm.file)
        for arm in arms
    ]


def train_arm(
    root: Path, arm: Arm, on_progress: Callable[..., None] = lambda *_, **__: None
) -> tuple[Epoch, dict[str, np.ndarray]]:
    """Trains an arm, or reads it: its epochs, `(epochs, runs)` each, and final measurements.

    A batch must not exceed the training rows. A BlockingIOError names a process that trains it.
    """
    stored = root / arm.file
    unfinished = stored.with_suffix(".partial")
    trained = _read_arm(stored)
    if trained is None or unfinished.exists():
        with locked(unfinished):
            # Another process may have stored it meanwhile.
            while (trained := _read_arm(stored)) is None:
                _store(arm, stored, unfinished, on_progress)
            shutil.rmtree(unfinished, ignore_errors=True)
    return trained


def _read_arm(stored: Path) -> tuple[Epoch, dict[str, np.ndarray]] | None:
    """Returns a trained arm; None, and for damage a warning, if it must be trained."""
    if not stored.exists():
        return None
    content = stored.read_bytes()
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            history = Epoch(*(arrays[field] for field in Epoch._fields))
            ends = {key.removeprefix(FINAL): arrays[key] for key in arrays if key.startswith(FINAL)}
        return history, ends
    except MemoryError:
        raise
    except Exception as error:  # damaged archives raise errors of many classes
        warnings.warn(f"{stored} is damaged ({error}): training it again", stacklevel=2)
        return None


def _store(arm: Arm, stored: Path, unfinished: Path, on_progress: Callable[..., None]) -> None:
    settings, problem = arm.settings, arm.problem
    config = json.loads(settings)
    with Checkpoints(unfinished, config=config, interval=CHECKPOINT_SECONDS) as checkpoints:
        history, params = train_runs(arm, checkpoints, on_progress)
    final = evaluate(problem.model, params, problem.splits)
    arrays = history._asdict() | {FINAL + key: part for key, part in final.items()}
    buffer = io.BytesIO()
    as_float: Any = {key: np.asarray(part, np.float32) for key, part in arrays.items()}
    np.savez_compressed(buffer, settings=np.array(settings), **as_float)
    write_whole(stored, buffer.getvalue())


def train_runs(
    arm: Arm, checkpoints: Checkpoints, on_progress: Callable[..., None]
) -> tuple[Epoch, Params]:
    """Trains, from the last checkpoint on, until every run is at the target or for all epochs.

    An epoch drops the rows beyond its last full batch. Returns the epochs, `(epochs, runs)` each,
    and the last parameters. A DivergedError names a run whose loss is not finite.
    """
    problem, seeds, runs = arm.problem, arm.problem.seeds, len(arm.problem.seeds)
    per_call = min(problem.epochs, EPOCHS_PER_CALL)
    num_epochs = -(-problem.epochs // per_call) * per_call
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
    program = problem.model, arm.static, problem.num_tokens, per_call
    of_runs = keys, jax.tree.map(jnp.asarray, arm.numbers), *problem.splits[:2]
    state = initialize(problem.model, keys)
    history, done = Epoch(*np.full((len(Epoch._fields), num_epochs, runs), np.nan)), 0
    if restored := checkpoints.restore({"state": state, "history": history}):
        state, done = restored.tree["state"], restored.step
        history = Epoch(*map(np.array, restored.tree["history"]))
    while done < problem.epochs and np.isinf(problem.reached(history)).any():
        state, measured = train_epochs(*program, state, jnp.asarray(done), *of_runs)
        for kept, new in zip(history, measured, strict=True):
            kept[done : done + per_call] = new
        if (bad := ~np.isfinite(history.train_loss[done : done + per_call])).any():
            epoch, run = np.argwhere(bad)[0]
            raise DivergedError(
                f"the loss of run {run} (seed {seeds[run]}) is not finite in epoch "
                f"{done + epoch + 1}. Lower its learning rate."
            )
        done += per_call
        if interrupt.is_requested() or checkpoints.due():
            checkpoints.save(done, {"state": state, "history": history})
        accuracy = float(history.accuracy[done - 1].mean())
        reached = f"{int(np.isfinite(problem.reached(history)).sum())} of {runs}"
        on_progress(done / num_epochs, reached=reached, accuracy=accuracy)
    return Epoch(*(part[:done] for part in history)), state.params


@partial(jax.jit, static_argnames="model")
def initialize(model: Functional[Decoder], keys: Array) -> State:
    """Initial states of runs, from their keys."""

    def init(key: PRNGKeyArray) -> State:
        params = model.init(key)
        return State(params, ADAM.init(params), PLATEAU.init(params))

    return jax.vmap(init)(keys)


@partial(jax.jit, static_argnames="model")
def evaluate(model: Functional[Decoder], params: Params, splits: Splits) -> dict[str, Array]:
    """Accuracies of runs on all splits."""

    def of_run(params: Params, splits: Splits) -> dict[str, Array]:
        outputs = {name: (model.apply(params, x.ids), x) for name, x in splits._asdict().items()}
        return {f"{name}_accuracy": _accuracy(y, x.labels) for name, (y, x) in outputs.items()}

    return jax.vmap(of_run)(params, splits)


@partial(jax.jit, static_argnums=(0, 1, 2, 3), donate_argnums=4)
def train_epochs(
    model: Functional[Decoder], static: Static, num_tokens: int, count: int,
    states: State, first: Array, *of_runs: Any,
) -> tuple[State, Epoch]:  # fmt: skip
    """`count` epochs from number `first` on, one program for arms of the same `Static`.

    `of_runs` are keys, hyperparameters, training and validation rows.
    """

    def loss(params: Params, rows: Rows, key: Array, numbers: Hyperparameters, step: Array) -> Any:
        keys = jax.random.split(key, 3)

        def logits(ids: Array, key: Array) -> Array:
            return _forward(partial(model.apply, params), ids, key, numbers.input_dropout)

        predicted = logits(rows.ids, keys[0])
        task = _cross_entropy(predicted, rows.labels)
        if not static.penalized:
            return task, task
        penalty = stability.stability_regularizer(
            lambda ids: jax.nn.softmax(logits(ids, keys[1])), keys[2], rows.ids,
            jax.nn.softmax(predicted), rho=numbers.rho, num_tokens=num_tokens,
            stabilize=static.stabilize, share=static.share, step=step, every=static.every,
        )  # fmt: skip
        return task + numbers.gamma * penalty, task

    def epoch(state: State, number: Array, *of_run: Any) -> tuple[State, Epoch]:
        key, numbers, train, validation = of_run
        # Modules fold small numbers into the run's own key: 2**31 gives a different stream.
        for_order, for_steps, for_noise = jax.random.split(
            jax.random.fold_in(fast_key(key), 2**31), 3
        )
        rows = train.ids.shape[0]
        steps = rows // static.batch_size
        order = jax.random.permutation(jax.random.fold_in(for_order, number), rows)
        picks = order[: steps * static.batch_size].reshape(steps, static.batch_size)
        rate = numbers.learning_rate * state.plateau.scale

        def body(carry: tuple[Params, Any], plan: tuple[Array, Array]) -> Any:
            (params, moments), (picked, step) = carry, plan
            batch = jax.tree.map(lambda part: part[picked], train)
            (_, task), gradients = jax.value_and_grad(loss, has_aux=True)(
                params, batch, jax.random.fold_in(for_steps, step), numbers, step
            )
            updates, moments = ADAM.update(gradients, moments, params)
            params = jax.tree.map(
                lambda p, u: p - rate * (u + numbers.weight_decay * p), params, updates
            )
            return (params, moments), task

        (params, moments), tasks = jax.lax.scan(
            body, (state.params, state.moments), (picks, number * steps + jnp.arange(steps))
        )
        network = partial(model.apply, params)
        measured = _measure(network, train, validation, for_noise, num_tokens)
        result = Epoch(train_loss=jnp.mean(tasks), scale=state.plateau.scale, **measured)
        lowered = state.plateau
        if static.plateau:
            _, lowered = PLATEAU.update({}, lowered, value=result.loss)
        return State(params, moments, lowered), result

    # The step is common to all runs, so that what happens every k-th step is a branch.
    run_epoch = jax.vmap(epoch, in_axes=(0, None, 0, 0, 0, 0))
    numbers = first + jnp.arange(count)
    return jax.lax.scan(lambda carry, n: run_epoch(carry, n, *of_runs), states, numbers)


def _forward(
    network: Callable[..., Array], ids: Array, key: PRNGKeyArray, input_dropout: Array
) -> Array:
    for_tokens, for_decode = jax.random.split(key)
    tokens = network(ids, method="embed_tokens")
    kept = jax.random.uniform(for_tokens, (*ids.shape, 1)) >= input_dropout
    tokens = jnp.where(kept, tokens / (1 - input_dropout), 0)
    mask = jnp.ones(ids.shape, bool)
    hidden = network(network(tokens, method="embed"), mask, key=for_decode, method="decode")
    return network(hidden, mask, method="read_out")


def _measure(
    network: Callable[..., Array], train: Rows, validation: Rows, key: PRNGKeyArray, num_tokens: int
) -> dict[str, Array]:
    logits = network(validation.ids)
    probs = jax.nn.softmax(logits)
    _, noisy = stability.bonami_beckner_pair(
        key, validation.ids, rho=MEASURED_RHO, num_tokens=num_tokens
    )
    seen = jax.tree.map(lambda part: part[: len(validation.ids)], train)
    return {
        "loss": _cross_entropy(logits, validation.labels),
        "accuracy": _accuracy(logits, validation.labels),
        "train_accuracy": _accuracy(network(seen.ids), seen.labels),
        "agreement": jnp.mean(jnp.sum(probs * jax.nn.softmax(network(noisy)), axis=-1)),
        "confidence": jnp.mean(jnp.sum(jnp.square(probs), axis=-1)),
    }


def _cross_entropy(logits: Array, labels: Array) -> Float[Array, ""]:
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))


def _accuracy(logits: Array, labels: Array) -> Float[Array, ""]:
    return jnp.mean(jnp.argmax(logits, -1) == labels)


def _results(arm: Arm, history: Epoch, final: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """One row per run and metric: steps to the target, or percent."""
    problem, epochs = arm.problem, len(history.loss)
    shared = {
        "task": problem.name, "model": arm.name, "site": "token", "seed": problem.seeds,
        "gamma": arm.hyperparameters.gamma, "rho": arm.hyperparameters.rho, "epochs": epochs,
        "horizon": epochs * arm.steps_per_epoch, "rows_per_step": arm.rows_per_step,
    }  # fmt: skip
    measured = {
        "steps": (reached := problem.reached(history)) * arm.steps_per_epoch,
        "validation_accuracy": 100 * history.accuracy[-1],
        "stability": 100 * history.agreement[-1] / history.confidence[-1],
    } | {name: 100 * part for name, part in final.items()}
    if np.isfinite(problem.stability):
        measured |= measurements(history, problem.stability, reached)
    table = pd.concat(
        pd.DataFrame(shared | {"metric": metric, "score": _rounded(values, 6)})
        for metric, values in measured.items()
    )
    noisy = table.metric == "stability"
    return table.assign(
        corruption=np.where(noisy, "token noise", "none"), level=np.where(noisy, MEASURED_RHO, 0.0)
    ).dropna(subset="score")


def _medians(arm: Arm, history: Epoch) -> pd.DataFrame:
    """Medians over the runs of an arm, at 200 epochs at most, and the target's stability."""
    epochs = np.unique(np.linspace(0, len(history.loss) - 1, 200).astype(int))
    medians = {
        name: _rounded(np.median(part[epochs], axis=1), 5)
        for name, part in history._asdict().items()
    }
    medians |= {"step": (epochs + 1) * arm.steps_per_epoch, "target": arm.problem.stability}
    return pd.DataFrame({"task": arm.problem.name, "arm": arm.name, **medians})


def _rounded(values: np.ndarray, digits: int) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values]
