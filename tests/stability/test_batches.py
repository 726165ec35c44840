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
from hopfax.stability.batches import is_tracing

KEY = jax.random.key(4)
WEIGHTS = jax.random.normal(KEY, (3, 5))


def plain(weights, x):
    return jnp.sum(jax.nn.relu(x @ weights))


def pair(key, shape, *, rho):
    first, fresh = jax.random.normal(key, (2, *shape))
    return first, rho * first + jnp.sqrt(1 - rho**2) * fresh


several = partial(stability.noise_stability, shape=(3,), num_samples=50, batch_size=20)
CALLS = {
    "noise_stability": partial(several, rho=jnp.array([0.0, 0.5])),
    "your own pair": partial(several, rho=0.5, pair=pair),
    "arcs": partial(several, rho=0.5, arc_points=4, per_output=True),
    "total_influence": partial(stability.total_influence, num_bits=3, num_samples=50),
    "level_weights": partial(stability.level_weights, shape=(3,), num_samples=128),
    "walsh_weights": lambda fn, key: stability.walsh_weights(fn, num_bits=3, batch_size=5),
    "geometric_influence": lambda fn, key: stability.geometric_influence(
        fn, jax.random.normal(key, (5, 3)), batch_size=2
    ),
}


@pytest.fixture(scope="module")
def compilations():
    events = []
    listen = lambda name, *_, **__: events.append(name)  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listen)
    # Precedes every compilation, even one that is read from a file.
    yield lambda: events.count("/jax/core/compile/jaxpr_to_mlir_module_duration")
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("jitted", [True, False])
def test_a_second_call_compiles_nothing_and_equals_the_jitted_one(name, jitted, compilations):
    net = jax.jit(plain) if jitted else plain
    call = lambda weights, key: CALLS[name](lambda x: net(weights, x), key)  # noqa: E731
    call(WEIGHTS, KEY)
    weights, key = WEIGHTS + 1, jax.random.key(5)
    before = compilations()
    result = call(weights, key)
    assert compilations() == before
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5),
                 result, jax.jit(call)(weights, key))  # fmt: skip


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
    model = nnx.Linear(3, 1, use_bias=False, rngs=nnx.Rngs(0))
    measure = lambda: several(lambda x: model(x[None])[0], KEY, rho=0.5).mean  # noqa: E731
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
