"""Which tokens does a reader of the vocabulary recover from noisy vectors, and which stay hidden?

Claims: nearest neighbours read 42.1 % of MRPC's tokens from vectors with Gaussian noise, a search
with a language model 74.3 % (Kale et al., 2025, BeamClean, arXiv 2505.13758). Noise on a word's
vector returns the word or an unrelated one (Asghar et al., 2024, arXiv 2411.13784).

Command: `python -m experiments memory-recovery --pretrained FOLDER --data-dir DIR`; two minutes on
two cores for width 384.

Expected: frequent words, whose vectors are short, are lost first and rare ones last.

All tokens get noise of one σ, as where it is added for privacy; the signal-to-noise ratio is that
of all texts. Special tokens are left out. One reader takes the nearest vector of the vocabulary,
the other also knows the tokens' frequencies in the training texts; neither knows σ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from experiments.memory.similarity import (
    RESAMPLES,
    add_noise,
    capacity,
    decibels,
    denoiser,
    encoded,
    in_batches,
    prior,
)
from experiments.settings import BudgetName, budget_of, by_budget, optional

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from experiments.report import Page

REPRODUCES = "Privacy of noisy embeddings: BeamClean (2505.13758), d_X-privacy (2411.13784)"
EXPLAINED = -12.0  # dB, of the bins and the list of errors
RARE = 1e-4  # frequency in the training texts
NUM_BINS = 6
NARROW = 128  # width of the narrow random table, that of TinyBERT
NEARLY_ALL = 99.5  # % of the tokens; the few errors above have no shares worth quoting
CLOSE = 0.5  # cosine; of 10,000 random pairs of MiniLM's vectors, a few are closer
SPECIAL = {"[CLS]", "[SEP]", "<s>", "</s>"}
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
    "letters": "same letters",
    "inflection": "inflection",
    "signs": "numbers or signs",
    "function": "function words",
    "unrelated": "unrelated",
}
READERS = {"nearest": "nearest vector", "memory": "frequencies known"}
HEADS = {"nearest": "nearest", "memory": "frequencies"}
GROUPS = ("all", "content", "rare")
PROPERTIES = {
    "frequency": "log₁₀ frequency",
    "norm": "norm of the vector",
    "distance": "distance to the nearest other vector",
}
COLUMNS = (
    "task", "model", "corruption", "level", "site", "protocol", "seed", "metric", "score",
    "num_examples", "snr_db", "low", "high", "table", "group", "place", "sigma", "multiplier",
    "limit", "token", "decoded",
)  # fmt: skip


class Budget(NamedTuple):
    """Size of a run: pairs of texts, noise draws, tokens to explain, and ratios in dB."""

    num_pairs: int
    num_draws: int
    num_tokens: int
    snr_db: tuple[float, ...]


LEVELS = (-4.0, -6.0, -8.0, -10.0, -12.0, -14.0, -16.0, -20.0)
BUDGETS = {
    "smoke": Budget(10, 1, 40, (EXPLAINED,)),
    "laptop": Budget(60, 1, 120, LEVELS),
    "paper": Budget(408, 10, 3000, LEVELS),
}
DEFAULTS = {size: budget._asdict() for size, budget in BUDGETS.items()}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Model, texts and noise."""

    pretrained: Annotated[str | None, optional("FOLDER", "required")] = None
    """Folder of a BERT or RoBERTa in the Hugging Face layout."""
    data_dir: Annotated[str | None, optional("FOLDER", "required")] = None
    """Folder of the raw sets."""
    task: Literal["mrpc", "stsb", "sst2"] = "mrpc"
    """Task whose texts are read."""
    budget: BudgetName = "laptop"
    """Size of the run: seconds, minutes or hours. The flags below override it."""
    num_pairs: Annotated[int | None, by_budget("num_pairs", "INT", DEFAULTS)] = None
    """Rows of the task, from the first."""
    num_draws: Annotated[int | None, by_budget("num_draws", "INT", DEFAULTS)] = None
    """Independent noise draws."""
    num_tokens: Annotated[int | None, by_budget("num_tokens", "INT", DEFAULTS)] = None
    """Tokens of the texts whose rate of recovery is predicted."""
    snr_db: Annotated[tuple[float, ...] | None, by_budget("snr_db", "FLOAT ...", DEFAULTS)] = None
    """Signal-to-noise ratios in dB."""
    runs: str = "runs"
    """Folder of all runs."""


