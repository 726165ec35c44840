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

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pandas as pd

from experiments import gaussian, report, tidy
from experiments.figures import bands
from experiments.models import Variant, variant, with_flags
from experiments.report import Page
from experiments.settings import Flags, Noise, optional, resolved

if TYPE_CHECKING:
    from experiments.conditions import Condition

REPRODUCES = "Robertha, Tables 2, 3, 6-10, 13: scores under Gaussian embedding noise"
MOST_LINES = 6  # more models are drawn as a forest plot of differences


@dataclass(frozen=True, kw_only=True)
class Encoders:
    """Hyperparameters of the models."""

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
    pretrained: Annotated[str | None, optional("FOLDER", "none")] = None
    """Hugging Face folder of a BERT or RoBERTa, for the models `pretrained*`. All models of the run
    then use its tokenizer."""
    adversarial_radius: Annotated[
        float | None, optional("FLOAT", "0.003125, pretrained-freelb 0.23")
    ] = None
    """Maximum L2 norm of FreeLB's and PGD's perturbation of a text's token embeddings."""

    def models(self, names: Sequence[str]) -> dict[str, Variant]:
        """Models under these options, by name."""
        flags = asdict(self)
        flags["radius"] = flags.pop("adversarial_radius")
        flags["folder"] = flags.pop("pretrained")
        return {name: with_flags(variant(name), **flags) for name in names}


@dataclass(frozen=True, kw_only=True)
class Config(Flags):
    """Models to train and noise to test them under."""

    model: tuple[str, ...] = ("tinybert", "robertha", "tinybert-memory")
    """Models: tinybert, tinybert-mean, tinybert-unit-scale, tinybert-mean-prenorm,
    tinybert-mean-prenorm-dropout, freelb, pgd, data-augment, noise-trained, noise-through-memory,
    universal, universal-halting, robertha, robertha-paper, robertha-algorithm, robertha-released,
    robertha-renyi2, robertha-no-esr, robertha-no-esr-dropout, robertha-no-esr-weight-decay,
    robertha-no-iteration-no-esr, robertha-no-output-projection, robertha-freelb; of a folder:
    pretrained, pretrained-1e-4, pretrained-loud, pretrained-esr, pretrained-noise-trained,
    pretrained-noise-through-memory, pretrained-freelb, pretrained-hopfield,
    pretrained-hopfield-beta-4, pretrained-hopfield-esr, pretrained-hopfield-1,
    pretrained-hopfield-1-esr, pretrained-hopfield-0, pretrained-hopfield-0-beta-4. With -memory
    (tinybert, tinybert-mean, freelb, noise-trained, robertha, pretrained, ...): the same trained
    model, which retrieves its token embeddings from the vocabulary when tested. Baselines of
    memory: pretrained-nearest, pretrained-linear."""
    noise: Noise = Noise()
    encoder: Encoders = Encoders()


def run(config: Config) -> Path:
    """Trains and tests missing models, then writes the page; returns the run's folder."""
    return run_models("robustness", config, config.encoder.models(config.model), page)


def run_models(
    name: str,
    config: Any,
    models: Mapping[str, Variant],
    page: Any,
    tests: Callable[[str], Sequence[Condition]] | None = None,
) -> Path:
    """Trains models on every task and tests them under `config.noise`, or under `tests(task)`."""
    from experiments import conditions, runs

    config = resolved(config)
    if tests is None:
        grid = conditions.gaussian_grid(**asdict(config.noise))
    jobs = [
        runs.Job(task, model, each, tests(task) if tests else grid)
        for task in config.data.task
        for model, each in models.items()
    ]
    return runs.fill(name, config, jobs, page)


