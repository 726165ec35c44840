"""Can retrieval from a word list restore the accuracy that an encoder loses to typos?

Claim of Podasca and Das (2026), Table 12: a Robertha withstands misspellings, swapped letters,
TextBugger and HotFlip. Here the model is a TinyBERT trained on clean text. Before it reads a text,
each unknown word is replaced by the most similar word of the training texts
(`hopfax.text.WordMemory`), the counterpart for typos of `hopfax.hopfield.denoise`. SymSpell, a
program for spelling correction, has the same list of words.

Command: `python -m experiments memory-typos --task sst2 --data-dir DIR`; about twelve minutes
on two cores, half of them to train. SymSpell is measured if symspellpy is installed.

Expected: most random typos are undone; attacks that target the corrected model get around it.

Attacks are *fixed*, made against the model without correction, or *adaptive*, made against the
model with correction. An adaptive TextBugger queries its losses. An adaptive HotFlip also has its
gradients, which flow through the correction: the tokens of an edited word are those of its
correction.

Settings of both methods are those that leave the most words right after random typos in CoLA's
training texts, of which every fifth is corrupted and the others give the list of words.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import pandas as pd

from experiments import conditions, gaussian, report, runs, tidy
from experiments.cells import Cell
from experiments.conditions import CellPredictions, Typos, with_words
from experiments.memory import correction
from experiments.memory.correction import CorrectedTypos
from experiments.models import variant
from experiments.report import Page, Table
from experiments.rundir import open_run, read_config, write_whole
from experiments.settings import Corruption, Flags, by_budget, resolved
from hopfax.train.progress import Progress

REPRODUCES = "Robertha, Table 12, with a memory of words that corrects them; not in the paper"
TRAINING = 0.5  # approximate share of the time, for the progress line
EPOCHS = {"sst2": 1, "cola": 6}  # at the laptop budget, as for the results of `typos`
DEFAULTS = {
    "laptop": {"rates": (0.1, 0.3), "texts": 100},
    "smoke": {"rates": (0.3,), "texts": 4},
    "paper": {"rates": (0.1, 0.2, 0.3), "texts": None},
}
NUM_TUNING = {"smoke": 10, "laptop": 600, "paper": 2000}  # corrupted texts to choose settings on
TITLES = {
    "none": "no correction",
    "memory": "memory",
    "symspell": "SymSpell",
    "memory, adaptive": "memory, adaptive attack",
    "symspell, adaptive": "SymSpell, adaptive attack",
}


@dataclass(frozen=True, kw_only=True)
class Config(Flags):
    """Typos to test under, and methods to correct them."""

    method: tuple[Literal["memory", "symspell"], ...] = ("memory", "symspell")
    """Methods of correction; symspell is skipped if symspellpy is not installed."""
    corruption: tuple[Corruption, ...] = get_args(Corruption)
    """Corruptions of the test texts."""
    rates: Annotated[tuple[float, ...] | None, by_budget("rates", "FLOAT ...", DEFAULTS)] = None
    """Shares of words to change, in (0, 1]; clean texts are always tested."""
    texts: Annotated[int | None, by_budget("texts", "INT", DEFAULTS)] = None
    """Texts drawn from each test split."""


def run(config: Config) -> Path:
    """Chooses settings, trains and tests missing models, then writes the page."""
    name = "tinybert"
    of_task = {task: for_task(config, task) for task in config.data.task}
    data = {task: runs.load(flags, task) for task, flags in of_task.items()}
    jobs = {task: runs.Job(task, name, variant(name), ()) for task in of_task}
    runs.check([*jobs.values()], data)
    methods = installed(config.method)
    source = "cola" if config.data.data_dir else config.data.task[0]
    table = correction.tune(
        correction.training_texts(source, config.data.data_dir),
        methods,
        num_texts=NUM_TUNING[config.budget],
    )
    chosen = [correction.best(table, method) for method in methods]
    plan = {
        "cells": [runs.spec_of(of_task[task], job, data[task]).id for task, job in jobs.items()],
        "settings": {method.name: dict(method.settings) for method in chosen},
        "tuned_on": source,
    }
    folder = open_run("memory-typos", config, plan=plan)
    tried = pd.DataFrame(table).to_csv(index=False, lineterminator="\n", float_format="%.4f")
    write_whole(folder / "settings.csv", tried)
    rows = []
    with Progress(len(jobs)) as progress:
        for number, (task, job) in enumerate(jobs.items()):
            progress.title = data[task].spec.title
            training = progress.part(number, TRAINING)
            testing = progress.part(number + TRAINING, 1 - TRAINING)
            cell = runs.open_cell(of_task[task], job, data[task], on_progress=training)
            tests = conditions_of(of_task[task], chosen)
            for count, each in enumerate(measured(cell, tests), 1):
                rows += each
                testing(count / len(tests))
    return report.write_run(folder, pd.DataFrame(rows), page)


def for_task(config: Config, task: str) -> Config:
    """Returns the configuration for one task, with the budget's values and its own epochs."""
    training = config.training
    if training.epochs is None and config.budget == "laptop":
        training = dataclasses.replace(training, epochs=EPOCHS.get(task))
    data = dataclasses.replace(config.data, task=(task,))
    return resolved(dataclasses.replace(config, training=training, data=data), DEFAULTS)


