"""What do typos, and attacks on the letters of a text, take from encoders trained on clean text?

Paper: Podasca and Das (2026), Table 12. Claim: Robertha stands up to misspellings, swapped letters,
TextBugger and HotFlip in 10, 20 and 30 % of the words; in the table it is below FreeLB on GLUE
throughout (average with 10 % misspelt: 58.4 against 62.8).

Command: `python -m experiments typos --run runs/robustness/ID --data-dir DIR` tests the finished
cells of a `robustness` run, on 200 rows of each task; `--budget smoke` (8 rows, one seed) or
`--budget paper` (all rows).

Expected: a random typo costs little, an attack that may choose costs much, and models differ by
less than their seeds.

Random typos are the same for all models and seeds. An attack meets each seed's model by itself: it
reads that model's losses (TextBugger) or gradients (HotFlip), and what it ends at is scored by the
same model. A word is changed once, and a rate says how many are: the nearest whole number, one at
least, so that short texts have more changed than it says (the page has the share that was). Every
edit is logged in the run's `edits/`: log and data give the texts that the models met
(`hopfax.text.replay`).
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from experiments.report_page import print_table
from experiments.robertha.trained import (
    Trained,
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
from experiments.robertha.typos_page import CLEAN, CORRUPTIONS, left_out, write_page
from experiments.rundir import (
    RESULT_COLUMNS,
    add_results,
    discard_if_unstarted,
    open_run,
    write_whole,
)
from hopfax import text
from hopfax.data import Example, TaskData, reported_rows, task
from hopfax.nn import Params
from hopfax.text import Corrupted
from hopfax.text.hotflip import Form
from hopfax.train.evaluate import make_predictor
from hopfax.train.metrics import scores
from hopfax.train.progress import Progress
from hopfax.train.victim import make_victim

REPRODUCES = "Robertha, Table 12: scores under misspelling, char swap, TextBugger and HotFlip"

SEED = 0  # of random typos and of the places of bugs, with the row
RANDOM: dict[str, Callable[..., Corrupted]] = {
    "misspelling": text.misspell,
    "char_swap": text.swap_characters,
}


class Cell(NamedTuple):
    """One trained model, and the rows to test it on.

    Attributes:
        trained: With the parameters of all the run's seeds.
        data: The task, as it was trained on.
        rows: Texts and labels.
        seeds: Those to test, the run's first ones.
        max_length: Longest text in tokens.
    """

    trained: Trained
    data: TaskData
    rows: list[Example]
    seeds: tuple[int, ...]
    max_length: int


class Chosen(NamedTuple):
    """Rows of a test split.

    Attributes:
        rows: Those to test on, in file order.
        without_words: How many of the split could not be among them.
    """

    rows: list[Example]
    without_words: int


class Budget(NamedTuple):
    """What a size of run means: rows of a task, seeds, and width of HotFlip's beam."""

    texts: int | None
    seeds: int
    beam: int


