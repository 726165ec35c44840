"""How many updates queries take to converge, and whether tokens of low norm recover more.

A token's query q is that of the first layer, all heads side by side. Noise on all tokens moves it
to q', which updates over the keys of the noisy text move to a state ξ. The distance left is
|ξ - q| / |q' - q|. "converged" iterates, "one update" does not. Two controls show what is not
recovery: in "mean state" all tokens of a text get the mean of their converged states, and "clean
state" has the state of the clean text in place of q in the numerator, which is near ξ also where
all queries of a text move to one mean of its keys. Groups are the quarters of a text's tokens with
the lowest and the highest norm of the clean token vector, without [CLS] and [SEP]. Correlations
with norm and with SNR after the LayerNorm, in results.csv, are Pearson's of ranks within each text.

Verdicts: steps that noise adds are compared with the paper's by `tidy.verdict`, whose margin is
half of the paper's value. Failures "hold" if their interval is below 1 %. The paper gives no
numbers for recovery: low minus high norm, mean over levels, "holds" if its interval is on the
side that the paper claims (more steps, less distance left), is "reversed" on the other side, else
"too weak to tell". What holds for distances left is "vacuous" if it holds for the mean state, too.
Points that T updates gain over T = 0 on the same weights, and their time over that of T = 0, minus
1, are compared with Table 4; points gained without noise only undo the change from training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from experiments import cells, gaussian, report, tidy
from experiments.cells import Cell
from experiments.conditions import Condition, Gaussian
from experiments.robertha.spectra import ON, by_layer, judged, page
from experiments.robertha.suites import Noisy
from experiments.settings import Noise
from hopfax.data import evenly_spaced
from hopfax.nn import find_preset
from hopfax.train.evaluate import Texts

METRICS = ("steps", *(f"steps, {each}" for each in ("deviation", "minimum", "maximum")),
           "failures, %", "budget, %", "queries")  # fmt: skip
DISTANCES = tuple(
    f"distance left, {each}" for each in ("converged", "one update", "mean state", "clean state")
)
SIDES = {"steps": 1.0, **dict.fromkeys(DISTANCES, -1.0)}  # of low minus high norm, in the paper
SITES = {"": "", "sigma": "embedding", "matched": "token", "per-token": "token"}
FAILURES = {0: 0.09, 0.5: 0.03, 2: 0.36, 5: 0.52}  # percent by σ, Table 31
ADDED = {  # steps by σ, Table 32
    "sst2": {0.5: 0.6, 2: 2.4, 5: 2.6}, "qqp": {0.5: 0.5, 2: 1.4, 5: 4.2},
    "mrpc": {0.5: 0.7, 2: 1.5, 5: -0.9}, "cola": {0.5: 1.6, 2: 3.7, 5: 4.0},
    "stsb": {0.5: 0.7, 2: 2.5, 5: 2.7}, "rte": {0.5: -1.7, 2: -2.4, 5: 3.1},
}  # fmt: skip


class Iterated(Noisy):
    """A suite of models whose queries iterate, each until it converges."""

    def names(self) -> Sequence[str]:
        """Models to train; raises a ValueError for others."""
        for name, each in self.encoder.models(names := super().names()).items():
            own = each.options.get("attention") == "hopfield"
            if each.kind == "robertha":
                own = find_preset(each.preset).scope == "query"
            if not own or each.options.get("max_steps", 2) < 2:
                raise ValueError(f"--model must name models that iterate each query, got {name}")
        return names


@dataclass(frozen=True, kw_only=True)
class Convergence(Iterated):
    """Does retrieval converge in few steps, and do tokens of low norm recover more?

    Paper: Podasca and Das (2026), section 4.1, Figure 7, Tables 31 to 34. Claims: queries converge
    in 9.5 steps of 50, 13.4 under noise of σ = 5, and 0.5 % fail; tokens of low norm or low SNR
    need more steps and recover more.

    Command: `python -m experiments convergence --task sst2 --data-dir DIR`, with the flags of the
    run whose models to measure; they are not trained again.

    Expected: noise adds fewer steps than in the paper. Iteration recovers no clean query: the
    states of all tokens move to a mean of the text's keys. Noise after the embedding LayerNorm has
    the paper's σ; noise on the tokens has the same SNR for each text, or for each token.
    """

    NAME = "convergence"
    REPRODUCES = "Robertha, section 4.1, Figure 7, Tables 31-34: steps, failures, recovery by norm"
    SMOKE = ("robertha",)

    model: tuple[str, ...] = ("robertha", "robertha-no-esr")
    noise: Noise = Noise(protocols=("sigma", "matched", "per-token"), noise_draws=1)

    def conditions(self, task: str) -> Sequence[Condition]:
        """Clean inputs, then noise of each protocol at its site."""
        every: Any = super().conditions(task)
        return [each for each in every if each.site == SITES[each.protocol]]

    def rows(self, cell: Cell, condition: Condition, *, model: str) -> Iterable[dict[str, Any]]:
        """Scores, then counts of every layer and the recovery of tokens."""
        assert isinstance(condition, Gaussian) and cell.variant
        scores = [*super().rows(cell, condition, model=model)]
        budget = cell.variant.options.get("max_steps", 50)
        yield from scores
        yield from by_layer(scores, METRICS, summaries(condition.collect(cell, counts), budget))
        if condition.level:
            seeds = [row for row in scores if row["metric"] == "score"]
            parts = tokens(condition.collect(cell, recovery), cell.data.vocabulary.sep_id)
            for row, table in zip(seeds, parts, strict=True):
                for metric, value in recovered(table).items():
                    if np.isfinite(value):  # constant steps have no correlation
                        yield {**row, "metric": metric, "score": round(value, 6)}

    def page(self, folder: Path) -> report.Page:
        """Steps of every layer and failures by noise, and claims."""
        frame = tidy.read(folder)
        parts = {f"steps, layer {n:.0f}": (rows, "steps") for n, rows in frame.groupby("layer")}
        parts |= {name: (frame, name) for name in ("failures, %", *DISTANCES)}
        scores = [tidy.scores(*each).assign(metric=name) for name, each in parts.items()]
        return page("Convergence", gaussian.lines(pd.concat(scores), {}), claims(frame))


def counts(run: Callable[..., Any], clean: Texts, noisy: Texts) -> tuple[jax.Array, ...]:
    """Returns which tokens are real, and steps and convergence (texts, tokens, layers, heads)."""
    encoding = run(noisy.embeddings, noisy.mask, noisy.types, method="encode")
    order = (1, 3, 0, 2)
    return noisy.mask, encoding.num_steps.transpose(order), encoding.converged.transpose(order)


def summaries(batches: Iterable[tuple[np.ndarray, ...]], budget: int) -> np.ndarray:
    """Returns `METRICS` over real queries, (seeds, layers, metrics), from `counts`."""
    parts = [(steps[:, real[0]], converged[:, real[0]]) for real, steps, converged in batches]
    steps, converged = (np.concatenate(each, axis=1) for each in zip(*parts, strict=True))
    mean, size = steps.mean((1, 3)), np.full(steps.shape[::2], steps[0, :, 0].size)
    ends = (each((1, 3)) for each in (steps.std, steps.min, steps.max))
    failures = 100 * (1 - converged.mean((1, 3)))
    return np.stack([mean, *ends, failures, 100 * mean / budget, size], axis=-1)


def recovery(run: Callable[..., Any], clean: Texts, noisy: Texts) -> dict[str, jax.Array]:
    """Returns values of every token, (texts, tokens), see the module."""

    def size(x: jax.Array, *axes: int) -> jax.Array:
        return jnp.sqrt(jnp.sum(jnp.square(x), axis=axes))

    (query, rest), (moved, state) = (
        run(each.embeddings, each.mask, each.types, method="retrieve") for each in (clean, noisy)
    )
    once = run(noisy.embeddings, noisy.mask, noisy.types, method="retrieve", steps=1)[1]
    real = noisy.mask[:, None, :, None]
    mean = jnp.mean(state.value, axis=2, keepdims=True, where=real)
    pairs = (state.value, query), (once.value, query), (mean, query), (state.value, rest.value)
    left = (size(ours - goal, 1, 3) / size(moved - query, 1, 3) for ours, goal in pairs)
    return {
        "id": noisy.ids,
        "real": noisy.mask,
        "norm": size(clean.tokens, 2),
        "SNR": size(clean.embeddings, 2) / size(noisy.embeddings - clean.embeddings, 2),
        "steps": jnp.mean(state.num_steps, axis=1),
        **dict(zip(DISTANCES, left, strict=True)),
    }


def tokens(batches: Iterable[dict[str, np.ndarray]], separator: int | None) -> list[pd.DataFrame]:
    """Returns one row for each token but [CLS] and [SEP], a table for each seed."""
    parts, texts = [], 0
    for values in batches:
        kept = values["real"][0] & (values["id"][0] != separator)
        kept[:, 0] = False
        values["text"] = np.broadcast_to(texts + np.arange(len(kept))[:, None], values["id"].shape)
        parts.append({name: value[:, kept] for name, value in values.items()})
        texts += len(kept)
    whole = {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}
    seeds = range(len(whole["text"]))
    return [pd.DataFrame({name: value[seed] for name, value in whole.items()}) for seed in seeds]


def recovered(tokens: pd.DataFrame) -> dict[str, float]:
    """Returns means over all tokens and groups, and correlations; refuses short texts."""
    texts = tokens.groupby("text")
    rank, count = texts.norm.rank(method="first"), texts.norm.transform("size")
    groups = {"low norm": rank <= count // 4, "high norm": rank > count - count // 4}
    if not groups["low norm"].any():
        longest = int(count.max()) if len(count) else 0
        raise ValueError(f"texts must have at least 4 tokens, without special ones, got {longest}")
    ranks = texts.rank()
    shared = (ranks - ranks.groupby(tokens.text).transform("mean")).corr()
    values: dict[str, Any] = {name: tokens[name].mean() for name in DISTANCES}
    for name in SIDES:
        values |= {f"{name}, {group}": tokens[name][rows].mean() for group, rows in groups.items()}
        values |= {f"{name} by {by}": shared.loc[name, by] for by in ("norm", "SNR")}
    return values


def claims(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the paper's claims beside ours with intervals and verdicts, see the module."""
    steps, failures = (
        tidy.select(tidy.scores(frame, metric), protocol=["", "sigma"])
        for metric in ("steps", "failures, %")
    )
    clean, on = steps.level == 0, ["task", "model", "denoiser", "seed"]
    steps = tidy.summarize(tidy.paired(steps[~clean], steps[clean], on=on))
    pairs = zip(steps.task, steps.level, strict=True)
    steps["paper"] = [ADDED.get(task, {}).get(level, np.nan) for task, level in pairs]
    failures = tidy.summarize(failures)
    low, high = (failures[end].fillna(failures["mean"]) for end in ("low", "high"))
    verdict = np.select([high < 1, low > 1], ["holds", "does not hold"], "too weak to tell")
    failures = failures.assign(verdict=verdict, paper=failures.level.map(FAILURES))
    named = steps.assign(claim="steps added"), failures.assign(claim="failures, %")
    return judged(*named, of_recovery(frame))


