from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import tiny

from hopfax.data.batching import bucketed
from hopfax.train.evaluate import Noise, check_noise, make_predictor, predict

ROWS = tiny.encoded(23, shuffled=True)
BUCKETS = bucketed(ROWS, boundaries=tiny.BOUNDARIES)
# A row whose last step rounding adds or spares then answers the same to three digits.
MODEL = tiny.hopfield(num_layers=2, tol=1e-5)
ORDER = np.argsort(ROWS.index)
predictor = make_predictor(MODEL)


@cache
def params():
    """Two seeds, strong enough for noise to matter and iterations to differ."""
    return tiny.stack(tiny.lively(MODEL, seed=3), tiny.lively(MODEL, seed=4))


@cache
def predicted(noise=None, batch_size=8):
    return predict(predictor, params(), BUCKETS, noise=noise, batch_size=batch_size)


def draws(row, draw, *, choice=0, length=12):
    """Shared draws depend on the draw, the row and the choice, and on nothing else."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), draw), row)
    key = jax.random.fold_in(key, choice)
    return np.asarray(jax.random.normal(key, (length, tiny.SIZES["width"])))


@jax.jit
def stages(params, ids, mask, token_noise, embedding_noise):
    network = MODEL.apply(params, method=lambda module: module)
    tokens = network.embed_tokens(ids)
    embeddings = network.embed(tokens + token_noise)
    encoding = network.encode(embeddings + embedding_noise, mask)
    return tokens, embeddings, network.classify(encoding.hidden, mask), encoding.num_steps


def by_hand(seed, noise):
    """One row at a time, in the order of the index: logits, and lists of signals and noises."""
    weights = tiny.take(params(), seed)
    logits, signals, noises, steps = [], [], [], []
    for row in ORDER:
        length = int(ROWS.lengths[row, 0])
        ids, mask = ROWS.ids[row], np.arange(12)[None] < length
        silence = np.zeros((1, 12, 16), np.float32)
        clean = stages(weights, ids, mask, silence, silence)
        signal = np.asarray(clean[0] if noise.site == "token" else clean[1])[0, :length]
        sigma = noise.level
        if noise.protocol == "matched":
            sigma = sigma * np.sqrt(np.mean(signal.astype(np.float64) ** 2))
        added = (sigma * draws(int(ROWS.index[row]), noise.draw)).astype(np.float32)
        added[length:] = 0
        both = (added[None], silence) if noise.site == "token" else (silence, added[None])
        _, _, answer, count = stages(weights, ids, mask, *both)
        logits.append(np.asarray(answer)[0])
        signals.append(signal)
        noises.append(added[:length])
        steps.append(np.asarray(count)[..., :length].ravel())
    return np.array(logits), signals, noises, np.concatenate(steps)


@pytest.mark.parametrize("site", ["token", "embedding"])
@pytest.mark.parametrize("protocol", ["sigma", "matched"])
def test_noise_goes_in_where_it_says_and_is_reported_as_it_was(site, protocol):
    noise = Noise(site, protocol, 0.6, draw=2)
    found = predicted(noise)
    for seed in range(2):
        logits, signals, noises, steps = by_hand(seed, noise)
        np.testing.assert_allclose(found.logits[seed], logits, rtol=1e-3, atol=1e-3)
        realised = oracles.snr_db(np.concatenate(signals), np.concatenate(noises))
        np.testing.assert_allclose(found.snr_db[seed], realised, atol=1e-3)
        np.testing.assert_allclose(found.num_steps[seed], steps.mean(), rtol=1e-2)


def test_every_row_comes_once_in_the_order_of_the_index():
    found = predicted()
    assert found.logits.shape == (2, 23, 2)
    assert np.array_equal(found.labels, ROWS.labels[ORDER])
    logits, _, _, steps = by_hand(1, Noise("token", "sigma", 0.0))
    np.testing.assert_allclose(found.logits[1], logits, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.num_steps[1], steps.mean(), rtol=1e-2)
    assert (found.snr_db == np.inf).all()


NOISY = Noise("embedding", "matched", 1.0, draw=1)


@pytest.mark.parametrize("noise", [None, NOISY, Noise("token", "sigma", 0.5)])
def test_batches_and_buckets_do_not_matter(noise):
    want = predicted(noise)
    for boundaries, batch_size in (((12,), 8), ((4, 12), 8), ((6, 12), 5)):
        got = predict(
            predictor,
            params(),
            bucketed(ROWS, boundaries=boundaries),
            noise=noise,
            batch_size=batch_size,
        )
        assert np.array_equal(got.labels, want.labels)
        np.testing.assert_allclose(got.logits, want.logits, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(got.snr_db, want.snr_db, atol=1e-4)
        np.testing.assert_allclose(got.num_steps, want.num_steps, rtol=1e-2)


def test_draws_of_a_token_do_not_depend_on_the_padded_length():
    assert tiny.same_bits(draws(5, 1, length=12), draws(5, 1, length=16)[:12])


@pytest.mark.parametrize("site", ["token", "embedding"])
def test_matched_levels_are_the_ratio_for_every_seed(site):
    for level in (0.5, 1.0, 2.0, 5.0):
        found = predicted(Noise(site, "matched", level))
        np.testing.assert_allclose(found.snr_db, -20 * np.log10(level), atol=0.2)


def test_levels_share_their_draws():
    """Then the realised ratios differ by the levels' ratio exactly, not just on average."""
    for protocol in ("sigma", "matched"):
        low, high = (predicted(Noise("token", protocol, level)) for level in (0.5, 2.0))
        np.testing.assert_allclose(low.snr_db - high.snr_db, 20 * np.log10(4), atol=1e-4)


