"""Which tokens can be recovered from noisy embeddings with the vocabulary, and which stay hidden?

Claims: nearest neighbors read 42.1 % of MRPC's tokens from vectors with Gaussian noise, a search
with a language model 74.3 % (Kale et al., 2025, BeamClean, arXiv 2505.13758). The word nearest to a
noisy vector is the original or an unrelated one (Asghar et al., 2024, arXiv 2411.13784).

Command: `python -m experiments memory-recovery --pretrained FOLDER --data-dir DIR`; two minutes on
two cores for width 384.

Expected: without a prior, frequent words, whose vectors are short, are lost first. Most errors are
unrelated words. With a prior, an error changes the encoder's output about half as much as a random
token does.

All tokens get noise of one σ, as where it is added for privacy; the signal-to-noise ratio is that
of all texts. Special tokens are left out. One decoder returns the nearest token of the vocabulary,
the other uses the tokens' frequencies in the training texts as prior; neither knows σ. Predictions
(`hopfax.hopfield.recovery_rate`) are for decoders that do, and treat confusions with other tokens
as independent, which underestimates recovery at low SNR. Kinds of errors are assigned by string
rules; unrelated are all errors of no other kind, so also synonyms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import softmax
from scipy.stats import entropy

from experiments import report, tidy
from experiments.figures import SNR, Panel
from experiments.memory import pipeline
from experiments.memory.pipeline import TITLES, Budget, Encoder, Rows
from experiments.report import Page
from experiments.runner import fill
from experiments.settings import Shared, by_budget
from hopfax import hopfield
from hopfax.data import reported_rows, spread
from hopfax.data.tokenize import text_tokenizer

REPRODUCES = "BeamClean (2505.13758), d_X-privacy (2411.13784)"
EXPLAINED = -12.0  # dB, of the bins and of the harm
NUM_BINS = 6
FEW_ERRORS = 20  # of fewer, no shares are given
# Function words, then groups of inflected forms of one word.
WORDS, FORMS = Path(__file__).with_name("words.txt").read_text("utf-8").split("\n\n")
FUNCTION_WORDS = frozenset(WORDS.split())
IRREGULAR = tuple(frozenset(line.split()) for line in FORMS.splitlines())
ENDINGS = ("ings", "ing", "ers", "er", "ied", "ies", "ed", "es", "est", "ly", "d", "s", "y", "e")
KINDS = {
    "inflection": "inflection",
    "signs": "numbers or punctuation",
    "function": "function words",
    "unrelated": "unrelated",
}
DECODERS = ("nearest", "memory")
PROPERTIES = {
    "frequency": "log₁₀ frequency",
    "norm": "norm of the token's vector",
    "distance": "distance to the nearest token's vector",
}


LEVELS = (-4.0, -6.0, -8.0, -10.0, -12.0, -14.0, -16.0, -20.0)
BUDGETS = {
    "smoke": Budget(10, 1, (EXPLAINED,)),
    "laptop": Budget(60, 1, LEVELS),
    "paper": Budget(408, 10, LEVELS),
}


@dataclass(frozen=True, kw_only=True)
class Config(Shared):
    """Model, texts and noise."""

    task: Literal["mrpc", "stsb", "sst2"] = "mrpc"
    """Task whose texts are read."""
    num_pairs: Annotated[int | None, by_budget("num_pairs", "INT", BUDGETS)] = None
    """Rows of the task, evenly spaced."""
    num_draws: Annotated[int | None, by_budget("num_draws", "INT", BUDGETS)] = None
    """Independent noise draws."""
    snr_db: Annotated[tuple[float, ...] | None, by_budget("snr_db", "FLOAT ...", BUDGETS)] = None
    """Signal-to-noise ratios in dB."""


class Texts(NamedTuple):
    """All tokens of the texts in one sequence, and what they are read with."""

    ids: np.ndarray  # without special tokens
    row: np.ndarray  # number of each token's row of the task, of one or two texts
    text: np.ndarray  # number of its text
    position: np.ndarray  # its position in the text
    all_ids: Sequence[np.ndarray]  # token ids of each text, with special tokens
    tokens: Sequence[str]  # the vocabulary
    table: np.ndarray  # its vectors
    log_prior: np.ndarray  # log-frequencies in the training texts
    output: Callable[[Sequence[np.ndarray]], np.ndarray]  # the encoder's unit outputs of texts


def run(config: Config) -> Path:
    """Measures everything and writes the page; see `pipeline.start` for errors."""
    budget, encoder = pipeline.start(config, BUDGETS)
    log_prior = pipeline.training_prior(encoder, config.task)
    special = text_tokenizer(encoder.tokens).encode("").ids
    texts = read(encoder, config.task, budget.num_pairs, log_prior, special)
    decode = decoder(encoder.table, log_prior)
    without = np.where(np.isin(np.arange(len(log_prior)), special), -np.inf, log_prior)
    columns = {"task": config.task, "corruption": "gaussian", "site": "token", "seed": 0}
    job = partial(pipeline.job, protocol="one-sigma", **columns)
    jobs = [
        *(job(pipeline.decibels(db), partial(measure, texts, decode, db, budget.num_draws))
          for db in budget.snr_db),
        job("limits", partial(limits, encoder.table, without)),
    ]  # fmt: skip
    return fill("memory-recovery", config, jobs, page, plan=encoder.plan)


def read(
    encoder: Encoder, task: str, count: int, log_prior: np.ndarray, special: Sequence[int]
) -> Texts:
    """Reads evenly spaced rows of a task."""
    rows = spread(reported_rows(task, data_dir=encoder.data_dir), count)
    texts = pipeline.encoded([text for row in rows for text in row.texts[0]], encoder.tokens)
    row_of_text = np.repeat(np.arange(len(rows)), [len(row.texts[0]) for row in rows])
    lengths = [len(text) for text in texts]
    ids, text = np.concatenate(texts), np.repeat(np.arange(len(texts)), lengths)
    position, kept = np.concatenate([*map(np.arange, lengths)]), ~np.isin(ids, special)
    return Texts(
        ids[kept], row_of_text[text[kept]], text[kept], position[kept], texts,
        encoder.tokens.tokens, encoder.table, log_prior,
        partial(pipeline.unit_outputs, encoder.model),
    )  # fmt: skip


def decoder(table: np.ndarray, log_prior: np.ndarray) -> Callable[..., dict[str, jax.Array]]:
    """Returns a compiled function of noisy vectors and sigma: the token ids of each decoder."""
    denoise = pipeline.denoiser(table, log_prior)
    return jax.jit(lambda x, sigma: {name: denoise(x, sigma)[1][name] for name in DECODERS})


def measure(texts: Texts, decode: Callable[..., Any], db: float, num_draws: int) -> Rows:
    """Returns the rows of results.csv for a signal-to-noise ratio in dB."""
    ids, row, table, log_prior = texts.ids, texts.row, texts.table, texts.log_prior
    draws, sigma, estimates = [], np.zeros(0), []
    for seed in range(num_draws):
        noisy, sigma = pipeline.add_noise([table[ids]], db, protocol="matched", seed=seed)
        draws.append(pipeline.in_batches(decode, noisy, sigma))
        estimates.append(estimated_sigma(noisy, texts.text, table, log_prior) / sigma[0] - 1)
    distinct, places = np.unique(ids, return_inverse=True)
    rows: Rows = []
    for name, bias in (("nearest", np.zeros_like(log_prior)), ("memory", log_prior)):
        decoded = np.array([draw[name] for draw in draws])
        right = np.mean(decoded == ids, axis=0)
        patterns, prior, index = map(jnp.asarray, (table, bias, distinct))
        rates = np.asarray(
            hopfield.recovery_rate(patterns, sigma=float(sigma[0]), log_prior=prior, index=index)
        )[places]
        of_decoder = [
            {"metric": "recovered", "group": "all", **share(right, row, ids >= 0)},
            {"metric": "predicted", "group": "all", "score": 100 * float(rates.mean())},
            *errors(ids, decoded, texts.tokens),
        ]
        if db == EXPLAINED:
            of_decoder += harm(texts, decoded[0])
            distances = 2 * np.asarray(hopfield.certified_radius(jnp.asarray(table)))
            values = log_prior / np.log(10), np.linalg.norm(table, axis=1), distances
            for group, each in zip(PROPERTIES, values, strict=True):
                bins = binned(each[ids], right, rates, row)
                of_decoder += [{"group": group, **each} for each in bins]
        rows += [{"model": name, **each} for each in of_decoder]
    error = 100 * float(np.sqrt(np.mean(np.square(estimates))))
    rows.append({"model": "memory", "metric": "sigma error", "group": "all", "score": error})
    shared = {"level": pipeline.noise_level(db), "snr_db": db, "num_examples": len(ids)}
    return [{**shared, **each} for each in rows]


def limits(table: np.ndarray, log_prior: np.ndarray) -> Rows:
    """Returns rows of `hopfield.capacity_snr_db`, for white signal and for the table's spectrum."""
    prior = softmax(log_prior)
    centered = table - prior @ table
    spectrum = np.linalg.eigvalsh(centered.T @ (prior[:, None] * centered))
    spectrum = np.maximum(spectrum, 0) / (prior @ np.square(table).sum(axis=1))
    bits, spectra = float(entropy(prior, base=2)), {"white": None, "table": jnp.asarray(spectrum)}
    limit = partial(hopfield.capacity_snr_db, bits, width=table.shape[1])
    return [
        {"model": "memory", "metric": "limit", "group": name, "score": float(limit(spectrum=each))}
        for name, each in spectra.items()
    ]


