"""How much does context add to retrieval from the vocabulary, and how near is that to the limit?

Without context, memory (`experiments.memory.similarity`) keeps a pretrained encoder's score down to
-8 to -10 dB. Here the prior of a token depends on the others, in two ways: a chain of bigrams,
solved by `forward_backward`, and the encoder's own prediction of a token from the
retrieved rest. Each text is observed once. The encoder is not trained.

Command: `python -m experiments memory-context --pretrained FOLDER --data-dir DIR`; about 45
minutes on two cores for six layers of width 384.

Expected: 95 % of the tokens are recovered about half a dB lower. Intervals of the scores are too
wide to rank the priors.

The encoder's prior of a token is its frequency times exp(e . W h), with e the token's vector and h
the states of the last four layers at the masked position; only the matrix W is trained. A quarter
of the positions is masked at a time; the others hold their posterior means. The new posteriors are
the next iteration's context, until a text's tokens stay the same. They are approximate: from the
second iteration on, a token's own evidence is also in its context. "Both" adds the weighted
e . W h of the last iteration to the chain of bigrams.

Chosen on training texts: every tenth row of the task's training set is held out from all priors,
and so are texts that are also among the reported ones.
The bigrams' discount and the weight of "both" minimize the bits per token there, in every run.
The layers, learning rate and weight decay of the head and the two iterations are constants, chosen
on the held-out rows of MRPC: there, a GELU and a LayerNorm before W did not help, nor did a third
iteration. The rows reported choose nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from scipy.optimize import brentq
from scipy.special import log_softmax, softmax
from scipy.stats import norm

from experiments import report, tidy
from experiments.figures import SNR
from experiments.memory import similarity
from experiments.memory.recovery import BEAMCLEAN
from experiments.memory.similarity import (
    ABSENT,
    absent,
    add_noise,
    batched_outputs,
    by_method,
    decibels,
    encoded,
    in_batches,
    pair_cosines,
    prior,
    results,
    unit_outputs,
)
from experiments.report import Page
from experiments.settings import by_budget
from hopfax import hopfield
from hopfax.data import reported_rows, spread, training_rows
from hopfax.hopfield import capacity_snr_db
from hopfax.nn import Pretrained
from hopfax.train.progress import Progress

REPRODUCES = "Robertha's claim of denoising, with context as prior; not in the paper"
NUM_CANDIDATES = 64  # per token
NUM_GROUPS = 4  # one of them is masked at a time
ITERATIONS = 2
CERTAIN = 0.999  # posterior probability of tokens that need no context
HELD_OUT = 10  # one training row in so many
DISCOUNTS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
WEIGHTS = (0.25, 0.5, 0.75, 1.0)
REPLACED = 0.3  # largest share of tokens replaced in a training text of the head
NUM_LAYERS = 4  # whose states the head reads
IMPOSSIBLE = -1e30  # log-probability of excluded states and steps
LEARNING_RATE, WEIGHT_DECAY, BATCH = 2e-3, 1.0, 128  # of the head
HIGHEST_DRAWN = -4.0  # SNR in dB, above which all priors recover all tokens
ERRORS = 0.05  # share of wrong tokens at which priors and their limits are compared
ENCODER = tuple(f"encoder-{number}" for number in range(1, ITERATIONS + 1))
DRAWN = ("uniform", "unigram", "bigram", ENCODER[-1], "both")
TITLES = {
    **similarity.TITLES,
    "uniform": "uniform",
    "unigram": "unigram (iteration 0)",
    "bigram": "bigram",
    **{name: f"encoder, iteration {number}" for number, name in enumerate(ENCODER, 1)},
    "both": "bigram and encoder",
    "random": "unigram, random table",
}
SHORT = {name: TITLES[name] for name in DRAWN} | {
    "unigram": "unigram",
    ENCODER[-1]: f"encoder, iteration {ITERATIONS}",
}
SHOWN = (-10.0, -12.0, -14.0, -16.0)  # SNR in dB, in the tables
WIDEST = 4.0  # dB between two levels, for interpolation
UNKNOWN = ABSENT | {"n/a": f"n/a: the lowest SNR is between levels more than {WIDEST:g} dB apart."}


class Budget(NamedTuple):
    """Size of a run: the fields of `similarity.Budget`, and training steps of the head."""

    num_pairs: int
    num_draws: int
    snr_db: tuple[float, ...]
    num_steps: int


BUDGETS = {
    "smoke": Budget(16, 1, (-12.0,), 2),
    "laptop": Budget(80, 1, (6.0, -8.0, -10.0, -11.0, -12.0, -14.0, -16.0, -20.0), 300),
    "paper": Budget(1500, 3, similarity.BUDGETS["paper"].snr_db, 2000),
}


@dataclass(frozen=True, kw_only=True)
class Config(similarity.Config):
    """Model, texts, noise and training of the head."""

    task: tuple[Literal["stsb", "mrpc"], ...] = ("stsb", "mrpc")
    """Tasks of pairs of texts."""
    num_pairs: Annotated[int | None, by_budget("num_pairs", "INT", BUDGETS)] = None
    """Pairs of texts, evenly spaced."""
    num_draws: Annotated[int | None, by_budget("num_draws", "INT", BUDGETS)] = None
    """Independent noise draws."""
    snr_db: Annotated[tuple[float, ...] | None, by_budget("snr_db", "FLOAT ...", BUDGETS)] = None
    """Signal-to-noise ratios in dB."""
    num_steps: Annotated[int | None, by_budget("num_steps", "INT", BUDGETS)] = None
    """Training steps of the encoder's head."""


