"""Calls outside of jit: what they compile, keep and see."""

import gc
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hopfax import stability
from hopfax.checks import is_tracing

KEY = jax.random.key(4)
WEIGHTS = jax.random.normal(KEY, (3, 5))
several = partial(stability.noise_stability, shape=(3,), num_samples=50, batch_size=20)


def plain(weights, x):
    return jnp.sum(jax.nn.relu(x @ weights))


def loop(weights, x):
    return jax.lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y * weights[:, 0]), x).sum()


@pytest.mark.parametrize(("net", "repetitions"), [(plain, 200), (loop, 5)])
def test_calls_keep_no_memory(net, repetitions):
    """Programs compiled for one call, here for the loop, are freed with it."""

    def call(scale):
        scaled = WEIGHTS * scale
        several(lambda x: net(scaled, x), KEY, rho=0.5, num_samples=20)

    def kept():
        gc.collect()
        return len(Path("/proc/self/maps").read_text().splitlines()), len(gc.get_objects())

    for scale in range(3):
        call(scale)
    maps, objects = kept()
    for scale in range(repetitions):
        call(scale)
    more_maps, more_objects = kept()
    assert more_maps < maps + repetitions and more_objects < objects + repetitions


def test_a_model_changed_in_place_has_new_values():
    """Nothing is compiled by the identity of a function."""
    model, one = nnx.Linear(1, 1, use_bias=False, rngs=nnx.Rngs(0)), {"num_bits": 1}

    def measure():
        mean = stability.noise_stability(model, KEY, shape=(1,), rho=0.5, num_samples=4).mean
        influence = stability.total_influence(model, KEY, num_samples=4, **one).mean
        slope = stability.geometric_influence(model, jnp.ones((2, 1)))[0]
        weight = stability.walsh_weights(lambda x: model(x)[0], **one)[1]
        return np.array([mean, influence, weight, slope**2])

    before = measure()
    model.kernel[...] *= 3
    np.testing.assert_allclose(measure(), 9 * before, rtol=1e-5)


def test_closed_over_tracers_are_seen_by_every_transformation():
    stab = lambda scale: several(lambda x: plain(scale * WEIGHTS, x), KEY, rho=0.5).mean  # noqa: E731
    value = stab(1.0)
    np.testing.assert_allclose(jax.vmap(stab)(jnp.array([1.0, 2.0])), [value, 4 * value], rtol=1e-5)
    np.testing.assert_allclose(jax.grad(stab)(1.0), 2 * value, rtol=1e-4)
    seen = []
    jax.eval_shape(lambda: seen.append(is_tracing()))
    assert seen == [True] and not is_tracing()
