"""How many updates queries take to converge, and whether tokens of low norm recover more.

Noise on all tokens moves a token's query in the first layer, all heads side by side, from q to q',
which updates over the noisy keys move to ξ. The distance left is |ξ - q| / |q' - q|. In the control
"mean state", all tokens of a text have the mean of its states. Groups are the quarters of a text's
tokens, without special ones, of lowest and highest norm before the LayerNorm, or SNR after it.

Verdicts are those of `tidy.verdict`. Failures "hold" if their interval is below 1 %, and do not if
it is above. Of recovery the paper gives no numbers: low minus high, mean over levels, "holds" on
the side of its claim (more steps, less distance left), and is "vacuous" if the mean state's holds,
too. Points gained over T = 0 do not count if T updates leave the model "at baseline" (Table 4).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from experiments import cells, conditions, gaussian, report, tidy
from experiments.cells import Cell
from experiments.conditions import Condition, Gaussian
from experiments.robertha.spectra import ON, by_layer, judged, page
from experiments.robertha.suites import Noisy
from experiments.settings import Noise
from hopfax.data import evenly_spaced
from hopfax.nn import find_preset
from hopfax.train.evaluate import Texts

METRICS = STEPS, *_, FAILED = "steps", "std of steps", "fewest steps", "most steps", "failures, %"
LEFT = [f"distance left, {state}" for state in ("converged", "one update", "mean state")]
SIDES = {"steps of tokens": 1e-9, **dict.fromkeys(LEFT, -1e-9)}  # of low minus high, no margin
SITES = {"": "", "sigma": "embedding", "matched": "token", "per-token": "token"}
FAILURES = {0: 0.09, 0.5: 0.03, 2: 0.36, 5: 0.52}  # percent by σ, Table 31
ADDED = {  # steps at σ = 0.5, 2 and 5, Table 32
    "sst2": (0.6, 2.4, 2.6), "qqp": (0.5, 1.4, 4.2), "mrpc": (0.7, 1.5, -0.9),
    "cola": (1.6, 3.7, 4.0), "stsb": (0.7, 2.5, 2.7), "rte": (-1.7, -2.4, 3.1),
}  # fmt: skip
# Table 4: σ -> T, points gained, and percent of time added.
TABLE4 = {0.5: (5, 11.1, 25), 1.0: (10, 21.7, 80), 2.0: (20, 20.6, 152), 5.0: (30, 15.9, 254)}
TIMED, TEXTS, REPEATS = "time added, %", 32, {"smoke": 2, "laptop": 15, "paper": 15}


@dataclass(frozen=True, kw_only=True)
class Convergence(Noisy):
    """Does retrieval converge in few steps, and do tokens of low norm recover more?

    Paper: Podasca and Das (2026), section 4.1, Figure 7, Tables 31 to 34. Claims: queries converge
    in 9.5 steps of 50, 13.4 under noise of σ = 5, and 0.5 % fail; tokens of low norm or low SNR
    need more steps and recover more.

    Command: `python -m experiments convergence --task sst2 --data-dir DIR`, with the flags of the
    run whose models to measure; they are not trained again.

    Expected: σ = 5 adds 6 steps. On average, iteration recovers nothing: states move to a mean of
    the keys. Same σ is after the embedding LayerNorm; same SNR on the tokens, at the median level.
    """

    NAME = "convergence"
    REPRODUCES = "Robertha, section 4.1, Figure 7, Tables 31-34: steps, failures, recovery by norm"
    SMOKE = ("robertha",)

    model: tuple[str, ...] = ("robertha", "robertha-no-esr")
    noise: Noise = Noise(levels=(0.5, 2.0, 5.0), protocols=tuple(SITES)[1:], noise_draws=1)

    def names(self) -> Sequence[str]:
        """Models to train; raises a ValueError for those without an iteration for each query."""
        for name, each in self.encoder.models(names := super().names()).items():
            own = each.kind == "robertha" and find_preset(each.preset).scope == "query"
            own |= each.options.get("attention") == "hopfield"
            if not own or each.options.get("max_steps", 2) < 2:
                raise ValueError(f"--model must name models that iterate each query, got {name}")
        return names

    def conditions(self, task: str) -> Sequence[Condition]:
        """Clean inputs, then noise of each protocol at its site."""
        every: Any = super().conditions(task)
        levels = sorted(self.noise.levels or [0.0])
        some = {"", "sigma", levels[len(levels) // 2]}
        every = [each for each in every if each.site == SITES[each.protocol]]
        return [each for each in every if some & {each.protocol, each.level}]

    def rows(self, cell: Cell, condition: Condition, *, model: str) -> Iterable[dict[str, Any]]:
        """Scores, then counts of every layer and the recovery of tokens."""
        assert isinstance(condition, Gaussian)
        scores = [*super().rows(cell, condition, model=model)]
        batches = condition.collect(cell, measure)
        rows = scores + by_layer(scores, METRICS, counts(batches))
        if condition.level:
            means = recovery(batches, cell.data.vocabulary.sep_id)
            rows += by_layer(scores, means, np.stack([*means.values()], axis=1)[:, None])
        return rows

    def page(self, folder: Path) -> report.Page:
        """Steps of every layer, failures and distances left by noise, and claims."""
        frame = tidy.read(folder)
        shown: Any = tidy.select(frame, metric=[STEPS, FAILED, *LEFT]).groupby(["metric", "layer"])
        parts = [tidy.scores(x, n).assign(metric=f"{n}, layer {k:.0f}") for (n, k), x in shown]
        return page("Convergence", gaussian.lines(pd.concat(parts), {}), claims(frame))


def measure(run: Callable[..., Any], clean: Texts, noisy: Texts) -> dict[str, jax.Array]:
    """Returns values of tokens (texts, tokens) and of queries (texts, tokens, layers, heads)."""
    inputs = noisy.embeddings, noisy.mask, noisy.types
    encoding = run(*inputs, method="encode")
    (moved, state), (_, once) = (run(*inputs, method="retrieve", steps=n) for n in (None, 1))
    query, _ = run(clean.embeddings, clean.mask, clean.types, method="retrieve", steps=1)
    mean = jnp.mean(state, axis=2, keepdims=True, where=noisy.mask[:, None, :, None])
    added, *left = (jnp.linalg.norm(x - query, axis=(1, 3)) for x in (moved, state, once, mean))
    noise = jnp.linalg.norm(noisy.embeddings - clean.embeddings, axis=2)
    return {
        "id": noisy.ids,
        "real": noisy.mask,
        "norm": jnp.linalg.norm(clean.tokens, axis=2),
        "SNR": jnp.linalg.norm(clean.embeddings, axis=2) / noise,
        "steps of tokens": jnp.mean(encoding.num_steps[0], axis=1),
        **{name: each / added for name, each in zip(LEFT, left, strict=True)},
        "steps": encoding.num_steps.transpose(1, 3, 0, 2),
        "converged": encoding.converged.transpose(1, 3, 0, 2),
    }


def counts(batches: Iterable[dict[str, np.ndarray]]) -> np.ndarray:
    """Returns `METRICS` over real queries, (seeds, layers, metrics)."""
    parts = [[each[n][:, each["real"][0]] for n in ("steps", "converged")] for each in batches]
    steps, converged = (np.concatenate(each, axis=1) for each in zip(*parts, strict=True))
    of_steps = (each((1, 3)) for each in (steps.mean, steps.std, steps.min, steps.max))
    return np.stack([*of_steps, 100 * (1 - converged.mean((1, 3)))], axis=-1)


def recovery(batches: Iterable[dict[str, Any]], separator: int | None) -> dict[str, np.ndarray]:
    """Returns means of each seed over all tokens and over groups; refuses short texts."""
    totals: dict[str, Any] = {}
    for values in batches:
        words = values["real"] & (values["id"] != separator)
        words[..., 0] = False
        groups, size = {"": words}, words.sum(2, keepdims=True)
        for by in ("norm", "SNR"):
            rank = np.where(words, values[by], np.inf).argsort(2, kind="stable").argsort(2)
            groups[f", low {by}"] = rank < size // 4
            groups[f", high {by}"] = words & (rank >= size - size // 4)
        for name, (group, chosen) in product(SIDES, groups.items()):
            total = values[name].sum((1, 2), where=chosen), chosen.sum((1, 2))
            totals[name + group] = totals.get(name + group, 0) + np.array(total)
    if not all(count.all() for _, count in totals.values()):
        raise ValueError(f"texts must have at least 4 ordinary tokens, got {size.max()}")
    return {name: total / count for name, (total, count) in totals.items()}


def claims(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the paper's claims beside ours with intervals and verdicts, see the module."""
    of_sigma = tidy.select(frame, protocol=["", "sigma"])
    steps, failures = (tidy.scores(of_sigma, metric) for metric in (STEPS, FAILED))
    clean, on = steps.level == 0, ["task", "model", "denoiser", "seed"]
    steps = tidy.summarize(tidy.paired(steps[~clean], steps[clean], on=on))
    pairs = zip(steps.task, steps.level, strict=True)
    added = {(t, s): x for t, row in ADDED.items() for s, x in zip((0.5, 2, 5), row, strict=True)}
    steps["paper"] = [added.get(each, np.nan) for each in pairs]
    failures = tidy.summarize(failures)
    low, high = (failures[end].fillna(failures["mean"]) for end in ("low", "high"))
    cases = [failures.num_seeds < tidy.MIN_SEEDS, high < 1, low > 1]
    verdict = np.select(cases, ["n/a", "holds", "does not hold"], "too weak to tell")
    failures = failures.assign(claim=FAILED, verdict=verdict, paper=failures.level.map(FAILURES))
    tables = [steps.assign(claim="steps added"), failures]
    for (name, side), by in product(SIDES.items(), ("norm", "SNR")):
        low, high = (tidy.scores(frame, f"{name}, {group} {by}") for group in ("low", "high"))
        gaps = tidy.average(tidy.paired(low, high, on=["model", *ON]), "level")
        protocols = [gaussian.PROTOCOLS[each] for each in gaps.protocol]
        gaps["claim"] = [f"{name}, low - high {by}, {each}" for each in protocols]
        tables.append(tidy.summarize(gaps).assign(paper=side))
    states = "converged|one update|" + (control := "mean state")
    return judged(*tables, control=lambda x: re.sub(states, control, x) if "distance" in x else "")


