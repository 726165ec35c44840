"""Figures of the written pages, drawn by `python -m experiments.pages` into `results/figures/`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments import figures, gaussian, tidy
from experiments.memory import language
from experiments.noise_stability import influence, theory
from experiments.pages.tables import MODELS, rows_of, table
from experiments.pages.values import claims, frame, runs, scores, shannon, smoothed, value
from experiments.paper import paper_score
from experiments.robertha import norms

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES: dict[str, Callable[[], Figure]] = {}  # by the stem of the file
TASKS = ["SST-2", "SST-2, all rows", "STS-B", "CoLA", "MRPC", "MNLI, part", "RTE after MNLI"]
ACCURACY = "accuracy on SST-2, %"
RADIUS = "perturbation / RMS norm of a token"


def drawn(function: Callable[[], Figure]) -> Callable[[], Figure]:
    """Makes the figure that a function draws one of the pages' figures, under its name."""
    FIGURES[function.__name__.replace("_", "-")] = function
    return function


@drawn
def robertha_norms() -> Figure:
    """Predictions that noise on tokens of low, high or any norm turns wrong."""
    rows = norms.intervals(pd.concat([frame("norms", run) for run in runs("norms")]), "flips")
    rows = tidy.select(rows, protocol="per-token", corruption=norms.GROUPS)
    axes: Any = {
        "xlabel": "noise on a quarter of the words",
        "ylabel": "correct predictions lost, %",
    }
    return figures.facets(rows, x="noise", hue="corruption", col="subject", **axes)


@drawn
def robertha_parts() -> Figure:
    """What the paper's parts add to a fine-tuned encoder that learns the task."""
    parts = ["iteration", "iteration, β = 4", "one update", "one update + ESR", "ESR"]
    table = tidy.select(claims(), group="part", snr_db=6, bold=True, claim=parts)
    table = tidy.ordered(tidy.ordered(table, "claim", parts), "subject", TASKS)
    return figures.forest(table, label="subject", col="claim", least=-10, xlabel="points")


@drawn
def robertha_robustness() -> Figure:
    """Scores at the same σ and at the same SNR, with the paper's."""
    panels = {
        ("token", "sigma"): "noise on the tokens, same σ",
        ("embedding", "sigma"): "noise after the LayerNorm, same σ",
        ("token", "matched"): "noise on the tokens, same SNR",
    }
    models, tables = ["tinybert", "freelb", "robertha"], []
    rows = tidy.select(scores("robustness", "sst2_models"), model=models)
    for (site, protocol), panel in panels.items():
        table = tidy.summarize(tidy.select(rows, site=["", site], protocol=["", protocol]))
        pairs = zip(table.model, table.level, strict=True)
        paper = [paper_score("SST-2", *pair) for pair in pairs] if protocol == "sigma" else np.nan
        noise = [gaussian.noise_label(protocol, level) for level in table.level]
        table = table.assign(panel=panel, noise=noise, paper=paper)
        tables.append(tidy.ordered(table.sort_values("level", kind="stable"), "model", models))
    return figures.facets(
        pd.concat(tables), x="noise", col="panel", titles=gaussian.titles([]), ylabel=ACCURACY
    )


def with_and_without(run: str, titles: dict[str, str]) -> Figure:
    """Scores on SST-2 by SNR, without and with memory; the first model's clean score as a line."""
    rows = tidy.select(scores("memory-trained", run), model=[*titles], protocol=["", "matched"])
    clean = tidy.select(rows, model=next(iter(titles)), denoiser="none", level=0.0).score.mean()
    table = tidy.summarize(rows[rows.level > 0]).sort_values("level")
    table = tidy.ordered(tidy.ordered(table, "model", [*titles]), "denoiser", ["none", "memory"])
    table = table.assign(
        snr_db=-20 * np.log10(table.level),
        clean=clean,
        limit=value("memory-trained", run, metric="capacity_snr_db")["mean"],
    )
    names = {"none": "without memory", "memory": "with memory", "clean": "no noise"} | titles
    return figures.facets(
        table, x="snr_db", col="denoiser", titles=names, xlabel=figures.SNR, ylabel=ACCURACY
    )


@drawn
def memory() -> Figure:
    """A fine-tuned encoder and its alternatives, with and without memory."""
    names = {
        "": "MiniLM",
        "-noise-trained": "MiniLM, trained with noise",
        "-freelb": "MiniLM, FreeLB",
    }
    return with_and_without(
        "minilm_sst2_full", {f"pretrained{key}": each for key, each in names.items()}
    )


@drawn
def memory_from_scratch() -> Figure:
    """Small models with and without memory."""
    models = ["tinybert", "noise-trained", "freelb", "robertha"]
    return with_and_without("sst2_baselines", {each: gaussian.titles([])[each] for each in models})


def shares(rows: pd.DataFrame, names: dict[str, str], **options: Any) -> Figure:
    """One measurement a method, by SNR or radius, with the intervals it has."""
    rows = tidy.ordered(rows[rows.model.isin(names)], "model", [*names])
    return figures.facets(rows.rename(columns={"score": "mean"}), titles=names, **options)


