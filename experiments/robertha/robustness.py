"""Does Robertha withstand noise that breaks TinyBERT, at the same site and the same SNR?

Paper: Podasca and Das (2026), Tables 2, 3, 6 to 10 and 13. Claim: under Gaussian noise on the
embeddings a two-layer Robertha loses a few points where a TinyBERT falls to chance (GLUE average
at σ = 0.5: 62 against 50); so does a Universal Transformer (Table 13).

Command: `python -m experiments robustness` (a synthetic task, three minutes on two cores), or
`python -m experiments robustness --task sst2 --data-dir DIR --vocab DIR/vocab.txt`.

Expected: with noise at the same site and SNR there is no gap of the paper's size. The measurements
are in `experiments/results/robustness/`.

The effect of σ depends on the site of the noise and the size of the signal. Every model is
therefore tested at both sites (`token`, before positions and LayerNorm; `embedding`, after the
LayerNorm) and under both protocols (`sigma`, the same σ; `matched`, the same signal-to-noise
ratio).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from experiments.models import VARIANTS, Variant, variant, with_flags
from experiments.settings import Flags, Noise, optional, resolved

if TYPE_CHECKING:
    import pandas as pd

    from experiments.report import Page

REPRODUCES = "Robertha, Tables 2, 3, 6-10, 13: scores under Gaussian embedding noise"
MOST_LINES = 6  # more models are drawn as a forest plot of differences


@dataclass(frozen=True, kw_only=True)
class Encoders:
    """Hyperparameters of the models."""

    preset: Literal["hopfax", "paper", "released"] = "hopfax"
    """Version of Robertha: hopfax's, the paper's text, or the released program."""
    beta: float = 15.0
    """Robertha's inverse temperature, before the 1/sqrt(head width)."""
    max_steps: int = 50
    """Robertha's maximum number of iterations T."""
    tol: float = 1e-4
    """Change per iteration that counts as converged."""
    esr_weight: float = 0.05
    """Weight of Eigenspectrum Regularization."""
    esr_target: float = 0.35
    """Target entropy α of ESR, in [0, 1]."""
    dropout: Annotated[float | None, optional("FLOAT", "0.1 TinyBERT, 0.3 Robertha")] = None
    """Dropout rate in training."""
    adversarial_radius: float = 0.003125
    """Maximum L2 norm of FreeLB's and PGD's perturbation of a text's token embeddings."""

    def applied(self, model: Variant) -> Variant:
        """A model under these options."""
        flags = asdict(self)
        return with_flags(model, radius=flags.pop("adversarial_radius"), **flags)


@dataclass(frozen=True, kw_only=True)
class Config(Flags):
    """Models to train and noise to test them under."""

    model: tuple[str, ...] = ("tinybert", "robertha")
    """Models: tinybert, tinybert-mean, tinybert-unit-scale, tinybert-mean-prenorm,
    tinybert-mean-prenorm-dropout, freelb, pgd, data-augment, universal, universal-halting,
    robertha, robertha-renyi2, robertha-shannon-matmul, robertha-no-esr, robertha-no-esr-dropout,
    robertha-no-esr-weight-decay, robertha-no-iteration-no-esr, robertha-no-output-projection,
    robertha-freelb."""
    noise: Noise = Noise()
    encoder: Encoders = Encoders()


def run(config: Config) -> Path:
    """Trains and tests missing models, then writes the page; returns the run's folder."""
    models = {name: config.encoder.applied(variant(name)) for name in config.model}
    return run_models("robustness", config, models, page)


def run_models(name: str, config: Any, models: Mapping[str, Variant], page: Any) -> Path:
    """Trains models on every task and tests them under the noise of `config.noise`."""
    from experiments import conditions, runs

    config = resolved(config)
    grid = conditions.gaussian_grid(**asdict(config.noise))
    jobs = [
        runs.Job(task, model, each, grid)
        for task in config.data.task
        for model, each in models.items()
    ]
    return runs.fill(name, config, jobs, page)


