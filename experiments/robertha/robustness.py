"""Does Robertha withstand noise that breaks TinyBERT, at the same site and the same SNR?

Paper: Podasca and Das (2026), Tables 2, 3 and 6 to 10. Claim: under Gaussian noise on the
embeddings a two-layer Robertha loses a few points where a TinyBERT falls to chance (GLUE average at
σ = 0.5: 62 against 50).

Command: `python -m experiments robustness` (three embedded tasks, two seeds, under three minutes on
two cores), or for a real task
`python -m experiments robustness --task sst2 --data-dir DIR --vocab DIR/vocab/bert-base-uncased`.

Expected: with noise at the same site and of the same strength, most of the paper's gap is not
there; `experiments/results/robustness/` has what was measured.

A σ means nothing without the site and the signal it is added to, so every model is tested at both
sites (`token`, before positions and LayerNorm; `embedding`, after it), under both protocols
(`sigma`, the same σ; `matched`, the same signal-to-noise ratio).
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from experiments.robertha.measurements import Cell, Grid, load
from experiments.robertha.models import Trainable, check_model, trainable
from experiments.robertha.report import write_report
from experiments.robertha.table import show
from experiments.rundir import add_results, open_run, write_whole
from hopfax.data import TaskData, bucket_boundaries, bucketed, load_task, task
from hopfax.data.batching import Bucket, Encoded
from hopfax.train.checkpoint import Checkpoints
from hopfax.train.evaluate import Noise, Predictions, check_noise, make_predictor, predict
from hopfax.train.loop import Fitted, fit
from hopfax.train.metrics import MetricsLog, scores

REPRODUCES = "Robertha, Tables 2, 3, 6-10: scores under Gaussian embedding noise"

PAPER_SEEDS = (23, 42, 77, 112, 135)


class Budget(NamedTuple):
    """What a size of run means; every field can be set by its flag."""

    seeds: tuple[int, ...]
    epochs: int
    patience: int
    learning_rate: float
    draws: int
    train_size: int | None
    vocab_size: int
    width: int


BUDGETS = {
    "smoke": Budget(PAPER_SEEDS[:2], 1, 1, 1e-3, 1, 128, 2000, 32),
    "laptop": Budget(PAPER_SEEDS[:2], 8, 3, 3e-4, 3, None, 8000, 128),
    "paper": Budget(PAPER_SEEDS, 30, 10, 2e-5, 3, None, 30522, 128),
}
# The embedded tasks know some 250 words: half the width learns them, in a third of the time.
EMBEDDED_LAPTOP = Budget(PAPER_SEEDS[:2], 8, 8, 2e-3, 3, None, 8000, 64)


@dataclass(frozen=True, kw_only=True)
class Config:
    """What to train, what to add to its inputs, and at what cost."""

    task: tuple[str, ...] = ("sentiment", "entailment", "paraphrase")
    """Tasks: these three are embedded; cola sst2 mrpc qqp stsb mnli qnli rte wnli boolq copa wic
    wsc need a data folder."""
    model: tuple[str, ...] = ("tinybert", "robertha")
    """Models: tinybert robertha robertha-no-esr robertha-no-iteration-no-esr."""
    data_dir: str | None = None
    """Folder of raw sets (glue_data/SST-2/train.tsv, ...) or of built TFDS sets."""
    vocab: str | None = None
    """A vocab.txt or its folder; without one a vocabulary is trained on the training texts."""
    budget: Literal["smoke", "laptop", "paper"] = "laptop"
    """Seconds, minutes, or Table 15 of the paper. The flags below override it."""
    seeds: tuple[int, ...] | None = None
    """Training seeds, trained side by side."""
    epochs: int | None = None
    """Most epochs; the learning rate decays over all of them."""
    patience: int | None = None
    """Epochs without a better validation score before a seed stops."""
    learning_rate: float | None = None
    """Peak learning rate."""
    train_size: int | None = None
    """How many training rows to use."""
    vocab_size: int | None = None
    """Most tokens of a trained vocabulary."""
    width: int | None = None
    """Token width; the feed-forward parts are four times as wide."""
    draws: int | None = None
    """Independent noise draws per test row."""
    levels: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0)
    """Noise levels σ; 0 is always measured."""
    sites: tuple[str, ...] = ("token", "embedding")
    """Where the noise is added."""
    protocols: tuple[str, ...] = ("sigma", "matched")
    """Same σ for every model, or same signal-to-noise ratio."""
    preset: str = "hopfax"
    """Reading of the Robertha paper: hopfax, paper (its text) or released (its program)."""
    beta: float = 15.0
    """Robertha's inverse temperature, before the 1/sqrt(head width)."""
    max_steps: int = 50
    """Robertha's most iterations T."""
    tol: float = 1e-4
    """Change at which an iteration stops."""
    esr_weight: float = 0.05
    """Weight of Eigenspectrum Regularization."""
    esr_target: float = 0.35
    """Its target entropy α, in [0, 1]."""
    batch_size: int = 32
    """Rows a training step."""
    max_length: int = 128
    """Longest text in tokens; longer ones are cut."""
    runs: str = "runs"
    """Folder of all runs."""
    resume: bool = True
    """Continue what is missing of an earlier run of the same line; --no-resume starts it over."""


