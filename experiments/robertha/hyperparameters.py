"""Does Robertha's score under noise depend on ESR's target and weight, and on β?

Paper: Podasca and Das (2026), Tables 21 to 26, Figures 9 and 10. Claim: the score hardly depends on
the target α, the weight λ and the inverse temperature β within wide ranges around 0.35, 0.05 and
15; without ESR, or with a large weight, strong noise costs MRPC about 5 points more.

Command: `python -m experiments hyperparameters` (18 Robertha models on an embedded task), or the
paper's tasks: `--task mrpc boolq --data-dir DIR --vocab DIR/vocab.txt`. `--esr-weight --beta`
without values leave those two sweeps out.

Expected: no more intervals that exclude zero than chance predicts.

One parameter changes at a time. The paper's targets of 5 and 50 are outside the range of a
normalized entropy; 1 replaces them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from scipy.stats import binom

from experiments import gaussian, report, tidy
from experiments.models import VARIANTS, with_flags
from experiments.paper import paper_setting
from experiments.report import Page
from experiments.robertha.robustness import run_models
from experiments.settings import Flags, Noise, by_budget, resolved

REPRODUCES = "Robertha, Tables 21-26, Figures 9, 10: ESR's target and weight, and β"

CENTRE = {"esr_target": 0.35, "esr_weight": 0.05, "beta": 15.0}
SYMBOLS = {"esr_target": "α", "esr_weight": "λ", "beta": "β"}


VALUES = {
    "esr_target": (0.1, 0.2, 0.5, 0.7, 1.0),
    "esr_weight": (0.0, 0.01, 0.1, 0.2, 1.0),
    "beta": (1.0, 5.0, 10.0, 20.0, 30.0, 50.0, 100.0),
}
FEW = {"esr_target": (0.1,), "esr_weight": (), "beta": ()}
Values = tuple[float, ...] | None
DEFAULTS = {"laptop": VALUES, "smoke": FEW, "paper": VALUES}


@dataclass(frozen=True, kw_only=True)
class Sweeps:
    """What to vary; an empty list leaves a sweep out."""

    may_be_empty: ClassVar[bool] = True

    esr_target: Annotated[Values, by_budget("esr_target", "[FLOAT ...]", DEFAULTS)] = None
    """Target entropies α of ESR, in [0, 1]."""
    esr_weight: Annotated[Values, by_budget("esr_weight", "[FLOAT ...]", DEFAULTS)] = None
    """Weights λ of ESR."""
    beta: Annotated[Values, by_budget("beta", "[FLOAT ...]", DEFAULTS)] = None
    """Inverse temperatures, before the 1/sqrt(head width)."""


@dataclass(frozen=True, kw_only=True)
class Config(Flags):
    """What to vary, and on which tasks."""

    sweeps: Sweeps = Sweeps()
    noise: Noise = Noise()


def run(config: Config) -> Path:
    """Trains and tests missing models, then writes the page; returns the run's folder."""
    config = resolved(config, DEFAULTS)
    settings = [
        (parameter, value)
        for parameter in SYMBOLS
        for value in getattr(config.sweeps, parameter)
        if value != CENTRE[parameter]
    ]
    if not settings:
        raise ValueError("nothing to vary: --esr-target, --esr-weight and --beta are all empty")
    center = VARIANTS["robertha"]
    models = {"robertha": center}
    for parameter, value in settings:
        models[name(parameter, value)] = with_flags(center, **{parameter: value})
    return run_models("hyperparameters", config, models, page)


PAPER_TARGETS = "The paper's targets of 5 (MRPC) and 50 (BoolQ) are shown at α = 1."


def name(parameter: str, value: float) -> str:
    """Robertha's name in results.csv with one parameter changed."""
    return f"robertha-{parameter.replace('_', '-')}-{value:.12g}"


def setting(model: str) -> tuple[str, float]:
    """The parameter and the value of a name; the inverse of `name`."""
    for parameter in SYMBOLS:
        head = f"robertha-{parameter.replace('_', '-')}-"
        if model.startswith(head):
            return parameter, float(model.removeprefix(head))
    raise ValueError(f"{model} is not a model of this experiment")