def test_draws_differ_and_come_again():
    one, other = (predicted(Noise("embedding", "matched", 1.0, draw=n)) for n in (0, 1))
    assert not np.allclose(one.logits, other.logits, atol=1e-2)
    assert (one.snr_db != other.snr_db).all()
    again = predict(predictor, params(), BUCKETS, noise=NOISY, batch_size=8)
    assert tiny.same_bits(again, other)


def test_seeds_draw_independently_and_as_if_alone():
    """Their intervals then hold the draws' variance; what a seed draws depends on nothing else."""
    seeds = (23, 2**32 - 1)
    twice = tiny.stack(*[tiny.take(params(), 0)] * 2)
    both = predict(predictor, twice, BUCKETS, noise=NOISY._replace(seeds=seeds), batch_size=8)
    assert not np.allclose(both.logits[0], both.logits[1], atol=1e-2)
    assert both.snr_db[0] != both.snr_db[1]
    shared = predict(predictor, twice, BUCKETS, noise=NOISY, batch_size=8)
    assert tiny.same_bits(shared.logits[0], shared.logits[1])
    for number, seed in enumerate(seeds):
        alone = jax.tree.map(lambda leaf: leaf[:1], twice)
        got = predict(predictor, alone, BUCKETS, noise=NOISY._replace(seeds=(seed,)), batch_size=8)
        np.testing.assert_allclose(got.logits[0], both.logits[number], rtol=1e-3, atol=1e-3)
    with pytest.raises(ValueError, match=r"one seed per model \(2\), got \(23,\)"):
        predict(predictor, twice, BUCKETS, noise=NOISY._replace(seeds=(23,)), batch_size=8)


def test_level_0_is_clean():
    for site in ("token", "embedding"):
        assert tiny.same_bits(predicted(Noise(site, "matched", 0.0)), predicted())


def test_a_seed_is_predicted_as_if_alone():
    alone = jax.tree.map(lambda leaf: leaf[1:], params())
    got = predict(predictor, alone, BUCKETS, noise=NOISY, batch_size=8)
    np.testing.assert_allclose(got.logits[0], predicted(NOISY).logits[1], rtol=1e-3, atol=1e-3)


def test_choices_have_draws_of_their_own_and_one_logit_each():
    model = tiny.softmax(1)
    rows = tiny.encoded(6, choices=2)
    weights = tiny.lively(model)
    noise = Noise("embedding", "sigma", 0.8, draw=3)
    found = predict(
        make_predictor(model),
        tiny.stack(weights),
        bucketed(rows, boundaries=(12,)),
        noise=noise,
        batch_size=4,
    )
    assert found.logits.shape == (1, 6, 2)
    assert found.num_steps == 0

    @jax.jit
    def score(ids, mask, added):
        network = model.apply(weights, method=lambda module: module)
        embeddings = network.embed(network.embed_tokens(ids))
        return network.classify(network.encode(embeddings + added, mask).hidden, mask)[0, 0]

    for row in range(6):
        for choice in range(2):
            mask = np.arange(12)[None] < rows.lengths[row, choice]
            added = 0.8 * draws(row, 3, choice=choice)
            want = score(rows.ids[row, choice][None], mask, jnp.asarray(added)[None])
            np.testing.assert_allclose(found.logits[0, row, choice], want, rtol=1e-4, atol=1e-4)


def test_padding_gets_no_noise_even_where_the_model_looks_at_it():
    """The released program stores padding among its patterns: noise there would reach the rest."""
    model = tiny.hopfield(preset="released", max_steps=4)
    rows = tiny.encoded(1, longest=5, seed=4)
    weights = tiny.lively(model)
    (bucket,) = bucketed(rows, boundaries=(8,))
    found = predict(
        make_predictor(model),
        tiny.stack(weights),
        [bucket],
        noise=Noise("embedding", "sigma", 1.0),
        batch_size=1,
    )
    mask = np.arange(8)[None] < rows.lengths[0]
    assert not mask.all()
    added = np.where(mask[..., None], draws(0, 0, length=8), 0)

    @jax.jit
    def logits():
        network = model.apply(weights, method=lambda module: module)
        embeddings = network.embed(network.embed_tokens(bucket.ids[0]))
        return network.classify(network.encode(embeddings + added, mask).hidden, mask)

    np.testing.assert_allclose(found.logits[0], logits(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        (Noise("tokens", "sigma", 1.0), "site must be one of token, embedding, got 'tokens'"),
        (Noise("token", "match", 1.0), "protocol must be one of sigma, matched, got 'match'"),
        (Noise("token", "sigma", -0.5), r"level must be >= 0 and finite, got -0\.5"),
        (Noise("token", "sigma", float("nan")), "level must be >= 0 and finite, got nan"),
    ],
)
def test_a_noise_that_is_none_is_refused_by_name(noise, words):
    with pytest.raises(ValueError, match=words):
        check_noise(noise)
    with pytest.raises(ValueError, match=words):
        predict(predictor, params(), BUCKETS, noise=noise)


def test_a_set_without_rows_is_refused():
    with pytest.raises(ValueError, match="at least one row"):
        predict(predictor, params(), [])