def run(config: Config) -> Path:
    """Measures everything and writes the page.

    Raises:
        ValueError: A flag is out of range.
        FileNotFoundError: A file is missing.
    """
    import numpy as np
    import pandas as pd

    from experiments import report
    from experiments.models import load, weights_digest
    from experiments.rundir import open_run, write_whole
    from hopfax.data import read_tokenizer, reported_rows, training_rows
    from hopfax.train.progress import Progress

    budget = budget_of(config, BUDGETS)
    if not config.pretrained or not config.data_dir:
        raise ValueError("set --pretrained and --data-dir, the folders of a model and of the sets")
    if min(budget.num_pairs, budget.num_tokens) < 10 or budget.num_draws < 1:
        raise ValueError(
            "--num-pairs and --num-tokens must be >= 10 and --num-draws >= 1, got "
            f"{budget.num_pairs}, {budget.num_tokens} and {budget.num_draws}"
        )
    vocabulary = read_tokenizer(config.pretrained)
    table = np.asarray(load(config.pretrained).table, np.float32)
    folder = open_run(
        "memory-recovery", config, plan={"weights": weights_digest(config.pretrained)}
    )
    rows = reported_rows(config.task, data_dir=config.data_dir)[: budget.num_pairs]
    texts = [encoded(row.texts[0], vocabulary) for row in rows]
    training = training_rows(config.task, data_dir=config.data_dir)
    log_prior = prior(
        encoded([text for row in training for text in row.texts[0]], vocabulary), len(table)
    )
    special = [vocabulary.tokens.index(each) for each in SPECIAL & {*vocabulary.tokens}]
    ids = np.concatenate([np.concatenate(row) for row in texts])
    row = np.repeat(np.arange(len(texts)), [sum(map(len, row)) for row in texts])
    ids, row = ids[~np.isin(ids, special)], row[~np.isin(ids, special)]
    draw = np.random.default_rng((0, 1)).standard_normal  # not the noise's stream
    tables = {
        "model": table,
        "random": draw(table.shape, np.float32),
        "narrow": draw((len(table), NARROW), np.float32),
    }
    measured: list[dict[str, Any]] = []
    with Progress(len(tables) * len(budget.snr_db)) as progress:
        for number, (name, each) in enumerate(tables.items()):
            texts_of = Texts(ids, row, vocabulary.tokens, each, log_prior)
            for place, part in enumerate(measure(texts_of, name == "model", budget), 1):
                measured += [{"table": name, **each} for each in part]
                progress.update(number * len(budget.snr_db) + place)
    shared = {"task": config.task, "corruption": "gaussian", "site": "token", "seed": 0,
              "protocol": "one-sigma"}  # fmt: skip
    frame = pd.DataFrame(measured).assign(**shared).reindex(columns=list(COLUMNS))
    write_whole(folder / "results.csv", frame.to_csv(index=False, lineterminator="\n"))
    report.write_report(folder, page(folder))
    return folder


class Texts(NamedTuple):
    """All tokens of the texts in one sequence, and the vocabulary they are read with.

    Attributes:
        ids: Token ids.
        row: Number of the row that a token belongs to.
        tokens: The vocabulary.
        table: Its vectors.
        log_prior: Log-frequencies in the training texts.
    """

    ids: np.ndarray
    row: np.ndarray
    tokens: Sequence[str]
    table: np.ndarray
    log_prior: np.ndarray


