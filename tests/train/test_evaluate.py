from functools import cache

import jax
import numpy as np
import oracles
import pytest
import tiny

from hopfax.data.batching import bucketed
from hopfax.train.evaluate import PROTOCOLS, SITES, Noise, make_predictor, predict

ROWS = tiny.encoded(23, shuffled=True)
BUCKETS = bucketed(ROWS, boundaries=tiny.BOUNDARIES)
# With this tolerance, a step that rounding adds or saves changes no third digit.
MODEL = tiny.hopfield(num_layers=2, tol=1e-5)
ORDER = np.argsort(ROWS.index)
NOISY = Noise("embedding", "matched", 1.0, draw=1)
predictor = make_predictor(MODEL)


@cache
def params():
    """Two seeds, strong enough for noise to matter and iterations to differ."""
    return tiny.stack(tiny.lively(MODEL, seed=3), tiny.lively(MODEL, seed=4))


@cache
def predicted(noise=None):
    return predict(predictor, params(), BUCKETS, noise=noise, batch_size=8)


def draws(row, draw, *, choice=0, length=12):
    """Draws depend on the draw, the row and the choice, and on nothing else."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), draw), row)
    key = jax.random.fold_in(key, choice)
    return np.asarray(jax.random.normal(key, (length, tiny.SIZES["width"])))


def stages_of(model):
    """The stages of a prediction: token vectors, embeddings, logits and steps."""

    @jax.jit
    def stages(params, ids, mask, token_noise, embedding_noise):
        network = model.apply(params, method=lambda module: module)
        tokens = network.embed_tokens(ids)
        embeddings = network.embed(tokens + token_noise)
        encoding = network.encode(embeddings + embedding_noise, mask)
        return tokens, embeddings, network.classify(encoding.hidden, mask), encoding.num_steps

    return stages


stages = stages_of(MODEL)


def by_hand(seed, noise):
    """One row at a time, in the order of the index: logits, SNR and mean steps."""
    weights = tiny.take(params(), seed)
    logits, signals, noises, steps = [], [], [], []
    for row in ORDER:
        length = int(ROWS.lengths[row, 0])
        ids, mask = ROWS.ids[row], np.arange(12)[None] < length
        zero = np.zeros((1, 12, 16), np.float32)
        clean = stages(weights, ids, mask, zero, zero)
        signal = np.asarray(clean[0] if noise.site == "token" else clean[1])[0, :length]
        sigma = noise.level
        if noise.protocol != "sigma":
            axis = None if noise.protocol == "matched" else -1
            sigma = sigma * np.sqrt(np.mean(signal.astype(np.float64) ** 2, axis, keepdims=True))
            if axis:
                sigma = np.pad(sigma, ((0, 12 - length), (0, 0)))
        added = (sigma * draws(int(ROWS.index[row]), noise.draw)).astype(np.float32)
        added[length:] = 0
        both = (added[None], zero) if noise.site == "token" else (zero, added[None])
        _, _, answer, count = stages(weights, ids, mask, *both)
        logits.append(np.asarray(answer)[0])
        signals.append(signal)
        noises.append(added[:length])
        steps.append(np.asarray(count)[..., :length].ravel())
    powers = np.concatenate(signals), np.concatenate(noises)
    snr_db = oracles.snr_db(*powers) if noise.level else np.inf
    return np.array(logits), snr_db, np.concatenate(steps).mean()


@pytest.mark.parametrize(
    "noise",
    [
        *(Noise(site, kind, 0.6, 2) for site in SITES for kind in PROTOCOLS),
        Noise("token", "sigma", 0.0),
    ],
)
def test_every_row_comes_once_with_the_noise_that_is_reported(noise):
    predictions = predicted(noise)
    assert predictions.logits.shape == (2, 23, 2)
    assert np.array_equal(predictions.labels, ROWS.labels[ORDER])
    for seed in range(2):
        logits, snr_db, steps = by_hand(seed, noise)
        np.testing.assert_allclose(predictions.logits[seed], logits, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(predictions.snr_db[seed], snr_db, atol=1e-3)
        np.testing.assert_allclose(predictions.num_steps[seed], steps, rtol=1e-2)


def test_level_0_is_clean():
    for site in SITES:
        assert tiny.same_bits(predicted(Noise(site, "matched", 0.0)), predicted())
    assert (predicted().snr_db == np.inf).all()


def test_seeds_draw_independently_and_as_if_alone():
    """Intervals over seeds then contain the variance of the draws."""
    twice = tiny.stack(*[tiny.take(params(), 0)] * 2)

    def at(models, seeds):
        noise = NOISY._replace(seeds=seeds)
        return predict(predictor, models, BUCKETS, noise=noise, batch_size=8)

    seeds = (23, 2**32 - 1)
    both, shared = at(twice, seeds), at(twice, None)
    assert not np.allclose(both.logits[0], both.logits[1], atol=1e-2)
    assert both.snr_db[0] != both.snr_db[1]
    assert tiny.same_bits(shared.logits[0], shared.logits[1])
    alone = at(jax.tree.map(lambda leaf: leaf[1:], twice), seeds[1:])
    np.testing.assert_allclose(alone.logits[0], both.logits[1], rtol=1e-3, atol=1e-3)
    with pytest.raises(ValueError, match=r"one seed per model \(2\), got \(23,\)"):
        at(twice, (23,))


def test_choices_have_draws_of_their_own_and_one_logit_each():
    model, rows = tiny.softmax(1), tiny.encoded(3, choices=2)
    weights, noise = tiny.lively(model), Noise("embedding", "sigma", 0.8, draw=3)
    buckets = bucketed(rows, boundaries=(12,))
    predictions = predict(
        make_predictor(model), tiny.stack(weights), buckets, noise=noise, batch_size=2
    )
    assert predictions.logits.shape == (1, 3, 2) and predictions.num_steps == 0
    mask = np.arange(12) < rows.lengths.reshape(6, 1)
    added = np.stack(
        [0.8 * draws(row, 3, choice=choice) for row in range(3) for choice in range(2)]
    )
    logits = stages_of(model)(weights, rows.ids.reshape(6, 12), mask, np.zeros_like(added), added)[
        2
    ]
    np.testing.assert_allclose(predictions.logits[0], logits.reshape(3, 2), rtol=1e-4, atol=1e-4)


def test_padding_gets_no_noise_even_where_the_model_looks_at_it():
    """The released program stores padding among its patterns: noise there would reach the rest."""
    model, rows = tiny.hopfield(preset="released", max_steps=4), tiny.encoded(1, longest=5, seed=4)
    weights, noise = tiny.lively(model), Noise("embedding", "sigma", 1.0)
    (bucket,) = bucketed(rows, boundaries=(8,))
    predictions = predict(
        make_predictor(model), tiny.stack(weights), [bucket], noise=noise, batch_size=1
    )
    mask = np.arange(8)[None] < rows.lengths[0]
    assert not mask.all()
    added = np.where(mask[..., None], draws(0, 0, length=8), 0)
    expected = stages_of(model)(weights, bucket.ids[0], mask, np.zeros((1, 8, 16)), added)[2]
    np.testing.assert_allclose(predictions.logits[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        (Noise("tokens", "sigma", 1.0), "site must be one of token, embedding, got 'tokens'"),
        (Noise("token", "match", 1.0), "one of sigma, matched, per-token, got 'match'"),
        (Noise("token", "sigma", -0.5), "level must be >= 0 and finite, got -0.5"),
        (Noise("token", "sigma", float("nan")), "level must be >= 0 and finite, got nan"),
    ],
)
def test_an_unknown_noise_is_an_error(noise, words):
    with pytest.raises(ValueError, match=words):
        predict(predictor, params(), BUCKETS, noise=noise)


def test_a_set_without_rows_is_an_error():
    with pytest.raises(ValueError, match="at least one row"):
        predict(predictor, params(), [])
