"""Does the stability penalty make a small transformer generalise sooner, at equal compute too?

Paper: Haris, Zhang and Yoshida (2026), section 6, Figures 5 and 11. Claims, each from single runs:
modular addition reaches 95 % validation accuracy in 3300 instead of 4500 iterations (27 % fewer;
the paper calls it 36 % faster) with gamma 0.75 and rho 0.25, and noisy sparse parity is 35 % faster
with gamma = rho = 0.05.

Command: `python -m experiments grokking` (modular addition modulo 31 and parity of 20 bits, eight
seeds an arm: some three hours on two cores), `--budget smoke` (seconds) or `--budget paper`
(the paper's Table 2: modulo 113, 32 seeds; for a GPU). A finished arm is kept: the same line
continues. The laptop budget is not Table 2 made smaller: pre-LN blocks, learning rate 3e-3, weight
decay 0.2 and no plateau schedule, since at Table 2's values few runs arrive in the time there is.

Expected: seeds differ more than arms, so single runs prove nothing; on a laptop the penalty saves
no steps that can be told from chance, and costs twice as much a step. Beside it stand the rivals
that cost as much or less: weight decay, input dropout, twice the batch.

The numbers are in `grokking_settings`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from experiments.noise_stability import arms_page as page
from experiments.noise_stability.arms import SWEEP
from experiments.noise_stability.cells import Cell, Problem, run_cell
from experiments.noise_stability.grokking_settings import (
    ARMS,
    BUDGETS,
    SWEEP_GAMMAS,
    SWEEP_RHOS,
    TARGET,
    ArmName,
    Budget,
    Setting,
    Task,
    arm_of,
)
from experiments.noise_stability.program import Rows
from experiments.rundir import open_run
from hopfax.data import AlgorithmicData, modular_addition, sparse_parity
from hopfax.nn import decoder

REPRODUCES = "Noise stability, Figures 5 and 11: grokking with and without the regularizer"


@dataclass(frozen=True, kw_only=True)
class Config:
    """Which tasks and arms, and how large."""

    budget: Literal["smoke", "laptop", "paper"] = "laptop"
    """Seconds; an hour or two on two cores; or Table 2's sizes, for a GPU. The flags below
    override it."""
    task: tuple[Task, ...] = ()
    """Tasks to run; the budget's own if none is named."""
    arm: tuple[ArmName, ...] = ()
    """Arms to run beside the plain one; all if none is named. Another list is another run."""
    seeds: int | None = None
    """Runs an arm, seeds 0, 1, 2, ...; at least 2."""
    sweep_seeds: int | None = None
    """Seeds at each of nine (gamma, rho), whatever the arms; 0 leaves this out, else at least 2."""
    epochs: int | None = None
    """Maximum number of passes over the training rows, rounded up to tens."""
    modulus: int | None = None
    """K of the addition, at least 2; K * K pairs are to be enough for the budget's rows."""
    num_bits: int | None = None
    """Bits of a parity's rows (the paper: 10 to 100)."""
    num_relevant: int | None = None
    """How many of them it is the parity of (the paper: 2 or 3)."""
    num_train: int | None = None
    """Rows to train on, of every task; those to validate and test stay as many."""
    monitor: Literal["budget", "train", "validation", "none"] = "budget"
    """Loss that lowers the learning rate when it stops falling (Table 2: patience 10 epochs,
    factor 0.8)."""
    runs: str = "runs"
    """Folder of all runs."""


