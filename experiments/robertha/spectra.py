"""Key spectra of trained encoders: what ESR does to them, and whether they predict robustness.

Verdicts: what ESR changes, paired by seed, and correlations over models are compared with the paper
by `tidy.verdict`. ESR reaches its target ("holds") if the interval of |H - α|, mean over texts and
layers, is below `NEAR`. Effective rank and drop both grow with σ: a correlation over σ that holds
is "vacuous" if rank also correlates with other models' drops. Correlations over models compare them
at the same noise, mean over levels; a point is a trained model, and intervals resample models with
all their seeds. Models that have not learned the task are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy.stats import rankdata

from experiments import gaussian, report, tidy
from experiments.cells import Cell
from experiments.conditions import Condition, Gaussian
from experiments.robertha.suites import Noisy
from experiments.settings import Noise
from hopfax import hopfield
from hopfax.train.evaluate import Texts

METRICS = ("effective rank", "entropy", "Gini", "distance from α")
ON = ["task", "denoiser", "site", "protocol", "level", "seed"]
OTHERS = ", drop of other models"
MIN_MODELS = 4  # of a correlation over models
NEAR = 0.05  # of the target; the paper's tasks under strong control are within 0.02
DISTANCE = 0.109  # from α with ESR, Table 29; there also the differences that ESR makes, by σ:
TABLE29 = {
    "effective rank": {0: -8.45, 0.5: -9.31, 1: -12.25, 2: -13.30, 5: -13.93},
    "entropy": {0: -0.153, 0.5: -0.161, 1: -0.135, 2: -0.074, 5: -0.058},
    "distance from α": {0: -0.153},
}
COEFFICIENTS = ("pearson", "spearman", "kendall")
TABLE30 = {
    "sst2": (0.977, 1.000, 1.000), "qqp": (0.957, 0.991, 0.964), "mrpc": (0.886, 0.948, 0.844),
    "rte": (0.816, 0.839, 0.699), "stsb": (0.646, 0.609, 0.527), "cola": (-0.629, -0.382, -0.321),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Spectra(Noisy):
    """Does ESR concentrate the spectrum of the keys, and does that make encoders robust?

    Paper: Podasca and Das (2026), Figure 6, Tables 27 to 30. Claims: ESR brings the normalized
    entropy of the keys near α = 0.35 (0.459 on GLUE, 0.612 without ESR); under noise, effective
    rank and the drop of the score grow together (Pearson 0.98 on SST-2). Spectra are those of a
    text's keys, of all heads together; values are means over texts.

    Command: `python -m experiments spectra --task sst2 --data-dir DIR`, with the flags of the
    `robustness` or `fine-tuning` run whose models to measure; they are not trained again.

    Expected: ESR lowers the entropy, but at λ = 0.05 not to its target. Over noise levels, the rank
    of one model correlates as well with the drop of another; at the same noise, rank and drop of
    models have no detectable relation.
    """

    NAME = "spectra"
    REPRODUCES = "Robertha, Figure 6, Tables 27-30: spectra of the keys, and the drop under noise"
    SMOKE = ("robertha", "robertha-no-esr")

    model: tuple[str, ...] = (
        "tinybert", "robertha", "robertha-no-esr", "robertha-no-iteration-no-esr",
    )  # fmt: skip
    noise: Noise = Noise(
        levels=tuple(number / 2 for number in range(1, 11)), sites=("embedding",), noise_draws=1
    )

    def rows(self, cell: Cell, condition: Condition, *, model: str) -> Iterable[dict[str, Any]]:
        """Scores, then spectra of every layer."""
        assert isinstance(condition, Gaussian) and cell.variant
        scores = [*super().rows(cell, condition, model=model)]
        values = np.concatenate(condition.collect(cell, spectra), axis=1)
        distances = np.abs(values[..., 1:2] - cell.variant.esr_target)
        return scores + by_layer(scores, METRICS, np.concatenate([values, distances], -1).mean(1))

    def page(self, folder: Path) -> report.Page:
        """Figure 6 with every model, and claims."""
        frame = tidy.read(folder)
        scores = tidy.scores(frame)
        drops = tidy.paired(scores, scores[scores.level == 0], on=["task", "model", "seed"])
        parts = [tidy.scores(frame, metric).assign(metric=metric) for metric in METRICS]
        parts.append(drops.assign(metric="points lost", score=-drops.score))
        return page("Spectra of the keys", gaussian.lines(pd.concat(parts), {}), claims(frame))


def spectra(run: Callable[..., Any], clean: Texts, noisy: Texts) -> jax.Array:
    """Returns effective rank, entropy and Gini of each text and layer, (texts, layers, 3)."""
    keys = run(noisy.embeddings, noisy.mask, noisy.types, method="encode").keys

    def measure(keys: jax.Array, mask: jax.Array) -> jax.Array:
        entropy = hopfield.eigen_entropy(keys, mask=mask)
        return jnp.stack([keys.shape[-1] ** entropy, entropy, hopfield.gini(keys, mask=mask)])

    return jax.vmap(jax.vmap(measure), (0, None), 1)(keys, noisy.mask)


def by_layer(scores: Iterable[Any], metrics: Iterable[str], values: np.ndarray) -> list[Any]:
    """Returns rows of values (seeds, layers, metrics) under the condition of the scores' rows."""
    seeds = [row for row in scores if row["metric"] == "score"]
    return [
        {**row, "metric": metric, "score": round(value, 6), "layer": layer}
        for row, layers in zip(seeds, values.tolist(), strict=True)
        for layer, measured in enumerate(layers, 1)
        for metric, value in zip(metrics, measured, strict=True)
    ]


