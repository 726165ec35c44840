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
the other uses the tokens' frequencies in the training texts as prior; neither knows σ.
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
import pandas as pd
from scipy.special import softmax
from scipy.stats import entropy

from experiments import report, tidy
from experiments.figures import SNR, Panel
from experiments.memory import similarity
from experiments.memory.similarity import (
    Budget,
    add_noise,
    decibels,
    denoiser,
    encoded,
    in_batches,
)
from experiments.report import Page
from experiments.settings import Shared, by_budget
from hopfax import hopfield
from hopfax.data import reported_rows, spread
from hopfax.data.tokenize import text_tokenizer
from hopfax.train.progress import Progress

REPRODUCES = "Privacy of noisy embeddings: BeamClean (2505.13758), d_X-privacy (2411.13784)"
EXPLAINED = -12.0  # dB, of the bins
NUM_BINS = 6
FEW_ERRORS = 20  # of fewer, no shares are given
NEARLY_ALL = 99.5  # % of the tokens; the few errors above have no shares worth quoting
BEAMCLEAN = {"nearest": 42.1, "language model": 74.3}
WORDS = (
    "a about after against all also am an and another any are as at back be because been before "
    "being between both but by can could did do does down during each few for from had has have "
    "having he her here hers him his how i if in into is it its just may me might more most must "
    "my no nor not now of off on one only or other our out over own s same shall she should so "
    "some such t than that the their them then there these they this those through to too under "
    "until up us very was we were what when where which while who whom why will with would you "
    "your"
)
FUNCTION_WORDS = frozenset(WORDS.split())
IRREGULAR = tuple(
    frozenset(words.split())
    for words in (
        "a an", "am are be been being is was were", "had has have having", "did do does doing done",
        "i me my mine", "he him his", "her hers she", "their them they", "our us we", "you your",
        "it its", "this these", "that those", "said say says saying",
    )
)  # fmt: skip
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


def run(config: Config) -> Path:
    """Measures everything and writes the page; see `similarity.start` for errors."""
    budget, model, vocabulary, open_folder = similarity.start("memory-recovery", config, BUDGETS)
    table = np.asarray(model.table, np.float32)
    log_prior = similarity.training_prior(config.task, config.data_dir, vocabulary, len(table))
    rows = spread(reported_rows(config.task, data_dir=config.data_dir), budget.num_pairs)
    per_row = [encoded(row.texts[0], vocabulary) for row in rows]
    texts = [text for of_row in per_row for text in of_row]
    row_of_text = np.repeat(np.arange(len(rows)), [*map(len, per_row)])
    ids, text = np.concatenate(texts), np.repeat(np.arange(len(texts)), [*map(len, texts)])
    position = np.concatenate([np.arange(len(text)) for text in texts])
    special = text_tokenizer(vocabulary).encode("").ids
    read = ~np.isin(ids, special)
    tokens = Texts(
        ids[read], row_of_text[text[read]], text[read], position[read], texts, vocabulary.tokens,
        table, log_prior, partial(similarity.unit_outputs, model),
    )  # fmt: skip
    folder, decode, measured = open_folder(), decoder(table, log_prior), []
    with Progress(len(budget.snr_db)) as progress:
        for place, db in enumerate(budget.snr_db, 1):
            measured += measure(tokens, decode, db, budget)
            progress.update(place)
    log_prior[special] = -np.inf
    measured += limits(table, log_prior)
    shared = {"task": config.task, "corruption": "gaussian", "site": "token", "seed": 0,
              "protocol": "one-sigma"}  # fmt: skip
    return report.write_run(folder, pd.DataFrame(measured).assign(**shared), page)


