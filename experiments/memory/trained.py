"""Does retrieval from the vocabulary beat training with noise, and Robertha, at equal noise?

Claim of Podasca and Das (2026): iterative Hopfield attention and ESR remove noise from embeddings.
Each trained model is tested with and without memory, which replaces its noisy token embeddings by
their posterior means, given the vocabulary (`hopfax.nn.with_memory`). A baseline without memory is
training with noise, at signal-to-noise ratios drawn uniformly from -16 to 0 dB for each text.

Commands: `python -m experiments memory-trained --task sst2 --data-dir DIR --epochs 1` (from
scratch), and for a pretrained encoder `--pretrained FOLDER --model pretrained pretrained-memory
pretrained-noise-trained pretrained-noise-trained-memory --train-size 12000 --epochs 3
--learning-rate 1e-4`. `noise-through-memory` and `pretrained-noise-through-memory` are trained with
the same noise, which memory removes before the encoder reads it. With `--sites embedding`, noise
and memory of the tests are after the LayerNorm.

Expected: memory keeps the clean score of MiniLM down to −8 or −10 dB, 4 to 6 dB above the Shannon
limit. With memory, training with noise adds little to small models, and costs a pretrained
encoder points above −14 dB.

Every model sees one noisy copy of each text and does not know the noise level. The prior of a token
is its frequency in the training texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments import gaussian, report, tidy
from experiments.figures import SNR, bands
from experiments.memory.similarity import (
    LIMIT,
    NEAR,
    TITLES,
    absent,
    by_method,
    decibels,
    lowest_kept,
)
from experiments.report import Page, Table
from experiments.robertha import robustness
from experiments.settings import Noise, resolved

REPRODUCES = "Robertha's claim of denoising, with the vocabulary as memory, on trained models"
NOT_LEARNED = "not learned"
SNR_DB = tuple(range(6, -21, -2))
LEVELS = {"levels": tuple(float(f"{10 ** (-db / 20):.4g}") for db in SNR_DB), "noise_draws": 1}
DEFAULTS = {"laptop": LEVELS, "paper": LEVELS}
MOST_LEVELS = 10  # longer tables show every second SNR
MOST_LINES = 6  # of a figure; with more models, those with memory have their own panels
NOISE_TRAINING = (
    "Noise training: SNR of training texts uniform from −16 to 0 dB; validation rows without noise."
)
TRAINED_THROUGH = (
    "Through memory: the noise of noise training is added to token embeddings, and memory removes "
    "it before the encoder reads them, in training as in the test."
)
DENOISERS = {
    "-nearest": "Nearest token: the nearest token embedding, without a prior.",
    "-linear": "Wiener filter: the best linear estimate from mean and covariance of the vocabulary "
    "under the prior; the noise level of each token is its most likely one.",
}
SIGNIFICANT = "Significant: the 95 % interval over seeds excludes zero."
REPLACED = (
    "Memory: {site} are replaced by their posterior means, given the vocabulary as patterns and "
    "token frequencies as prior; σ is unknown."
)
MEMORY = "-memory"  # suffix of the names of models with memory
THROUGH = "-through-memory"  # of those that are also trained with it
SITES = {"token": "token embeddings", "embedding": "embeddings after the LayerNorm"}


@dataclass(frozen=True, kw_only=True)
class Config(robustness.Config):
    """Models to train, and noise to test them with."""

    model: tuple[str, ...] = (
        "tinybert",
        "tinybert-memory",
        "noise-trained",
        "noise-trained-memory",
        "robertha",
        "robertha-memory",
    )
    """Models, as in `robustness`. The first is the baseline."""
    noise: Noise = Noise(sites=("token",), protocols=("matched", "per-token"))


def run(config: Config) -> Path:
    """Trains and tests missing models, then writes the page; returns the run's folder.

    Raises:
        ValueError: There are several sites, or a protocol without one SNR for all models.
    """
    config = resolved(config, DEFAULTS)
    if "sigma" in config.noise.protocols:
        raise ValueError("--protocols must be matched, per-token or both, got sigma")
    if len(config.noise.sites) > 1:
        raise ValueError(f"--sites must be one site, got {' and '.join(config.noise.sites)}")
    return robustness.run_models(
        "memory-trained", config, config.encoder.models(config.model), page
    )


def page(folder: Path) -> Page:
    """Returns the page of a run or of a folder of published results."""
    measured = gaussian.read(folder)
    scores, titles = measured.scores, {**measured.titles, **TITLES}
    # Nominal: the measured SNR differs between models in the third digit.
    scores = scores.assign(snr_db=(-20 * np.log10(scores.level.where(scores.level > 0))).round(1))
    noisy, models = scores[scores.level > 0], list(scores.model.unique())
    titles["clean"] = f"clean, {titles[models[0]]}"
    limits = measured.frame[measured.frame.metric == "capacity_snr_db"]
    limits = limits.groupby("task").score.mean()
    clean = scores[scores.level == 0].groupby(["task", "model"]).score.mean()
    lines = tidy.summarize(noisy)
    lines["clean"] = lines.task.map(clean.xs(models[0], level="model"))
    lines["limit"] = lines.task.map(limits)
    constants = gaussian.constants(measured.frame)
    lines["constant"] = lines.task.map(constants)
    unlearned = gaussian.not_learned(scores, constants)
    answers, kept, tables = [], {}, []
    for keys, part in lines.groupby(["task", "protocol"], sort=False):
        task, protocol = map(str, keys)
        name = f"{titles[task]}, {titles[protocol]}"
        means = by_method(part, "mean", models)
        lowest = {each: lowest_kept(row, clean[task, each]) for each, row in means.items()}
        kept[name] = {
            each: NOT_LEARNED if (task, each) in unlearned.index else decibels(db)
            for each, db in lowest.items()
        }
        if protocol != lines.protocol.iloc[0]:
            continue
        levels, thinned = sorted(means[models[0]], reverse=True), ""
        if len(models) > MOST_LINES:
            levels, thinned = shown(levels)
        tables.append(
            report.Table(
                ["", "clean", *map(decibels, levels)],
                [[titles[each], report.number(clean[task, each]),
                  *(report.number(row[snr_db]) for snr_db in levels)]
                 for each, row in means.items()],
                f"{name}: scores by SNR{thinned}. The majority baseline scores "
                f"{report.number(constants[task])}.",
            )
        )  # fmt: skip
        if models[0] + MEMORY in lowest and (task, models[0]) not in unlearned.index:
            rows = tidy.select(scores, task=task, protocol=["", protocol])
            answers.append(kept_sentence(rows, models[0], lowest, titles))
    learned = [
        each for each in models if any(lowest[each] != NOT_LEARNED for lowest in kept.values())
    ]
    if learned:
        reached = [[titles[each], *(lowest[each] for lowest in kept.values())] for each in learned]
        tables.insert(
            0,
            report.Table(
                ["", *kept],
                reached,
                "Lowest tested SNR down to which a model's mean score is within "
                f"{NEAR:g} point of its own clean score (lower is better; intervals may include "
                f"larger drops).{absent(reached)}",
            ),
        )  # fmt: skip
    compared = noisy[~noisy.task.isin(gaussian.learned_by_none(scores, unlearned))]
    gains = leads(compared)
    if gains.low.notna().any():  # several seeds
        names = compared.model.unique()
        baselines = [titles[each] for each in names if not each.endswith(MEMORY)]
        best = "The best model with memory"
        answers.append(lead_sentence(gains, best, without_memory(baselines)))
        caption = (
            "Best model with memory minus best model without it, each chosen at each SNR by its "
            "mean test score, in points"
        )
        tables.append(lead_table(gains, titles, caption))
    through = adapted(compared, models[0] + MEMORY)
    if through.low.notna().any():
        name = titles[models[0] + MEMORY]
        test_only = f"memory only at test time ({name})"
        answers.append(lead_sentence(through, "Noise training through memory", test_only))
        caption = f"Trained through memory minus {name}, in points"
        tables.append(lead_table(through, titles, caption))
    gained = measured.frame[(measured.frame.metric == "gain") & (measured.frame.level > 0)]
    gained = gained[gained.model.isin(learned) & gained.model.str.endswith(MEMORY)]
    if len(gained):
        tables.append(gain_table(gained, titles, lines.protocol.iloc[0]))
    tasks = report.joined(titles[task] for task in scores.task.unique())
    if not answers and gains.empty and len(compared):
        answers.append("Models with memory and without it are compared only if a run has both.")
    if compared.empty:
        answers.append(
            f"**{tasks}: not learned.** No model is well above the majority baseline, so these "
            "scores are no evidence for or against memory."
        )
    site = SITES[noisy.site.iloc[0]]
    col, protocol = "protocol", ""
    if len(models) > MOST_LINES:  # two panels, in which a model has one look
        protocol = f", {titles[str(lines.protocol.iloc[0])]}"
        col, remember = "memory", lines.model.str.endswith(MEMORY)
        lines["memory"] = np.where(remember, "with memory", "without memory")
        without = lines.model.str.removesuffix(MEMORY)
        lines["model"] = without.where(~lines.model.str.endswith(THROUGH), lines.model)
        lines = lines[lines.protocol == lines.protocol.iloc[0]]
    return report.Page(
        title=f"Retrieval from the vocabulary, on trained models: {tasks}",
        answer=" ".join(answers),
        pictures={
            "memory": report.facets(
                f"{tasks}: score against noise on the {site}{protocol}{bands(lines)}",
                lines,
                x="snr_db",
                col=col,
                row="task",
                titles=titles,
                xlabel=SNR,
                ylabel=gaussian.score_names(scores.task),
            )
        },
        tables=tables,
        notes=[
            *gaussian.unlearned_note(scores, unlearned, titles),
            *measured.notes,
            *gaussian.few_rows_note(measured),
            *([REPLACED.format(site=site)] if any(MEMORY in each for each in models) else []),
            *(text for name, text in DENOISERS.items() if any(name in each for each in models)),
            LIMIT,
            *([SIGNIFICANT, *strongest(gains, titles)] if gains.low.notna().any() else []),
            *([NOISE_TRAINING] if any("noise-t" in model for model in models) else []),
            *([TRAINED_THROUGH] if any(model.endswith(THROUGH) for model in models) else []),
        ],
    )


def shown(levels: Sequence[float]) -> tuple[Sequence[float], str]:
    """Returns the levels that a table shows, and what its caption says of the others."""
    if len(levels) <= MOST_LEVELS:
        return levels, ""
    return levels[::2], " (every second SNR shown)"


def kept_sentence(
    scores: pd.DataFrame, model: str, lowest: Mapping[str, float], titles: Mapping[Any, str]
) -> str:
    """Returns how far a model keeps its clean score, with memory and without it.

    Args:
        scores: From `tidy.scores`, with nominal `snr_db`, of one task and protocol.
        model: The model without memory.
        lowest: Lowest SNR with the clean score, by model.
        titles: Names of models and tasks.
    """
    ends = [
        f"down to {decibels(each)}" if each == each else "at no tested SNR"
        for each in (lowest[model + MEMORY], lowest[model])
    ]
    rows = tidy.select(scores, model=model + MEMORY)
    clean = rows[rows.level == 0]
    drop = ""
    if ends[0] != ends[1] and np.isfinite(lowest[model + MEMORY]):
        noisy = rows[rows.snr_db == lowest[model + MEMORY]]
        change = tidy.summarize(tidy.paired(noisy, clean, on=["seed"])).iloc[0]
        if np.isfinite(change.low):
            drop = f" (change at that SNR: {report.plain_interval(change)} points)"
    without = f"{drop}; without memory, {ends[1]}" if ends[0] != ends[1] else ", as without memory"
    task, score = titles[clean.task.iloc[0]], clean.score.mean()
    return (
        f"**With memory, the mean score on {task} ({titles[model]}) stays within {NEAR:g} point of "
        f"the clean score ({score:.1f}) {ends[0]}**{without}."
    )


def without_memory(baselines: Sequence[str]) -> str:
    """Returns a phrase for the best of the models without memory."""
    if len(baselines) == 1:
        return f"{baselines[0]} without memory"
    if len(baselines) > 3:
        return f"the best of the {len(baselines)} without it"
    return f"the best without it ({report.joined(baselines)})"


def lead_sentence(gaps: pd.DataFrame, ours: str, theirs: str) -> str:
    """Returns how often one model scores higher than another."""
    better, worse = int((gaps.low > 0).sum()), int((gaps.high < 0).sum())
    over = counted(gaps)
    if not better + worse:
        return f"{ours} and {theirs} do not differ significantly at any of {over}."
    return (
        f"{ours} scores significantly higher than {theirs} at {better} of {over}"
        f"{f', and lower at {worse}' if worse else ''}; {tidy.significant(gaps) or 'none'} remain "
        "after Holm's correction."
    )


def counted(gaps: pd.DataFrame) -> str:
    """Returns how many differences have intervals, as "10 combinations of protocol and SNR"."""
    names = {"task": "task", "protocol": "protocol (SNR per text or token)"}
    several = [name for each, name in names.items() if gaps[each].nunique() > 1]
    count = int(gaps.low.notna().sum())
    over = f"{count} SNRs"
    if several:
        over = f"{count} combinations of {report.joined([*several, 'SNR'])}"
    return over if count == len(gaps) else f"{over} with an interval"


def leads(scores: pd.DataFrame) -> pd.DataFrame:
    """Returns the best model with memory minus the best without it, at each noise level.

    The column `theirs` names the latter. The best models are chosen at each level, by their means
    over the same seeds. With more models without memory than with it, this favors models without.
    Differences are paired by seed.
    """
    parts = []
    for _, part in scores.groupby(["task", "protocol", "level"], sort=False):
        means = part.groupby("model").score.mean()
        with_memory = [name for name in means.index if name.endswith(MEMORY)]
        without = [name for name in means.index if not name.endswith(MEMORY)]
        if not (with_memory and without):
            continue
        ours, theirs = means[with_memory].idxmax(), means[without].idxmax()
        difference = tidy.paired(part[part.model == ours], part[part.model == theirs], on=["seed"])
        parts.append(difference.assign(model="lead", theirs=str(theirs)))
    return tidy.summarize(pd.concat(parts)) if parts else pd.DataFrame(columns=["low", "high"])


def adapted(scores: pd.DataFrame, plain: str) -> pd.DataFrame:
    """Returns the model that was trained through memory minus `plain`, as `leads` does."""
    keys = ["task", "protocol", "level", "seed"]
    ours = scores[scores.model.str.endswith(THROUGH)]
    theirs = scores[scores.model == plain].drop(columns="model")
    if ours.empty or theirs.empty:
        return pd.DataFrame(columns=["low"])
    return tidy.summarize(tidy.paired(ours, theirs, on=keys).assign(model="lead"))


def strongest(gains: pd.DataFrame, titles: Mapping[Any, str]) -> list[str]:
    """Returns notes that name the best models without memory, by ranges of SNR.

    Only the first protocol is named, and tasks only where the best model depends on the SNR.
    """
    notes = []
    gains = gains[gains.protocol == gains.protocol.iloc[0]].sort_values("level", kind="stable")
    for task, rows in gains.groupby("task", sort=False):
        # A new range starts where the name changes.
        ranges = rows.groupby(rows.theirs.ne(rows.theirs.shift()).cumsum(), sort=False)
        parts = [f"{titles[each.theirs.iloc[0]]} ({between(each.snr_db)})" for _, each in ranges]
        if len(parts) > 1:
            notes.append(f"Best without memory on {titles[str(task)]}: {report.joined(parts)}.")
    return notes


def between(snr_db: pd.Series) -> str:
    """Returns the ends of a range of SNRs in descending order, such as "+6.0 to 0.0 dB"."""
    first, last = snr_db.iloc[0], snr_db.iloc[-1]
    return decibels(first) if first == last else f"{report.signed(first)} to {decibels(last)}"


def gain_table(gained: pd.DataFrame, titles: Mapping[Any, str], protocol: str) -> Table:
    """Returns what memory adds to each model: task and model by SNR."""
    # Intervals over rows are of one draw at one site, so the table is of the first draw.
    rows = tidy.select(gained, protocol=protocol, site=gained.site.iloc[0], draw=0)
    several = gained.draw.nunique() > 1
    seeds = rows.seed.nunique()
    rows = tidy.with_rows(tidy.summarize(tidy.scores(rows, "gain")), rows, "gain")
    levels, thinned = shown(sorted(rows.level.unique()))
    rows = rows[rows.level.isin(levels)]
    heads = {level: decibels(round(float(-20 * np.log10(level)), 1)) for level in rows.level}
    over = "seeds and test rows" if seeds >= tidy.MIN_SEEDS else "test rows, not over seeds"
    return report.pivot(
        rows.assign(name=joined(rows, "model", titles)).sort_values("level", kind="stable"),
        index="name",
        columns="level",
        titles=heads,
        caption=f"Score with memory minus score without, {titles[protocol]}, mean over seeds"
        f"{', first draw' if several else ''}{thinned}. Brackets here: 95 % over {over}.",
    )


def lead_table(gains: pd.DataFrame, titles: Mapping[Any, str], caption: str) -> Table:
    """Returns the table of differences: SNR by task and protocol."""
    levels, thinned = shown(sorted(gains.level.unique()))
    gains = gains[gains.level.isin(levels)]
    return report.pivot(
        gains.assign(column=joined(gains, "protocol", titles)).sort_values("level", kind="stable"),
        index="snr_db",
        columns="column",
        titles={snr_db: decibels(snr_db) for snr_db in gains.snr_db.unique()},
        caption=f"{caption}{thinned}."
        + (" n/a: all seeds differ by the same amount." if gains.low.isna().any() else ""),
    )


def joined(rows: pd.DataFrame, column: str, titles: Mapping[Any, str]) -> list[str]:
    """Returns another column of each row by title, after the task if there are several."""
    pairs = zip(rows.task, rows[column], strict=True)
    if rows.task.nunique() == 1:
        return [titles[other] for _, other in pairs]
    return [f"{titles[task]}, {titles[other]}" for task, other in pairs]