def page(folder: Path) -> Page:
    """Returns the page of a run or of a folder of published results."""
    measured = gaussian.read(folder)
    _, scores, titles, names, notes = measured
    settings = {model: setting(model) for model in scores.model.unique() if model != "robertha"}
    order = sorted(settings, key=lambda name: ([*SYMBOLS].index(settings[name][0]), settings[name]))
    titles |= {model: f"{SYMBOLS[name]} = {value:g}" for model, (name, value) in settings.items()}
    titles |= {"robertha": "default"}
    unlearned = gaussian.not_learned(scores, gaussian.constants(measured.frame))
    every = gaussian.differences(scores, baseline="robertha", order=order)
    means = gaussian.differences(scores, baseline="robertha", order=order, over=["level"])
    num_intervals = int(every.low.notna().sum())
    # If no parameter had an effect and intervals were independent, more would be rare.
    chance = int(binom.ppf(tidy.CONFIDENCE, num_intervals, 1 - tidy.CONFIDENCE))
    effect = "No detectable effect" if tidy.clear(every) <= chance else "A possible effect"
    counted = (
        f"{tidy.clear(every)} of {num_intervals} differences from the default setting have an "
        f"interval that excludes zero; chance alone gives at most {chance} in 95 % of cases."
    )
    if not num_intervals:
        effect, counted = "No verdict on an effect", "there are too few seeds for intervals."
    largest, sigma = every.iloc[int(every["mean"].abs().argmax())], every.level.max()
    by_none = [titles[name] for name in gaussian.learned_by_none(scores, unlearned)]
    caution = (
        f" No setting learns {report.joined(by_none)}, so this is no evidence." if by_none else ""
    )
    default = tidy.select(scores[scores.level > 0], model="robertha")
    close = gaussian.near_baseline(default, gaussian.constants(measured.frame)).reset_index().task
    if not by_none and len(close):
        caution = (
            f" Under noise, the default is not well above the majority baseline on "
            f"{report.joined(titles[task] for task in close)}, so this is weak evidence."
        )
    strongest = every[(every.level == sigma) & (every.protocol == "sigma")]

    def paper(task: str, model: str) -> str:
        name, value = settings[model]
        ours, center = (
            paper_setting(titles[task], name, each, sigma) for each in (value, CENTRE[name])
        )
        return report.signed(ours - center)

    pictures, tables = {}, []
    for task in scores.task.unique():
        pictures[f"hyperparameters_{task}"] = report.forest(
            f"{titles[task]}: score minus that of the default (target α = 0.35, weight λ = 0.05, "
            "β = 15), mean over noise levels",
            means[(means.task == task) & (means.panel != "clean")],
            label="model",
            col="panel",
            titles=titles,
            xlabel="score minus default, points",
        )
        rows = strongest[strongest.task == task]
        table = report.pivot(
            rows,
            index="model",
            columns="panel",
            titles=titles,
            caption=f"{titles[task]}: score minus the default's at the strongest noise, "
            f"σ = {sigma:g}.",
        )
        papers = [paper(task, model) for model in rows.model.unique()]
        if set(papers) != {"n/a"}:
            table = table.with_column(len(table.columns), "the paper", papers)
        tables.append(table)
    return report.Page(
        title=f"ESR's target and weight, and β: {names}",
        answer=(
            f"**{effect} of ESR's target, its weight or β on {names}**: {counted} The largest of "
            f"all differences is {report.plain_interval(largest)} points ({titles[largest.model]}, "
            f"{gaussian.noise_label(largest.protocol, largest.level)}).{caution}"
        ),
        pictures=pictures,
        tables=tables,
        notes=[
            *gaussian.unlearned_note(scores, unlearned, titles),
            *notes,
            *(PAPER_TARGETS for task in scores.task.unique() if task in ("mrpc", "boolq")),
        ],
    )
