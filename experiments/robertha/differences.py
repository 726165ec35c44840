"""Differences between models of `robustness` runs, as a table: what the published pages quote.

    python -m experiments.robertha.differences --run experiments/results/robustness/seven_tasks

Every entry is a model minus another, the seeds paired, with Student's 95 % interval; over several
tasks and levels it is the difference of the seeds' means. An interval without zero is in bold.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from experiments.robertha.labels import with_interval
from experiments.robertha.measurements import (
    Measurements,
    check_chosen,
    load,
    model_title,
    task_title,
)
from experiments.robertha.statistics import Summary, mean_by_seed, paired_difference
from experiments.speed.publish import markdown_table


@dataclass(frozen=True, kw_only=True)
class Config:
    """Whose differences."""

    run: str
    """Folder of a `robustness` run, or of its published results."""
    model: tuple[str, ...] | None = None
    """Models; without it all that have scores but the one that is taken off."""
    minus: str = "tinybert"
    """The model that is taken off."""
    minus_run: str | None = None
    """Folder of the run that has it; without it the same."""
    task: tuple[str, ...] | None = None
    """Tasks, of which the mean is taken; without it all that all of these models have scores of."""
    levels: tuple[float, ...] | None = None
    """Levels of noise, of which the mean is taken; without it all of the run."""
    each_task: bool = False
    """A line for every task, not their mean."""
    each_level: bool = False
    """A line for every level, not their mean."""


class Column(NamedTuple):
    """What is compared: protocol, and the site of the noise on either model ("" for none)."""

    title: str
    protocol: str
    site: str
    minus_site: str


COLUMNS = (
    Column("clean", "", "", ""),
    Column("same σ, on the tokens", "sigma", "token", "token"),
    Column("same σ, after the LayerNorm", "sigma", "embedding", "embedding"),
    Column("same σ, after the LayerNorm minus on the tokens", "sigma", "embedding", "token"),
    Column("same SNR, on the tokens", "matched", "token", "token"),
    Column("same SNR, after the LayerNorm", "matched", "embedding", "embedding"),
)


def table(config: Config) -> list[list[str]]:
    """Lines of the table, its head first; a column of which nothing was measured is left out.

    Raises:
        FileNotFoundError: There is no run in a folder.
        ValueError: A run lacks a model, task or level, or what is asked for has no scores.
    """
    ours = load(config.run)
    theirs = load(config.minus_run) if config.minus_run else ours
    check_chosen("minus", (config.minus,), theirs.grid.models)
    if config.model is not None:
        check_chosen("model", config.model, ours.grid.models)
    # A run that was broken off has planned more than it has measured.
    models = config.model or tuple(
        name
        for name in ours.grid.models
        if name != config.minus and any(_clean(ours, task, name) for task in ours.grid.tasks)
    )
    tasks = config.task or tuple(
        task
        for task in ours.grid.tasks
        if _clean(theirs, task, config.minus) and all(_clean(ours, task, name) for name in models)
    )
    levels = config.levels or ours.grid.levels
    if not models or not tasks:
        raise ValueError(
            f"{config.run}: no task has scores of {config.minus} and of "
            f"{', '.join(models) or 'another model'}; choose with --model, --task and --minus"
        )
    for found in (ours, theirs):
        check_chosen("task", tasks, found.grid.tasks)
        check_chosen("levels", [f"{x:g}" for x in levels], [f"{x:g}" for x in found.grid.levels])
    lines = []
    for of_tasks in [(name,) for name in tasks] if config.each_task else [tasks]:
        for of_levels in [(level,) for level in levels] if config.each_level else [levels]:
            for model in models:
                found = [
                    paired_difference(
                        _score(ours, model, column.site, column.protocol, of_tasks, of_levels),
                        _score(
                            theirs,
                            config.minus,
                            column.minus_site,
                            column.protocol,
                            of_tasks,
                            of_levels,
                        ),
                    )
                    for column in COLUMNS
                ]
                lines.append(
                    [
                        model_title(model),
                        ", ".join(map(task_title, of_tasks)),
                        ", ".join(f"{level:g}" for level in of_levels),
                        *map(_entry, found),
                    ]
                )
    head = ["model", "tasks", "levels", *(column.title for column in COLUMNS)]
    kept = [place for place in range(len(head)) if any(line[place] != "–" for line in lines)]
    if len(kept) == len(head) - len(COLUMNS):
        raise ValueError(
            f"{config.run}: {', '.join(models)} and {config.minus} have no scores of the same "
            f"seeds on {', '.join(tasks)}; choose others with --model, --task and --minus"
        )
    return [[line[place] for place in kept] for line in [head, *lines]]


def _clean(found: Measurements, task: str, model: str) -> dict[int, float]:
    return found.at(task, model, "", "", 0.0)


def _score(
    found: Measurements,
    model: str,
    site: str,
    protocol: str,
    tasks: Sequence[str],
    levels: Sequence[float],
) -> dict[int, float]:
    """Means over tasks and levels, by seed."""
    return mean_by_seed(
        [
            found.at(name, model, site, protocol, level)
            for name in tasks
            for level in (levels if site else (0.0,))
        ]
    )


def _entry(found: Summary | None) -> str:
    if found is None:
        return "–"
    text = with_interval(found.mean, found.low, found.high)
    without_zero = found.low is not None and found.high is not None and found.low * found.high > 0
    return f"**{text}**" if without_zero else text


def main(arguments: Sequence[str]) -> int:
    """Prints the table as Markdown; returns the exit status."""
    import tyro

    try:
        head, *rows = table(tyro.cli(Config, args=list(arguments), description=__doc__))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(markdown_table(head, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
