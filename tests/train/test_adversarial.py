from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import tiny

from hopfax.nn.encoder import Perturbation
from hopfax.train import adversarial
from hopfax.train.adversarial import Ball, ascend, augmented, freelb, initial, pgd
from hopfax.train.objectives import Losses, classification, texts_of
from hopfax.train.state import adamw, init_states, seed_keys
from hopfax.train.step import make_chunk

KEY = jax.random.key(4)
BALL = Ball(num_steps=3, step_size=0.3, max_norm=0.4, initial_norm=0.2)
BAG = tiny.bag()
BATCH = tiny.batch(5)
METHODS = {"pgd": pgd, "freelb": freelb}


def value_and_grad(objective, params, batch=BATCH):
    return jax.jit(jax.value_and_grad(objective, has_aux=True))(params, batch, KEY)


@cache
def walk(method):
    """The oracle's ascent from the perturbation that a method starts from."""
    params = BAG.init(jax.random.key(1))
    ids, mask = texts_of(BATCH)
    start = initial(jax.random.fold_in(KEY, method), params, mask, BALL)
    found = oracles.adversarial_walk(
        params["tokens"]["embedding"],
        params["out"],
        *map(np.asarray, (ids, mask, BATCH.labels, start)),
        num_steps=BALL.num_steps,
        step_size=BALL.step_size,
        max_norm=BALL.max_norm,
    )
    return params, found


def assert_gradient(gradient, wanted):
    np.testing.assert_allclose(gradient["tokens"]["embedding"], wanted[0], rtol=2e-4, atol=1e-6)
    np.testing.assert_allclose(gradient["out"], wanted[1], rtol=2e-4, atol=1e-6)


def test_freelb_takes_the_mean_gradient_over_its_ascent():
    params, (deltas, losses, gradients) = walk(adversarial._FREELB)
    (loss, parts), gradient = value_and_grad(freelb(classification(BAG), BALL), params)
    np.testing.assert_allclose(loss, np.mean(losses[:-1]), rtol=1e-5)
    np.testing.assert_allclose(parts.task, loss, rtol=1e-6)
    assert_gradient(
        gradient, [np.mean(parts, axis=0) for parts in zip(*gradients[:-1], strict=True)]
    )
    # The ascent climbs, and at least one text has met the border of its ball.
    assert np.all(np.diff(losses) > 0)
    sizes = np.sqrt(np.square(deltas[-1]).sum((1, 2)))
    assert np.isclose(sizes.max(), BALL.max_norm)


def told(params, batch, key, added):
    """The objective, with what was added to the tokens in the place of a part of the loss."""
    loss, parts = classification(BAG)(params, batch, key, added)
    return loss, parts._replace(esr=added.token)


def test_the_perturbations_are_those_of_the_walk():
    # A step is 0.3 long; of a text already right its slope is 1 - p, of few float32 digits.
    params, (deltas, _, _) = walk(adversarial._FREELB)
    passes = [BALL.num_steps, BALL.num_steps + 1]
    means = [
        np.asarray(value_and_grad(freelb(told, BALL._replace(num_steps=count)), params)[0][1].esr)
        for count in passes
    ]
    np.testing.assert_allclose(means[0], np.mean(deltas[:-1], axis=0), rtol=0, atol=3e-5)
    # One more pass meets what the ascent before it ended at.
    after = passes[1] * means[1] - passes[0] * means[0]
    np.testing.assert_allclose(after, deltas[-1], rtol=0, atol=2e-4)
    params, (deltas, _, _) = walk(adversarial._PGD)
    (_, parts), _ = value_and_grad(pgd(told, BALL), params)
    np.testing.assert_allclose(parts.esr, deltas[-1], rtol=0, atol=3e-5)


def test_pgd_takes_the_gradient_at_the_end_of_its_ascent():
    params, (_, losses, gradients) = walk(adversarial._PGD)
    (loss, _), gradient = value_and_grad(pgd(classification(BAG), BALL), params)
    np.testing.assert_allclose(loss, losses[-1], rtol=1e-5)
    assert_gradient(gradient, gradients[-1])


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_ball_of_no_size_is_the_objective_itself(method):
    plain, params = classification(tiny.softmax()), tiny.lively(tiny.softmax())
    speck = BALL._replace(max_norm=1e-9, initial_norm=0.0)
    around = value_and_grad(method(plain, speck), params)
    # One dropout mask in all passes: else they would differ.
    tiny.assert_close(around, value_and_grad(plain, params), rtol=1e-4, atol=1e-6)


def test_first_perturbations_are_scaled_by_length():
    params = {"tokens": {"embedding": jnp.zeros((3, 40))}}
    mask = jnp.arange(50) < jnp.array([[2], [10], [50], [0]])
    found = initial(KEY, params, mask, Ball(initial_norm=0.6))
    norms = np.sqrt(np.square(found).sum((1, 2)))
    # Uniform numbers in [-1, 1] have a second moment of a third.
    np.testing.assert_allclose(norms[:3], 0.6 / np.sqrt(3), rtol=0.15)
    assert norms[3] == 0
    assert not np.any(np.asarray(found)[~np.asarray(mask)])


