"""What the experiments on memory share, from the texts of a task to scores with intervals.

`add_noise` adds noise to the vectors of tokens, `denoiser` has the methods that replace noisy ones,
`unit_outputs` runs the encoder, and `under_noise` measures how well the cosine of two texts'
outputs ranks pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy.special import log_softmax
from scipy.stats import rankdata, spearmanr

from experiments import report, tidy
from experiments.cells import log_frequencies, wiener
from experiments.models import load_encoder, weights_digest
from experiments.runner import Job
from experiments.settings import budget_of
from hopfax import data, hopfield
from hopfax.data import TASKS, WordPiece
from hopfax.nn import Pretrained, PretrainedOutput

SIMILAR = {"mrpc": "1", "rte": "entailment", "qqp": "1", "qnli": "entailment"}  # a class of pairs
SCORES = {"stsb": "Spearman × 100", **dict.fromkeys(SIMILAR, "area under ROC × 100")}
TITLES = {
    "none": "no denoising",
    "linear": "Wiener filter, σ known",
    "nearest": "nearest token",
    "uniform": "memory, uniform prior",
    "memory": "memory, frequency prior",
    "matched": "same SNR for each text",
    "per-token": "same SNR for each token",
    **{name: spec.title for name, spec in TASKS.items()},
}


class Encoder(NamedTuple):
    """A pretrained encoder, and the folder of the tasks whose texts it reads."""

    model: Pretrained
    tokens: WordPiece
    table: np.ndarray  # vectors of the vocabulary
    plan: Mapping[str, str]  # hash of its weights, for `runner.fill`
    data_dir: str


class Pairs(NamedTuple):
    """Pairs of texts of a task."""

    task: str
    ids: list[np.ndarray]  # token ids of the first texts of all pairs, then of the second ones
    labels: np.ndarray


class Budget(NamedTuple):
    """Size of a run; the experiments use the fields that they have flags for."""

    num_pairs: int  # rows of a task
    num_draws: int  # of noise
    snr_db: tuple[float, ...]
    num_steps: int = 0  # of training or of attacks
    radii: tuple[float, ...] = ()  # of attacks, in RMS norms of a token


Rows = list[dict[str, Any]]  # of results.csv
# A function of noisy vectors and noise levels of all tokens, in one array each. Returns the vectors
# of each text by method, and the estimates of all tokens, or None.
Methods = Callable[[np.ndarray, np.ndarray], Mapping[str, tuple[Sequence[np.ndarray], Any]]]


def start(config: Any, budgets: Mapping[str, Any]) -> tuple[Any, Encoder]:
    """Returns the budget with the flags that were set, and the encoder.

    Raises:
        ValueError: A flag is out of range, or the model is causal.
        FileNotFoundError: A file is missing.
    """
    budget = budget_of(config, budgets)
    if not config.pretrained or not config.data_dir:
        raise ValueError("--pretrained and --data-dir are required, the folders of model and data")
    model, tokens = load_encoder(config.pretrained), data.read_tokenizer(config.pretrained)
    table = np.asarray(model.table, np.float32)
    plan = {"weights": weights_digest(config.pretrained)}
    return budget, Encoder(model, tokens, table, plan, config.data_dir)


def job(title: str, part: Callable[[], Rows], **columns: Any) -> Job:
    """Returns a job from a function that returns rows, which may replace the columns."""
    return Job(title, lambda _: {"results": [{**columns, **row} for row in part()]})


def encoded(texts: Sequence[str], tokens: WordPiece) -> list[np.ndarray]:
    """Returns the token ids of each text, special tokens included."""
    examples = [data.Example(text, 0, number) for number, text in enumerate(texts)]
    rows = data.encode(examples, tokens)
    return [ids[:n] for ids, n in zip(rows.ids[:, 0], rows.lengths[:, 0], strict=True)]


def read_pairs(encoder: Encoder, task: str, count: int) -> tuple[Pairs, list[tuple[str, str]]]:
    """Returns evenly spaced reported pairs of a task, also as text."""
    rows = data.evenly_spaced(data.task_rows(task, "test", data_dir=encoder.data_dir), count)
    texts = [row.texts[0] for row in rows]
    ids = encoded([pair[side] for side in (0, 1) for pair in texts], encoder.tokens)
    return Pairs(task, ids, np.array([row.label for row in rows])), texts


def prior(texts: Sequence[np.ndarray], count: int) -> np.ndarray:
    """Returns the log-probability of each token, from its frequency in training texts."""
    return log_softmax(log_frequencies(np.concatenate(texts), count)).astype(np.float32)


def training_prior(encoder: Encoder, task: str) -> np.ndarray:
    """Returns the log-probability of each token, from a task's training texts."""
    rows = data.task_rows(task, "train", data_dir=encoder.data_dir)
    texts = [text for row in rows for text in row.texts[0]]
    return prior(encoded(texts, encoder.tokens), len(encoder.table))


