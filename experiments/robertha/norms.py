"""Are tokens whose embeddings have a low norm more vulnerable to noise?

Paper: Podasca and Das (2026), section 3, Tables 1 and 16 to 20, Figures 3, 4 and 8. Claims: noise
on low-norm tokens flips right predictions of BERT to wrong on average 3.3 times as often as noise
of the same σ on high-norm tokens (SST-2: 14.9 against 3.9 %); TinyBERT's ratio is larger.

Command: `python -m experiments norms --task sst2 --data-dir DIR` (TinyBERT from scratch), or with
`--pretrained FOLDER` for a fine-tuned encoder, and the flags of the `robustness` or `fine-tuning`
run whose models to test; they are not trained again.

Expected: of the paper's groups, the one that covers more of a text flips more predictions. At equal
token counts and SNR, low-norm tokens are no more vulnerable than others.

Same σ, the paper's protocol: the groups are the lowest 1.1 % and the highest 28.7 % of the norms of
the training texts' tokens, the shares of BERT's norms below 1.0 and above 1.5. Same SNR per token,
the fair one: a quarter of each text's tokens, those with the lowest norms or the highest. Both draw
as many random tokens as low-norm ones. Special tokens are never chosen.

Eq. 6, SNR = ‖e‖²/σ², omits the width, so σ is ambiguous. At BERT's mean norm of 1.40, noise of norm
0.5, 1 and 2 is at +9, +3 and -3 dB; σ = 0.5 in each of 768 entries is at -20 dB. These are the
levels, in units of the table's root mean square.

Verdicts (`tidy.verdict`) are at the strongest noise, of low minus high, in points (Table 19), and
at the same σ of the log ratio, if each seed has ten flips in both groups, and its difference from
the encoder to TinyBERT. Intervals include seeds and rows. A score is right within a point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
import pandas as pd

from experiments import conditions, gaussian, report, runner, tidy
from experiments.cells import Cell
from experiments.conditions import CellPredictions
from experiments.runner import Trial
from experiments.settings import Flags, optional, resolved
from hopfax import hopfield
from hopfax.data import Encoded, TaskData

REPRODUCES = "Robertha, Tables 1, 16-20, Figures 3, 4, 8: vulnerability of tokens by norm"
LOW, HIGH, SHARE = 0.011, 0.287, 0.25  # of the vocabulary, Table 16; of a text's tokens
MEAN_NORM, WIDTH = 1.40, 768  # of BERT's table
SIGMAS = (0.5 / MEAN_NORM, 1 / MEAN_NORM, 2 / MEAN_NORM, 0.5 * WIDTH**0.5 / MEAN_NORM)
LEVELS = {"sigma": np.round(SIGMAS, 3).tolist(), "per-token": (1.0, 2.0, 4.0)}
GROUPS = LOWEST, HIGHEST, RANDOM = "low norm", "high norm", "random"
GAP, RATIO = "low - high", "low / high"
MIN_FLIPS = 10  # of each seed and group, for a ratio
# BERT's flips in percent with low-norm and high-norm tokens, and TinyBERT's ratio, if it has one.
TABLES_19_20 = {
    "CoLA": (62.3, 38.1, 3.2), "MRPC": (62.7, 7.9, np.nan), "SST-2": (14.9, 3.9, 4.8),
    "STS-B": (36.8, 18.4, 3.8), "RTE": (23.8, 6.8, np.nan), "BoolQ": (23.0, 5.8, 3.1),
    "WiC": (39.2, 17.6, 4.3), "COPA": (18.5, 12.0, np.nan),
}  # fmt: skip
WORDS = (  # of Table 17
    "not", "never", "only", "some", "all", "excellent", "terrible", "crucial", "trillion",
    "clockwise", "whichever", "galaxy",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(Flags):
    """Which models to test."""

    model: Annotated[tuple[str, ...] | None, optional("NAME ...", "tinybert or pretrained")] = None
    """Models, see `robustness`."""


def run(config: Config) -> Path:
    """Trains and tests what is missing, then writes the page; returns the run's folder."""
    default = ("pretrained" if config.encoder.pretrained else "tinybert",)
    config = resolved(replace(config, model=config.model or default))
    pairs = product(config.data.task, config.encoder.models(config.model or ()).items())
    tests = conditions.Gaussian(), *chain(*TESTS)
    trials = [Trial(task, name, model, tests) for task, (name, model) in pairs]
    return runner.fill("norms", config, runner.jobs(config, trials, measure), page)