def run(config: Config) -> Path:
    """Trains and tests what is missing of the grid, then writes the report.

    Raises:
        ValueError, FileNotFoundError: A flag or a file is wrong.
        hopfax.train.loop.DivergedError: Training diverged.
    """
    specs = [task(name) for name in config.task]
    budgets = {spec.name: _budget(config, spec.suite == "synthetic") for spec in specs}
    # One grid for all tasks: the seeds that every task has.
    seeds = next(iter(budgets.values())).seeds
    grid = Grid(
        tasks=config.task,
        models=config.model,
        seeds=seeds,
        levels=tuple(level for level in config.levels if level),
        sites=config.sites,
        protocols=config.protocols,
    )
    _check(config, grid)
    if not config.resume:
        shutil.rmtree(_open(config, grid))
    folder = _open(config, grid)
    print(f"writing to {folder}", flush=True)
    for spec in specs:
        missing = [name for name in config.model if not _done(folder, grid, spec.name, name)]
        if missing:
            budget = budgets[spec.name]
            data = load_task(
                spec.name,
                data_dir=None if spec.suite == "synthetic" else config.data_dir,
                vocab=None if spec.suite == "synthetic" else config.vocab,
                vocab_size=budget.vocab_size,
                max_length=config.max_length,
                train_size=budget.train_size,
            )
            for name in missing:
                _run_cell(folder, config, budget, grid, data, name)
            write_report(folder)
    write_report(folder)
    show(load(folder))
    return folder


def _budget(config: Config, embedded: bool) -> Budget:
    chosen = BUDGETS[config.budget]
    if embedded and config.budget == "laptop":
        chosen = EMBEDDED_LAPTOP
    flags = {name: getattr(config, name) for name in Budget._fields}
    return chosen._replace(**{name: flag for name, flag in flags.items() if flag is not None})


def _check(config: Config, grid: Grid) -> None:
    """Looks at every flag before the first minute of training."""
    for name in config.model:
        check_model(name)
        for spec in map(task, config.task):
            _build(config, _budget(config, False), name, spec, vocab_size=8)
    for site, protocol in ((s, p) for s in grid.sites for p in grid.protocols):
        for level in config.levels:
            check_noise(Noise(site, protocol, level))  # pyright: ignore[reportArgumentType]
    for name, values in (("task", config.task), ("model", config.model), ("seeds", grid.seeds)):
        if not values or len(set(values)) < len(values):
            raise ValueError(f"--{name} wants one or more different values, got {values}")


def _build(config: Config, budget: Budget, name: str, spec: Any, *, vocab_size: int) -> Trainable:
    return trainable(
        name,
        spec,
        vocab_size=vocab_size,
        preset_name=config.preset,
        beta=config.beta,
        tol=config.tol,
        max_steps=config.max_steps,
        esr_weight=config.esr_weight,
        esr_target=config.esr_target,
        width=budget.width,
        ff_width=4 * budget.width,
        max_length=config.max_length,
    )


def _done(folder: Path, grid: Grid, task_name: str, model: str) -> bool:
    found = load(folder).scores
    wanted = grid.cells(task_name, model)
    return all(set(grid.seeds) <= found.get(cell, {}).keys() for cell in wanted)


def _open(config: Config, grid: Grid) -> Path:
    return open_run(
        "robustness", config, plan=grid._asdict(), root=config.runs, ignore=("runs", "resume")
    )


