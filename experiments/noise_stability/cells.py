"""One arm of a comparison: its runs trained together, its history kept as one file."""

import hashlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from experiments.noise_stability.program import Dials, Recipe, Rows, Split, accuracy_of
from experiments.noise_stability.runs import History, train_runs
from experiments.rundir import plain, write_whole
from hopfax.nn import Decoder, Functional, Params
from hopfax.train.checkpoint import Checkpoints
from hopfax.train.snapshot import differences

Examine = Callable[[Decoder, Rows, Rows, Rows], dict[str, Array]]
SETTINGS = "settings"
FINAL = "final_"  # in the kept file, before the names of what was examined at the end


class Problem(NamedTuple):
    """What all arms of a comparison share.

    Attributes:
        name: Of the task.
        model: What is trained.
        train: Rows, with a leading axis of seeds.
        validation: The same.
        test: The same.
        seeds: `(seeds,)`.
        num_tokens: Size of the vocabulary.
        epochs: Most passes over the rows.
        target: Accuracy that counts as having arrived, in [0, 1].
        target_on: The rows it is measured on.
    """

    name: str
    model: Functional[Decoder]
    train: Rows
    validation: Rows
    test: Rows
    seeds: np.ndarray
    num_tokens: int
    epochs: int
    target: float
    target_on: Split = "validation"


class Cell(NamedTuple):
    """A finished arm.

    Attributes:
        name: Of the arm.
        seeds: `(runs,)`.
        dials: Each `(runs,)`.
        passes_per_step: Rows that go forward and backward in a step, noisy ones among them.
        steps_per_epoch: Steps.
        history: Its epochs.
        final: `(runs,)` each, what was examined of the last parameters.
        target: Accuracy at which a run has arrived.
        target_on: The rows it is measured on.
    """

    name: str
    seeds: np.ndarray
    dials: Dials
    passes_per_step: float
    steps_per_epoch: int
    history: History
    final: dict[str, np.ndarray]
    target: float
    target_on: Split

    @property
    def horizon(self) -> float:
        """Steps its runs were followed; infinite if all had arrived by then."""
        if np.isfinite(self.steps).all():
            return np.inf
        return float(len(self.history.loss) * self.steps_per_epoch)

    @property
    def steps(self) -> np.ndarray:
        """`(runs,)` steps to the target; inf for a run that did not get there."""
        return self.history.reached(self.target, self.target_on) * self.steps_per_epoch


def run_cell(
    folder: Path,
    problem: Problem,
    name: str,
    recipe: Recipe,
    dials: Dials,
    *,
    examine: Examine | None = None,
    epochs_per_call: int = 10,
) -> Cell:
    """Trains an arm, or reads it if it is finished.

    Args:
        folder: The run's folder; the arm is kept in its `cells/`.
        problem: What all arms share. Dials that are `(runs,)` ask for as many seeds.
        name: Of the arm.
        recipe: What is compiled in.
        dials: What its runs may differ in.
        examine: `examine(network, train, validation, test)` of each run at its end; None for the
            accuracy on the test rows.
        epochs_per_call: See `train_runs`.
    """
    path = folder / "cells" / f"{problem.name}-{name}"
    kept = path.with_suffix(".npz")
    steps_per_epoch = problem.train.ids.shape[1] // recipe.batch_size
    spread = Dials(*(np.broadcast_to(np.float32(dial), problem.seeds.shape) for dial in dials))
    settings = {
        "recipe": plain(recipe),
        "dials": {field: dial.tolist() for field, dial in spread._asdict().items()},
        "seeds": problem.seeds.tolist(),
        "epochs": problem.epochs,
        "target": [problem.target, problem.target_on],
        "rows": _digest(problem),
    }
    if not kept.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with Checkpoints(path, config=settings) as checkpoints:
            history, params = train_runs(
                problem.model,
                recipe,
                spread,
                problem.train,
                problem.validation,
                seeds=problem.seeds,
                num_tokens=problem.num_tokens,
                epochs=problem.epochs,
                target=problem.target,
                target_on=problem.target_on,
                epochs_per_call=epochs_per_call,
                checkpoints=checkpoints,
                title=f"{problem.name}, {name}",
            )

        @jax.jit
        @jax.vmap
        def look(params: Params, *splits: Rows) -> dict[str, Array]:
            return (examine or on_test_rows)(problem.model.bind(params), *splits)

        final = look(params, problem.train, problem.validation, problem.test)
        arrays = history._asdict() | {FINAL + name: part for name, part in final.items()}
        kept_as = {name: np.asarray(part, np.float32) for name, part in arrays.items()}
        kept_as[SETTINGS] = np.array(json.dumps(settings))
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **kept_as)  # pyright: ignore[reportArgumentType]
        write_whole(kept, buffer.getvalue())
        shutil.rmtree(path)
    with np.load(kept, allow_pickle=False) as arrays:
        if changed := differences(json.loads(str(arrays[SETTINGS])), settings):
            raise ValueError(
                f"{kept} is of other settings (there → now):{changed}\n"
                "Move it away to train this arm again."
            )
        history = History(*(arrays[field] for field in History._fields))
        final = {
            name.removeprefix(FINAL): arrays[name] for name in arrays if name.startswith(FINAL)
        }
    return Cell(
        name=name,
        seeds=problem.seeds,
        dials=spread,
        passes_per_step=recipe.passes * recipe.batch_size,
        steps_per_epoch=steps_per_epoch,
        history=history,
        final=final,
        target=problem.target,
        target_on=problem.target_on,
    )


def _digest(problem: Problem) -> str:
    digest = hashlib.sha256()
    for part in jax.tree.leaves((problem.train, problem.validation, problem.test)):
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()[:16]


def on_test_rows(network: Decoder, train: Rows, validation: Rows, test: Rows) -> dict[str, Array]:
    """What a run is examined for unless something else is asked."""
    return {"test_accuracy": accuracy_of(network, test)}
