"""What does retrieval from the vocabulary guarantee, against an adversary and against noise?

Claims: a perturbation of each token's vector below half the distance to the nearest other vector is
undone exactly by the nearest-token decoder (`hopfax.hopfield.certified_radius`); under Gaussian
noise, a text is recovered exactly at least as often as the union bound says (`recovery_bound`).
The theorem on basins of Hopfield networks (Ramsauer et al., 2021) guarantees less.

Command: `python -m experiments memory-certificates --pretrained FOLDER --data-dir DIR`; four
minutes on two cores for six layers of width 384.

Expected: no attack changes the output inside the certified radius.

All systems get all attacks of `experiments.memory.attacks`, on the first texts of pairs, and each
pair counts with the worst one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import jax.numpy as jnp
import numpy as np
import pandas as pd

from experiments import report, tidy
from experiments.figures import SNR, Panel
from experiments.memory import attacks, pipeline
from experiments.memory.attacks import MAX_TOKENS, Batch, Reader
from experiments.memory.pipeline import TITLES, Rows
from experiments.report import Page
from experiments.runner import fill
from experiments.settings import Shared, by_budget
from hopfax.data import reported_rows
from hopfax.hopfield import recovery_bound, recovery_rate

REPRODUCES = "Not in the papers: certificates of retrieval"
TASKS = ("stsb", "mrpc", "sst2")
SYSTEMS = ("none", "nearest", "memory")
METRICS = {
    "certified": "certified, %",
    "score": "score",
    "unchanged": "measured, %",
    "predicted": "predicted, %",
    "bound": "union bound, %",
    "agreement": "cosine",
    "well separated": "with basin, %",
    "basin": "radius of basins",
}
BY_LINE, BOUNDS = ("certified", "score", "agreement"), ("predicted", "bound")


class Budget(NamedTuple):
    """Size of a run: attacked pairs, steps, radii in RMS norms, noise draws, ratios in dB."""

    num_pairs: int
    num_steps: int
    num_draws: int
    radii: tuple[float, ...]
    snr_db: tuple[float, ...]


LEVELS = (6.0, 0.0, -4.0, -6.0, -8.0, -10.0, -12.0, -14.0, -20.0)
BUDGETS = {
    "smoke": Budget(10, 2, 1, (0.15,), (-8.0,)),
    "laptop": Budget(32, 6, 2, (0.05, 0.15, 0.25, 0.35, 0.5), LEVELS),
    "paper": Budget(500, 40, 10, (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6), LEVELS),
}


@dataclass(frozen=True, kw_only=True)
class Config(Shared):
    """Model, texts, attacks and noise."""

    num_pairs: Annotated[int | None, by_budget("num_pairs", "INT", BUDGETS)] = None
    """Pairs of STS-B whose first text is attacked."""
    num_steps: Annotated[int | None, by_budget("num_steps", "INT", BUDGETS)] = None
    """Steps of projected gradient descent."""
    num_draws: Annotated[int | None, by_budget("num_draws", "INT", BUDGETS)] = None
    """Independent noise draws."""
    radii: Annotated[tuple[float, ...] | None, by_budget("radii", "FLOAT ...", BUDGETS)] = None
    """Radii of the attacks, in units of the root mean square norm of STS-B's token vectors."""
    snr_db: Annotated[tuple[float, ...] | None, by_budget("snr_db", "FLOAT ...", BUDGETS)] = None
    """Signal-to-noise ratios in dB."""


def run(config: Config) -> Path:
    """Measures everything and writes the page; see `pipeline.start` and `attacked` for errors."""
    budget, encoder = pipeline.start(config, BUDGETS)
    table, reported, ids = encoder.table, {}, {}
    for task in TASKS:
        reported[task] = reported_rows(task, data_dir=encoder.data_dir)
        texts = [text for each in reported[task] for text in each.texts[0]]
        ids[task] = pipeline.encoded(texts, encoder.tokens)
    unit = pipeline.rms_norm(table[np.concatenate(ids["stsb"])])
    reader = attacks.reader_of(encoder.model, table, pipeline.training_prior(encoder, "stsb"))
    sides = [ids["stsb"][side::2] for side in (0, 1)]
    lengths = np.array([max(map(len, pair)) for pair in zip(*sides, strict=True)])
    short = np.flatnonzero(lengths <= MAX_TOKENS)
    count = min(budget.num_pairs, len(short))
    picks = short[np.linspace(0, len(short) - 1, count).astype(int)]
    labels = np.array([reported["stsb"][n].label for n in picks])
    first, second = ([side[n] for n in picks] for side in sides)
    batch = attacks.batch_of(reader, first, second, labels, unit)
    job = partial(pipeline.job, task="stsb", site="token", seed=0)
    jobs = [
        job("certified radii", partial(certified, ids, reader.radius / unit, budget.radii)),
        job("vocabulary", partial(of_vocabulary, reader, unit, budget.snr_db)),
        *(job(f"radius {each:g}", partial(attacked, reader, batch, each, budget.num_steps))
          for each in budget.radii),
        *(job(pipeline.decibels(db), partial(under_noise, reader, batch, db, budget.num_draws))
          for db in budget.snr_db),
    ]  # fmt: skip
    return fill("memory-certificates", config, jobs, page, plan=encoder.plan)