@drawn
def memory_priors() -> Figure:
    """Tokens recovered with several priors."""
    rows = tidy.select(frame("memory-language", "mrpc"), metric="recovered", protocol="matched")
    rows = rows.groupby(["model", "snr_db"], as_index=False)[["score", "low", "high"]].mean()
    rows = rows.assign(limit=shannon("beam", "mrpc"))
    names = {
        name: language.TITLES[name]
        for name in ("nearest", "unigram", "bigram", "greedy", "beam", "both")
    }
    return shares(rows, names, x="snr_db", xlabel=figures.SNR, ylabel="tokens recovered, %")


@drawn
def memory_attack() -> Figure:
    """Scores under the strongest attack by radius."""
    rows = tidy.select(frame("memory-certificates", "certificates"), metric="score")
    names = {"none": "no denoising", "nearest": "nearest token", "memory": "memory"}
    label = "Spearman × 100 on STS-B"
    return shares(rows.rename(columns={"level": "x"}), names, x="x", xlabel=RADIUS, ylabel=label)


@drawn
def memory_smoothing() -> Figure:
    """Shares of the texts whose label is certified, by radius, each method at its best SNR."""
    names = {
        "none": "smoothing",
        "noise-trained": "smoothing, trained with noise",
        "memory": "smoothing with memory",
    }
    return shares(smoothed()[1], names, x="x", xlabel=RADIUS, ylabel="texts certified, %")


TITLES = {
    "measured": "measured stability", "trained": "MiniLM", "random": "random weights",
    "baseline": "no regularizer", "stability_reg": "regularizer, S = 1",
    "stability_reg-negative": "regularizer, S = 0", "train_accuracy": "accuracy, training",
    "accuracy": "accuracy, validation", "train_loss": "loss, training", "loss": "loss, validation",
    "S": "noise stability", "constant": "stability of the target",
}  # fmt: skip


@drawn
def noise_stability_theory() -> Figure:
    """Closed forms and measured stability."""
    shown = {name: theory.PANELS[name] for name in ("attention", "depth")}
    drawing = theory.drawn(rows_of("theory"))
    return figures.panels(drawing, shown, col="task", x="level", hue="model", titles=TITLES)


@drawn
def noise_stability_influence() -> Figure:
    """Influence of each position on each layer; in MiniLM's random weights, the mean's."""
    rows = pd.concat(map(rows_of, ["influence"] * 2, reversed(MODELS)))
    rows = influence.with_weights(rows[rows.metric.str.startswith(influence.BAND)])
    rows = rows[rows.site == "states"].rename(columns={"score": "mean"})
    rows["band"] = rows.metric.str.removeprefix(influence.BAND).astype(int) * 100 / influence.BANDS
    rows["depth"] = 100 * rows.level / rows.groupby("run")["level"].transform("max")
    rows["of"] = rows.run.map(MODELS) + "\n" + rows.weights
    rows = rows[rows.of != "MiniLM\nrandom"]
    return figures.heat(
        rows, x="band", y="depth", row="of", col="corruption", xlabel="position, %",
        ylabel="depth, %", label="influence / mean over positions",
    )  # fmt: skip


@drawn
def noise_stability_grokking() -> Figure:
    """Accuracy, stability and losses while networks grok, by orientation of the regularizer."""
    curves = rows_of("grokking-curves")
    curves["S"] = curves.agreement / curves.confidence
    percent = ["train_accuracy", "accuracy", "S"]
    curves[percent] = 100 * curves[percent]
    table = curves.melt(
        ["arm", "step", "target"], [*percent, "train_loss", "loss"], "curve", "mean"
    )
    shares = table.curve.isin(percent)
    table = table.assign(low=np.nan, high=np.nan, unit=np.where(shares, "%", "nats"))
    table["constant"] = 100 * table.target.where(shares)
    return figures.facets(
        table, x="step", hue="curve", col="arm", row="unit", titles=TITLES, xlabel="step",
        ylabel="", least_range=1.0, log=True,
    )  # fmt: skip


@drawn
def speed() -> Figure:
    """Time of PyTorch relative to hopfax in powers of two: medians, ranges over settings."""
    rows = table("speed")
    rows = rows[rows["name"].str.fullmatch("PyTorch( loop| loader)? / hopfax.*(?<!rbg)")]
    group = rows.setting.str.extract("^([^:]*):", expand=False).fillna("")
    what = rows["case"] + " " + group + " " + rows["name"].str.partition(" / hopfax")[2]
    for old, new in {"_": " ", "pretrained": "MiniLM", ", mean": ""}.items():
        what = what.str.replace(old, new)
    ends = rows.groupby(what.str.split().str.join(" ").rename("what")).agg(
        mean=("median", "median"), low=("median", "min"), high=("median", "max")
    )
    drawn = ends.sort_values("mean", ascending=False).map(np.log2).reset_index()
    return figures.forest(
        drawn, label="what", xlabel="log₂(PyTorch / hopfax); right: hopfax faster"
    )
