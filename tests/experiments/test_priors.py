"""Bigrams, and the marginals of their chains."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from experiments.memory import priors
from experiments.memory.priors import marginals

draw = np.random.default_rng(0)
SIZE = 12
TEXTS = [np.array([0, 1, 2, 0, 1]), np.array([1, 2, 3]), np.array([0, 1, 4, 5])]
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
    together = np.split(priors.over_chains(likelihood, moves, size=2), [4, 6])
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


def test_looking_ahead_turns_the_forward_pass_into_the_marginals():
    likelihood, transition = chain(4, 3)
    forward = [likelihood[0]]
    for emitted, moved in zip(likelihood[1:], transition, strict=True):
        forward.append(logsumexp(forward[-1][:, None] + moved, axis=0) + emitted)
    ahead = priors.look_ahead(jnp.asarray(likelihood), jnp.asarray(transition))
    both = np.exp(np.array(forward) - np.max(forward, 1, keepdims=True) + ahead)
    want = marginals(jnp.asarray(likelihood), jnp.asarray(transition), jnp.ones(4, bool))
    np.testing.assert_allclose(both / both.sum(1, keepdims=True), want, rtol=1e-3)