def run(config: Config) -> Path:
    """Measures everything and writes the page; see `similarity.start` for errors."""
    budget, model, tokens, open_folder = similarity.start("memory-context", config, BUDGETS)
    table = np.asarray(model.table, np.float32)
    masks = [each for each in ("[MASK]", "<mask>") if each in tokens.tokens]
    if not masks:
        raise ValueError(f"the tokenizer of {config.pretrained} has no [MASK] or <mask> token")
    blank = tokens.tokens.index(masks[0])
    # All files are read before the work starts.
    inputs = [
        (name, reported_rows(name, data_dir=config.data_dir),
         training_rows(name, data_dir=config.data_dir))
        for name in config.task
    ]  # fmt: skip
    folder = open_folder()
    draws = range(budget.num_draws)
    cases: list[Any] = list(itertools.product(config.protocols, budget.snr_db, draws))
    frames = []
    with Progress(len(config.task) * (len(cases) + 1)) as progress:
        for number, (name, reported, known) in enumerate(inputs):
            done = number * (len(cases) + 1)
            progress.title = f"{TITLES[name]}, priors"
            progress.update(done)
            rows = spread(reported, budget.num_pairs)
            ids = encoded([row.texts[0][side] for side in (0, 1) for row in rows], tokens)
            training = [row.texts[0] for row in known]
            tested = {text for row in rows for text in row.texts[0]}
            held_out = dict.fromkeys(text for pair in training[::HELD_OUT] for text in pair)
            held_out = [text for text in held_out if text not in tested]
            apart = {*held_out, *tested}
            rest = [text for pair in training for text in pair if text not in apart]
            priors, chosen = fit(
                model, encoded(rest, tokens), encoded(held_out, tokens), blank, budget
            )
            clean, right = [table[text] for text in ids], np.concatenate(ids)
            measured = {("none", "", 0.0): [pair_cosines(unit_outputs(model, clean))]}
            recovered: dict[Any, list[float]] = {}
            random_rows: list[dict[str, Any]] = []
            decode, of_random_table = decoder(model, priors), random_reader(priors)
            for place, (protocol, db, draw) in enumerate(cases, 1):
                progress.title = f"{TITLES[name]}, {TITLES[protocol]}, {db:g} dB"
                progress.update(done + place)
                noisy, _ = add_noise(clean, db, protocol=protocol, seed=draw)
                estimates = decode(noisy, [len(text) for text in ids])
                for method, (decoded, values) in estimates.items():
                    at = method, protocol, db
                    measured.setdefault(at, []).append(pair_cosines(unit_outputs(model, values)))
                    share = 100 * float(np.mean(decoded == right))
                    recovered.setdefault(at, []).append(share)
                share = 100 * of_random_table(ids, db, protocol=protocol, seed=draw)
                at = similarity.condition("random", protocol, db)
                random_rows.append(
                    {**at, "seed": draw, "metric": "recovered", "score": round(share, 4)}
                )
            labels = np.array([row.label for row in rows])
            scores = [*results(name, measured, recovered, labels), *random_rows]
            scores += [
                {"model": method, "corruption": "none", "level": 0.0, "seed": 0,
                 "metric": metric, "score": round(value, 4)}
                for metric, values in {
                    "bits": bits_of_priors(model, priors, ids), "setting": chosen,
                }.items()
                for method, value in values.items()
            ]  # fmt: skip
            frames.append(pd.DataFrame(scores).assign(task=name))
            progress.update(done + len(cases) + 1)
    frame = pd.concat(frames).assign(width=table.shape[1])
    return report.write_run(folder, frame, page)


