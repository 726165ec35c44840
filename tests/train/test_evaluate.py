from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import tiny

from hopfax.data.batching import to_buckets
from hopfax.nn import with_memory
from hopfax.train import evaluate
from hopfax.train.evaluate import SITES, Noise, add_noise, make_predictor, predict, robustness

KEY = jax.random.key(0)

ROWS = tiny.encoded(23, shuffled=True)
BUCKETS = to_buckets(ROWS, boundaries=tiny.BOUNDARIES)
# Converged queries: rounding that leads to another step changes no third digit.
MODEL = tiny.hopfield(num_layers=2, tol=1e-5, max_steps=100)
ORDER = np.argsort(ROWS.index)
NOISY = Noise("embedding", "matched", 1.0, draw=1)
predictor = make_predictor(MODEL)


@cache
def params():
    """Two seeds, strong enough for noise to matter and iterations to differ."""
    return tiny.stack(tiny.lively(MODEL, seed=3), tiny.lively(MODEL, seed=4))


def draws(row, draw, *, choice=0):
    """The draws of one text."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), draw), row)
    key = jax.random.fold_in(key, choice)
    return np.asarray(jax.random.normal(key, (12, tiny.SIZES["width"])))


@partial(jax.jit, static_argnums=0)
def stages(model, params, ids, mask, token_noise=0.0, embedding_noise=0.0):
    """The stages of a prediction: token vectors, embeddings, logits and steps."""
    run = partial(model.apply, params)
    tokens = run(ids, method="embed_tokens")
    embeddings = run(tokens + token_noise, method="embed")
    encoding = run(embeddings + embedding_noise, mask, method="encode")
    return tokens, embeddings, run(encoding.hidden, mask, method="classify"), encoding.num_steps


def by_hand(seed, noise):
    """Logits, SNR and mean steps, one row at a time in the order of the index."""
    weights = tiny.take(params(), seed)
    logits, signals, noises, steps = [], [], [], []
    for row in ORDER:
        length = int(ROWS.lengths[row, 0])
        inputs = weights, ROWS.ids[row], np.arange(12)[None] < length
        site = SITES.index(noise.site)
        signal = np.asarray(stages(MODEL, *inputs)[site])[0, :length]
        axes = {"sigma": (), "matched": (0, 1), "per-token": -1}[noise.protocol]
        rms = np.sqrt(np.mean(signal.astype(np.float64) ** 2, axes, keepdims=True))
        sigma = noise.level * (1.0 if noise.protocol == "sigma" else rms)
        added = np.zeros((12, 16), np.float32)
        added[:length] = sigma * draws(int(ROWS.index[row]), noise.draw)[:length]
        both = (added, 0.0) if noise.site == "token" else (0.0, added)
        _, _, answer, count = stages(MODEL, *inputs, *both)
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
        *(Noise(site, kind, 0.6, 2) for site in SITES for kind in evaluate.PROTOCOLS),
        Noise("token", "sigma", 0.0),
    ],
)
def test_every_row_is_predicted_once_with_the_reported_noise(noise):
    predictions = predict(predictor, params(), BUCKETS, noise=noise, batch_size=8)
    assert predictions.logits.shape == (2, 23, 2)
    assert np.array_equal(predictions.labels, ROWS.labels[ORDER])
    for seed in range(2):
        logits, snr_db, steps = by_hand(seed, noise)
        np.testing.assert_allclose(predictions.logits[seed], logits, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(predictions.snr_db[seed], snr_db, atol=1e-3)
        np.testing.assert_allclose(predictions.num_steps[seed], steps, rtol=1e-2)


def test_the_memory_at_the_embedding_site_knows_the_token_types():
    plain = tiny.softmax(num_types=2, separator=int(ROWS.ids[0, 0, 0]))
    model = with_memory(plain, site="embedding")
    weights = tiny.stack(tiny.lively(model))
    without = {name: value for name, value in weights.items() if name != "memory"}
    got, want = (
        predict(make_predictor(each), values, BUCKETS, batch_size=8).logits
        for each, values in ((model, weights), (plain, without))
    )
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


def test_a_collected_function_has_the_inputs_of_predictions():
    def classify(run, *texts):
        hidden = [run(x.embeddings, x.mask, x.types, method="encode").hidden for x in texts]
        return jnp.stack([run(x, texts[0].mask, method="classify") for x in hidden], axis=1)

    parts = evaluate.collect(MODEL, params(), BUCKETS, classify, noise=NOISY, batch_size=8)
    order = np.argsort(np.concatenate([bucket.index for bucket in BUCKETS]))
    for place, noise in enumerate((None, NOISY)):
        logits = np.concatenate(parts, axis=1)[:, order, place]
        expected = predict(predictor, params(), BUCKETS, noise=noise, batch_size=8).logits
        np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3)


def test_seeds_draw_independently_and_as_if_alone():
    one, seeds = jax.tree.map(lambda leaf: leaf[:1], params()), (23, 2**32 - 1)
    twice = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), one)
    both, shared, alone = (
        predict(predictor, models, BUCKETS, noise=NOISY._replace(seeds=seeds), batch_size=8)
        for models, seeds in ((twice, seeds), (twice, None), (one, seeds[1:]))
    )
    assert not np.allclose(both.logits[0], both.logits[1], atol=1e-2)
    assert both.snr_db[0] != both.snr_db[1]
    assert tiny.same_bits(shared.logits[0], shared.logits[1])
    np.testing.assert_allclose(alone.logits[0], both.logits[1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("model", "choices"),
    [
        (tiny.softmax(1), 2),
        # This preset's patterns include padding, so that noise there affects real tokens.
        (tiny.hopfield(preset="released", max_steps=4), 1),
    ],
    ids=["choices", "unmasked"],
)
def test_choices_have_independent_draws_and_padding_too(model, choices):
    rows = tiny.encoded(3, choices=choices, longest=9)
    (bucket,) = to_buckets(rows, boundaries=(12,))
    weights, noise = tiny.lively(model), Noise("embedding", "sigma", 0.8, draw=3)
    predictions = predict(
        make_predictor(model), tiny.stack(weights), [bucket], noise=noise, batch_size=1
    )
    assert predictions.logits.shape == (1, 3, 2)
    assert (predictions.num_steps == 0) == (choices == 2)
    for row in range(3):
        mask = np.arange(12) < rows.lengths[row][:, None]
        added = [0.8 * draws(row, 3, choice=choice) for choice in range(choices)]
        logits = stages(model, weights, bucket.ids[row], mask, 0.0, np.stack(added))[2]
        np.testing.assert_allclose(predictions.logits[0, row], logits.ravel(), rtol=1e-4, atol=1e-4)


def linear(embeddings, mask):
    return jnp.where(mask[..., None], embeddings, 0).sum(1)[:, :2]


@pytest.mark.parametrize("per_token", [False, True])
def test_robustness_of_a_function_is_that_of_its_noisy_inputs(rng, per_token):
    """In batches of any size; `linear` ignores padding."""
    embeddings, lengths = rng.normal(size=(21, 5, 4)), rng.integers(1, 6, (21, 1))
    mask, key = np.arange(5) < lengths, jax.random.key(3)
    embeddings[:, 0] *= 5  # a loud token
    labels = np.asarray(linear(embeddings, mask).argmax(1))
    options = {"key": key, "snr_db": [3, -9], "per_token": per_token}
    scored = robustness(linear, embeddings, mask, labels, **options)
    assert [each.snr_db for each in scored] == [np.inf, 3, -9] and scored[0].score == 100
    assert scored == robustness(linear, embeddings, mask, labels, batch_size=8, **options)
    for each in scored[1:]:
        right = 0
        for row in range(21):
            n, own = lengths[row, 0], jax.random.fold_in(key, row)
            noise = np.asarray(jax.random.normal(own, (5, 4)))[:n]
            signal = embeddings[row, :n]
            rms = np.sqrt(np.mean(signal**2, axis=1 if per_token else None, keepdims=True))
            sigma = rms * 10 ** (-each.snr_db / 20)
            right += (signal + sigma * noise).sum(0)[:2].argmax() == labels[row]
        assert each.score == pytest.approx(100 * right / 21) and each.low < each.score < each.high


@pytest.mark.parametrize("per_token", [False, True])
def test_noise_keeps_the_dtype_and_has_gradients_where_padding_is_nan(per_token):
    mask, keys = jnp.array([[True, True, False]]), jax.random.split(KEY, 1)
    noisy = lambda signal: add_noise(keys, signal, mask, 3.0, per_token)  # noqa: E731
    assert noisy(jnp.ones((1, 3, 4), jnp.bfloat16)).dtype == jnp.bfloat16
    total = jax.grad(lambda signal: jnp.sum(noisy(signal), where=mask[..., None]))
    assert np.isfinite(total(jnp.ones((1, 3, 4)).at[0, 2].set(jnp.nan))).all()


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("noise", [None, NOISY])
def test_with_x64_float32_models_predict_in_float32(noise):
    predicted = predict(predictor, params(), BUCKETS, noise=noise, batch_size=8)
    assert predicted.logits.dtype == np.float32 and np.isfinite(predicted.logits).all()


def test_noise_is_added_to_chosen_tokens_only():
    """A bag of words adds up the noise: that of all tokens, where it is chosen."""
    model, noise = tiny.bag(width=16), Noise("token", "sigma", 0.7, draw=1)
    weights = jax.vmap(model.init)(jax.random.split(KEY, 2))
    chosen = np.zeros((2, 23, 1, 11), bool)
    chosen[0, :, 0, ::3], chosen[1, 5:, 0, 1] = True, True
    run = partial(predict, make_predictor(model), weights, BUCKETS, batch_size=8)
    clean, noisy = run(), run(noise=noise, chosen=chosen)
    for seed, row in np.ndindex(2, 23):
        where = ORDER[row]
        real = chosen[seed, row, 0] & (np.arange(11) < ROWS.lengths[where])
        added = 0.7 * draws(int(ROWS.index[where]), 1)[:11][real].sum(0)
        expected = clean.logits[seed, row] + added @ np.asarray(weights["out"][seed])
        np.testing.assert_allclose(noisy.logits[seed, row], expected, rtol=1e-4, atol=1e-4)
    for shape in ((1, 23, 1, 12), (2, 22, 1, 12), (2, 23, 12), (2, 23, 2, 12)):
        with pytest.raises(ValueError, match=r"chosen must have shape \(2, 23, 1"):
            run(noise=noise, chosen=np.ones(shape, bool))
