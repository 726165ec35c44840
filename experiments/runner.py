"""Runs: from flags to trained models, their scores under conditions, and a page.

A run is a list of jobs. `fill` measures them, gathers their tables and writes results and page to
`runs/NAME/ID/`, where ID is a hash of the configuration. A trial is a model to train and test; its
job trains a cell, or finds it in `runs/cells/`, and results are computed from what cells store.
Several processes can therefore work on one run; `cluster` starts them.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import pandas as pd

from experiments import cells, cluster, conditions, report
from experiments.cells import Cell, Spec
from experiments.cluster import Job as Job
from experiments.cluster import Rows as Rows
from experiments.conditions import Condition, EvaluationSet, Typos
from experiments.models import Variant, build
from experiments.rundir import open_run, read_config, restore, write_whole
from experiments.settings import Flags
from hopfax.cpu import usable_cores
from hopfax.data import Encoded, TaskData, evenly_spaced, from_rows, load_task, read_table
from hopfax.data.tasks import look_up, task
from hopfax.data.tokenizer_files import read_tokenizer
from hopfax.train.progress import Progress
from hopfax.train.sharding import first, make_sharding

TRAINING = 0.75  # approximate share of a model's time spent on training, for the progress line


def fill(
    name: str,
    config: Any,
    jobs: Sequence[Job],
    page: Callable[[Path], report.Page],
    *,
    plan: Mapping[str, Any] | None = None,
) -> Path:
    """Measures all jobs in order, then writes the page; returns the run's folder.

    `config` and `plan` are those of `rundir.open_run`; `page` makes the page of the folder. Ends
    with SystemExit after `--plan`.

    Raises:
        BlockingIOError: Other processes work on all remaining jobs.
        ChildProcessError: Jobs failed in workers; the other jobs are done.
    """
    root = Path(config.runs) / "cells"
    if cluster.assigned:
        cluster.work(jobs, root)
        return root
    if config.cluster.plan:
        print(cluster.plan(jobs, root, config.cluster.workers))
        sys.exit()
    cells = [job.cell for job in jobs if job.cell]
    folder = open_run(name, config, plan={**({"cells": cells} if cells else {}), **(plan or {})})
    done: dict[int, Mapping[str, Rows]] = {}
    own, context = dict.fromkeys(range(len(jobs)), 0.0), copy_context()
    context.run(conditions.computes.set, config.cluster.launcher == "none")
    with Progress(len(jobs)) as progress, start_workers(config, jobs, folder) as workers:

        def on_progress(number: int, share: float, title: str = "", **shown: Any) -> None:
            own[number] = share
            workers.poll()
            progress.title = f"[{number + 1}/{len(jobs)}] {title or jobs[number].title}"
            progress.update(sum(max(own[each], workers.share(each)) for each in own), **shown)

        waiting, before = [*own], len(jobs) + 1
        while waiting and (len(waiting) < before or workers.are_busy()):
            before = len(waiting)
            for number in [*waiting]:
                if workers.has(number):
                    continue
                if number not in workers.failed:
                    try:
                        tables = workers.tables.get(number) or context.run(
                            jobs[number].measure, partial(on_progress, number)
                        )
                    except conditions.NotStored:
                        workers.add(number)
                        continue
                    except BlockingIOError as error:
                        if not workers.are_busy():
                            title = jobs[number].title
                            print(f"{title}: {error}; continuing with the next job", flush=True)
                        continue
                    done[number] = tables
                    on_progress(number, 1)
                    complete = len(done) == len(jobs)
                    write(folder, [done[each] for each in sorted(done)], complete=complete)
                waiting.remove(number)
            if len(waiting) == before and workers.are_busy():
                time.sleep(0.2)
                number = max(waiting, key=workers.share)
                title = "" if workers.own else f"{len(workers.running)} of {workers.count} workers"
                on_progress(number, own[number], title)
                before = len(jobs) + 1  # another turn follows
    few_rows = (ValueError, IndexError, FileNotFoundError) if len(done) < len(jobs) else ()
    with contextlib.suppress(*few_rows):
        first(lambda: report.write_report(folder, page(folder)))
    if failed := workers.failed:
        lines = "".join(f"\n  {jobs[each].title}: {reason}" for each, reason in failed.items())
        raise ChildProcessError(
            f"{len(failed)} of {len(jobs)} jobs failed:{lines}\nLogs: {workers.folder}. To try "
            f"again, run the same command. Results so far: {folder}"
        )
    if waiting:
        raise BlockingIOError(
            f"{len(waiting)} of {len(jobs)} jobs are in progress in other processes; run the "
            f"same command again when they have finished. Results so far: {folder}"
        )
    return folder


def start_workers(config: Any, jobs: Sequence[Job], folder: Path) -> cluster.Workers:
    """Returns the run's workers: a launcher's, or a second process if two models are not trained.

    One model does not keep two cores busy, and compilation keeps only one. The second process
    trains the last model first. It is not used on GPUs, or in smoke runs. Results are the same to
    the bit.
    """
    flags, root = config.cluster, Path(config.runs) / "cells"
    own = folder.absolute() / f"workers-{secrets.token_hex(4)}"
    found = cluster.units(jobs)
    trials = [n for n, (k, *_) in found.items() if getattr(jobs[k].measure, "func", 0) is measure]
    if flags.launcher != "none":
        # Of trained models, this process looks whether all predictions are stored.
        kept = {n for n in found if (root / n).is_file() or (n in trials and (root / n).exists())}
        turns = [[name] for name in found if name not in kept]
        submit = cluster.launcher(flags.launcher, flags.launcher_options or (), flags.workers, own)
        return cluster.Workers(config, jobs, turns, submit, count=flags.workers, folder=own)
    missing = [name for name in reversed(trials) if not (root / name).exists()]
    several = len(missing) > 1 and config.budget != "smoke" and jax.process_count() == 1
    several &= jax.default_backend() == "cpu" and jax.device_count() < usable_cores()
    turns, submit = [missing] if several else [], ThreadPoolExecutor(1).submit
    return cluster.Workers(config, jobs, turns, submit, count=1, folder=own, own=True)


def write(folder: Path, tables: Sequence[Mapping[str, Rows]], *, complete: bool) -> None:
    """Writes the tables of all jobs so far, one CSV file per stem."""
    for stem in dict.fromkeys(stem for each in tables for stem in each):
        table = pd.concat([pd.DataFrame(each[stem]) for each in tables if stem in each])
        if stem == "results":
            report.write_results(folder, table, complete=complete)
        elif complete:
            text = table.to_csv(index=False, lineterminator="\n")
            write_whole(folder / f"{stem}.csv", text)


class Trial(NamedTuple):
    """A model to train on a task, and what to test it under, with each denoiser."""

    task: str
    model: str
    variant: Variant
    conditions: Sequence[Condition]
    denoisers: Sequence[str] = ("none",)


def measure(
    config: Flags, trial: Trial, data: TaskData, on_progress: Callable[..., None],
    rows: Callable[..., Iterable[Mapping[str, Any]]] | None = None,
) -> Mapping[str, Rows]:  # fmt: skip
    """Trains and tests the model of a trial, see `Job`; `rows` replaces `conditions.rows`."""
    training = lambda share, **shown: on_progress(TRAINING * share, **shown)  # noqa: E731
    cell = open_cell(config, trial, data, on_progress=training)
    tests = list(product(trial.denoisers, trial.conditions))
    tested = {each: cells.with_denoiser(cell, each) for each in trial.denoisers}
    results = []
    for count, (denoiser, condition) in enumerate(tests, 1):
        results += (rows or conditions.rows)(tested[denoiser], condition, model=trial.model)
        on_progress(TRAINING + (1 - TRAINING) * count / len(tests))
    return {"results": results}


def jobs(
    config: Flags, trials: Sequence[Trial], measure: Callable[..., Mapping[str, Rows]] = measure,
    data: Mapping[str, TaskData] | None = None,
) -> list[Job]:  # fmt: skip
    """Returns the jobs of trials; see `check`. `data` are their tasks' rows, if loaded."""
    data = data or {each: load(config, each) for each in dict.fromkeys(t.task for t in trials)}
    check(trials, data)
    for rows in data.values():
        if rows.is_partial:
            count = f"{len(rows.train.labels):,}"
            print(f"{rows.spec.title}: {count} training rows, fewer than the original")

    def job(trial: Trial) -> Job:
        rows = data[trial.task]
        title = f"{rows.spec.title}, {trial.variant.title}"
        return Job(title, partial(measure, config, trial, rows), spec_of(config, trial, rows).id)

    return [job(trial) for trial in trials]