def measure(texts: Texts, explained: bool, budget: Budget) -> Iterator[list[dict[str, Any]]]:
    """Yields the rows of results.csv for each signal-to-noise ratio.

    Args:
        texts: What is read.
        explained: Whether to measure both readers, predict their rates and list their errors.
        budget: Size of the run.
    """
    import jax.numpy as jnp
    import numpy as np

    from hopfax import hopfield

    ids, row, tokens, table, log_prior = texts
    groups = {
        "all": np.ones(len(ids), bool),
        "content": np.isin(ids, [n for n, token in enumerate(tokens) if is_content(token)]),
        "rare": np.exp(log_prior[ids]) < RARE,
    }
    readers = list(READERS) if explained else ["memory"]
    denoise = denoiser(table, log_prior)
    read, informed = only(denoise, *readers), only(denoise, "nearest", "known")
    radius = np.full(len(table), np.nan)
    if explained:
        radius = np.asarray(hopfield.certified_radius(jnp.asarray(table)))
    properties = {
        "frequency": log_prior / np.log(10),
        "norm": np.linalg.norm(table, axis=1),
        "distance": 2 * radius,
    }
    for db in budget.snr_db:
        decoded, right = {reader: [] for reader in readers}, {}
        for seed in range(budget.num_draws if explained else 1):
            noisy, sigmas = add_noise([table[ids]], db, protocol="matched", seed=seed)
            for reader, each in in_batches(read, noisy, sigmas).items():
                decoded[reader].append(each)
        sigma, rows = float(sigmas[0]), []
        for reader, draws in decoded.items():
            right[reader] = np.mean(np.array(draws) == ids, axis=0)
            for group, member in groups.items():
                measured = share(right[reader], row, member)
                rows.append({"model": reader, "metric": "recovered", "group": group, **measured})
            if explained:
                rows += errors(ids, draws, texts, reader, listed=db == EXPLAINED)
        if explained:
            chosen, rates = explain(texts, informed, sigma, budget.num_tokens)
            for reader, of_reader in rates.items():
                for metric, each in of_reader.items():
                    score = 100 * float(each.mean())
                    rows.append({"model": reader, "metric": metric, "group": "all", "score": score})
                for name, values in properties.items() if db == EXPLAINED else ():
                    bins = binned(values[ids], right[reader], row, chosen, of_reader)
                    rows += [{"model": reader, "group": name, **each} for each in bins]
        shared = {
            "level": 10 ** (-db / 20), "snr_db": db, "sigma": sigma,
            "multiplier": float(np.median(sigma / radius[ids])),
            "limit": capacity(log_prior, width=table.shape[1]), "num_examples": len(ids),
        }  # fmt: skip
        yield [{**shared, **each} for each in rows]


def only(denoise: Callable[..., Any], *names: str) -> Callable[..., dict[str, Any]]:
    """Compiles the tokens that some methods of `denoiser` read, without their vectors."""
    import jax

    def read(x: jax.Array, sigma: jax.Array) -> dict[str, jax.Array]:
        tokens = denoise(x, sigma)[1]
        return {name: tokens[name] for name in names}

    return jax.jit(read)


