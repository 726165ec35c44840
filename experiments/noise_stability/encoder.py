"""Of what degree is a trained text encoder's response to noise, on the texts it is tested on?

Paper: Haris, Zhang and Yoshida (2026), section 4 and Eq. 7, on the encoders of Podasca and Das
(2026). Claim: what trained transformers compute is noise stable, its weight lies at low degrees.

Command: `python -m experiments encoder-stability --task cola --data-dir DIR`: four minutes on two
cores for two models and three seeds. With all data and training settings of a `robustness` or
`fine-tuning` run, its trained models are reused. The initial parameters of the same seeds are the
baseline.

Expected: a mostly linear response of TinyBERT and Robertha, trained or not. That of a fine-tuned
MiniLM is less linear. Training with noise raises its correlation at ρ = 0.5, and noise then costs
about two points less (significant in one of two runs).

A text x with embeddings e(x) makes the function f_x(z) = class probabilities of e(x) + σz, with z
standard normal and σ per text so that all have the same signal-to-noise ratio. Both halves of a
pair have the same text, and padding gets no noise. Token noise keeps a token with probability
(1 + ρ)/2 and else draws it from the whole vocabulary; [CLS], [SEP] and padding stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from experiments import conditions, gaussian, report, runs, tidy
from experiments.cells import Cell
from experiments.conditions import Gaussian
from experiments.noise_stability import encoder_response
from experiments.noise_stability.encoder_response import Texts
from experiments.report import Page
from experiments.robertha.robustness import Encoders
from experiments.rundir import open_run, read_config
from experiments.runs import Job
from experiments.settings import Flags, budget_of, by_budget, resolved
from hopfax.data import Encoded, bucket_boundaries, bucketed, eval_batches
from hopfax.data.tokenize import text_tokenizer
from hopfax.train.progress import Progress
from hopfax.train.state import seed_keys

REPRODUCES = "Noise stability, section 4 and Eq. 7, of the encoders that `robustness` trained"

TRAINING = 0.5  # share of a model's time, about; the rest is measuring
ROWS = 16  # of a call, of which Hopfield attention waits for the slowest query
BOTH = {"model": ("tinybert", "robertha")}
MODELS = {"smoke": {"model": ("tinybert",)}, "laptop": BOTH, "paper": BOTH}
# Column of the page -> metric, corruption, level, digits.
SHOWN = {
    "variance": ("variance", "gaussian", -1.0, 4),
    "linear share": ("level share", "gaussian", 1.0, 2),
    "quadratic share": ("level share", "gaussian", 2.0, 2),
    "correlation, ρ = 0.5": ("correlation", "gaussian", 0.5, 2),
    "tokens: normalized stability, ρ = 0": ("normalized stability", "tokens", 0.0, 2),
    "tokens: same class, ρ = 0": ("same class", "tokens", 0.0, 2),
    "points lost": ("points lost", "gaussian", -1.0, 1),
}

AFTER = "after training"
BEFORE = "before training"
TITLES = {"trained": AFTER, "fresh": BEFORE}
PRETRAINED = "pretrained encoder, before fine-tuning"
LOST = (
    "Points lost: clean score minus score under noise after the LayerNorm at {db:g} dB, on all "
    "test rows. Its interval is over seeds only."
)
# Column of the differences -> metric, level, factor.
CORRELATION, POINTS_LOST = "correlation × 100, ρ = 0.5", "points lost"
COMPARED = {
    "linear share, %": ("level share", 1.0, 100.0),
    CORRELATION: ("correlation", 0.5, 100.0),
    POINTS_LOST: ("points lost", -1.0, 1.0),
}


class Budget(NamedTuple):
    """What a size of run means: texts and draws of each, and padded lengths to compile."""

    texts: int
    draws: int
    level_texts: int
    level_draws: int
    lengths: int


BUDGETS = {
    "smoke": Budget(16, 2, 1, 128, 1),
    "laptop": Budget(128, 16, 8, 128, 3),
    "paper": Budget(1000, 64, 64, 512, 4),
}


@dataclass(frozen=True, kw_only=True)
class Config(Flags):
    """Which encoders to measure, and how closely."""

    model: Annotated[tuple[str, ...] | None, by_budget("model", "NAME ...", MODELS)] = None
    """Models, see `robustness`."""
    texts: Annotated[int | None, by_budget("texts", "INT", BUDGETS)] = None
    """Rows drawn from the test split, at least 2."""
    draws: Annotated[int | None, by_budget("draws", "INT", BUDGETS)] = None
    """Noise draws a text, at least 2."""
    level_texts: Annotated[int | None, by_budget("level_texts", "INT", BUDGETS)] = None
    """Texts that level weights are measured on; a draw takes 25 evaluations."""
    snr_db: float = 0.0
    """Expected signal-to-noise ratio on the embeddings, in dB."""
    seed: int = 0
    """Seed of the choice of texts and of all noise."""
    encoder: Encoders = Encoders()


def run(config: Config) -> Path:
    """Trains what is missing, measures every model and seed, trained and fresh, writes the page.

    Raises:
        ValueError, FileNotFoundError: A flag or a file is wrong.
    """
    budget = budget_of(config, BUDGETS)
    if min(budget.texts, budget.draws) < 2 or budget.level_texts < 1:
        raise ValueError("--texts and --draws must be at least 2, and --level-texts at least 1")
    config = resolved(config, MODELS)
    models = config.encoder.models(config.model or ())
    if changed := [name for name, each in models.items() if each.denoiser != "none" or each.loud]:
        raise ValueError(
            f"--model must not include {changed[0]}: its inputs are denoised or rescaled"
        )
    noise = Gaussian(site="embedding", protocol="matched", level=10 ** (-config.snr_db / 20))
    jobs = [
        runs.Job(task, model, each, (Gaussian(), noise))
        for task in config.data.task
        for model, each in models.items()
    ]
    data = {name: runs.load(config, name) for name in config.data.task}
    if wrong := [name for name, rows in data.items() if rows.spec.regression]:
        raise ValueError(f"task {wrong[0]} has scores, not classes with probabilities")
    runs.check(jobs, data)
    plan = {"cells": [runs.spec_of(config, job, data[job.task]).id for job in jobs]}
    folder = open_run("encoder-stability", config, plan=plan)
    rows: list[dict[str, Any]] = []
    with Progress(len(jobs)) as progress:
        for number, (job, arms) in enumerate(zip(jobs, arms_of(jobs), strict=True)):
            title = f"{data[job.task].spec.title}, {job.variant.title}"
            progress.title = f"[{number + 1}/{len(jobs)}] {title}"
            training = progress.part(number, TRAINING)
            measuring = progress.part(number + TRAINING, 1 - TRAINING)
            cell = runs.open_cell(config, job, data[job.task], on_progress=training)
            shared = {"task": job.task, "model": job.model}
            rows += [shared | row for row in losses(cell, job)]
            for share, measured in measure(cell, budget, config, arms):
                rows += [shared | row for row in measured]
                measuring(share)
    return report.write_run(folder, pd.DataFrame(rows), page)


def losses(cell: Cell, job: Job) -> list[dict[str, Any]]:
    """Rows of the points that each seed loses from the job's first condition to the second."""
    clean, noisy = (
        [row for row in conditions.rows(cell, each, model=job.model) if row["metric"] == "score"]
        for each in job.conditions
    )
    kept = ("seed", "site", "corruption", "num_examples", "snr_db")
    return [
        {"metric": "points lost", "arm": "trained", "score": before["score"] - after["score"]}
        | {name: after[name] for name in kept}
        for before, after in zip(clean, noisy, strict=True)
    ]