BUDGETS = {
    "smoke": Budget(8, 1, 1),
    "laptop": Budget(200, 3, 2),
    "paper": Budget(None, 5, 3),
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Whose encoders to test, and with what."""

    run: str
    """Folder of a `robustness` run, runs/robustness/ID."""
    task: tuple[str, ...] | None = None
    """Some of its tasks; without it all."""
    model: tuple[str, ...] | None = None
    """Some of its models; without it all that are finished."""
    data_dir: str | None = None
    """Folder of the raw sets; without it the one that the run was given."""
    budget: Literal["smoke", "laptop", "paper"] = "laptop"
    """Eight rows of a task and one seed, 200 and three, or all and five."""
    corruption: tuple[str, ...] = tuple(CORRUPTIONS)
    """What to do to the texts: misspelling, char_swap, textbugger, hotflip."""
    rates: tuple[float, ...] = (0.1, 0.2, 0.3)
    """Shares of the words, in [0, 1], one word of a text at least; 0 is always measured."""
    texts: int | None = None
    """Rows drawn from each test split; all where it has fewer."""
    form: Form = "characters"
    """What HotFlip edits: letters, or whole tokens."""
    runs: str = "runs"
    """Folder of all runs."""


def run(config: Config) -> Path:
    """Tests what is missing, then writes the page.

    Raises:
        ValueError, FileNotFoundError: A flag is wrong, or the run has no cells that fit.
    """
    rates = _checked(config)
    budget = BUDGETS[config.budget]
    if config.texts is not None:
        budget = budget._replace(texts=config.texts)
    source = read_run(config.run, data_dir=config.data_dir, tasks=config.task, models=config.model)
    cells = {name: to_test(source, name, config.model) for name in source.grid.tasks}
    if not any(cells.values()):
        raise nothing_trained(source)
    chosen = {
        name: chosen_rows(name, source.settings.data_dir, budget.texts)
        for name in source.grid.tasks
    }
    without = {name: found.without_words for name, found in chosen.items() if found.without_words}
    plan = {
        "tasks": source.grid.tasks,
        "models": source.grid.models,
        "seeds": source.grid.seeds[: budget.seeds],
        "corruptions": config.corruption,
        "rates": rates,
        "texts": budget.texts,
        "beam": budget.beam,
        "trained": settings_of(source),
    }
    plan |= {"without_words": without} if without else {}
    folder = open_run("typos", config, plan=plan, root=config.runs, ignore=("runs", "data_dir"))
    print(f"writing to {folder}", flush=True)
    for name, count in without.items():
        print(left_out(name, count), flush=True)
    with discard_if_unstarted(folder):
        for name, models in cells.items():
            rows = chosen[name].rows
            missing = [
                model for model in models if not is_tested(folder, source, name, model, rows)
            ]
            if not missing:
                continue
            data = read_data(source, task(name))
            for model in missing:
                trained = restore(source, data, model)
                cell = Cell(trained, data, rows, plan["seeds"], source.settings.max_length)
                _test(folder, cell, model, config, rates, budget.beam)
                mark_tested(folder, source, name, model, rows)
            write_page(folder)
    print_table(write_page(folder))
    return folder


def _checked(config: Config) -> tuple[float, ...]:
    """The rates above 0; a ValueError names a flag that is wrong."""
    for rate in config.rates:
        if not 0 <= rate <= 1:
            raise ValueError(f"--rates are shares of the words, in [0, 1], got {rate}")
    if unknown := set(config.corruption) - set(CORRUPTIONS):
        raise ValueError(
            f"unknown corruption {', '.join(sorted(unknown))}; --corruption takes "
            f"{' '.join(CORRUPTIONS)}"
        )
    rates = tuple(rate for rate in config.rates if rate)
    chosen = config.corruption
    if not chosen or len(set(chosen)) < len(chosen):
        raise ValueError(f"--corruption wants one or more different values, got {chosen}")
    if not rates or len(set(rates)) < len(rates):
        raise ValueError(
            f"--rates wants one or more different shares above 0, got {config.rates}; the clean "
            "texts are measured anyway"
        )
    if config.texts is not None and config.texts < 1:
        raise ValueError(f"--texts must be at least 1, got {config.texts}")
    return rates


def chosen_rows(task_name: str, data_dir: str | None, count: int | None) -> Chosen:
    """Rows of the test split at random; without a word there is nothing to change."""
    rows = reported_rows(task_name, data_dir=data_dir)
    with_words = [row for row in rows if text.draft(row.texts).words]
    picked = np.random.default_rng(SEED).permutation(len(with_words))[:count]
    found = [with_words[number] for number in sorted(picked)]
    return Chosen(found, len(rows) - len(with_words))


def _test(
    folder: Path, cell: Cell, model: str, config: Config, rates: tuple[float, ...], beam: int
) -> None:
    """Tests a model on a task, and adds the rows to results.csv when they are all there."""
    spec = cell.data.spec
    conditions = [(CLEAN, 0.0), *((kind, rate) for kind in config.corruption for rate in rates)]
    predictor = make_predictor(cell.trained.model)
    found: list[dict[str, Any]] = []
    edits: list[dict[str, Any]] = []
    with Progress(len(conditions), title=f"{spec.title} {model}") as progress:
        for number, (kind, rate) in enumerate(conditions, 1):
            for seeds, made in corrupted(cell, kind, rate, beam=beam, form=config.form):
                rows = [
                    row._replace(texts=each.text) for row, each in zip(cell.rows, made, strict=True)
                ]
                params = of_seeds(cell.trained.best, seeds)
                said = predict_rows(predictor, params, rows, cell.data, cell.max_length)
                shared = {"task": spec.name, "model": model, "corruption": kind, "level": rate}
                for place, which in enumerate(seeds):
                    seed = cell.seeds[which]
                    values = scores(spec.metrics, said.logits[place], said.labels)
                    values["words_changed"] = float(np.mean([each.rate for each in made]))
                    found += [
                        dict.fromkeys(RESULT_COLUMNS)
                        | shared
                        | {"seed": seed, "metric": metric, "score": round(value, 6)}
                        | {"num_examples": len(rows), "num_train": len(cell.data.train.labels)}
                        for metric, value in values.items()
                    ]
                edits += [
                    shared
                    | {"seeds": [cell.seeds[which] for which in seeds], "row": row.index}
                    | {"edits": each.edits}
                    for row, each in zip(cell.rows, made, strict=True)
                    if each.edits
                ]
            progress.update(number, len(cell.rows) * len(cell.seeds), rate=rate)
    (folder / "edits").mkdir(exist_ok=True)
    lines = "".join(json.dumps(edit, ensure_ascii=False) + "\n" for edit in edits)
    write_whole(folder / "edits" / f"{spec.name}-{model}.jsonl", lines)
    add_results(folder, found)


def of_seeds(stacked: Params, which: Sequence[int]) -> Params:
    """Parameters of some of the seeds, stacked."""
    places = np.asarray(which)
    return jax.tree.map(lambda leaf: leaf[places], stacked)


def corrupted(
    cell: Cell, kind: str, rate: float, *, beam: int, form: Form
) -> Iterator[tuple[list[int], list[Corrupted]]]:
    """The texts, and the numbers of the seeds that meet them: all, or one after the other."""
    everyone = list(range(len(cell.seeds)))
    texts = [row.texts for row in cell.rows]
    indices = [row.index for row in cell.rows]
    if kind == CLEAN:
        yield everyone, [text.draft(each).corrupted() for each in texts]
        return
    if kind in RANDOM:
        numbered = zip(texts, indices, strict=True)
        yield everyone, [RANDOM[kind](t, rate=rate, seed=(SEED, row)) for t, row in numbered]
        return
    labels = [row.label for row in cell.rows]
    for which in everyone:
        victim, _ = make_victim(
            cell.trained.model,
            jax.tree.map(lambda leaf, which=which: leaf[which], cell.trained.best),
            cell.data.vocabulary,
            regression=cell.data.spec.regression,
            max_length=cell.max_length,
        )
        if kind == "textbugger":
            found = text.textbugger(victim, texts, labels, rate=rate, seed=SEED, rows=indices)
        else:
            found = text.hotflip(
                victim, texts, labels, rate=rate, form=form, beam=beam, rows=indices
            )
        yield [which], [each.corrupted for each in found]
