"""The linear layer of all models."""

from functools import partial
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from hopfax.nn.precision import Linear


def flat_dot_general(
    x: Float[Array, "*rows inputs"],
    kernel: Float[Array, "inputs outputs"],
    dimension_numbers: Any,
    **options: Any,
) -> Float[Array, "*rows outputs"]:
    """`jax.lax.dot_general` of `nnx.Linear`, with all rows along one axis.

    The product is the same. The kernel's gradient then sums over one axis instead of two (texts
    and tokens), which XLA's CPU compiler does without copying the incoming gradient into another
    order first.
    """
    del dimension_numbers  # those of nnx.Linear: the last axis with the kernel's first
    flat = x.reshape(-1, x.shape[-1])
    product = jax.lax.dot_general(flat, kernel, (((1,), (0,)), ((), ())), **options)
    return product.reshape(*x.shape[:-1], kernel.shape[-1])


linear = partial(
    Linear,
    kernel_init=nnx.initializers.normal(0.02),
    dot_general=flat_dot_general,  # pyright: ignore[reportArgumentType]
)
