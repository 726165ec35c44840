"""How much do typos and character-level attacks cost encoders trained on clean text?

Paper: Podasca and Das (2026), Table 12. Claim: Robertha withstands misspellings, swapped letters,
TextBugger and HotFlip in 10, 20 and 30 % of the words; in the table it is below FreeLB on GLUE
throughout (average with 10 % misspelled: 58.4 against 62.8).

Command: `python -m experiments typos --task sst2 --data-dir DIR`, with the flags of the
`robustness` run whose models to test; they are not trained again.

Expected: random typos cost little, attacks cost much, and differences between models are smaller
than those between seeds.

Random typos are the same for all models and seeds. An attack uses the losses (TextBugger) or the
gradients (HotFlip) of each seed's model and is scored on that model. Every text has at least one
word to change, so short texts exceed the requested rate; a text without a suitable word stays as it
is. Every edit is stored with the predictions.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import pandas as pd

from experiments import gaussian, report, tidy
from experiments.figures import bands
from experiments.report import Page
from experiments.robertha.robustness import Encoders, run_models
from experiments.settings import Corruption, Flags, by_budget, resolved

REPRODUCES = "Robertha, Table 12: scores under misspelling, char swap, TextBugger and HotFlip"


FULL = {"model": ("tinybert", "robertha"), "rates": (0.1, 0.2, 0.3)}
DEFAULTS = {
    "laptop": {**FULL, "texts": 200},
    "smoke": {"model": ("tinybert",), "rates": (0.1,), "texts": 4},
    "paper": {**FULL, "texts": None},
}


@dataclass(frozen=True, kw_only=True)
class Config(Flags):
    """Which models to test, and with what."""

    model: Annotated[tuple[str, ...] | None, by_budget("model", "NAME ...", DEFAULTS)] = None
    """Models, see `robustness`."""
    corruption: tuple[Corruption, ...] = get_args(Corruption)
    """Corruptions of the test texts."""
    rates: Annotated[tuple[float, ...] | None, by_budget("rates", "FLOAT ...", DEFAULTS)] = None
    """Shares of words to change, in (0, 1]; clean texts are always tested."""
    texts: Annotated[int | None, by_budget("texts", "INT", DEFAULTS)] = None
    """Texts drawn from each test split."""
    form: Literal["characters", "tokens"] = "characters"
    """Units that HotFlip replaces."""
    encoder: Encoders = Encoders()


def run(config: Config) -> Path:
    """Trains and tests missing models, then writes the page; returns the run's folder."""
    from experiments import conditions

    config = resolved(config, DEFAULTS)
    tests = conditions.typos_grid(
        config.corruption,
        config.rates,
        num_texts=config.texts,
        beam=conditions.BEAMS[config.budget],
        form=config.form,
        data_dir=config.data.data_dir,
    )
    models = config.encoder.models(config.model or ())
    return run_models("typos", config, models, page, lambda task: tests)


