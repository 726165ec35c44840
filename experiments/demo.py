"""A first picture in a minute: noise that breaks a classifier, and memory that undoes it.

Command: `python -m experiments demo`. Trains a small TinyBERT (three seeds) on the synthetic task
`sentiment`, then scores it under Gaussian noise on its token embeddings: as they are, and with
memory, which is one Hopfield update over the vocabulary (`hopfax.nn.recall`).

Expected: with memory the score falls at noise that is several dB stronger. Below the Shannon limit,
no method can tell which token was sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments import figures, gaussian, report, runner, tidy

REPRODUCES = "A first picture in a minute: noise on token embeddings, and memory"
TASK, MODEL, SEEDS, TRAIN_SIZE, TEST_SIZE = "sentiment", "tinybert-mean", (23, 42, 77), 6000, 250
SIZES: dict[str, Any] = {"width": 64, "ff_width": 64, "num_layers": 1, "max_length": 20}
TRAINING: dict[str, Any] = {"epochs": 6, "patience": 6, "learning_rate": 3e-3, "batch_size": 32}
SNR_DB = range(9, -19, -3)
STARTS = 20.0  # the run takes so many times as long as compiling and drawing initial weights
TITLES = {"none": "noisy embeddings", "memory": "with memory", "clean": "without noise"}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Flags of the demo."""

    runs: str = "runs"
    """Folder of all runs."""


def run(config: Config) -> Path:
    """Trains and tests the model, then writes the page; returns the run's folder."""
    import jax

    from experiments import cells, conditions, models
    from hopfax.data import Encoded, load_task, spread

    variant, root = models.variant(MODEL), Path(config.runs) / "cells"
    data = load_task(TASK, train_size=TRAIN_SIZE, max_length=SIZES["max_length"])
    data = data._replace(test=Encoded(*(spread(part, TEST_SIZE) for part in data.test)))
    known = {"data": cells.digest(data), "model": variant.settings(), "sizes": SIZES, **TRAINING}
    spec = cells.Spec(task=TASK, seeds=SEEDS, **known)
    if not (root / spec.id).exists():
        model = models.build(variant, data.spec, vocab_size=data.vocab_size, **SIZES).model
        start = time.monotonic()
        jax.block_until_ready(jax.jit(model.init)(jax.random.key(0)))
        print(f"about {STARTS * (time.monotonic() - start):.0f} seconds", flush=True)
    levels = [10 ** (-snr_db / 20) for snr_db in SNR_DB]
    noise: dict[str, Any] = {"site": "token", "protocol": "matched"}
    tests = [conditions.Gaussian(), *(conditions.Gaussian(level=x, **noise) for x in levels)]

    def job(denoiser: str) -> runner.Job:
        def measure(on_progress: Callable[..., None]) -> Mapping[str, runner.Rows]:
            half = lambda share, **shown: on_progress(share / 2, **shown)  # noqa: E731
            cell = cells.train(spec, variant, data, root=root, on_progress=half)
            cell, rows = cells.with_denoiser(cell, denoiser), []
            for count, test in enumerate(tests, 1):
                tested = conditions.rows(cell, test, model=MODEL)
                rows += [{**row, "denoiser": denoiser} for row in tested]
                on_progress(0.5 + count / len(tests) / 2)
            return {"results": rows}

        return runner.Job(TITLES[denoiser], measure)

    return runner.fill("demo", config, [job("none"), job("memory")], page)


def page(folder: Path) -> report.Page:
    """Returns the page of a run: accuracy by SNR, without and with memory."""
    frame = tidy.read(folder)
    scores, known = tidy.scores(frame), frame.groupby("metric").score.mean()
    lines = tidy.summarize(scores[scores.level > 0]).assign(
        clean=scores.score[scores.level == 0].mean(),
        constant=known["constant"],
        limit=known["capacity_snr_db"],
    )
    lines["snr_db"] = np.round(-20 * np.log10(lines.level))
    lines["noise"] = [gaussian.noise_label("matched", level) for level in lines.level]
    style: dict[str, Any] = {"hue": "denoiser", "titles": TITLES}
    axes = {"xlabel": figures.SNR, "ylabel": "accuracy, %"}
    picture = report.facets("Accuracy by noise, 95 % bands", lines, x="snr_db", **style, **axes)
    parts = {name: rows.set_index("noise") for name, rows in lines.groupby("denoiser", sort=False)}
    cells = {name: rows.apply(report.bracketed, axis=1) for name, rows in parts.items()}
    table = [(noise, *(each[noise] for each in cells.values())) for noise in lines.noise.unique()]
    head = ["SNR", *(TITLES[str(name)] for name in cells)]
    return report.Page(
        "Noise on token embeddings, with and without memory",
        pictures={"demo": picture},
        tables=[report.Table(head, table, "Accuracy, 95 % intervals over seeds")],
        explorer=report.Explorer(lines, x="noise", menus={"task": "Task"}, xlabel="noise", **style),
    )
