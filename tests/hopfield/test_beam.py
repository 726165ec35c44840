from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hopfax.hopfield import beam_decode, denoise

COUNT, WIDTH, TOKENS = 5, 3, 4
PATTERNS = jax.random.normal(jax.random.key(0), (COUNT, WIDTH))
TABLE = jax.nn.log_softmax(3 * jax.random.normal(jax.random.key(1), (COUNT + 1, COUNT)))
NOISY = jax.random.normal(jax.random.key(2), (TOKENS, WIDTH))
SIGMA = 0.8


def bigram(state, token):
    """Reads all tokens so far: the weighted sum of their numbers changes the prior."""
    state = state + token
    context = jnp.sin((state + jnp.arange(COUNT, dtype=jnp.int32)).astype(jnp.float32))
    return state, jax.nn.log_softmax(TABLE[token] + context)


def every(noisy):
    """Log-probability of every text, in the formula's words."""

    def score(text):
        state, token, total = jnp.int32(0), jnp.int32(-1), 0.0
        for x, new in zip(noisy, text, strict=True):
            state, prior = bigram(state, token)
            total += prior[new] - jnp.sum((x - PATTERNS[new]) ** 2) / (2 * SIGMA**2)
            token = new
        return total

    texts = [*product(range(COUNT), repeat=len(noisy))]
    scores = jax.jit(jax.vmap(score))(jnp.array(texts, jnp.int32))
    return dict(zip(texts, scores.tolist(), strict=True))


@partial(jax.jit, static_argnames=("step", "beam", "num_candidates"))
def search(
    noisy=NOISY, step=bigram, *, sigma=SIGMA, beam=COUNT**2, num_candidates=COUNT, **options
):
    options |= {"sigma": sigma, "beam": beam, "num_candidates": num_candidates}
    return beam_decode(noisy, PATTERNS, step, jnp.int32(0), **options)


def without_context(state, token):
    return state, TABLE[0]


def test_a_wide_beam_finds_the_best_of_all_texts_and_the_margin_to_the_second():
    scores = every(NOISY[:3])
    best, second = sorted(scores, key=lambda text: -scores[text])[:2]
    options = {"sigma": SIGMA, "beam": COUNT**2, "num_candidates": COUNT}
    eager = beam_decode(NOISY[:3], PATTERNS, bigram, jnp.int32(0), **options)
    for found in (eager, search(NOISY[:3])):
        assert tuple(found.index.tolist()) == best
        np.testing.assert_allclose(found.value, PATTERNS[found.index])
        np.testing.assert_allclose(found.log_probability, scores[best], rtol=1e-5)
        np.testing.assert_allclose(found.margin, scores[best] - scores[second], atol=1e-4)


@pytest.mark.parametrize("sigma", [SIGMA, None])
def test_without_context_each_token_is_that_of_denoise(sigma):
    found = search(step=without_context, beam=1, sigma=sigma)
    alone = jax.vmap(lambda x: denoise(x, PATTERNS, sigma=sigma, log_prior=TABLE[0]))(NOISY)
    np.testing.assert_array_equal(found.index, alone.index)
    assert found.margin == jnp.inf


def test_frequencies_rank_the_candidates_and_exclude_patterns():
    """With one candidate a token, the search has no choice."""
    frequencies = TABLE[0].at[2].set(-jnp.inf)
    one = partial(denoise, patterns=PATTERNS, sigma=SIGMA, log_prior=frequencies)
    found = search(num_candidates=1, beam=1, log_prior=frequencies)
    np.testing.assert_array_equal(found.index, jax.vmap(lambda x: one(x).index)(NOISY))
    whole = search(log_prior=frequencies)
    assert 2 not in whole.index and whole.log_probability <= search().log_probability


def test_a_wider_beam_reads_ahead_where_greedy_search_errs():
    """The first token costs little less than another, which the second token requires."""
    last = jnp.log(jnp.array([[0.5, 0.5, 0, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 1, 0]]))

    def step(state, token):
        return state, last[token + 1]

    patterns = jnp.eye(COUNT)
    noisy = jnp.stack([0.6 * patterns[0] + 0.5 * patterns[1], patterns[3]])
    decode = partial(beam_decode, noisy, patterns, step, (), sigma=0.5, num_candidates=COUNT)
    texts = [jax.jit(partial(decode, beam=beam))() for beam in (1, 2)]
    assert [text.index.tolist() for text in texts] == [[0, 0], [1, 3]]
    assert texts[1].log_probability > texts[0].log_probability


def test_the_noise_level_may_differ_between_tokens():
    sigma = jnp.array([0.1, 9.0, 0.1, 9.0])
    found, nearest = search(sigma=sigma), search(sigma=0.01)
    np.testing.assert_array_equal(found.index[::2], nearest.index[::2])
    np.testing.assert_array_equal(search(sigma=jnp.full(TOKENS, SIGMA)).index, search().index)


def test_padding_changes_nothing():
    whole = search(jnp.pad(NOISY, ((0, 2), (0, 0)), constant_values=jnp.nan),
                   mask=jnp.arange(TOKENS + 2) < TOKENS)  # fmt: skip
    for padded, alone in zip(whole, search(), strict=True):
        np.testing.assert_allclose(padded[:TOKENS] if padded.ndim else padded, alone, rtol=1e-6)
    assert not whole.value[TOKENS:].any()
    noisy, mask = jnp.pad(NOISY, ((0, 2), (0, 0)), constant_values=jnp.nan), jnp.arange(6) < TOKENS
    slope = jax.grad(lambda sigma, *text: search(*text, sigma=sigma, mask=mask).log_probability)
    alone = jax.grad(lambda sigma: search(sigma=sigma).log_probability)
    np.testing.assert_allclose(slope(SIGMA, noisy), alone(SIGMA), rtol=1e-5)


def test_texts_are_mapped_and_the_log_probability_is_differentiable():
    mapped = jax.vmap(search)(jnp.stack([NOISY, -NOISY]))
    np.testing.assert_array_equal(mapped.index[1], search(-NOISY).index)
    gradient = jax.grad(lambda x: search(x).log_probability)(NOISY)
    expected = (search().value - NOISY) / SIGMA**2  # the prior does not depend on the noise
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)


def test_a_text_that_the_prior_excludes_has_probability_zero():
    found = search(step=lambda state, _: (state, jnp.full(COUNT, -jnp.inf)))
    assert found.log_probability == -jnp.inf and found.margin == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 0}, "beam must be >= 1"),
        ({"num_candidates": 0}, "num_candidates must be >= 1"),
        ({"sigma": 0.0}, "sigma must be > 0"),
        ({"noisy": NOISY[:0]}, "one or more tokens"),
        ({"noisy": NOISY[:, :2]}, "must have shape"),
    ],
)
def test_bad_arguments_are_errors(options, message):
    options = {"noisy": NOISY, "num_candidates": COUNT, "sigma": SIGMA} | options
    with pytest.raises(ValueError, match=message):
        beam_decode(patterns=PATTERNS, step=bigram, state=jnp.int32(0), **options)