def page(folder: Path) -> Page:
    """Returns the page of a run or of a folder of published results."""
    from experiments import conditions

    measured = gaussian.read(folder)
    frame, scores, titles, names, notes = measured
    tasks, models = list(scores.task.unique()), list(scores.model.unique())
    titles |= conditions.CORRUPTIONS
    table = tidy.summarize(scores)
    table["rate"] = [f"{100 * level:.0f} %" if level else "clean" for level in table.level]
    lines = pd.concat(
        table[table.corruption.isin([kind, "none"])].assign(corruption=kind)
        for kind in conditions.CORRUPTIONS
        if kind in set(scores.corruption)
    ).sort_values("level", kind="stable")
    lines = tidy.ordered(tidy.ordered(lines, "model", models), "task", tasks)
    baseline = gaussian.reference(models)
    unlearned = gaussian.not_learned(scores, gaussian.constants(measured.frame))
    answer, tables = f"Only {titles[baseline]} is measured, so there is nothing to compare.", []
    if len(models) > 1:
        gaps = tidy.summarize(tidy.average(tidy.difference(scores, model=baseline), "level"))
        noisy = gaps[(gaps.corruption != "none") & (gaps.task == tasks[0])]
        constants = gaussian.constants(measured.frame)
        hopeless = [
            titles[kind]
            for kind, rows in scores[scores.task == tasks[0]].groupby("corruption", sort=False)
            if kind != "none" and len(gaussian.near_baseline(rows, constants)) == len(models)
        ]
        if hopeless and len(hopeless) < noisy.corruption.nunique():
            noisy = noisy[~noisy.corruption.map(titles).isin(hopeless)]
        survivors = [
            f"{titles[row.model]} under {titles[row.corruption]} ({report.plain_interval(row)})"
            for _, row in noisy[tidy.rejected(noisy)].iterrows()
        ]
        findings: dict[str, list[str]] = {}
        for model, rows in noisy.groupby("model", sort=False):
            low, high = report.signed(rows["mean"].min()), report.signed(rows["mean"].max())
            each = f"{titles[model]} ({low if low == high else f'{low} to {high}'})"
            verdict = gaussian.finding(rows)
            if (tasks[0], model) in unlearned.index:
                verdict = "Not learned, so no verdict"
            findings.setdefault(verdict, []).append(each)
        parts = [f"{name} for {report.joined(each)}." for name, each in findings.items()]
        corruptions = report.joined(titles[each] for each in noisy.corruption.unique())
        answer = (
            f"**On {titles[tasks[0]]} under {corruptions}, differences from {titles[baseline]} "
            f"that are significant after Holm's correction: {tidy.significant(noisy)} of "
            f"{len(noisy)}**{': ' * bool(survivors)}{report.joined(survivors)}. Without correction "
            f"({tidy.clear(noisy)} of {len(noisy)}): {' '.join(parts)} Ranges are over the "
            "corruptions, in points, averaged over rates."
        )
        if hopeless:
            answer += (
                f" Under {report.joined(hopeless)}, no model is well above the majority baseline, "
                "so there is no verdict."
            )
        if len(hopeless) == gaps[gaps.corruption != "none"].corruption.nunique():
            answer = (
                f"**On {titles[tasks[0]]}, no verdict: under {report.joined(hopeless)}, no model "
                "is well above the majority baseline.**"
            )
        if (tasks[0], baseline) in unlearned.index:
            learned = f"{titles[baseline]}, the baseline, did not learn {titles[tasks[0]]}"
            answer = f"**No verdict under {corruptions}: {learned}.**"
        clean = tidy.select(table, corruption="none", model=baseline)
        cleans = report.joined(
            f"{report.number(row['mean'])} ({titles[row.task]})" for _, row in clean.iterrows()
        )
        compared = report.pivot(
            gaps.assign(
                line=gaps.task.map(titles) + ", " + gaps.model.map(titles),
                # As for the verdicts, of the first task.
                bold=~(gaps.corruption.map(titles).isin(hopeless) & (gaps.task == tasks[0])),
            ),
            index="line",
            columns="corruption",
            titles=titles | {"none": "clean"},
            caption=f"Score minus {titles[baseline]}, mean over the rates. Its clean score: "
            f"{cleans}.",
        )
        tables = [compared]
    shares = tidy.scores(frame, metric="words_changed")
    shares = shares[shares.level > 0].groupby(["corruption", "level"], sort=False).score.mean()
    rates = list(dict.fromkeys(level for _, level in shares.index))
    shown = {"x": "rate", "titles": titles, "xlabel": "requested share of words"}
    caption = f"{names}: score against the requested share of changed words{bands(lines)}"
    draw = {"col": "corruption", "row": "task", "ylabel": gaussian.score_names(tasks)}
    menus = {"task": "Task", "corruption": "Corruption"}
    return report.Page(
        title=f"Robustness to typos: {names}",
        answer=answer,
        pictures={"typos": report.facets(caption, lines, **draw, **shown)},
        tables=[
            *tables,
            report.Table(
                ["", *(f"{100 * rate:.0f} % requested" for rate in rates)],
                [
                    [titles[kind], *(f"{100 * shares[kind, rate]:.0f} %" for rate in rates)]
                    for kind in dict.fromkeys(kind for kind, _ in shares.index)
                ],
                "Share of the words that were changed. Every text has at least one word to change, "
                "so short texts exceed the request; attacks may change fewer words.",
            ),
        ],
        notes=[
            *notes[:2],
            *gaussian.few_rows_note(measured),
            *gaussian.unlearned_note(scores, unlearned, titles),
            "Table 12 of the paper reports averages over GLUE and SuperGLUE, not single tasks.",
        ],
        explorer=report.Explorer(lines, hue="model", menus=menus, **shown),
    )
