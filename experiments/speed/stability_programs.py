"""Noise stability of a two-layer ReLU network, as calls: hopfax, NumPy and PyTorch; and exactly."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hopfax.stability import Estimate, noise_stability

WIDTH = 128
RHO = 0.5
# On the CPU it was chosen on, the fastest for hopfax, NumPy and PyTorch alike, though from 512 to
# 4096 none of them changes by more than a tenth.
BATCH_SIZE = 1024


class Network(NamedTuple):
    """Weights of x -> relu(x @ hidden) @ readout."""

    hidden: np.ndarray
    readout: np.ndarray

    def __call__(self, x: jax.Array) -> jax.Array:
        """The output at one input, in jax."""
        return jax.nn.relu(x @ self.hidden) @ self.readout


class Found(NamedTuple):
    """Mean and standard error, a number each or one per rho, and copies per sample."""

    mean: Any
    standard_error: Any
    copies: int = 2


class Compiled:
    """`noise_stability` of a network, compiled beforehand; a call returns when the work is done.

    Args:
        network: The function.
        rho: One correlation, or several.
        num_samples: Pairs to pay for.
        copies: See `noise_stability`.
        impl: The key's generator: `threefry2x32` is jax's default.
    """

    def __init__(
        self,
        network: Network,
        *,
        rho: float | Sequence[float] = RHO,
        num_samples: int,
        copies: int | None = None,
        impl: str = "threefry2x32",
    ):
        self.rho = jnp.asarray(rho, jnp.float32)
        self._key = jax.random.key(0, impl=impl)

        def estimate(key: jax.Array, rho: jax.Array) -> Estimate:
            return noise_stability(
                # Not the tuple itself, since programs are looked up by hash and arrays have none.
                lambda x: network(x),
                key,
                shape=(WIDTH,),
                rho=rho,
                num_samples=num_samples,
                copies=copies,
                batch_size=BATCH_SIZE,
            )

        start = time.perf_counter()
        self._program = jax.jit(estimate).lower(self._key, self.rho).compile()
        self.compile_seconds = time.perf_counter() - start

    def __call__(self) -> Found:
        """One estimate."""
        found = jax.block_until_ready(self._program(self._key, self.rho))
        mean, error = np.asarray(found.mean, float), np.asarray(found.standard_error, float)
        return Found(mean.tolist(), error.tolist(), int(found.copies))

    def temporary_bytes(self) -> int:
        """What the program needs beside its arguments and results."""
        analysis = self._program.memory_analysis()
        if analysis is None:
            raise RuntimeError(f"XLA reports no memory on {jax.default_backend()}")
        return analysis.temp_size_in_bytes


def network(seed: int = 0) -> Network:
    """A random network of width `WIDTH`, weights of variance one over their inputs."""
    rng = np.random.default_rng(seed)
    hidden, readout = rng.standard_normal((WIDTH, WIDTH)), rng.standard_normal(WIDTH)
    return Network(*((weights / WIDTH**0.5).astype(np.float32) for weights in (hidden, readout)))


def exact_stability(network: Network, rho: float | Sequence[float] | np.ndarray) -> np.ndarray:
    """Closed form for Gaussian inputs, from the arc-cosine kernel between hidden units.

    References:
        Cho and Saul (2009), Kernel Methods for Deep Learning, Eq. 6, degree 1.
    """
    hidden, readout = (np.asarray(weights, float) for weights in network)
    norms = np.linalg.norm(hidden, axis=0)
    cosines = np.multiply.outer(np.asarray(rho), hidden.T @ hidden / np.outer(norms, norms))
    angles = np.arccos(np.clip(cosines, -1, 1))
    kernel = (np.sin(angles) + (np.pi - angles) * np.cos(angles)) / (2 * np.pi)
    weights = norms * readout
    return np.einsum("...ij,i,j->...", kernel, weights, weights)


def numpy_stability(network: Network, *, num_samples: int, rho: float = RHO) -> Found:
    """The same in NumPy: float32 batches in buffers that are used again, sums in float64."""
    rng = np.random.default_rng(0)
    size = min(BATCH_SIZE, num_samples)
    inputs, scaled = np.empty((2, size, WIDTH), np.float32), np.empty((size, WIDTH), np.float32)
    hidden = np.empty((2 * size, WIDTH), np.float32)
    own = np.float32((1 - rho**2) ** 0.5)
    total = squares = 0.0
    for start in range(0, num_samples, size):
        rng.standard_normal(out=inputs, dtype=np.float32)
        first, second = inputs
        second *= own
        second += np.multiply(first, np.float32(rho), out=scaled)
        np.matmul(inputs.reshape(2 * size, WIDTH), network.hidden, out=hidden)
        left, right = (np.maximum(hidden, 0, out=hidden) @ network.readout).reshape(2, size)
        products = (left * right)[: num_samples - start].astype(float)
        total += products.sum()
        squares += float(products @ products)
    return _found(total, squares, num_samples)


def torch_stability(network: Network, *, num_samples: int, rho: float = RHO) -> Found:
    """The same in PyTorch, eager, on a GPU where there is one.

    Raises:
        ImportError: Without PyTorch.
    """
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    size = min(BATCH_SIZE, num_samples)
    with torch.inference_mode():
        weights, readout = (torch.from_numpy(array).to(device) for array in network)
        inputs = torch.empty(2, size, WIDTH, device=device)
        # On the device too, so that no batch waits for the one before.
        total = torch.zeros((), dtype=torch.float64, device=device)
        squares = torch.zeros_like(total)
        for start in range(0, num_samples, size):
            inputs.normal_()
            inputs[1].mul_((1 - rho**2) ** 0.5).add_(inputs[0], alpha=rho)
            left, right = (inputs @ weights).relu_() @ readout
            products = (left * right)[: num_samples - start].double()
            total += products.sum()
            squares += products @ products
        return _found(total.item(), squares.item(), num_samples)


def _found(total: float, squares: float, count: int) -> Found:
    mean = total / count
    return Found(mean, ((squares / count - mean**2) / (count - 1)) ** 0.5)
