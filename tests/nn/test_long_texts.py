"""Texts of twice as many tokens as a head is wide search among states, shorter ones among scores.

Nobody must be able to tell: neither values nor counts nor gradients depend on it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hopfax.nn import HopfieldAttention, functional

WIDTH, HEADS, BETA = 6, 2, 4.0
LENGTHS = np.array([7, 4, 1, 0])


@pytest.fixture
def x(rng):
    return rng.normal(size=(len(LENGTHS), 7, WIDTH))


def run(layer, params, x, *, mask=None):
    """What a layer returns, and the gradients of its real outputs."""
    mask = np.arange(x.shape[1]) < LENGTHS[:, None] if mask is None else mask
    weights = jnp.cos(jnp.arange(x.size).reshape(x.shape))

    def total(params, x):
        found = layer.apply(params, x, mask)
        return jnp.sum(jnp.where(mask[..., None], weights * found.values, 0)), found

    (_, found), slopes = jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))(params, x)
    return found, slopes


def layer_of(**options):
    options = {"beta": BETA, "num_heads": HEADS, "implementation": "xla"} | options
    return functional(lambda rngs: HopfieldAttention(WIDTH, rngs=rngs, **options))


def by_scores(self, *arrays):
    return HopfieldAttention._retrieve_scores(self, *arrays)


@pytest.mark.parametrize(
    "options",
    [
        {"tol": 1e-10, "max_steps": 400},
        {"stop": "absolute", "tol": 0.0, "max_steps": 4},  # not at rest: the adjoint is cut off
        {"mask_keys": False, "tol": 1e-10, "max_steps": 400},
    ],
    ids=str,
)
def test_states_and_scores_come_to_the_same(x64, monkeypatch, x, redraw, options):
    layer = layer_of(**options)
    params = redraw(layer, dtype=np.float64)
    states, slopes = run(layer, params, x)
    monkeypatch.setattr(HopfieldAttention, "_retrieve_states", by_scores)
    scores, others = run(layer, params, x)
    np.testing.assert_allclose(states.values, scores.values, rtol=1e-8, atol=1e-10)
    np.testing.assert_array_equal(states.num_steps, scores.num_steps)
    np.testing.assert_array_equal(states.converged, scores.converged)
    assert len(np.unique(states.num_steps)) >= 3
    for one, other in zip(jax.tree.leaves(slopes), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-7 * max(np.abs(other).max(), 1))
    assert np.abs(slopes[0]["key"]["kernel"]).max() > 1e-2


def test_in_bfloat16_states_are_kept_in_float32(monkeypatch, x, redraw):
    layer = layer_of(max_steps=200)
    params = redraw(layer, dtype=jnp.bfloat16)
    x = jnp.asarray(x, jnp.bfloat16)
    states, slopes = run(layer, params, x)
    monkeypatch.setattr(HopfieldAttention, "_retrieve_states", by_scores)
    scores, others = run(layer, params, x)
    assert states.values.dtype == slopes[1].dtype == jnp.bfloat16
    np.testing.assert_array_equal(states.num_steps, scores.num_steps)
    assert states.converged.all(), "8 bits never change by as little as 1e-4"
    for one, other in ((states.values, scores.values), (slopes[1], others[1])):
        one, other = (np.asarray(part, np.float32) for part in (one, other))
        np.testing.assert_allclose(one, other, atol=0.02 * np.abs(other).max())


@pytest.mark.parametrize("implementation", ["xla", "pallas"])
@pytest.mark.parametrize("level", [0.0, 1.0])
def test_padding_to_twice_the_width_moves_no_stop(x, redraw, level, implementation):
    layer = layer_of(num_heads=1, beta=2.0, tol=0.5, implementation=implementation)
    params = redraw(layer)
    short = jnp.asarray(level * np.tile(x, (2, 2, 1))[:, : 2 * WIDTH - 1], jnp.float32)
    padded = jnp.pad(short, ((0, 0), (0, 1), (0, 0)))
    real = np.arange(2 * WIDTH) < np.repeat([11, 6], len(x))[:, None]
    wanted, _ = run(layer_of(num_heads=1, beta=2.0, tol=0.5), params, short, mask=real[:, :-1])
    found, _ = run(layer, params, padded, mask=real)
    np.testing.assert_allclose(
        np.asarray(found.values)[real], np.asarray(wanted.values)[real[:, :-1]], atol=1e-4
    )
    counts = np.swapaxes(found.num_steps, 1, 2)[real], np.swapaxes(wanted.num_steps, 1, 2)
    np.testing.assert_array_equal(counts[0], counts[1][real[:, :-1]])
    assert counts[0].min() == 2, "leaving the query is never the last step"


@pytest.mark.parametrize("tokens", [5, 6])
def test_twice_the_width_of_a_head_decides(monkeypatch, x, tokens):
    seen = []
    for name in ("_retrieve_scores", "_retrieve_states"):
        real = getattr(HopfieldAttention, name)

        def spy(self, *arrays, real=real, name=name):
            seen.append(name)
            return real(self, *arrays)

        monkeypatch.setattr(HopfieldAttention, name, spy)
    layer = layer_of()
    params = layer.init(jax.random.key(0))
    layer.apply(params, x[:, :tokens], np.ones((len(x), tokens), bool))
    assert set(seen) == {"_retrieve_scores" if tokens < 6 else "_retrieve_states"}
