"""A first picture in a minute: noise on token embeddings, and memory that removes it.

Command: `python -m experiments demo`. Trains a small TinyBERT on the synthetic task `sentiment` and
tests it with Gaussian noise on its token embeddings, as they are and after one Hopfield update over
the vocabulary (`hopfax.nn.recall`).

Expected: memory keeps the score at noise that is 6 to 9 dB stronger, and nothing does below the
Shannon limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import runner

REPRODUCES = "hopfax: noise on token embeddings, without and with memory (under a minute)"
TASK, MODEL = "sentiment", "tinybert-mean"
SIZES = {"width": 64, "ff_width": 256, "num_layers": 1, "max_length": 16}
SEEDS, EPOCHS, BATCH_SIZE, LEARNING_RATE = (23, 42, 77), 8, 64, 3e-3
TRAIN_SIZE = 8000
SNR_DB = tuple(range(12, -19, -3))
# Programs to compile, each about as long as one training step; seconds of page and checkpoints.
PROGRAMS, PAGE = 4, 3
TITLES = {"none": "noisy embeddings", "memory": "with memory: one Hopfield update"}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Nothing to choose but the folder."""

    runs: str = "runs"
    """Folder of all runs."""


def run(config: Config) -> Path:
    """Trains and tests the model, then writes the page; returns the run's folder."""
    from experiments import cells, conditions, models
    from hopfax.data import load_task

    variant = models.variant(MODEL)
    length = SIZES["max_length"]
    data = load_task(TASK, vocab_size=2000, max_length=length, train_size=TRAIN_SIZE)
    spec = cells.Spec(
        task=TASK,
        data=cells.digest(data),
        model=variant.settings(),
        sizes=SIZES,
        seeds=SEEDS,
        epochs=EPOCHS,
        patience=EPOCHS,
        learning_rate=LEARNING_RATE,
        batch_size=BATCH_SIZE,
    )
    root = Path(config.runs) / "cells"
    if not (root / spec.id).exists():
        built = models.build(variant, data.spec, vocab_size=data.vocab_size, **SIZES)
        print(f"This takes about {seconds(built, data):.0f} seconds.", flush=True)
    noisy = [
        conditions.Gaussian(site="token", protocol="matched", level=10 ** (-snr_db / 20))
        for snr_db in SNR_DB
    ]

    def measure(on_progress: Callable[..., None]) -> Mapping[str, Any]:
        def training(share: float, **shown: Any) -> None:
            on_progress(0.7 * share, **shown)

        plain = cells.train(spec, variant, data, root=root, on_progress=training)
        tested = [(each, plain if each == "none" else cells.with_denoiser(plain, each))
                  for each in TITLES]  # fmt: skip
        rows = []
        for number, condition in enumerate([conditions.Gaussian(), *noisy]):
            on_progress(0.7 + 0.3 * number / len(noisy))
            for denoiser, cell in tested:
                for row in conditions.rows(cell, condition, model=MODEL):
                    rows.append({**row, "denoiser": denoiser})
        return {"results": rows}

    return runner.fill("demo", config, [runner.Job(variant.title, measure, spec.id)], page)