def check(trials: Sequence[Trial], data: Mapping[str, TaskData]) -> None:
    """Builds every model once, so that wrong flags fail before training starts.

    Raises:
        ValueError: An option is wrong, or a condition requires the texts of an own task.
    """
    for trial in trials:
        spec = data[trial.task].spec
        of_texts = any(isinstance(each, (Typos, EvaluationSet)) for each in trial.conditions)
        if spec.suite == "own" and of_texts:
            raise ValueError(f"--train ({trial.task}) can be tested under Gaussian noise only")
        inner = any(getattr(each, "site", "") == "embedding" for each in trial.conditions)
        for denoiser in {"nearest", "linear"} & {*trial.denoisers} if inner else ():
            raise ValueError(f"--denoiser {denoiser} requires --sites token, got embedding")
        if trial.variant.loud and spec.num_outputs != 2:
            raise ValueError(f"{trial.model} requires a task with two classes, got {trial.task}")
        build(trial.variant, spec, vocab_size=8, width=16, ff_width=16, max_length=8)


def load(config: Flags, name: str) -> TaskData:
    """Loads a task's rows as the flags describe."""
    flags, folder = config.data, config.encoder.pretrained
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
        train, dev = (read_table(path, **columns) for path in (flags.train, flags.dev))
        for path, table in ((flags.train, train), (flags.dev, dev)):
            print(f"{path}: {', '.join(table.notes)}")
        data = from_rows(*train, test=dev, name=name, vocabulary=tokens or flags.vocab, **sizes)
    elif task(name).suite == "synthetic":
        data = load_task(name, vocabulary=tokens, **sizes)
    else:
        vocabulary = tokens or flags.vocab
        data = load_task(name, data_dir=flags.data_dir, vocabulary=vocabulary, **sizes)

    few = flags.train_size if config.budget == "smoke" else None
    return data._replace(
        validation=Encoded(*(part[:few] for part in data.validation)),
        test=Encoded(*(evenly_spaced(part, flags.test_size) for part in data.test)),
    )


