from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from hopfax.train.objectives import Losses, classification
from hopfax.train.state import TrainState, adamw, init_states, seed_keys
from hopfax.train.step import make_chunk, make_step

SEEDS, STEPS, BATCH = (23, 42), 4, 8
RATE, DECAY = 0.1, 0.02
MODEL = tiny.hopfield(dropout=0.1)
OPTIMIZER = adamw(1e-2, total_steps=20)
KEYS = seed_keys(SEEDS)
objective_of = partial(classification, esr_weight=0.05)
step_of_one_seed = jax.jit(make_step(objective_of(MODEL), OPTIMIZER))


def test_a_chunk_is_its_single_steps_of_single_seeds():
    """With Hopfield attention, ESR and dropout."""
    rng = np.random.default_rng(0)
    picks = rng.integers(0, 9, (STEPS, len(SEEDS), BATCH)).astype(np.int32)
    rows, weights = tiny.batch(9), np.ones(picks.shape, np.float32)
    weights[:, :, -1] = 0
    start = init_states(MODEL, OPTIMIZER, SEEDS)
    donated = jax.tree.map(jnp.copy, start)
    chunk = make_chunk(objective_of(MODEL), OPTIMIZER)
    states, metrics = chunk(donated, rows, picks, weights, KEYS)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(donated))
    assert {leaf.shape for leaf in metrics.values()} == {(STEPS, len(SEEDS))}
    assert np.unique(metrics["loss"]).size == metrics["loss"].size
    assert states.step.tolist() == [STEPS, STEPS]
    for number in range(len(SEEDS)):
        state = tiny.take(start, number)
        for at in range(STEPS):
            batch = tiny.take(rows, picks[at, number])._replace(weights=weights[at, number])
            state, alone = step_of_one_seed(state, batch, KEYS[number])
            tiny.assert_close(alone, tiny.take(metrics, (at, number)), rtol=1e-3, atol=1e-5)
        # Adam divides by the root of squares: where a gradient is all rounding, steps differ.
        tiny.assert_close(state, tiny.take(states, number), rtol=1e-3, atol=3e-4)


def noisy_objective(params, batch, key):
    """A loss that is drawn with the key, and that has gradients of 30 and 40."""
    del batch
    draw = jax.random.uniform(key)
    slope = jnp.array([30.0, 40.0]) @ params["x"]
    return draw + slope - jax.lax.stop_gradient(slope), Losses(draw, draw, draw, draw)


def test_dropout_keys_derive_from_seed_and_step_alone():
    optimizer = adamw(1e-3, total_steps=9)
    step = make_step(noisy_objective, optimizer)

    def drawn(seed, number, *, rows, x=1.0):
        params = {"x": jnp.full(2, x)}
        state, (key,) = optimizer.init(params), seed_keys([seed])
        moved, metrics = step(TrainState(params, state, jnp.int32(number)), rows, key)
        assert moved.step == number + 1
        np.testing.assert_allclose(metrics["gradient_norm"], 50, rtol=1e-6)  # before clipping
        return float(metrics["loss"])

    few, others = tiny.batch(2), tiny.batch(3, seed=1)
    assert drawn(23, 5, rows=few) == drawn(23, 5, rows=others, x=-2.0)
    grid = {drawn(seed, number, rows=few) for seed in (23, 42) for number in range(4)}
    assert len(grid) == 8


def slow_rate(step, total):
    """Table 15: equal steps up to the peak, then equal steps down to 0."""
    rising = max(1, round(0.1 * total))
    if step < rising:
        return RATE * (step + 1) / rising
    return RATE * max(0, 1 - (step - rising) / max(1, total - rising))


def slow_adamw(param, gradients, total):
    """Loshchilov and Hutter's Algorithm 2 in float64, of one concatenated vector."""
    param = param.astype(np.float64)
    first, second = np.zeros_like(param), np.zeros_like(param)
    for step, gradient in enumerate(gradients):
        gradient = gradient * min(1.0, 1 / np.sqrt(np.sum(gradient**2)))
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        mean, square = first / (1 - 0.9 ** (step + 1)), second / (1 - 0.999 ** (step + 1))
        param = param - slow_rate(step, total) * (mean / (np.sqrt(square) + 1e-8) + DECAY * param)
        yield param


@pytest.mark.parametrize("total", [1, 7, 20])
def test_all_steps_of_a_schedule_and_those_after_it_equal_numpy(rng, total):
    def split(vector):
        return {"a": jnp.asarray(vector[:6].reshape(2, 3)), "b": jnp.asarray(vector[6:])}

    start = rng.normal(size=10).astype(np.float32)
    gradients = rng.normal(size=(total + 3, 10)).astype(np.float32)
    gradients[::4] *= 100  # far above the clip
    gradients[1::4] *= 1e-3  # far below
    optimizer = adamw(RATE, total_steps=total, weight_decay=DECAY)
    params = split(start)
    state = optimizer.init(params)
    for gradient, expected in zip(gradients, slow_adamw(start, gradients, total), strict=True):
        updates, state = optimizer.update(split(gradient), state, params)
        params = jax.tree.map(jnp.add, params, updates)
        trained = np.concatenate([np.ravel(params["a"]), params["b"]])
        # 1 - 0.999 alone has a relative error of 3e-5 in float32.
        np.testing.assert_allclose(trained, expected, rtol=1e-5, atol=3e-5)


def test_seed_keys_are_those_of_single_seeds():
    seeds = (0, 42, 2**32 - 1)
    for key, seed in zip(seed_keys(seeds), seeds, strict=True):
        assert key == jax.random.key(np.uint32(seed))
