"""What is not numbers of the right shape is refused by name."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hopfax import hopfield
from hopfax.fixed_point import adjoint, fixed_point

KEY, STATE, PATTERNS = jax.random.key(0), jnp.ones(4), jnp.ones((3, 4))
OBJECTS, HUGE = np.array([[1, None]], object), 10**400
retrieve, energy, update, trajectory, attend = (
    partial(getattr(hopfield, name), beta=1.0)
    for name in ("retrieve", "energy", "update", "trajectory", "attend")
)


def half(_, x):
    return 0.5 * x


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ValueError, r"keys .* got \(5, 0\)", lambda: hopfield.key_spectrum(jnp.ones((5, 0)))),
        (ValueError, r"keys .* got \(0, 4\)", lambda: hopfield.esr_penalty(jnp.ones((0, 4)))),
        (ValueError, r"keys .* got \(2, 3, 4\)", lambda: hopfield.gini(jnp.ones((2, 3, 4)))),
        (TypeError, "keys .* got ndarray", lambda: hopfield.effective_rank(OBJECTS)),
        (TypeError, "keys .* got int", lambda: hopfield.eigen_entropy(HUGE)),
        (ValueError, "target must be one", lambda: hopfield.esr_penalty(PATTERNS, target=STATE)),
        (TypeError, "query .* got list", lambda: retrieve([[1.0], [1.0, 2.0]], PATTERNS)),
        (TypeError, "patterns .* got str", lambda: energy(STATE, "abc")),
        (TypeError, "an array of complex64", lambda: update(1j * STATE, PATTERNS)),
        (TypeError, "beta .* got int", lambda: retrieve(STATE, PATTERNS, beta=HUGE)),
        (TypeError, "mask .* got str", lambda: update(STATE, PATTERNS, mask="all")),
        (TypeError, "tol .* got str", lambda: retrieve(STATE, PATTERNS, tol="1")),
        (ValueError, "tol must be one", lambda: retrieve(STATE, PATTERNS, tol=STATE)),
        (TypeError, "max_steps .* 1.5", lambda: retrieve(STATE, PATTERNS, max_steps=1.5)),
        (ValueError, "below 2", lambda: retrieve(STATE, PATTERNS, max_steps=HUGE)),
        (
            TypeError,
            "num_steps .* '1'",
            lambda: trajectory(STATE, PATTERNS, num_steps="1"),
        ),
        (TypeError, "keys .* got str", lambda: attend(PATTERNS, "abc", PATTERNS)),
        (TypeError, "signal .* ndarray", lambda: hopfield.matched_sigma(OBJECTS, snr_db=1.0)),
        (TypeError, "snr_db .* got str", lambda: hopfield.matched_sigma(PATTERNS, snr_db="1")),
        (ValueError, r"got \(3, 4\) and \(4, 4\)", lambda: hopfield.snr_db(PATTERNS, jnp.eye(4))),
        (ValueError, r"got \(4,\)", lambda: hopfield.gaussian_noise(KEY, STATE, sigma=1.0)),
        (
            ValueError,
            "single key",
            lambda: hopfield.gaussian_noise(jax.random.split(KEY), PATTERNS, sigma=1.0),
        ),
        (ValueError, "init must hold floating", lambda: fixed_point(half, (), {})),
        (ValueError, r"got \(3,\)", lambda: adjoint(half, (), STATE, jnp.ones(3))),
    ],
)
def test_wrong_arguments_are_named(error, message, call):
    with pytest.raises(error, match=message):
        call()


def test_lists_and_whole_numbers_are_numbers():
    rows = [[3, 4], [0, 0]]
    np.testing.assert_allclose(hopfield.matched_sigma(rows, snr_db=0), 2.5)
    assert hopfield.gaussian_noise(KEY, rows, sigma=1).dtype == jnp.float32
    np.testing.assert_allclose(hopfield.key_spectrum(rows), [1, 0], atol=1e-6)
    assert attend(rows, rows, rows).values.shape == (2, 2)