class Texts(NamedTuple):
    """All tokens of the texts in one sequence, and what they are read with.

    Attributes:
        row: Index of the row of the task that each token belongs to, of one or two texts.
        text: Index of its text.
        position: Its position in the text.
        all_ids: Token ids of each text, with special tokens.
        table: Vectors of the vocabulary `tokens`.
        log_prior: Log-frequencies in the training texts.
        output: Returns the encoder's unit outputs of texts of vectors.
    """

    ids: np.ndarray
    row: np.ndarray
    text: np.ndarray
    position: np.ndarray
    all_ids: Sequence[np.ndarray]
    tokens: Sequence[str]
    table: np.ndarray
    log_prior: np.ndarray
    output: Callable[[Sequence[np.ndarray]], np.ndarray]


def decoder(table: np.ndarray, log_prior: np.ndarray) -> Callable[..., dict[str, jax.Array]]:
    """Returns a compiled function of noisy vectors and sigma: the token ids of each decoder."""
    denoise = denoiser(table, log_prior)
    return jax.jit(lambda x, sigma: {name: denoise(x, sigma)[1][name] for name in DECODERS})


def measure(
    texts: Texts, decode: Callable[..., Any], db: float, budget: Budget
) -> list[dict[str, Any]]:
    """Returns the rows of results.csv for a signal-to-noise ratio in dB."""
    ids, row, table, log_prior = texts.ids, texts.row, texts.table, texts.log_prior
    draws, sigma, estimates = [], np.zeros(0), []
    for seed in range(budget.num_draws):
        noisy, sigma = add_noise([table[ids]], db, protocol="matched", seed=seed)
        draws.append(in_batches(decode, noisy, sigma))
        estimates.append(estimated_sigma(noisy, texts.text, table, log_prior) / sigma[0] - 1)
    distinct, places = np.unique(ids, return_inverse=True)
    properties = {}
    if db == EXPLAINED:
        properties = {
            "frequency": log_prior / np.log(10),
            "norm": np.linalg.norm(table, axis=1),
            "distance": 2 * np.asarray(hopfield.certified_radius(jnp.asarray(table))),
        }
    rows: list[dict[str, Any]] = []
    for decoder, bias in (("nearest", np.zeros_like(log_prior)), ("memory", log_prior)):
        decoded = np.array([draw[decoder] for draw in draws])
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
        for name, values in properties.items():
            bins = binned(values[ids], right, rates, row)
            of_decoder += [{"group": name, **each} for each in bins]
        rows += [{"model": decoder, **each} for each in of_decoder]
    error = 100 * float(np.sqrt(np.mean(np.square(estimates))))
    rows.append({"model": "memory", "metric": "sigma error", "group": "all", "score": error})
    shared = {"level": 10 ** (-db / 20), "snr_db": db, "num_examples": len(ids)}
    return [{**shared, **each} for each in rows]


def limits(table: np.ndarray, log_prior: np.ndarray) -> list[dict[str, Any]]:
    """Returns rows of `hopfield.capacity_snr_db`, for white signal and for the table's spectrum."""
    prior = softmax(log_prior)
    bits = float(entropy(prior, base=2))
    centered = table - prior @ table
    spectrum = np.linalg.eigvalsh(centered.T @ (prior[:, None] * centered))
    spectrum = np.maximum(spectrum, 0) / (prior @ np.square(table).sum(axis=1))
    limit = partial(hopfield.capacity_snr_db, bits, width=table.shape[1])
    shared = {"model": "memory", "metric": "limit"}
    return [
        {**shared, "group": "white", "score": float(limit())},
        {**shared, "group": "table", "score": float(limit(spectrum=jnp.asarray(spectrum)))},
    ]


def estimated_sigma(
    noisy: np.ndarray, text: np.ndarray, table: np.ndarray, log_prior: np.ndarray
) -> jax.Array:
    """Returns the noise level as estimated from each text alone."""
    x, patterns, prior = map(jnp.asarray, (noisy, table, log_prior))
    estimate = partial(hopfield.estimate_sigma, x, patterns, log_prior=prior)
    return jax.vmap(lambda mask: estimate(mask=mask))(text == np.unique(text)[:, None])


