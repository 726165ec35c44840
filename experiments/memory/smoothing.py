"""How far can a classifier's token vectors be moved without changing its label, provably?

Randomized smoothing (Cohen, Rosenfeld and Kolter, 2019) predicts the label that a classifier
returns most often under Gaussian noise on its input. If that label's probability is at least p >
1/2, no perturbation of total L2 norm below σ Φ⁻¹(p) changes the prediction. So the guarantee grows
with the noise that the classifier withstands. Claim: with memory, it withstands more, which is
denoised smoothing (Salman et al., 2020) with a denoiser that needs no training. The nearest-token
decoder has a guarantee of its own, half of the distance to the nearest other token, without any
noise (`hopfax.hopfield.certified_radius`).

Command: `python -m experiments memory-smoothing --run RUN`, where RUN is a run of `fine-tuning` or
`robustness` on a task with classes; half an hour on two cores for six layers of width 384.

Expected: on SST-2, plain smoothing certifies half of the texts up to 0.08 RMS norms of a token
vector (0.10 after training with noise), smoothing with memory up to 0.30, and the nearest token up
to 0.17. Only the last holds if every token moves that far.

Noise and perturbations are on the token vectors; one σ serves all texts. Memory knows σ and the
token frequencies of the training texts. Fifty draws choose the label, and others give p, the lower
end of a one-sided 99.9 % Clopper-Pearson interval; if it is at most 1/2, the text has no
certificate.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import tyro
from jaxtyping import Array, Float, Int
from scipy.stats import binomtest, norm

from experiments import gaussian, predict, report, tidy
from experiments.cells import Cell, log_prior
from experiments.memory.certificates import rms_norm
from experiments.memory.similarity import decibels
from experiments.report import Page
from experiments.rundir import open_run, read_config
from experiments.settings import Run, budget_of, by_budget, optional
from hopfax.hopfield import certified_radius
from hopfax.nn import Functional, Params, Perturbation, recall
from hopfax.train import interrupt
from hopfax.train.progress import Progress

REPRODUCES = "Robertha's claim of robustness, by randomized smoothing; not in the paper"
SYSTEMS = {
    "none": "smoothing",
    "memory": "smoothing with memory",
    "noise-trained": "smoothing, trained with noise",
    "nearest": "nearest token",
}
PER_TOKEN = "nearest token (norm for each token)"
ALPHA = 0.001  # probability that a certificate is wrong
CALL = 50  # noisy copies of a text at once
PAD = 16  # lengths are padded to multiples, so that few shapes compile
GRID = np.arange(0, 0.47, 0.02).round(2)  # radii of the picture
SHOWN = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4)  # radii of the table


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

    run: Annotated[str | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="(required)")] = (
        None
    )
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
    """Padded token ids of each text, masks of the real ones, and labels."""

    ids: list[np.ndarray]
    masks: list[np.ndarray]
    labels: np.ndarray


class Memory(NamedTuple):
    """Vectors of the vocabulary and log-frequencies of the tokens."""

    table: Array
    log_prior: Array


def run(config: Config) -> Path:
    """Certifies every text with every system and writes the page.

    Raises:
        ValueError: A flag is missing or out of range, a model already has a denoiser, the models
            have different data, or see `predict.opened`.
        FileNotFoundError: A folder is no run, or its model is not trained.
    """
    budget = budget_of(config, BUDGETS)
    if not config.run:
        raise ValueError("--run is required, the folder of a run of fine-tuning or robustness")
    if budget.num_draws % CALL:
        raise ValueError(f"--num-draws must be a multiple of {CALL}, got {budget.num_draws}")
    cell = opened(config.run, config.model, config.task)
    systems = {"none": cell, "memory": cell}
    if config.noise_trained:
        systems["noise-trained"] = opened(config.noise_trained, None, None)
        if systems["noise-trained"].spec.data != cell.spec.data:
            raise ValueError("--run and --noise-trained must have the same data")
    data = cell.data
    rows = np.linspace(0, len(data.test.labels) - 1, min(budget.num_texts, len(data.test.labels)))
    rows = np.unique(rows.astype(int))
    longest = cell.model.apply(first(cell), method=lambda network: network.max_length)
    ids, masks = zip(
        *(padded(data.test.ids[row, 0, : data.test.lengths[row, 0]], longest) for row in rows),
        strict=True,
    )
    texts = Texts(list(ids), list(masks), data.test.labels[rows])
    plan = {"cells": list(dict.fromkeys(each.spec.id for each in systems.values()))}
    folder = open_run("memory-smoothing", config, plan=plan)
    certified = [nearest(cell, texts)]
    plans = [(system, db) for system in systems for db in budget.snr_db]
    with Progress(len(plans)) as progress:
        for done, (system, db) in enumerate(plans, start=1):
            progress.title = f"{SYSTEMS[system]}, {db:g} dB"
            part = smoothed(systems[system], texts, db, budget.num_draws, system == "memory")
            certified.append(part.assign(model=system, snr_db=db))
            progress.update(done)
    frame = pd.concat(part.assign(row=rows, label=texts.labels) for part in certified)
    frame = frame.assign(
        task=data.spec.name, site="token", seed=cell.spec.seeds[0], metric="radius",
        num_examples=len(rows),
    )  # fmt: skip
    return report.write_run(folder, frame, page)


def opened(run: str, model: str | None, task: str | None) -> Cell:
    """Returns the trained model of a run; raises a ValueError if it has a denoiser."""
    cell = predict.opened(predict.Config(run=run, model=model, task=task, texts=()))
    if cell.denoiser != "none" or "memory" in cell.params:
        raise ValueError(f"the model must not have memory or another denoiser, got {run}")
    return cell


def first(cell: Cell) -> Params:
    """Returns the parameters of the first seed."""
    return jax.tree.map(lambda leaf: leaf[0], cell.params)


def vocabulary(cell: Cell, texts: Texts) -> tuple[np.ndarray, float]:
    """Returns the token vectors of the first seed, and the RMS norm of those of the texts."""
    table = np.asarray(embeddings(cell.model, first(cell), jnp.arange(cell.data.vocab_size)))
    return table, rms_norm(table[np.concatenate(texts.ids)[np.concatenate(texts.masks)]])


def embeddings(model: Functional[Any], params: Params, ids: Array) -> Float[Array, "tokens width"]:
    """Returns the vectors of token ids, as the model's embedding site *token* has them."""
    return model.apply(params, ids[None], method="embed_tokens")[0]


