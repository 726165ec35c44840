"""Does retrieval from the vocabulary denoise the inputs of a pretrained encoder?

Claim of Podasca and Das (2026): Hopfield attention pulls noisy embeddings back to clean patterns.
Its patterns are the keys of the same noisy text. Here they are the embeddings of the vocabulary,
which are clean. Nothing is trained.

Command: `python -m experiments memory --pretrained FOLDER --data-dir DIR`; about half an hour on
two cores for six layers of width 384.

Expected: with memory, the score is within 1 point of the clean one down to 4 to 7 dB above the
Shannon limit.

The score is how well the cosine of two texts' embeddings ranks the pairs: Spearman's correlation
with the labels for STS-B, the area under the ROC curve for classes of pairs. Noise is added to the
token embeddings, and every method sees the same noisy embeddings. The prior of a token is its
frequency in the task's training texts. "LayerNorm" gives each noisy embedding the mean 0 and the
root mean square of the vocabulary under that prior. "Wiener filter" is the best linear estimate
from the mean and covariance of the vocabulary under that prior, with known noise level.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy.stats import rankdata

from experiments import report, tidy
from experiments.figures import RHO, SNR
from experiments.models import load_encoder, weights_digest
from experiments.report import Page
from experiments.rundir import open_run
from experiments.settings import Shared, budget_of, by_budget
from hopfax import hopfield
from hopfax.data import (
    TASKS,
    Example,
    WordPiece,
    encode,
    read_tokenizer,
    reported_rows,
    spread,
    training_rows,
)
from hopfax.hopfield import capacity_snr_db
from hopfax.nn import Pretrained, PretrainedOutput
from hopfax.train.progress import Progress

REPRODUCES = "Robertha's claim of denoising, with the vocabulary as memory; not in the paper"
UNSEEN = 0.1  # pseudo-count of every token in the prior
LIMIT = (
    "Shannon limit: below this SNR, no decoder that knows only token frequencies "
    "can recover all tokens. It assumes one noise level per text; with one SNR per token, the "
    "noise level also reveals the token's norm."
)
STABILITY = (
    "Correlation: at a signal-to-noise ratio S, coordinates of noisy and clean embeddings have "
    "ρ = (1 + 1/S)^(-1/2): 0.71 at 0 dB, 0.37 at −8 dB, 0.30 at −10 dB."
)
LAYER_NORM = (
    "LayerNorm: each noisy embedding is standardized, then scaled to the vocabulary's root mean "
    "square."
)
ABSENT = {"none": "None: at no tested SNR.", "all": "All: at every tested SNR."}
NEAR = 1.0  # largest drop in points that counts as keeping the clean score
SIMILAR = {"mrpc": "1", "rte": "entailment", "qqp": "1", "qnli": "entailment"}  # a class of pairs
TITLES = {
    "none": "no denoising",
    "layernorm": "LayerNorm",
    "linear": "Wiener filter, σ known",
    "nearest": "nearest token",
    "uniform": "memory, uniform prior",
    "memory": "memory, frequency prior",
    "known": "memory, frequency prior, σ known",
    "matched": "same SNR for each text",
    "per-token": "same SNR for each token",
    **{name: TASKS[name].title for name in ("stsb", *SIMILAR)},
}
SCORES = {"stsb": "Spearman × 100", **dict.fromkeys(SIMILAR, "area under ROC × 100")}
SCORED = (
    "Scores: 100 times Spearman's rank correlation between cosine similarity and label (STS-B), or "
    "100 times the area under the ROC curve (other tasks): the probability that a paraphrase or an "
    "entailment has a higher cosine than another pair."
)


class Budget(NamedTuple):
    """Size of a run: pairs of texts, noise draws, and signal-to-noise ratios in dB."""

    num_pairs: int
    num_draws: int
    snr_db: tuple[float, ...]


BUDGETS = {
    "smoke": Budget(16, 1, (-6.0,)),
    "laptop": Budget(1500, 1, (6.0, 0.0, -4.0, -8.0, -10.0, -12.0, -14.0, -16.0, -20.0)),
    "paper": Budget(1500, 5, tuple(float(db) for db in range(6, -21, -2))),
}


@dataclass(frozen=True, kw_only=True)
class Config(Shared):
    """Model, texts and noise."""

    task: tuple[Literal["stsb", "mrpc", "rte", "qqp", "qnli"], ...] = ("stsb",)
    """Tasks to measure."""
    protocols: tuple[Literal["matched", "per-token"], ...] = ("matched", "per-token")
    """Same signal-to-noise ratio for each text (matched), or for each token (per-token)."""
    num_pairs: Annotated[int | None, by_budget("num_pairs", "INT", BUDGETS)] = None
    """Number of pairs of texts, evenly spaced in the set: STS-B is sorted by source."""
    num_draws: Annotated[int | None, by_budget("num_draws", "INT", BUDGETS)] = None
    """Number of noise draws."""
    snr_db: Annotated[tuple[float, ...] | None, by_budget("snr_db", "FLOAT ...", BUDGETS)] = None
    """Signal-to-noise ratios in dB."""


def run(config: Config) -> Path:
    """Measures everything and writes the page; see `start` for errors."""
    budget, model, tokens, open_folder = start("memory", config, BUDGETS)
    table = np.asarray(model.table, np.float32)
    draws = range(budget.num_draws)
    cases: list[Any] = list(itertools.product(config.protocols, budget.snr_db, draws))
    # All files are read before the work starts.
    inputs = [
        (name, spread(reported_rows(name, data_dir=config.data_dir), budget.num_pairs),
         training_prior(name, config.data_dir, tokens, len(table)))
        for name in config.task
    ]  # fmt: skip
    folder, frames = open_folder(), []
    with Progress(len(inputs) * len(cases)) as progress:
        for number, (name, rows, log_prior) in enumerate(inputs):
            ids = encoded([row.texts[0][side] for side in (0, 1) for row in rows], tokens)
            denoise, labels = denoiser(table, log_prior), np.array([row.label for row in rows])
            clean, right = [table[text] for text in ids], np.concatenate(ids)
            ends = np.cumsum([len(text) for text in ids])[:-1]
            outputs = unit_outputs(model, clean)
            measured = {("none", "", 0.0): [pair_cosines(outputs)]}
            stable: dict[Any, list[np.ndarray]] = {}
            recovered: dict[Any, list[float]] = {}
            for place, (protocol, db, draw) in enumerate(cases, 1):
                progress.title = f"{TITLES[name]}, {TITLES[protocol]}, {db:g} dB"
                noisy, sigma = add_noise(clean, db, protocol=protocol, seed=draw)
                vectors, decoded = in_batches(denoise, noisy, sigma)
                for method, values in vectors.items():
                    at = method, protocol, db
                    under_noise = unit_outputs(model, np.split(values, ends))
                    measured.setdefault(at, []).append(pair_cosines(under_noise))
                    agreement = np.sum(outputs * under_noise, axis=1)
                    stable.setdefault(at, []).append(agreement)
                    if method in decoded:
                        share = 100 * float(np.mean(decoded[method] == right))
                        recovered.setdefault(at, []).append(share)
                progress.update(number * len(cases) + place)
            rows_of_task = [*results(name, measured, recovered, labels), *stabilities(stable)]
            bits = -float(np.mean(log_prior[right])) / np.log(2)
            limit = float(capacity_snr_db(bits, width=table.shape[1]))
            frames.append(pd.DataFrame(rows_of_task).assign(task=name, limit=limit))
    return report.write_run(folder, pd.concat(frames), page)


def start(
    experiment: str, config: Any, budgets: Mapping[str, Any]
) -> tuple[Any, Pretrained, WordPiece, Callable[[], Path]]:
    """Returns the budget with the flags that were set, the encoder and its tokenizer.

    The last result opens the run's folder; call it after reading the data, whose errors then leave
    no folder behind.

    Raises:
        ValueError: A flag is out of range, or the model is causal.
        FileNotFoundError: A file is missing.
    """
    budget = budget_of(config, budgets)
    if not config.pretrained or not config.data_dir:
        raise ValueError("--pretrained and --data-dir are required, the folders of model and data")
    model, tokens = load_encoder(config.pretrained), read_tokenizer(config.pretrained)
    plan = {"weights": weights_digest(config.pretrained)}
    return budget, model, tokens, partial(open_run, experiment, config, plan=plan)


def encoded(texts: Sequence[str], tokens: WordPiece) -> list[np.ndarray]:
    """Returns the token ids of each text, special tokens included."""
    rows = encode([Example(text, 0, n) for n, text in enumerate(texts)], tokens, cached=False)
    return [ids[:n] for ids, n in zip(rows.ids[:, 0], rows.lengths[:, 0], strict=True)]


def prior(texts: Sequence[np.ndarray], count: int) -> np.ndarray:
    """Returns the log-probability of each token, from its frequency in training texts."""
    counts = np.bincount(np.concatenate(texts), minlength=count) + UNSEEN
    return np.log(counts / counts.sum()).astype(np.float32)


def training_prior(task: str, data_dir: str | None, tokens: WordPiece, count: int) -> np.ndarray:
    """Returns the log-probability of each token, from a task's training texts."""
    texts = [text for row in training_rows(task, data_dir=data_dir) for text in row.texts[0]]
    return prior(encoded(texts, tokens), count)


