from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import tiny

from hopfax.nn.encoder import Perturbation
from hopfax.train import adversarial
from hopfax.train.adversarial import Ball, freelb, pgd, with_noise, with_noise_range
from hopfax.train.objectives import Batch, Losses, classification, texts_of
from hopfax.train.state import adamw, init_states, seed_keys
from hopfax.train.step import make_chunk

KEY = jax.random.key(4)
BALL = Ball(num_steps=3, step_size=0.3, max_norm=0.4, initial_norm=0.2)
BAG = tiny.bag()
BATCH = tiny.batch(5)


def value_and_grad(objective, params, batch=BATCH):
    return jax.jit(jax.value_and_grad(objective, has_aux=True))(params, batch, KEY)


@cache
def walk(method):
    """The oracle's ascent from the perturbation that a method starts from."""
    params = BAG.init(jax.random.key(1))
    ids, mask = texts_of(BATCH)
    start = adversarial._initial(jax.random.fold_in(KEY, method), params, BATCH, BALL)
    arrays = params["tokens"]["embedding"], params["out"], ids, mask, BATCH.labels, start
    sizes = {name: getattr(BALL, name) for name in ("num_steps", "step_size", "max_norm")}
    return params, oracles.adversarial_walk(*map(np.asarray, arrays), **sizes)


def recorded(params, batch, key, added):
    """The objective, with the tokens' perturbation instead of the ESR penalty."""
    loss, parts = classification(BAG)(params, batch, key, added)
    return loss, parts._replace(esr=added.token)


@pytest.mark.parametrize(
    ("method", "number", "steps"),
    [(freelb, adversarial._FREELB, slice(0, -1)), (pgd, adversarial._PGD, slice(-1, None))],
)
def test_loss_and_gradient_are_means_over_steps_of_the_ascent(method, number, steps):
    params, (deltas, losses, gradients) = walk(number)
    (loss, parts), gradient = value_and_grad(method(recorded, BALL), params)
    np.testing.assert_allclose(loss, np.mean(losses[steps]), rtol=1e-5)
    np.testing.assert_allclose(parts.task, loss, rtol=1e-6)
    table, out = (np.mean(each, axis=0) for each in zip(*gradients[steps], strict=True))
    np.testing.assert_allclose(gradient["tokens"]["embedding"], table, rtol=2e-4, atol=1e-6)
    np.testing.assert_allclose(gradient["out"], out, rtol=2e-4, atol=1e-6)
    # A step has length 0.3; the slope of a correctly classified text has few float32 digits.
    np.testing.assert_allclose(parts.esr, np.mean(deltas[steps], axis=0), rtol=0, atol=3e-5)
    # The loss increases, and at least one text is on the border of its ball.
    assert np.all(np.diff(losses) > 0)
    assert np.isclose(np.sqrt(np.square(deltas[-1]).sum((1, 2))).max(), BALL.max_norm)


@pytest.mark.parametrize("method", [pgd, freelb])
def test_a_ball_of_no_size_is_the_objective_itself(method):
    clean, params = classification(tiny.softmax()), tiny.lively(tiny.softmax())
    added = Perturbation(0.1 * jax.random.normal(KEY, (5, 12, 16)))

    def gradients(objective):
        program = jax.jit(jax.value_and_grad(objective, argnums=(0, 3), has_aux=True))
        return program(params, BATCH, KEY, added)

    # Passes would differ if their dropout did.
    perturbed = gradients(method(clean, BALL._replace(max_norm=1e-9, initial_norm=0.0)))
    tiny.assert_close(perturbed, gradients(clean), rtol=1e-4, atol=1e-6)


