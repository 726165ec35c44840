"""Does Robertha hold on sets that were made to fool a model: AdvGLUE, PAWS and PAWS-X?

Paper: Podasca and Das (2026), Table 11. Claim: Robertha leads DataAugment and FreeLB on six of nine
sets (AdvSST-2 48.4 against 39.6 and 39.7), without adversarial training.

Command: `python -m experiments adversarial --run runs/robustness/ID --data-dir DIR` tests the
finished cells of a `robustness` run (sst2, rte, mrpc, qqp, qnli or mnli) on every set that fits
their labels, in a minute or two; `--budget smoke` takes 16 rows of each.

Expected: accuracies at or below those of always giving the set's larger class, which stand beside
them; sets of 78 to 162 rows tell models apart by eight points at best.

A set tests models of the task it was made from; PAWS and PAWS-X (paraphrases) also those of MRPC,
the paper's come from QQP. Nothing is selected on any of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from experiments.report_page import print_table
from experiments.robertha.adversarial_page import write_page
from experiments.robertha.trained import (
    Run,
    is_tested,
    mark_tested,
    nothing_trained,
    predict_rows,
    read_data,
    read_run,
    restore,
    settings_of,
    to_test,
)
from experiments.rundir import RESULT_COLUMNS, add_results, discard_if_unstarted, open_run
from hopfax.data import (
    EVALUATION_SETS,
    Example,
    TaskData,
    evaluation_set,
    read_evaluation_set,
    reported_rows,
    task,
    training_rows,
)
from hopfax.data.evaluation import check_trained
from hopfax.train.evaluate import Predictor, make_predictor
from hopfax.train.metrics import scores
from hopfax.train.progress import Progress

REPRODUCES = "Robertha, Table 11: accuracy on AdvGLUE, PAWS and PAWS-X"

SMOKE_ROWS = 16


@dataclass(frozen=True, kw_only=True)
class Config:
    """Whose encoders to test, and on what."""

    run: str
    """Folder of a `robustness` run, runs/robustness/ID."""
    task: tuple[str, ...] | None = None
    """Some of its tasks; without it all that a set fits."""
    model: tuple[str, ...] | None = None
    """Some of its models; without it all that are finished."""
    data_dir: str | None = None
    """Folder of the raw sets, and of advglue/dev.json, paws/labeled_final and x-final; without it
    the one that the run was given."""
    sets: tuple[str, ...] | None = None
    """Evaluation sets: adv-sst2, adv-qqp, adv-mnli, adv-mnli-mm, adv-qnli, adv-rte, paws,
    paws-x-de and so on; without it all that fit and are there."""
    budget: Literal["smoke", "laptop", "paper"] = "laptop"
    """Sixteen rows of each set, or all; laptop and paper are the same."""
    runs: str = "runs"
    """Folder of all runs."""


class Trial(NamedTuple):
    """A set, or a task's own test split, as a test of the models of a task.

    Attributes:
        name: In results.csv: `SET:TASK`, or the task itself.
        rows: Texts and labels, in the classes of the task.
    """

    name: str
    rows: list[Example]


def run(config: Config) -> Path:
    """Tests what is missing, then writes the page.

    Raises:
        ValueError, FileNotFoundError: A flag is wrong, no set fits, or a file is missing.
    """
    source = read_run(config.run, data_dir=config.data_dir, tasks=config.task, models=config.model)
    if config.sets is not None and (not config.sets or len(set(config.sets)) < len(config.sets)):
        raise ValueError(f"--sets wants one or more different sets, got {config.sets}")
    most = SMOKE_ROWS if config.budget == "smoke" else None
    trials = {name: trials_of(source, name, config.sets, most) for name in source.grid.tasks}
    trials = {name: found for name, found in trials.items() if found}
    if not trials:
        fitting = {name for each in EVALUATION_SETS.values() for name in (each.task, *each.others)}
        if not fitting & set(source.grid.tasks):
            raise ValueError(
                f"no evaluation set fits the tasks {', '.join(source.grid.tasks)} of {config.run}; "
                f"they are for models of {', '.join(sorted(fitting))}"
            )
        where = source.settings.data_dir or "--data-dir, which is not given"
        raise ValueError(
            f"no file of an evaluation set that fits is in {where}: give --data-dir a folder with "
            "advglue/dev.json, paws/labeled_final or x-final"
        )
    cells = {name: to_test(source, name, config.model) for name in trials}
    if not any(cells.values()):
        raise nothing_trained(source)
    plan = {
        "tasks": [trial.name for found in trials.values() for trial in found],
        "models": source.grid.models,
        "seeds": source.grid.seeds,
        "classes": {t.name: larger_class(t.rows) for found in trials.values() for t in found},
        "rows": {t.name: len(t.rows) for found in trials.values() for t in found},
        "known_texts": known_texts(trials, source.settings.data_dir),
        "trained": settings_of(source),
    }
    folder = open_run(
        "adversarial", config, plan=plan, root=config.runs, ignore=("runs", "data_dir")
    )
    print(f"writing to {folder}", flush=True)
    with discard_if_unstarted(folder):
        for name, found in trials.items():
            tested_on = [row for trial in found for row in trial.rows]
            missing = [
                model
                for model in cells[name]
                if not is_tested(folder, source, name, model, tested_on)
            ]
            if not missing:
                continue
            data = read_data(source, task(name))
            with Progress(len(missing), title=data.spec.title) as progress:
                for number, model in enumerate(missing, 1):
                    trained = restore(source, data, model)
                    predictor = make_predictor(trained.model)
                    rows = [
                        row | {"model": model}
                        for trial in found
                        for row in tested(predictor, trained.best, data, trial, source)
                    ]
                    add_results(folder, rows)
                    mark_tested(folder, source, name, model, tested_on)
                    progress.update(number, len(tested_on), model=model)
            write_page(folder)
    print_table(write_page(folder))
    return folder


def trials_of(
    source: Run, task_name: str, sets: Sequence[str] | None, most: int | None
) -> list[Trial]:
    """The task's own test split, then every set that fits.

    Sets that are asked for by name must fit one of the run's tasks, and be there.
    """
    spec, data_dir = task(task_name), source.settings.data_dir
    found = []
    for name in sets or EVALUATION_SETS:
        each = evaluation_set(name)
        if task_name not in (each.task, *each.others):
            if sets and not {each.task, *each.others} & set(source.grid.tasks):
                check_trained(each, spec)
            continue
        try:
            if data_dir is None:
                raise FileNotFoundError(f"{name} is in files: say in which folder by --data-dir")
            rows = read_evaluation_set(name, data_dir, trained=spec)
        except FileNotFoundError:
            if sets:
                raise
            continue
        found.append(Trial(f"{name}:{task_name}", rows[:most]))
    if not found:
        return []
    return [Trial(task_name, reported_rows(task_name, data_dir=data_dir)[:most]), *found]


def known_texts(trials: Mapping[str, Sequence[Trial]], data_dir: str | None) -> dict[str, int]:
    """By trial, how many of its rows have a whole text, letter by letter, of the training file."""
    found = {}
    for name, here in trials.items():
        trained_on = training_rows(name, data_dir=data_dir)
        known = {text for row in trained_on for choice in row.texts for text in choice}
        for trial in here:
            found[trial.name] = sum(
                any(text in known for choice in row.texts for text in choice) for row in trial.rows
            )
    return found


def larger_class(rows: Sequence[Example]) -> float:
    """Percentage right of always giving the most frequent class."""
    counts = np.bincount([int(row.label) for row in rows])
    return 100 * float(counts.max() / counts.sum())


def tested(
    predictor: Predictor, params: Any, data: TaskData, trial: Trial, source: Run
) -> list[dict[str, Any]]:
    """Rows of results.csv: of every seed the accuracy, 0 to 100, as the score."""
    said = predict_rows(predictor, params, trial.rows, data, source.settings.max_length)
    rows = []
    for place, seed in enumerate(source.grid.seeds):
        values = scores(("accuracy",), said.logits[place], said.labels)
        rows += [
            dict.fromkeys(RESULT_COLUMNS)
            | {"task": trial.name, "corruption": "none", "level": 0.0, "seed": seed}
            | {"metric": metric, "score": round(value, 6)}
            | {"num_examples": len(trial.rows), "num_train": len(data.train.labels)}
            for metric, value in values.items()
        ]
    return rows