def measure(
    config: Flags, trial: Trial, data: TaskData, on_progress: Callable[..., None]
) -> Mapping[str, pd.DataFrame]:
    """Trains and measures the model of a trial, see `runner.Job`."""
    scores = runner.measure(config, trial, data, on_progress)["results"]
    cell = runner.open_cell(config, trial, data)
    tables = {"results": [*scores, *flips(cell)], "norms": norms_of(cell)}
    names = {"task": trial.task, "model": trial.model}
    return {stem: pd.DataFrame(rows).assign(**names) for stem, rows in tables.items()}


@dataclass(frozen=True, kw_only=True)
class Selective(conditions.Gaussian):
    """Gaussian noise on the token embeddings of one of `GROUPS`, its `corruption`."""

    site: str = "token"
    corruption: str

    def key(self, cell: Cell) -> Any:
        """See `Condition`."""
        return {**super().key(cell), "shares": (LOW, HIGH, SHARE)}

    def predict(self, cell: Cell) -> CellPredictions:
        """See `Condition`."""
        width = cell.params["tokens"]["embedding"].shape[-1]
        unit = np.sqrt(np.mean(table_norms(cell) ** 2) / width) if self.protocol == "sigma" else 1
        noise = self.noise._replace(level=self.level * unit, seeds=cell.spec.seeds)
        options = {"noise": noise, "chosen": self.selection(cell)}
        return conditions.predict_split(cell, cell.data.test, cell.predictor, **options)

    def selection(self, cell: Cell) -> np.ndarray:
        """Returns which tokens get noise, `(seeds, rows, choices, tokens)`; raises if none."""
        (ids, words), norms = texts(cell, cell.data.test), table_norms(cell)
        each, share = norms[:, ids], SHARE
        if self.protocol == "sigma":
            cuts = np.quantile(norms[:, used(cell)], [LOW, 1 - HIGH], axis=1)
            low, high = cuts[..., None, None, None]
            members = words & (each >= high if self.corruption == HIGHEST else each <= low)
            share = members.sum(-1) / np.maximum(words.sum(-1), 1)
        draws = np.random.default_rng(0).random(each.shape)
        scores = {LOWEST: -each, HIGHEST: each, RANDOM: draws}[self.corruption]
        one = lambda scores, share, mask: hopfield.select_tokens(scores, share=share, mask=mask)  # noqa: E731
        selected = np.asarray(jnp.vectorize(one, signature="(n),(),(n)->(n)")(scores, share, words))
        if not selected.any():
            name, group = cell.data.spec.name, self.corruption
            raise ValueError(f"{name} must have tokens of {group}, got none in {len(ids)} rows")
        return selected


TESTS = [
    [Selective(protocol=protocol, level=level, corruption=group) for group in GROUPS]
    for protocol, levels in LEVELS.items()
    for level in levels
]


def texts(cell: Cell, rows: Encoded) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of rows in the order of their index, and which tokens are not special."""
    rows = Encoded(*(part[np.argsort(rows.index)] for part in rows))
    words = np.arange(rows.ids.shape[-1]) < rows.lengths[..., None]
    words &= rows.ids != cell.data.vocabulary.sep_id
    words[..., 0] = False
    return rows.ids, words


def used(cell: Cell) -> np.ndarray:
    """Returns the ids of the training texts' tokens, in increasing order."""
    ids, words = texts(cell, cell.data.train)
    return np.unique(ids[words])


def table_norms(cell: Cell) -> np.ndarray:
    """Returns the norms of the trained token embeddings, `(seeds, vocabulary)`."""
    norms = np.linalg.norm(np.asarray(cell.params["tokens"]["embedding"], np.float64), axis=-1)
    return cell.model.config.embedding_scale * norms