@dataclass(frozen=True, kw_only=True)
class Steps(Convergence):
    """What do more Hopfield updates gain under noise, and what do they cost?

    Paper: Podasca and Das (2026), Table 4. Claim: T = 5, 10, 20 and 30 updates gain 11 to 22 points
    at σ = 0.5, 1, 2 and 5, and take 1.25 to 3.5 times as long.

    Command: `python -m experiments steps --task sst2 --data-dir DIR`, with the flags of the run
    whose models to test; they are not trained again.

    Expected: lower gains. Beyond convergence, T changes neither scores nor times, as the loop ends.
    Times are those of 32 clean texts of the same padded length, one by one; models take turns.
    """

    NAME = "steps"
    REPRODUCES = "Robertha, Table 4: points gained and time taken by T Hopfield updates"

    model: tuple[str, ...] = ("robertha",)
    noise: Noise = Noise(levels=tuple(TABLE4), protocols=("sigma",), noise_draws=1)
    steps: tuple[int, ...] = (0, 1, 2, 5, 10, 20, 30, 50)
    """Maximum numbers of updates T; 0 is always tested."""

    def rows(self, cell: Cell, condition: Condition, *, model: str) -> Iterable[dict[str, Any]]:
        """Scores at every T, and times on clean texts."""
        models = {steps: cells.with_steps(cell, steps) for steps in sorted({0, *self.steps})}
        for steps, each in models.items():
            for row in conditions.rows(each, condition, model=model):
                yield {**row, "T": steps}
        if isinstance(condition, Gaussian) and not condition.level:
            turns = range(1 + REPEATS[self.budget])  # the first one compiles
            table = np.array([[milliseconds(each) for each in models.values()] for _ in turns])[1:]
            for steps, column in zip(models, table.T, strict=True):
                percent = 100 * (column / table[:, 0] - 1)
                for metric, values in (("milliseconds", column), (TIMED, percent)):
                    low, high = tidy.bootstrap(len(values), lambda n, x=values: np.median(x[n]))
                    measured = {"T": steps, "score": np.median(values), "low": low, "high": high}
                    yield {**row, "metric": metric, "seed": cell.spec.seeds[0], **measured}

    def page(self, folder: Path) -> report.Page:
        """Scores against T, and claims."""
        frame = tidy.read(folder)
        parts = [tidy.scores(rows).assign(T=f"{n:.0f}") for n, rows in frame.groupby("T")]
        table = tidy.summarize(pd.concat(parts)).assign(metric="score")
        table["panel"] = [gaussian.noise_label("sigma", level) for level in table.level]
        return page("Points gained by T updates", table, claims_of_steps(frame), "T")


