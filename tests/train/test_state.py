import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from hopfax.train.state import adamw, init_states, seed_keys

RATE, DECAY = 0.1, 0.02


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
        direction = (first / (1 - 0.9 ** (step + 1))) / (
            np.sqrt(second / (1 - 0.999 ** (step + 1))) + 1e-8
        )
        param = param - slow_rate(step, total) * (direction + DECAY * param)
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


def test_states_of_seeds_are_stacked_and_independent():
    model, optimizer = tiny.bag(), adamw(RATE, total_steps=20)
    both = init_states(model, optimizer, (23, 42))
    alone = init_states(model, optimizer, (42,))
    assert all(leaf.shape[0] == 2 for leaf in jax.tree.leaves(both))
    assert tiny.same_bits(tiny.take(both, 1), tiny.take(alone, 0))
    assert both.step.tolist() == [0, 0]
    assert not np.allclose(*both.params["out"])


def test_seed_keys_are_those_of_single_seeds():
    seeds = (0, 42, 2**32 - 1)
    for key, seed in zip(seed_keys(seeds), seeds, strict=True):
        assert key == jax.random.key(np.uint32(seed))
