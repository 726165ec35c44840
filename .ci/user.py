"""A user's program, to check that the installed package's types work."""

import jax
from jax import Array

from hopfax import hopfield, stability


def loss(keys: Array) -> Array:
    """Returns the ESR penalty of some keys."""
    return hopfield.esr_penalty(keys, target=0.35)


patterns: Array = jax.random.normal(jax.random.key(0), (4, 8))
state: Array = hopfield.retrieve(patterns[0], patterns, beta=1.0).value
estimate = stability.noise_stability(
    lambda x: x[0], jax.random.key(1), shape=(3,), rho=0.9, num_samples=100
)
print(state.shape, float(estimate.mean), jax.grad(loss)(patterns).shape)
