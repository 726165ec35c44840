"""What does retrieval from the vocabulary guarantee, against an adversary and against noise?

Claims: a perturbation of each token's vector below half the distance to the nearest other vector is
undone exactly by the nearest-token decoder (`hopfax.hopfield.certified_radius`); under Gaussian
noise, a text is recovered exactly at least as often as the union bound says (`recovery_bound`).

Command: `python -m experiments memory-certificates --pretrained FOLDER --data-dir DIR`; four
minutes on two cores for six layers of width 384.

Expected: no attack changes the output inside the certified radius.

All systems get all attacks of `experiments.memory.attacks`, on the first texts of pairs, and each
pair counts with the worst one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import jax.numpy as jnp
import numpy as np

from experiments import report, tidy
from experiments.figures import SNR, Panel
from experiments.memory import attacks, pipeline
from experiments.memory.attacks import MAX_TOKENS, Batch, Reader
from experiments.memory.pipeline import TITLES, Budget, Rows
from experiments.report import Page
from experiments.runner import fill
from experiments.settings import Shared, by_budget
from hopfax.data import task_rows
from hopfax.hopfield import recovery_bound

REPRODUCES = "Not in the papers: certificates of retrieval"
TASKS = ("stsb", "mrpc", "sst2")
SYSTEMS = ("none", "nearest", "memory")
LINES = TITLES | {"clean": "no attack", "unchanged": "measured", "bound": "union bound"}
GRID = tuple(number / 50 for number in range(1, 31))  # certified radii
LEVELS = (6.0, 0.0, -4.0, -6.0, -8.0, -10.0, -12.0, -14.0, -20.0)
BUDGETS = {
    "smoke": Budget(10, 1, (-8.0,), 2, (0.15,)),
    "laptop": Budget(32, 2, LEVELS, 6, (0.05, 0.15, 0.25, 0.35, 0.5)),
    "paper": Budget(500, 10, LEVELS, 40, (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6)),
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
        reported[task] = task_rows(task, "test", data_dir=encoder.data_dir)
        texts = [text for each in reported[task] for text in each.texts[0]]
        ids[task] = pipeline.encoded(texts, encoder.tokens)
    unit = pipeline.rms_norm(table[np.concatenate(ids["stsb"])])
    reader = attacks.reader_of(encoder.model, table, pipeline.training_prior(encoder, "stsb"))
    sides = [ids["stsb"][side::2] for side in (0, 1)]
    short = np.flatnonzero([max(map(len, pair)) <= MAX_TOKENS for pair in zip(*sides, strict=True)])
    count = min(budget.num_pairs, len(short))
    picks = short[np.linspace(0, len(short) - 1, count).astype(int)]
    labels = np.array([reported["stsb"][n].label for n in picks])
    first, second = ([side[n] for n in picks] for side in sides)
    batch = attacks.batch_of(reader, first, second, labels, unit)
    job = partial(pipeline.job, task="stsb", site="token", seed=0)
    jobs = [
        job("certified radii", partial(certified, ids, reader.radius / unit)),
        *(job(f"radius {each:g}", partial(attacked, reader, batch, each, budget.num_steps))
          for each in budget.radii),
        *(job(pipeline.decibels(db), partial(under_noise, reader, batch, db, budget.num_draws))
          for db in budget.snr_db),
    ]  # fmt: skip
    return fill("memory-certificates", config, jobs, page, plan=encoder.plan)


def certified(texts: Mapping[str, Sequence[np.ndarray]], radius: np.ndarray) -> Rows:
    """Returns the share of texts whose tokens all have a larger certified radius, by radius."""
    shared = {"model": "nearest", "metric": "certified", "corruption": "perturbation"}
    rows = []
    for task, ids in texts.items():
        least = np.array([radius[text].min() for text in ids])
        at = {**shared, "task": task, "num_examples": len(ids)}
        rows += [{**at, "level": level, "score": 100 * np.mean(level < least)} for level in GRID]
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
    rows: Rows = []
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
    ids, text = batch.ids[batch.mask], np.nonzero(batch.mask)[0]
    right, sigma = [], np.zeros(0)
    for seed in range(num_draws):
        noisy, sigma = pipeline.add_noise([reader.table[ids]], db, protocol="matched", seed=seed)
        _, tokens = pipeline.in_batches(reader.denoise, noisy, sigma)
        right.append(np.bincount(text, tokens["known"] != ids) == 0)
    unique, home = np.unique(ids, return_inverse=True)
    table, log_prior, index = map(jnp.asarray, (reader.table, reader.log_prior, unique))
    bounds = recovery_bound(table, sigma=float(sigma[0]), log_prior=log_prior, index=index)
    errors = np.bincount(text, 1 - np.asarray(bounds)[home])
    shared = {"model": "known", "corruption": "gaussian", "level": pipeline.noise_level(db),
              "snr_db": db, "num_examples": len(errors)}  # fmt: skip
    values = {"unchanged": np.mean(right, axis=0), "bound": np.clip(1 - errors, 0, 1)}
    rows: Rows = []
    for metric, each in values.items():
        value = pipeline.interval(len(each), lambda texts, each=each: 100 * each[texts].mean())
        rows.append({"metric": metric, **shared, **value})
    return rows


def page(folder: Path) -> Page:
    """Returns the page of a run."""
    frame, radius = tidy.read(folder), "radius / RMS norm of a token"
    curves = frame.metric.isin(["certified", "bound"])
    frame = frame.assign(
        panel=frame.metric.replace("bound", "unchanged"),
        line=frame.model.mask(curves, frame.task).mask(frame.snr_db.notna(), frame.metric),
        x=frame.snr_db.fillna(frame.level),
        formula=frame.score.where(curves),
        mean=frame.score.mask(curves),
    )
    scores = frame[frame.metric == "score"]
    panels = {
        "certified": Panel("Nearest token: certified texts", radius, "texts, %"),
        "score": Panel("Strongest attack, STS-B", radius, pipeline.SCORES["stsb"]),
        "unchanged": Panel("Texts recovered exactly", SNR, "texts, %"),
    }
    return Page(
        title="Certified radius of the nearest-token decoder",
        pictures={
            "certificates": report.panels(
                "Certified texts, attacks, and noise", frame, specs=panels,
                col="panel", x="x", hue="line", titles=LINES,
            )
        },
        tables=[
            report.grid(scores.assign(radius=scores.level.map("{:g}".format)), "radius", "model",
                          "Score under the strongest attack, by radius",
                          cell=report.bracketed, titles=LINES)
        ],
    )  # fmt: skip