def arms_of(jobs: Sequence[runs.Job]) -> list[tuple[str, ...]]:
    """Arms to measure of each job: variants that differ in training alone share the fresh one."""
    networks = [
        (job.task, each.kind, each.preset, each.precision, each.options)
        for job in jobs
        for each in [job.variant]
    ]
    return [
        ("trained",) if network in networks[:number] else ("fresh", "trained")
        for number, network in enumerate(networks)
    ]


def measure(
    cell: Cell, budget: Budget, config: Config, arms: Sequence[str]
) -> Iterator[tuple[float, list[dict[str, Any]]]]:
    """Rows of one seed after the other, in each arm, with the share of the work done.

    All share texts and noise.
    """
    data, network = cell.data, encoder_response.network_of(cell.model)
    order = np.random.default_rng(config.seed).permutation(len(data.test.labels))[: budget.texts]
    chosen = Encoded(*(field[order] for field in data.test))
    few = Encoded(*(field[: budget.level_texts] for field in chosen))
    calls = padded(chosen, data.pad_id, lengths=budget.lengths, rows=ROWS)
    ((level_texts, _),) = padded(few, data.pad_id, lengths=1, rows=len(few.labels))
    index = np.concatenate([texts.index[:count] for texts, count in calls]).tolist()
    picks = np.array([index.index(row) for row in level_texts.index])
    keys = jax.random.split(jax.random.key(config.seed), 3)
    meter = encoder_response.level_meter(
        network, level_texts, keys[2], snr_db=config.snr_db, num_samples=budget.level_draws
    )
    seeds = cell.spec.seeds
    fresh = jax.jit(jax.vmap(cell.model.init))(seed_keys(seeds))
    special = tuple(text_tokenizer(data.vocabulary).encode("").ids)
    pairs = [(number, arm) for number in range(len(seeds)) for arm in arms]
    for done, (number, arm) in enumerate(pairs, 1):
        stacked = fresh if arm == "fresh" else cell.params
        params = jax.tree.map(lambda x, at=number: x[at], stacked)
        parts = [
            encoder_response.response(
                network,
                params,
                texts,
                *keys[:2],
                num_tokens=data.vocab_size,
                special=special,
                snr_db=config.snr_db,
                draws=budget.draws,
            )
            for texts, _ in calls
        ]
        # Rows beyond the count only fill the call.
        response = jax.tree.map(
            lambda *each: np.concatenate(
                [np.asarray(x)[:count] for x, (_, count) in zip(each, calls, strict=True)]
            ),
            *parts,
        )
        weights = meter(params, jnp.asarray(response.mean[picks]))
        rows = [
            *encoder_response.gaussian_rows(response),
            *encoder_response.level_rows(weights, len(picks), config.snr_db),
            *encoder_response.token_rows(response),
        ]
        shared = {"site": "embedding", "seed": seeds[number], "arm": arm}
        yield done / len(pairs), [shared | row for row in rows]


