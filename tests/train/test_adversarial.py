from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import tiny

from hopfax.nn.encoder import Perturbation
from hopfax.train import adversarial
from hopfax.train.adversarial import Ball, _ascend, _initial, augmented, augmented_over, freelb, pgd
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
    start = _initial(jax.random.fold_in(KEY, method), params, mask, BALL)
    expected = oracles.adversarial_walk(
        params["tokens"]["embedding"],
        params["out"],
        *map(np.asarray, (ids, mask, BATCH.labels, start)),
        num_steps=BALL.num_steps,
        step_size=BALL.step_size,
        max_norm=BALL.max_norm,
    )
    return params, expected


def assert_gradient(gradient, expected):
    np.testing.assert_allclose(gradient["tokens"]["embedding"], expected[0], rtol=2e-4, atol=1e-6)
    np.testing.assert_allclose(gradient["out"], expected[1], rtol=2e-4, atol=1e-6)


def recorded(params, batch, key, added):
    """The objective, with the perturbation of the tokens in the place of the ESR penalty."""
    loss, parts = classification(BAG)(params, batch, key, added)
    return loss, parts._replace(esr=added.token)


def test_freelb_is_the_mean_over_its_ascent():
    params, (deltas, losses, gradients) = walk(adversarial._FREELB)
    (loss, parts), gradient = value_and_grad(freelb(recorded, BALL), params)
    np.testing.assert_allclose(loss, np.mean(losses[:-1]), rtol=1e-5)
    np.testing.assert_allclose(parts.task, loss, rtol=1e-6)
    assert_gradient(
        gradient, [np.mean(parts, axis=0) for parts in zip(*gradients[:-1], strict=True)]
    )
    # A step is 0.3 long; the slope of a text already right is 1 - p, of few float32 digits.
    np.testing.assert_allclose(parts.esr, np.mean(deltas[:-1], axis=0), rtol=0, atol=3e-5)
    # The ascent climbs, and at least one text is on the border of its ball.
    assert np.all(np.diff(losses) > 0)
    sizes = np.sqrt(np.square(deltas[-1]).sum((1, 2)))
    assert np.isclose(sizes.max(), BALL.max_norm)


def test_pgd_is_the_loss_at_the_end_of_its_ascent():
    params, (deltas, losses, gradients) = walk(adversarial._PGD)
    (loss, parts), gradient = value_and_grad(pgd(recorded, BALL), params)
    np.testing.assert_allclose(loss, losses[-1], rtol=1e-5)
    np.testing.assert_allclose(parts.esr, deltas[-1], rtol=0, atol=3e-5)
    assert_gradient(gradient, gradients[-1])


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_ball_of_no_size_is_the_objective_itself(method):
    clean, params = classification(tiny.softmax()), tiny.lively(tiny.softmax())
    speck = BALL._replace(max_norm=1e-9, initial_norm=0.0)
    perturbed = value_and_grad(method(clean, speck), params)
    # One dropout mask in all passes: else they would differ.
    tiny.assert_close(perturbed, value_and_grad(clean, params), rtol=1e-4, atol=1e-6)


def test_first_perturbations_are_scaled_by_length():
    params = {"tokens": {"embedding": jnp.zeros((3, 40))}}
    mask = jnp.arange(50) < jnp.array([[2], [10], [50], [0]])
    deltas = np.asarray(_initial(KEY, params, mask, Ball(initial_norm=0.6)))
    norms = np.sqrt(np.square(deltas).sum((1, 2)))
    # Uniform numbers in [-1, 1] have a second moment of a third.
    np.testing.assert_allclose(norms[:3], 0.6 / np.sqrt(3), rtol=0.15)
    assert norms[3] == 0 and not deltas[~np.asarray(mask)].any()


def test_a_step_is_along_the_gradient_and_stays_in_the_ball(rng):
    delta, slope = (jnp.asarray(rng.normal(size=(3, 4, 5)), jnp.float32) for _ in range(2))
    mask = jnp.ones((3, 4), bool).at[:, 3].set(False)
    delta = jnp.where(mask[..., None], delta, 0)
    ball = Ball(step_size=0.5, max_norm=1.0)
    moved = np.asarray(_ascend(delta, slope, mask, ball))
    np.testing.assert_allclose(np.sqrt(np.square(moved).sum((1, 2))), 1, rtol=1e-5)
    assert not moved[:, 3].any()
    free = np.asarray(_ascend(delta, slope * 1e-25, mask, ball._replace(max_norm=np.inf)))
    np.testing.assert_allclose(np.sqrt(np.square(free - delta).sum((1, 2))), 0.5, rtol=1e-4)
    unmoved = _ascend(delta, jnp.zeros_like(slope), mask, ball._replace(max_norm=np.inf))
    np.testing.assert_array_equal(unmoved, delta)


