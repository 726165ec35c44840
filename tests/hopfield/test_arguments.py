"""Wrong arguments are errors that name them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hopfax import hopfield

KEY, STATE, PATTERNS = jax.random.key(0), jnp.ones(4), jnp.ones((3, 4))
retrieve, energy, update, trajectory = (
    partial(getattr(hopfield, name), STATE, PATTERNS, beta=1.0)
    for name in ("retrieve", "energy", "update", "trajectory")
)
attend = partial(hopfield.attend, PATTERNS, PATTERNS, PATTERNS, beta=1.0)
noise = partial(hopfield.gaussian_noise, KEY, PATTERNS)
denoise = partial(hopfield.denoise, noisy=STATE, patterns=PATTERNS, sigma=1.0)
normalized = partial(
    hopfield.denoise_normalized, STATE, PATTERNS, offset=STATE, scale=STATE, bias=STATE, epsilon=0.0
)


@pytest.mark.parametrize("call", [retrieve, energy, update, trajectory, attend])
@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"beta": 0}, ValueError, "beta must be > 0 and finite, got 0"),
        ({"beta": jnp.float32(np.nan)}, ValueError, "beta must be > 0 and finite, got nan"),
        ({"beta": np.inf}, ValueError, "beta must be > 0 and finite, got inf"),
        ({"beta": STATE}, ValueError, r"beta must have shape \(\), got \(4,\): use jax.vmap"),
        ({"mask": np.ones(3)}, TypeError, "mask must be boolean, True where real, got float"),
        ({"mask": [True]}, ValueError, r"mask must have shape \(3,\), got \(1,\)"),
    ],
)
def test_beta_and_mask(call, options, error, words):
    with pytest.raises(error, match=words):
        call(**options)


@pytest.mark.parametrize(
    ("error", "words", "call"),
    [
        # A batch of as many queries as coordinates would pass through the products unnoticed.
        (
            ValueError,
            "query .* use jax.vmap",
            lambda: hopfield.retrieve(jnp.eye(4), PATTERNS, beta=1.0),
        ),
        (
            ValueError,
            "state .* use jax.vmap",
            lambda: hopfield.update(jnp.eye(4), PATTERNS, beta=1.0),
        ),
        *(
            (ValueError, r"got \(3,\) and \(3, 4\)$", partial(call, STATE[:3], PATTERNS, beta=1.0))
            for call in (hopfield.energy, hopfield.update, hopfield.retrieve, hopfield.trajectory)
        ),
        (ValueError, "num_steps must be >= 1, got 0", lambda: trajectory(num_steps=0)),
        (
            ValueError,
            r"queries, keys and values .* got \(4,\)",
            lambda: hopfield.attend(STATE, PATTERNS, PATTERNS, beta=1.0),
        ),
        (
            ValueError,
            r"got \(3, 3\), \(3, 4\)",
            lambda: hopfield.attend(jnp.eye(3), *2 * [PATTERNS], beta=1.0),
        ),
        (
            ValueError,
            r"and \(4, 4\)",
            lambda: hopfield.attend(*2 * [PATTERNS], jnp.eye(4), beta=1.0),
        ),
        (ValueError, "tol must be >= 0, got -1", lambda: retrieve(tol=-1.0)),
        (ValueError, "max_steps must be >= 1, got 0", lambda: retrieve(max_steps=0)),
        (ValueError, "'none'", lambda: retrieve(gradient="none")),
        (ValueError, "tol must be >= 0, got nan", lambda: attend(tol=np.nan)),
        (ValueError, "max_steps must be >= 0, got -1", lambda: attend(max_steps=-1)),
        (ValueError, "'soon'", lambda: attend(stop="soon")),
        (ValueError, "beta must be > 0 and finite, got -1", lambda: attend(readout_beta=-1.0)),
        (
            ValueError,
            r"keys must have .* got \(2, 3, 4\): use",
            lambda: hopfield.gini(jnp.ones((2, 3, 4))),
        ),
        (ValueError, "width must be >= 2, got 1", lambda: hopfield.esr_penalty(jnp.ones((3, 1)))),
        (ValueError, r"got shape \(0, 4\)", lambda: hopfield.esr_penalty(PATTERNS[:0])),
        (
            ValueError,
            r"one of \('shannon', 'renyi2'\), got 'vn'",
            lambda: hopfield.eigen_entropy(PATTERNS, entropy="vn"),
        ),
        (ValueError, "signal and noise", lambda: hopfield.snr_db(PATTERNS, jnp.eye(4))),
        (
            ValueError,
            r"signal .* got \(4,\)$",
            lambda: hopfield.gaussian_noise(KEY, STATE, sigma=1.0),
        ),
        (
            TypeError,
            "key must be a random key, .* got 0",
            lambda: hopfield.gaussian_noise(0, PATTERNS, sigma=1.0),
        ),
        (TypeError, "max_steps must be an integer, got 2.5", lambda: retrieve(max_steps=2.5)),
        (
            TypeError,
            "must be real, got complex",
            lambda: hopfield.update(STATE.astype(complex), PATTERNS, beta=1.0),
        ),
        (
            TypeError,
            "must be real, got complex",
            lambda: hopfield.gaussian_noise(KEY, PATTERNS.astype(complex), sigma=1.0),
        ),
        (
            ValueError,
            r"target must have shape \(\), got \(2,\)",
            lambda: hopfield.esr_penalty(PATTERNS, target=jnp.ones(2)),
        ),
        (ValueError, r"sigma must have shape \(\), got \(4,\)", lambda: noise(sigma=STATE)),
        (ValueError, "sigma must be >= 0, got -0.1", lambda: noise(sigma=-0.1)),
        (ValueError, "sigma must be >= 0, got nan", lambda: noise(sigma=np.nan)),
        *(
            (ValueError, words, partial(denoise, **options))
            for options, words in (
                ({"sigma": 0.0}, "sigma must be > 0 and finite, got 0.0"),
                ({"sigma": np.nan}, "must be > 0 and finite, got nan"),
                ({"sigma": np.ones(2)}, r"sigma must have shape \(\), got \(2,\)"),
                ({"noisy": np.ones(3)}, r"got \(3,\) and \(3, 4\)"),
                ({"patterns": np.ones((0, 4))}, r"at least one pattern, got \(0, 4\)"),
                ({"block_size": 0}, "block_size must be >= 1, got 0"),
                ({"log_prior": np.ones(4)}, r"log_prior must have shape \(3,\), got \(4,\)"),
                ({"mask": np.ones(4, bool)}, r"mask must have shape \(3,\), got \(4,\)"),
                ({"log_prior": [0, np.nan, 0]}, "log_prior must be finite or -inf, got nan"),
                ({"log_prior": [0, np.inf, 0]}, "log_prior must be finite or -inf, got inf"),
            )
        ),
        (
            TypeError,
            "must be real, got complex",
            partial(denoise, patterns=PATTERNS.astype(complex)),
        ),
        (TypeError, "must be real, got complex", partial(denoise, log_prior=1j * np.ones(3))),
        *(
            (ValueError, words, partial(normalized, **options))
            for options, words in (
                ({"offset": np.ones(3)}, r"got \(4,\), \(3,\), \(4,\) and \(4,\)"),
                ({"scale": 2.0}, r"got \(4,\), \(4,\), \(\) and \(4,\)"),
                ({"bias": 0.0}, r"got \(4,\), \(4,\), \(4,\) and \(\)"),
                ({"epsilon": -1.0}, "epsilon must be >= 0 and finite, got -1.0"),
            )
        ),
        *(
            (ValueError, r"patterns, width\) with at least one pattern, got \(0, 4\)", call)
            for call in (
                lambda: hopfield.certified_radius(PATTERNS[:0]),
                lambda: hopfield.recovery_bound(PATTERNS[:0], sigma=1.0),
                lambda: hopfield.candidates(STATE, PATTERNS[:0], count=1),
                lambda: hopfield.estimate_sigma(PATTERNS, PATTERNS[:0]),
            )
        ),
        (ValueError, r"got \(4,\)", lambda: hopfield.certified_radius(STATE)),
        (
            ValueError,
            "got .3, 3. and .3, 4",
            lambda: hopfield.estimate_sigma(PATTERNS[:, :3], PATTERNS),
        ),
        (ValueError, "entropy_bits must be > 0", lambda: hopfield.capacity_snr_db(-1.0, width=8)),
        (ValueError, "width must be >= 1, got 0", lambda: hopfield.capacity_snr_db(10.0, width=0)),
        (
            ValueError,
            r"spectrum must have shape \(8,\), got \(4,\)",
            lambda: hopfield.capacity_snr_db(10.0, width=8, spectrum=jnp.ones(4) / 4),
        ),
        (
            ValueError,
            r"sum of spectrum must be in \[0, 1.001\], got 2",
            lambda: hopfield.capacity_snr_db(10.0, width=2, spectrum=jnp.ones(2)),
        ),
        (
            ValueError,
            "spectrum must be >= 0",
            lambda: hopfield.capacity_snr_db(10.0, width=2, spectrum=jnp.array([1.5, -0.5])),
        ),
        (ValueError, r"in \[1, 3\], got 4", lambda: hopfield.candidates(STATE, PATTERNS, count=4)),
        (
            ValueError,
            r"must have shape \(tokens, width\) and \(patterns, width\)",
            lambda: hopfield.estimate_sigma(STATE, PATTERNS),
        ),
        (
            TypeError,
            "must be real",
            lambda: hopfield.estimate_sigma(PATTERNS.astype(complex), PATTERNS),
        ),
        (TypeError, "must be real", lambda: hopfield.key_spectrum(PATTERNS.astype(complex))),
        (
            TypeError,
            "must be real",
            lambda: hopfield.matched_sigma(PATTERNS.astype(complex), snr_db=0.0),
        ),
    ],
)
def test_shapes_and_options(error, words, call):
    with pytest.raises(error, match=words):
        call()


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
    floats = np.array(rows, np.float32)
    for call in (
        lambda rows: hopfield.attend(rows, rows, rows, beta=1).values,
        lambda rows: hopfield.update(rows[0], rows, beta=1),
        lambda rows: hopfield.retrieve(rows[0], rows, beta=1).value,
    ):
        assert call(rows).dtype == jnp.float32
        np.testing.assert_array_equal(call(rows), call(floats))


@pytest.mark.parametrize("call", [energy, update, retrieve, attend])
def test_a_constant_beta_is_checked_under_jit(call):
    with pytest.raises(ValueError, match="beta must be > 0 and finite, got -1"):
        jax.jit(lambda: call(beta=-1.0))()


def test_no_infinite_number_where_jax_debugs_them():
    mask = jnp.array([True, True, False])
    loss = partial(hopfield.denoise, patterns=PATTERNS)
    with jax.debug_infs(True):
        for options in ({"sigma": 1.0, "mask": mask}, {"sigma": 1.0, "block_size": 2}, {}):
            jax.grad(lambda x, options=options: loss(x, **options).value.sum())(STATE)
        jax.grad(lambda x: hopfield.attend(x, x, x, beta=1.0, mask=mask).values.sum())(PATTERNS)
