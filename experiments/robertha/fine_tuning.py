"""Do iterative Hopfield attention and ESR make a pretrained encoder robust?

Paper: Podasca and Das (2026), Tables 2 and 3. Claim: with iteration and ESR an encoder keeps its
score under Gaussian noise on its embeddings. There all models are trained from scratch, and most
tasks stay close to the majority baseline; a pretrained encoder learns them.

Command: `python -m experiments fine-tuning --pretrained FOLDER --task cola --data-dir DIR`.

Expected: iterating the loaded attention to convergence lowers the clean score, by 35 points on
STS-B, by 22 on 12,000 rows of SST-2 (at four times the inverse temperature by 7, without iteration
by 1) and, with ESR or without, to the majority baseline on CoLA. It gains nothing under noise. One
update with ESR lowers it by about three points on MRPC and MNLI, one update alone by 2.5 points on
MRPC, 1.5 on STS-B and, under weak noise, 3.0 on RTE and 3.4 on MNLI; ESR alone has no detectable
effect (`experiments/results/fine_tuning/`). RTE is not learned in eight epochs at 5e-5
(`experiments/results/memory/minilm_rte/`), unless the encoder is fine-tuned on MNLI first
(`experiments/results/memory/minilm_rte_mnli/`).

All models start from the folder's weights with mean pooling. Hopfield attention replaces each query
by T updates over the layer's own keys, at the inverse temperature of the loaded attention, before
it reads the values. It has no dropout of attention weights, unlike the loaded attention;
`pretrained-hopfield-0` leaves only that out, without a detectable effect on 12,000 rows of SST-2.

All models use AdamW and batches of 32. Their default learning rates come from a search on MRPC's
validation rows (`experiments/results/learning_rates/mrpc/`), in which no rates differ
significantly. Except for those on noise training, runs published here on CoLA, STS-B, MNLI, RTE and
12,000 rows of SST-2 use 5e-5, the best rate of most models, for all. `pretrained-1e-4` shows the
fine-tuned encoder at its own rate: at +6 dB, it scores higher than at 5e-5 on STS-B and SST-2,
lower on RTE, and not detectably different on CoLA.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from experiments import gaussian, report, tidy
from experiments.models import VARIANTS
from experiments.report import Page, Table
from experiments.robertha import robustness
from experiments.settings import Noise, resolved

REPRODUCES = "Robertha, Tables 2 and 3, on a pretrained encoder, with its own tokenizer"

LEVELS = (0.5, 1.0, 2.0, 3.0, 5.0)  # +6 to -14 dB
HOLM = "Verdicts that name an SNR are corrected for the number of SNRs (Holm); bold is not."
NOT_BOLD = (
    "Never bold: models that did not learn the task, SNRs left out of averages, and SNRs at which "
    "both models are near the majority baseline."
)
HOPFIELD = (
    "Hopfield attention updates each query over the layer's keys, once or to convergence, before "
    "it reads the values. β, 1 by default, multiplies the inverse temperature 1/√(head width)."
)
ESR = "ESR: Eigenspectrum Regularization of the keys."
NOT_LEARNED = "Not learned"
METRICS = {"accuracy": "accuracy", "f1": "F1", "pearson": "Pearson’s r", "spearman": "Spearman’s ρ"}
TRAINING = {"epochs": 3, "patience": 3, "noise_draws": 1, "levels": LEVELS}
DEFAULTS = {"laptop": TRAINING, "paper": TRAINING}


@dataclass(frozen=True, kw_only=True)
class Config(robustness.Config):
    """Models to fine-tune and noise to test them under."""

    model: tuple[str, ...] = (
        "pretrained",
        "pretrained-esr",
        "pretrained-hopfield-1",
        "pretrained-hopfield-1-esr",
    )
    """Models: pretrained, with ESR (-esr), with queries updated once (-hopfield-1), to convergence
    (-hopfield) or not at all (-hopfield-0); or any of `robustness`."""
    noise: Noise = Noise(sites=("token",), protocols=("matched", "per-token"))


def run(config: Config) -> Path:
    """Fine-tunes and tests missing models, then writes the page; returns the run's folder."""
    config = resolved(config, DEFAULTS)
    return robustness.run_models("fine-tuning", config, config.encoder.models(config.model), page)