def right(predicted: CellPredictions) -> np.ndarray:
    """Returns which predictions are right, `(seeds, rows)`."""
    if predicted.logits.shape[-1] == 1:
        return np.abs(predicted.logits[..., 0] - predicted.labels) <= 1
    return predicted.logits.argmax(-1) == predicted.labels


def rates(clean: np.ndarray, wrong: np.ndarray) -> dict[str, np.ndarray]:
    """Returns each seed's flips in percent by group, their differences, and their log ratio.

    Of right predictions (seeds, rows) without noise, and wrong ones (groups, seeds, rows) with it.
    """
    shares = low, high, random = 100 * (wrong & clean).sum(2) / np.maximum(clean.sum(1), 1)
    gaps = {GAP: low - high, "low - random": low - random}
    with np.errstate(divide="ignore", invalid="ignore"):
        return dict(zip(GROUPS, shares, strict=True)) | gaps | {RATIO: np.log(low / high)}


def flips(cell: Cell) -> Iterator[dict[str, Any]]:
    """Rows of results.csv on flips, and on the share of the words that get noise."""
    clean = right(conditions.predictions(cell, conditions.Gaussian()))
    _, words = texts(cell, cell.data.test)
    for tests in TESTS:
        wrong = np.stack([~right(conditions.predictions(cell, each)) for each in tests])
        columns = {**tests[0].columns(cell), "denoiser": "none", "num_examples": len(clean[0])}
        hits = {each.corruption: each.selection(cell).sum((1, 2, 3)) for each in tests}
        values = {("words hit", group): 100 * hit / words.sum() for group, hit in hits.items()}
        values |= {("flips", name): each for name, each in rates(clean, wrong).items()}
        if (wrong[:2] & clean).sum(2).min() < MIN_FLIPS:
            del values["flips", RATIO]
        for (metric, name), scores in values.items():
            row = {**columns, "metric": metric, "corruption": name}
            if metric == "flips":
                mean = lambda rows: rates(clean[:, rows], wrong[:, :, rows])[name].mean()  # noqa: B023, E731
                row["low"], row["high"] = tidy.bootstrap(len(clean[0]), mean)
            for seed, score in zip(cell.spec.seeds, scores.round(4), strict=True):
                yield {**row, "seed": seed, "score": score}


def norms_of(cell: Cell) -> pd.DataFrame:
    """Returns norms.csv on the trained table, mean over seeds: groups, a histogram and words."""
    norms, (ids, words) = table_norms(cell).mean(0), texts(cell, cell.data.test)
    share = 100 * np.bincount(ids[words], minlength=len(norms)) / words.sum()
    every = pd.DataFrame({"norm": norms, "share": share}, cell.data.vocabulary.tokens)
    known, parts = every.iloc[used(cell)], []
    of = {"count": ("norm", "size"), "mean": ("norm", "mean"), "std": ("norm", "std")}
    of["tokens"] = "share", "sum"  # in percent of the reported texts'
    cuts = np.quantile(known.norm, [LOW, 1 - HIGH])
    for kind, own, bounds in (("paper", every, (1.0, 1.5)), ("used", known, cuts)):
        name = pd.cut(own.norm, [-np.inf, *bounds, np.inf], labels=[LOWEST, "middle", HIGHEST])
        name = name.rename("name")
        parts.append(own.groupby(name, observed=False).agg(**of).assign(kind=kind).reset_index())
    bins = known.groupby([pd.cut(known.norm, 40).rename("bin"), name], observed=True).agg(**of)
    parts.append(bins.reset_index("name").assign(kind="bin"))
    named = every.reindex([*WORDS]).dropna().rename_axis("name").reset_index()
    rank = [100 * np.mean(known.norm < norm) for norm in named.norm]
    parts.append(named.rename(columns={"norm": "mean"}).assign(kind="word", rank=rank))
    return pd.concat(parts)


