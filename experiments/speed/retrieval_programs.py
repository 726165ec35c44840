"""Retrieval and read-out of attention heads in both programs, between the projections.

All take queries, keys and values (batch, heads, tokens, width), make `steps` updates and read out:
`steps = 0` is single-pass attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx

from hopfax.nn import HopfieldAttention
from hopfax.nn.attention import Implementation

BETA = 15.0
HEADS = 2
# Keys of a fresh base model are about this large.
SCALE = 0.25

Call = Callable[[], Any]


def arrays(batch: int, tokens: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys and values."""
    drawn = np.random.default_rng(0).standard_normal((3, batch, HEADS, tokens, width))
    query, key, value = (SCALE * drawn).astype(np.float32)
    return query, key, value


def flops(name: str, *, batch: int, tokens: int, width: int, steps: int) -> float:
    """Additions and multiplications of the products, of a forward pass as the program does it.

    By XLA short texts iterate scores, by one product of n x n with n x n an update; long ones, and
    the other programs, states, by two of n x n with n x d.
    """
    product = 2.0 * batch * HEADS * tokens**2
    if name == "hopfax XLA" and steps and tokens < 2 * width:
        return product * (3 * width + steps * tokens)
    return product * 2 * width * (steps + 1)


def hopfax_call(
    given: tuple[np.ndarray, ...],
    *,
    steps: int,
    tol: float = 0.0,
    gradient: bool = False,
    implementation: Implementation = "xla",
) -> Call:
    """The layer's own retrieval, compiled; with its gradient to keys and values, if asked for."""
    width = given[0].shape[-1]
    layer = HopfieldAttention(
        HEADS * width,
        num_heads=HEADS,
        beta=BETA,
        tol=tol,
        max_steps=steps,
        implementation=implementation if steps else "xla",
        rngs=nnx.Rngs(0),
    )
    query, key, value = map(jax.numpy.asarray, given)
    mask = jax.numpy.ones((key.shape[0], key.shape[2]), bool)

    def forward(key: jax.Array, value: jax.Array) -> jax.Array:
        return layer.attend(query, key, value, mask)[0]

    def both(key: jax.Array, value: jax.Array) -> Any:
        found, pull = jax.vjp(forward, key, value)
        return found, pull(found)

    compiled = jax.jit(both if gradient else forward).lower(key, value).compile()
    return lambda: jax.block_until_ready(compiled(key, value))


def torch_call(
    given: tuple[np.ndarray, ...], *, steps: int, fused: bool, gradient: bool = False
) -> Call:
    """PyTorch's loop: products and softmax, or its fused attention called `steps + 1` times."""
    import torch
    from torch.nn import functional as F

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    query, key, value = (torch.from_numpy(array).to(device) for array in given)
    scale = BETA * key.shape[-1] ** -0.5
    key.requires_grad_(gradient)
    value.requires_grad_(gradient)

    def read(state: Any, value: Any) -> Any:
        if fused:
            return F.scaled_dot_product_attention(state, key, value, scale=scale)
        return torch.softmax(scale * (state @ key.mT), -1) @ value

    def run() -> Any:
        state = query
        for _ in range(steps):
            state = read(state, key)
        found = read(state, value)
        if gradient:
            found = found.detach(), torch.autograd.grad(found, (key, value), found.detach())
        if device.type == "cuda":
            torch.cuda.synchronize()
        return found

    def inferred() -> Any:
        with torch.inference_mode():
            return run()

    return run if gradient else inferred


def peak_call(program: str, size: int) -> Call:
    """A product of two `size` x `size` matrices: as fast as multiplying gets."""
    given = np.random.default_rng(0).standard_normal((2, size, size)).astype(np.float32)
    if program == "jax":
        one, other = map(jax.numpy.asarray, given)
        product = jax.jit(lambda a, b: a @ b)
        return lambda: jax.block_until_ready(product(one, other))
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    first, second = (torch.from_numpy(array).to(device) for array in given)

    def run() -> Any:
        with torch.inference_mode():
            found = first @ second
        if device.type == "cuda":
            torch.cuda.synchronize()
        return found

    return run
