"""Which learning rate suits each fine-tuned encoder?

Paper: Podasca and Das (2026), Table 15, one rate for all models. A comparison at a rate that suits
only one of its models is unfair, so each model gets the same search.

Command: `python -m experiments learning-rates --pretrained FOLDER --task mrpc --data-dir DIR`.

Every model is trained at every rate. The rate with the highest mean score on the validation rows is
chosen; test rows are not read. The choices on MRPC are the default rates of pretrained models
(`learning_rate` in `experiments/models.py`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from tyro.conf import Fixed, SuppressFixed

from experiments import gaussian, report, runs, tidy
from experiments.conditions import constant_score
from experiments.figures import bands
from experiments.gaussian import LEARNED
from experiments.report import Page, Table
from experiments.robertha.robustness import Encoders
from experiments.rundir import open_run
from experiments.settings import Flags, Training, resolved
from hopfax.train.progress import Progress

REPRODUCES = "Robertha, Table 15: learning rates of pretrained encoders"
TRAINING = {"epochs": 3, "patience": 3}
DEFAULTS = {"laptop": TRAINING, "paper": TRAINING}


@dataclass(frozen=True, kw_only=True)
class AnyRate(Training):
    """Training of the models, at each of `--learning-rates`."""

    learning_rate: SuppressFixed[Fixed[float | None]] = None


@dataclass(frozen=True, kw_only=True)
class Config(Flags):
    """Models to fine-tune and learning rates to compare."""

    training: AnyRate = AnyRate()
    model: tuple[str, ...] = (
        "pretrained",
        "pretrained-esr",
        "pretrained-hopfield-1",
        "pretrained-hopfield-1-esr",
        "pretrained-hopfield",
        "pretrained-hopfield-esr",
        "pretrained-noise-trained",
        "pretrained-freelb",
    )
    """Models, as in `fine-tuning`."""
    learning_rates: tuple[float, ...] = (2e-5, 5e-5, 1e-4, 3e-4)
    """Peak learning rates."""
    encoder: Encoders = Encoders()


def run(config: Config) -> Path:
    """Trains missing models, then writes the page; returns the run's folder."""
    config = resolved(config, DEFAULTS)
    jobs = [
        (rate, replace(config, training=replace(config.training, learning_rate=rate)),
         runs.Job(task, name, model, ()))
        for task in config.data.task
        for name, model in config.encoder.models(config.model).items()
        for rate in config.learning_rates
    ]  # fmt: skip
    data = {name: runs.load(config, name) for name in config.data.task}
    runs.check([job for *_, job in jobs], data)
    plan = {"cells": [runs.spec_of(each, job, data[job.task]).id for _, each, job in jobs]}
    folder, rows = open_run("learning-rates", config, plan=plan), []
    with Progress(len(jobs)) as progress:
        for number, (rate, at_rate, job) in enumerate(jobs):
            progress.title = f"[{number + 1}/{len(jobs)}] {job.variant.title}, {written(rate)}"
            loaded = data[job.task]
            spec, labels = loaded.spec, loaded.validation.labels
            cell = runs.open_cell(at_rate, job, loaded, on_progress=progress.part(number))
            lines = (cell.folder / "metrics.jsonl").read_text().splitlines()
            best = [line["best"] for line in map(json.loads, lines) if "best" in line][-1]
            rows += [
                {"task": job.task, "model": job.model, "learning_rate": rate, "seed": seed,
                 "score": score, "num_examples": len(labels),
                 "constant": constant_score(spec.metrics, labels, spec.num_outputs),
                 "num_train": len(loaded.train.labels)}
                for seed, score in zip(cell.spec.seeds, best, strict=True)
            ]  # fmt: skip
    return report.write_run(folder, pd.DataFrame(rows), page)


def page(folder: Path) -> Page:
    """Returns the page of a run or of a folder of published results."""
    frame = pd.read_csv(folder / "results.csv").sort_values("learning_rate", kind="stable")
    frame = tidy.ordered(frame, "model", list(dict.fromkeys(frame.model)))
    titles = gaussian.titles(frame.task.unique())
    means = tidy.summarize(frame[["task", "model", "learning_rate", "constant", "seed", "score"]])
    means = means.assign(rate=[written(rate) for rate in means.learning_rate])
    names = report.joined(titles[task] for task in means.task.unique())
    best = means.loc[means.groupby(["task", "model"], sort=False)["mean"].idxmax()]
    chosen, several = set(best.index[best["mean"] > best.constant + 1e-9]), means.task.nunique() > 1
    lines = best.task.map(titles) + ", " if several else ""
    best = best.assign(line=lines + best.model.map(titles))
    parts = [
        f"{rate} for {report.joined(rows.line)}" for rate, rows in best.groupby("rate", sort=False)
    ]
    keys = ["task", "model"]
    at_best = frame.merge(best[[*keys, "learning_rate"]], on=[*keys, "learning_rate"])
    every = tidy.paired(frame, at_best, on=[*keys, "seed"])
    gaps = tidy.summarize(every[[*keys, "learning_rate", "seed", "score"]])
    differ = "differ significantly from the best (paired by seed)"
    apart = f"Of the other rates, {tidy.clear(gaps)} of {int(gaps.low.notna().sum())} {differ}."
    if not tidy.clear(gaps):
        apart = f"No other rates {differ}, so the search does not tell rates apart."
    rates = list(means.rate.unique())
    at_edge = best.line[best.rate.isin([rates[0], rates[-1]])] if len(rates) > 1 else []
    notes, answer = [], f"**Highest mean validation score on {names}**: {'; '.join(parts)}. {apart}"
    weak = best.line[best["mean"] - best.constant < LEARNED]
    if len(at_edge) and len(weak) < len(best):
        notes.append(f"Best at the end of the range of rates: {report.joined(at_edge)}.")
    if len(weak) == len(best):
        constants = report.joined(map(report.number, best.constant.unique()))
        answer = (
            f"**On {names}, no model is {LEARNED:g} points above the majority baseline "
            f"({constants}) at any tested rate**: {report.joined(best.line)}."
        )
    elif len(weak):
        notes.append(
            f"Less than {LEARNED:g} points above the majority baseline at all rates, so that the "
            f"choice means little: {report.joined(weak)}."
        )
    rows = []
    for (task, model), each in means.groupby(["task", "model"], sort=False):
        cells = {  # a model may lack some rates
            row.rate: f"**{report.bracketed(row)}**" if index in chosen else report.bracketed(row)
            for index, row in each.iterrows()
        }
        name = f"{titles[str(task)]}, {titles[str(model)]}"
        rows.append([name, *(cells.get(rate, "not tested") for rate in rates)])
    sizes = report.sizes(frame.assign(metric="score"), titles).replace("test", "validation", 1)
    return Page(
        title=f"Learning rates of fine-tuned encoders: {names}",
        answer=answer,
        pictures={
            "learning_rates": report.facets(
                f"{names}: validation score against learning rate{bands(means)}",
                means,
                x="rate",
                row="task",
                titles=titles,
                xlabel="learning rate",
                ylabel=gaussian.score_names(means.task.unique()),
            )
        },
        tables=[
            Table(
                ["", *rates],
                rows,
                "Validation score of the best epoch, by learning rate, with 95 % intervals over "
                "seeds. Bold: the highest above the majority baseline, before rounding.",
            )
        ],
        notes=[sizes, *notes],
    )


def written(rate: float) -> str:
    """Returns a rate in scientific notation, such as 5e-5."""
    return f"{rate:.0e}".replace("e-0", "e-") if float(f"{rate:.0e}") == rate else f"{rate:g}"