def page(folder: Path) -> Page:
    """Returns the page of a run or of a folder of published results."""
    measured = gaussian.read(folder)
    tested = measured.scores.groupby("task").model.nunique()
    # Every model is tested on these tasks.
    complete = tested[tested == measured.scores.model.nunique()].index
    if complete.empty:
        raise ValueError("no task has results of all models yet")
    scores = measured.scores[measured.scores.task.isin(complete)]
    tasks, models = list(scores.task.unique()), list(scores.model.unique())
    titles = gaussian.titles(tasks)
    names = report.joined(titles[name] for name in tasks)
    average = tidy.average(scores, "task").assign(task="average")
    shown = pd.concat([average, scores], ignore_index=True) if len(tasks) > 1 else scores
    subject = shown.task.iloc[0]
    baseline, constants = gaussian.reference(models), gaussian.constants(measured.frame)
    lines, averaged = gaussian.lines(shown, constants), gaussian.informative(shown, constants)
    if not (tidy.select(averaged, task=subject).level > 0).any():
        averaged = shown
    lines = lines.assign(left_out=~tidy.among(lines, averaged, "task", "site", "protocol", "level"))
    unlearned = gaussian.not_learned(scores, constants)
    by_none = [titles[name] for name in gaussian.learned_by_none(scores, unlearned)]
    left_out = gaussian.left_out_note(shown[shown.task == subject], averaged, titles)
    levels = "noise levels" + (" (some left out, see the notes)" if left_out else "")
    learned_none = {
        model for model in models if all((name, model) in unlearned.index for name in tasks)
    }
    failed = {*unlearned.index, *(("average", model) for model in learned_none)}
    tables = gap_table(scores, titles, failed)
    if len(models) > 1:
        contrasts = gaussian.differences(averaged, baseline=baseline, over=["level"])
        contrasts = contrasts[contrasts.task == subject]
        contrasts = gaussian.evidence(contrasts, failed, baseline)
        contrasts = gaussian.named_levels(contrasts, averaged)
        over = f" and over {len(tasks)} tasks." if len(tasks) > 1 else "."
        caption = f"Score minus {titles[baseline]}: clean, and averaged over {levels}{over}"
        pivot = {"index": "model", "columns": "panel", "titles": titles, "caption": caption}
        tables.append(report.pivot(contrasts, **pivot))
    marked = " (open marks: the paper)" if lines.paper.notna().any() else ""
    if len(models) <= MOST_LINES:
        picture = report.facets(
            f"{names}: score against noise{bands(lines)}{marked}",
            lines[lines.task == subject] if len(tasks) > 3 else lines,
            x="noise",
            col="panel",
            row="task",
            titles=titles,
            xlabel="noise level",
            ylabel=gaussian.score_names(lines.task.unique()),
        )
    else:
        picture = report.forest(
            f"{names}: score minus {titles[baseline]}, mean over {levels}",
            contrasts[contrasts.panel != "clean"],
            label="model",
            col="panel",
            titles=titles,
            xlabel=f"points relative to {titles[baseline]}",
        )
    notes = [
        *gaussian.unlearned_note(scores, unlearned, titles),
        *measured.notes,
        *left_out,
        *gaussian.few_rows_note(measured),
    ]
    return report.Page(
        title=f"Robustness to Gaussian noise: {names}",
        answer=learned([titles[name] for name in tasks], by_none)
        + answer(shown, averaged, titles, baseline, learned_none),
        pictures={"robustness": picture},
        tables=tables,
        notes=notes,
        explorer=report.Explorer(
            lines,
            x="noise",
            hue="model",
            menus={"task": "Task", "panel": "Noise"},
            titles=titles,
            xlabel="noise level",
        ),
    )


def learned(tasks: Sequence[str], barely: Collection[str]) -> str:
    """Returns which of several tasks are learned, if not all are, to begin the page's answer."""
    rest = [name for name in tasks if name not in barely]
    if not barely or len(tasks) < 2:
        return ""
    if not rest:
        return "**No task is learned**: no model is well above the majority baseline. "
    others = "the other task" if len(barely) == 1 else f"the other {len(barely)} tasks"
    return f"**Some models learn {report.joined(rest)}; no model learns {others}.** "


