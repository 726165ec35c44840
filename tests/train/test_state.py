import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from hopfax.train.state import adamw, init_states, seed_keys

RATE, DECAY, TOTAL = 0.1, 0.02, 20


def slow_rate(step, total=TOTAL):
    """Table 15: up in equal parts to the peak, then down in equal parts to 0."""
    rising = max(1, round(0.1 * total))
    if step < rising:
        return RATE * (step + 1) / rising
    return RATE * (1 - (step - rising) / (total - rising))


def slow_adamw(param, gradients):
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
        param = param - slow_rate(step) * (direction + DECAY * param)
    return param


def test_all_steps_of_a_schedule_equal_numpy(rng):
    def split(vector):
        return {"a": jnp.asarray(vector[:6].reshape(2, 3)), "b": jnp.asarray(vector[6:])}

    start = rng.normal(size=10).astype(np.float32)
    gradients = [rng.normal(size=10).astype(np.float32) for _ in range(TOTAL)]
    gradients[3] *= 100  # far above the clip
    gradients[4] *= 1e-3  # far below
    optimizer = adamw(RATE, total_steps=TOTAL, weight_decay=DECAY)
    params = split(start)
    state = optimizer.init(params)
    for gradient in gradients:
        updates, state = optimizer.update(split(gradient), state, params)
        params = jax.tree.map(jnp.add, params, updates)
    trained = np.concatenate([np.ravel(params["a"]), params["b"]])
    # 1 - 0.999 alone has a relative error of 3e-5 in float32.
    np.testing.assert_allclose(trained, slow_adamw(start, gradients), rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize("total", [1, 7, 40])
def test_rates_rise_to_the_peak_and_fall_to_zero(total):
    """With a constant gradient of 1, AdamW moves by the rate itself."""
    optimizer = adamw(RATE, total_steps=total, weight_decay=0.0)
    ones = jnp.ones(())

    def step(state, _):
        update, state = optimizer.update(ones, state, ones)
        return state, -update

    _, rates = jax.lax.scan(step, optimizer.init(ones), length=total + 3)
    expected = [slow_rate(step, total) for step in range(total)]
    np.testing.assert_allclose(rates[:total], expected, rtol=1e-4, atol=1e-7)
    assert rates[total - 1] > 0  # no step is wasted
    if total > 1:
        np.testing.assert_allclose(rates[total:], 0, atol=1e-6 * RATE)


@pytest.mark.parametrize(
    "wrong", [{"learning_rate": float("nan")}, {"total_steps": 0}, {"weight_decay": -0.1}]
)
def test_numbers_out_of_range_are_errors(wrong):
    with pytest.raises(ValueError, match=r"adamw requires .* weight_decay >= 0; got "):
        adamw(**{"learning_rate": 0.1, "total_steps": 10} | wrong)


def test_states_of_seeds_are_stacked_and_independent():
    model, optimizer = tiny.bag(), adamw(RATE, total_steps=TOTAL)
    both = init_states(model, optimizer, (23, 42))
    alone = init_states(model, optimizer, (42,))
    assert all(leaf.shape[0] == 2 for leaf in jax.tree.leaves(both))
    assert tiny.same_bits(tiny.take(both, 1), tiny.take(alone, 0))
    assert both.step.tolist() == [0, 0]
    kernels = both.params["out"]
    assert not np.allclose(kernels[0], kernels[1])


def test_seed_keys_are_those_of_single_seeds_and_in_range():
    keys = seed_keys((0, 42, 2**32 - 1))
    for key, seed in zip(keys, (0, 42, 2**32 - 1), strict=True):
        single = jax.random.key(np.uint32(seed))
        assert tiny.same_bits(jax.random.key_data(key), jax.random.key_data(single))
    for seed in (-1, 2**32):
        with pytest.raises(ValueError, match=f"got {seed}"):
            seed_keys((0, seed))
