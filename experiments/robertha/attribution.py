"""Which change from TinyBERT to Robertha adds how many points under noise?

Paper: Podasca and Das (2026), Tables 2 and 3. Claim: iteration and ESR make the difference of some
11 points between TinyBERT and Robertha at σ = 0.5 (GLUE average).

Command: `python -m experiments attribution --task cola --data-dir DIR --vocab DIR/vocab.txt`, or
without flags on the embedded tasks. Models that `robustness` has trained with the same flags are
not trained again.

Expected: at the same σ the site of the noise makes most of the difference, and at the same SNR no
step has a detectable effect.

Each step changes one thing, except the Hopfield step: it also leaves out TinyBERT's dropout of
attention weights and raises the LayerNorm's ε from 1e-12 to 1e-5. Three comparisons are not part of
the sequence: all steps after the first at once; the scale of the embeddings, which has the effect
of moving the noise after the LayerNorm; and the output projection W_O, which the paper leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from experiments import gaussian, report, tidy
from experiments.models import VARIANTS
from experiments.report import Page
from experiments.robertha.robustness import run_models
from experiments.settings import Flags, Noise

REPRODUCES = "Robertha, Tables 2 and 3: the steps from TinyBERT to Robertha, one at a time"


class Step(NamedTuple):
    """An ablation step: a model and noise site, compared with those before the change."""

    change: str
    model: str
    before: str
    site: str = "embedding"
    site_before: str = "embedding"


STEPS = (
    Step("noise moved after the LayerNorm", "tinybert", "tinybert", site_before="token"),
    Step("mean pooling", "tinybert-mean", "tinybert"),
    Step("pre-LN", "tinybert-mean-prenorm", "tinybert-mean"),
    Step("dropout 0.3", "tinybert-mean-prenorm-dropout", "tinybert-mean-prenorm"),
    Step(
        "one Hopfield update, β 15", "robertha-no-iteration-no-esr", "tinybert-mean-prenorm-dropout"
    ),
    Step("iteration", "robertha-no-esr", "robertha-no-iteration-no-esr"),
    Step("ESR", "robertha", "robertha-no-esr"),
    Step("all six together: Robertha", "robertha", "tinybert"),
    Step("embeddings rescaled by 50", "tinybert-unit-scale", "tinybert", "token", "token"),
    Step("no W_O", "robertha-no-output-projection", "robertha"),
)
PANELS = {
    "sigma": "same σ",
    "matched": "same SNR",
    "per-token": "same SNR for each token",
}
MODELS = tuple(dict.fromkeys(name for step in STEPS for name in (step.before, step.model)))


@dataclass(frozen=True, kw_only=True)
class Config(Flags):
    """Tasks, training and noise."""

    noise: Noise = Noise()


def run(config: Config) -> Path:
    """Trains and tests missing models, then writes the page; returns the run's folder."""
    names = MODELS[:2] if config.budget == "smoke" else MODELS
    return run_models("attribution", config, {name: VARIANTS[name] for name in names}, page)


def page(folder: Path) -> Page:
    """Returns the page of a run or of a folder of published results."""
    measured = gaussian.read(folder)
    _, scores, titles, names, notes = measured
    unlearned = gaussian.not_learned(scores, gaussian.constants(measured.frame))
    notes = [*gaussian.unlearned_note(scores, unlearned, titles), *notes]
    table = steps(tidy.average(scores, "task"))
    over = tidy.summarize(tidy.average(table, "level"))
    noisy = over[over.protocol != ""].assign(panel=lambda t: t.protocol.map(PANELS))
    site = noisy[(noisy.change == STEPS[0].change) & (noisy.protocol == "sigma")]
    later = noisy[noisy.change.isin([step.change for step in STEPS[1:7]])]
    matched = later[later.protocol == "matched"]
    answer = ""
    if len(site):
        answer = (
            "**At the same σ, moving the noise from the token embeddings to after the LayerNorm "
            f"adds {report.plain_interval(site.iloc[0])} points on {names}**, mean over noise "
            "levels. "
        )
    if len(matched):
        clear = matched[(matched.low > 0) | (matched.high < 0)]
        which = (f"{row.change}, {report.plain_interval(row)}" for _, row in clear.iterrows())
        answer += (
            f"At the same SNR, averaged over SNRs, the intervals of {len(clear) or 'none'} of "
            f"the {matched.low.notna().sum()} single steps exclude zero"
            f"{f' ({report.joined(which)})' if len(clear) else ''}."
        )
    by_level = tidy.summarize(table)
    by_level["noise"] = [
        gaussian.noise_label(protocol, level)
        for protocol, level in zip(by_level.protocol, by_level.level, strict=True)
    ]
    caption = (
        f"{names}: points gained by each step, mean over noise levels, with 95 % intervals over "
        "seeds. The six steps from mean pooling to ESR lead from TinyBERT to Robertha; the others "
        "are separate changes"
    )
    look = {"label": "change", "col": "panel", "xlabel": "points gained by the step"}
    return report.Page(
        title=f"From TinyBERT to Robertha, one change at a time: {names}",
        answer=answer,
        pictures={"attribution": report.forest(caption, noisy, **look)},
        tables=[
            report.pivot(
                by_level[by_level.protocol == protocol],
                index="change",
                columns="noise",
                caption=f"Points gained by each step, {name}. Noise is added after the LayerNorm; "
                "to the tokens for rescaled embeddings. First row: noise after the LayerNorm minus "
                "noise on the tokens.",
            )
            for protocol, name in PANELS.items()
            if protocol in set(by_level.protocol)
        ],
        notes=notes,
    )


def steps(scores: pd.DataFrame) -> pd.DataFrame:
    """Returns the gain of each step by seed: `change`, protocol, level, seed, score."""
    parts = []
    for step in STEPS:
        ours = tidy.select(scores, model=step.model, site=[step.site, ""])
        before = tidy.select(scores, model=step.before, site=[step.site_before, ""])
        if step.site != step.site_before:  # the clean score is the same at any site
            ours, before = ours[ours.level > 0], before[before.level > 0]
        added = tidy.paired(ours, before, on=["protocol", "level", "seed"])
        parts.append(added.assign(change=step.change).drop(columns=["model", "site"]))
    return pd.concat(parts, ignore_index=True)