def padded(ids: np.ndarray, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids padded to a multiple of `PAD` or to `longest`, and the mask of the real ones."""
    length = min(-(-len(ids) // PAD) * PAD, longest)
    return np.pad(ids, (0, length - len(ids))), np.arange(length) < len(ids)


def nearest(cell: Cell, texts: Texts) -> pd.DataFrame:
    """Certifies the nearest-token decoder: its label is the clean one within each token's radius.

    If the whole perturbation is shorter than the smallest radius of a text's tokens, so is the
    perturbation of each token. Even if every token moves by that radius, the label is the same.
    """
    params, (table, unit) = first(cell), vocabulary(cell, texts)
    radius = np.asarray(certified_radius(jnp.asarray(table))) / unit

    @jax.jit
    def label(params: Params, ids: Array, mask: Array) -> Array:
        return jnp.argmax(cell.model.apply(params, ids[None], mask[None]).logits[0])

    return pd.DataFrame([
        {"model": "nearest", "predicted": int(label(params, ids, mask)),
         "score": float(radius[ids[mask]].min())}
        for ids, mask in zip(texts.ids, texts.masks, strict=True)
    ])  # fmt: skip


@functools.partial(jax.jit, static_argnums=0)
def _votes(
    model: Functional[Any], params: Params, ids: Array, mask: Array, sigma: Array,
    memory: Memory | None, key: Array,
) -> Int[Array, " classes"]:  # fmt: skip
    clean = embeddings(model, params, ids)
    noise = sigma * jax.random.normal(key, (CALL, *clean.shape))
    noisy = clean + jnp.where(mask[:, None], noise, 0)
    if memory:
        noisy = recall(noisy, memory.table, sigma=sigma, log_prior=memory.log_prior)
    copies = (jnp.broadcast_to(each, noisy.shape[:2]) for each in (ids, mask))
    outputs = model.apply(params, *copies, added=Perturbation(token=noisy - clean)).logits
    return jnp.sum(jax.nn.one_hot(jnp.argmax(outputs, axis=1), outputs.shape[1], dtype=int), axis=0)


def votes(
    model: Functional[Any],
    params: Params,
    ids: np.ndarray,
    mask: np.ndarray,
    sigma: float,
    memory: Memory | None,
    key: Array,
    count: int,
) -> np.ndarray:
    """Returns how many noisy copies of a text get each label, denoised if memory is given.

    `count` is a multiple of `CALL`.
    """
    keys = jax.random.split(key, count // CALL)
    inputs = ids, mask, jnp.float32(sigma), memory
    parts = [_votes(model, params, *inputs, each) for each in keys]
    interrupt.check()
    return np.sum(np.asarray(parts), axis=0)


def smoothed(
    cell: Cell, texts: Texts, db: float, num_draws: int, with_memory: bool
) -> pd.DataFrame:
    """Certifies the smoothed classifier at one noise level, text by text."""
    params, (table, unit) = first(cell), vocabulary(cell, texts)
    sigma = unit / table.shape[1] ** 0.5 * 10 ** (-db / 20)
    memory = Memory(jnp.asarray(table), jnp.asarray(log_prior(cell.data))) if with_memory else None
    rows = []
    for number, (ids, mask) in enumerate(zip(texts.ids, texts.masks, strict=True)):
        counts = functools.partial(votes, cell.model, params, ids, mask, sigma, memory)
        label, radius = certificate(counts, number, sigma, num_draws)
        rows.append({"predicted": label, "score": radius / unit})
    return pd.DataFrame(rows)


def certificate(
    counts: Callable[[Array, int], np.ndarray], number: int, sigma: float, num_draws: int
) -> tuple[int, float]:
    """Returns the label that a smoothed classifier predicts for a text, and its certified radius.

    The radius is 0 if the label may have a probability below 1/2.

    Args:
        counts: `counts(key, count)` returns the votes of noisy copies, see `votes`.
        number: Number of the text, which seeds its draws.
        sigma: Standard deviation of the noise.
        num_draws: Copies that estimate the label's probability.

    References:
        Cohen, Rosenfeld and Kolter (2019), Certified Adversarial Robustness via Randomized
        Smoothing, Theorem 1 and section 3.2.
    """
    choice, estimate = jax.random.split(jax.random.fold_in(jax.random.key(0), number))
    label = int(np.argmax(counts(choice, CALL)))
    drawn = counts(estimate, num_draws)
    successes, total = int(drawn[label]), int(drawn.sum())
    low = binomtest(successes, total, alternative="greater").proportion_ci(1 - ALPHA).low
    return label, sigma * float(norm.ppf(low)) if low > 0.5 else 0.0


def shares(frame: pd.DataFrame, radii: Any) -> pd.DataFrame:
    """Returns the share of texts with the right label certified at each radius, by system.

    At radius 0, it leaves out texts without a certificate.
    """
    rows = []
    for (system, db), part in frame.groupby(["model", "snr_db"], sort=False, dropna=False):
        for radius in radii:
            right = (part.predicted == part.label) & (part.score >= max(radius, 1e-9))
            ends = binomtest(int(right.sum()), len(part)).proportion_ci(method="wilson")
            rows.append({"model": system, "snr_db": db, "x": radius, "mean": 100 * right.mean(),
                         "low": 100 * ends.low, "high": 100 * ends.high})  # fmt: skip
    return pd.DataFrame(rows)


def medians(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the radius at which half of the texts are certified with the right label."""
    rows = []
    for (system, db), part in frame.groupby(["model", "snr_db"], sort=False, dropna=False):
        radius = np.where(part.predicted == part.label, part.score, 0.0)
        low, high = tidy.bootstrap(
            len(radius), lambda units, radius=radius: np.median(radius[units])
        )
        rows.append({"model": system, "snr_db": db, "mean": np.median(radius), "low": low,
                     "high": high})  # fmt: skip
    return pd.DataFrame(rows)


def page(folder: Path) -> Page:
    """Returns the page of a run or of a folder of published results."""
    frame = pd.read_csv(folder / "results.csv")
    config = read_config(folder)["config"]
    task = gaussian.titles(frame.task.unique())[frame.task.iloc[0]]
    middle, curves, table = medians(frame), shares(frame, GRID), shares(frame, SHOWN)
    best = middle.loc[middle.groupby("model", sort=False)["mean"].idxmax()].set_index("model")
    count, num_draws = (
        frame.row.nunique(),
        config["num_draws"] or BUDGETS[config["budget"]].num_draws,
    )

    def named(system: Any, db: Any) -> str:
        return SYSTEMS[system] if system == "nearest" else f"{SYSTEMS[system]}, {decibels(db)}"

    def half(system: str) -> str:
        return report.bracketed(best.loc[system], 2)

    def at(system: str) -> str:
        row: Any = best.loc[system]
        return decibels(row.snr_db)

    trained = ""
    if "noise-trained" in best.index:
        trained = f"; after training with noise, {half('noise-trained')} ({at('noise-trained')})"
    decoded = frame[frame.model == "nearest"]  # as without noise
    right = (decoded.predicted == decoded.label).mean()
    alike = frame[frame.model == "none"].groupby("snr_db", sort=False).predicted
    alike = alike.agg(lambda labels: labels.value_counts(normalize=True).max())
    constant = report.joined(
        f"{100 * share:.0f} % at {decibels(db)}"
        for db, share in zip(alike.index, alike, strict=True)
    )
    drawn = [
        curves[(curves.model == system) & ((curves.snr_db == row.snr_db) | (system == "nearest"))]
        for system, row in best.iterrows()
    ]
    return report.Page(
        title=f"Certified accuracy with randomized smoothing: {task}",
        answer=(
            "**With memory, smoothing certifies the right label of half of "
            f"{count} texts of {task} up to a total perturbation of {half('memory')}** (unit: RMS "
            f"norm of a token vector; smoothing noise: {at('memory')}). Without memory, the radius "
            f"is {half('none')} ({at('none')}){trained}. The nearest-token decoder allows a "
            f"perturbation of {half('nearest')} in every token."
        ),
        pictures={
            "smoothing": report.facets(
                "Share of the texts whose label is right and certified, against the radius, at the "
                "best SNR of each method (nearest token: radius of a token; others: of the text)",
                pd.concat(drawn).assign(clean=100 * right),
                x="x",
                titles={
                    **{system: named(system, row.snr_db) for system, row in best.iterrows()},
                    "nearest": PER_TOKEN,
                    "clean": "right without noise",
                },
                xlabel="radius / RMS norm of a token",
                ylabel="texts certified, %",
                least_range=0.0,
            )
        },
        tables=[
            report.Table(
                ["", *(f"{radius:g}" for radius in SHOWN), "half of the texts"],
                [
                    [named(system, db),
                     *(report.bracketed(row, 0) for _, row in part.iterrows()),
                     report.bracketed(tidy.select(middle, model=system, snr_db=db).iloc[0]
                                      if system != "nearest" else best.loc["nearest"], 2)]
                    for (system, db), part in table.groupby(
                        ["model", "snr_db"], sort=False, dropna=False
                    )
                ],
                "Texts with the right label certified, in %, by the norm of the perturbation in "
                "RMS norms of a token (total; for the nearest token: of each token); and the "
                "radius that half of the texts reach.",
            )
        ],
        notes=[
            "The norm of a perturbation is that of all token vectors of a text together. The "
            "certificate of the nearest token is deterministic, and stronger: every "
            "token may move by the radius, half of the distance to its nearest neighbor.",
            f"Smoothing: {num_draws:,} noisy copies of each text, and {CALL} more that choose the "
            f"label. A certificate is wrong with a probability of at most {ALPHA:g} per text. If "
            f"all copies agree, the radius is {norm.ppf(ALPHA ** (1 / num_draws)):.2f} σ; more "
            "copies certify more. Radii take few values, so intervals can have no width.",
            "SNR: of all texts together, so that σ does not depend on the text. Memory knows σ and "
            "the token frequencies of the training texts. The best SNR of each system is chosen on "
            "the same texts.",
            "Brackets: 95 % intervals over texts, Wilson's for shares and a bootstrap for radii. "
            "They leave out the choice of the SNR.",
            f"Models of seed {frame.seed.iloc[0]} only. Share of the texts for which plain "
            f"smoothing predicts its most frequent label: {constant}.",
        ],
    )  # fmt: skip