def rms_norm(vectors: np.ndarray) -> float:
    """Returns the root mean square norm of vectors."""
    return float(np.sqrt(np.mean(np.sum(np.square(vectors), axis=-1))))


def noise_level(snr_db: float) -> float:
    """Returns σ over the signal's root mean square."""
    return 10 ** (-snr_db / 20)


def add_noise(
    clean: Sequence[np.ndarray], snr_db: float, *, protocol: str, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the noisy vectors of all texts, concatenated, and their noise levels σ."""
    axis = None if protocol == "matched" else 1
    sigma = np.concatenate([
        np.broadcast_to(np.sqrt(np.mean(np.square(text), axis, keepdims=True)), (len(text), 1))
        for text in clean
    ]) * np.float32(noise_level(snr_db))  # fmt: skip
    vectors = np.concatenate(clean)
    draws = np.random.default_rng(seed).standard_normal(vectors.shape, np.float32)
    return vectors + sigma * draws, sigma[:, 0]


def denoiser(table: np.ndarray, log_prior: np.ndarray) -> Callable[..., Any]:
    """Returns a compiled function of noisy vectors and their noise levels.

    It returns the estimates of vectors and of tokens by method; "known" knows the noise level.
    """
    patterns, prior = jnp.asarray(table), jnp.asarray(log_prior)

    @jax.jit
    def denoise(x: jax.Array, sigma: jax.Array) -> tuple[dict[str, Any], dict[str, Any]]:
        def memory(log_prior: jax.Array | None, sigma: jax.Array | None = None) -> Any:
            one = partial(hopfield.denoise, patterns=patterns, log_prior=log_prior)
            return jax.vmap(lambda x, sigma: one(x, sigma=sigma))(x, sigma)

        uniform, blind = memory(None), memory(prior)
        tokens = {"nearest": uniform.index, "memory": blind.index}
        return {
            "none": x,
            "linear": jax.vmap(lambda x, sigma: wiener(x, patterns, prior, sigma))(x, sigma),
            "nearest": patterns[uniform.index],
            "uniform": uniform.value,
            "memory": blind.value,
        }, {**tokens, "known": memory(prior, sigma).index}

    return denoise


def batches(count: int, size: int) -> np.ndarray:
    """Returns the numbers of the members of each batch; the last repeats its last member."""
    return np.arange(-(-count // size) * size).clip(max=count - 1).reshape(-1, size)


def in_batches(
    function: Callable[..., Any], x: np.ndarray, other: np.ndarray, size: int = 2048
) -> Any:
    """Applies a function to the rows of two arrays, in batches of one shape."""
    parts = [function(x[rows], other[rows]) for rows in batches(len(x), size)]
    return jax.tree.map(lambda *each: np.concatenate(each)[: len(x)], *parts)


def padded(parts: Sequence[np.ndarray], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns arrays of one length, padded with zeros, and the mask of real entries."""
    mask = np.arange(length) < np.array([[len(part)] for part in parts])
    whole = np.zeros((*mask.shape, *parts[0].shape[1:]), parts[0].dtype)
    whole[mask] = np.concatenate(parts)
    return whole, mask


def batched_outputs(
    model: Pretrained, vectors: Sequence[np.ndarray]
) -> Iterator[tuple[np.ndarray, PretrainedOutput, np.ndarray]]:
    """Yields the numbers of a batch's texts, the encoder's output, and the mask of its tokens.

    The last batch repeats its last text.
    """
    order = np.argsort([len(text) for text in vectors], kind="stable")
    for rows in order[batches(len(order), 32)]:
        texts = [np.asarray(vectors[row], np.float32) for row in rows]
        longest = -(-len(texts[-1]) // 16) * 16  # few shapes to compile
        embeddings, mask = padded(texts, longest)
        yield rows, model.forward(jnp.asarray(embeddings), jnp.asarray(mask)), mask


def unit_outputs(model: Pretrained, vectors: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the mean state of each text, scaled to norm 1."""
    means = np.zeros((len(vectors), vectors[0].shape[1]))
    for rows, output, mask in batched_outputs(model, vectors):
        means[rows] = np.where(mask[..., None], output.output, 0).sum(1)
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def score(task: str, cosines: np.ndarray, labels: np.ndarray) -> float:
    """Returns how well the cosines rank the pairs, times 100.

    It is Spearman's correlation with the labels for STS-B, and the area under the ROC curve for
    classes: the probability that a similar pair has a higher cosine than another one.
    """
    if task == "stsb":
        correlation: Any = spearmanr(cosines, labels)
        return 100 * float(correlation.statistic)
    positive = labels == TASKS[task].labels.index(SIMILAR[task])
    if positive.all() or not positive.any():
        return float("nan")
    above = rankdata(cosines)[positive].mean() - (positive.sum() + 1) / 2
    return 100 * float(above / np.sum(~positive))


def interval(count: int, statistic: Callable[[np.ndarray], Any]) -> dict[str, float]:
    """Returns a statistic of all units, and its bootstrap interval."""
    low, high = tidy.bootstrap(count, statistic)
    return {"score": float(statistic(np.arange(count))), "low": float(low), "high": float(high)}


def condition(method: str, protocol: str = "", snr_db: float = np.nan) -> dict[str, Any]:
    """Returns the columns of results.csv that say how a measurement was made."""
    if not protocol:
        return {"model": method, "corruption": "none", "level": 0.0}
    noise = {"corruption": "gaussian", "site": "token", "protocol": protocol}
    return {"model": method, **noise, "level": noise_level(snr_db), "snr_db": snr_db}


def score_rows(at: Mapping[str, Any], pairs: Pairs, outputs: Sequence[np.ndarray]) -> Rows:
    """Returns rows of results.csv of one condition, one a noise draw, from unit outputs.

    Intervals are bootstrap intervals over pairs, of the mean over draws.
    """
    cosines = [np.sum(np.multiply(*np.split(each, 2)), axis=1) for each in outputs]
    count = len(pairs.labels)

    def scores(rows: Any) -> np.ndarray:
        return np.array([score(pairs.task, each[rows], pairs.labels[rows]) for each in cosines])

    low, high = tidy.bootstrap(count, lambda rows: scores(rows).mean()).round(4)
    shared = {**at, "metric": "score", "low": low, "high": high, "num_examples": count}
    of_draws = scores(slice(None)).round(4)
    return [{**shared, "seed": seed, "score": each} for seed, each in enumerate(of_draws)]


def under_noise(
    encoder: Encoder,
    pairs: Pairs,
    methods: Methods,
    cases: Sequence[tuple[str, float]],
    num_draws: int,
    on_progress: Callable[..., None],
) -> Rows:
    """Returns rows of results.csv of pairs, without noise and in each case for each method.

    The metrics are the score, and the share of tokens recovered by methods that estimate them.
    Cases are protocols and signal-to-noise ratios; all methods see the same noisy vectors.
    """
    vectors, ids = [encoder.table[text] for text in pairs.ids], np.concatenate(pairs.ids)
    rows = score_rows(condition("none"), pairs, [unit_outputs(encoder.model, vectors)])
    for done, (protocol, snr_db) in enumerate(cases, 1):
        outputs: dict[str, list[np.ndarray]] = {}
        for seed in range(num_draws):
            noisy = add_noise(vectors, snr_db, protocol=protocol, seed=seed)
            for method, (values, tokens) in methods(*noisy).items():
                outputs.setdefault(method, []).append(unit_outputs(encoder.model, values))
                if tokens is not None:
                    at = {**condition(method, protocol, snr_db), "num_examples": len(pairs.labels)}
                    share = round(100 * float(np.mean(tokens == ids)), 4)
                    rows.append({**at, "metric": "recovered", "seed": seed, "score": share})
        for method, draws in outputs.items():
            rows += score_rows(condition(method, protocol, snr_db), pairs, draws)
        on_progress(done / len(cases))
    return rows


def means(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Returns the means over draws of a metric of `under_noise`, by task, protocol, method, SNR."""
    rows = frame[(frame.metric == metric) & (frame.level > 0)]
    keys = ["task", "protocol", "model", "snr_db"]
    ends = {"mean": ("score", "mean"), "low": ("low", "first"), "high": ("high", "first")}
    table = rows.groupby(keys, sort=False, as_index=False).agg(**ends)
    table = table.sort_values("snr_db", ascending=False, kind="stable")
    return tidy.ordered(table, "model", list(TITLES))


def decibels(value: float) -> str:
    """Formats an SNR, such as "−8.0 dB"; "none" for nan."""
    return f"{report.signed(value)} dB" if value == value else "none"