def share(right: np.ndarray, row: np.ndarray, member: np.ndarray) -> dict[str, float]:
    """Returns the mean of `right` over some tokens in percent, with a bootstrap over the rows.

    Args:
        right: Share of the draws in which each token is read right.
        row: Number of each token's row.
        member: Whether each token counts.
    """
    totals, counts = np.bincount(row, right * member), np.bincount(row, member)
    low, high = tidy.bootstrap(
        len(counts), lambda rows: totals[rows].sum() / max(counts[rows].sum(), 1)
    )
    return {"score": 100 * float(right[member].mean()), "low": 100 * low, "high": 100 * high}


def binned(
    values: np.ndarray, right: np.ndarray, rates: np.ndarray, row: np.ndarray
) -> list[dict[str, Any]]:
    """Returns the measured and the predicted rates in bins of equally many tokens.

    Bins are by `values`, a property of each token; `right` and `row` are as in `share`, and `rates`
    are predictions.
    """
    edges = np.unique(np.quantile(values, np.linspace(0, 1, NUM_BINS + 1)[1:-1]))
    home, rows = np.searchsorted(edges, values, side="right"), []
    for number in np.unique(home):
        member = home == number
        place = {"place": float(values[member].mean())}
        rows.append({"metric": "measured", **place, **share(right, row, member)})
        score = 100 * float(rates[member].mean())
        rows.append({"metric": "predicted", **place, "score": score})
    return rows


def errors(ids: np.ndarray, decoded: np.ndarray, tokens: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the share of each kind among the errors of all draws."""
    pairs = [(int(v), int(w)) for each in decoded for v, w in zip(ids, each, strict=True) if v != w]
    kinds = Counter(kind(tokens[v], tokens[w]) for v, w in pairs)
    return [
        {"metric": "errors", "group": name, "score": 100 * kinds[name] / len(pairs),
         "num_examples": len(pairs)}
        for name in KINDS if pairs
    ]  # fmt: skip


def harm(texts: Texts, decoded: np.ndarray) -> list[dict[str, Any]]:
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
    harms, rows = np.stack([of(decoded[wrong]), of(random)]), []
    for name in (*KINDS, "all"):
        member = (kinds == name) | (name == "all")
        if not member.any():
            continue
        count = texts.row.max() + 1
        ours, theirs = (np.bincount(row, each * member, count) for each in harms)

        def ratio(rows: np.ndarray, ours: np.ndarray = ours, theirs: np.ndarray = theirs) -> float:
            total = theirs[rows].sum()
            return 100 * ours[rows].sum() / total if total else np.nan

        low, high = tidy.bootstrap(count, ratio)
        score = ratio(np.arange(count))
        rows.append({"metric": "harm", "group": name, "score": score, "low": low, "high": high,
                     "num_examples": int(member.sum())})  # fmt: skip
    return rows


def bracketed(row: Any) -> str:
    """A percentage with its interval."""
    return report.bracketed(row.rename({"score": "mean"}), 0)


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
    """A token in lower case, without the mark of a word's start or continuation."""
    return token.lower().removeprefix("##").removeprefix("ġ") or token


def stem(word: str) -> str:
    """A word without its English ending, a doubled consonant undoubled; at least three letters."""
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending)
            break
    return word[:-1] if len(word) > 3 and (word[-1] == word[-2] or word[-1] in "ei") else word