def installed(methods: Sequence[str]) -> list[str]:
    """Returns the methods that can be measured, and prints why one is skipped."""
    if "symspell" in methods and importlib.util.find_spec("symspellpy") is None:
        print('symspell is skipped: symspellpy is not installed: pip install ".[benchmarks]"')
        methods = [each for each in methods if each != "symspell"]
    if not methods:
        raise ValueError("no method of --method can be measured")
    return [*methods]


def conditions_of(config: Config, methods: Sequence[Any]) -> list[Typos]:
    """Returns clean texts and every corruption: without correction, then with each method."""
    beam, data_dir = conditions.BEAMS[config.budget], config.data.data_dir
    shared = {"num_texts": config.texts, "beam": beam, "data_dir": data_dir}
    tests = []
    for typos in conditions.typos_grid(config.corruption, config.rates, **shared):
        tests.append(typos)
        for adaptive in (False, True) if typos.attacks else (False,):
            tests += [CorrectedTypos(method=m, adaptive=adaptive, **vars(typos)) for m in methods]
    return tests


def measured(cell: Cell, tests: Sequence[Typos]) -> Iterator[list[dict[str, Any]]]:
    """Yields the rows of results.csv of each condition.

    `gain` is the score minus that without correction, under its own attack if there is one. A
    score's and a gain's `low` and `high` are a bootstrap over the rows, of the mean over seeds.
    """
    metrics, plain = cell.data.spec.metrics, None
    for test in tests:
        predicted = conditions.predictions(cell, test)
        values = {"score": conditions.with_interval(metrics, predicted)}
        shares = {"words_changed": 100 * predicted.words_changed}
        if isinstance(test, CorrectedTypos):
            values["gain"] = conditions.with_interval(metrics, predicted, plain)
            shares |= of_words(cell, test, predicted)
        else:
            plain = predicted
        shared = {
            "task": cell.data.spec.name,
            "model": test.method.name if isinstance(test, CorrectedTypos) else "none",
            "protocol": "fixed" if test.rate else "",
            "num_examples": len(predicted.labels),
            "num_train": len(cell.data.train.labels),
            **test.columns(cell),
        }
        columns: list[Any] = [({}, metric, each) for metric, each in shares.items()]
        for metric, (each, low, high) in values.items():
            columns.append(({"low": round(low, 4), "high": round(high, 4)}, metric, each))
        yield [
            {**shared, **ends, "seed": seed, "metric": metric, "score": round(float(value), 4)}
            for ends, metric, each in columns
            for seed, value in zip(cell.spec.seeds, each, strict=True)
            if np.isfinite(value)
        ]


