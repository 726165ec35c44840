"""Does the stability regularizer make a small transformer generalize sooner, at equal compute too?

Paper: Haris, Zhang and Yoshida (2026), section 6, Figures 5 and 11. Claims, each from single runs:
modular addition reaches 95 % validation accuracy in 3300 instead of 4500 iterations (27 % fewer;
the paper calls it 36 % faster) with γ = 0.75 and ρ = 0.25, and noisy sparse parity is 35 % faster
with γ = ρ = 0.05. The text trains for 10,000 iterations, Table 2 for 7,000 epochs (49,000 steps).

Command: `python -m experiments grokking` (modular addition modulo 31 and parity of 20 bits, eight
seeds an arm, about three hours on two cores) or `--budget paper` (the paper's Table 2: modulo 113,
32 seeds; for a GPU). Few runs reach the target at the laptop's sizes with Table 2's values: it has
pre-LN blocks, learning rate 3e-3, weight decay 0.2 and no plateau schedule. With `--task grokking
--sweep-seeds 0 --arm stability_reg stability_reg-negative` (1,044 of 3,481 pairs modulo 59, weight
decay 1; 80 minutes on a core), validation accuracy is late. Rule: `tidy.verdict` on steps saved.

Expected: seeds differ more than arms. At the laptop's sizes the regularizer has no detectable
effect and doubles the compute of a step. In the grokking regime, plain runs fit in 350 steps and
generalize after 2,242 [2,090, 2,452]; the regularizer saves 1 [−9, 10] % of the steps.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from experiments import report, runner, tidy
from experiments.noise_stability import indicator, outcomes, training
from experiments.report import Page
from experiments.settings import Run, budget_of, by_budget, optional
from hopfax.data import modular_addition, sparse_parity
from hopfax.nn import decoder

REPRODUCES = "Noise stability, Figures 5 and 11: grokking with and without the regularizer"

TARGET = 0.95
SWEEP_GAMMAS = (0.25, 0.75, 2.0)
SWEEP_RHOS = (0.05, 0.25, 0.75)
Task = Literal["addition", "parity", "grokking"]  # grokking: addition, few pairs, strong decay
ArmName = Literal[
    "baseline", "stability_reg", "stability_reg-negative", "stability_reg-every-4",
    "stability_reg-quarter", "weight-decay", "input-dropout", "double-batch",
]  # fmt: skip
# What an arm changes in its task's setting.
ARMS: dict[ArmName, dict[str, Any]] = {
    "baseline": {},
    "stability_reg": {"penalized": True},
    "stability_reg-negative": {"penalized": True, "stabilize": False},
    "stability_reg-every-4": {"penalized": True, "every": 4},
    "stability_reg-quarter": {"penalized": True, "share": 0.25},
    "weight-decay": {"strong_decay": True},
    "input-dropout": {"input_dropout": 0.1},
    "double-batch": {"batches": 2},
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Hyperparameters of a task; the defaults are Table 2's."""

    data: dict[str, int]  # arguments of the task's generator
    width: int = 128
    num_layers: int = 2
    batch_size: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 1e-3
    strong_decay: float = 1.0  # of the arm `weight-decay`
    epochs: int = 7000  # maximum number
    gamma: float = 0.75  # weight of the regularizer
    rho: float = 0.25  # its noise parameter
    norm_first: bool = False  # pre-LN or post-LN blocks
    plateau: bool = True  # whether a plateau of the validation loss lowers the learning rate


class Budget(NamedTuple):
    """What a size of run means; `arm` is compared with the baseline."""

    seeds: int
    sweep_seeds: int
    settings: dict[Task, Setting]
    arm: tuple[ArmName, ...] = tuple(name for name in ARMS if name != "baseline")


PARITY: Any = {"gamma": 0.05, "rho": 0.05}
LAPTOP: Any = {"learning_rate": 3e-3, "norm_first": True, "weight_decay": 0.2, "strong_decay": 0.6,
               "plateau": False}  # fmt: skip