def estimated_sigma(
    noisy: np.ndarray, text: np.ndarray, table: np.ndarray, log_prior: np.ndarray
) -> jax.Array:
    """Returns the noise level as estimated from each text alone."""
    x, patterns, prior = map(jnp.asarray, (noisy, table, log_prior))
    estimate = partial(hopfield.estimate_sigma, x, patterns, log_prior=prior)
    return jax.vmap(lambda mask: estimate(mask=mask))(text == np.unique(text)[:, None])


def ratio(ours: np.ndarray, theirs: np.ndarray, row: np.ndarray) -> dict[str, float]:
    """Returns the sum of `ours` in percent of that of `theirs`, with a bootstrap over the rows."""
    count = row.max() + 1
    ours, theirs = (np.bincount(row, each, count) for each in (ours, theirs))

    def of_rows(rows: np.ndarray) -> float:
        total = theirs[rows].sum()
        return 100 * ours[rows].sum() / total if total else np.nan

    return pipeline.interval(count, of_rows)


def share(right: np.ndarray, row: np.ndarray, member: np.ndarray) -> dict[str, float]:
    """Returns the mean of `right` over the member tokens in percent, see `ratio`."""
    return ratio(right * member, member, row)


def binned(values: np.ndarray, right: np.ndarray, rates: np.ndarray, row: np.ndarray) -> Rows:
    """Returns measured and predicted rates in bins of equally many tokens, by their `values`."""
    edges = np.unique(np.quantile(values, np.linspace(0, 1, NUM_BINS + 1)[1:-1]))
    home, rows = np.searchsorted(edges, values, side="right"), []
    for number in np.unique(home):
        member = home == number
        place, score = float(values[member].mean()), 100 * float(rates[member].mean())
        rows += [
            {"metric": "measured", "place": place, **share(right, row, member)},
            {"metric": "predicted", "place": place, "score": score},
        ]
    return rows