def explain(
    texts: Texts, informed: Callable[..., dict[str, Any]], sigma: float, num_tokens: int
) -> tuple[np.ndarray, dict[str, dict[str, np.ndarray]]]:
    """Simulates and predicts the rates at which some tokens of the texts are read if σ is known.

    Args:
        texts: What is read.
        informed: From `only`, with the methods "nearest" and "known".
        sigma: Standard deviation of the noise.
        num_tokens: How many tokens to draw.

    Returns:
        The places of the tokens in the texts, and for each reader their simulated rate, `exact` up
        to the number of draws, the `predicted` one, and the union `bound`.
    """
    import numpy as np

    ids, table = texts.ids, texts.table
    chosen = np.random.default_rng(0).choice(len(ids), min(num_tokens, len(ids)), replace=False)
    times = max(1, len(ids) // len(chosen))
    again = np.tile(ids[chosen], times)
    draws = np.random.default_rng((0, 2)).standard_normal((len(again), table.shape[1]), np.float32)
    noisy = table[again] + np.float32(sigma) * draws
    decoded = in_batches(informed, noisy, np.full(len(again), sigma, np.float32))
    rates = {}
    for reader, method in (("nearest", "nearest"), ("memory", "known")):
        bias = texts.log_prior if reader == "memory" else np.zeros_like(texts.log_prior)
        estimate, bound = predicted(table, ids[chosen], sigma=sigma, log_prior=bias)
        exact = (decoded[method] == again).reshape(times, -1).mean(0)
        rates[reader] = {"exact": exact, "predicted": estimate, "bound": bound}
    return chosen, rates


def share(right: np.ndarray, row: np.ndarray, member: np.ndarray) -> dict[str, float]:
    """Returns the share of right tokens in a group, in percent, with a bootstrap over the rows.

    Args:
        right: Share of the draws in which each token is read right.
        row: Number of each token's row.
        member: Whether each token is in the group.
    """
    import numpy as np

    totals = np.bincount(row, right * member)
    counts = np.bincount(row, member)
    picks = np.random.default_rng(0).integers(0, len(counts), (RESAMPLES, len(counts)))
    means = totals[picks].sum(1) / np.maximum(counts[picks].sum(1), 1)
    low, high = np.quantile(means, [0.025, 0.975])
    score = totals.sum() / max(counts.sum(), 1)
    return {"score": 100 * score, "low": 100 * low, "high": 100 * high}


def binned(
    values: np.ndarray,
    right: np.ndarray,
    row: np.ndarray,
    chosen: np.ndarray,
    rates: Mapping[str, np.ndarray],
) -> list[dict[str, Any]]:
    """Returns the measured and the predicted rates in bins of equally many tokens.

    Args:
        values: The property of each token.
        right: Share of the draws in which each token is read right.
        row: Number of each token's row.
        chosen: Tokens with predictions.
        rates: Predictions by name.
    """
    import numpy as np

    edges = np.unique(np.quantile(values, np.linspace(0, 1, NUM_BINS + 1)[1:-1]))
    home, rows = np.searchsorted(edges, values, side="right"), []
    for number in np.unique(home):
        member = home == number
        place = {"place": float(values[member].mean())}
        rows.append({"metric": "measured", **place, **share(right, row, member)})
        inside = member[chosen]
        for name, each in rates.items() if inside.any() else ():
            rows.append({"metric": name, **place, "score": 100 * float(each[inside].mean())})
    return rows


def predicted(
    table: np.ndarray,
    ids: np.ndarray,
    *,
    sigma: float,
    log_prior: np.ndarray,
    num_nodes: int = 16,
) -> tuple[np.ndarray, np.ndarray]:
    r"""Returns the rates at which tokens are recovered, from the table alone: estimate and bound.

    The noise along a token's own vector is shared by all errors. Given it, errors are taken as
    independent:

    $$p_v \approx E_u \prod_{w \neq v} \Phi\left(\frac{1}{b_w}\left(\frac{d_{vw}^2}{2 \sigma}
    + \sigma \log \frac{\pi_v}{\pi_w} + u (\|e_v\| - a_w)\right)\right), \qquad
    a_w = \frac{\langle e_v, e_w \rangle}{\|e_v\|}, \quad b_w^2 = \|e_w\|^2 - a_w^2$$

    with u standard normal. It is exact if the parts of the other vectors at right angles to e_v are
    at right angles to one another. The bound is that of `hopfax.hopfield.recovery_bound`.

    Args:
        table: Vectors of the vocabulary.
        ids: Tokens v.
        sigma: Standard deviation of the noise, known to the reader.
        log_prior: Log-frequencies; zeros for the nearest vector.
        num_nodes: Nodes of the Gauss-Hermite rule for the mean over u.
    """
    import numpy as np
    from scipy.special import log_ndtr, ndtr

    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    squares = np.sum(np.square(table), axis=1)
    rates, bounds = [], []
    for v in ids:
        products, norm = table @ table[v], np.sqrt(squares[v])
        distance = np.sqrt(np.maximum(squares[v] - 2 * products + squares, 0))
        along = products / norm
        across = np.sqrt(np.maximum(squares - np.square(along), 1e-12 * squares))
        margin = np.square(distance) / (2 * sigma) + sigma * (log_prior[v] - log_prior)
        others = np.arange(len(table)) != v
        shifts = nodes[:, None] * (norm - along[others])
        logs = log_ndtr((margin[others] + shifts) / across[others]).sum(1)
        rates.append(weights @ np.exp(logs) / weights.sum())
        apart = np.where(distance > 0, distance, 1)
        error = np.where(distance > 0, ndtr(-margin / apart), 1)  # equal vectors: no bound
        bounds.append(np.clip(1 - error[others].sum(), 0, 1))
    return np.array(rates), np.array(bounds)


def errors(
    ids: np.ndarray, decoded: Sequence[np.ndarray], texts: Texts, reader: str, *, listed: bool
) -> list[dict[str, Any]]:
    """Returns the share of each kind among a reader's errors, and their cosines.

    Args:
        ids: True tokens.
        decoded: What was read, for each draw.
        texts: The vocabulary and its vectors.
        reader: Name of the reader.
        listed: Whether to list the twenty most frequent errors.
    """
    from collections import Counter

    import numpy as np

    table, tokens = texts.table, texts.tokens
    pairs = [(int(v), int(w)) for each in decoded for v, w in zip(ids, each, strict=True) if v != w]
    if not pairs:
        return []
    kinds = Counter(kind(tokens[v], tokens[w]) for v, w in pairs)
    first, second = table[np.array(pairs)].swapaxes(0, 1)
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines = np.sum(first * second, axis=1) / norms
    scores = {("errors", name): 100 * kinds[name] / len(pairs) for name in KINDS}
    scores["cosine", ""] = float(np.median(cosines))
    scores["close", ""] = 100 * float(np.mean(cosines > CLOSE))
    shared = {"model": reader, "num_examples": len(pairs)}
    rows = [
        {"metric": metric, "group": group, "score": score, **shared}
        for (metric, group), score in scores.items()
    ]
    for (v, w), count in Counter(pairs).most_common(20) if listed else ():
        names = {"token": tokens[v], "decoded": tokens[w]}
        rows.append({"metric": "confusion", "score": count, **names, **shared})
    return rows


def kind(token: str, decoded: str) -> str:
    """Returns the kind of an error, a key of `KINDS`, by the letters of the two tokens."""
    first, second = bare(token), bare(decoded)
    if first == second:
        return "letters"
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
    return token.lower().removeprefix("##").removeprefix("ġ").removeprefix("Ġ") or token


def stem(word: str) -> str:
    """A word without its English ending, a doubled consonant undoubled; at least three letters."""
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending)
            break
    return word[:-1] if len(word) > 3 and (word[-1] == word[-2] or word[-1] in "ei") else word