def certified(
    texts: Mapping[str, Sequence[np.ndarray]], radius: np.ndarray, attacked: Sequence[float] = ()
) -> Rows:
    """Returns the share of texts whose tokens all have a larger certified radius, by task, radius.

    Radii are in RMS norms, and are multiples of 0.02, up to 0.6 or beyond the largest attacked one.
    """
    count = math.ceil(round(50 * max([0.6, *attacked]), 6))
    shared = {"model": "nearest", "metric": "certified", "corruption": "perturbation"}
    rows = []
    for task, ids in texts.items():
        least = np.array([radius[text].min() for text in ids])
        for level in (number / 50 for number in range(1, count + 1)):
            share = 100 * float(np.mean(level < least))
            row = {"task": task, "level": level, "score": share, "num_examples": len(ids)}
            rows.append({**shared, **row})
    return rows


def separations(table: np.ndarray) -> np.ndarray:
    r"""Returns each vector's $\|e_v\|^2 - \max_{w \neq v} \langle e_v, e_w \rangle$."""
    parts = []
    for start in range(0, len(table), 2048):
        products = table[start : start + 2048] @ table.T
        places = np.arange(len(products)), start + np.arange(len(products))
        own = products[places]
        products[places] = -np.inf
        parts.append(own - products.max(axis=1))
    return np.concatenate(parts)


def basins(table: np.ndarray, separation: np.ndarray, *, beta: float) -> tuple[np.ndarray, float]:
    r"""Returns where the theorem on basins applies, and the radius of its basins.

    Vectors with a separation of at least

    $$\frac{2}{\beta N} + \frac{1}{\beta} \log\left(2 (N - 1) N \beta M^2\right)$$

    have a fixed point of the Hopfield update within $1 / (\beta N M)$, and updates that start there
    converge to it. N is the number of vectors, M the largest norm; the update has no prior.

    References:
        Ramsauer et al. (2021), Hopfield Networks is All You Need, appendix.
    """
    count, largest = len(table), float(np.linalg.norm(table, axis=1).max())
    least = 2 / (beta * count) + np.log(2 * (count - 1) * count * beta * largest**2) / beta
    return separation >= least, 1 / (beta * count * largest)


def of_vocabulary(reader: Reader, unit: float, levels: Sequence[float]) -> Rows:
    """Returns the median certified radius, and at each SNR what the theorem on basins guarantees.

    That is the share of the vocabulary with a basin, and the radius of the basins.
    """
    table, shared = reader.table, {"num_examples": len(reader.table)}
    median, separation = float(np.median(reader.radius)) / unit, separations(table)
    rows = [{"model": "nearest", "metric": "half distance", "corruption": "perturbation",
             "score": median, **shared}]  # fmt: skip
    for db in levels:
        level = pipeline.noise_level(db)
        sigma = unit * level / np.sqrt(table.shape[1])
        well, radius = basins(table, separation, beta=float(sigma**-2))
        at = {"model": "theorem", "corruption": "gaussian", "level": level, "snr_db": db}
        for metric, value in ("well separated", 100 * np.mean(well)), ("basin", radius / unit):
            rows.append({**at, "metric": metric, "score": float(value), **shared})
    return rows


def attacked(reader: Reader, batch: Batch, radius: float, num_steps: int) -> Rows:
    """Returns each system's score under the worst attack, and checks the certificate.

    Raises:
        ArithmeticError: An attack inside the certified radius changed a token.
    """
    size, clean, labels = radius * batch.unit, reader.table[batch.ids], batch.labels
    read = attacks.retrieved(reader, attacks.attacks(reader, batch, size, num_steps), batch.mask)
    # Room for the rounding of the projection.
    inside = batch.mask & (size * (1 + 1e-4) < reader.radius[batch.ids])
    if np.any(inside & (read["nearest"] != clean).any(axis=-1)):
        raise ArithmeticError("an attack inside the certified radius changed a token")
    whole = np.all(inside | ~batch.mask, axis=1)
    rows: Rows = [
        {"model": "nearest", "metric": "tokens inside", "score": inside.sum()},
        {"model": "nearest", "metric": "texts inside", "score": whole.sum()},
    ]
    for system, attempts in {"clean": [clean], **{each: read[each] for each in SYSTEMS}}.items():
        reached = np.array([attacks.cosines(reader, batch, each) for each in attempts])
        worst = batch.sign * np.max(batch.sign * reached, axis=0)
        value = pipeline.interval(
            len(labels), lambda rows, worst=worst: pipeline.score("stsb", worst[rows], labels[rows])
        )
        rows.append({"model": system, "metric": "score", **value})
    shared = {"corruption": "attack", "level": radius, "num_examples": len(labels)}
    return [{**row, **shared} for row in rows]


