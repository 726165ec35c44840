from functools import partial

import jax
import jax.numpy as jnp
import pytest

from hopfax import stability
from hopfax.stability import bit_pair, theory

KEY, HALVES = jax.random.key(0), jnp.full((4, 2), 0.5)


def first(x):
    return x[0]


pair = partial(stability.gaussian_pair, KEY, (2,))
replaced = partial(stability.bonami_beckner_pair, KEY, tokens=[0], rho=0.5, num_tokens=5)
estimate = partial(stability.noise_stability, fn=first, key=KEY, shape=(2,), rho=0.5, num_samples=9)
geometric = partial(stability.geometric_influence, fn=first, inputs=HALVES)
noisy = {"key": KEY, "tokens": jnp.zeros((4, 2), int), "rho": 0.2, "num_tokens": 3}
regularizer = partial(stability.stability_regularizer, lambda x: HALVES, probs=HALVES, **noisy)
walsh = partial(stability.walsh_weights, fn=first, num_bits=3)
levels = partial(stability.level_weights, first, KEY, shape=(5,), num_samples=128)
tail = partial(stability.spectral_tail_bound, 0.5, 1.0, rho=0.5, degree=2)
grid = partial(stability.ornstein_uhlenbeck_grid, first, HALVES[0], rho=0.5)
coefficients = partial(stability.hermite_coefficients, jnp.sin, degree=3)
transformer = partial(theory.transformer_recurrence, 0.5, num_layers=1)
moments = partial(theory.moment_interval, 0.5, mean=2.0)
interval = partial(theory.attention_interval, 1.0, negative=1.0, num_tokens=2, width=2, bound=1.0)
propagated = partial(theory.propagate_interval, num_layers=1, num_tokens=1)


@pytest.mark.parametrize(
    ("call", "options", "words"),
    [
        (pair, {"rho": 1.5}, r"rho must be in \[-1, 1\], got 1\.5"),
        (replaced, {"tokens": [0, 7]}, r"tokens must be in \[0, 4\], got 7"),
        (estimate, {"num_samples": 1}, "num_samples must be >= 2, got 1"),
        (estimate, {"arc_points": 1}, "arc_points must be >= 2, got 1"),
        (estimate, {"arc_points": 4, "pair": bit_pair}, "unless pair is gaussian_pair, got 4"),
        (estimate, {"pair": lambda key, shape, rho: (rho, rho)}, "out_axes"),
        (geometric, {"batch_size": 0}, "batch_size must be >= 1, got 0"),
        (geometric, {"inputs": HALVES[:0]}, r"samples >= 1, got \(0, 2\)"),
        (geometric, {"inputs": HALVES[0], "per_token": True}, r"\(samples, ..., width\), .* got"),
        (estimate, {"shape": (0,)}, "shape must have no zero"),
        (replaced, {"tokens": jnp.zeros(2, jnp.uint8), "num_tokens": 300}, "uint8, got 300"),
        (regularizer, {"share": 1.5}, r"share must be in \(0, 1\], got 1.5"),
        (regularizer, {"every": 0}, "every must be >= 1, got 0"),
        (walsh, {"num_bits": 21}, r"num_bits must be in \[1, 20\], got 21"),
        (levels, {"num_samples": 10}, "must be >= 128, got 10"),
        (tail, {"rho": 1.0}, "rho .* got 1.0"),
        (theory.relu_stability, {"rho": 1.1}, r"rho must be in \[-1, 1\], got 1\.1"),
        (partial(theory.attention_stability, 0.5), {"num_tokens": 0}, "num_tokens must .*, got 0"),
        (transformer, {"value_norm": 1.5}, r"value_norm must be in \[0, 1\], got 1\.5"),
        (theory.relu_process_stability, {"rho": -0.1}, r"rho must be in \[0, 1\], got -0\.1"),
        (theory.relu_process_stability, {"rho": 0.1, "std": 0.0}, "std must be > 0, got 0"),
        (partial(theory.linear_recurrence, 0, num_layers=1), {"value_norm": -1}, "value_norm must"),
        (propagated, {"interval": (0.5, 0.2)}, "interval must have low <= high, got 0.5 and 0.2"),
        (interval, {"negative": -1.0}, "negative must .* got -1"),
        (moments, {"second_moment": 3.0}, r"second_moment must be at least mean\*\*2, got"),
        (partial(bit_pair, KEY, (2,)), {"rho": jnp.zeros(2)}, r"rho must have shape \(\), got"),
        (estimate, {"rho": jnp.zeros((2, 2))}, r"rho must be .*, got shape \(2, 2\)"),
        (regularizer, {"probs": HALVES[:3]}, "the same number of rows"),
        (replaced, {"tokens": [0.5]}, "tokens must be integers, got float32"),
        (estimate, {"num_samples": 1e4}, "num_samples must be an integer, got 10000.0"),
        (geometric, {"inputs": jnp.ones((2, 2), int)}, "inputs must be floating, got int32"),
        (estimate, {"fn": lambda x: (x[0], x[1])}, "fn must return one array, got a tuple"),
        (geometric, {"fn": lambda x: None}, "fn must return one array, got a NoneType"),
        (walsh, {"fn": lambda x: x[0].astype(complex)}, "return real numbers, got complex64"),
        (walsh, {"fn": lambda x: x[:2]}, r"fn must return a scalar, got shape \(2,\)"),
        (stability.hermite, {"degree": -1, "x": 0.5}, "degree must be >= 0, got -1"),
        (stability.hermite, {"degree": 2, "x": jnp.nan}, "x must be finite, got nan"),
        (coefficients, {"num_points": 0}, "num_points must be >= 1, got 0"),
        (coefficients, {"num_points": 3}, r"degree must be in \[0, 2\], got 3"),
        (grid, {"rho": 1.1}, r"rho must be in \[-1, 1\], got 1\.1"),
        (grid, {"num_points": 2000}, r"coordinates must be in \[0, 1.8.*\], got 2"),
        (stability.mehler_kernel, {"x": 1, "y": 1, "rho": -1}, r"rho must be in \(-1, 1\), got -1"),
        (partial(stability.concentration_degree, 0.2, 0.2, 0.5), {}, r"delta / .* \[0, 1\), got 1"),
        (stability.junta_bound, {"influence": 1, "epsilon": 0}, r"epsilon must be .* got 0"),
    ],
)
def test_messages(call, options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call(**options)
