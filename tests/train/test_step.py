from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import tiny

from hopfax.nn import with_precision
from hopfax.train.objectives import Batch, Losses, classification
from hopfax.train.state import TrainState, adamw, init_states, seed_keys
from hopfax.train.step import make_chunk, make_step

SEEDS, STEPS, BATCH = (23, 42), 4, 8
MODEL = tiny.hopfield(dropout=0.1)
OPTIMIZER = adamw(1e-2, total_steps=20)
KEYS = seed_keys(SEEDS)
objective_of = partial(classification, esr_weight=0.05)
step_of_one_seed = jax.jit(make_step(objective_of(MODEL), OPTIMIZER))


@cache
def plan():
    rng = np.random.default_rng(0)
    picks = rng.integers(0, 9, (STEPS, len(SEEDS), BATCH)).astype(np.int32)
    weights = np.ones(picks.shape, np.float32)
    weights[:, :, -1] = 0
    return tiny.batch(9), picks, weights


def test_a_chunk_is_its_single_steps_of_single_seeds():
    """With Hopfield attention, ESR and dropout."""
    rows, picks, weights = plan()
    start = init_states(MODEL, OPTIMIZER, SEEDS)
    chunk = make_chunk(objective_of(MODEL), OPTIMIZER)
    states, metrics = chunk(jax.tree.map(jnp.copy, start), rows, picks, weights, KEYS)
    assert {leaf.shape for leaf in metrics} == {(STEPS, len(SEEDS))}
    assert np.unique(metrics.loss).size == metrics.loss.size
    assert states.step.tolist() == [STEPS, STEPS]
    for number in range(len(SEEDS)):
        state = tiny.take(start, number)
        for at in range(STEPS):
            few = Batch(*(field[picks[at, number]] for field in rows))
            few = few._replace(weights=jnp.asarray(weights[at, number]))
            state, alone = step_of_one_seed(state, few, KEYS[number])
            expected = tiny.take(tiny.take(metrics, at), number)
            tiny.assert_close(alone, expected, rtol=1e-3, atol=1e-5)
        # Adam divides by the root of squares: where a gradient is all rounding, steps differ.
        tiny.assert_close(state, tiny.take(states, number), rtol=1e-3, atol=3e-4)


def test_chunks_may_be_cut_anywhere_and_donate_the_states():
    model, (rows, picks, weights) = tiny.bag(), plan()
    chunk = make_chunk(classification(model), OPTIMIZER)
    ends = []
    for cuts in ([slice(0, 4)], [slice(0, 2), slice(2, 4)]):
        states = init_states(model, OPTIMIZER, SEEDS)
        for part in cuts:
            before = states
            states, _ = chunk(states, rows, picks[part], weights[part], KEYS)
            assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
        ends.append(states)
    assert not any(leaf.is_deleted() for leaf in rows)
    tiny.assert_close(*ends, rtol=1e-5, atol=1e-6)


def noisy_objective(params, batch, key):
    """Its loss is a draw with the key, so that the metrics show what a step drew."""
    del batch
    draw = jax.random.uniform(key)
    return draw + 0 * params["x"], Losses(draw, draw, draw, draw)


def test_dropout_keys_derive_from_seed_and_step_alone():
    optimizer = adamw(1e-3, total_steps=9)
    step = make_step(noisy_objective, optimizer)

    def drawn(seed, number, *, rows, x=1.0):
        params = {"x": jnp.asarray(x)}
        state, (key,) = optimizer.init(params), seed_keys([seed])
        moved, metrics = step(TrainState(params, state, jnp.int32(number)), rows, key)
        assert moved.step == number + 1
        return float(metrics.loss)

    few, others = tiny.batch(2), tiny.batch(3, seed=1)
    assert drawn(23, 5, rows=few) == drawn(23, 5, rows=others, x=-2.0)
    grid = {drawn(seed, number, rows=few) for seed in (23, 42) for number in range(4)}
    assert len(grid) == 8


def test_gradient_norm_is_the_one_before_clipping():
    def steep(params, batch, key):
        del batch, key
        loss = 30 * params["x"] + 40 * params["y"]
        return loss, Losses(loss, loss, loss, loss)

    optimizer = adamw(1e-3, total_steps=9)
    params = {"x": jnp.ones(()), "y": jnp.ones(())}
    state = TrainState(params, optimizer.init(params), jnp.int32(0))
    (key,) = seed_keys([0])
    _, metrics = make_step(steep, optimizer)(state, tiny.batch(1), key)
    np.testing.assert_allclose(metrics.gradient_norm, 50, rtol=1e-6)


def test_bfloat16_trains_parameters_that_stay_in_float32():
    """Robertha, with ESR; TinyBERT shares all of it but the iteration."""
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