def _run_cell(
    folder: Path, config: Config, budget: Budget, grid: Grid, data: TaskData, name: str
) -> None:
    """Trains all seeds of one model on one task, tests them, and adds the rows."""
    spec = data.spec
    built = _build(config, budget, name, spec, vocab_size=data.vocab_size)
    train, validation, test = _buckets(data)

    def score(logits: np.ndarray, labels: np.ndarray) -> float:
        return scores(spec.metrics, logits, labels)["score"]

    cell = folder / "cells" / f"{spec.name}-{name}"
    settings = {"task": spec.name, "model": name, "data": data.source}
    settings |= {"vocabulary": data.vocabulary.size, "rows": len(data.train.labels)}
    settings |= budget._asdict() | {"batch_size": config.batch_size}
    with (
        Checkpoints(cell, config=settings) as checkpoints,
        MetricsLog(cell / "metrics.jsonl") as log,
    ):
        fitted = fit(
            built.model,
            built.objective,
            train=train,
            validation=validation,
            score=score,
            seeds=grid.seeds,
            epochs=budget.epochs,
            learning_rate=budget.learning_rate,
            batch_size=config.batch_size,
            patience=budget.patience,
            checkpoints=checkpoints,
            log=log,
            title=f"{spec.title} {name}",
        )
    add_results(folder, _test(built, fitted, test, data, name, grid, budget.draws))
    # The best parameters stay; what resuming needed, three times their size, can go.
    shutil.rmtree(cell / "last")
    _merge_metrics(folder)


def _buckets(data: TaskData) -> tuple[list[Bucket], list[Bucket], list[Bucket]]:
    """Common padded lengths for the three splits: few where rows are few, since each compiles."""
    splits: tuple[Encoded, ...] = (data.train, data.validation, data.test)
    lengths = np.concatenate([split.lengths.max(axis=1) for split in splits])
    max_buckets = 1 if data.spec.suite == "synthetic" else min(4, 1 + len(lengths) // 1000)
    boundaries = bucket_boundaries(lengths, max_buckets=max_buckets)
    train, validation, test = (bucketed(split, boundaries=boundaries) for split in splits)
    return train, validation, test


def _conditions(grid: Grid, draws: int) -> Iterator[tuple[Cell, Noise | None]]:
    """Every noise to test under, the clean inputs first."""
    for cell in grid.cells("", ""):
        for draw in range(draws if cell.level else 1):
            noise = Noise(cell.site, cell.protocol, cell.level, draw)  # pyright: ignore
            yield cell, noise if cell.level else None


def _test(
    built: Trainable,
    fitted: Fitted,
    test: list[Bucket],
    data: TaskData,
    name: str,
    grid: Grid,
    draws: int,
) -> list[dict[str, Any]]:
    predictor = make_predictor(built.model)
    rows = []
    for cell, noise in _conditions(grid, draws):
        found = predict(predictor, fitted.params, test, noise=noise)
        for number, seed in enumerate(grid.seeds):
            row = {
                "task": data.spec.name,
                "model": name,
                "corruption": "gaussian" if noise else "none",
                "level": cell.level,
                "site": cell.site,
                "seed": seed,
                "num_examples": len(found.labels),
                "snr_db": round(float(found.snr_db[number]), 4) if noise else None,
                "protocol": cell.protocol,
                "draw": noise.draw if noise else 0,
                "num_train": len(data.train.labels),
                "steps_mean": round(float(found.num_steps[number]), 3) if built.iterates else None,
            }
            rows += [row | part for part in _metrics(found, number, data)]
    return rows


def _metrics(found: Predictions, number: int, data: TaskData) -> list[dict[str, Any]]:
    values = scores(data.spec.metrics, found.logits[number], found.labels)
    return [{"metric": metric, "score": round(value, 6)} for metric, value in values.items()]


def _merge_metrics(folder: Path) -> None:
    """One metrics.jsonl for the run, of the cells' own logs, each line saying whose it is."""
    lines = []
    for log in sorted((folder / "cells").glob("*/metrics.jsonl")):
        for line in log.read_text(encoding="utf-8").splitlines():
            lines.append(json.dumps({"cell": log.parent.name} | json.loads(line)))
    write_whole(folder / "metrics.jsonl", "\n".join(lines) + "\n")