def answer(
    scores: pd.DataFrame,
    averaged: pd.DataFrame,
    titles: Mapping[str, str],
    baseline: str,
    unlearned: Collection[str] = (),
) -> str:
    """Returns the page's answer: any lead at equal noise, and the source of the paper's gap.

    Args:
        scores: From `tidy.scores`; the first task is reported.
        averaged: The scores to average over noise levels.
        titles: Names of models and tasks.
        baseline: The model that others are compared with.
        unlearned: Models that learned none of the tasks, which are no evidence on robustness.
    """
    others = [name for name in scores.model.unique() if name != baseline]
    if not others:
        return f"Only {titles[baseline]} is measured, so there is nothing to compare."
    model = "robertha" if "robertha" in others else others[0]
    pair = {"task": scores.task.iloc[0], "model": [model, baseline]}
    compared = tidy.select(scores, **pair)
    table = tidy.select(averaged, **pair)
    table = gaussian.differences(table, baseline=baseline, over=["level"])
    noisy = table[table.panel != "clean"]
    if noisy.empty:
        return f"{titles[model]} and {titles[baseline]} share no seed under noise."
    normalized = (noisy.site == "embedding") & gaussian.same_snr(compared)
    rows, where = noisy[(noisy.protocol != "sigma") | normalized], "at the same site and SNR"
    if rows.empty:
        rows, where = noisy, "at the same σ"
    close = [titles[each] for each in (model, baseline) if each in unlearned]
    task = str(compared.task.iloc[0])
    start = f"{titles[model]} against {titles[baseline]}, {where}"
    finding = gaussian.finding(rows)
    if close:
        missed = "any of the tasks" if task == "average" else titles[task]
        failed = f"{close[0]} did not learn"
        if len(close) == 2:
            failed = f"neither {close[0]} nor {close[1]} learned"
        start = f"**No verdict on a lead: {failed} {missed}.** {start}"
    else:
        start = f"**{finding}: {start}**"
    levels, over = tidy.select(averaged, **pair), "mean over noise levels"
    levels = levels[tidy.among(levels, rows, "site", "protocol")]
    if levels.level.nunique() == 1:
        over = f"at {gaussian.noise_label(levels.protocol.iloc[0], levels.level.iloc[0])}"
    parts = (f"{report.plain_interval(row)} for {placed(row)}" for _, row in rows.iterrows())
    text = f"{start}: {report.joined(parts)}, in points, {over}."
    single = gaussian.differences(levels, baseline=baseline)
    if not close and finding == gaussian.NO_DIFFERENCE and tidy.significant(single):
        parts = (
            f"{report.plain_interval(row)} at {gaussian.noise_label(row.protocol, row.level)} for "
            f"{placed(row)}"
            for _, row in single[tidy.rejected(single)].iterrows()
        )
        text += f" Significant at single levels after Holm's correction: {report.joined(parts)}."
    if model != (remembering := f"{baseline}-memory") and remembering in others:
        two = tidy.select(averaged, task=pair["task"], model=[remembering, baseline])
        leads = gaussian.differences(two, baseline=baseline, over=["level"])
        leads = leads[(leads.site == "token") & (leads.protocol == "matched")]
        text += "".join(
            f" Retrieving its token embeddings from the vocabulary gives {titles[baseline]} "
            f"{report.plain_interval(row)} points on token embeddings at the same SNR."
            for _, row in leads.iterrows()
        )
    gap = gaussian.gap(compared, model=model, baseline=baseline)
    for _, row in gap[gap.paper.notna() & (gap.comparison == gaussian.ACROSS)].iterrows():
        text += (
            f" The paper reports {report.signed(row.paper)} at σ = {row.level:g}. With noise on "
            f"the tokens of {titles[baseline]}, but after the LayerNorm in {titles[model]}, we "
            f"find {report.plain_interval(row)}."
        )
    return text


def placed(row: Any) -> str:
    """Returns the site of a row's noise, and its protocol if that is per token."""
    per_token = " (SNR per token)" if row.protocol == "per-token" else ""
    return row.panel.partition(",")[0] + per_token


def gap_table(
    scores: pd.DataFrame, titles: Mapping[str, str], unlearned: Collection[tuple[str, str]]
) -> list[Any]:
    """Returns the paper's gap at its weakest noise and ours, at different and at equal sites."""
    if not {"robertha", gaussian.BASELINE} <= set(scores.model):
        return []
    gap = gaussian.gap(scores)
    gap = gap[gap.paper.notna()].assign(model="robertha")
    gap = gaussian.evidence(gap, unlearned, gaussian.BASELINE)
    if gap.empty:
        return []
    level = gap.level.iloc[0]
    same = gaussian.noise_label("matched", level)
    caption = f"Robertha minus TinyBERT at σ = {level:g} (same SNR: {same}), by the noise's site."
    table = report.pivot(gap, index="task", columns="comparison", titles=titles, caption=caption)
    papers = [report.signed(effect) for effect in gap.drop_duplicates("task").paper]
    return [table.with_column(1, "the paper", papers)]
