"""Which share of the tokens can be recovered from noisy embeddings with the vocabulary?

Claim: nearest neighbors read 42.1 % of MRPC's tokens from vectors with Gaussian noise, a search
with a language model 74.3 % (Kale et al., 2025, BeamClean, arXiv 2505.13758).

Command: `python -m experiments memory-recovery --pretrained FOLDER --data-dir DIR`; two minutes on
two cores for width 384.

Expected: at -14 dB, the tokens' frequencies as prior raise the recovered share from 40 to 60 %.

All tokens get noise of one σ, as where it is added for privacy; the signal-to-noise ratio is that
of all texts. Special tokens are left out. One decoder returns the nearest token of the vocabulary,
the other uses the tokens' frequencies in the training texts as prior; neither knows σ. Predictions
(`hopfax.hopfield.recovery_rate`) are for decoders that do, and treat confusions with other tokens
as independent, which underestimates recovery at low SNR.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import jax.numpy as jnp
import numpy as np
from scipy.special import softmax
from scipy.stats import entropy

from experiments import report, tidy
from experiments.figures import SNR
from experiments.memory import pipeline
from experiments.memory.pipeline import TITLES, Budget, Encoder, Rows
from experiments.report import Page
from experiments.runner import fill
from experiments.settings import Shared, by_budget
from hopfax import hopfield
from hopfax.data import evenly_spaced, task_rows
from hopfax.data.tokenize import text_tokenizer

REPRODUCES = "BeamClean (2505.13758)"
LEVELS = (-4.0, -6.0, -8.0, -10.0, -12.0, -14.0, -16.0, -20.0)
BUDGETS = {
    "smoke": Budget(10, 1, (-12.0,)),
    "laptop": Budget(60, 1, LEVELS),
    "paper": Budget(408, 10, LEVELS),
}


@dataclass(frozen=True, kw_only=True)
class Config(Shared):
    """Model, texts and noise."""

    task: Literal["mrpc", "stsb", "sst2"] = "mrpc"
    """Task whose texts are read."""
    num_pairs: Annotated[int | None, by_budget("num_pairs", "INT", BUDGETS)] = None
    """Rows of the task, evenly spaced."""
    num_draws: Annotated[int | None, by_budget("num_draws", "INT", BUDGETS)] = None
    """Independent noise draws."""
    snr_db: Annotated[tuple[float, ...] | None, by_budget("snr_db", "FLOAT ...", BUDGETS)] = None
    """Signal-to-noise ratios in dB."""


def run(config: Config) -> Path:
    """Measures everything and writes the page; see `pipeline.start` for errors."""
    budget, encoder = pipeline.start(config, BUDGETS)
    table, log_prior = encoder.table, pipeline.training_prior(encoder, config.task)
    special = text_tokenizer(encoder.tokens).encode("").ids
    ids, row = read(encoder, config.task, budget.num_pairs, special)
    decode = pipeline.denoiser(table, log_prior)
    measure_at = partial(measure, ids, row, table, log_prior, decode, budget.num_draws)
    without = np.where(np.isin(np.arange(len(log_prior)), special), -np.inf, log_prior)
    columns = {"task": config.task, "corruption": "gaussian", "site": "token", "seed": 0}
    job = partial(pipeline.job, protocol="one-sigma", **columns)
    jobs = [
        *(job(pipeline.decibels(db), partial(measure_at, db)) for db in budget.snr_db),
        job("limits", partial(limits, table, without)),
    ]
    return fill("memory-recovery", config, jobs, page, plan=encoder.plan)


def read(
    encoder: Encoder, task: str, count: int, special: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of all tokens of evenly spaced rows of a task, and their rows' numbers."""
    rows = evenly_spaced(task_rows(task, "test", data_dir=encoder.data_dir), count)
    texts = pipeline.encoded([text for row in rows for text in row.texts[0]], encoder.tokens)
    row = np.repeat(np.arange(len(rows)), [len(row.texts[0]) for row in rows])
    ids, row = np.concatenate(texts), np.repeat(row, [*map(len, texts)])
    kept = ~np.isin(ids, special)
    return ids[kept], row[kept]


def measure(
    ids: np.ndarray, row: np.ndarray, table: np.ndarray, log_prior: np.ndarray,
    decode: Callable[..., Any], num_draws: int, db: float,
) -> Rows:  # fmt: skip
    """Returns the rows of results.csv for a signal-to-noise ratio in dB."""
    draws, sigma, rows = [], np.zeros(0), []
    for seed in range(num_draws):
        noisy, sigma = pipeline.add_noise([table[ids]], db, protocol="matched", seed=seed)
        draws.append(pipeline.in_batches(decode, noisy, sigma)[1])
    distinct, places = np.unique(ids, return_inverse=True)
    for name, bias in (("nearest", np.zeros_like(log_prior)), ("memory", log_prior)):
        right = np.mean([draw[name] == ids for draw in draws], axis=0)
        patterns, prior, index = map(jnp.asarray, (table, bias, distinct))
        rates = hopfield.recovery_rate(
            patterns, sigma=float(sigma[0]), log_prior=prior, index=index
        )
        predicted = 100 * float(np.asarray(rates)[places].mean())
        rows += [
            {"model": name, "metric": "recovered", **share(right, row)},
            {"model": name, "metric": "predicted", "score": predicted},
        ]
    shared = {"group": "all", "level": pipeline.noise_level(db), "snr_db": db}
    return [{**shared, "num_examples": len(ids), **each} for each in rows]


def limits(table: np.ndarray, log_prior: np.ndarray) -> Rows:
    """Returns rows of `hopfield.capacity_snr_db`, for white signal and for the table's spectrum."""
    prior = softmax(log_prior)
    centered = table - prior @ table
    spectrum = np.linalg.eigvalsh(centered.T @ (prior[:, None] * centered))
    spectrum = np.maximum(spectrum, 0) / (prior @ np.square(table).sum(axis=1))
    bits, spectra = float(entropy(prior, base=2)), {"white": None, "table": jnp.asarray(spectrum)}
    limit = partial(hopfield.capacity_snr_db, bits, width=table.shape[1])
    return [
        {"model": "memory", "metric": "limit", "group": name, "score": float(limit(spectrum=each))}
        for name, each in spectra.items()
    ]


def share(right: np.ndarray, row: np.ndarray) -> dict[str, float]:
    """Returns the mean of `right` over tokens in percent, with a bootstrap over their rows."""
    ours, total = np.bincount(row, right), np.bincount(row)
    return pipeline.interval(len(total), lambda rows: 100 * ours[rows].sum() / total[rows].sum())


def page(folder: Path) -> Page:
    """Returns the page of a run."""
    frame = tidy.read(folder).sort_values("snr_db", ascending=False, kind="stable")
    rates = tidy.select(frame, group="all")
    predicted = rates.metric.map({"recovered": "", "predicted": ", predicted"})
    rates = rates.assign(
        line=rates.model.replace(TITLES) + predicted,
        mean=rates.score,
        snr=rates.snr_db.map(pipeline.decibels),
    )
    return Page(
        title="Tokens recovered from noisy embeddings",
        pictures={
            "recovery": report.facets(
                "Tokens recovered, measured and predicted", rates, x="snr_db", hue="line",
                xlabel=SNR, ylabel="tokens recovered, %",
            )
        },
        tables=[report.grid(rates, "line", "snr", "Tokens recovered, %", cell=report.bracketed)],
    )  # fmt: skip