def spec_of(config: Flags, trial: Trial, data: TaskData) -> Spec:
    """Returns everything that the model of a trial depends on."""
    flags, model = config.training, trial.variant
    assert flags.seeds and flags.epochs and flags.patience and flags.width
    return Spec(
        task=trial.task,
        data=cells.digest(data),
        model={**model.settings(), "precision": flags.precision},
        sizes={
            "width": flags.width,
            "ff_width": 4 * flags.width,
            "num_layers": flags.num_layers,
            "max_length": config.data.max_length,
        },
        seeds=flags.seeds,
        epochs=flags.epochs,
        patience=flags.patience,
        learning_rate=model.fixed_rate or flags.learning_rate or model.learning_rate,
        batch_size=flags.batch_size,
    )


def open_cell(
    config: Flags, trial: Trial, data: TaskData, *, on_progress: Callable[..., None] | None = None
) -> Cell:
    """Trains or loads the cell of a trial; `on_progress` as in `hopfax.train.loop.fit`.

    Raises:
        BlockingIOError: Another process trains it.
    """
    flags = config.training
    return cells.train(
        spec_of(config, trial, data),
        replace(trial.variant, precision=flags.precision),
        data,
        root=Path(config.runs) / "cells",
        sharding=make_sharding(
            flags.devices, num_seeds=len(flags.seeds or ()), batch_size=flags.batch_size
        ),
        on_progress=on_progress,
    )


def open_trained(run: str | Path, *, model: str | None, task: str | None) -> tuple[Cell, Flags]:
    """Returns a trained model of a run without a denoiser, and the run's flags.

    `run` is the folder of a run that trains encoders, such as `runs/robustness/ID`; its data must
    still be where its command found them. `model` and `task` may be None for the only one.

    Raises:
        ValueError, FileNotFoundError: The run has no such model, or it is not trained.
    """
    folder = Path(run).resolve()
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"--run must be the folder of a run, got {run}")
    document = read_config(folder, "experiment", "config")
    if not {"data", "training", "encoder", "model"} <= document["config"].keys():
        name = document["experiment"]
        raise ValueError(f"--run must be of an experiment that trains encoders, got {name}")
    flags = replace(restore(Flags(), document["config"]), runs=str(folder.parents[1]))
    known = document.get("plan", {}).get("models", document["config"]["model"])
    name = choose("--model", model, known)
    task = choose("--task", task, flags.data.task)
    data = load(flags, task)
    trial = Trial(task, name, flags.encoder.models([name])[name], ())
    if not (cell := folder.parents[1] / "cells" / spec_of(flags, trial, data).id).is_dir():
        raise FileNotFoundError(f"{name} is not trained on {task}: there is no {cell}")
    return open_cell(flags, trial, data), flags


def choose(flag: str, name: str | None, names: Sequence[str]) -> str:
    """Returns the name, or the only one of the run."""
    if name is None and len(names) > 1:
        raise ValueError(f"{flag} is required: the run has {', '.join(names)}")
    return look_up(flag, name or names[0], dict(zip(names, names, strict=True)))