def run(config: Config) -> Path:
    """Trains every arm that is missing and writes the page.

    Raises:
        ValueError: A flag is out of range, or of a task that is not run.
    """
    budget = _sized(config)
    every: tuple[ArmName, ...] = tuple(ARMS)
    few: tuple[ArmName, ...] = ("stable",)
    named = config.arm or (few if config.budget == "smoke" else every)
    chosen: tuple[ArmName, ...] = ("plain", *named)
    arms = {name: ARMS[name] for name in chosen}
    plan = budget._asdict() | {"arms": {name: arm._asdict() for name, arm in arms.items()}}
    plan |= {"sweep": [SWEEP_GAMMAS, SWEEP_RHOS], "target": TARGET}
    settings: dict[Task, Setting] = {"addition": budget.addition, "parity": budget.parity}
    tasks: tuple[Task, ...] = config.task or budget.tasks
    parity_flags = config.num_bits is not None or config.num_relevant is not None
    if ("parity" not in tasks and parity_flags) or (
        "addition" not in tasks and config.modulus is not None
    ):
        raise ValueError(
            f"--modulus is of the addition, --num-bits and --num-relevant are of the parity, and "
            f"the tasks are {', '.join(tasks)}: choose with --task"
        )
    seeds = np.arange(budget.seeds)
    problems: dict[Task, Problem] = {
        task: make_problem(task, settings[task], seeds) for task in tasks
    }
    # The plan has it too; runs from before there was the flag keep their folder.
    ignore = ("runs", "num_train")
    folder = open_run("grokking", config, plan=plan, root=config.runs, ignore=ignore)
    print(f"writing to {folder}", flush=True)
    found: dict[str, list[Cell]] = {}
    title = "Grokking, with and without the regularizer"
    for task, problem in problems.items():
        setting, cells = settings[task], found.setdefault(task, [])
        for name, arm in arms.items():
            cells.append(run_cell(folder, problem, name, *arm_of(setting, arm)))
            # A page after each arm: the next may take hours.
            page.write_page(folder, found, title=title)
        if budget.sweep_seeds:
            cells.append(_sweep(folder, task, setting, budget.sweep_seeds))
            page.write_page(folder, found, title=title)
    page.print_arms(found)
    return folder


def make_problem(task: Task, setting: Setting, seeds: np.ndarray) -> Problem:
    """The task's rows for every seed (its own numbers, hidden bits and flips), and the model."""
    generator = modular_addition if task == "addition" else sparse_parity
    sets: list[AlgorithmicData] = [generator(int(seed), **setting.data) for seed in seeds]
    first = sets[0]

    def stacked(split: str) -> Rows:
        parts = [getattr(each, split) for each in sets]
        ids, labels = ([getattr(part, name) for part in parts] for name in ("ids", "labels"))
        return Rows(jnp.asarray(np.stack(ids)[:, :, 0]), jnp.asarray(np.stack(labels)))

    model = decoder(
        first.vocab_size,
        first.num_classes,
        width=setting.width,
        num_layers=setting.num_layers,
        norm_first=setting.norm_first,
    )
    return Problem(
        name=task,
        model=model,
        train=stacked("train"),
        validation=stacked("validation"),
        test=stacked("test"),
        seeds=seeds,
        num_tokens=first.vocab_size,
        epochs=setting.epochs,
        target=TARGET,
    )


def _sweep(folder: Path, task: Task, setting: Setting, count: int) -> Cell:
    """Every (gamma, rho) with the same few seeds, all in one program."""
    gammas, rhos, seeds = (
        part.ravel() for part in np.meshgrid(SWEEP_GAMMAS, SWEEP_RHOS, np.arange(count))
    )
    problem = make_problem(task, setting, seeds.astype(int))
    recipe, dials = arm_of(setting, ARMS["stable"])
    return run_cell(folder, problem, SWEEP, recipe, dials._replace(gamma=gammas, rho=rhos))


def _sized(config: Config) -> Budget:
    budget = BUDGETS[config.budget]
    if config.seeds is not None:
        budget = budget._replace(seeds=config.seeds)
    if config.sweep_seeds is not None:
        budget = budget._replace(sweep_seeds=config.sweep_seeds)
    if budget.seeds < 2 or budget.sweep_seeds < 0 or budget.sweep_seeds == 1:
        raise ValueError(
            "grokking wants --seeds >= 2 and --sweep-seeds 0 or >= 2 (intervals are over seeds), "
            f"got {budget.seeds} and {budget.sweep_seeds}"
        )
    if config.num_train is not None:
        least = max(budget.addition.batch_size, budget.parity.batch_size)
        if config.num_train < least:
            raise ValueError(f"--num-train must be at least a batch, {least}: {config.num_train}")
    changes: dict[str, Any] = {}
    if config.epochs is not None:
        if config.epochs < 1:
            raise ValueError(f"--epochs must be at least 1, got {config.epochs}")
        changes["epochs"] = config.epochs
    if config.monitor != "budget":
        changes["monitor"] = None if config.monitor == "none" else config.monitor
    return budget._replace(
        addition=_changed(
            budget.addition, changes, modulus=config.modulus, num_train=config.num_train
        ),
        parity=_changed(
            budget.parity,
            changes,
            num_bits=config.num_bits,
            num_relevant=config.num_relevant,
            num_train=config.num_train,
        ),
    )


def _changed(setting: Setting, changes: dict[str, Any], **data: int | None) -> Setting:
    given = {name: flag for name, flag in data.items() if flag is not None}
    return setting._replace(data=setting.data | given, **changes)