def page(folder: Path) -> Page:
    """Returns the page of a run or of a folder of published results."""
    each, measured = robustness.page(folder), gaussian.read(folder)
    scores = tidy.ordered(measured.scores, "model", tuple(VARIANTS))
    constants = gaussian.constants(measured.frame)
    kept = gaussian.informative(scores, constants)
    left_out = []
    if scores.task.nunique() > 1:  # the page of `robustness` lists them if there is one task
        left_out = gaussian.left_out_note(scores, kept, measured.titles)
    if len(kept) < len(scores) or len(gaussian.not_learned(scores, constants)):
        left_out = [*left_out, NOT_BOLD]
    models = " ".join(scores.model.unique())
    defined = [*[HOPFIELD] * ("hopfield" in models), *[ESR] * ("esr" in models)]
    return replace(
        each,
        title=each.title.replace("Robustness to Gaussian noise", "Fine-tuned encoders under noise"),
        answer=answer(scores, measured.titles, constants) or each.answer,
        notes=[*each.notes, *metrics_note(measured), *left_out, HOLM, *defined],
        tables=[
            *each.tables,
            *level_table(scores, measured.titles, constants),
            clean_scores(scores, measured.titles, constants),
        ],
    )


def metrics_note(measured: gaussian.Measured) -> list[str]:
    """Returns a note on the first model's metrics without noise, where a score combines several."""
    frame, scores, titles, *_ = measured
    baseline = gaussian.reference(list(scores.model.unique()))
    rows = tidy.select(frame, metric=list(METRICS), model=baseline, level=0.0)
    lines = []
    for task, of_task in rows.groupby("task", sort=False):
        means = of_task.groupby("metric", sort=False)["score"].mean()
        if len(means) > 1:
            each = [f"{METRICS[str(name)]} {100 * mean:.1f}" for name, mean in means.items()]
            lines.append(f"{report.joined(each)} ({titles[str(task)]})")
    return [f"Without noise, × 100, {titles[baseline]}: {'; '.join(lines)}."] if lines else []


def differences_by_level(scores: pd.DataFrame) -> pd.DataFrame:
    """Returns differences from the first model at the same SNR for each text, at each level."""
    table = gaussian.differences(scores, baseline=gaussian.reference(list(scores.model.unique())))
    table = tidy.select(table, protocol="matched", site="token").sort_values("level", kind="stable")
    return table.assign(noise=[gaussian.noise_label("matched", each) for each in table.level])


def kept_by_level(scores: pd.DataFrame, constants: Mapping[str, float]) -> pd.DataFrame:
    """Returns differences by level where a model of the pair still does the task."""
    kept = gaussian.informative(scores, constants)
    table, baseline = differences_by_level(kept), gaussian.reference(list(scores.model.unique()))
    at = tidy.select(kept, protocol="matched", site="token")
    keys = ["level", "task", "model"]
    near = [
        (level, *pair)
        for level, rows in at.groupby("level")
        for pair in gaussian.near_baseline(rows, constants).index
    ]
    near = pd.DataFrame(near, columns=keys)
    both = tidy.among(table, near, *keys) & tidy.among(table.assign(model=baseline), near, *keys)
    return table[~both]


def level_table(
    scores: pd.DataFrame, titles: Mapping[str, str], constants: Mapping[str, float]
) -> list[Table]:
    """Returns the table of differences from the first model, a column per SNR, if there are any."""
    table = differences_by_level(scores)
    if table.empty:
        return []
    kept = kept_by_level(scores, constants)
    baseline = gaussian.reference(list(scores.model.unique()))
    learned = gaussian.evidence(table, gaussian.not_learned(scores, constants).index, baseline)
    table = table.assign(bold=tidy.among(table, kept, "task", "model", "level") & learned.bold)
    lines = table.task.map(titles) + ", " + table.model.map(titles)
    lines = tidy.ordered(table.assign(line=lines), "model", list(scores.model.unique()))
    caption = f"Score minus that of the {titles[baseline]}, by SNR (the same for each text)."
    return [report.pivot(lines, index="line", columns="noise", caption=caption)]


def clean_scores(
    scores: pd.DataFrame, titles: Mapping[str, str], constants: Mapping[str, float]
) -> Table:
    """Returns the table of scores without noise, next to the majority baseline's."""
    means = tidy.summarize(scores[scores.level == 0])
    return Table(
        ["", "score", "majority baseline"],
        [
            [
                f"{titles[row.task]}, {titles[row.model]}",
                report.bracketed(row),
                report.number(constants.get(row.task, float("nan"))),
            ]
            for _, row in tidy.ordered(means, "model", list(scores.model.unique())).iterrows()
        ],
        "Scores without noise.",
    )