def page(folder: Path) -> Page:
    """Returns the page of a run or of a folder of published results."""
    frame = tidy.read(folder)
    levels = sorted(frame[frame.metric == "recovered"].snr_db.unique(), reverse=True)

    def at(**values: Any) -> dict[float, float]:
        rows = tidy.select(frame, **values)
        return dict(zip(rows.snr_db, rows.score, strict=True))

    rates = {
        (decoder, title): at(metric=metric, model=decoder, group="all")
        for decoder in DECODERS
        for metric, title in (("recovered", "measured"), ("predicted", "predicted"))
    }
    sigma_error = at(metric="sigma error")
    kinds = {name: at(metric="errors", model="nearest", group=name) for name in KINDS}
    counted = tidy.select(frame, metric="errors", model="nearest").groupby("snr_db").num_examples
    counts = {db: int(count) for db, count in counted.first().items()}
    by_frequency, with_prior = (
        tidy.select(frame, metric="measured", model=decoder, group="frequency")
        .sort_values("place")
        .score
        for decoder in ("nearest", "memory")
    )
    recovered = "tokens recovered, %"
    panels = {"all": Panel("All tokens", SNR, recovered, formula="predicted")} | {
        name: Panel(f"By {name}, at {decibels(EXPLAINED)}", title, recovered, formula="predicted")
        for name, title in PROPERTIES.items()
    }
    nearest, memory = rates["nearest", "measured"], rates["memory", "measured"]
    half = [db for db in levels if memory[db] > 50]
    low, lost = (half or levels)[-1], [db for db in levels if nearest[db] < NEARLY_ALL]
    shares = frame[(frame.metric == "recovered") & (frame.snr_db == low)].set_index("model")
    ours, theirs = (bracketed(shares.loc[each]) for each in ("memory", "nearest"))
    answer = (
        f"**At {decibels(low)}, memory with a frequency prior recovers {ours} % of the tokens**; "
        f"the nearest-token decoder recovers {theirs} %."
    )
    notes = []
    if lost and low < lost[0]:
        notes.append(
            "arXiv 2411.13784 reports that words recovered wrongly are unrelated to the original "
            "ones. Of the nearest-token decoder's errors, "
            f"{kinds['unrelated'].get(low, 0):.0f} % are unrelated at {decibels(low)}. At "
            f"{decibels(lost[0])}, where {100 - nearest[lost[0]]:.1f} % of the tokens are wrong, "
            f"{kinds['unrelated'].get(lost[0], 0) * counts[lost[0]] / 100:.0f} of "
            f"{counts[lost[0]]} errors are unrelated."
        )
    if len(by_frequency):
        answer += (
            f" At {decibels(EXPLAINED)}, the nearest-token decoder recovers "
            f"{by_frequency.iloc[0]:.0f} % of the rarest sixth of the tokens (by their frequency "
            f"in the training texts) and {by_frequency.iloc[-1]:.0f} % of the most frequent sixth. "
            f"With a frequency prior, the shares are {with_prior.iloc[0]:.0f} % and "
            f"{with_prior.iloc[-1]:.0f} %."
        )
    harms = frame[(frame.metric == "harm") & (frame.group == "all")].set_index("model")
    if set(DECODERS) <= {*harms.index}:
        ours, theirs = (bracketed(harms.loc[each]) for each in ("memory", "nearest"))
        answer += (
            f" At this SNR, a wrong token changes the encoder's output by {ours} % (memory) and "
            f"{theirs} % (nearest token) of the change by a random token."
        )
    up, goal = levels[::-1], BEAMCLEAN["nearest"]
    if nearest[up[0]] < goal < nearest[up[-1]]:
        score = np.interp(goal, [nearest[db] for db in up], [memory[db] for db in up])
        notes.append(
            f"At the SNR where the nearest-token decoder recovers {goal} %, as in BeamClean, "
            f"memory recovers {score:.0f} % (interpolated)."
        )
    limit = frame[frame.metric == "limit"].set_index("group").score
    if len(limit):
        notes.append(
            "Shannon limit: below this SNR, no decoder recovers all tokens, if the prior is "
            f"correct. With the table's mean and covariance, it is {decibels(limit.table)}. Other "
            "pages assume equal power in all directions, which gives a lower limit, here "
            f"{decibels(limit.white)}."
        )
    return report.Page(
        title="How many tokens can be recovered from noisy embeddings",
        answer=answer,
        pictures={
            "recovery": report.panels(
                "Share of tokens recovered, by SNR and in bins of three properties of the token. "
                "Points: measured, with 95 % intervals. Lines: predicted from the embedding table",
                drawn(frame),
                specs=panels,
                col="group",
                x="x",
                hue="line",
                titles=similarity.TITLES,
            )
        },
        tables=[
            report.Table(
                [
                    "SNR, dB",
                    *(f"{similarity.TITLES[each]}: {metric}" for each, metric in rates),
                    "error of σ, %",
                ],
                [
                    [report.number(db, 0),
                     *(report.number(each[db]) for each in (*rates.values(), sigma_error))]
                    for db in levels
                ],
                "Tokens recovered, %, and root mean square error of σ estimated from one text "
                "(`hopfield.estimate_sigma`).",
            ),
            report.Table(
                ["SNR, dB", "errors, % of tokens", "errors", *KINDS.values()],
                [
                    [report.number(db, 0), report.number(100 - nearest[db]),
                     f"{counts.get(db, 0):,}",
                     *(report.number(each[db], 0) if counts.get(db, 0) >= FEW_ERRORS else "n/a"
                       for each in kinds.values())]
                    for db in levels
                ],
                "Errors of the nearest-token decoder, and their kinds in % of the errors (n/a: "
                f"fewer than {FEW_ERRORS} errors).",
            ),
            *harm_table(frame),
        ],
        notes=[
            f"{frame[frame.metric == 'recovered'].num_examples.iloc[0]:,.0f} tokens; intervals: "
            "bootstrap over the rows of the task. SNR: mean square of the embeddings' coordinates, "
            "divided by σ². Recovered: the decoder's most probable token is the original.",
            "Measured decoders do not know σ; predictions (`hopfield.recovery_rate`) are for "
            "decoders that do. Predictions average over the noise in the direction of the mean "
            "vector and treat confusions with other tokens as independent, which underestimates "
            "recovery at low SNR.",
            "Kinds of errors are assigned by string rules. Inflection: same word, stem or "
            "irregular form (words only). Unrelated: none of the other kinds, so also synonyms.",
            f"BeamClean (arXiv 2505.13758) reports {goal} % for the nearest token and "
            f"{BEAMCLEAN['language model']} % with a language model, on other embeddings, so the "
            "numbers are not directly comparable. The d_X-privacy of arXiv 2411.13784 adds "
            "Laplace noise, whose norm at width 384 is nearly constant, like that of Gaussian "
            "noise.",
            *notes,
        ],
    )  # fmt: skip