def errors(ids: np.ndarray, decoded: np.ndarray, tokens: Sequence[str]) -> Rows:
    """Returns the share of each kind among the errors of all draws."""
    pairs = [(int(v), int(w)) for each in decoded for v, w in zip(ids, each, strict=True) if v != w]
    kinds = Counter(kind(tokens[v], tokens[w]) for v, w in pairs)
    return [
        {"metric": "errors", "group": name, "score": 100 * kinds[name] / len(pairs),
         "num_examples": len(pairs)}
        for name in KINDS if pairs
    ]  # fmt: skip


def harm(texts: Texts, decoded: np.ndarray) -> Rows:
    """Returns how much one error changes the encoder's output, by kind of error, and for all kinds.

    The change is 1 minus the cosine with the clean output, in percent of the change by uniformly
    random tokens of the vocabulary in the same positions. Each error is alone in its text.
    """
    wrong = np.nonzero(decoded != texts.ids)[0]
    if not len(wrong):
        return []
    row, text = texts.row[wrong], texts.text[wrong]
    clean = texts.output([texts.table[ids] for ids in texts.all_ids])[text]

    def of(tokens: np.ndarray) -> np.ndarray:
        changed = [texts.table[texts.all_ids[each]] for each in text]
        for vectors, position, token in zip(changed, texts.position[wrong], tokens, strict=True):
            vectors[position] = texts.table[token]
        return 1 - np.sum(texts.output(changed) * clean, axis=1)

    random = np.random.default_rng(0).integers(len(texts.table), size=len(wrong))
    names, pairs = texts.tokens, np.stack([texts.ids[wrong], decoded[wrong]], axis=1)
    kinds = np.array([kind(names[int(v)], names[int(w)]) for v, w in pairs])
    ours, theirs, rows = of(decoded[wrong]), of(random), []
    for name in (*KINDS, "all"):
        member = (kinds == name) | (name == "all")
        if member.any():
            value = ratio(ours * member, theirs * member, row)
            rows.append({"metric": "harm", "group": name, **value, "num_examples": member.sum()})
    return rows


