"""Runs: measure jobs, gather their tables, write results and page.

`runs/NAME/ID/` holds config.json, results.csv, one PNG per figure and report.html; ID is a hash of
the configuration. What a job computes is stored elsewhere, such as in `runs/cells/`, and its tables
are computed from there: several processes can work on one run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from experiments import report
from experiments.rundir import open_run, write_whole
from hopfax.train.progress import Progress

Rows = pd.DataFrame | Sequence[Mapping[str, Any]]


class Job(NamedTuple):
    """A unit of a run, such as a model to train and test.

    Attributes:
        title: Its name in the progress line.
        measure: `measure(on_progress)` returns rows by the stem of their CSV file, such as
            "results". `on_progress(share, **shown)` takes the share done, in [0, 1]. A
            BlockingIOError says that another process works on it.
        cell: Its folder in `runs/cells/`, if it has one.
    """

    title: str
    measure: Callable[[Callable[..., None]], Mapping[str, Rows]]
    cell: str = ""


def fill(
    name: str,
    config: Any,
    jobs: Sequence[Job],
    page: Callable[[Path], report.Page],
    *,
    plan: Mapping[str, Any] | None = None,
) -> Path:
    """Measures all jobs, then writes the page; returns the run's folder.

    Args:
        name: The command's name.
        config: Its configuration, a dataclass with the field `runs`.
        jobs: What to measure, in the order of the rows.
        page: Makes the page of the run's folder.
        plan: What the configuration resolves to, see `rundir.open_run`.

    Raises:
        BlockingIOError: Other processes work on all remaining jobs.
    """
    cells = [job.cell for job in jobs if job.cell]
    folder = open_run(name, config, plan={**({"cells": cells} if cells else {}), **(plan or {})})
    done: dict[int, Mapping[str, Rows]] = {}
    with Progress(len(jobs)) as progress:
        waiting, before = list(enumerate(jobs)), len(jobs) + 1
        while waiting and len(waiting) < before:
            before, turn, waiting = len(waiting), waiting, []
            for number, job in turn:
                progress.title = f"[{number + 1}/{len(jobs)}] {job.title}"
                on_progress = progress.part(len(done))
                try:
                    done[number] = job.measure(on_progress)
                except BlockingIOError as error:
                    print(f"{job.title}: {error}; continuing with the next job", flush=True)
                    waiting.append((number, job))
                    continue
                on_progress(1)
                write(folder, [done[each] for each in sorted(done)], complete=not waiting)
    few_rows = (ValueError, IndexError, FileNotFoundError) if waiting else ()
    with contextlib.suppress(*few_rows):
        report.write_report(folder, page(folder))
    if waiting:
        raise BlockingIOError(
            f"{len(waiting)} of {len(jobs)} jobs are in progress in other processes; run the "
            f"same command again when they have finished. Results so far: {folder}"
        )
    return folder


def write(folder: Path, tables: Sequence[Mapping[str, Rows]], *, complete: bool) -> None:
    """Writes the tables of all jobs so far, one CSV file per stem."""
    for stem in dict.fromkeys(stem for each in tables for stem in each):
        table = pd.concat([pd.DataFrame(each[stem]) for each in tables if stem in each])
        if stem == "results":
            report.write_results(folder, table, complete=complete)
        else:
            text = table.to_csv(index=False, lineterminator="\n")
            write_whole(folder / f"{stem}.csv", text)