def harm_table(frame: pd.DataFrame) -> list[report.Table]:
    """Returns the table of the harm of errors, or none if it was not measured."""
    rows = frame[frame.metric == "harm"].set_index(["group", "model"])
    if rows.empty:
        return []

    def cell(group: str, decoder: str) -> str:
        row: Any = rows.loc[(group, decoder)] if (group, decoder) in rows.index else None
        if row is None or row.num_examples < FEW_ERRORS:
            return "n/a"
        return f"{bracketed(row)} ({row.num_examples:,.0f})"

    return [
        report.Table(
            ["kind of error", *(similarity.TITLES[each] for each in DECODERS)],
            [[title, *(cell(group, each) for each in DECODERS)]
             for group, title in (KINDS | {"all": "all"}).items()],
            f"Change of the encoder's output by one error at {decibels(EXPLAINED)}: 1 minus the "
            "cosine with the clean output, in % of the change by random tokens in the same places "
            "(number of errors).",
        )
    ]  # fmt: skip


def drawn(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the points and lines of the picture."""
    frame = frame.assign(x=frame.place.fillna(frame.snr_db), line=frame.model)
    keys = ["group", "line", "x"]
    formula = frame[frame.metric == "predicted"].set_index(keys).score.rename("formula")
    points = frame[frame.metric.isin(["recovered", "measured"])].rename(columns={"score": "mean"})
    return points.join(formula, on=keys)
