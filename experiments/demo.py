"""A first picture in a minute: how noise hurts a classifier, and how memory undoes it.

Command: `python -m experiments demo`. Trains a small TinyBERT (three seeds) on the synthetic task
`sentiment`, then adds Gaussian noise to its token embeddings and scores it, without and with memory:
one Hopfield update over the vocabulary (`hopfax.nn.recall`).

Expected: with memory the score stays until shortly above the Shannon limit, below which no method
can tell which token was sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments import figures, gaussian, report, runner, tidy
from experiments.report import Page

if TYPE_CHECKING:
    from experiments.models import Trainable
    from hopfax.data import TaskData

REPRODUCES = "A first picture, in a minute: noise on token embeddings, and memory"
TASK, MODEL, SEEDS = "sentiment", "tinybert-mean", (23, 42, 77)
SIZES: dict[str, Any] = {"width": 64, "ff_width": 256, "num_layers": 1, "max_length": 16}
TRAINING: dict[str, Any] = {"epochs": 8, "patience": 8, "learning_rate": 3e-3, "batch_size": 64}
TRAIN_SIZE, SNR_DB = 8000, range(12, -19, -3)
# For the estimate: compilations, of which one is measured, and seconds of everything else.
PROGRAMS, OTHER = 4.0, 5.0
TITLES = {"none": "noisy embeddings", "memory": "noisy embeddings + memory", "clean": "no noise"}


@dataclass(frozen=True, kw_only=True)
class Config:
    """The demo has no options of its own."""

    runs: str = "runs"
    """Folder of all runs."""


def run(config: Config) -> Path:
    """Trains and tests the model, then writes the page; returns the run's folder."""
    from experiments import cells, conditions, models
    from hopfax.data import load_task

    variant, root = models.variant(MODEL), Path(config.runs) / "cells"
    data = load_task(TASK, train_size=TRAIN_SIZE, max_length=SIZES["max_length"])
    settings: dict[str, Any] = {"data": cells.digest(data), "model": variant.settings(), **TRAINING}
    spec = cells.Spec(task=TASK, sizes=SIZES, seeds=SEEDS, **settings)
    if not (root / spec.id).exists():
        built = models.build(variant, data.spec, vocab_size=data.vocab_size, **SIZES)
        print(f"about {seconds(built, data):.0f} seconds on this machine", flush=True)
    noise: dict[str, Any] = {"site": "token", "protocol": "matched"}
    noisy = [conditions.Gaussian(level=10 ** (-snr_db / 20), **noise) for snr_db in SNR_DB]

    def measure(on_progress: Callable[..., None]) -> Mapping[str, runner.Rows]:
        cell = cells.train(
            spec, variant, data, root=root,
            on_progress=lambda share, **shown: on_progress(0.7 * share, **shown),
        )  # fmt: skip
        tested = {"none": cell, "memory": cells.with_denoiser(cell, "memory")}
        tests, rows = list(product(tested, [conditions.Gaussian(), *noisy])), []
        for count, (name, condition) in enumerate(tests, 1):
            tests_of = conditions.rows(tested[name], condition, model=MODEL)
            rows += [{**row, "denoiser": name} for row in tests_of]
            on_progress(0.7 + 0.3 * count / len(tests))
        return {"results": rows}

    return runner.fill("demo", config, [runner.Job(variant.title, measure, spec.id)], page)


def seconds(built: Trainable, data: TaskData) -> float:
    """Returns about how long a run takes, from one training step that is compiled and timed."""
    import jax

    from hopfax.train.objectives import Batch

    size, steps = TRAINING["batch_size"], TRAINING["epochs"] * TRAIN_SIZE / TRAINING["batch_size"]
    rows = data.train
    batch = Batch(*(part[:size] for part in rows[:3]), np.ones(size, np.float32))
    keys = jax.random.split(jax.random.key(0), len(SEEDS))
    params, start = jax.vmap(built.model.init)(keys), time.monotonic()
    step = jax.vmap(jax.grad(built.objective, has_aux=True), in_axes=(0, None, 0))
    compiled = jax.jit(step).lower(params, batch, keys).compile()
    times = [time.monotonic()]
    for _ in range(10):
        jax.block_until_ready(compiled(params, batch, keys))
        times.append(time.monotonic())
    return PROGRAMS * (times[0] - start) + steps * float(np.median(np.diff(times))) + OTHER


def page(folder: Path) -> Page:
    """Returns the page of a run: score against noise, without and with memory."""
    frame = tidy.read(folder)
    clean, noisy = (part for _, part in tidy.scores(frame).groupby(tidy.scores(frame).level > 0))
    noisy = noisy.assign(snr_db=np.round(-20 * np.log10(noisy.level)))
    known = {name: frame.score[frame.metric == metric].mean()
             for name, metric in (("limit", "capacity_snr_db"), ("constant", "constant"))}  # fmt: skip
    lines = tidy.summarize(noisy).assign(clean=clean.score.mean(), **known)
    labels = [gaussian.noise_label("matched", level) for level in lines.level]
    axes = {"xlabel": figures.SNR, "ylabel": "accuracy, %"}
    picture = report.facets(
        "Accuracy by noise, 95 % bands", lines, x="snr_db", hue="denoiser", titles=TITLES, **axes
    )
    cells = lines.assign(noise=labels).set_index(["noise", "denoiser"])
    names = list(lines.denoiser.unique())
    table = [
        [noise, *(report.bracketed(cells.loc[(noise, name)]) for name in names)]
        for noise in dict.fromkeys(labels)
    ]
    head = ["SNR", *(TITLES[name] for name in names)]
    return Page(
        "Noise on token embeddings, and memory",
        pictures={"demo": picture},
        tables=[report.Table(head, table, "Accuracy [95 % interval over seeds]")],
        explorer=report.Explorer(
            lines.assign(noise=labels), x="noise", hue="denoiser", menus={"task": "Task"},
            titles=TITLES, xlabel="noise level",
        ),
    )  # fmt: skip
