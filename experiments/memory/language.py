"""How many tokens come back from noise if a language model is their prior?

Not in the papers. Nearest neighbors read 42.1 % of MRPC's tokens from noisy vectors, a search with
a language model 74.3 % (Kale et al., 2025, BeamClean, arXiv 2505.13758; another noise and model).

Command: `python -m experiments memory-language --pretrained FOLDER --data-dir DIR`, where FOLDER
has a GPT-2, Gemma-2 or Llama; some three hours on two cores for SmolLM2's 135 million parameters.

Expected: each step from the nearest token over frequencies to beam search needs less signal. An
earlier script recovered 84, 88 and 94 % (nearest, frequencies, beam) at -12 dB.

Texts are the first 28 tokens of longer ones, without special tokens; noise is added to the model's
embeddings. Frequencies and bigrams are those of the task's training texts; 16 texts of MRPC's chose
the mixture. "Blind" methods do not know the noise level; the others do. "Language model and
bigrams": the beam keeps the prefixes that are best with what the bigrams say of the tokens after
them. Intervals are bootstrap intervals over texts of the mean over draws, for perplexity of the
geometric mean. The Shannon limit of a prior is that of its bits per token. Perplexity is the
model's own, of the true tokens, given the returned vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from experiments import report, tidy
from experiments.figures import SNR
from experiments.memory import pipeline, priors
from experiments.models import is_causal, load, weights_digest
from experiments.report import Page
from experiments.runner import Job, fill
from experiments.settings import Run, budget_of, by_budget, optional
from hopfax import hopfield
from hopfax.data import evenly_spaced, read_tokenizer, read_wikitext2, task_rows
from hopfax.data.tokenize import text_tokenizer
from hopfax.nn import Pretrained, language_prior, recall_text

REPRODUCES = "Not in the papers: a language model as prior"
NUM_TOKENS = 28
NUM_TRAINING = 3000  # texts from which frequencies and bigrams are counted
BATCH = 24  # texts decoded at a time
DISCOUNT = 0.75  # of the bigrams
NUM_CANDIDATES = 256  # of a token, also in the chain of bigrams
MIXTURE = 0.1  # share of the frequencies in the language model's prior
BREAK = "<|endoftext|>"  # before a text, where the vocabulary has it
Method = Literal[
    "nearest", "unigram", "bigram", "greedy", "beam", "both", "unigram-blind", "beam-blind"
]
METHODS: tuple[Method, ...] = get_args(Method)
READ = ("unigram", "beam", "both")  # decoders whose tokens the model reads
GOAL = 95.0  # percent of the tokens
TITLES = {
    "nearest": "nearest token",
    "unigram": "frequencies",
    "bigram": "bigrams",
    "greedy": "language model, greedy",
    "beam": "language model, beam",
    "both": "language model and bigrams, beam",
    "unigram-blind": "frequencies, blind",
    "beam-blind": "language model, beam, blind",
    "wikitext2": "WikiText-2",
    **pipeline.TITLES,
}
LIMITS = {
    "unigram": "unigram", "bigram": "bigram", "greedy": "beam", "beam": "beam", "both": "beam",
}  # fmt: skip


class Budget(NamedTuple):
    """Size of a run; the fields are flags of `Config`."""

    num_texts: int
    num_draws: int
    snr_db: tuple[float, ...]
    beam: int = 16


BUDGETS = {
    "smoke": Budget(3, 1, (-12.0,), 2),
    "laptop": Budget(24, 1, (-8.0, -10.0, -12.0, -14.0, -16.0, -18.0)),
    "paper": Budget(60, 5, tuple(range(-4, -21, -2))),
}


@dataclass(frozen=True, kw_only=True)
class Config(Run):
    """Model, texts, noise and search."""

    pretrained: Annotated[str | None, optional("FOLDER", "required")] = None
    """Folder of a causal model in the Hugging Face layout."""
    data_dir: Annotated[str | None, optional("FOLDER", "required")] = None
    """Folder of the raw data sets."""
    task: tuple[Literal["mrpc", "stsb", "wikitext2"], ...] = ("mrpc", "stsb", "wikitext2")
    """Sets whose texts are read."""
    protocols: tuple[Literal["matched", "per-token"], ...] = ("matched", "per-token")
    """Same signal-to-noise ratio for each text (matched), or for each token (per-token)."""
    method: tuple[Method, ...] = METHODS
    """Decoders to compare."""
    num_texts: Annotated[int | None, by_budget("num_texts", "INT", BUDGETS)] = None
    """Texts of each set, evenly spaced."""
    num_draws: Annotated[int | None, by_budget("num_draws", "INT", BUDGETS)] = None
    """Independent noise draws."""
    snr_db: Annotated[tuple[float, ...] | None, by_budget("snr_db", "FLOAT ...", BUDGETS)] = None
    """Signal-to-noise ratios in dB."""
    beam: Annotated[int | None, by_budget("beam", "INT", BUDGETS)] = None
    """Width of the beam, at least 2."""


def run(config: Config) -> Path:
    """Measures everything and writes the page; a ValueError or an OSError names a wrong flag."""
    budget = budget_of(config, BUDGETS)
    if not config.pretrained or not config.data_dir:
        raise ValueError("--pretrained and --data-dir are required, the folders of model and data")
    if budget.beam < 2:
        raise ValueError(f"--beam must be at least 2, got {budget.beam}")
    model, tokens = load(config.pretrained), read_tokenizer(config.pretrained)
    if not is_causal(model):
        raise ValueError(f"--pretrained must be a causal model, got {config.pretrained}")
    jobs = []
    start = tokens.tokens.index(BREAK) if BREAK in tokens.tokens else None
    for task in config.task:
        training, tested = (encoded(texts, tokens) for texts in texts_of(task, config.data_dir))
        tested = [text[:NUM_TOKENS] for text in tested if len(text) >= NUM_TOKENS]
        if len(tested) < budget.num_texts:
            raise ValueError(f"--num-texts must be at most {len(tested)}, got {budget.num_texts}")
        ids = np.array(evenly_spaced(tested, budget.num_texts))
        inputs = model, start, training, ids, config.method, budget
        for protocol in ("clean", *config.protocols):
            title = f"{TITLES[task]}, {protocol}"
            jobs.append(Job(title, partial(measure, task, protocol, *inputs)))
    plan = {"weights": weights_digest(config.pretrained)}
    return fill("memory-language", config, jobs, page, plan=plan)


def texts_of(task: str, data_dir: str) -> tuple[list[str], list[str]]:
    """Returns training texts, and others to report, without those that are also training texts."""
    if task == "wikitext2":
        lines = read_wikitext2(data_dir)
        training, tested = lines["train"], [*dict.fromkeys(lines["test"])]
    else:
        training, tested = (
            [*dict.fromkeys(row.texts[0][0] for row in task_rows(task, split, data_dir=data_dir))]
            for split in ("train", "test")
        )
    seen = set(training)
    return training[:NUM_TRAINING], [text for text in tested if text not in seen]


def encoded(texts: Sequence[str], tokens: Any) -> list[list[int]]:
    """Returns the token ids of texts, without special tokens; empty texts are left out."""
    batch = text_tokenizer(tokens).encode_batch([*texts], add_special_tokens=False)
    return [each.ids for each in batch if each.ids]


def measure(
    task: str, protocol: str, model: Pretrained, start: int | None,
    training: Sequence[list[int]], ids: np.ndarray, methods: Sequence[str], budget: Budget,
    on_progress: Callable[..., None],
) -> dict[str, pd.DataFrame]:  # fmt: skip
    """Returns results.csv of a task: every method at every SNR of a protocol, or without noise."""
    table = np.asarray(model.embed(jnp.arange(len(model.table))[None])[0], np.float32)
    texts = [np.array(text) for text in training]
    log_prior = pipeline.prior(texts, len(table))
    bigrams = priors.fit_bigrams(texts, log_prior, DISCOUNT)
    search = {"model": model, "start": start, "log_prior": jnp.asarray(log_prior)}
    decode = decoder(search, jnp.asarray(table), bigrams, methods, budget.beam)
    read = partial(reading, model, start)
    rows = []
    if protocol == "clean":
        rows += in_rows("clean", "", np.nan, read(table[ids], ids))
        rows += [
            {**pipeline.condition(name), "metric": "bits", "seed": 0, "score": bits}
            for name, bits in bits_of(search, bigrams, ids).items()
        ]
    for done, snr_db in enumerate(budget.snr_db if protocol != "clean" else (), 1):
        measured: dict[str, list[dict[str, np.ndarray]]] = {}
        for seed in range(budget.num_draws):
            noisy, sigma = pipeline.add_noise([*table[ids]], snr_db, protocol=protocol, seed=seed)
            noisy, sigma = noisy.reshape(*ids.shape, -1), sigma.reshape(ids.shape)
            measured.setdefault("none", []).append(read(noisy, ids))
            for name, tokens in decode(noisy, sigma).items():
                values = {"recovered": 100.0 * (tokens == ids)}
                values |= read(table[tokens], ids) if name in READ else {}
                measured.setdefault(name, []).append(values)
        for name, draws in measured.items():
            values = {metric: np.stack([each[metric] for each in draws]) for metric in draws[0]}
            rows += in_rows(name, protocol, snr_db, values)
        on_progress(done / len(budget.snr_db))
    return {"results": pd.DataFrame(rows).assign(task=task, width=table.shape[1])}


def in_rows(name: str, protocol: str, snr_db: float, values: Any) -> pipeline.Rows:
    """Returns rows of results.csv, one a draw, from values ([draws,] texts, tokens) by metric."""
    rows = []
    for metric, each in values.items():
        draws = each if each.ndim == 3 else each[None]
        final = np.exp if metric == "perplexity" else np.asarray
        low, high = tidy.bootstrap(draws.shape[1], lambda n, x=draws: x[:, n].mean())
        shared = {**pipeline.condition(name, protocol, snr_db), "metric": metric}
        shared |= {"low": final(low), "high": final(high), "num_examples": draws.shape[1]}
        rows += [
            {**shared, "seed": seed, "score": float(final(draw.mean()))}
            for seed, draw in enumerate(draws)
        ]
    return rows


def decoder(
    search: dict[str, Any],
    table: jax.Array,
    bigrams: priors.Bigrams,
    methods: Sequence[str],
    beam: int,
) -> Callable[[np.ndarray, np.ndarray], dict[str, np.ndarray]]:
    """Returns a function of noisy vectors and noise levels, which returns tokens by method."""
    log_prior = search["log_prior"]

    @jax.jit
    def alone(x: jax.Array, sigma: jax.Array) -> dict[str, Any]:
        def index(prior: Any, sigma: Any = None) -> jax.Array:
            one = partial(hopfield.denoise, patterns=table, log_prior=prior)
            return jax.vmap(lambda x, s: one(x, sigma=s).index)(x, sigma)

        count = min(NUM_CANDIDATES, len(table))
        one = partial(hopfield.candidates, patterns=table, count=count)
        likely = jax.vmap(lambda x, s: one(x, sigma=s, log_prior=log_prior))(x, sigma)
        names = {"nearest": index(None), "unigram-blind": index(log_prior)}
        return {**names, "unigram": index(log_prior, sigma), "bigram": likely}

    def chain(index: np.ndarray, likelihood: np.ndarray, steps: list[np.ndarray]) -> np.ndarray:
        likelihood = likelihood.copy()
        likelihood[:, 0] += np.asarray(log_prior)[index[:, 0]]
        best = priors.over_chains([*likelihood], steps).argmax(1)
        return np.take_along_axis(index, best.reshape(*index.shape[:2], 1), axis=2)[..., 0]

    @jax.jit
    def steered(params: Any, *texts: jax.Array) -> jax.Array:
        options = {"num_tokens": texts[0].shape[1], "mixture": MIXTURE, "params": params}
        step, cache = language_prior(**search, **options)

        def one(x: jax.Array, sigma: jax.Array, index: jax.Array, *chained: jax.Array) -> jax.Array:
            places = jnp.arange(len(x))
            known = priors.look_ahead(*chained)
            ahead = jnp.broadcast_to(known.min(1, keepdims=True), (len(x), len(table)))
            ahead = ahead.at[places[:, None], index].set(known)

            def steer(state: Any, token: jax.Array) -> Any:
                cache, place = state
                cache, log_probs = step(cache, token)
                # The terms cancel in a text's sum: they decide what the beam keeps.
                behind = jnp.where(place > 0, ahead[place - 1, token], 0)
                return (cache, place + 1), log_probs + ahead[place] - behind

            return hopfield.beam_decode(
                x, table, steer, (cache, 0), sigma=sigma, beam=beam,
                num_candidates=len(index[0]), log_prior=log_prior,
            ).index  # fmt: skip

        return jax.vmap(one)(*texts)

    def texts(width: int, noisy: np.ndarray, sigma: np.ndarray, *, blind: bool) -> np.ndarray:
        def find(x: np.ndarray, s: np.ndarray) -> jax.Array:
            options = {"sigma": None if blind else s, "beam": width, "mixture": MIXTURE}
            return recall_text(noisy=jnp.asarray(x), **search, **options).index

        return pipeline.in_batches(find, noisy, sigma, BATCH)

    def decode(noisy: np.ndarray, sigma: np.ndarray) -> dict[str, np.ndarray]:
        flat = noisy.reshape(-1, noisy.shape[-1]), sigma.ravel()
        found = pipeline.in_batches(alone, *flat, 256)
        index, likelihood = (np.reshape(part, (*sigma.shape, -1)) for part in found["bigram"])
        steps = [priors.log_bigrams(bigrams, x[:-1, :, None], x[1:, None]) for x in index]
        found["bigram"] = chain(index, likelihood, steps)
        if "both" in methods:
            parts, params = (sigma, index, likelihood, np.stack(steps)), search["model"].params
            find = lambda x, rows: steered(params, x, *(part[rows] for part in parts))  # noqa: E731
            found["both"] = pipeline.in_batches(find, noisy, np.arange(len(noisy)), BATCH)
        for name, width in (("greedy", 1), ("beam", beam), ("beam-blind", beam)):
            if name in methods:
                found[name] = texts(width, noisy, sigma, blind=name.endswith("blind"))
        return {name: np.reshape(found[name], sigma.shape) for name in methods}

    return decode


def reading(
    model: Pretrained, start: int | None, vectors: np.ndarray, ids: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns how a model that reads these vectors predicts the true tokens, (texts, tokens)."""
    first = model.config["bos_token_id"] if start is None else start
    before = np.asarray(model.embed(jnp.full((len(ids), 1), first, int)))
    whole = np.concatenate([before, vectors[:, :-1]], axis=1)

    def probabilities(x: np.ndarray, ids: np.ndarray) -> dict[str, jax.Array]:
        logits = model.forward(jnp.asarray(x), jnp.ones(ids.shape, bool)).output
        own = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.asarray(ids)[..., None], axis=2)
        next_token = 100.0 * (jnp.argmax(logits, axis=2) == ids)
        return {"perplexity": -own[..., 0], "next token": next_token}

    return pipeline.in_batches(probabilities, whole, ids, BATCH)


