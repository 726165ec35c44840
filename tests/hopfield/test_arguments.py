from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hopfax import hopfield

KEY, STATE, PATTERNS = jax.random.key(0), jnp.ones(4), jnp.ones((3, 4))
COMPLEX, EMPTY = PATTERNS.astype(complex), PATTERNS[:0]
SHARED = {"patterns": PATTERNS, "beta": 1.0}
retrieve = partial(hopfield.retrieve, query=STATE, **SHARED)
trajectory = partial(hopfield.trajectory, query=STATE, **SHARED)
energy = partial(hopfield.energy, state=STATE, **SHARED)
update = partial(hopfield.update, state=STATE, **SHARED)
attend = partial(hopfield.attend, queries=PATTERNS, keys=PATTERNS, values=PATTERNS, beta=1.0)
noise = partial(hopfield.gaussian_noise, key=KEY, signal=PATTERNS, sigma=1.0)
esr = partial(hopfield.esr_penalty, keys=PATTERNS)
denoise = partial(hopfield.denoise, noisy=STATE, patterns=PATTERNS, sigma=1.0)
normalized = partial(
    hopfield.denoise_normalized, STATE, PATTERNS, offset=STATE, scale=STATE, bias=STATE, epsilon=0.0
)
candidates = partial(hopfield.candidates, noisy=STATE, patterns=PATTERNS, count=1)
estimate = partial(hopfield.estimate_sigma, noisy=PATTERNS, patterns=PATTERNS)
capacity = partial(hopfield.capacity_snr_db, entropy_bits=10.0, width=2)
rate = partial(hopfield.recovery_rate, patterns=PATTERNS, sigma=1.0)
selection = partial(hopfield.select_tokens, scores=STATE, share=0.5)
ball = partial(hopfield.reconstruction_bound, patterns=PATTERNS, beta=1.0, delta=1.0)


