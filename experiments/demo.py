"""A first picture in a minute: noise that breaks a classifier, and memory that undoes it.

Command: `python -m experiments demo`. A small TinyBERT learns the synthetic task `sentiment` and is
tested under Gaussian noise on its token embeddings, without and with memory: one Hopfield update
over the vocabulary (`hopfax.nn.recall`).

Expected: with memory the score falls at noise that is several dB stronger. Below the Shannon limit,
no method can tell which token was sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from experiments import figures, gaussian, report, runner, tidy

REPRODUCES = "Noise on token embeddings, removed by memory"
TASK, MODEL, SEEDS, TRAIN_SIZE, TEST_SIZE = "sentiment", "tinybert-mean", (23, 42, 77), 5000, 250
SIZES: dict[str, Any] = {"width": 64, "ff_width": 64, "num_layers": 1, "max_length": 20}
TRAINING: dict[str, Any] = {"epochs": 6, "patience": 6, "learning_rate": 3e-3, "batch_size": 32}
SNR_DB, TRAINED = (12, 6, *range(0, -19, -3)), 0.7  # share of the time that training takes
STARTS = 28.0  # the run takes so many times as long as compiling and drawing initial weights
TITLES = {"none": "with noise", "memory": "with noise and memory", "clean": "without noise"}


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
    where: dict[str, Any] = {"sites": ["token"], "protocols": ["matched"], "noise_draws": 1}
    levels = [10 ** (-snr_db / 20) for snr_db in SNR_DB]
    tests = conditions.gaussian_grid(levels=levels, **where)

    def measure(on_progress: Callable[..., None]) -> Mapping[str, runner.Rows]:
        def training(share: float, **shown: Any) -> None:
            # The time left is measured from the second update on: the first one compiles.
            on_progress(TRAINED * share, **{"restart": share < 0.05, **shown})

        cell, rows = cells.train(spec, variant, data, root=root, on_progress=training), []
        tested = product((cell, cells.with_denoiser(cell, "memory")), tests)
        for count, (each, test) in enumerate(tested, 1):
            scored = conditions.rows(each, test, model=MODEL)
            rows += [{**row, "denoiser": each.denoiser} for row in scored]
            on_progress(TRAINED + (1 - TRAINED) * count / len(tests) / 2)
        return {"results": rows}

    return runner.fill("demo", config, [runner.Job(variant.title, measure, spec.id)], page)


def page(folder: Path) -> report.Page:
    """Returns the page of a run: accuracy by SNR, without and with memory."""
    frame = tidy.read(folder)
    scores, known = tidy.scores(frame), frame.groupby("metric").score.mean()
    lines = tidy.summarize(scores[scores.level > 0])
    lines["clean"] = scores.score[scores.level == 0].mean()
    lines["constant"], lines["limit"] = known["constant"], known["capacity_snr_db"]
    lines["snr_db"] = np.round(-20 * np.log10(lines.level))
    lines["noise"] = [gaussian.noise_label("matched", level) for level in lines.level]
    style: dict[str, Any] = {"hue": "denoiser", "titles": TITLES}
    axes = {"xlabel": figures.SNR, "ylabel": "accuracy, %"}
    picture = report.facets("Accuracy by noise, 95 % bands", lines, x="snr_db", **style, **axes)
    cells = lines.assign(cell=lines.apply(report.bracketed, axis=1)).groupby("noise", sort=False)
    table = [[str(noise), *rows.cell] for noise, rows in cells]
    head = ["SNR", *(TITLES[name] for name in lines.denoiser.unique())]
    return report.Page(
        "Noise on token embeddings, and memory",
        pictures={"demo": picture},
        tables=[report.Table(head, table, "Accuracy, 95 % intervals over seeds")],
        explorer=report.Explorer(lines, x="noise", menus={"task": "Task"}, xlabel="noise", **style),
    )