GROKKING: Any = LAPTOP | {"weight_decay": 1.0}
TINY = {"modulus": 5, "num_train": 15, "num_validation": 5, "num_test": 5}
FEW = {"modulus": 59, "num_train": 1044, "num_validation": 200, "num_test": 200}
SMALL = {"modulus": 31, "num_train": 720, "num_validation": 140, "num_test": 100}
BITS = {"num_bits": 20, "num_train": 1000}
PAPER_BITS = {"num_bits": 50, "num_relevant": 3, "num_train": 5000}
SMOKE: dict[Task, Setting] = {
    "addition": Setting(data=TINY, width=8, num_layers=1, batch_size=5, epochs=10, **LAPTOP)
}
MEDIUM: dict[Task, Setting] = {
    "addition": Setting(data=SMALL, width=48, batch_size=120, epochs=500, **LAPTOP),
    "parity": Setting(data=BITS, width=32, batch_size=100, epochs=200, **LAPTOP, **PARITY),
    "grokking": Setting(data=FEW, width=48, batch_size=522, epochs=1600, **GROKKING),
}
TABLE2: dict[Task, Setting] = {
    "addition": Setting(data={"modulus": 113}),
    "parity": Setting(data=PAPER_BITS, epochs=2000, **PARITY),
}
BUDGETS = {
    "smoke": Budget(2, 0, SMOKE, ("stability_reg",)),
    "laptop": Budget(8, 2, MEDIUM),
    "paper": Budget(32, 4, TABLE2),
}
# Flags of a task's generator.
FLAGS: dict[Task, tuple[str, ...]] = {
    "addition": ("num_train", "modulus"),
    "parity": ("num_train", "num_bits", "num_relevant"),
    "grokking": ("num_train", "modulus"),
}


@dataclass(frozen=True, kw_only=True)
class Config(Run):
    """Tasks, arms and sizes."""

    task: tuple[Task, ...] = ("addition", "parity")
    """Tasks to run."""
    arm: Annotated[
        tuple[ArmName, ...] | None, optional("NAME ...", "all; stability_reg (smoke)")
    ] = None
    """Arms to compare with the baseline."""
    seeds: Annotated[int | None, by_budget("seeds", "INT", BUDGETS)] = None
    """Number of seeds per arm; at least 3, except in a smoke run."""
    sweep_seeds: Annotated[int | None, by_budget("sweep_seeds", "INT", BUDGETS)] = None
    """Seeds for each of the nine settings of γ and ρ; 0 skips the sweep."""
    epochs: Annotated[int | None, optional("INT", "by budget and task")] = None
    """Maximum number of passes over the training rows, rounded up to tens."""
    modulus: Annotated[int | None, optional("INT", "by budget")] = None
    """Modulus of the addition, at least 2."""
    num_bits: Annotated[int | None, optional("INT", "by budget")] = None
    """Input bits of the parity task (the paper: 10 to 100)."""
    num_relevant: Annotated[int | None, optional("INT", "by budget")] = None
    """Number of relevant bits (the paper: 2 or 3)."""
    num_train: Annotated[int | None, optional("INT", "by budget")] = None
    """Training rows of every task."""


def run(config: Config) -> Path:
    """Trains every arm that is missing, then writes the page; see `resolved` for errors."""
    budget = resolved(config)
    arms = []
    for task, setting in budget.settings.items():
        problem = make_problem(task, setting, np.arange(budget.seeds))
        arms += [make_arm(problem, setting, name) for name in ("baseline", *budget.arm)]
        if budget.sweep_seeds > 0:
            grid = np.meshgrid(SWEEP_GAMMAS, SWEEP_RHOS, np.arange(budget.sweep_seeds))
            gamma, rho, seeds = (part.ravel() for part in grid)
            problem = make_problem(task, setting, seeds.astype(int))
            arm = make_arm(problem, setting, "stability_reg")
            numbers = arm.hyperparameters._replace(gamma=gamma, rho=rho)
            arms.append(arm._replace(name=outcomes.SWEEP, hyperparameters=numbers))
    return runner.fill("grokking", config, training.jobs(config, arms), page)