@pytest.mark.parametrize(
    ("call", "options", "words"),
    [
        *(
            (call, options, words)
            for call in (retrieve, energy, update, trajectory, attend)
            for options, words in (
                ({"beta": 0}, "beta must be > 0 and finite, got 0"),
                ({"beta": STATE}, r"beta must have shape \(\), got \(4,\): use jax.vmap"),
                ({"mask": np.ones(3)}, "mask must be boolean, True where real, got float"),
                ({"mask": [True]}, r"mask must have shape \(3,\), got \(1,\)"),
            )
        ),
        *((retrieve, {"beta": beta}, f"finite, got {beta}") for beta in (np.nan, np.inf)),
        # A batch of as many queries as coordinates would pass through the products unnoticed.
        (retrieve, {"query": jnp.eye(4)}, "query .* use jax.vmap"),
        (update, {"state": jnp.eye(4)}, "state .* use jax.vmap"),
        (retrieve, {"query": STATE[:3]}, r"query .* got \(3,\) and \(3, 4\)$"),
        (energy, {"state": STATE[:3]}, r"state .* got \(3,\) and \(3, 4\)$"),
        (retrieve, {"max_steps": 0}, "max_steps must be >= 1, got 0"),
        (attend, {"queries": STATE}, r"queries, keys and values .* got \(4,\)"),
        (attend, {"queries": jnp.eye(3)}, r"got \(3, 3\), \(3, 4\)"),
        (hopfield.gini, {"keys": jnp.ones((2, 3, 4))}, r"keys must have .* got \(2, 3, 4\): use"),
        (partial(hopfield.eigen_entropy, PATTERNS), {"entropy": "vn"}, r"\('shannon', .*got 'vn'"),
        (esr, {"keys": jnp.ones((3, 1))}, "width must be >= 2, got 1"),
        (esr, {"keys": EMPTY}, r"got shape \(0, 4\)"),
        *((esr, {"target": value}, "target must be >= 0 and fin") for value in (-0.1, np.nan)),
        (partial(hopfield.snr_db, PATTERNS), {"noise": jnp.eye(4)}, "signal and noise"),
        (noise, {"signal": STATE}, r"signal .* got \(4,\)$"),
        (noise, {"key": 0}, "key must be a random key, .* got 0"),
        (noise, {"sigma": -0.1}, "sigma must be >= 0, got -0.1"),
        *((selection, {"share": share}, r"share must be in \[0, 1\]") for share in (1.5, -0.1)),
        (selection, {"scores": PATTERNS}, "must have shape"),
        (denoise, {"patterns": COMPLEX}, "must be real, got complex"),
        (denoise, {"patterns": EMPTY}, r"patterns, width\) with at least one .*got \(0, 4\)"),
        (denoise, {"sigma": 0.0}, "sigma must be > 0 and finite, got 0.0"),
        (denoise, {"noisy": np.ones(3)}, r"got \(3,\) and \(3, 4\)"),
        (denoise, {"block_size": 0}, "block_size must be >= 1, got 0"),
        (denoise, {"log_prior": np.ones(4)}, r"log_prior must have shape \(3,\), got \(4,\)"),
        (denoise, {"log_prior": [0, np.inf, 0]}, "log_prior must be finite or -inf, got inf"),
        (normalized, {"offset": np.ones(3)}, r"got \(4,\), \(3,\), \(4,\) and \(4,\)"),
        (normalized, {"epsilon": -1.0}, "epsilon must be >= 0 and finite, got -1.0"),
        (candidates, {"count": 4}, r"in \[1, 3\], got 4"),
        (estimate, {"patterns": PATTERNS[:, :3]}, r"got \(3, 4\) and \(3, 3\)"),
        (estimate, {"noisy": EMPTY}, r"noisy must have one or more tokens, got shape \(0, 4\)"),
        (capacity, {"entropy_bits": -1.0}, "entropy_bits must be > 0"),
        (capacity, {"spectrum": STATE / 4}, r"spectrum must have shape \(2,\), got \(4,\)"),
        (capacity, {"spectrum": STATE[:2]}, r"sum of spectrum must be in \[0, 1.001\], got 2"),
        (capacity, {"spectrum": jnp.array([1.5, -0.5])}, "spectrum must be >= 0"),
        (ball, {"beta": -1}, "beta must be > 0 and finite, got -1"),
        (ball, {"delta": -0.5}, "delta must be >= 0 and finite, got -0.5"),
        (
            ball,
            {"patterns": STATE},
            r"patterns, beta and delta must have shape \(patterns, width\)",
        ),
        (rate, {"index": [-1]}, r"index must be in \[0, 2\], got -1"),
        (rate, {"index": [0.5]}, "index must be an integer, got .0.5"),
        (rate, {"index": 3}, r"index must have shape \(rows,\), got \(\)"),
    ],
)
def test_messages(call, options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call(**options)


@pytest.mark.parametrize("sigma", [1e-300, 1e-46, 1e30])
def test_extreme_noise_levels_are_the_limits(sigma):
    """No noise leaves the nearest pattern; infinite noise leaves the prior."""
    patterns = jnp.eye(3)
    found = hopfield.denoise(patterns[1], patterns, sigma=sigma)
    np.testing.assert_allclose(found.probability, 1 if sigma < 1 else 1 / 3, rtol=1e-6)
    assert sigma > 1 or found.index == 1
    bound = hopfield.recovery_bound(patterns, sigma=sigma)
    np.testing.assert_allclose(bound, 1 if sigma < 1 else 0, atol=1e-6)


def test_lists_and_integers_are_accepted():
    rows = [[3, 4], [0, 0]]
    np.testing.assert_allclose(hopfield.matched_sigma(rows, snr_db=0), 2.5)
    assert hopfield.gaussian_noise(KEY, rows, sigma=1).dtype == jnp.float32
    np.testing.assert_allclose(hopfield.key_spectrum(rows), [1, 0], atol=1e-6)
    found, floats = hopfield.retrieve(rows[0], rows, beta=1).value, np.array(rows, np.float32)
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found, hopfield.retrieve(floats[0], floats, beta=1).value)
    assert hopfield.attend(rows, rows, rows, beta=1).values.dtype == jnp.float32


def test_a_constant_beta_is_checked_under_jit():
    with pytest.raises(ValueError, match="beta must be > 0 and finite, got -1"):
        jax.jit(lambda: retrieve(beta=-1.0))()


def test_no_infinite_number_where_jax_debugs_them():
    mask = jnp.array([True, True, False])
    loss = partial(hopfield.denoise, patterns=PATTERNS)
    with jax.debug_infs(True):
        for options in ({"sigma": 1.0, "mask": mask}, {"sigma": 1.0, "block_size": 2}, {}):
            jax.grad(lambda x, options=options: loss(x, **options).value.sum())(STATE)
        jax.grad(lambda x: hopfield.attend(x, x, x, beta=1.0, mask=mask).values.sum())(PATTERNS)
