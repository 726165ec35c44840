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
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import pandas as pd
from tyro.conf import Fixed, SuppressFixed

from experiments import gaussian, report
from experiments.models import VARIANTS, with_flags
from experiments.paper import paper_lead
from experiments.report import Page
from experiments.robertha.robustness import run_models
from experiments.settings import Flags, Noise, Training, by_budget, resolved

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
REMAT_FROM = 8  # layers from which blocks are recomputed in the backward pass, to save memory
PAPER_NAMES = {
    "tiny": ("Robertha", "TinyBERT"),
    "base": ("Robertha-large (110M)", "BERT-base (110M)"),
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


def run(config: Config) -> Path:
    """Trains and tests missing models, then writes the page; returns the run's folder."""
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
                remat=shape.num_layers >= REMAT_FROM,
            )
            models[f"{kind}-{size}"] = replace(model, title=f"{model.title}, {size}")
    return run_models("scaling", config, models, page)


def page(folder: Path) -> Page:
    """Returns the page of a run or of a folder of published results."""
    measured = gaussian.read(folder)
    _, scores, titles, names, notes = measured
    unlearned = gaussian.not_learned(scores, gaussian.constants(measured.frame))
    kinds = scores.model.str.rpartition("-")
    sizes = {
        "-".join(each): f"{titles[each[0]]}, {each[1]}"
        for each in zip(kinds[0], kinds[2], strict=True)
    }
    notes = [*gaussian.unlearned_note(scores, unlearned, titles | sizes), *notes]
    scores = scores.assign(model=kinds[0], size=kinds[2])
    table = pd.concat(
        gaussian.differences(rows.drop(columns="size")).assign(size=size)
        for size, rows in scores.groupby("size", sort=False)
    )
    table["paper"] = [
        paper_lead(titles[row.task], *PAPER_NAMES.get(row["size"], ("", "")), row.level)
        if row.protocol in ("", "sigma")
        else float("nan")
        for _, row in table.iterrows()
    ]
    noisy = table[table.panel != "clean"]
    level = noisy.level.max()
    strongest = table[(table.panel == "clean") | (table.level == level)]
    several = scores.task.nunique() > 1 or noisy.level.nunique() > 1
    noisy = noisy.assign(
        label=[
            f"{titles[row.task]}, {row['size']}, σ = {row.level:g}" if several else row["size"]
            for _, row in noisy.iterrows()
        ]
    )
    known = noisy[noisy.paper.notna()].drop_duplicates(["task", "size", "level"])
    parts = (
        f"{report.signed(r.paper)} ({r['size']}, σ = {r.level:g})" for _, r in known.iterrows()
    )
    paper = f" The paper reports {report.joined(parts)}." if len(known) else ""
    at = f"at σ = {level:g} or the same SNR ({gaussian.noise_label('matched', level)})"
    caption = (
        f"{names}: Robertha minus the TinyBERT of its size, {'under noise' if several else at}"
    )
    look = {"label": "label", "col": "panel", "xlabel": "Robertha minus TinyBERT, points"}
    return report.Page(
        title=f"Scaling: {names}",
        answer=(
            f"**Robertha against TinyBERT of the same size, under noise on {names}**: of "
            f"{noisy.low.notna().sum()} intervals, {int((noisy.low > 0).sum())} are above zero and "
            f"{int((noisy.high < 0).sum())} below.{paper}"
        ),
        pictures={"scaling": report.forest(caption, noisy, **look)},
        tables=[
            report.pivot(
                strongest[strongest.task == task],
                index="size",
                columns="panel",
                caption=f"{titles[task]}: Robertha minus TinyBERT, {at}.",
            )
            for task in table.task.unique()
        ],
        notes=notes,
    )
