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
standard normal and σ per text so that all have the same signal-to-noise ratio; padding gets no
noise. Token noise keeps a token with probability (1 + ρ)/2 and else draws it from the whole
vocabulary; [CLS], [SEP] and padding stay. Both halves of a pair have the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from experiments import conditions, models, report, runner, tidy
from experiments.cells import Cell
from experiments.conditions import Gaussian
from experiments.noise_stability import encoder_response
from experiments.noise_stability.encoder_response import Texts
from experiments.report import Page
from experiments.runner import Trial
from experiments.settings import Flags, budget_of, by_budget, resolved
from hopfax.data import Encoded, bucket_boundaries, bucketed, eval_batches
from hopfax.data.tokenize import text_tokenizer
from hopfax.train.state import seed_keys

REPRODUCES = "Noise stability, section 4 and Eq. 7, of the encoders that `robustness` trained"

TRAINING = 0.5  # share of a model's time, about; the rest is measuring
ROWS = 16  # of a call, of which Hopfield attention waits for the slowest query
BOTH = {"model": ("tinybert", "robertha")}
MODELS = {"smoke": {"model": ("tinybert",)}, "laptop": BOTH, "paper": BOTH}
ARM = ["task", "model", "arm"]
# Column of the tables -> metric, corruption, level, factor.
COLUMNS = {
    "linear share, %": ("level share", "gaussian", 1.0, 100),
    "quadratic share, %": ("level share", "gaussian", 2.0, 100),
    "100 × correlation at ρ = 0.5": ("correlation", "gaussian", 0.5, 100),
    "tokens: normalized stability at 0, %": ("normalized stability", "tokens", 0.0, 100),
    "tokens: same class at 0, %": ("same class", "tokens", 0.0, 100),
    "points lost": ("points lost", "gaussian", 0.0, 1),
}
PANELS = {
    "Gaussian noise: correlation": ("correlation", "gaussian"),
    "token noise: normalized stability": ("normalized stability", "tokens"),
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


def run(config: Config) -> Path:
    """Trains what is missing, measures every model and seed, trained and fresh, writes the page."""
    budget = budget_of(config, BUDGETS)
    if min(budget.texts, budget.draws) < 2 or budget.level_texts < 1:
        raise ValueError("--texts and --draws must be at least 2, and --level-texts at least 1")
    config = resolved(config, MODELS)
    variants = config.encoder.models(config.model or ())
    if loud := [name for name, variant in variants.items() if variant.loud]:
        raise ValueError(f"--model must not include {loud[0]}, whose inputs are rescaled")
    noise = Gaussian(site="embedding", protocol="matched", level=10 ** (-config.snr_db / 20))
    trials = [
        Trial(task, model, variant, (Gaussian(), noise))
        for task in config.data.task
        for model, variant in variants.items()
    ]
    data = {name: runner.load(config, name) for name in config.data.task}
    if wrong := [name for name, rows in data.items() if rows.spec.regression]:
        raise ValueError(f"task {wrong[0]} has scores, not classes with probabilities")
    runner.check(trials, data)

    def job(trial: Trial, arms: Sequence[str]) -> runner.Job:
        rows = data[trial.task]

        def results(on_progress: Callable[..., None]) -> dict[str, pd.DataFrame]:
            def training(share: float, **shown: Any) -> None:
                on_progress(TRAINING * share, **shown)

            cell = runner.open_cell(config, trial, rows, on_progress=training)
            table = losses(cell, trial)
            for share, measured in measure(cell, budget, config, arms):
                table += measured
                on_progress(TRAINING + (1 - TRAINING) * share)
            return {"results": pd.DataFrame(table).assign(task=trial.task, model=trial.model)}

        title = f"{rows.spec.title}, {trial.variant.title}"
        return runner.Job(title, results, runner.spec_of(config, trial, rows).id)

    jobs = list(map(job, trials, arms_of(trials)))
    return runner.fill("encoder-stability", config, jobs, page)


def losses(cell: Cell, trial: Trial) -> list[dict[str, Any]]:
    """Rows of the points that each seed loses from the trial's first condition to the second."""
    clean, noisy = (
        [row for row in conditions.rows(cell, each, model=trial.model) if row["metric"] == "score"]
        for each in trial.conditions
    )
    kept = ("seed", "site", "corruption", "num_examples", "snr_db")
    return [
        {"metric": "points lost", "arm": "trained", "score": before["score"] - after["score"]}
        | {name: after[name] for name in kept}
        for before, after in zip(clean, noisy, strict=True)
    ]


def arms_of(trials: Sequence[Trial]) -> list[tuple[str, ...]]:
    """Arms to measure of each trial: variants that differ in training alone share the fresh one."""
    networks = [
        (trial.task, each.kind, each.preset, each.precision, each.options)
        for trial in trials
        for each in [trial.variant]
    ]
    return [
        ("trained",) if network in networks[:number] else ("fresh", "trained")
        for number, network in enumerate(networks)
    ]


def measure(
    cell: Cell, budget: Budget, config: Config, arms: Sequence[str]
) -> Iterator[tuple[float, list[dict[str, Any]]]]:
    """Rows of each seed and arm, with the share of the work done; all share texts and noise."""
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
    respond = partial(
        encoder_response.response, network, num_tokens=data.vocab_size, snr_db=config.snr_db,
        special=tuple(text_tokenizer(data.vocabulary).encode("").ids), draws=budget.draws,
    )  # fmt: skip
    seeds = cell.spec.seeds
    fresh = jax.jit(jax.vmap(cell.model.init))(seed_keys(seeds))
    pairs = [(number, arm) for number in range(len(seeds)) for arm in arms]
    for done, (number, arm) in enumerate(pairs, 1):
        stacked = fresh if arm == "fresh" else cell.params
        params = jax.tree.map(lambda x, at=number: x[at], stacked)
        parts = [  # rows beyond the count only fill the call
            jax.tree.map(lambda x, n=count: np.asarray(x)[:n], respond(params, texts, *keys[:2]))
            for texts, count in calls
        ]
        response = jax.tree.map(lambda *each: np.concatenate(each), *parts)
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


def page(folder: Path) -> Page:
    """The page of a run."""
    frame = tidy.read(folder)
    titles = {name: models.title(name) for name in frame.model.unique()}
    table = shown(frame)
    lines = []
    for (task, model, arm), rows in intervals(table, [*ARM, "head"]).groupby(ARM, sort=False):
        cells = {row["head"]: report.bracketed(row) for _, row in rows.iterrows()}
        name = f"{task}, {titles[str(model)]}, {arm}"
        lines.append([name, *(cells.get(head, "–") for head in COLUMNS)])
    tables = [report.Table(["", *COLUMNS], lines, "Means over seeds, 95 % intervals")]
    if len(pairs := gaps(table)):
        pairs["line"] = pairs.task + ", " + pairs.model.map(titles)
        caption = "Trained models minus the first one"
        tables.append(report.pivot(pairs, index="line", columns="head", caption=caption))
    means = intervals(frame, [*ARM, "corruption", "metric", "level"])
    drawn = pd.concat(
        tidy.select(means, metric=metric, corruption=corruption).assign(panel=panel)
        for panel, (metric, corruption) in PANELS.items()
    )
    drawn["row"] = drawn.task + ", " + drawn.arm
    for end in ("low", "high"):  # seeds agree exactly at the ends
        drawn[end] = drawn[end].fillna(drawn["mean"])
    linear = drawn[drawn.metric == "correlation"].drop_duplicates(["row", "level"])
    linear = linear.assign(model="linear", **dict.fromkeys(("mean", "low", "high"), linear.level))
    picture = report.facets(
        "Stability of the output", pd.concat([drawn, linear]), x="level", row="row", col="panel",
        titles={**titles, "linear": "linear function"}, xlabel="correlation ρ of the noise",
        ylabel="", least_range=0.0,
    )  # fmt: skip
    pictures = {"encoder_stability": picture}
    return Page("Noise stability of trained encoders", pictures=pictures, tables=tables)


def shown(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of `COLUMNS` in percent or points; `head` is the column."""
    parts, scaled = [], ["score", "standard_error", "low", "high"]
    for head, (metric, corruption, level, factor) in COLUMNS.items():
        rows = tidy.select(frame, metric=metric, corruption=corruption, level=level)
        rows = rows.assign(head=head)
        rows[scaled] *= factor
        parts.append(rows)
    return pd.concat(parts)


def gaps(table: pd.DataFrame) -> pd.DataFrame:
    """Returns trained models minus the first, paired by seed, from `shown`: `tidy.summarize`."""
    rows = table[table.arm == "trained"][["task", "model", "head", "seed", "score"]]
    is_first = rows.model == rows.model.iloc[0]
    first = rows[is_first].drop(columns="model")
    return tidy.summarize(tidy.paired(rows[~is_first], first, on=["task", "head", "seed"]))


def intervals(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Returns `tidy.summarize` with intervals that include the error that seeds share."""
    means = tidy.summarize(frame[[*keys, "seed", "score"]])
    errors = frame.standard_error.fillna((frame.high - frame.low) / 2 / 1.96).fillna(0)
    errors = frame[keys].assign(error=errors).groupby(keys).mean().reset_index()
    means = means.merge(errors, on=keys)
    return tidy.widened(means, means.error)
