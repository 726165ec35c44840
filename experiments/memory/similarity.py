"""Does retrieval from the vocabulary denoise the inputs of a pretrained encoder?

Claim of Podasca and Das (2026): Hopfield attention pulls noisy embeddings back to clean patterns.
Its patterns are the keys of the same noisy text. Here they are the embeddings of the vocabulary,
which are clean. Nothing is trained.

Command: `python -m experiments memory --pretrained FOLDER --data-dir DIR`; about half an hour on
two cores for six layers of width 384.

Expected: with memory, the score is within 1 point of the clean one down to 4 to 7 dB above the
Shannon limit.

The score is how well the cosine of two texts' embeddings ranks the pairs: Spearman's correlation
with the labels for STS-B, the area under the ROC curve for classes of pairs. Noise is added to the
token embeddings, and every method sees the same noisy embeddings. The prior of a token is its
frequency in the task's training texts. "Memory" does not know the noise level.
"Wiener filter" is the best linear estimate from the mean and covariance of the vocabulary under
that prior, with known noise level. Below the Shannon limit, no decoder that knows only token
frequencies can recover all tokens (`hopfax.hopfield.capacity_snr_db`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd

from experiments import report, tidy
from experiments.figures import SNR
from experiments.memory import pipeline
from experiments.memory.pipeline import TITLES, Budget, Encoder, Pairs
from experiments.report import Page
from experiments.runner import Job, fill
from experiments.settings import Shared, by_budget
from hopfax.hopfield import capacity_snr_db

REPRODUCES = "Not in the papers: vocabulary as memory"
NEAR = 1.0  # largest drop in points that counts as keeping the clean score
BUDGETS = {
    "smoke": Budget(16, 1, (-6.0,)),
    "laptop": Budget(1500, 1, (6.0, 0.0, -4.0, -8.0, -10.0, -12.0, -14.0, -16.0, -20.0)),
    "paper": Budget(1500, 5, tuple(float(db) for db in range(6, -21, -2))),
}


@dataclass(frozen=True, kw_only=True)
class Config(Shared):
    """Model, texts and noise."""

    task: tuple[Literal["stsb", "mrpc", "rte", "qqp", "qnli"], ...] = ("stsb",)
    """Tasks to measure."""
    protocols: tuple[Literal["matched", "per-token"], ...] = ("matched", "per-token")
    """Same signal-to-noise ratio for each text (matched), or for each token (per-token)."""
    num_pairs: Annotated[int | None, by_budget("num_pairs", "INT", BUDGETS)] = None
    """Number of pairs of texts, evenly spaced in the set: STS-B is sorted by source."""
    num_draws: Annotated[int | None, by_budget("num_draws", "INT", BUDGETS)] = None
    """Number of noise draws."""
    snr_db: Annotated[tuple[float, ...] | None, by_budget("snr_db", "FLOAT ...", BUDGETS)] = None
    """Signal-to-noise ratios in dB."""


def run(config: Config) -> Path:
    """Measures everything and writes the page; see `pipeline.start` for errors."""
    budget, encoder = pipeline.start(config, BUDGETS)
    cases, jobs = list(itertools.product(config.protocols, budget.snr_db)), []
    for task in config.task:
        pairs, _ = pipeline.read_pairs(encoder, task, budget.num_pairs)
        inputs = encoder, pairs, pipeline.training_prior(encoder, task), cases, budget.num_draws
        jobs.append(Job(TITLES[task], partial(measure, *inputs)))
    return fill("memory", config, jobs, page, plan=encoder.plan)


def measure(
    encoder: Encoder,
    pairs: Pairs,
    log_prior: np.ndarray,
    cases: Sequence[tuple[str, float]],
    num_draws: int,
    on_progress: Callable[..., None],
) -> dict[str, pd.DataFrame]:
    """Returns results.csv of a task: every method under every protocol and SNR."""
    denoise = pipeline.denoiser(encoder.table, log_prior)
    ends = np.cumsum([len(text) for text in pairs.ids])[:-1]

    def methods(noisy: np.ndarray, sigma: np.ndarray) -> dict[str, tuple[list[np.ndarray], Any]]:
        vectors, tokens = pipeline.in_batches(denoise, noisy, sigma)
        return {name: (np.split(each, ends), tokens.get(name)) for name, each in vectors.items()}

    rows = pipeline.under_noise(encoder, pairs, methods, cases, num_draws, on_progress)
    bits = -float(np.mean(log_prior[np.concatenate(pairs.ids)])) / np.log(2)
    limit = float(capacity_snr_db(bits, width=encoder.table.shape[1]))
    return {"results": pd.DataFrame(rows).assign(task=pairs.task, limit=limit)}


def page(folder: Path) -> Page:
    """Returns the page of a run."""
    frame = tidy.read(folder)
    clean, limit = (frame[frame.level == 0].set_index("task")[name] for name in ("score", "limit"))
    lines = pipeline.means(frame, "score")
    lines = lines.assign(clean=lines.task.map(clean), limit=lines.task.map(limit))
    keys = ["task", "protocol", "model"]
    lost = (lines["mean"] <= lines.clean - NEAR).groupby([lines[key] for key in keys]).cummax()
    kept = lines.assign(mean=lines.snr_db.mask(lost)).groupby(keys, sort=False)["mean"].min()
    kept = kept.reset_index()
    kept["column"] = kept.task.map(TITLES) + ", " + kept.protocol.map(TITLES)
    return Page(
        title="Retrieval from the vocabulary under noise",
        pictures={
            "memory": report.facets(
                "Score against noise, 95 % bands",
                lines[lines.model != "uniform"], x="snr_db", col="protocol", row="task",
                titles=TITLES, xlabel=SNR, ylabel=pipeline.SCORES,
            )
        },
        tables=[
            report.grid(kept, "model", "column", f"Lowest SNR within {NEAR:g} point of clean",
                        cell=lambda row: pipeline.decibels(row["mean"]), titles=TITLES)
        ],
    )  # fmt: skip