def test_a_step_is_along_the_gradient_and_stays_in_the_ball(rng):
    delta, slope = (jnp.asarray(rng.normal(size=(3, 4, 5)), jnp.float32) for _ in range(2))
    mask = jnp.ones((3, 4), bool).at[:, 3].set(False)
    delta = jnp.where(mask[..., None], delta, 0)
    ball = Ball(step_size=0.5, max_norm=1.0)
    moved = np.asarray(ascend(delta, slope, mask, ball))
    np.testing.assert_allclose(np.sqrt(np.square(moved).sum((1, 2))), 1, rtol=1e-5)
    assert not moved[:, 3].any()
    free = np.asarray(ascend(delta, slope * 1e-25, mask, ball._replace(max_norm=np.inf)))
    np.testing.assert_allclose(np.sqrt(np.square(free - delta).sum((1, 2))), 0.5, rtol=1e-4)
    still = ascend(delta, jnp.zeros_like(slope), mask, ball._replace(max_norm=np.inf))
    np.testing.assert_array_equal(still, delta)


@pytest.mark.parametrize(
    "around",
    [
        lambda f: pgd(f, BALL),
        lambda f: freelb(f, BALL),
        lambda f: pgd(augmented(f, sigma=0.1), BALL),
        lambda f: pgd(jax.jit(f), BALL),
    ],
)
def test_nothing_climbs_around_freelb(around):
    """It would stand still and be FreeLB alone: its objective has no gradient in `added`."""
    params = BAG.init(jax.random.key(1))
    with pytest.raises(ValueError, match="freelb outermost"):
        value_and_grad(around(freelb(classification(BAG), BALL)), params)


@pytest.mark.parametrize("inner", [lambda f: pgd(f, Ball()), lambda f: augmented(f, sigma=0.1)])
def test_freelb_climbs_around_the_others(inner):
    params = BAG.init(jax.random.key(1))
    far = BALL._replace(num_steps=2, step_size=3.0, max_norm=3.0)
    plain, one_step = (
        value_and_grad(freelb(inner(classification(BAG)), ball), params)[0][0]
        for ball in (BALL._replace(num_steps=1), far)
    )
    assert one_step > plain + 0.1


def test_noise_may_be_added_around_freelb():
    params = BAG.init(jax.random.key(1))
    plain = freelb(classification(BAG), BALL)
    noisy = augmented(plain, sigma=0.5)
    losses = [value_and_grad(objective, params)[0][0] for objective in (plain, noisy)]
    assert np.abs(np.subtract(*losses)) > 1e-3


def test_augmented_adds_noise_of_its_size_to_the_tokens():
    seen = []

    def spy(params, batch, key, added):
        seen.append(added)
        return jnp.zeros(()), Losses(*jnp.zeros(4))

    params = {"tokens": {"embedding": jnp.zeros((3, 64))}}
    batch = tiny.batch(40)
    for key in (KEY, jax.random.key(5)):
        augmented(spy, sigma=0.7)(params, batch, key)
    mask, noise = np.asarray(texts_of(batch)[1]), np.asarray(seen[0].token)
    assert seen[0].embedding is None
    assert not noise[~mask].any()
    np.testing.assert_allclose(noise[mask].std(), 0.7, rtol=0.02)
    assert not np.array_equal(noise, seen[1].token)


def test_perturbations_add_up_at_a_model_s_sites():
    model = tiny.softmax()
    network = model.apply(tiny.lively(model), method=lambda module: module)
    ids, mask = texts_of(BATCH)
    tokens = network.embed_tokens(ids)
    noise = 0.3 * jax.random.normal(KEY, tokens.shape)
    whole = network(ids, mask, added=Perturbation(noise, 2 * noise)).logits
    hidden = network.encode(network.embed(tokens + noise) + 2 * noise, mask).hidden
    np.testing.assert_allclose(whole, network.classify(hidden, mask), rtol=1e-5, atol=1e-6)
    assert np.abs(whole - network(ids, mask).logits).max() > 1e-2


@pytest.mark.parametrize("method", ["pgd", "freelb", "augmented"])
def test_seeds_side_by_side_train_as_they_do_alone(method):
    model = tiny.hopfield(max_steps=3)
    plain = classification(model, esr_weight=0.1)
    objective = (
        augmented(plain, sigma=0.1) if method == "augmented" else METHODS[method](plain, Ball())
    )
    optimizer, seeds = adamw(1e-2, total_steps=4), (3, 8)
    chunk = make_chunk(objective, optimizer)
    picks = np.random.default_rng(0).integers(0, 5, (2, 2, 4)).astype(np.int32)
    weights = np.ones(picks.shape, np.float32)
    states, metrics = chunk(
        init_states(model, optimizer, seeds), BATCH, picks, weights, seed_keys(seeds)
    )
    assert np.all(np.isfinite(metrics.loss)) and np.all(np.asarray(metrics.esr) > 0)
    alone, _ = chunk(
        init_states(model, optimizer, seeds[1:]),
        BATCH,
        picks[:, 1:],
        weights[:, 1:],
        seed_keys(seeds[1:]),
    )
    tiny.assert_close(tiny.take(states.params, 1), tiny.take(alone.params, 0), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("ball", [Ball(num_steps=0), Ball(max_norm=-1.0), Ball(initial_norm=-0.1)])
def test_numbers_out_of_range_are_named(ball):
    for method in METHODS.values():
        with pytest.raises(ValueError, match=r"max_norm > 0 .* got Ball\(num_steps="):
            method(classification(BAG), ball)
    with pytest.raises(ValueError, match="sigma must be >= 0 and finite, got -1"):
        augmented(classification(BAG), sigma=-1.0)