def claims(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the paper's claims beside ours with intervals and verdicts, see the module."""
    table = pd.DataFrame(correlations(frame), columns=["task", *tidy.CLAIMS[1:-1]])
    return judged(table, *differences(frame), control=lambda claim: claim + OTHERS)


def differences(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yields what ESR changes, and the distance of models with ESR from its target."""
    for metric, paper in TABLE29.items():
        values = tidy.select(tidy.scores(frame, metric), protocol=["", "sigma"])
        for model in filter(without_esr, values.model.unique()):
            ours, theirs = (values[values.model == name] for name in (model, without_esr(model)))
            gaps = tidy.summarize(tidy.paired(ours, theirs, on=ON))
            yield gaps.assign(claim=f"ESR: {metric}", paper=gaps.level.map(paper))
            if metric == METRICS[-1]:
                table = tidy.summarize(ours[ours.level == 0])
                cases = [table.low.isna(), table.high < NEAR, table.low > NEAR]
                verdict = np.select(cases, ["n/a", "holds", "does not hold"], "too weak to tell")
                yield table.assign(claim=metric, paper=DISTANCE, verdict=verdict)


def without_esr(model: str) -> str:
    """Returns the model that differs from this one by ESR only, "" for a model without ESR."""
    if model == "robertha" or model.startswith("robertha-esr-"):
        return "robertha-no-esr"
    return "" if "-no-esr" in model else model.partition("-esr")[0] * ("-esr" in model)


def correlations(frame: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    """Yields correlations of effective rank and drop, over levels and over models."""
    for task, protocol, ranks, drops in noise_tables(frame):
        for name, paper in zip(COEFFICIENTS, TABLE30.get(task, [np.nan] * 3), strict=True):
            if protocol == "sigma" and ranks.shape[1] > 1:
                for others in (False, True):
                    values = over_levels(ranks, drops, name, others=others)
                    yield task, f"{name} over σ{OTHERS * others}", paper, *values
            if ranks.shape[1] >= MIN_MODELS:
                values = over_models(ranks, drops, name)
                yield task, f"{name} over models, {gaussian.PROTOCOLS[protocol]}", paper, *values


def noise_tables(frame: pd.DataFrame) -> Iterator[tuple[Any, Any, np.ndarray, np.ndarray]]:
    """Yields task, protocol, effective rank and drop (levels, models, seeds), the clean first."""
    scores, ranks = (tidy.scores(frame, metric) for metric in ("score", METRICS[0]))
    unlearned = gaussian.not_learned(scores, gaussian.constants(frame)).index
    scores = scores[~pd.MultiIndex.from_frame(scores[["task", "model"]]).isin(unlearned)]
    both = scores.merge(ranks[["model", *ON, "score"]], on=["model", *ON], suffixes=("", "_rank"))
    for (task, site, protocol), _ in both[both.level > 0].groupby(["task", "site", "protocol"]):
        at = (both.site == site) & (both.protocol == protocol) | (both.level == 0)
        table: Any = both[at & (both.task == task)].pivot(index="level", columns=["model", "seed"])
        shape = len(table), table.columns.unique("model").size, -1
        rank, score = (table[name].to_numpy().reshape(shape) for name in ("score_rank", "score"))
        yield task, protocol, rank, score[:1] - score


def correlation(x: np.ndarray, y: np.ndarray, name: str) -> np.ndarray:
    """Returns Pearson's r, Spearman's ρ or Kendall's τ-b of rows, nan where one does not vary."""
    # One coefficient (Daniels 1944), of differences of values, of ranks, or of their signs.
    tables = [x, y] if name == "pearson" else [rankdata(each, axis=1) for each in (x, y)]
    tables = [each[:, :, None] - each[:, None] for each in tables]
    one, other = map(np.sign, tables) if name == "kendall" else tables
    with np.errstate(invalid="ignore"):
        norms = (one**2).sum((1, 2)) * (other**2).sum((1, 2))
        return (one * other).sum((1, 2)) / np.sqrt(norms)


def over_levels(ranks: np.ndarray, drops: np.ndarray, name: str, *, others: bool) -> Any:
    """Returns a correlation over levels, mean over models, with its interval over seeds."""
    pairs = product(range(ranks.shape[1]), repeat=2)
    kept = [(one, other) for one, other in pairs if (one != other) == others]
    values = [correlation(ranks[:, a].T, drops[:, b].T, name) for a, b in kept]
    seeds = pd.DataFrame({"of": "", "score": np.mean(values, axis=0)}).reset_index(names="seed")
    return tidy.summarize(seeds).loc[0, ["mean", "low", "high"]]


def over_models(ranks: np.ndarray, drops: np.ndarray, name: str) -> tuple[float, float, float]:
    """Returns a correlation over models and seeds, mean over levels, with its interval."""
    count = ranks.shape[1]

    def mean(picks: Any) -> float:
        x, y = (table[1:, picks].reshape(len(table) - 1, -1) for table in (ranks, drops))
        return float(np.mean(correlation(x, y, name)))

    return mean(np.arange(count)), *tidy.bootstrap(count, mean)


def judged(*tables: pd.DataFrame, control: Callable[[str], str] = lambda _: "") -> pd.DataFrame:
    """Returns `tidy.CLAIMS` of tables with task, paper, mean, ends, and perhaps a condition.

    Where a verdict is missing, it is that of `tidy.verdict`; claims without either are dropped.
    What holds is vacuous if the claim `control(claim)` about the same subject holds, too.
    """
    table = pd.concat(tables, ignore_index=True)
    table = table.reindex(columns=[*dict.fromkeys([*table, "model", "level", "verdict"])])
    table = table[table.paper.notna() | table.verdict.notna()].reset_index(drop=True)
    named = gaussian.titles(table.task.unique(), table.model.dropna().unique())
    noise = ["" if np.isnan(x) else f", {gaussian.noise_label('sigma', x)}" for x in table.level]
    ends = table[["low", "high", "paper"]].astype(float).itertuples(index=False, name=None)
    verdicts = pd.Series([tidy.verdict(*each) for each in ends], dtype=object)
    table["subject"] = table.task.map(named) + (", " + table.model.map(named)).fillna("")
    holds = (verdict := table.verdict.astype(object).fillna(verdicts)) == "holds"
    names, controls = table.subject + table.claim, [control(each) for each in table.claim]
    vacuous = holds & (table.subject + pd.Series(controls, dtype=str)).isin(names[holds])
    paper = table.paper.where(table.paper.abs() > 1e-8)  # less is a side only
    table = table.assign(claim=table.claim + pd.Series(noise, dtype=str), paper=paper)
    return table.assign(verdict=verdict.mask(vacuous, "vacuous"))[[*tidy.CLAIMS]]


def page(title: str, table: pd.DataFrame, claims: pd.DataFrame, x: str = "noise") -> report.Page:
    """Returns a page of claims and of lines: a row of panels a `metric`, a column a `panel`."""
    titles = gaussian.titles(table.task, table.model)
    table = table.drop(columns="paper", errors="ignore")
    panels: Any = {"row": "metric", "col": "panel", "x": x, "xlabel": x, "titles": titles}
    panels |= {"ylabel": "", "least_range": 1e-3}
    pictures = {
        f"measured_{task}": report.facets(f"{titles[str(task)]}: {title}", rows, **panels)
        for task, rows in table.groupby("task", sort=False)
    }
    return report.Page(title, pictures, [report.verdicts(claims)])