def under_noise(reader: Reader, batch: Batch, db: float, num_draws: int) -> Rows:
    """Returns how often texts are recovered exactly under Gaussian noise, and what is guaranteed.

    The signal-to-noise ratio, in dB, is that of all texts together.
    """
    ids, mask = batch.ids, batch.mask
    clean = reader.table[ids]
    goal = np.asarray(reader.output(clean, mask))
    right, agreement, sigma = [], {system: [] for system in SYSTEMS}, 0.0
    for seed in range(num_draws):
        noisy, sigmas = pipeline.add_noise([clean[mask]], db, protocol="matched", seed=seed)
        vectors, sigma = clean.copy(), float(sigmas[0])
        vectors[mask] = noisy
        read = attacks.retrieved(reader, vectors, mask, sigma)
        right.append((read["known"] == clean).all(axis=(1, 2)))
        for system in SYSTEMS:
            agreement[system].append(np.sum(reader.output(read[system], mask) * goal, axis=1))
    unique, home = np.unique(ids[mask], return_inverse=True)
    text = np.nonzero(mask)[0]
    table, log_prior, index = map(jnp.asarray, (reader.table, reader.log_prior, unique))
    rates, bounds = (
        np.asarray(function(table, sigma=sigma, log_prior=log_prior, index=index))
        for function in (recovery_rate, recovery_bound)
    )
    errors = np.bincount(text, 1 - bounds[home])
    logs = np.bincount(text, np.log(np.maximum(rates[home], 1e-300)))
    shared = {"corruption": "gaussian", "level": pipeline.noise_level(db), "snr_db": db,
              "num_examples": len(ids)}  # fmt: skip
    values = {
        ("known", "unchanged"): 100 * np.mean(right, axis=0),
        ("known", "predicted"): 100 * np.exp(logs),
        ("known", "bound"): 100 * np.clip(1 - errors, 0, 1),
    } | {(system, "agreement"): np.mean(each, axis=0) for system, each in agreement.items()}
    rows = []
    for (system, metric), each in values.items():
        value = pipeline.interval(len(each), lambda texts, each=each: each[texts].mean())
        rows.append({"model": system, "metric": metric, **shared, **value})
    return rows


def page(folder: Path) -> Page:
    """Returns the page of a run."""
    frame, radius = tidy.read(folder), "radius / RMS norm of a token"
    frame = frame.assign(
        mean=frame.score, line=frame.model.where(frame.metric != "certified", frame.task)
    )
    kinds = frame.metric.map(METRICS)
    frame["column"] = kinds + (": " + frame.line.map(TITLES)).where(frame.metric.isin(BY_LINE), "")
    scores = frame[(frame.metric == "score") & (frame.model != "clean")]
    certified = frame[frame.metric == "certified"]
    # Measured at steps of 0.02, rounded up here.
    steps = {each: certified.level[certified.level >= each].min() for each in scores.level.unique()}
    rows = [certified[certified.level == step].assign(level=each) for each, step in steps.items()]
    rows = pd.concat([*rows, scores])
    panels = {
        "certified": Panel("Nearest token: certified texts", radius, "texts, %"),
        "score": Panel("Strongest attack, STS-B", radius, pipeline.SCORES["stsb"]),
        "unchanged": Panel("Texts recovered exactly", SNR, "texts, %"),
        "agreement": Panel("Agreement with the clean output", SNR, "cosine"),
    }
    clean = frame[frame.model == "clean"].head(1).assign(level=0.0)
    drawn = pd.concat([frame, *(clean.assign(line=system) for system in SYSTEMS)])
    drawn = drawn[drawn.metric.isin([*panels, *BOUNDS]) & (drawn.line != "clean")]
    drawn = drawn.assign(
        panel=drawn.metric.replace(dict.fromkeys(BOUNDS, "unchanged")),
        line=drawn.line.where(~drawn.metric.isin(["unchanged", *BOUNDS]), drawn.metric),
        x=drawn.snr_db.fillna(drawn.level),
        formula=drawn.score.where(drawn.metric.isin(["certified", *BOUNDS])),
    )
    drawn["mean"] = drawn["mean"].where(drawn.formula.isna())
    return Page(
        title="Certified radius of the nearest-token decoder",
        pictures={
            "certificates": report.panels(
                "Certified texts, attacks, and noise", drawn, specs=panels,
                col="panel", x="x", hue="line", titles=TITLES | METRICS,
            )
        },
        tables=[
            pipeline.grid(rows.assign(radius=rows.level.map("{:g}".format)), "radius", "column",
                          "Certified texts, and score under attack"),
            pipeline.grid(frame[frame.snr_db.notna()], "snr_db", "column",
                          "Texts and outputs under Gaussian noise",
                          cell=lambda row: f"{row['mean']:.0e}" if row.metric == "basin" else
                          report.number(row["mean"], 3 if row.metric == "agreement" else 1)),
        ],
    )  # fmt: skip