def page(folder: Path) -> Page:
    """The page of a run."""
    sweep = tidy.select(tidy.read(folder), metric="steps", model=outcomes.SWEEP)
    medians = sweep.pivot_table("score", ["task", "gamma"], "rho", aggfunc="median")
    cells = medians.map("{:,.0f}".format).reset_index().astype(str)
    heads = ["task", "γ", *(f"ρ = {rho:g}" for rho in medians)]
    table = report.Table(heads, cells.to_numpy().tolist(), "Median steps at other γ and ρ")
    title = "Grokking with and without the regularizer"
    return outcomes.page(folder, title, [table] if len(cells) else [])


def make_problem(task: Task, setting: Setting, seeds: np.ndarray) -> training.Problem:
    """The task's rows for every seed (its own numbers, hidden bits and flips), and the model."""
    generator = sparse_parity if task == "parity" else modular_addition
    sets = [generator(int(seed), **setting.data) for seed in seeds]
    sizes = {name: getattr(setting, name) for name in ("width", "num_layers", "norm_first")}
    return training.Problem(
        name=task,
        model=decoder(sets[0].vocab_size, sets[0].num_classes, **sizes),
        settings={"task": task, **asdict(setting)},
        splits=training.stacked(sets),
        seeds=seeds,
        num_tokens=sets[0].vocab_size,
        epochs=setting.epochs,
        target=TARGET,
        stability=indicator.target_stability(sets[0].num_classes, len(sets[0].relevant)),
    )


def make_arm(problem: training.Problem, setting: Setting, name: ArmName) -> training.Arm:
    """An arm's static configuration and hyperparameters."""
    changes = ARMS[name]
    static = training.Static(
        batch_size=setting.batch_size * changes.get("batches", 1),
        plateau=setting.plateau,
        **{key: value for key, value in changes.items() if key in training.Static._fields},
    )
    numbers = training.Hyperparameters(
        learning_rate=setting.learning_rate,
        weight_decay=setting.strong_decay if "strong_decay" in changes else setting.weight_decay,
        gamma=setting.gamma if static.penalized else 0.0,
        rho=setting.rho,
        input_dropout=changes.get("input_dropout", 0.0),
    )
    return training.Arm(problem, name, static, numbers)


def resolved(config: Config) -> Budget:
    """The budget with the flags applied; a ValueError names a flag that is wrong or unused."""
    budget = budget_of(config, BUDGETS)
    if budget.seeds < (least := 2 if config.budget == "smoke" else 3):
        raise ValueError(f"--seeds must be >= {least}, got {budget.seeds}")
    settings = {task: budget.settings[task] for task in config.task if task in budget.settings}
    if not settings:
        raise ValueError(f"--budget {config.budget} requires --task {' '.join(budget.settings)}")
    batches = max(ARMS[name].get("batches", 1) for name in budget.arm)
    used = {flag for task, names in FLAGS.items() if task in settings for flag in names}
    for task, names in FLAGS.items():
        flags = {name: getattr(config, name) for name in names if getattr(config, name) is not None}
        if unused := {} if task in settings else flags.keys() - used:
            flag = min(unused).replace("_", "-")
            raise ValueError(f"--{flag} requires --task {task}, got {' '.join(settings)}")
        if not (setting := settings.get(task)):
            continue
        if flags.get("num_train", inf) < (largest := setting.batch_size * batches):
            raise ValueError(
                f"--num-train must be at least a batch, {largest}, got {config.num_train}"
            )
        epochs = config.epochs or setting.epochs
        settings[task] = replace(setting, data=setting.data | flags, epochs=epochs)
    return budget._replace(settings=settings)