def bits_of(search: dict[str, Any], bigrams: priors.Bigrams, ids: np.ndarray) -> dict[str, float]:
    """Returns the bits per token of each prior; that of the language model as it is mixed."""
    log_prior, model = search["log_prior"], search["model"]
    before = np.concatenate([np.full((len(ids), 1), -1), ids[:, :-1]], axis=1)

    @jax.jit
    def one(params: Any, before: jax.Array, ids: jax.Array) -> jax.Array:
        step, cache = language_prior(**search, num_tokens=len(ids), mixture=MIXTURE, params=params)
        _, log_probs = jax.lax.scan(step, cache, before)
        return jnp.take_along_axis(log_probs, ids[:, None], axis=1)[:, 0]

    nats = {
        "unigram": -float(np.asarray(log_prior)[ids].mean()),
        "bigram": priors.bits_of_bigrams(bigrams, [*ids]) * np.log(2),
        "beam": -float(
            np.mean([one(model.params, *each) for each in zip(before, ids, strict=True)])
        ),
    }
    return {name: value / np.log(2) for name, value in nats.items()}


def page(folder: Path) -> Page:
    """Returns the page of a run."""
    frame = tidy.read(folder)
    bits = frame[frame.metric == "bits"]
    width = int(bits.width.to_numpy()[0])
    shannon = bits.score.map(partial(hopfield.capacity_snr_db, width=width)).astype(float)
    limits = dict(zip(zip(bits.task, bits.model, strict=True), shannon, strict=True))
    lines = []
    noisy = tidy.ordered(frame[frame.level > 0], "model", list(TITLES))
    keys = ["task", "protocol", "model", "snr_db", "metric"]
    ends = {"mean": ("score", "mean"), "low": ("low", "first"), "high": ("high", "first")}
    means = noisy.groupby(keys, sort=False, as_index=False, observed=True).agg(**ends)
    tokens = means[means.metric == "recovered"]
    for key, part in tokens.groupby(keys[:3], sort=False, observed=True):
        task, protocol, name = map(str, key)
        part = part.sort_values("snr_db")
        reached = float(np.interp(GOAL, part["mean"], part.snr_db, left=np.nan, right=np.nan))
        limit = limits.get((task, LIMITS.get(name.removesuffix("-blind"))), np.nan)
        title = ", ".join(TITLES[each] for each in (task, protocol, name))
        ends = map(pipeline.decibels, (reached, limit, reached - limit))
        lines.append([title, *ends])
    drawn = tokens.assign(limit=[limits[task, "beam"] for task in tokens.task])
    head = ["", f"{GOAL:g} % recovered", "Shannon limit", "distance"]
    read = means[(means.metric != "recovered") & means.model.isin(["none", *READ])]
    pictures = {
        name: report.facets(title, rows, x="snr_db", col="protocol", row="task", titles=TITLES,
                            xlabel=SNR, ylabel=label)
        for name, title, rows, label in (
            ("language", "Tokens recovered against noise", drawn, "tokens recovered, %"),
            ("reading", "Next token predicted by the model", read[read.metric == "next token"],
             "next token right, %"),
        )
    }  # fmt: skip
    return Page(
        title="A language model as prior",
        pictures=pictures,
        tables=[report.Table(head, lines, "Signal-to-noise ratios")],
    )