def of_words(cell: Cell, test: Any, predicted: CellPredictions) -> dict[str, np.ndarray]:
    """Returns for each seed the changed words restored and the others altered, in percent."""
    correct = test.corrector(cell)
    rows = with_words(cell.spec.task, test.data_dir, test.num_texts)
    shares = []
    for edits in predicted.edits:
        pairs: Counter[tuple[str, str]] = Counter()
        for row, log in zip(rows, json.loads(str(edits)), strict=True):
            pairs.update(correction.spellings(row.texts, log))
        shares.append(correction.words(correct, pairs).percent())
    return {name: np.array([each[name] for each in shares]) for name in shares[0]}


def page(folder: Path) -> Page:
    """Returns the page of a run or of a folder of published results."""
    frame = tidy.read(folder)
    plan = read_config(folder)["plan"]
    omitted = ""
    if len(others := frame[frame.task != plan["tuned_on"]]):
        frame = others.copy()  # scores of the task that chose the settings are no evidence
        omitted = ", whose scores are therefore not shown"
    frame["model"] += [", adaptive" if each == "adaptive" else "" for each in frame.protocol]
    tasks, most = list(frame.task.unique()), frame.level.max()
    titles = gaussian.titles([*tasks, plan["tuned_on"]]) | TITLES | conditions.CORRUPTIONS
    scores, gains = (
        tidy.ordered(
            tidy.with_rows(tidy.summarize(tidy.scores(frame, metric)), frame, metric),
            "model",
            [*TITLES],
        )
        for metric in ("score", "gain")
    )
    shown, enough = gains[gains.level.isin([0, most])], frame.seed.nunique() >= tidy.MIN_SEEDS
    share = frame[frame.metric.isin(["restored", "altered"]) & frame.level.isin([0, most])]
    share = share.groupby(["task", "corruption", "model", "metric"]).score.mean().to_dict()
    settings = "; ".join(
        f"{TITLES[name]}: "
        + ", ".join(f"{key.replace('_', ' ')} {value:g}" for key, value in each.items())
        for name, each in plan["settings"].items()
    )
    names, ahead = report.joined(titles[task] for task in tasks), gaps(frame)
    return report.Page(
        title=f"Typo correction by retrieval from a word list: {names}",
        answer=" ".join(
            finding(tidy.select(shown, task=task), tidy.select(ahead, task=task), most, titles)
            for task in tasks
        ),
        pictures={
            "typos": report.facets(
                "Score of TinyBERT against the share of words changed",
                lines(scores),
                x="rate",
                col="corruption",
                row="task",
                titles=titles,
                xlabel="share of words changed",
                ylabel=gaussian.score_names(tasks),
            )
        },
        tables=[compared(scores, shown, ahead, share, most, titles | {"none": "clean"})],
        notes=[
            report.sizes(frame, titles),
            "Significant: the 95 % interval excludes zero, without correction for the number of "
            "comparisons. "
            + (
                "Half-widths are the root of the "
                "sum of squares of Student's t over seeds and of a bootstrap over rows."
                if enough
                else "Intervals are a bootstrap over rows: too few seeds."
            )
            + " Bold: excludes zero.",
            "A fixed attack targets the model without correction, an adaptive one the model with "
            "it. Gains under an adaptive attack are relative to the uncorrected model under the "
            "fixed attack.",
            "An adaptive HotFlip knows the tokens of every corrected word, so its gradient flows "
            "through the correction; an adaptive TextBugger queries losses.",
            f"Settings chosen on random typos in training texts of {titles[plan['tuned_on']]}"
            f"{omitted}; see settings.csv: {settings}.",
            "Words: those of the task's training file, with their frequencies. TextBugger may "
            "insert a space; both methods then see two words.",
        ],
    )


def lines(scores: pd.DataFrame) -> pd.DataFrame:
    """Returns the figure's lines; each starts at the clean score, in the panel of a corruption."""
    clean = scores[scores.corruption == "none"]
    # Adaptive attacks also start at the clean score.
    clean = pd.concat([clean, clean.assign(model=clean.model + ", adaptive")])
    parts = []
    for kind in conditions.CORRUPTIONS:
        own = scores[scores.corruption == kind]
        start = clean[clean.model.isin(own.model)].assign(corruption=kind)
        parts.append(pd.concat([start, own]).sort_values("level", kind="stable"))
    table = tidy.ordered(pd.concat(parts), "model", [*TITLES])
    rates = [f"{100 * level:.0f} %" if level else "clean" for level in table.level]
    return table.assign(rate=rates)