def intervals(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Returns means over seeds with intervals over seeds and rows, and names for the page."""
    table = tidy.with_rows(tidy.summarize(tidy.scores(frame, metric)), frame, metric)
    names = gaussian.titles(table.task.unique(), table.model.unique())
    table["title"], table["panel"] = table.task.map(names), table.protocol.map(gaussian.PROTOCOLS)
    table["noise"] = [gaussian.noise_label("matched", level) for level in table.level]
    return table.assign(subject=table.title + ", " + table.model.map(names))


def claims(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the verdicts: subject, claim, paper, mean, low, high, verdict."""
    unlearned = {*gaussian.not_learned(tidy.scores(frame), gaussian.constants(frame)).index}
    table, lines, ratios = intervals(frame, "flips"), [], {}
    table = table[table["level"] == table.groupby("protocol")["level"].transform("max")]

    def add(subject: Any, claim: str, paper: float, value: Any, *models: Any) -> None:
        effect, shown = (np.log(paper), np.exp(value)) if "/" in claim else (paper, value)
        verdict = "undefined" if np.isnan(value[0]) else tidy.verdict(value[1], value[2], effect)
        verdict = "not learned" if unlearned & {*models} else verdict
        lines.append((subject, claim, paper, *shown, verdict))

    names = ["task", "model", "subject", "title"]
    for (task, model, subject, title), rows in table.groupby(names, sort=False):
        low, high, tiny = TABLES_19_20.get(str(title), 3 * (np.nan,))
        values = rows.set_index(["protocol", "corruption"])[["mean", "low", "high"]]
        for protocol, name in (("sigma", GAP), ("per-token", GAP), ("sigma", RATIO)):
            value = values.reindex([(protocol, name)]).to_numpy()[0]
            paper = low / high if name == RATIO else low - high
            add(subject, f"{name}, {gaussian.PROTOCOLS[protocol]}", paper, value, (task, model))
        ratios[task, model] = value
        pair = (task, "tinybert"), (task, "pretrained")
        if (task, model) in pair and {*pair} <= ratios.keys():
            ours, theirs = (ratios[each] for each in pair)
            half = np.hypot(ours[2] - ours[1], theirs[2] - theirs[1]) / 2
            value = ours[0] - theirs[0] + np.array([0, -half, half])
            add(title, "TinyBERT / encoder", tiny * high / low, value, *pair)
    return pd.DataFrame(lines, columns=[*tidy.CLAIMS])


def page(folder: Path) -> report.Page:
    """Returns the page of a run."""
    frame, norms = tidy.read(folder), pd.read_csv(folder / "norms.csv")
    table, hit = intervals(frame, "flips"), intervals(frame, "words hit").assign(noise="words hit")
    shown = pd.concat([hit, table[table.corruption != RATIO]])
    shown["line"] = shown.subject + ", " + shown.corruption
    grids = [
        report.grid(rows, "line", "noise", f"Flips, %: {panel}", cell=report.bracketed)
        for panel, rows in shown.groupby("panel", sort=False)
    ]
    axes = {"x": "noise", "hue": "corruption", "row": "subject", "col": "panel"}
    labels = {"xlabel": "noise on the group", "ylabel": "flips, %"}
    groups = table[table.corruption.isin(GROUPS)]
    pictures = {"flips": report.facets("Right predictions that flip", groups, **axes, **labels)}
    norms = norms.merge(table[["task", "model", "subject"]].drop_duplicates())
    norms = norms[norms.kind == "bin"].rename(columns={"mean": "norm", "tokens": "in texts"})
    norms["all tokens"] = 100 * norms["count"] / norms.groupby("subject")["count"].transform("sum")
    norms = norms.melt(["subject", "name", "norm"], ["all tokens", "in texts"], "of", "mean")
    axes = {"x": "norm", "hue": "name", "row": "subject", "col": "of", "xlabel": "norm"}
    norms = norms.assign(low=np.nan, high=np.nan)
    pictures["norms"] = report.facets("Norms", norms, **axes, ylabel="share, %")
    tables = [report.verdicts(claims(frame)), *grids]
    return report.Page("Flips by norm of the noisy tokens", pictures, tables)
