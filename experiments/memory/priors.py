"""Priors of a token given the others of its text: bigrams, and the encoder's own prediction.

The encoder's prior of a token is its frequency times exp(e . W h), with e the token's vector and h
the states of the last four layers at the masked position; only the matrix W is trained. A quarter
of the positions is masked at a time.

The bigrams' discount, and the weight of the encoder where both are used, minimize the bits per
token of held-out texts. The layers, learning rate and weight decay of the head are constants,
chosen on held-out rows of MRPC: there, a GELU and a LayerNorm before W did not help.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.special import log_softmax

from experiments.memory.pipeline import batched_outputs, prior
from hopfax.data import evenly_spaced
from hopfax.nn import Pretrained

NUM_GROUPS = 4  # of positions, one of which is masked at a time
DISCOUNTS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
WEIGHTS = (0.25, 0.5, 0.75, 1.0)
REPLACED = 0.3  # largest share of tokens replaced in a training text of the head
NUM_LAYERS = 4  # whose states the head reads
LEARNING_RATE, WEIGHT_DECAY, BATCH = 2e-3, 1.0, 128  # of the head


class Bigrams(NamedTuple):
    """Absolute discounting, interpolated with the unigram prior."""

    keys: np.ndarray  # pairs seen in the training texts, first times vocabulary plus second
    shares: np.ndarray  # discounted probability of the second token of each, given the first
    backoff: np.ndarray  # probability left to the unigram prior after each token
    unigram: np.ndarray  # probability of each token


class Head(NamedTuple):
    """Mean and standard deviation of the states of the training texts, and the matrix W."""

    mean: np.ndarray
    scale: np.ndarray
    weight: Any


class Priors(NamedTuple):
    """What is known about texts before they are observed."""

    table: np.ndarray  # vectors of all tokens
    blank: int  # the mask token's id
    log_prior: np.ndarray  # log-frequency of each token
    bigrams: Bigrams  # probability of each token given the one before it
    head: Head  # parameters of the encoder's prior
    weight: float  # of the encoder's prior when it is added to the bigrams


def fit(
    model: Pretrained, texts: Sequence[np.ndarray], held_out: Sequence[np.ndarray], blank: int,
    *, num_steps: int, num_held_out: int,
) -> Priors:  # fmt: skip
    """Returns priors of training texts, with settings chosen on held-out ones."""
    table = np.asarray(model.table, np.float32)
    log_prior = prior(texts, len(table))
    candidates = {discount: fit_bigrams(texts, log_prior, discount) for discount in DISCOUNTS}
    discount = min(DISCOUNTS, key=lambda each: bits_of_bigrams(candidates[each], held_out))
    head = fit_head(model, texts, log_prior, blank, num_steps)
    priors = Priors(table, blank, log_prior, candidates[discount], head, 0.0)
    _, bits = bits_in_context(model, priors, evenly_spaced(held_out, num_held_out), WEIGHTS)
    return priors._replace(weight=WEIGHTS[int(np.argmin(bits))])


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

    Position i belongs to group i modulo `NUM_GROUPS`; `blank` is the mask token's vector.
    """
    masked = [np.array(text) for text in vectors]
    for text, group in zip(masked, groups, strict=True):
        text[group::NUM_GROUPS] = blank
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
    groups = [
        masked_states(model, vectors, blank, [group] * len(vectors)) for group in range(NUM_GROUPS)
    ]
    states = [np.zeros((len(text), groups[0][0].shape[1]), np.float32) for text in vectors]
    for group, parts in enumerate(groups):
        for text, part in zip(states, parts, strict=True):
            text[group::NUM_GROUPS] = part
    return states


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
    for rows in np.split(np.arange(len(right)), range(256, len(right), 256)):
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


def bits(model: Pretrained, priors: Priors, texts: Sequence[np.ndarray]) -> list[float]:
    """Returns the bits per token: uniform, unigram, bigram, encoder, bigram and encoder."""
    encoder, (both,) = bits_in_context(model, priors, texts, [priors.weight])
    unigram = -float(np.mean(priors.log_prior[np.concatenate(texts)]) / np.log(2))
    bigram = bits_of_bigrams(priors.bigrams, texts)
    return [float(np.log2(len(priors.table))), unigram, bigram, encoder, both]