def is_content(token: str) -> bool:
    """Whether a token is a word, or a piece of one, that is no function word."""
    return bare(token).isalpha() and bare(token) not in FUNCTION_WORDS


def page(folder: Path) -> Page:
    """Returns the page of a run or of a folder of published results."""
    import numpy as np

    from experiments import figures, report, tidy

    frame = tidy.read(folder)
    levels = sorted(frame.snr_db.unique(), reverse=True)

    def at(table: str = "model", **values: Any) -> dict[float, float]:
        rows = tidy.select(frame, table=table, **values)
        return dict(zip(rows.snr_db, rows.score, strict=True))

    read = {
        (reader, group): at(metric="recovered", model=reader, group=group)
        for reader in READERS
        for group in GROUPS
    }
    others = [at(name, metric="recovered", group="all") for name in ("random", "narrow")]
    rates = {
        (reader, metric): at(metric=metric, model=reader, group="all")
        for reader in READERS
        for metric in ("exact", "predicted", "bound")
    }
    kinds = {name: at(metric="errors", model="nearest", group=name) for name in KINDS}
    close, cosines = (at(metric=name, model="nearest") for name in ("close", "cosine"))
    of_model = frame[(frame.table == "model") & (frame.metric == "recovered")]
    scale = of_model.groupby("snr_db")[["sigma", "multiplier"]].first()
    gap = max(
        abs(rates[reader, "predicted"][db] - rates[reader, "exact"][db])
        for reader in READERS
        for db in levels
    )
    readings = report.Table(
        ["SNR, dB", "σ", "σ / half distance",
         *(f"{HEADS[reader]}: {group}" for reader, group in read),
         "random vectors", f"of width {NARROW}"],
        [
            [report.number(db, 0), report.number(scale.sigma[db], 2),
             report.number(scale.multiplier[db], 2),
             *(report.number(each[db]) for each in (*read.values(), *others))]
            for db in levels
        ],
        "Tokens read, %. Random vectors: standard normal tables, all tokens, frequencies known.",
    )  # fmt: skip
    kinds = {name: each for name, each in kinds.items() if any(each.values())}
    of_errors = report.Table(
        ["SNR, dB", "errors", *(KINDS[name] for name in kinds), f"cosine > {CLOSE:g}",
         "median cosine"],
        [
            [report.number(db, 0), report.number(100 - read["nearest", "all"][db]),
             *(report.number(each.get(db, np.nan), 0) for each in (*kinds.values(), close)),
             report.number(cosines.get(db, np.nan), 2)]
            for db in levels
        ],
        "Errors of the nearest vector, % of all tokens; kinds, % of the errors; cosine of the true "
        "and the read vector.",
    )  # fmt: skip
    return report.Page(
        title="What Gaussian noise on token vectors hides from a reader of the vocabulary",
        answer=" ".join(answers(read, others[0], close, rates, levels)),
        pictures={
            "recovery": report.Picture(
                functools.partial(
                    figures.panels, drawn(frame), specs(), col="panel", x="x", hue="line"
                ),
                "Share of tokens read against the noise and in bins of three properties of the "
                "token. Points: measured, with 95 % intervals. Lines: predicted from the table",
            )
        },
        tables=[readings, of_errors],
        notes=[
            f"{of_model.num_examples.iloc[0]:.0f} tokens; intervals: bootstrap over the rows of "
            "the task. SNR: mean square of the coordinates over σ².",
            "Half distance: half the distance from a token's vector to the nearest other one, "
            "median over tokens. As a noise multiplier of the Gaussian mechanism, with the whole "
            "distance as sensitivity, it is half as large.",
            "Predictions average over the noise along the token's own vector, and take the other "
            f"errors as independent. They differ from a simulation by at most {gap:.1f} points.",
            f"Content words: letters, no function word. Rare: frequency below {RARE:g} in the "
            "training texts. Kinds are by string rules; inflection: same stem or irregular form.",
            *(
                f"Most frequent errors at {decibels(EXPLAINED)}, {READERS[reader]}: "
                f"{confusions(frame, reader)}."
                for reader in READERS
            ),
            "BeamClean (arXiv 2505.13758) reads other vectors, so that only the order of its "
            "numbers compares. The d_X-privacy of arXiv 2411.13784 adds Laplace noise, whose "
            "length in this width is nearly as constant as that of Gaussian noise.",
        ],
    )