class Bigrams(NamedTuple):
    """Absolute discounting, interpolated with the unigram prior.

    Attributes:
        keys: Pairs of tokens seen in the training texts, first times vocabulary plus second.
        shares: Discounted probability of the second token of each, given the first.
        backoff: Probability left to the unigram prior after each token.
        unigram: Probability of each token.
    """

    keys: np.ndarray
    shares: np.ndarray
    backoff: np.ndarray
    unigram: np.ndarray


class Head(NamedTuple):
    """Mean and standard deviation of the states of the training texts, and the matrix W."""

    mean: np.ndarray
    scale: np.ndarray
    weight: Any


class Priors(NamedTuple):
    """What is known about texts before they are observed.

    Attributes:
        table: Vectors of all tokens.
        blank: The mask token's id.
        log_prior: Log-frequency of each token.
        bigrams: Probability of each token given the one before it.
        head: Parameters of the encoder's prior.
        weight: Weight of the encoder's prior when it is added to the bigrams.
    """

    table: np.ndarray
    blank: int
    log_prior: np.ndarray
    bigrams: Bigrams
    head: Head
    weight: float


def fit(
    model: Pretrained,
    texts: Sequence[np.ndarray],
    held_out: Sequence[np.ndarray],
    blank: int,
    budget: Budget,
) -> tuple[Priors, dict[str, float]]:
    """Returns priors of training texts, and the settings chosen on held-out ones."""
    table = np.asarray(model.table, np.float32)
    log_prior = prior(texts, len(table))
    candidates = {discount: fit_bigrams(texts, log_prior, discount) for discount in DISCOUNTS}
    discount = min(DISCOUNTS, key=lambda each: bits_of_bigrams(candidates[each], held_out))
    head = fit_head(model, texts, log_prior, blank, budget.num_steps)
    priors = Priors(table, blank, log_prior, candidates[discount], head, 0.0)
    _, bits = bits_in_context(model, priors, spread(held_out, budget.num_pairs), WEIGHTS)
    weight = WEIGHTS[int(np.argmin(bits))]
    return priors._replace(weight=weight), {"discount": discount, "weight": weight}


def fit_bigrams(texts: Sequence[np.ndarray], log_prior: np.ndarray, discount: float) -> Bigrams:
    """Returns the bigrams of texts; `discount`, in (0, 1), is taken off each count."""
    size = len(log_prior)
    pairs = np.concatenate([text[:-1].astype(np.int64) * size + text[1:] for text in texts])
    keys, counts = np.unique(pairs, return_counts=True)
    first = keys // size
    totals, kinds = np.bincount(first, counts, size), np.bincount(first, minlength=size)
    backoff = np.where(totals > 0, discount * kinds / np.maximum(totals, 1), 1.0)
    return Bigrams(keys, (counts - discount) / totals[first], backoff, np.exp(log_prior))