def test_the_gradient_of_freelb_in_added_is_the_mean_slope():
    params = BAG.init(jax.random.key(1))
    objective = freelb(classification(BAG), BALL._replace(max_norm=1e-9, initial_norm=0.0))
    added = Perturbation(0.1 * jax.random.normal(KEY, (*texts_of(BATCH)[1].shape, 4)))

    def slope(objective):
        return jax.jit(jax.grad(lambda added: objective(params, BATCH, KEY, added)[0]))(added)

    tiny.assert_close(slope(objective), slope(classification(BAG)), rtol=1e-4, atol=1e-7)


def perturbation(method, params, rows, key=KEY, earlier=None):
    """What a method adds to the tokens."""

    def spy(params, batch, key, added):
        assert added.embedding is None
        return jnp.zeros(()), Losses(*jnp.zeros(4))._replace(esr=added.token)

    return np.asarray(method(spy)(params, rows, key, Perturbation(earlier))[1].esr)


def test_augmented_adds_noise_of_its_size_to_the_tokens():
    method, rows = partial(augmented, sigma=0.7), tiny.batch(40)
    params = {"tokens": {"embedding": jnp.zeros((3, 64))}}
    noise, mask = perturbation(method, params, rows), np.asarray(texts_of(rows)[1])
    assert not noise[~mask].any()
    np.testing.assert_allclose(noise[mask].std(), 0.7, rtol=0.02)
    assert not np.array_equal(noise, perturbation(method, params, rows, jax.random.key(5)))
    both = perturbation(method, params, rows, earlier=jnp.ones((40, 12, 64)))
    np.testing.assert_allclose(both, noise + 1, rtol=1e-6)


def test_augmented_over_draws_each_text_s_ratio_and_matches_its_tokens():
    method, rows = partial(augmented_over, snr_db=(-16.0, 0.0)), tiny.batch(40)
    params = {"tokens": {"embedding": jax.random.normal(KEY, (60, 64)) * jnp.arange(60.0)[:, None]}}
    noise, (ids, mask) = perturbation(method, params, rows), map(np.asarray, texts_of(rows))
    signal = np.asarray(params["tokens"]["embedding"])[ids]
    assert not noise[~mask].any()
    ratios = [oracles.snr_db(signal[row][mask[row]], noise[row][mask[row]]) for row in range(40)]
    assert -17 < min(ratios) < -13 and -3 < max(ratios) < 1


def test_perturbations_add_up_at_a_model_s_sites():
    model = tiny.softmax()
    network = model.apply(tiny.lively(model), method=lambda module: module)
    ids, mask = texts_of(BATCH)
    tokens = network.embed_tokens(ids)
    noise = 0.3 * jax.random.normal(KEY, tokens.shape)
    perturbed = network(ids, mask, added=Perturbation(noise, 2 * noise)).logits
    hidden = network.encode(network.embed(tokens + noise) + 2 * noise, mask).hidden
    np.testing.assert_allclose(perturbed, network.classify(hidden, mask), rtol=1e-5, atol=1e-6)
    assert np.abs(perturbed - network(ids, mask).logits).max() > 1e-2


def test_seeds_together_train_as_they_do_alone():
    """FreeLB's own gradient rule under `vmap`."""
    optimizer, seeds = adamw(1e-2, total_steps=4), (3, 8)
    chunk = make_chunk(freelb(augmented(classification(BAG), sigma=0.1), Ball()), optimizer)
    picks = np.random.default_rng(0).integers(0, 5, (2, 2, 4)).astype(np.int32)

    def trained(part):
        keys, states = seed_keys(seeds[part]), init_states(BAG, optimizer, seeds[part])
        few = picks[:, part]
        return chunk(states, BATCH, few, np.ones(few.shape, np.float32), keys)[0].params

    together, alone = trained(slice(0, 2)), trained(slice(1, 2))
    tiny.assert_close(tiny.take(together, 1), tiny.take(alone, 0), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("ball", [Ball(num_steps=0), Ball(max_norm=-1.0), Ball(initial_norm=-0.1)])
def test_numbers_out_of_range_are_named(ball):
    for method in METHODS.values():
        with pytest.raises(ValueError, match=r"max_norm > 0 .* got Ball\(num_steps="):
            method(classification(BAG), ball)
    with pytest.raises(ValueError, match="sigma must be >= 0 and finite, got -1"):
        augmented(classification(BAG), sigma=-1.0)
    with pytest.raises(ValueError, match=r"finite range, low to high, got \(0, -6\)"):
        augmented_over(classification(BAG), snr_db=(0, -6))
