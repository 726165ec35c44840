"""Noise stability of classifiers of texts, on networks whose stability is known."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.noise_stability import encoder

RHOS = np.array(encoder.RHOS)
ROWS, TOKENS, WIDTH, VOCABULARY, SNR_DB = 24, 5, 4, 30, 2.0
keys = jax.random.split(jax.random.key(0), 4)
TABLE = jax.random.normal(keys[0], (VOCABULARY, WIDTH))
READ = jax.random.normal(keys[1], (WIDTH, 3))
IDS = jax.random.randint(keys[2], (ROWS, 1, TOKENS), 1, VOCABULARY).at[:, :, 0].set(0)
MASK = jnp.broadcast_to(jnp.arange(TOKENS) < 4, IDS.shape)
TEXTS = encoder.Texts(IDS, MASK, jnp.arange(ROWS))
scale = jax.vmap(partial(encoder.noise_scale, snr_db=SNR_DB))(TABLE[IDS], MASK)
# Of the mean of the four real tokens, times four: E |READ^T sum of noise|^2.
VARIANCE = float(4 * jnp.mean(scale[:, 0, 0] ** 2) * jnp.sum(READ**2))


def mean_of_tokens(params, embeddings, mask):
    return jnp.where(mask[..., None], embeddings, 0).sum((1, 2)) @ READ


def products_of_pairs(params, embeddings, mask):
    return (embeddings[:, 0, 1] * embeddings[:, 0, 2]) @ READ


def network(respond):
    return encoder.Network(lambda params, ids: TABLE[ids], respond)


def test_the_response_of_a_linear_network_has_the_correlation_of_the_noise():
    one = partial(encoder.response, network(mean_of_tokens), None, snr_db=SNR_DB, draws=40)
    measured = jax.jit(jax.vmap(lambda text: one(text, keys[3])))(TEXTS)
    rows = encoder.correlation_rows(jax.tree.map(np.asarray, measured))
    score, error, noise_error = (
        np.array([row[name] for row in rows]) for name in ("score", "standard_error", "noise_error")
    )
    assert error[3] < 0.05 and (noise_error[1:-1] > 0).all()
    np.testing.assert_array_less(np.abs(score - RHOS)[1:-1], 4 * error[1:-1])
    assert score[0] == 0 and score[-1] == pytest.approx(1)
    assert rows[0]["snr_db"] == pytest.approx(SNR_DB, abs=0.2)
    # Covariances of the outputs' noise, around the response to none.
    products = measured.changes.mean((0, 1))
    np.testing.assert_allclose(products, VARIANCE * RHOS, atol=0.15 * VARIANCE)
    clean = mean_of_tokens(None, TABLE[IDS], MASK)
    np.testing.assert_allclose(measured.mean.mean(0), clean.mean(0), atol=0.2)


@pytest.mark.parametrize(("respond", "degree"), [(mean_of_tokens, 1), (products_of_pairs, 2)])
def test_the_highest_level_is_the_degree(respond, degree):
    meter = encoder.level_meter(network(respond), TEXTS, keys[3], snr_db=SNR_DB, num_samples=4000)
    weights = meter(None, respond(None, TABLE[IDS], MASK))
    shares = {row["level"]: row for row in encoder.level_rows(weights, ROWS, SNR_DB)}
    for level, row in shares.items():
        assert (row["low"] <= 0 <= row["high"]) or level <= degree
    assert shares[float(degree)]["low"] > 0
    assert sum(row["score"] for row in shares.values()) == pytest.approx(1)
    if degree == 1:
        value, low, high = (part[1] for part in weights[:3])
        assert low < VARIANCE < high and low < value < high


def test_errors_of_a_ratio_are_those_of_repeated_samples():
    draw, texts, draws = np.random.default_rng(0), 40, 12
    values, errors = [], []
    for _ in range(300):
        own = draw.normal(3, 1, (texts, 1, 1))
        bottom = own + draw.normal(0, 1, (texts, draws, 1))
        top = 0.5 * own + draw.normal(0, 1, (texts, draws, 1)) + draw.normal(0, 0.3, own.shape)
        value, error, noise_error = encoder.ratio(top, bottom)
        values.append(value[0])
        errors.append((error[0], noise_error[0]))
    spread, (error, noise_error) = np.std(values), np.mean(errors, axis=0)
    assert error == pytest.approx(spread, rel=0.15)
    assert 0 < noise_error < error