def kind(token: str, decoded: str) -> str:
    """Returns the kind of an error, a key of `KINDS`, by the letters of the two tokens."""
    first, second = bare(token), bare(decoded)
    if any(first in words and second in words for words in IRREGULAR) or (
        first.isalpha() and second.isalpha() and stem(first) == stem(second)
    ):
        return "inflection"
    if not any(map(str.isalpha, first + second)):
        return "signs"
    if first in FUNCTION_WORDS and second in FUNCTION_WORDS:
        return "function"
    return "unrelated"


def bare(token: str) -> str:
    """Returns a token in lower case, without the mark of a word's start or continuation."""
    return token.lower().removeprefix("##").removeprefix("ġ") or token


def stem(word: str) -> str:
    """Returns a word without its English ending, a doubled consonant undoubled."""
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending)
            break
    return word[:-1] if len(word) > 3 and (word[-1] == word[-2] or word[-1] in "ei") else word


def page(folder: Path) -> Page:
    """Returns the page of a run."""
    frame = tidy.read(folder)
    frame = frame.assign(mean=frame.score).sort_values("snr_db", ascending=False, kind="stable")
    names = {**TITLES, **KINDS, "recovered": "measured", "sigma error": "error of σ"}
    panels = {"all": ("All tokens", SNR)} | {
        name: (f"By {name}, at {pipeline.decibels(EXPLAINED)}", title)
        for name, title in PROPERTIES.items()
    }
    keys = ["group", "model", "x"]
    drawn = frame.assign(x=frame.place.fillna(frame.snr_db) if "place" in frame else frame.snr_db)
    formula = drawn[drawn.metric == "predicted"].set_index(keys).score.rename("formula")
    points = drawn[drawn.metric.isin(["recovered", "measured"])].join(formula, on=keys)
    rates = frame[frame.metric.isin(["recovered", "predicted", "sigma error"])]
    rates = rates[rates.group == "all"]
    rates = rates.assign(line=rates.model.map(TITLES) + ": " + rates.metric.replace(names))
    many = tidy.ordered(frame[frame.num_examples >= FEW_ERRORS], "group", [*KINDS])
    kinds = tidy.select(many, metric="errors", model="nearest")
    return Page(
        title="Tokens recovered from noisy embeddings",
        pictures={
            "recovery": report.panels(
                "Tokens recovered, by SNR and token properties", points, col="group", x="x",
                hue="model", titles=TITLES,
                specs={name: Panel(*words, "tokens recovered, %", formula="predicted")
                       for name, words in panels.items()},
            )
        },
        tables=[
            pipeline.grid(rates, "line", "snr_db", "Tokens recovered, and error of σ, %"),
            pipeline.grid(kinds, "group", "snr_db", "Errors of the nearest token, %", titles=names),
            pipeline.grid(many[many.metric == "harm"], "group", "model", titles=names,
                          caption="Change by errors, % of random tokens",
                          cell=lambda row: report.bracketed(row, 0)),
        ],
    )  # fmt: skip