def answers(
    read: Mapping[tuple[str, str], Mapping[float, float]],
    random: Mapping[float, float],
    close: Mapping[float, float],
    rates: Mapping[tuple[str, str], Mapping[float, float]],
    levels: Sequence[float],
) -> list[str]:
    """Returns the sentences that answer the questions."""
    import numpy as np

    nearest, memory = read["nearest", "all"], read["memory", "all"]
    sentences = []
    if half := [db for db in levels if memory[db] > 50]:
        db = half[-1]
        sentences += [
            f"**At {decibels(db)}, where the noise has {10 ** (-db / 10):.0f} times the power of "
            f"the signal, a reader who knows the vocabulary and its frequencies still reads "
            f"{memory[db]:.0f} % of the tokens**; the nearest vector gives {nearest[db]:.0f} %.",
            "Noise hides frequent words first: the nearest vector gives "
            f"{read['nearest', 'rare'][db]:.0f} % of the rare tokens. Random vectors of the same "
            f"width would leave {random[db]:.0f} % of all tokens readable.",
        ]
    goal = BEAMCLEAN["nearest"]
    if nearest[levels[-1]] < goal < nearest[levels[0]]:
        up = levels[::-1]
        score = np.interp(goal, [nearest[db] for db in up], [memory[db] for db in up])
        sentences.append(
            f"Where nearest vectors give {goal} %, as in BeamClean's experiment, frequencies alone "
            f"give {score:.0f} %; its language model gives {BEAMCLEAN['language model']} %."
        )
    if vacuous := [db for db in levels if rates["nearest", "bound"][db] < 50]:
        simulated, estimate, bound = (
            rates["nearest", name][vacuous[0]] for name in ("exact", "predicted", "bound")
        )
        sentences.append(
            "Norms and distances of the vectors explain the rates: for the nearest vector at "
            f"{decibels(vacuous[0])}, {estimate:.0f} % predicted and {simulated:.0f} % simulated, "
            f"where the union bound guarantees {bound:.0f} %."
        )
    known = [db for db in levels if nearest[db] < NEARLY_ALL]
    if len(known) > 1 and half:
        sentences.append(
            "That noise returns the word or an unrelated one (arXiv 2411.13784) holds under strong "
            f"noise: {close[half[-1]]:.0f} % of the errors at {decibels(half[-1])} have a cosine "
            f"above {CLOSE:g} with the truth, but {close[known[0]]:.0f} % of the few errors at "
            f"{decibels(known[0])}."
        )
    return sentences