def milliseconds(cell: Cell) -> float:
    """Returns the time per text of the first seed's encoder."""
    test, params = cell.data.test, jax.tree.map(lambda leaf: leaf[0], cell.params)
    ids, lengths = (evenly_spaced(each, TEXTS) for each in (test.ids, test.lengths))
    mask, start = np.arange(ids.shape[2]) < lengths[..., None], time.perf_counter()
    for text in zip(ids, mask, strict=True):
        jax.block_until_ready(cell.model.apply(params, *text))
    return 1000 * (time.perf_counter() - start) / len(ids)


def claims_of_steps(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the paper's claims beside ours with intervals and verdicts, see the module."""
    constants, parts = gaussian.constants(frame), []
    times = frame[frame.metric == TIMED].rename(columns={"score": "mean"}).assign(level=np.nan)
    for sigma, (steps, points, percent) in TABLE4.items():
        ours, theirs = (tidy.scores(tidy.select(frame, T=t, level=sigma)) for t in (steps, 0))
        gains = tidy.summarize(tidy.paired(ours, theirs, on=["model", *ON]))
        below = gaussian.near_baseline(ours, constants).index
        models = pd.MultiIndex.from_frame(gains[["task", "model"]])
        gains["verdict"] = pd.Series("at baseline", gains.index).where(models.isin(below))
        parts.append(gains.assign(claim=f"T = {steps}: points gained", paper=points))
        added = tidy.select(times, T=steps)
        parts.append(added.assign(claim=f"T = {steps}: {TIMED}", paper=percent))
    return judged(*parts)
