"""Frequencies of pairs of tokens as prior: a Markov chain over the candidates of each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.memory import pipeline


class Bigrams(NamedTuple):
    """Absolute discounting, interpolated with the unigram prior."""

    keys: np.ndarray  # pairs seen in the training texts, first times vocabulary plus second
    shares: np.ndarray  # discounted probability of the second token of each, given the first
    backoff: np.ndarray  # probability left to the unigram prior after each token
    unigram: np.ndarray  # probability of each token


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


def bits_of_bigrams(bigrams: Bigrams, texts: Sequence[np.ndarray]) -> float:
    """Returns the bits per token of texts; each first token has the unigram prior."""
    first = np.log(bigrams.unigram[[text[0] for text in texts]])
    rest = [log_bigrams(bigrams, text[:-1], text[1:]) for text in texts]
    return -float(np.mean(np.concatenate([first, *rest]))) / np.log(2)


def marginals(likelihood: jax.Array, transition: jax.Array, mask: jax.Array) -> jax.Array:
    r"""Returns the posterior marginals of a Markov chain, `(n, states)`, 0 where padded.

    With $\log Z$ of the forward pass, $p(s_i = k | x)$ is
    $\partial \log Z / \partial \log p(x_i | k)$: its gradient is the backward pass.

    Args:
        likelihood: `(n, states)`, $\log p(x_i | s_i)$; the first row includes $\log p(s_1)$.
        transition: `(n - 1, states, states)`, $\log p(s_{i+1} | s_i)$ from rows to columns, finite
            but not necessarily normalized.
        mask: `(n,)`, True at real positions, which come first.
    """

    def log_normalizer(likelihood: jax.Array) -> jax.Array:
        def step(forward: jax.Array, each: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
            # Normalized at each position: float32 has no digits for sums over long sequences.
            likelihood, transition, real = each
            new = jax.nn.logsumexp(forward[:, None] + transition, axis=0) + likelihood
            norm = jax.nn.logsumexp(new)
            return jnp.where(real, new - norm, forward), jnp.where(real, norm, 0)

        norm = jax.nn.logsumexp(likelihood[0])
        _, norms = jax.lax.scan(step, likelihood[0] - norm, (likelihood[1:], transition, mask[1:]))
        return norm + jnp.sum(norms)

    return jax.grad(log_normalizer)(likelihood)


def look_ahead(likelihood: jax.Array, transition: jax.Array) -> jax.Array:
    r"""Returns $\log p(x_{i+1}, \ldots | s_i)$ of each position and state, up to constants."""

    def step(later: jax.Array, each: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        likelihood, transition = each
        ahead = jax.nn.logsumexp(transition + likelihood + later, axis=1)
        return ahead - ahead.max(), later

    first, rest = jax.lax.scan(
        step, jnp.zeros_like(likelihood[0]), (likelihood[1:], transition), reverse=True
    )
    return jnp.concatenate([first[None], rest])


_marginals = jax.jit(jax.vmap(marginals))


def over_chains(
    likelihood: Sequence[np.ndarray], steps: Sequence[np.ndarray], size: int = 16
) -> np.ndarray:
    """Returns the marginals of all texts in one array, computed in batches of `size` texts."""
    longest, parts = max(map(len, likelihood)), []
    for rows in pipeline.batches(len(likelihood), size):
        emitted, mask = pipeline.padded([likelihood[row] for row in rows], longest)
        moved, _ = pipeline.padded([steps[row] for row in rows], longest - 1)
        mask[1:][np.diff(rows) == 0] = False  # repeated
        parts.append(np.asarray(_marginals(emitted, moved, mask))[mask])
    return np.concatenate(parts)