def compared(
    scores: pd.DataFrame,
    gains: pd.DataFrame,
    gaps: pd.DataFrame,
    share: Mapping[Any, float],
    level: float,
    titles: Mapping[str, str],
) -> Table:
    """Returns the gains at one level and on clean texts, and the words restored or altered.

    Their difference follows, if `gaps` has it.
    """
    cells = gains[["task", "corruption", "level"]].drop_duplicates().to_numpy().tolist()
    plain = scores[scores.model == "none"].set_index(["task", "corruption", "level"])["mean"]
    table = report.pivot(
        gains.assign(line=gains.task.map(titles) + ", " + gains.corruption.replace(titles)),
        index="line",
        columns="model",
        titles=titles,
        caption=f"Score without correction, and gains in points, with {100 * level:.0f} % of the "
        "words changed. SymSpell − memory: of the gains, with intervals over seeds only. Last "
        "columns: changed words restored; for clean texts, words altered.",
    ).with_column(1, "no correction", [report.number(plain[tuple(cell)]) for cell in cells])
    if len(gaps):
        by_cell = gaps.set_index(["task", "corruption", "level"])
        written = [report.with_interval(by_cell.loc[tuple(cell)]) for cell in cells]
        table = table.with_column(len(table.columns), "SymSpell − memory", written)
    for name in [each for each in gains.model.unique() if "adaptive" not in each]:
        of_words = [
            report.number(
                share.get((task, kind, name, "restored" if changed else "altered"), np.nan)
            )
            for task, kind, changed in cells
        ]
        table = table.with_column(len(table.columns), f"% of words, {titles[name]}", of_words)
    return table


def gaps(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns SymSpell's gain minus memory's, paired by seed; attacks are fixed."""
    gains = tidy.scores(frame, "gain")
    ours, theirs = (tidy.select(gains, model=name) for name in ("symspell", "memory"))
    if ours.empty or theirs.empty:
        return pd.DataFrame(columns=["task", "level", "low"])
    return tidy.summarize(tidy.paired(ours, theirs, on=["task", "corruption", "level", "seed"]))


def finding(
    gains: pd.DataFrame, ahead: pd.DataFrame, level: float, titles: Mapping[str, str]
) -> str:
    """Returns the sentences of the page's answer on one task; `ahead` is from `gaps`."""
    own = tidy.select(gains, level=level)

    def named(kinds: pd.Series) -> str:
        return report.joined(titles[kind] for kind in kinds) if len(kinds) else "none"

    def clear(name: str) -> str:
        rows = own[own.model == name]
        lost = rows.corruption[rows.high < 0]
        less = f", significantly negative under {named(lost)}" if len(lost) else ""
        return named(rows.corruption[rows.low > 0]) + less

    text = f"**{titles[gains.task.iloc[0]]}, {100 * level:.0f} % of the words changed**:"
    for name in [each for each in own.model.unique() if "adaptive" not in each]:
        rows = own[own.model == name]
        low, high = report.signed(rows["mean"].min()), report.signed(rows["mean"].max())
        amount = low if low == high else f"{low} to {high}"
        text += f" {TITLES[name]} gains {amount} points (significant under {clear(name)})"
        adaptive = own[own.model == f"{name}, adaptive"]
        if len(adaptive):
            gained = report.joined(
                f"{report.plain_interval(row)} under {titles[row.corruption]}"
                for _, row in adaptive.iterrows()
            )
            text += f"; if the attack also targets {TITLES[name]}, {gained}"
        text += "."
    for _, row in ahead[(ahead.level == level) & (ahead.low > 0)].iterrows():
        more = f"{report.plain_interval(row)} (over seeds)"
        text += f" Under {titles[row.corruption]}, SymSpell leads memory by {more}."
    return text