def padded(chosen: Encoded, pad_id: int, *, lengths: int, rows: int) -> list[tuple[Texts, int]]:
    """Calls of `rows` texts, of a few padded lengths, and how many texts of each call count."""
    edges = bucket_boundaries(chosen.lengths, max_buckets=lengths, max_length=chosen.ids.shape[-1])
    calls = []
    for bucket in bucketed(chosen, boundaries=edges, pad_id=pad_id):
        for part, counts in eval_batches(bucket, batch_size=rows):
            mask = np.arange(part.ids.shape[-1]) < part.lengths[..., None]
            texts = Texts(*map(jnp.asarray, (part.ids, mask, part.index)))
            calls.append((texts, int(counts.sum())))
    return calls


def read(folder: Path) -> pd.DataFrame:
    """Returns a run's results without task scores; `x` is the level."""
    frame = pd.read_csv(folder / "results.csv")
    frame = frame[frame.metric != "score"].replace({"arm": TITLES})
    return frame.assign(x=frame.level.fillna(-1.0)).sort_values("arm", kind="stable")


def page(folder: Path) -> Page:
    """The page of a run or of a folder of published results."""
    frame = read(folder)
    titles = gaussian.titles(frame.task.unique())
    frame["line"] = frame.model.map(titles) + ", " + frame.arm
    frame["line"] = frame.line.str.replace(f"fine-tuned encoder, {BEFORE}", PRETRAINED)
    if several := frame.task.nunique() > 1:
        frame["line"] = frame.task.map(titles) + ", " + frame.line
    keys = ["task", "model", "arm", "line", "corruption", "metric", "x"]
    means = intervals(frame, keys)
    shown = {head: where for head, where in SHOWN.items() if where[0] in set(frame.metric)}
    lines = []
    for line, rows in means.groupby("line", sort=False):
        at = {(row["metric"], row["corruption"], row["x"]): row for _, row in rows.iterrows()}
        lines.append([str(line), *(_cell(at, *where) for where in shown.values())])

    def after(metric: str, scale: float, digits: int, unit: str = "", **where: float) -> str:
        return report.joined(
            f"{report.number(scale * row['mean'], digits)}{unit} {_half(row, scale, digits)} "
            f"({titles[row.model]}{f', {titles[row.task]}' if several else ''})"
            for _, row in tidy.select(
                means, metric=metric, corruption="gaussian", arm=AFTER, **where
            ).iterrows()
        )

    panels = {
        "correlation, gaussian": "Gaussian noise: correlation",
        "normalized stability, tokens": "token noise: normalized stability",
    }
    drawn = means.assign(panel=(means.metric + ", " + means.corruption).map(panels))
    drawn = drawn[drawn.panel.notna()].sort_values(["panel", "x"], kind="stable")
    drawn["row"] = (drawn.task.map(titles) + ", " if several else "") + drawn.arm
    drawn.loc[drawn.line.str.endswith(PRETRAINED), "model"] = "untrained"
    for end in ("low", "high"):  # seeds agree exactly at the ends
        drawn[end] = drawn[end].fillna(drawn["mean"])
    texts = frame[frame.metric == "level share"].num_examples.max()
    db = read_config(folder)["config"].get("snr_db", 0.0)
    linear = drawn[drawn.metric == "correlation"]
    linear = linear.drop_duplicates(["row", "x"]).assign(model="linear")
    for column in ("mean", "low", "high"):
        linear[column] = linear.x
    loss, tables = differences(frame, titles)
    return report.Page(
        title="Noise stability of trained encoders: "
        + report.joined(titles[str(name)] for name in frame.task.unique()),
        answer=(
            f"**For noise of correlation ρ = 0.5, the correlation of the outputs {AFTER} is "
            f"{after('correlation', 1, 2, x=0.5)}; for a linear function, it is 0.5.** Share of "
            f"the output's variance that is linear in the noise: "
            f"{after('level share', 100, 0, ' %', x=1.0)}."
            + (
                f" Points lost at {db:g} dB: {after('points lost', 1, 1)}."
                if "points lost" in shown
                else ""
            )
            + loss
        ),
        pictures={
            "encoder_stability": report.facets(
                f"Correlation and stability of the output, {AFTER} and before it, against the "
                "correlation of the noise",
                pd.concat([drawn, linear]),
                x="x",
                hue="model",
                row="row",
                col="panel",
                titles={**titles, "linear": "linear function", "untrained": PRETRAINED},
                xlabel="correlation ρ of the noise",
                ylabel="",
                least_range=0.0,
            )
        },
        tables=[
            report.Table(["", *shown], lines, "Mean over seeds ± half-width of the 95 % interval."),
            *tables,
        ],
        notes=[
            "The output: a text's class probabilities, as a function of Gaussian noise on its "
            "embeddings, after the LayerNorm. Linear and quadratic share: of its variance, the "
            "part of degree 1 and 2 in the noise. For a linear function, the correlation equals ρ, "
            "and no function's linear share exceeds its correlation divided by ρ.",
            "Token noise keeps each token with probability (1 + ρ)/2 and otherwise replaces it by "
            "a random one. Normalized stability is divided by its value at ρ = 1. Same class: "
            "share of noisy texts whose predicted class does not change.",
            "Seeds share texts and noise. Half-widths are the root of the sum of squares of two "
            "parts: Student's t interval over seeds, and the sampling error that seeds share, over "
            f"texts, or over noise for linear and quadratic shares ({int(texts)} texts).",
            *([LOST.format(db=db)] if "points lost" in shown else []),
        ],
    )


