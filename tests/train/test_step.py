from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import tiny

from hopfax.nn import with_precision
from hopfax.train.objectives import Losses, classification
from hopfax.train.state import TrainState, adamw, init_states, seed_keys
from hopfax.train.step import make_chunk, make_step

SEEDS, STEPS, BATCH = (23, 42), 4, 8
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
    assert {leaf.shape for leaf in metrics} == {(STEPS, len(SEEDS))}
    assert np.unique(metrics.loss).size == metrics.loss.size
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
        np.testing.assert_allclose(metrics.gradient_norm, 50, rtol=1e-6)  # before clipping
        return float(metrics.loss)

    few, others = tiny.batch(2), tiny.batch(3, seed=1)
    assert drawn(23, 5, rows=few) == drawn(23, 5, rows=others, x=-2.0)
    grid = {drawn(seed, number, rows=few) for seed in (23, 42) for number in range(4)}
    assert len(grid) == 8


def test_bfloat16_trains_parameters_that_stay_in_float32():
    half = jax.jit(make_step(objective_of(with_precision(MODEL, "bfloat16")), OPTIMIZER))
    losses, counts = [], []
    for step in (step_of_one_seed, half):
        state, rows = tiny.take(init_states(MODEL, OPTIMIZER, SEEDS), 0), tiny.batch(BATCH)
        dtypes, metrics = [leaf.dtype for leaf in jax.tree.leaves(state)], []
        for _ in range(12):
            state, latest = step(state, rows, KEYS[0])
            metrics.append(latest)
        assert [leaf.dtype for leaf in jax.tree.leaves(state)] == dtypes
        assert {leaf.dtype for leaf in latest} == {jnp.dtype("float32")}
        losses.append([float(each.loss) for each in metrics])
        counts.append([float(each.num_steps) for each in metrics])
        assert losses[-1][-1] < losses[-1][0] - 0.05
    assert losses[0] != losses[1]
    np.testing.assert_allclose(*losses, atol=0.02)
    np.testing.assert_allclose(*counts, rtol=0.15)