def add_noise(
    clean: Sequence[np.ndarray], snr_db: float, *, protocol: str, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the noisy embeddings of all texts, concatenated, and their standard deviations."""
    axis = None if protocol == "matched" else 1
    sigma = np.concatenate([
        np.broadcast_to(np.sqrt(np.mean(np.square(text), axis, keepdims=True)), (len(text), 1))
        for text in clean
    ]) * np.float32(10 ** (-snr_db / 20))  # fmt: skip
    vectors = np.concatenate(clean)
    draws = np.random.default_rng(seed).standard_normal(vectors.shape, np.float32)
    return vectors + sigma * draws, sigma[:, 0]


def denoiser(table: np.ndarray, log_prior: np.ndarray) -> Callable[..., Any]:
    """Returns a compiled function of noisy vectors and their noise levels.

    It returns the estimates of vectors by method, and of tokens for methods that have one.
    """
    patterns, prior = jnp.asarray(table), jnp.asarray(log_prior)
    weights = jnp.exp(prior)
    mean = weights @ patterns
    centered = patterns - mean
    values, directions = jnp.linalg.eigh((weights[:, None] * centered).T @ centered)
    rms = jnp.sqrt(weights @ jnp.mean(jnp.square(patterns), axis=1))

    @jax.jit
    def denoise(x: jax.Array, sigma: jax.Array) -> tuple[dict[str, Any], dict[str, Any]]:
        def memory(log_prior: jax.Array | None, sigma: jax.Array | None = None) -> Any:
            one = partial(hopfield.denoise, patterns=patterns, log_prior=log_prior)
            return jax.vmap(lambda x, sigma: one(x, sigma=sigma))(x, sigma)

        gains = values / (values + jnp.square(sigma)[:, None])
        uniform, blind, known = memory(None), memory(prior), memory(prior, sigma)
        return {
            "none": x,
            "layernorm": rms * jax.nn.standardize(x),
            "linear": mean + (((x - mean) @ directions) * gains) @ directions.T,
            "nearest": patterns[uniform.index],
            "uniform": uniform.value,
            "memory": blind.value,
            "known": known.value,
        }, {"nearest": uniform.index, "memory": blind.index, "known": known.index}

    return denoise


def in_batches(
    denoise: Callable[..., Any], noisy: np.ndarray, sigma: np.ndarray, size: int = 2048
) -> Any:
    """Applies `denoise` to all noisy vectors, in batches of one shape."""
    # The last batch repeats its last row.
    places = np.arange(-(-len(noisy) // size) * size).clip(max=len(noisy) - 1).reshape(-1, size)
    parts = [denoise(noisy[rows], sigma[rows]) for rows in places]
    return jax.tree.map(lambda *each: np.concatenate(each)[: len(noisy)], *parts)


def batched_outputs(
    model: Pretrained, vectors: Sequence[np.ndarray]
) -> Iterator[tuple[np.ndarray, PretrainedOutput, np.ndarray]]:
    """Yields the numbers of a batch's texts, the encoder's output, and the mask of its tokens.

    The last batch repeats its last text.
    """
    size, lengths = 32, np.array([len(text) for text in vectors])
    order = np.argsort(lengths, kind="stable")
    for start in range(0, len(order), size):
        rows = order[np.arange(start, start + size).clip(max=len(order) - 1)]
        longest = -(-lengths[rows].max() // 16) * 16  # few shapes to compile
        padded = np.zeros((size, longest, vectors[0].shape[1]), np.float32)
        for place, row in enumerate(rows):
            padded[place, : lengths[row]] = vectors[row]
        mask = np.arange(longest) < lengths[rows][:, None]
        yield rows, model.forward(jnp.asarray(padded), jnp.asarray(mask)), mask


def unit_outputs(model: Pretrained, vectors: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the mean state of each text, scaled to norm 1."""
    means = np.zeros((len(vectors), vectors[0].shape[1]))
    for rows, output, mask in batched_outputs(model, vectors):
        means[rows] = np.where(mask[..., None], output.output, 0).sum(1)
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def pair_cosines(outputs: np.ndarray) -> np.ndarray:
    """Returns the cosine of each pair, whose second texts are the second half of the outputs."""
    first, second = np.split(outputs, 2)
    return np.sum(first * second, axis=1)


def score(task: str, cosines: np.ndarray, labels: np.ndarray) -> float:
    """Returns how well the cosines rank the pairs, times 100."""
    ranks = rankdata(cosines)
    if task == "stsb":
        return 100 * float(np.corrcoef(ranks, rankdata(labels))[0, 1])
    positive = labels == TASKS[task].labels.index(SIMILAR[task])
    count = int(positive.sum())
    if count in (0, len(positive)):
        return float("nan")
    above = ranks[positive].sum() - count * (count + 1) / 2
    return 100 * float(above / (count * np.sum(~positive)))


def results(
    task: str,
    measured: Mapping[tuple[str, str, float], Sequence[np.ndarray]],
    recovered: Mapping[tuple[str, str, float], Sequence[float]],
    labels: np.ndarray,
) -> list[dict[str, Any]]:
    """Returns rows of results.csv: scores, and their change from the clean score.

    Intervals are bootstrap intervals over pairs, of the mean over noise draws.
    """
    table, (clean,) = [], measured["none", "", 0.0]
    for (method, protocol, db), draws in measured.items():
        shared = {**condition(method, protocol, db), "num_examples": len(labels)}
        for metric in ("score", "change") if protocol else ("score",):

            def of_draws(rows: Any, draws: Any = draws, metric: str = metric) -> np.ndarray:
                before = score(task, clean[rows], labels[rows]) if metric == "change" else 0
                return np.array([score(task, each[rows], labels[rows]) - before for each in draws])

            low, high = tidy.bootstrap(len(labels), lambda rows, f=of_draws: f(rows).mean())
            ends = {"metric": metric, "low": round(low, 4), "high": round(high, 4)}
            for seed, value in enumerate(of_draws(slice(None))):
                table.append({**shared, "seed": seed, "score": round(value, 4), **ends})
        for seed, share in enumerate(recovered.get((method, protocol, db), ())):
            table.append({**shared, "seed": seed, "metric": "recovered", "score": round(share, 4)})
    return table


def condition(method: str, protocol: str, db: float) -> dict[str, Any]:
    """Returns the columns of results.csv that say how a measurement was made."""
    noise = {"corruption": "gaussian", "site": "token", "protocol": protocol}
    none = {"corruption": "none", "site": "", "protocol": ""}
    level = {"level": 10 ** (-db / 20) if protocol else 0.0, "snr_db": db if protocol else np.nan}
    return {"model": method, **(noise if protocol else none), **level}


def stabilities(
    stable: Mapping[tuple[str, str, float], Sequence[np.ndarray]],
) -> list[dict[str, Any]]:
    """Returns rows of results.csv: 100 times the mean cosine of outputs with and without noise.

    Intervals are bootstrap intervals over texts, of the mean over noise draws.
    """
    rows = []
    for at, draws in stable.items():
        mean = np.mean(draws, axis=0)
        low, high = tidy.bootstrap(len(mean), lambda texts, mean=mean: mean[texts].mean())
        ends = {"low": round(100 * low, 4), "high": round(100 * high, 4)}
        shared = {**condition(*at), "metric": "stability", "num_examples": len(mean), **ends}
        rows += [
            {**shared, "seed": seed, "score": round(100 * float(each.mean()), 4)}
            for seed, each in enumerate(draws)
        ]
    return rows


def lowest_kept(scores: Mapping[Any, float], clean: float) -> float:
    """Returns the lowest SNR in dB down to which scores stay within `NEAR` of the clean score.

    Scores are by SNR in dB. nan if the drop is larger at the highest SNR.
    """
    lowest = float("nan")
    for snr_db in sorted(scores, reverse=True):
        if scores[snr_db] <= clean - NEAR:
            break
        lowest = float(snr_db)
    return lowest


def absent(lines: Iterable[Sequence[str]], names: Mapping[str, str] = ABSENT) -> str:
    """Returns what a caption says of cells without a number, for those that a table has."""
    cells = {cell for line in lines for cell in line}
    return "".join(f" {words}" for name, words in names.items() if name in cells)


def by_method(
    rows: Any, column: str, order: Iterable[Any] = tuple(TITLES)
) -> dict[Any, dict[float, float]]:
    """Returns a column by method, in a given order, and by SNR in dB."""
    table = {
        name: part.set_index("snr_db")[column].to_dict() for name, part in rows.groupby("model")
    }
    return {name: table[name] for name in order if name in table}


def decibels(value: float) -> str:
    """Formats an SNR, such as "−8.0 dB"; "none" for nan."""
    return f"{report.signed(value)} dB" if value == value else "none"


def page(folder: Path) -> Page:
    """Returns the page of a run or of a folder of published results."""
    frame = tidy.read(folder)
    clean = frame[frame.level == 0].set_index("task").score
    noisy = frame[frame.level > 0]
    keys = ["task", "protocol", "model", "snr_db"]
    means = {"mean": ("score", "mean"), "low": ("low", "first"), "high": ("high", "first"),
             "limit": ("limit", "first")}  # fmt: skip
    lines = noisy.groupby([*keys, "metric"], sort=False, as_index=False).agg(**means)
    lines = lines.assign(clean=lines.task.map(clean))
    lines = lines.sort_values("snr_db", ascending=False, kind="stable")
    lines = lines.assign(rho=(1 + 10 ** (-lines.snr_db / 10)) ** -0.5)
    lines = tidy.ordered(lines, "model", list(TITLES))
    scores, stable = (lines[lines.metric == each] for each in ("score", "stability"))
    first, levels = lines.protocol.iloc[0], list(lines.snr_db.unique())
    counts = frame[frame.level == 0].groupby("task", sort=False).num_examples.max()
    pairs = report.joined(f"{count:,.0f} of {TITLES[str(task)]}" for task, count in counts.items())
    answers, rows, kept = [], [], {}
    for (task, protocol), part in scores.groupby(["task", "protocol"], sort=False):
        name, aim = f"{TITLES[str(task)]}, {TITLES[str(protocol)]}", float(clean.loc[str(task)])
        values = by_method(part, "mean")
        kept[name] = {method: lowest_kept(each, aim) for method, each in values.items()}
        if protocol != first:
            continue
        if (lowest := kept[name]["memory"]) in levels:
            at = tidy.select(lines, task=task, protocol=protocol, snr_db=lowest)
            at = at.set_index(["model", "metric"])
            change = report.plain_interval(at.loc[[("memory", "change")]].iloc[0])
            plain = report.bracketed(at.loc[("none", "score")])
            answers.append(
                f"**On {TITLES[str(task)]}, memory with a frequency prior keeps the mean score "
                f"within {NEAR:g} point of the clean score ({aim:.1f}) down to "
                f"{decibels(lowest)}** (change: {change}). Without memory, the score at this SNR "
                f"is {plain}."
            )
            cosine = tidy.select(stable, task=task, protocol=protocol, snr_db=lowest)
            cosine = cosine.set_index("model")["mean"] / 100
            if len(answers) == 1 and len(levels) > 1:
                answers.append(
                    "At this SNR, the cosine of noisy and clean outputs (second picture) is "
                    f"{cosine.memory:.2f} with memory, and {cosine.none:.2f} without."
                )
        else:
            answers.append(
                f"**On {TITLES[str(task)]}, memory with a frequency prior keeps the score "
                f"within {NEAR:g} point of the clean score ({aim:.1f}) at no tested SNR.**"
            )
        tokens = tidy.select(lines, metric="recovered", task=task, protocol=protocol)
        values = {TITLES[method]: each for method, each in values.items()}
        values["tokens recovered, %"] = by_method(tokens, "mean")["memory"]
        rows += [
            [f"{TITLES[str(task)]}, {title}", *(report.number(each[snr_db]) for snr_db in levels)]
            for title, each in values.items()
        ]
    reached = [
        [TITLES[method], *(decibels(each[method]) for each in kept.values())]
        for method in next(iter(kept.values()))
    ]
    return report.Page(
        title="Retrieval from the vocabulary: a pretrained encoder under noise, without training",
        answer=" ".join(answers),
        pictures={
            "memory": report.facets(
                "Score of text similarity against noise on the token embeddings, 95 % bands (the "
                "table has more methods)",
                scores[~scores.model.isin(["layernorm", "uniform", "known"])],
                x="snr_db",
                col="protocol",
                row="task",
                titles=TITLES,
                xlabel=SNR,
                ylabel=SCORES,
            ),
            "stability": stability_picture(stable),
        },
        tables=[
            report.Table(
                ["", *kept],
                reached,
                f"Lowest tested SNR down to which the score is within {NEAR:g} point of the clean "
                f"score (lower is better).{absent(reached)}",
            ),
            report.Table(
                ["", *map(decibels, levels)],
                rows,
                f"Scores by SNR, {TITLES[first]}.",
            ),
        ],
        notes=[
            SCORED,
            "Memory: each token embedding is replaced by its posterior mean, given the vocabulary "
            "as patterns and a uniform prior or token frequencies. Nearest token: the most "
            "probable token under the uniform prior.",
            "Every method sees the same noisy copy of each text. Without `σ known`, memory does "
            "not know the noise level and integrates over it.",
            *([LAYER_NORM] if "layernorm" in set(frame.model) else []),
            "Wiener filter: the best linear estimate from the vocabulary's mean and covariance.",
            "Tokens recovered: with memory; special tokens included.",
            f"Pairs: {pairs}. Noise draws per text: {noisy.seed.nunique()}. Brackets and bands: "
            "95 % bootstrap over pairs, of the mean over draws.",
            f"Within {NEAR:g} point: the mean over these pairs and draws; with few pairs, another "
            "draw can differ by more.",
            LIMIT,
            STABILITY,
        ],
    )  # fmt: skip


def stability_picture(stable: pd.DataFrame) -> report.Picture:
    """Returns the picture of the stability of the outputs against the correlation ρ."""
    shown = stable[stable.model.isin(["none", "linear", "nearest", "memory"])]
    return report.facets(
        "Stability: 100 × cosine of a text's outputs with and without noise, against the "
        "correlation ρ of the embeddings (high ρ: little noise)",
        shown.drop(columns=["limit", "clean"]),
        x="rho",
        col="protocol",
        row="task",
        titles=TITLES,
        xlabel=RHO,
        ylabel="stability × 100",
    )