def test_first_perturbations_are_scaled_by_length():
    params = {"tokens": {"embedding": jnp.zeros((3, 40))}}
    lengths = jnp.array([[2], [10], [50], [0]])
    batch = Batch(jnp.zeros((4, 1, 50), int), lengths, jnp.zeros(4, int), jnp.ones(4))
    mask = texts_of(batch)[1]
    deltas = np.asarray(adversarial._initial(KEY, params, batch, Ball(initial_norm=0.6)))
    norms = np.sqrt(np.square(deltas).sum((1, 2)))
    # Uniform numbers in [-1, 1] have a second moment of a third.
    np.testing.assert_allclose(norms[:3], 0.6 / np.sqrt(3), rtol=0.15)
    assert norms[3] == 0 and not deltas[~np.asarray(mask)].any()


def test_tiny_gradients_give_full_steps_and_zero_gradients_none(rng):
    delta, slope = (jnp.asarray(rng.normal(size=(3, 4, 5)), jnp.float32) for _ in range(2))
    mask = jnp.ones((3, 4), bool).at[:, 3].set(False)
    delta = jnp.where(mask[..., None], delta, 0)
    ball = Ball(step_size=0.5, max_norm=np.inf)
    moved = np.asarray(adversarial._ascend(delta, slope * 1e-25, mask, ball))
    np.testing.assert_allclose(np.sqrt(np.square(moved - delta).sum((1, 2))), 0.5, rtol=1e-4)
    assert not moved[:, 3].any()
    still = adversarial._ascend(delta, jnp.zeros_like(slope), mask, ball)
    np.testing.assert_array_equal(still, delta)


def perturbation(method, params, rows, key=KEY, earlier=None):
    """The perturbation that a method adds to the tokens."""

    def spy(params, batch, key, added):
        assert added.embedding is None
        return jnp.zeros(()), Losses(*jnp.zeros(4))._replace(esr=added.token)

    return np.asarray(method(spy)(params, rows, key, Perturbation(earlier))[1].esr)


def test_with_noise_adds_noise_with_its_standard_deviation():
    method, rows = partial(with_noise, sigma=0.7), tiny.batch(40)
    params = {"tokens": {"embedding": jnp.zeros((3, 64))}}
    noise, mask = perturbation(method, params, rows), np.asarray(texts_of(rows)[1])
    assert not noise[~mask].any()
    np.testing.assert_allclose(noise[mask].std(), 0.7, rtol=0.02)
    assert not np.array_equal(noise, perturbation(method, params, rows, jax.random.key(5)))
    both = perturbation(method, params, rows, earlier=jnp.ones((40, 12, 64)))
    np.testing.assert_allclose(both, noise + 1, rtol=1e-6)


def test_with_noise_range_draws_a_ratio_per_text_and_matches_its_tokens():
    method, rows = partial(with_noise_range, snr_db=(-16.0, 0.0)), tiny.batch(40)
    params = {"tokens": {"embedding": jax.random.normal(KEY, (60, 64)) * jnp.arange(60.0)[:, None]}}
    noise, (ids, mask) = perturbation(method, params, rows), map(np.asarray, texts_of(rows))
    signal = np.asarray(params["tokens"]["embedding"])[ids]
    assert not noise[~mask].any()
    ratios = [oracles.snr_db(signal[row][mask[row]], noise[row][mask[row]]) for row in range(40)]
    assert -17 < min(ratios) < -13 and -3 < max(ratios) < 1


def test_seeds_together_train_as_they_do_alone():
    """FreeLB's gradient rule under `vmap`."""
    optimizer, seeds = adamw(1e-2, total_steps=4), (3, 8)
    chunk = make_chunk(freelb(with_noise(classification(BAG), sigma=0.1), Ball()), optimizer)
    picks = np.random.default_rng(0).integers(0, 5, (2, 2, 4)).astype(np.int32)

    def trained(first):
        states, few = init_states(BAG, optimizer, seeds[first:]), picks[:, first:]
        weights = np.ones(few.shape, np.float32)
        return chunk(states, BATCH, few, weights, seed_keys(seeds[first:]))[0].params

    together, alone = tiny.take(trained(0), 1), tiny.take(trained(1), 0)
    tiny.assert_close(together, alone, rtol=1e-3, atol=1e-4)
