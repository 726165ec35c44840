"""Noise stability of classifiers of texts, on networks whose stability is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.noise_stability import encoder_response as er

RHOS = np.array(er.RHOS)
ROWS, TOKENS, WIDTH, VOCABULARY, SPECIAL, SNR_DB = 24, 5, 4, 30, 0, 2.0
keys = jax.random.split(jax.random.key(0), 4)
TABLE = jax.random.normal(keys[0], (VOCABULARY, WIDTH))
READ = jax.random.normal(keys[1], (WIDTH, 3))
IDS = jax.random.randint(keys[2], (ROWS, 1, TOKENS), 1, VOCABULARY).at[:, :, 0].set(SPECIAL)
MASK = jnp.broadcast_to(jnp.arange(TOKENS) < 4, IDS.shape)
TEXTS = er.Texts(IDS, MASK, jnp.arange(ROWS))


def mean_of_tokens(params, embeddings, mask):
    return jnp.where(mask[..., None], embeddings, 0).sum((1, 2)) @ READ


def products_of_pairs(params, embeddings, mask):
    return (embeddings[:, 0, 1] * embeddings[:, 0, 2]) @ READ


def network(respond):
    return er.Network(lambda params, ids: TABLE[ids], respond)


@pytest.fixture(scope="module")
def measured():
    options = {"num_tokens": VOCABULARY, "special": (SPECIAL,), "snr_db": SNR_DB, "draws": 40}
    response = er.response(network(mean_of_tokens), None, TEXTS, keys[3], keys[0], **options)
    return jax.tree.map(np.asarray, response)


def curve(rows, metric):
    rows = [row for row in rows if row["metric"] == metric and row["level"] is not None]
    return (np.array([row[name] for row in rows]) for name in ("score", "standard_error"))


def test_the_response_of_a_linear_network_has_the_correlation_of_the_noise(measured):
    rows = er.gaussian_rows(measured)
    score, error = curve(rows, "correlation")
    assert error[3] < 0.05
    np.testing.assert_array_less(np.abs(score - RHOS)[1:-1], 4 * error[1:-1])
    assert score[0] == 0 and score[-1] == pytest.approx(1)
    assert rows[0]["snr_db"] == pytest.approx(SNR_DB, abs=0.2)


def test_stability_is_that_of_the_outputs(measured):
    clean = np.asarray(mean_of_tokens(None, TABLE[IDS], MASK))
    sigma = np.asarray(er.noise_scale(TABLE[IDS], MASK, SNR_DB))[:, 0, 0, 0]
    variance = 4 * sigma**2 * np.square(READ).sum()
    score, error = curve(er.gaussian_rows(measured), "stability")
    want = np.square(clean).sum(1).mean() + variance.mean() * RHOS
    # The expectation is for these texts, so only the noise's error counts.
    noise_error = [row["noise_error"] for row in er.gaussian_rows(measured)[: len(RHOS)]]
    np.testing.assert_array_less(np.abs(score - want), 4 * np.array(noise_error))
    assert (np.array(noise_error) < error).all()


def test_token_noise_replaces_all_but_special_tokens(measured):
    score, _ = curve(er.token_rows(measured), "stability")
    outputs = np.asarray(TABLE @ READ)
    sums = outputs[np.asarray(IDS)[:, 0, :4]]  # of the four real tokens; the first is special
    noisy = [
        sums[:, 0] + kept * sums[:, 1:].sum(1) + 3 * (1 - kept) * outputs.mean(0)
        for kept in (1 + RHOS) / 2
    ]
    want = [np.mean(np.sum(sums.sum(1) * each, axis=1)) for each in noisy]
    noise_error = [row["noise_error"] for row in er.token_rows(measured)[: len(RHOS)]]
    np.testing.assert_array_less(np.abs(score - want)[:-1], 4 * np.array(noise_error)[:-1])
    assert score[-1] == pytest.approx(want[-1], rel=1e-5)
    same, _ = curve(er.token_rows(measured), "same class")
    assert same[-1] == 1 and same[0] < same[-2] < 1


def test_special_tokens_and_padding_stay():
    seen = []
    recorder = er.Network(lambda _, ids: (seen.append(ids), TABLE[ids])[1], mean_of_tokens)
    options = {"num_tokens": VOCABULARY, "special": (SPECIAL,), "snr_db": SNR_DB, "draws": 1}
    er.response(recorder, None, TEXTS, keys[3], keys[0], **options)
    fixed = np.asarray((IDS == SPECIAL) | ~MASK)
    _, *copies = map(np.asarray, seen)
    assert len(copies) == len(RHOS)
    for ids in copies:
        np.testing.assert_array_equal(ids[fixed], np.asarray(IDS)[fixed])
    assert np.mean(copies[0][~fixed] != np.asarray(IDS)[~fixed]) > 0.3


@pytest.mark.parametrize(("respond", "degree"), [(mean_of_tokens, 1), (products_of_pairs, 2)])
def test_the_highest_level_is_the_degree(respond, degree):
    meter = er.level_meter(network(respond), TEXTS, keys[3], snr_db=SNR_DB, num_samples=4000)
    center = respond(None, TABLE[IDS], MASK)
    rows = er.level_rows(meter(None, center), ROWS, SNR_DB)
    shares = {row["level"]: row for row in rows if row["metric"] == "level share"}
    for level, row in shares.items():
        assert (row["low"] <= 0 <= row["high"]) or level <= degree
    assert shares[float(degree)]["low"] > 0
    total = sum(row["score"] for row in shares.values())
    assert total == pytest.approx(1)
    if degree == 1:
        sigma = er.noise_scale(TABLE[IDS], MASK, SNR_DB)[:, 0, 0, 0]
        variance = float(4 * jnp.mean(sigma**2) * jnp.sum(READ**2))
        (first,) = (row for row in rows if (row["metric"], row["level"]) == ("level weight", 1.0))
        assert first["low"] < variance < first["high"]


def test_errors_of_a_ratio_are_those_of_repeated_samples():
    draw, texts, draws = np.random.default_rng(0), 40, 12
    values, errors = [], []
    for _ in range(300):
        own = draw.normal(3, 1, (texts, 1, 1))
        bottom = own + draw.normal(0, 1, (texts, draws, 1))
        top = 0.5 * own + draw.normal(0, 1, (texts, draws, 1)) + draw.normal(0, 0.3, own.shape)
        value, error, noise_error = er.ratio(top, bottom)
        values.append(value[0])
        errors.append((error[0], noise_error[0]))
    spread, (error, noise_error) = np.std(values), np.mean(errors, axis=0)
    assert error == pytest.approx(spread, rel=0.15)
    assert 0 < noise_error < error
