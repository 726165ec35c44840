"""Runs: train cells, test them under conditions, gather the results, write a page.

`runs/NAME/ID/` holds config.json, results.csv, one PNG per figure and report.html; ID is a hash of
the configuration. Trained models are cells, in `runs/cells/`. results.csv is computed from the
cells' predictions, so several processes can work on one run.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from experiments import cells, conditions, report
from experiments.cells import Cell, Spec
from experiments.conditions import Condition, Gaussian
from experiments.models import Variant, build
from experiments.rundir import open_run
from experiments.settings import Flags
from hopfax.data import (
    Encoded,
    TaskData,
    from_rows,
    load_task,
    read_table,
    read_tokenizer,
    read_vocabulary,
    spread,
    task,
)
from hopfax.train.progress import Progress
from hopfax.train.sharding import make_sharding

TRAINING = 0.75  # approximate share of a model's time spent on training, for the progress line


class Job(NamedTuple):
    """A model to train on a task, and what to test it under."""

    task: str
    model: str
    variant: Variant
    conditions: Sequence[Condition]


def fill(
    name: str, config: Flags, jobs: Sequence[Job], page: Callable[[Path], report.Page]
) -> Path:
    """Trains and tests the jobs that are not done yet, and writes the run's page.

    `config` is `settings.resolved`; `page` makes the page of the run's folder, which is returned.

    Raises:
        BlockingIOError: Other processes train all remaining models.
        ValueError, FileNotFoundError: A flag or a file is wrong.
    """
    data = {name: load(config, name) for name in dict.fromkeys(job.task for job in jobs)}
    check(jobs, data)
    for rows in data.values():
        if rows.is_partial:
            print(f"{rows.spec.title}: {len(rows.train.labels):,} training rows, fewer than "
                  "the official training set")  # fmt: skip
    plan = {"cells": [spec_of(config, job, data[job.task]).id for job in jobs]}
    folder = open_run(name, config, plan=plan)
    measured: dict[int, list[dict[str, Any]]] = {}
    with Progress(len(jobs)) as progress:

        def measure(job: Job) -> list[dict[str, Any]]:
            training = progress.part(len(measured), TRAINING)
            testing = progress.part(len(measured) + TRAINING, 1 - TRAINING)
            cell = open_cell(config, job, data[job.task], on_progress=training)
            rows = []
            for count, condition in enumerate(job.conditions, 1):
                rows += conditions.rows(cell, condition, model=job.model)
                testing(count / len(job.conditions))
            return rows

        waiting, before = list(enumerate(jobs)), len(jobs) + 1
        while waiting and len(waiting) < before:
            before, turn, waiting = len(waiting), waiting, []
            for number, job in turn:
                title = f"{data[job.task].spec.title}, {job.variant.title}"
                progress.title = f"[{number + 1}/{len(jobs)}] {title}"
                try:
                    measured[number] = measure(job)
                except BlockingIOError as error:
                    print(f"{title}: {error}; continuing with the next model", flush=True)
                    waiting.append((number, job))
                    continue
                frame = pd.DataFrame([row for _, rows in sorted(measured.items()) for row in rows])
                report.write_results(folder, frame, complete=len(measured) == len(jobs))
    few_rows = (ValueError, IndexError, FileNotFoundError) if waiting else ()
    with contextlib.suppress(*few_rows):
        report.write_report(folder, page(folder))
    if waiting:
        raise BlockingIOError(
            f"{len(waiting)} of {len(jobs)} models are being trained by other processes; run the "
            f"same command again when they have finished. Results so far: {folder}"
        )
    return folder


def check(jobs: Sequence[Job], data: Mapping[str, TaskData]) -> None:
    """Builds every model once, so that wrong flags fail before training starts.

    Raises:
        ValueError: An option is wrong, or a condition requires the texts of an own task.
    """
    for job in jobs:
        spec = data[job.task].spec
        noise = all(isinstance(each, Gaussian) for each in job.conditions)
        if spec.suite == "own" and not noise:
            raise ValueError(f"--train ({job.task}) can be tested under Gaussian noise only")
        inner = any(getattr(each, "site", "") == "embedding" for each in job.conditions)
        if inner and job.variant.denoiser in ("nearest", "linear"):
            raise ValueError(f"{job.model} requires --sites token, got embedding")
        if job.variant.loud and spec.num_outputs != 2:
            raise ValueError(f"{job.model} requires a task with two classes, got {job.task}")
        build(job.variant, spec, vocab_size=8, width=16, ff_width=16, max_length=8)


def load(config: Flags, name: str) -> TaskData:
    """Loads a task's rows as the flags describe."""
    flags = config.data
    folder = getattr(getattr(config, "encoder", None), "pretrained", None)
    if folder and flags.vocab:
        raise ValueError("--vocab must be left out with --pretrained, whose folder has a tokenizer")
    tokens = read_tokenizer(folder) if folder else None
    sizes: dict[str, Any] = {
        "vocab_size": flags.vocab_size or 8000,
        "max_length": flags.max_length,
        "train_size": flags.train_size,
    }
    if flags.train and flags.dev:
        columns: dict[str, Any] = {"text": flags.text, "pair": flags.pair, "label": flags.label}
        data = from_rows(
            *read_table(flags.train, **columns),
            test=read_table(flags.dev, **columns),
            name=name,
            vocabulary=tokens or (read_vocabulary(flags.vocab) if flags.vocab else None),
            **sizes,
        )
    elif task(name).suite == "synthetic":
        data = load_task(name, vocabulary=tokens, **sizes)
    else:
        vocabulary = tokens or flags.vocab
        data = load_task(name, data_dir=flags.data_dir, vocabulary=vocabulary, **sizes)

    few = flags.train_size if config.budget == "smoke" else None
    return data._replace(
        validation=Encoded(*(part[:few] for part in data.validation)),
        test=Encoded(*(spread(part, flags.test_size) for part in data.test)),
    )


def spec_of(config: Flags, job: Job, data: TaskData) -> Spec:
    """Returns everything that the model of a job depends on."""
    flags = config.training
    assert flags.seeds and flags.epochs and flags.patience and flags.width
    if job.model == "pretrained-1e-4" and flags.learning_rate not in (None, 1e-4):
        raise ValueError("leave out --learning-rate for pretrained-1e-4: its rate is 1e-4")
    return Spec(
        task=job.task,
        data=cells.digest(data),
        model={**job.variant.settings(), "precision": flags.precision},
        sizes={
            "width": flags.width,
            "ff_width": 4 * flags.width,
            "num_layers": flags.num_layers,
            "max_length": config.data.max_length,
        },
        seeds=flags.seeds,
        epochs=flags.epochs,
        patience=flags.patience,
        learning_rate=flags.learning_rate or job.variant.learning_rate,
        batch_size=flags.batch_size,
    )


def open_cell(
    config: Flags, job: Job, data: TaskData, *, on_progress: Callable[..., None] | None = None
) -> Cell:
    """Trains or loads the cell of a job; `on_progress` as in `hopfax.train.loop.fit`.

    Raises:
        BlockingIOError: Another process trains it.
    """
    flags = config.training
    return cells.train(
        spec_of(config, job, data),
        dataclasses.replace(job.variant, precision=flags.precision),
        data,
        root=Path(config.runs) / "cells",
        sharding=make_sharding(
            flags.devices, num_seeds=len(flags.seeds or ()), batch_size=flags.batch_size
        ),
        on_progress=on_progress,
    )