def gaps(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns trained models minus the first, paired by seed; `head` is a key of `COMPARED`."""
    rows = frame[(frame.arm == AFTER) & (frame.corruption == "gaussian")]
    first, *others = rows.model.unique()
    parts = [
        tidy.select(rows, metric=metric, x=x).assign(head=head, score=lambda r, k=k: k * r.score)
        for head, (metric, x, k) in COMPARED.items()
    ]
    keys = ["task", "model", "head", "seed"]
    table = pd.concat(parts)[[*keys, "score"]]
    base = table[table.model == first].drop(columns="model")
    paired = tidy.paired(table[table.model.isin(others)], base, on=["task", "head", "seed"])
    return tidy.summarize(paired)


def differences(frame: pd.DataFrame, titles: Mapping[str, str]) -> tuple[str, list[report.Table]]:
    """Returns whether more stable models lose less, and the table of models minus the first one."""
    if (table := gaps(frame)).empty:
        return "", []
    first = titles[frame[frame.arm == AFTER].model.iloc[0]]
    several = table.task.nunique() > 1
    lines = table.task.map(titles) + ", " if several else ""
    table = table.assign(line=lines + table.model.map(titles))
    caption = (
        f"Difference from {first} after training, paired by seed, with 95 % intervals over seeds."
    )
    answer, by_line = "", {(row["line"], row["head"]): row for _, row in table.iterrows()}
    for line in map(str, table.line.unique()):
        stable, lost = by_line.get((line, CORRELATION)), by_line.get((line, POINTS_LOST))
        if stable is not None and lost is not None and stable["low"] > 0:
            effect = "does not lose a significantly different number of"
            effect = "loses fewer" if lost["high"] < 0 else effect
            effect = "loses more" if lost["low"] > 0 else effect
            answer += (
                f" {line[0].upper()}{line[1:]} is more stable than {first}, and {effect} "
                f"points under noise ({report.plain_interval(lost)}, over seeds)."
            )
    return answer, [report.pivot(table, index="line", columns="head", caption=caption)]


def intervals(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Returns `tidy.summarize` with intervals that include the error that seeds share."""
    means = tidy.summarize(frame[[*keys, "seed", "score"]])
    errors = frame.standard_error.fillna((frame.high - frame.low) / 2 / 1.96).fillna(0)
    errors = frame[keys].assign(error=errors).groupby(keys).mean().reset_index()
    means = means.merge(errors, on=keys)
    return tidy.widened(means, means.error)


def linear_shares(folder: Path, arm: str) -> pd.DataFrame:
    """Returns the share of the output's variance that is of degree 1, by model: `intervals`.

    `arm` is "trained" or "fresh", for models before training.
    """
    frame = pd.read_csv(folder / "results.csv")
    rows = tidy.select(frame, metric="level share", level=1, arm=arm)
    return intervals(rows, ["model"]).set_index("model").rename(gaussian.titles(rows.task.unique()))


def _cell(rows: dict[Any, pd.Series], *where: Any) -> str:
    *key, digits = where
    row = rows.get(tuple(key))
    return "–" if row is None else f"{report.number(row['mean'], digits)} {_half(row, 1, digits)}"


def _half(row: pd.Series, scale: float, digits: int) -> str:
    """Half of an interval, such as "± 7"; n/a without one."""
    half = scale * (row["high"] - row["low"]) / 2
    return f"± {half:.{digits}f}" if half == half else "[n/a]"