def page(folder: Path) -> Page:
    """Returns the page of a run or of a folder of published results."""
    from experiments import figures, report, tidy
    from experiments.robertha import gaussian
    from experiments.rundir import read_config

    frame = tidy.read(folder)
    scores = complete(tidy.scores(frame))
    tasks, models = list(scores.task.unique()), list(scores.model.unique())
    titles = gaussian.titles(VARIANTS, tasks)
    names = report.joined(titles[name] for name in tasks)
    shown = gaussian.with_average(scores) if len(tasks) > 1 else scores
    baseline = gaussian.BASELINE if gaussian.BASELINE in models else models[0]
    constants = gaussian.constants(frame, read_config(folder).get("plan", {}))
    lines = gaussian.lines(shown, constants)
    subject = "average" if len(tasks) > 1 else tasks[0]
    caption = f"{names}: score against noise, with 95 % intervals over seeds"
    tables = gap_table(scores, titles)
    if len(models) > 1:
        contrasts = gaussian.contrasts(shown, baseline=baseline)
        contrasts = contrasts[contrasts.task == subject]
        table = report.pivot(
            contrasts,
            index="model",
            columns="panel",
            titles=titles,
            caption=f"Score minus {titles[baseline]}, mean over noise levels"
            + (f" and over {len(tasks)} tasks." if len(tasks) > 1 else "."),
        )
        tables = [*tables, table]
    if len(models) <= MOST_LINES:
        drawn = lines[lines.task == subject] if len(tasks) > 3 else lines
        draw = partial(
            figures.facets,
            drawn,
            x="noise",
            col="panel",
            row="task",
            titles=titles,
            xlabel="noise level",
        )
    else:
        drawn = contrasts[contrasts.panel != "clean"]
        caption = f"{names}: score minus {titles[baseline]}, mean over noise levels"
        draw = partial(
            figures.forest,
            drawn,
            label="model",
            col="panel",
            titles=titles,
            xlabel="difference in points",
        )
    return report.Page(
        title=f"Robustness to Gaussian noise: {names}",
        answer=answer(shown, titles, baseline),
        pictures={"robustness": report.Picture(draw, caption)},
        tables=tables,
        notes=[
            *gaussian.hardly_learned(scores, constants, titles),
            report.sizes(frame, titles),
            *gaussian.NOTES,
        ],
        explorer=report.Explorer(
            lines,
            x="noise",
            hue="model",
            menus={"task": "Task", "panel": "Noise"},
            titles=titles,
            xlabel="noise level",
        ),
    )


def complete(scores: pd.DataFrame) -> pd.DataFrame:
    """Returns the scores of tasks on which every model is tested."""
    counts = scores.groupby("task").model.nunique()
    return scores[scores.task.isin(counts[counts == counts.max()].index)]


def answer(scores: pd.DataFrame, titles: Mapping[str, str], baseline: str) -> str:
    """Returns the page's answer: any lead at equal noise, and the source of the paper's gap."""
    from experiments import report
    from experiments.robertha import gaussian

    others = [name for name in scores.model.unique() if name != baseline]
    if not others:
        return f"Only {titles[baseline]} is measured, so there is nothing to compare."
    model = "robertha" if "robertha" in others else others[0]
    compared = scores[(scores.task == scores.task.iloc[0]) & scores.model.isin([model, baseline])]
    table = gaussian.contrasts(compared, baseline=baseline)
    noisy = table[table.panel != "clean"]
    if noisy.empty:
        return f"{titles[model]} and {titles[baseline]} share no seed under noise."
    normalized = (noisy.site == "embedding") & gaussian.same_snr(compared)
    matched = noisy[(noisy.protocol != "sigma") | normalized]
    rows, where = (
        (matched, "at the same site and SNR") if len(matched) else (noisy, "at the same σ")
    )
    parts = report.joined(
        f"{report.plain_interval(row)} for {row.panel.partition(',')[0]}"
        f"{' (SNR per token)' if row.protocol == 'per-token' else ''}"
        for _, row in rows.iterrows()
    )
    text = (
        f"**{gaussian.finding(rows)} of {titles[model]} over {titles[baseline]} {where}**: "
        f"{parts}, in points, mean over noise levels."
    )
    gap = gaussian.gap(compared, model=model, baseline=baseline)
    gap = gap[gap.paper.notna() & (gap.comparison == gaussian.ACROSS)]
    if len(gap):
        row = gap.iloc[0]
        text += (
            f" The paper reports {report.signed(row.paper)} at σ = {row.level:g}; noise at two "
            f"different sites gives {report.plain_interval(row)}."
        )
    return text


def gap_table(scores: pd.DataFrame, titles: Mapping[str, str]) -> list[Any]:
    """Returns the paper's gap at its weakest noise and ours, at different and at equal sites."""
    from experiments import report
    from experiments.robertha import gaussian

    if not {"robertha", gaussian.BASELINE} <= set(scores.model):
        return []
    gap = gaussian.gap(scores)
    gap = gap[gap.paper.notna()]
    if gap.empty:
        return []
    caption = f"Robertha minus TinyBERT at σ = {gap.level.iloc[0]:g}, by the site of the noise."
    table = report.pivot(gap, index="task", columns="comparison", titles=titles, caption=caption)
    effects = gap.drop_duplicates("task").paper
    rows = [
        [row[0], report.signed(effect), *row[1:]]
        for row, effect in zip(table.rows, effects, strict=True)
    ]
    return [report.Table(["", "the paper", *table.columns[1:]], rows, caption)]