def of_recovery(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns differences of low minus high norm, mean over levels."""
    parts = []
    for name, side in SIDES.items():
        low, high = (tidy.scores(frame, f"{name}, {group} norm") for group in ("low", "high"))
        gaps = tidy.average(tidy.paired(low, high, on=["model", *ON]), "level")
        parts.append(tidy.summarize(gaps).assign(name=name, side=side * 1e-9))  # no margin
    table = pd.concat(parts, ignore_index=True)
    ends = table[["low", "high", "side"]].itertuples(index=False, name=None)
    verdict = pd.Series([tidy.verdict(*each) for each in ends])
    places = zip(table.site, table.protocol, strict=True)
    panels = [gaussian.PANELS[each].replace("\n", " ") for each in places]
    keys = pd.MultiIndex.from_frame(table[["task", "model", "site", "protocol"]])
    holds = verdict == "holds"
    vacuous = keys.isin(keys[holds & (table.name == DISTANCES[2])]) & table.name.isin(DISTANCES)
    claim = table.name + ", low - high norm: " + panels
    return table.assign(claim=claim, paper=np.nan, verdict=verdict.mask(holds & vacuous, "vacuous"))


BATCHES = (1, 32)
REPEATS = {"smoke": 2, "laptop": 15, "paper": 15}
# Table 4: σ -> T, points gained, and time over that without iteration.
TABLE4 = {0.5: (5, 11.1, 1.25), 1.0: (10, 21.7, 1.80), 2.0: (20, 20.6, 2.52), 5.0: (30, 15.9, 3.54)}


@dataclass(frozen=True, kw_only=True)
class Steps(Iterated):
    """What do more Hopfield updates gain under noise, and what do they cost?

    Paper: Podasca and Das (2026), Table 4. Claim: T = 5, 10, 20 and 30 updates gain 11 to 22 points
    at σ = 0.5, 1, 2 and 5, and take 1.25 to 3.5 times as long.

    Command: `python -m experiments steps --task sst2 --data-dir DIR`, with the flags of the run
    whose models to test; they are not trained again.

    Expected: gains are below the paper's, and as large without noise. Beyond convergence, a larger
    T changes neither scores nor times, as the loop ends. Times are those of the encoder on 32 clean
    texts, one by one and together, padded to the longest; models take turns.
    """

    NAME = "steps"
    REPRODUCES = "Robertha, Table 4: points gained and time taken by T Hopfield updates"
    SMOKE = ("robertha",)

    model: tuple[str, ...] = ("robertha", "robertha-no-esr")
    noise: Noise = Noise(sites=("embedding",), protocols=("sigma",), noise_draws=1)
    steps: tuple[int, ...] = (0, 1, 2, 5, 10, 20, 30, 50)
    """Maximum numbers of updates T; 0 is always tested."""

    def conditions(self, task: str) -> Sequence[Condition]:
        """Clean inputs; `rows` adds the noise, so that each T compiles once."""
        return [Gaussian()]

    def rows(self, cell: Cell, condition: Condition, *, model: str) -> Iterable[dict[str, Any]]:
        """Scores at every T under all noise, then times."""
        assert isinstance(condition, Gaussian)
        models = {steps: cells.with_steps(cell, steps) for steps in sorted({0, *self.steps})}
        row: dict[str, Any] = {}
        conditions = super().conditions(cell.data.spec.name)
        for (steps, each), noise in product(models.items(), conditions):
            for row in super().rows(each, noise, model=model):
                yield {**row, "T": steps}
        row |= {**asdict(condition), "seed": cell.spec.seeds[0], "corruption": "none"}
        for batch in BATCHES:
            table = times([*models.values()], batch, REPEATS[self.budget])
            for steps, column in zip(models, table.T, strict=True):
                for metric, values in (("milliseconds", column), ("time", column / table[:, 0])):
                    low, high = tidy.bootstrap(len(values), lambda n, x=values: np.median(x[n]))
                    measured = {"T": steps, "score": np.median(values), "low": low, "high": high}
                    yield {**row, "metric": f"{metric}, batch {batch}", **measured}

    def page(self, folder: Path) -> report.Page:
        """Scores and times against T, and claims."""
        frame = tidy.read(folder)
        table = tidy.summarize(by_steps(frame))
        noise = zip(table.protocol, table.level, strict=True)
        panels = [gaussian.noise_label(*each) for each in noise]
        table = table.assign(panel=panels, T=table["T"].map("{:.0f}".format), metric="score")
        return page("Points gained by T updates", table, claims_of_steps(frame), "T", "T")


def times(models: Sequence[Cell], batch: int, repeats: int) -> np.ndarray:
    """Returns milliseconds per text of the first seed's encoders, (repeats, models), in turns."""
    test = models[0].data.test
    ids, lengths = (evenly_spaced(each, BATCHES[-1]) for each in (test.ids, test.lengths))
    ids, lengths = ids[:, 0, : lengths.max()], lengths[:, :1]
    params = jax.tree.map(lambda leaf: leaf[0], models[0].params)

    def run(cell: Cell) -> float:
        start = time.perf_counter()
        for first in range(0, len(ids), batch):
            part = slice(first, first + batch)
            mask = np.arange(ids.shape[1]) < lengths[part]
            jax.block_until_ready(cell.model.apply(params, ids[part], mask))
        return 1000 * (time.perf_counter() - start) / len(ids)

    return np.array([[run(cell) for cell in models] for _ in range(repeats + 1)])[1:]  # compiled


def by_steps(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns `tidy.scores` of every T."""
    return pd.concat([tidy.scores(rows).assign(T=steps) for steps, rows in frame.groupby("T")])


def claims_of_steps(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the paper's claims beside ours with intervals and verdicts, see the module."""
    scores = by_steps(frame)
    gains = tidy.paired(scores[scores["T"] > 0], scores[scores["T"] == 0], on=["model", *ON])
    gains = tidy.summarize(gains.assign(metric="points gained"))
    ratios = frame[frame.metric.str.startswith("time, ")].assign(mean=frame.score, level=np.nan)
    parts = []
    for sigma, (steps, points, ratio) in TABLE4.items():
        gained, taken = (table[table["T"] == steps] for table in (gains, ratios))
        ends = zip(taken.low - 1, taken.high - 1, strict=True)
        verdicts = [tidy.verdict(low, high, ratio - 1) for low, high in ends]
        parts += [
            gained[gained.level == 0].assign(verdict="n/a"),
            gained[gained.level == sigma].assign(paper=points),
            taken.assign(paper=ratio, verdict=verdicts),
        ]
    table = pd.concat(parts)
    names = zip(table["T"], table.metric, strict=True)
    return judged(table.assign(claim=[f"T = {steps:.0f}: {metric}" for steps, metric in names]))