def answer(scores: pd.DataFrame, titles: Mapping[str, str], constants: Mapping[str, float]) -> str:
    """Returns each model's difference from the first at the same SNR on the token embeddings.

    Empty if there is only one model, or no such noise.
    """
    if differences_by_level(scores).empty:
        return ""
    baseline = gaussian.reference(list(scores.model.unique()))
    kept = gaussian.informative(scores, constants)
    means = gaussian.differences(kept, baseline=baseline, over=["level"])
    cleans = means[means.panel == "clean"]
    means = means[(means.protocol == "matched") & (means.site == "token")]
    unlearned = gaussian.not_learned(scores, constants)
    by_none = gaussian.learned_by_none(scores, unlearned)
    sentences, levels = [], kept_by_level(scores, constants)
    for task in cleans.task.unique():
        rows = means[means.task == task]
        if rows.empty:
            reason = "no model has learned the task"
            if task not in by_none:
                reason = "under noise, no model that learned it is well above the majority baseline"
            sentences.append(f"**On {titles[str(task)]}, no verdict**: {reason}.")
            continue
        noise = differences_by_level(kept[kept.task == task]).noise
        at = list(dict.fromkeys(noise))
        findings: dict[str, list[tuple[str, str]]] = {}
        for _, row in rows.iterrows():
            curve = tidy.select(levels, task=task, model=row.model)
            clean = tidy.select(cleans, task=task, model=row.model)
            verdict, numbers = finding(rows[rows.model == row.model], curve, clean)
            short = titles[row.model].removeprefix(titles[baseline]).strip().removeprefix("+ ")
            short = short.removeprefix("with ")
            short = short[1:-1] if short.startswith("(") else short.replace("without", "no")
            if {(task, row.model), (task, baseline)} & set(unlearned.index):
                verdict = NOT_LEARNED
            findings.setdefault(verdict, []).append((short, numbers))
        least = gaussian.NO_DIFFERENCE, NOT_LEARNED  # come last
        ordered = sorted(findings.items(), key=lambda each: each[0] in least)
        parts = []
        for name, each in ordered:
            # The table has the other numbers.
            bare = name == NOT_LEARNED or (name == gaussian.NO_DIFFERENCE and len(each) > 2)
            words = (short if bare else f"{short} ({numbers})" for short, numbers in each)
            parts.append(f"**{name}**: {report.joined(words)}.")
        said = " ".join(parts)
        noise = f"mean over {report.joined(at)}" if len(at) > 1 else f"at {at[0]}"
        noise += " unless an SNR is named" if " dB" in said else ""
        sentences.append(
            f"On {titles[str(task)]}, compared with the {titles[baseline]} (in points; {noise}): "
            f"{said}"
        )
    return " ".join(sentences)


def finding(mean: pd.DataFrame, curve: pd.DataFrame, clean: pd.DataFrame) -> tuple[str, str]:
    """Returns what a model's differences from the first show, and the numbers that show it.

    Args:
        mean: The difference averaged over levels, one row.
        curve: The differences by level.
        clean: The difference without noise, one row.
    """
    words, depends = gaussian.finding(mean), "A difference that depends on the noise"
    clear = curve[tidy.rejected(curve)]
    opposite = clear["mean"].min() < 0 < clear["mean"].max()
    # Their mean can hide differences.
    if not clear.empty and (opposite or words == gaussian.NO_DIFFERENCE):
        ends = clear.loc[[*{clear["mean"].idxmin(), clear["mean"].idxmax()}]].sort_values("level")
        parts = (f"{report.plain_interval(end)} at {end.noise}" for _, end in ends.iterrows())
        some = f"{'Lower' if clear['mean'].iloc[0] < 0 else 'Higher'} scores at some SNRs"
        return depends if opposite else some, report.joined(parts)
    numbers, both = report.plain_interval(mean.iloc[0]), pd.concat([mean, clean])
    if (both.low > 0).any() and (both.high < 0).any():
        return depends, f"{numbers}, but {report.plain_interval(clean.iloc[0])} without noise"
    return words, numbers