def confusions(frame: pd.DataFrame, reader: str) -> str:
    """Returns a reader's most frequent errors that occurred twice, such as "`a`→`an` 6"."""
    rows = frame[(frame.metric == "confusion") & (frame.model == reader) & (frame.score > 1)]
    return ", ".join(
        f"`{token}`→`{decoded}` {count:.0f}"
        for token, decoded, count in zip(rows.token, rows.decoded, rows.score, strict=True)
    )


def drawn(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the points and lines of the picture."""
    import pandas as pd

    from experiments import tidy

    frame = frame[frame.table == "model"].assign(x=lambda rows: rows.place.fillna(-rows.snr_db))
    frame = frame[frame.metric.isin(["recovered", "measured", "predicted", "bound"])]
    frame = frame.assign(panel=frame.group.replace({"all": "noise"}))
    points = frame[frame.metric.isin(["recovered", "measured"])].rename(columns={"score": "mean"})
    keys = ["panel", "model", "x"]
    formula = frame[frame.metric == "predicted"].set_index(keys).score.rename("formula")
    points = points.join(formula, on=keys).assign(line=points.model.map(READERS))
    bounds = tidy.select(frame, metric="bound", model="memory", panel="noise")
    bounds = bounds.drop(columns=["low", "high"]).rename(columns={"score": "formula"})
    return pd.concat([points, bounds.assign(line="union bound, frequencies known")])


def specs() -> dict[str, Any]:
    """Returns the panels of the picture."""
    from experiments.figures import Panel

    return {"noise": Panel("All tokens", "noise / signal in dB", "tokens read, %")} | {
        name: Panel(f"By {name}, at {decibels(EXPLAINED)}", title, "tokens read, %")
        for name, title in PROPERTIES.items()
    }
