"""Does Robertha's lead under noise persist at larger sizes, up to BERT-base?

Paper: Podasca and Das (2026), Table 5. Claim: at σ = 2 Robertha-large, of BERT-base's 110 million
parameters, is 4 to 46 points above BERT-base on CoLA, MRPC, WNLI and BoolQ.

Command: `python -m experiments scaling` (two small sizes on an embedded task), or Table 5 on a GPU:
`python -m experiments scaling --budget paper --size tiny base --task cola mrpc wnli boolq
--data-dir DIR --vocab DIR/vocab.txt`.

Expected: no gap at small sizes with noise at the same site; the large ones have not been measured.

From `tiny` on, the sizes are those of Google's BERT miniatures (Turc et al. 2019). Each has a
TinyBERT, which at `base` is BERT-base, and a Robertha, which at `base` is Robertha-large.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from tyro.conf import Fixed, SuppressFixed

from experiments.models import VARIANTS, with_flags
from experiments.settings import Flags, Noise, Training, by_budget, resolved

if TYPE_CHECKING:
    from experiments.report import Page

REPRODUCES = "Robertha, Table 5: BERT-base against Robertha-large at σ = 2, and smaller sizes"


class Size(NamedTuple):
    """Size of an encoder. Heads have width 64; feed-forward layers are four times the width."""

    num_layers: int
    width: int


SIZES = {
    "smallest": Size(1, 64),
    "tiny": Size(2, 128),
    "mini": Size(4, 256),
    "small": Size(4, 512),
    "medium": Size(8, 512),
    "base": Size(12, 768),
}
KINDS = ("tinybert", "robertha")
PAPER_NAMES = {
    "tinybert-tiny": "TinyBERT",
    "robertha-tiny": "Robertha",
    "tinybert-base": "BERT-base (110M)",
    "robertha-base": "Robertha-large (110M)",
}


SizeName = Literal["smallest", "tiny", "mini", "small", "medium", "base"]
TWO = {"size": ("tiny", "mini")}
DEFAULTS = {"smoke": {"size": ("smallest",)}, "laptop": TWO, "paper": TWO}


@dataclass(frozen=True, kw_only=True)
class SizedTraining(Training):
    """Training of the models; `--size` sets their sizes."""

    width: SuppressFixed[Fixed[int | None]] = None
    num_layers: SuppressFixed[Fixed[int | None]] = None


@dataclass(frozen=True, kw_only=True)
class Config(Flags):
    """Which sizes, and on which tasks."""

    training: SizedTraining = SizedTraining()
    size: Annotated[tuple[SizeName, ...] | None, by_budget("size", "NAME ...", DEFAULTS)] = None
    """Sizes of the encoders: smallest, tiny, mini, small, medium, base."""
    noise: Noise = Noise(levels=(2.0,))
    remat_from: int = 8
    """Number of layers from which blocks are recomputed in the backward pass, to save memory."""


def run(config: Config) -> Path:
    """Trains and tests missing models, then writes the page; returns the run's folder."""
    from experiments.robertha.robustness import run_models

    config, models = resolved(config, DEFAULTS), {}
    for size in config.size or ():
        shape = SIZES[size]
        for kind in KINDS:
            model = with_flags(
                VARIANTS[kind],
                num_layers=shape.num_layers,
                width=shape.width,
                ff_width=4 * shape.width,
                num_heads=shape.width // 64,
                remat=shape.num_layers >= config.remat_from,
            )
            models[f"{kind}-{size}"] = replace(model, title=f"{model.title}, {size}")
    return run_models("scaling", config, models, page)


def page(folder: Path) -> Page:
    """Returns the page of a run or of a folder of published results."""
    import pandas as pd

    from experiments import figures, report, tidy
    from experiments.robertha import gaussian
    from experiments.robertha.paper import paper_score

    frame = tidy.read(folder)
    scores = tidy.scores(frame)
    kinds = scores.model.str.rpartition("-")
    scores = scores.assign(model=kinds[0], size=kinds[2])
    titles = gaussian.titles(VARIANTS, scores.task.unique())
    parts = [
        gaussian.differences(rows.drop(columns="size")).assign(size=size)
        for size, rows in scores.groupby("size", sort=False)
    ]
    table = pd.concat(parts, ignore_index=True)
    papers = []
    for _, row in table.iterrows():
        named = [PAPER_NAMES.get(f"{kind}-{row['size']}", "") for kind in KINDS]
        theirs, ours = (paper_score(titles[row.task], name, row.level) for name in named)
        papers.append(ours - theirs if row.protocol in ("", "sigma") else float("nan"))
    table = table.assign(paper=papers)
    noisy = table[table.panel != "clean"]
    strongest = table[(table.panel == "clean") | (table.level == noisy.level.max())]
    several = scores.task.nunique() > 1 or noisy.level.nunique() > 1
    noisy = noisy.assign(
        label=[
            f"{titles[row.task]}, {row['size']}, σ = {row.level:g}" if several else row["size"]
            for _, row in noisy.iterrows()
        ]
    )
    names = report.joined(titles[name] for name in scores.task.unique())
    answer = (
        f"**{gaussian.finding(noisy)} of Robertha over the TinyBERT of its size under noise on "
        f"{names}**: of {len(noisy)} intervals, {int((noisy.low > 0).sum())} lie above zero and "
        f"{int((noisy.high < 0).sum())} below."
    )
    return report.Page(
        title=f"Scaling: {names}",
        answer=answer,
        pictures={
            "scaling": report.Picture(
                partial(
                    figures.forest,
                    noisy,
                    label="label",
                    col="panel",
                    xlabel="Robertha minus TinyBERT, points",
                ),
                f"{names}: Robertha minus the TinyBERT of its size under noise",
            )
        },
        tables=[
            report.pivot(
                strongest[strongest.task == task],
                index="size",
                columns="panel",
                caption=f"{titles[task]}: Robertha minus TinyBERT, "
                f"{gaussian.noise_label('sigma', noisy.level.max())} or the same SNR.",
            )
            for task in table.task.unique()
        ],
        notes=[report.sizes(frame, titles), *gaussian.NOTES],
    )
