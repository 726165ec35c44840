"""A first picture in a minute."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.robertha.suites import Noisy
from experiments.settings import Data, DenoiserName, Noise, Training

if TYPE_CHECKING:
    from experiments.report import Page

TITLES = {"none": "with noise", "memory": "with noise and memory", "clean": "without noise"}


@dataclass(frozen=True, kw_only=True)
class Demo(Noisy):
    """How much noise breaks a classifier, and how much of that does memory undo?

    Command: `python -m experiments demo`. A small TinyBERT learns the synthetic task `sentiment`
    and is tested under Gaussian noise on its token embeddings, without and with memory: one
    Hopfield update over the vocabulary (`hopfax.nn.recall`).

    Expected: with memory the score falls at noise that is several dB stronger. Below the Shannon
    limit, no method can tell which token was sent.
    """

    NAME = "demo"
    REPRODUCES = "a first picture in a minute: noise on token embeddings, removed by memory"

    model: tuple[str, ...] = ("tinybert-mean",)
    denoiser: tuple[DenoiserName, ...] = ("none", "memory")
    data: Data = Data(task=("sentiment",), train_size=5000, test_size=250, max_length=20)
    training: Training = Training(
        seeds=(23, 42, 77), epochs=6, patience=6, learning_rate=3e-3, width=48, num_layers=1
    )
    noise: Noise = Noise(
        levels=tuple(10 ** (-snr_db / 20) for snr_db in (12, 6, *range(0, -16, -3))),
        sites=("token",),
        protocols=("matched",),
        noise_draws=1,
    )

    def page(self, folder: Path) -> Page:
        """Returns the page of a run: accuracy by SNR, without and with memory."""
        import numpy as np

        from experiments import figures, gaussian, report, tidy

        frame = tidy.read(folder)
        if frame.groupby("task").model.nunique().sum() > 1:
            return gaussian.page(folder)
        scores, known = tidy.scores(frame), frame.groupby("metric").score.mean()
        lines = tidy.summarize(scores[scores.level > 0])
        lines["clean"] = scores.score[scores.level == 0].mean()
        lines["constant"], lines["limit"] = known["constant"], known["capacity_snr_db"]
        lines["snr_db"] = np.round(-20 * np.log10(lines.level))
        lines["noise"] = [gaussian.noise_label("matched", level) for level in lines.level]
        style: dict[str, Any] = {"hue": "denoiser", "titles": TITLES}
        axes = {"xlabel": figures.SNR, "ylabel": "accuracy, %"}
        caption = "Accuracy by noise, 95 % bands"
        return report.Page(
            "Noise on token embeddings, and memory",
            pictures={"demo": report.facets(caption, lines, x="snr_db", **style, **axes)},
            tables=[
                report.grid(lines, "noise", "denoiser", "Accuracy", cell=report.bracketed,
                            titles=TITLES)
            ],
            explorer=report.Explorer(lines, x="noise", menus={"task": "Task"}, **style),
        )  # fmt: skip
