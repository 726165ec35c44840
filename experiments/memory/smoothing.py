"""How far can a classifier's token vectors be moved without changing its label, provably?

Randomized smoothing (Cohen, Rosenfeld and Kolter, 2019) predicts the label that a classifier
returns most often under Gaussian noise on its input. If that label's probability is at least p >
1/2, no perturbation of total L2 norm below σ Φ⁻¹(p) changes the prediction. Claim: with memory, a
classifier withstands more noise, so that the guarantee grows; this is denoised smoothing (Salman et
al., 2020) with a denoiser that needs no training. The nearest-token decoder has a guarantee without
any noise (`hopfax.hopfield.certified_radius`).

Command: `python -m experiments memory-smoothing --run RUN`, where RUN is a run of `fine-tuning` or
`robustness` on a task with classes; half an hour on two cores for six layers of width 384.

Expected: on SST-2, plain smoothing certifies half of the texts up to 0.08 RMS norms of a token
vector (0.10 after training with noise), smoothing with memory up to 0.30, and the nearest token up
to 0.17. Only the last holds if every token moves that far.

One σ serves all texts. Memory knows σ and the token frequencies of the training texts. Fifty draws
choose the label, and others give p, the lower end of a one-sided 99.9 % Clopper-Pearson interval;
if it is at most 1/2, the text has no certificate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Int
from scipy.stats import binomtest, norm

from experiments import report, runner
from experiments.cells import Cell, log_prior
from experiments.memory import pipeline
from experiments.memory.pipeline import Rows
from experiments.report import Page
from experiments.runner import fill
from experiments.settings import Run, budget_of, by_budget, optional
from hopfax.hopfield import certified_radius, gaussian_noise
from hopfax.nn import Functional, Params, Perturbation, recall
from hopfax.train import interrupt

REPRODUCES = "Not in the papers: randomized smoothing"
Memory = tuple[Array, Array] | None  # vectors of the vocabulary and log-frequencies
SYSTEMS = {
    "none": "smoothing",
    "memory": "smoothing with memory",
    "noise-trained": "smoothing, trained with noise",
    "nearest": "nearest token (norm for each token)",
}
ALPHA = 0.001  # probability that a certificate is wrong
CALL = 50  # noisy copies of a text at once
PAD = 16  # lengths are padded to multiples, so that few shapes compile
GRID = np.arange(0, 0.47, 0.02).round(2)  # radii of the picture
GROUPS = ["model", "snr_db"]


class Budget(NamedTuple):
    """Size of a run: texts, noisy copies of each, and signal-to-noise ratios in dB."""

    num_texts: int
    num_draws: int
    snr_db: tuple[float, ...]


BUDGETS = {
    "smoke": Budget(4, 50, (-6.0,)),
    "laptop": Budget(100, 300, (0.0, -3.0, -6.0, -10.0, -12.0)),
    "paper": Budget(500, 10_000, (6.0, 0.0, -3.0, -6.0, -8.0, -10.0, -12.0)),
}


@dataclass(frozen=True, kw_only=True)
class Config(Run):
    """Trained model, texts and noise."""

    run: Annotated[str | None, optional("FOLDER", "required")] = None
    """Folder of the run that trained the model, such as runs/fine-tuning/ID."""
    noise_trained: Annotated[str | None, optional("FOLDER", "none")] = None
    """Folder of a run that trained a model with noise on the same data, smoothed without memory."""
    model: Annotated[str | None, optional("NAME", "the run's only model")] = None
    """Model of the run."""
    task: Annotated[str | None, optional("NAME", "the run's only task")] = None
    """Task of the run."""
    num_texts: Annotated[int | None, by_budget("num_texts", "INT", BUDGETS)] = None
    """Number of test texts, evenly spaced."""
    num_draws: Annotated[int | None, by_budget("num_draws", "INT", BUDGETS)] = None
    """Noisy copies of each text, a multiple of 50; 50 more choose the label."""
    snr_db: Annotated[tuple[float, ...] | None, by_budget("snr_db", "FLOAT ...", BUDGETS)] = None
    """Signal-to-noise ratios in dB."""


class Texts(NamedTuple):
    """Texts to certify."""

    rows: np.ndarray  # number of each in the task's test set
    ids: list[np.ndarray]  # padded token ids
    masks: list[np.ndarray]  # True at real tokens
    labels: np.ndarray


def run(config: Config) -> Path:
    """Certifies every text with every system and writes the page.

    Raises:
        ValueError: A flag is missing or out of range, or the models have different data.
        FileNotFoundError: A folder is no run, or its model is not trained.
    """
    budget = budget_of(config, BUDGETS)
    if not config.run:
        raise ValueError("--run is required, the folder of a run of fine-tuning or robustness")
    if budget.num_draws % CALL:
        raise ValueError(f"--num-draws must be a multiple of {CALL}, got {budget.num_draws}")
    cell, _ = runner.open_trained(config.run, model=config.model, task=config.task)
    systems = {"none": cell, "memory": cell}
    if config.noise_trained:
        systems["noise-trained"], _ = runner.open_trained(
            config.noise_trained, model=None, task=None
        )
        if systems["noise-trained"].spec.data != cell.spec.data:
            raise ValueError("--run and --noise-trained must have the same data")
    test = cell.data.test
    rows = np.linspace(0, len(test.labels) - 1, min(budget.num_texts, len(test.labels)))
    rows = np.unique(rows.astype(int))
    longest = cell.model.config.max_length
    each = [padded(test.ids[row, 0, : test.lengths[row, 0]], longest) for row in rows]
    ids, masks = map(list, zip(*each, strict=True))
    texts = Texts(rows, ids, masks, test.labels[rows])
    columns = {"task": cell.data.spec.name, "site": "token", "seed": cell.spec.seeds[0]}
    job = partial(pipeline.job, metric="radius", num_examples=len(rows), **columns)
    jobs = [job(SYSTEMS["nearest"], partial(nearest, cell, texts))]
    for name, system in systems.items():
        for db in budget.snr_db:
            part = partial(smoothed, system, name, texts, db, budget.num_draws)
            jobs.append(job(f"{SYSTEMS[name]}, {pipeline.decibels(db)}", part))
    plan = {"cells": list(dict.fromkeys(each.spec.id for each in systems.values()))}
    return fill("memory-smoothing", config, jobs, page, plan=plan)


def first(cell: Cell) -> Params:
    """Returns the parameters of the first seed."""
    return jax.tree.map(lambda leaf: leaf[0], cell.params)


def vocabulary(cell: Cell, texts: Texts) -> tuple[np.ndarray, float]:
    """Returns the token vectors of the first seed, and the RMS norm of those of the texts."""
    ids = jnp.arange(cell.data.vocabulary.size)[None]
    table = np.asarray(cell.model.apply(first(cell), ids, method="embed_tokens")[0])
    return table, pipeline.rms_norm(table[np.concatenate(texts.ids)[np.concatenate(texts.masks)]])


def padded(ids: np.ndarray, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids padded to a multiple of `PAD` or to `longest`, and the mask of the real ones."""
    (ids,), (mask,) = pipeline.padded([ids], min(-(-len(ids) // PAD) * PAD, longest))
    return ids, mask


def nearest(cell: Cell, texts: Texts) -> Rows:
    """Certifies the nearest-token decoder: its label is the clean one within each token's radius.

    The radius of a text is the smallest one of its tokens. Its label is the same even if every
    token moves by that radius.
    """
    params, (table, unit) = first(cell), vocabulary(cell, texts)
    radius = np.asarray(certified_radius(jnp.asarray(table))) / unit

    @jax.jit
    def label(params: Params, ids: Array, mask: Array) -> Array:
        return jnp.argmax(cell.model.apply(params, ids[None], mask[None]).logits[0])

    return [
        {"model": "nearest", "row": row, "label": of_row,
         "predicted": int(label(params, ids, mask)), "score": float(radius[ids[mask]].min())}
        for row, ids, mask, of_row in zip(*texts, strict=True)
    ]  # fmt: skip


@partial(jax.jit, static_argnums=0)
def _votes(
    model: Functional[Any], params: Params, ids: Array, mask: Array, sigma: Array,
    memory: Memory, key: Array,
) -> Int[Array, " classes"]:  # fmt: skip
    clean = model.apply(params, ids[None], method="embed_tokens")[0]
    copies = jnp.tile(clean, (CALL, 1))
    noise = gaussian_noise(key, copies, sigma=sigma, mask=jnp.tile(mask, CALL))
    noisy = (copies + noise).reshape(CALL, *clean.shape)
    if memory:
        noisy = recall(noisy, memory[0], sigma=sigma, log_prior=memory[1])
    copies = (jnp.broadcast_to(each, noisy.shape[:2]) for each in (ids, mask))
    outputs = model.apply(params, *copies, added=Perturbation(token=noisy - clean)).logits
    return jnp.sum(jax.nn.one_hot(jnp.argmax(outputs, axis=1), outputs.shape[1], dtype=int), axis=0)


def votes(
    model: Functional[Any], params: Params, ids: np.ndarray, mask: np.ndarray, sigma: float,
    memory: Memory, key: Array, count: int,
) -> np.ndarray:  # fmt: skip
    """Returns how many noisy copies of a text get each label, denoised if memory is given.

    `count` is a multiple of `CALL`.
    """
    keys = jax.random.split(key, count // CALL)
    inputs = ids, mask, jnp.float32(sigma), memory
    parts = [_votes(model, params, *inputs, each) for each in keys]
    interrupt.check()
    return np.sum(np.asarray(parts), axis=0)


def smoothed(cell: Cell, system: str, texts: Texts, db: float, num_draws: int) -> Rows:
    """Certifies the smoothed classifier of a system at one noise level, text by text."""
    params, (table, unit), memory, rows = first(cell), vocabulary(cell, texts), None, []
    sigma = unit / table.shape[1] ** 0.5 * pipeline.noise_level(db)
    if system == "memory":
        memory = jnp.asarray(table), jnp.asarray(log_prior(cell.data))
    for number, (row, ids, mask, label) in enumerate(zip(*texts, strict=True)):
        counts = partial(votes, cell.model, params, ids, mask, sigma, memory)
        predicted, radius = certificate(counts, number, sigma, num_draws)
        rows.append({"model": system, "snr_db": db, "row": row, "label": label,
                     "predicted": predicted, "score": radius / unit})  # fmt: skip
    return rows


def certificate(
    counts: Callable[[Array, int], np.ndarray], number: int, sigma: float, num_draws: int
) -> tuple[int, float]:
    """Returns the label that a smoothed classifier predicts for a text, and its certified radius.

    The radius is 0 if the label may have a probability below 1/2. `counts(key, count)` returns the
    votes of noisy copies, and `number` is that of the text, which seeds its draws.

    References:
        Cohen, Rosenfeld and Kolter (2019), Certified Adversarial Robustness via Randomized
        Smoothing, Theorem 1 and section 3.2.
    """
    choice, estimate = jax.random.split(jax.random.fold_in(jax.random.key(0), number))
    label = int(np.argmax(counts(choice, CALL)))
    drawn = counts(estimate, num_draws)
    test = binomtest(int(drawn[label]), int(drawn.sum()), alternative="greater")
    low = test.proportion_ci(1 - ALPHA).low
    return label, sigma * float(norm.ppf(low)) if low > 0.5 else 0.0


def by_system(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns, by system and SNR, the radius certified for half of the texts, and shares by radius.

    Texts with a wrong label have the radius 0, and a radius of 0 is no certificate.
    """
    middle, shares = [], []
    for at, part in frame.groupby(GROUPS, sort=False, dropna=False):
        where = dict(zip(GROUPS, at, strict=True))
        radii = part.score.where(part.predicted == part.label, 0.0).to_numpy()
        median = pipeline.interval(len(radii), lambda units, radii=radii: np.median(radii[units]))
        middle.append({**where, "mean": median["score"], **median})
        for radius in GRID:
            count = int((radii >= max(radius, 1e-9)).sum())
            low, high = binomtest(count, len(radii)).proportion_ci(method="wilson")
            share = {"mean": 100 * count / len(radii), "low": 100 * low, "high": 100 * high}
            shares.append({**where, "x": radius, **share})
    return pd.DataFrame(middle), pd.DataFrame(shares)


def at_best(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns `by_system`, each system only at the SNR of its largest median radius."""
    middle, shares = by_system(frame)
    best = middle.loc[middle.groupby("model", sort=False)["mean"].idxmax()]
    return best, best[GROUPS].merge(shares)


def page(folder: Path) -> Page:
    """Returns the page of a run."""
    frame = pd.read_csv(folder / "results.csv")
    (middle, _), (_, shares) = by_system(frame), at_best(frame)
    noise = middle.snr_db.map(pipeline.decibels).replace("none", "no noise")
    return Page(
        title="Certified accuracy with randomized smoothing",
        pictures={
            "smoothing": report.facets(
                "Certified texts by radius, best SNRs", shares, x="x", titles=SYSTEMS,
                xlabel="radius / RMS norm of a token", ylabel="texts certified, %", least_range=0.0,
            )
        },
        tables=[
            report.grid(middle.assign(noise=noise), "model", "noise", titles=SYSTEMS,
                          caption="Radius certified for half the texts",
                          cell=lambda row: report.bracketed(row, 2))
        ],
    )  # fmt: skip