def log_bigrams(bigrams: Bigrams, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns log p(second | first), for arrays of tokens that broadcast."""
    keys = first.astype(np.int64) * len(bigrams.unigram) + second
    places = np.searchsorted(bigrams.keys, keys).clip(max=len(bigrams.keys) - 1)
    seen = np.where(bigrams.keys[places] == keys, bigrams.shares[places], 0)
    return np.log(seen + bigrams.backoff[first] * bigrams.unigram[second]).astype(np.float32)


def fit_head(
    model: Pretrained,
    texts: Sequence[np.ndarray],
    log_prior: np.ndarray,
    blank: int,
    num_steps: int,
) -> Head:
    """Trains the head to predict masked tokens of texts in which others are replaced at random.

    The replacements stand for errors of retrieval: they teach the head how far to trust the rest.
    """
    table, random = np.asarray(model.table, np.float32), np.random.default_rng(0)
    probabilities = np.exp(log_prior, dtype=float)
    probabilities /= probabilities.sum()
    some = [texts[n] for n in random.permutation(len(texts))[: num_steps * BATCH]]
    groups = random.integers(NUM_GROUPS, size=len(some)).tolist()
    vectors = []
    for text in some:
        wrong = random.random(len(text)) < random.uniform(0, REPLACED)
        others = random.choice(len(table), len(text), p=probabilities)
        vectors.append(table[np.where(wrong, others, text)])
    states = np.concatenate(masked_states(model, vectors, table[blank], groups))
    targets = np.concatenate([text[g::NUM_GROUPS] for text, g in zip(some, groups, strict=True)])
    scale = states.std(0) + 1e-3  # some coordinates are constant
    head = Head(states.mean(0), scale, jnp.zeros((states.shape[1], table.shape[1])))
    schedule = optax.cosine_decay_schedule(LEARNING_RATE, num_steps)
    optimizer = optax.adamw(schedule, weight_decay=WEIGHT_DECAY)

    def loss(weight: jax.Array, states: jax.Array, targets: jax.Array, *fixed: Any) -> jax.Array:
        patterns, log_prior = fixed
        scores = predicted(head._replace(weight=weight), states) @ patterns.T + log_prior
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores, targets))

    @jax.jit
    def step(weight: Any, memory: Any, *batch: Any) -> Any:
        updates, memory = optimizer.update(jax.grad(loss)(weight, *batch), memory, weight)
        return optax.apply_updates(weight, updates), memory

    weight, fixed = head.weight, (jnp.asarray(table), jnp.asarray(log_prior))
    memory = optimizer.init(weight)
    for _ in range(num_steps):
        rows = random.integers(len(states), size=BATCH)
        weight, memory = step(weight, memory, states[rows], targets[rows], *fixed)
    return head._replace(weight=weight)


def predicted(head: Head, states: jax.Array) -> jax.Array:
    """Returns W h, whose products with the table are the encoder's log-odds over frequency."""
    return ((states - head.mean) / head.scale) @ head.weight


def masked_states(
    model: Pretrained, vectors: Sequence[np.ndarray], blank: np.ndarray, groups: Sequence[int]
) -> list[np.ndarray]:
    """Returns the states at one group of each text's positions, with this group masked.

    Args:
        model: The encoder.
        vectors: Token vectors of each text.
        blank: The mask token's vector.
        groups: Group of each text: position i belongs to group i modulo `NUM_GROUPS`.
    """
    masked = []
    for text, group in zip(vectors, groups, strict=True):
        text = text.copy()
        text[group::NUM_GROUPS] = blank
        masked.append(text)
    of_group = list(masked)
    for rows, output, mask in batched_outputs(model, masked):
        states = np.concatenate(np.asarray(output.hidden_states[-NUM_LAYERS:]), axis=-1)
        for row, state, real in zip(rows, states, mask, strict=True):
            of_group[row] = state[real][groups[row] :: NUM_GROUPS]
    return of_group


def states_in_context(
    model: Pretrained, vectors: Sequence[np.ndarray], blank: np.ndarray
) -> list[np.ndarray]:
    """Returns the states at all positions, each computed with its group masked."""
    parts = [
        masked_states(model, vectors, blank, [group] * len(vectors)) for group in range(NUM_GROUPS)
    ]
    states = [np.zeros((len(text), parts[0][0].shape[1]), np.float32) for text in vectors]
    for group, of_group in enumerate(parts):
        for text, part in zip(states, of_group, strict=True):
            text[group::NUM_GROUPS] = part
    return states


class Marginals(NamedTuple):
    """The posterior over the states of a chain.

    Attributes:
        probability: `(n, states)` posterior probability of each state; 0 where padded.
        log_normalizer: Log-probability of the observed sequence, a sum over all paths; -inf if no
            path is possible, 0 without a real position.
    """

    probability: jax.Array
    log_normalizer: jax.Array


def forward_backward(likelihood: Any, transition: Any, mask: Any = None) -> Marginals:
    r"""Returns the posterior marginals of a Markov chain, and the sequence's log-probability.

    For observations $x_i$ of hidden states $s_i$,

    $$\log Z = \log \sum_{s_1 \dots s_n} p(s_1) \prod_i p(x_i | s_i) \prod_i p(s_{i+1} | s_i), \quad
    p(s_i = k | x) = \frac{\partial \log Z}{\partial \log p(x_i | k)}$$

    The forward pass is a scan; its gradient is the backward pass.

    Args:
        likelihood: `(n, states)`, $\log p(x_i | s_i)$; the first row includes $\log p(s_1)$.
        transition: `(n - 1, states, states)`, $\log p(s_{i+1} | s_i)$ from state (rows) to state
            (columns); need not be normalized. -inf excludes a step, or above a state.
        mask: `(n,)`, True at real positions, which come first; None takes all.

    References:
        Rabiner (1989), A Tutorial on Hidden Markov Models, Equations 19 to 27.
    """
    real = jnp.ones(len(likelihood), bool) if mask is None else jnp.asarray(mask)
    dtype = jnp.result_type(likelihood, transition, jnp.float32)
    # Finite, so that no gradient is nan; sums of n stay finite too.
    likelihood = jnp.where(real[:, None], likelihood, 0).astype(dtype)
    likelihood = jnp.maximum(likelihood, IMPOSSIBLE)
    transition = jnp.where(real[1:, None, None], transition, 0).astype(dtype)
    transition = jnp.maximum(transition, IMPOSSIBLE)

    def log_normalizer(likelihood: jax.Array) -> jax.Array:
        def step(forward: jax.Array, each: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
            # Normalized at each position: float32 has no digits for sums over long sequences.
            likelihood, transition, real = each
            new = jax.nn.logsumexp(forward[:, None] + transition, axis=0) + likelihood
            norm = jax.nn.logsumexp(new)
            return jnp.where(real, new - norm, forward), jnp.where(real, norm, 0)

        norm = jax.nn.logsumexp(likelihood[0])
        following = likelihood[1:], transition, real[1:]
        _, norms = jax.lax.scan(step, likelihood[0] - norm, following)
        return jnp.where(real[0], norm, 0) + jnp.sum(norms)

    total, probability = jax.value_and_grad(log_normalizer)(likelihood)
    impossible = total <= IMPOSSIBLE / 2
    return Marginals(
        jnp.where(impossible | ~real[:, None], 0, probability),
        jnp.where(impossible, -jnp.inf, total),
    )


Estimates = dict[str, tuple[Any, list[Any]]]


def decoder(model: Pretrained, priors: Priors) -> Callable[[np.ndarray, list[int]], Estimates]:
    """Returns a function of the noisy vectors of all texts, in one array, and the texts' lengths.

    It returns each method's tokens and, by text, its posterior means.
    """
    patterns, log_prior = jnp.asarray(priors.table), jnp.asarray(priors.log_prior)
    blank = priors.table[priors.blank]

    @jax.jit
    def likeliest(x: jax.Array, _: jax.Array) -> tuple[Any, Any]:
        one = partial(hopfield.candidates, patterns=patterns, count=NUM_CANDIDATES)
        return jax.vmap(partial(one, log_prior=log_prior))(x), jax.vmap(one)(x)

    @jax.jit
    def means(posterior: jax.Array, index: jax.Array) -> jax.Array:
        return jnp.einsum("nk,nkd->nd", posterior, patterns[index])

    @jax.jit
    def log_odds(states: jax.Array, index: jax.Array) -> jax.Array:
        return jnp.einsum("nd,nkd->nk", predicted(priors.head, states), patterns[index])

    @jax.jit
    @jax.vmap
    def marginals(likelihood: jax.Array, steps: jax.Array, mask: jax.Array) -> jax.Array:
        return forward_backward(likelihood, steps, mask).probability

    def decode(noisy: np.ndarray, lengths: list[int]) -> Estimates:
        ends, owner = np.cumsum(lengths)[:-1], np.repeat(np.arange(len(lengths)), lengths)
        frequent, nearest = in_batches(likeliest, noisy, noisy[:, 0], 512)
        index, likelihood = frequent
        unigram = priors.log_prior[index]
        estimates: Estimates = {}

        def keep(name: str, posterior: np.ndarray, index: np.ndarray = index) -> None:
            best = np.take_along_axis(index, posterior.argmax(1)[:, None], axis=1)[:, 0]
            estimates[name] = best, np.split(in_batches(means, posterior, index, 512), ends)

        def from_context(name: str, unsure: np.ndarray, previous: np.ndarray) -> np.ndarray:
            """Returns the encoder's log-odds of unsure tokens given one method's estimates."""
            new, flags = previous.copy(), np.split(unsure, ends)
            places = np.split(np.arange(len(unsure)), ends)
            for group in range(NUM_GROUPS):
                texts = [n for n, each in enumerate(flags) if each[group::NUM_GROUPS].any()]
                if texts:
                    vectors = [estimates[name][1][text] for text in texts]
                    states = masked_states(model, vectors, blank, [group] * len(texts))
                    rows = np.concatenate([places[text][group::NUM_GROUPS] for text in texts])
                    new[rows] = in_batches(log_odds, np.concatenate(states), index[rows], 512)
            return new

        steps = transitions(priors.bigrams, np.split(index, ends))
        initial = np.where(np.diff(owner, prepend=-1)[:, None], unigram, 0)

        def keep_chain(name: str, evidence: np.ndarray) -> None:
            keep(name, over_chains(marginals, np.split(evidence + initial, ends), steps))

        posterior = softmax(likelihood + unigram, axis=1)
        keep("uniform", softmax(nearest.log_likelihood, axis=1), nearest.index)
        keep("unigram", posterior)
        keep_chain("bigram", likelihood)
        context, last = np.zeros_like(unigram), "unigram"
        unsure = posterior.max(1) < CERTAIN
        for name in ENCODER:
            context = from_context(last, unsure, context)
            posterior = softmax(likelihood + unigram + context, axis=1)
            keep(name, posterior)
            changed = owner[estimates[name][0] != estimates[last][0]]
            unsure, last = (posterior.max(1) < CERTAIN) & np.isin(owner, changed), name
        keep_chain("both", likelihood + priors.weight * context)
        return estimates

    return decode


def transitions(bigrams: Bigrams, index: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns the log-probabilities of steps between candidates, for each text's candidates."""
    return [log_bigrams(bigrams, each[:-1, :, None], each[1:, None, :]) for each in index]


def over_chains(
    marginals: Callable[..., Any],
    likelihood: Sequence[np.ndarray],
    steps: Sequence[np.ndarray],
    size: int = 16,
) -> np.ndarray:
    """Returns the marginals of all texts in one array.

    Args:
        marginals: Function of padded batches of log-likelihoods, transitions and masks.
        likelihood: Log-likelihoods of each text's candidates.
        steps: Log-probabilities of their steps.
        size: Texts of a batch.
    """
    lengths = np.array([len(text) for text in likelihood])
    longest, count = lengths.max(), likelihood[0].shape[1]
    parts = []
    for start in range(0, len(likelihood), size):
        emitted = np.zeros((size, longest, count), np.float32)
        moved = np.zeros((size, longest - 1, count, count), np.float32)
        for place, text in enumerate(likelihood[start : start + size]):
            emitted[place, : len(text)] = text
            moved[place, : len(text) - 1] = steps[start + place]
        real = np.zeros(size, int)
        real[: len(lengths[start : start + size])] = lengths[start : start + size]
        mask = np.arange(longest) < real[:, None]
        parts.append(np.asarray(marginals(emitted, moved, mask))[mask])
    return np.concatenate(parts)


def random_reader(priors: Priors) -> Callable[..., float]:
    """Returns the share of tokens recovered under the unigram prior if vectors were random.

    The random vectors have the norms of the table's. Arguments of the function: the texts' tokens,
    and those of `add_noise`.
    """
    log_prior = jnp.asarray(priors.log_prior)
    random = np.random.default_rng([0, 1])  # not the stream of any noise
    table = random.standard_normal(priors.table.shape, np.float32)
    norms = np.linalg.norm(priors.table, axis=1) / np.linalg.norm(table, axis=1)
    table *= norms[:, None]

    @jax.jit
    def read(x: jax.Array, _: jax.Array) -> jax.Array:
        one = partial(hopfield.candidates, patterns=table, count=1, log_prior=log_prior)
        return jax.vmap(one)(x).index[:, 0]

    def recovered(ids: Sequence[np.ndarray], snr_db: float, **options: Any) -> float:
        noisy, _ = add_noise([table[text] for text in ids], snr_db, **options)
        return float(np.mean(in_batches(read, noisy, noisy[:, 0], 512) == np.concatenate(ids)))

    return recovered


def bits_of_bigrams(bigrams: Bigrams, texts: Sequence[np.ndarray]) -> float:
    """Returns the bits per token of texts; each first token has the unigram prior."""
    first = np.log(bigrams.unigram[[text[0] for text in texts]])
    rest = [log_bigrams(bigrams, text[:-1], text[1:]) for text in texts]
    return -float(np.mean(np.concatenate([first, *rest]))) / np.log(2)


def bits_in_context(
    model: Pretrained, priors: Priors, texts: Sequence[np.ndarray], weights: Sequence[float]
) -> tuple[float, list[float]]:
    """Returns the bits per token of the encoder's prior, and of "both" for each weight.

    The context is clean. "Both" is the normalized product of the bigram after the token before and
    the weighted encoder.
    """
    bigrams, table, size = priors.bigrams, priors.table, len(priors.table)
    right = np.concatenate(texts).astype(np.int64)
    before = np.concatenate([[-1, *text[:-1]] for text in texts])
    vectors = [table[text] for text in texts]
    states = np.concatenate(states_in_context(model, vectors, table[priors.blank]))
    bits = []
    for start in range(0, len(right), 256):
        rows = slice(start, start + 256)
        scores = np.asarray(predicted(priors.head, jnp.asarray(states[rows]))) @ table.T
        encoder = log_softmax(scores + priors.log_prior, axis=1)
        chain = np.tile(bigrams.unigram, (len(scores), 1))
        for row, token in zip(chain, before[rows], strict=True):
            if token >= 0:
                low, high = np.searchsorted(bigrams.keys, [token * size, (token + 1) * size])
                row *= bigrams.backoff[token]
                row[bigrams.keys[low:high] - token * size] += bigrams.shares[low:high]
        chain = np.log(chain)
        each = [encoder, *(log_softmax(chain + weight * scores, axis=1) for weight in weights)]
        bits.append([-part[np.arange(len(part)), right[rows]] / np.log(2) for part in each])
    encoder, *both = (float(np.mean(np.concatenate(part))) for part in zip(*bits, strict=True))
    return encoder, both


def bits_of_priors(
    model: Pretrained, priors: Priors, texts: Sequence[np.ndarray]
) -> dict[str, float]:
    """Returns each prior's bits per token of texts."""
    encoder, both = bits_in_context(model, priors, texts, [priors.weight])
    return {
        "uniform": float(np.log2(len(priors.table))),
        "unigram": -float(np.mean(priors.log_prior[np.concatenate(texts)]) / np.log(2)),
        "bigram": bits_of_bigrams(priors.bigrams, texts),
        ENCODER[-1]: encoder,
        "both": both[0],
    }


def one_token_snr_db(bits: float, *, width: int) -> float:
    """Returns the SNR in dB at which the best code of one token a block has `ERRORS` errors.

    The normal approximation of Polyanskiy, Poor and Verdú (2010), Equation 296, for `width` real
    channel uses.
    """

    def missing(snr_db: float) -> float:
        snr = 10 ** (snr_db / 10)
        dispersion = snr * (snr + 2) / (2 * (snr + 1) ** 2) * np.log2(np.e) ** 2
        rate = width / 2 * np.log2(1 + snr) + np.log2(width) / 2
        return float(rate - np.sqrt(width * dispersion) * norm.isf(ERRORS) - bits)

    return float(brentq(missing, -30, 30, full_output=False))  # pyright: ignore[reportArgumentType]


def falls_to(values: Mapping[float, float], aim: float) -> float:
    """Returns the SNR in dB at which values by SNR first fall to an aim.

    It is interpolated between levels: nan where these are far apart, inf if no value is above the
    aim, -inf if all are.
    """
    levels = sorted(values, reverse=True)
    if values[levels[0]] <= aim:
        return np.inf
    for left, right in itertools.pairwise(levels):
        if values[left] > aim >= values[right]:
            share = (values[left] - aim) / (values[left] - values[right])
            return left + share * (right - left) if left - right <= WIDEST else float("nan")
    return -np.inf


def written(snr_db: float) -> str:
    """Returns a result of `falls_to` without its unit."""
    named = {np.inf: "none", -np.inf: "all"}
    return named.get(snr_db) or report.signed(snr_db)


def in_words(snr_db: float) -> str:
    """Returns a result of `falls_to` for a sentence, such as "−10.1 dB"."""
    named = {np.inf: "not among those tested", -np.inf: "below those tested"}
    if snr_db != snr_db:
        return f"between levels more than {WIDEST:g} dB apart"
    return named.get(snr_db) or decibels(snr_db)


def beamclean(shares: Mapping[str, Mapping[float, float]]) -> list[str]:
    """Returns the note on shares recovered where the nearest token matches BeamClean."""
    snr_db, levels = falls_to(shares["uniform"], BEAMCLEAN["nearest"]), sorted(shares["uniform"])
    if not np.isfinite(snr_db):
        return []
    at = {
        name: float(np.interp(snr_db, levels, [shares[name][db] for db in levels]))
        for name in ("unigram", "bigram", "both")
    }
    parts = report.joined(f"{report.number(share)} % ({SHORT[name]})" for name, share in at.items())
    return [
        f"BeamClean (arXiv 2505.13758) recovers {BEAMCLEAN['language model']} % of MRPC's tokens "
        "with a language model, at noise under which the nearest token recovers "
        f"{BEAMCLEAN['nearest']} %. Here, on other embeddings, the nearest token (uniform prior) "
        f"recovers as many at {decibels(snr_db)}. At this SNR, the other priors recover {parts}."
    ]


def page(folder: Path) -> Page:
    """Returns the page of a run or of a folder of published results."""
    frame = tidy.read(folder)
    width, clean_rows = int(frame.width.iloc[0]), frame[frame.level == 0]
    clean = clean_rows[clean_rows.metric == "score"].set_index("task").score
    bits = clean_rows[clean_rows.metric == "bits"].set_index(["task", "model"]).score
    limit_of = {task: float(capacity_snr_db(bits.loc[(task, "unigram")], width=width))
                for task in clean.index}  # fmt: skip
    noisy = frame[frame.level > 0].assign(limit=frame.task.map(limit_of))
    keys = ["task", "protocol", "model", "snr_db"]
    means = {"mean": ("score", "mean"), "low": ("low", "first"), "high": ("high", "first"),
             "limit": ("limit", "first")}  # fmt: skip
    lines = noisy[noisy.metric == "score"].groupby(keys, sort=False, as_index=False).agg(**means)
    lines = tidy.ordered(lines.assign(clean=lines.task.map(clean)), "model", list(TITLES))
    tokens = noisy[noisy.metric == "recovered"]
    tokens = tokens.groupby(keys, sort=False, as_index=False)[["score", "limit"]].mean()
    drawn = tokens[tokens.model.isin(DRAWN) & (tokens.snr_db <= HIGHEST_DRAWN)]
    drawn = drawn.assign(mean=drawn.score, low=drawn.score, high=drawn.score)
    drawn = tidy.ordered(drawn.sort_values("snr_db", kind="stable"), "model", DRAWN)
    protocols = list(dict.fromkeys(lines.protocol))
    answers, limits, tables, compared = [], [], [], []
    for task in dict.fromkeys(lines.task):
        shares, first = (
            by_method(tidy.select(each, task=task, protocol=protocols[0]), column, TITLES)
            for each, column in ((tokens, "score"), (lines, "mean"))
        )
        reached = {name: falls_to(shares[name], 100 * (1 - ERRORS)) for name in shares}
        for name in DRAWN:
            each = float(bits.loc[(task, name)])
            limit = float(capacity_snr_db(each, width=width))
            limits.append([
                f"{TITLES[task]}, {SHORT[name]}", report.number(each),
                *map(written, [limit, one_token_snr_db(each, width=width), reached[name]]),
            ])  # fmt: skip
        levels = [snr_db for snr_db in SHOWN if snr_db in first["unigram"]]

        def cell(name: str, snr_db: float, shares: Any = shares, first: Any = first) -> str:
            scored = f" ({report.number(first[name][snr_db])})" if name in first else ""
            return report.number(shares[name][snr_db]) + scored

        rows = [[TITLES[name], *(cell(name, snr_db) for snr_db in levels)] for name in shares]
        tables.append(
            report.Table(
                ["", *map(decibels, levels)],
                rows,
                f"{TITLES[task]}, {TITLES[protocols[0]]}: tokens recovered in %, and the score in "
                "parentheses.",
            )
        )
        compared += beamclean(shares) if task == "mrpc" else []
        answers.append(
            f"**On {TITLES[task]}, the lowest SNR at which {100 * (1 - ERRORS):g} % of the tokens "
            f"are recovered is {in_words(reached['both'])} with bigrams and an encoder as prior**, "
            f"and {in_words(reached['unigram'])} with token frequencies only."
        )
    tables.insert(
        0,
        report.Table(
            [
                "prior",
                "bits",
                "Shannon limit",
                "limit of one token",
                f"{100 * (1 - ERRORS):g} % recovered",
            ],
            limits,
            "Bits: cross-entropy per token of the reported texts. Other columns: lowest SNR "
            f"in dB; for the limits, see the notes.{absent(limits, UNKNOWN)}",
        ),
    )
    settings = clean_rows[clean_rows.metric == "setting"].groupby("model").score
    chosen = {name: report.joined(f"{x:g}" for x in values) for name, values in settings}
    scored = frame[frame.metric == "score"]
    intervals = report.joined(
        f"{report.bracketed(row.rename({'score': 'mean'}))} ({TITLES[row.task]})"
        for _, row in scored[scored.level == 0].iterrows()
    )
    return report.Page(
        title="Context as prior: retrieval from the vocabulary that uses the other tokens",
        answer=" ".join(answers),
        pictures={
            "context": report.facets(
                "Share of the tokens recovered against noise",
                drawn,
                x="snr_db",
                col="protocol",
                row="task" if lines.task.nunique() > 1 else None,
                titles={**TITLES, **SHORT},
                xlabel=SNR,
                ylabel="tokens recovered, %",
            )
        },
        tables=tables,
        notes=[
            f"{int(scored.num_examples.max())} pairs, draws of the noise: {noisy.seed.nunique()}; "
            "all methods see the same noisy copy of each text and do not know σ. SNRs are "
            "interpolated between levels. Tokens include special tokens.",
            similarity.SCORED,
            f"Clean scores: {intervals}, with 95 % intervals.",
            "Unigram: the frequency prior of other pages. Encoder: the unigram prior, times a "
            "trained head's prediction from the other tokens' posterior means; each iteration "
            "starts from the means of the one before.",
            f"Priors from context, and all scores, use the {NUM_CANDIDATES} most probable "
            "tokens at each position. At low SNR, some true tokens are not among them.",
            "Shannon limit: below this SNR, no decoder recovers all tokens, if the prior is "
            "correct. The figure shows that of the unigram prior. Bits with the encoder are "
            "conditional on clean tokens on both sides, so its limit may be optimistic.",
            "Limit of one token: the SNR at which an optimal code sends one of 2^bits messages in "
            f"{width} channel uses with {100 * ERRORS:g} % errors, by the normal approximation "
            "(Polyanskiy et al., 2010).",
            *compared,
            "Random table: vectors of the same norms in random directions, without the table's "
            "close neighbors, such as inflections of a word.",
            "Hyperparameters, chosen for each task on held-out training rows: discount of the "
            f"bigrams {chosen['discount']}, weight of the encoder's prior {chosen['weight']}.",
        ],
    )
