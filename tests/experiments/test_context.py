"""Context as prior: bigrams, the head's masked states, and the decoder on a small language."""

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from experiments.memory import context, priors
from experiments.memory.context import marginals

draw = np.random.default_rng(0)
SIZE, WIDTH, BLANK = 12, 16, 11
TEXTS = [np.array([0, 1, 2, 0, 1]), np.array([1, 2, 3]), np.array([0, 1, 4, 5])]
MODEL: Any = None  # `echo` takes its place
FREQUENCY = draw.dirichlet(np.ones(SIZE))


@pytest.fixture(scope="module")
def bigrams():
    return priors.fit_bigrams(TEXTS, np.log(FREQUENCY), 0.75)


def test_bigrams_are_discounted_counts_and_sum_to_one(bigrams):
    everything = np.exp(priors.log_bigrams(bigrams, np.arange(SIZE)[:, None], np.arange(SIZE)))
    np.testing.assert_allclose(everything.sum(1), 1, rtol=1e-5)
    # After 1, TEXTS have 2 twice and 4 once.
    want = 0.75 * 2 / 3 * FREQUENCY
    want[2] += (2 - 0.75) / 3
    want[4] += (1 - 0.75) / 3
    np.testing.assert_allclose(everything[1], want, rtol=1e-5)
    np.testing.assert_allclose(everything[9], FREQUENCY, rtol=1e-5)  # never seen


def test_bits_of_bigrams_are_those_of_each_text(bigrams):
    step = np.exp(priors.log_bigrams(bigrams, np.arange(SIZE)[:, None], np.arange(SIZE)))
    probabilities = [FREQUENCY[0], step[0, 1], step[1, 2], FREQUENCY[3]]
    got = priors.bits_of_bigrams(bigrams, [np.array([0, 1, 2]), np.array([3])])
    np.testing.assert_allclose(got, -np.mean(np.log2(probabilities)), rtol=1e-5)


def test_padded_chains_have_the_marginals_of_each_chain(bigrams):
    tokens = np.arange(5)  # all candidates, in every place
    steps = priors.log_bigrams(bigrams, tokens[:, None], tokens)
    likelihood = [draw.normal(size=(n, 5)).astype(np.float32) for n in (4, 2, 1)]
    moves = [np.tile(steps, (len(each) - 1, 1, 1)) for each in likelihood]
    together = np.split(context.over_chains(likelihood, moves, size=2), [4, 6])
    for probability, *chain in zip(together, likelihood, moves, strict=True):
        alone = marginals(*map(jnp.asarray, chain), jnp.ones(len(chain[0]), bool))
        np.testing.assert_allclose(probability, alone, rtol=1e-4, atol=1e-6)


def chain(length, states):
    """Log-likelihoods and transitions."""
    likelihood = draw.normal(size=(length, states)) - 500
    return likelihood, draw.normal(size=(length - 1, states, states))


def enumerated(likelihood, transition):
    """Marginals from the sum over all paths."""
    length, states = likelihood.shape
    paths = np.stack(np.meshgrid(*[np.arange(states)] * length), -1).reshape(-1, length)
    scores = likelihood[np.arange(length), paths].sum(1)
    scores += sum(transition[i, paths[:, i], paths[:, i + 1]] for i in range(length - 1))
    weights = np.exp(scores - logsumexp(scores))
    return np.stack([weights @ (paths == k) for k in range(states)], 1)


@pytest.mark.parametrize("length", [1, 5, 6])
def test_marginals_are_sums_over_all_paths(length):
    likelihood, transition = chain(length, 4)
    got = marginals(*map(jnp.asarray, (likelihood, transition)), jnp.ones(length, bool))
    np.testing.assert_allclose(got, enumerated(likelihood, transition), rtol=1e-4, atol=1e-6)


def echo(model, vectors):
    """Stands for the encoder: every layer's state is the sum of a token and its neighbors."""
    for rows in filter(None, (list(range(len(vectors)))[:2], list(range(len(vectors)))[2:])):
        longest = max(len(vectors[row]) for row in rows)
        states, mask = np.zeros((len(rows), longest, WIDTH)), np.zeros((len(rows), longest), bool)
        for place, row in enumerate(rows):
            padded = np.pad(vectors[row], ((1, 1), (0, 0)))
            states[place, : len(vectors[row])] = padded[:-2] + padded[1:-1] + padded[2:]
            mask[place, : len(vectors[row])] = True
        yield rows, SimpleNamespace(hidden_states=[states] * 6), mask


def test_states_of_a_token_are_computed_without_it(monkeypatch):
    monkeypatch.setattr(priors, "batched_outputs", echo)
    table = draw.normal(size=(SIZE, WIDTH)).astype(np.float32)
    vectors = [table[text] for text in TEXTS]
    blank = np.full(WIDTH, 100, np.float32)
    got = priors.states_in_context(MODEL, vectors, blank)
    for text, states in zip(vectors, got, strict=True):
        padded = np.pad(text, ((1, 1), (0, 0)))
        # The token itself is blank; its neighbors belong to other groups.
        want = np.tile(padded[:-2] + blank + padded[2:], priors.NUM_LAYERS)
        np.testing.assert_allclose(states, want, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(vectors[0], table[TEXTS[0]])  # the caller's stay as they are


def test_context_recovers_what_frequencies_cannot(monkeypatch, bigrams):
    """Token 1 has a twin, 6, more frequent; only its neighbors tell them apart."""
    monkeypatch.setattr(priors, "batched_outputs", echo)
    monkeypatch.setattr(context, "NUM_CANDIDATES", SIZE)
    table = 4 * draw.normal(size=(SIZE, WIDTH)).astype(np.float32)
    table[6] = table[1] + 0.05
    log_prior = np.log(FREQUENCY)
    log_prior[6] = log_prior[1] + 3
    head = priors.Head(np.zeros(4 * WIDTH), np.ones(4 * WIDTH), jnp.zeros((4 * WIDTH, WIDTH)))
    fitted = priors.Priors(table, BLANK, log_prior, bigrams, head, 0.5)
    texts = [*TEXTS, np.array([1])]
    ids = np.concatenate(texts)
    noisy = table[ids] + 0.3 * draw.normal(size=(len(ids), WIDTH)).astype(np.float32)
    noisy[-1] -= np.mean(noisy[-1] - table[1])  # nearer to 1 than to its twin
    decode = context.decoder(MODEL, fitted, list(map(len, texts)))
    estimates = decode(noisy, noisy[:, 0])
    assert list(estimates) == ["uniform", "unigram", "bigram", *context.ENCODER, "both"]
    twins = np.where(ids == 1, 6, ids)
    np.testing.assert_array_equal(estimates["unigram"][1], twins)
    np.testing.assert_array_equal(estimates["bigram"][1], [*ids[:-1], 6])  # alone: no context
    # A head that knows nothing changes nothing.
    for name, other in (("both", "bigram"), (context.ENCODER[-1], "unigram")):
        np.testing.assert_array_equal(estimates[name][1], estimates[other][1])
        for got, want in zip(estimates[name][0], estimates[other][0], strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
