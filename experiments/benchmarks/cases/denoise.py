"""Retrieval of 4,096 noisy tokens from a vocabulary, against PyTorch and one matrix product.

MiniLM's sizes, float32, known noise level. "hopfax" returns the posterior mean, the likeliest
pattern and its probability, "hopfax, mean" the mean only. PyTorch computes the mean as product,
softmax and product over all patterns, or in blocks of queries that fit the caches. "product" is the
first of the two products. "bfloat16": patterns in bfloat16. "8 candidates": the mean of the eight
likeliest patterns, without the second product. Errors are relative to the means in float32.
Temporary memory is XLA's plan (all scores: 500 MB), peak memory the growth of a fresh process
during one call.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.cases.memory import peak_bytes, temporary_bytes
from experiments.benchmarks.harness import Program, torch_peer
from experiments.benchmarks.workloads import check_equal, compiled
from hopfax import hopfield

RATIOS = {
    "hopfax / product": "≤ 1.3",
    "hopfax, mean / product": None,
    "bfloat16 / product": None,
    "error of bfloat16": None,
    "8 candidates / product": None,
    "error of 8 candidates": None,
    "PyTorch / hopfax, mean": "≥ 1",
    "PyTorch in blocks / hopfax, mean": None,
    "temporary memory, MB": "≤ 100",
    "temporary memory of the mean, MB": None,
    "peak memory, MB": None,
    "PyTorch's peak memory, MB": None,
    "peak memory of PyTorch in blocks, MB": None,
}
SETTINGS = {"30,522 patterns": (4096, 30522, 384)}
SIGMA = 3.0  # times the patterns' standard deviation: -9.5 dB
BLOCK_SIZE = 256  # queries, for PyTorch

Arrays = tuple[np.ndarray, np.ndarray]


def arrays(queries: int, patterns: int, width: int) -> Arrays:
    """Noisy queries and the patterns they come from."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((patterns, width), np.float32)
    noise = SIGMA * rng.standard_normal((queries, width), np.float32)
    return table[rng.integers(0, patterns, queries)] + noise, table


def retrieve(queries: jax.Array, table: jax.Array) -> hopfield.Denoised:
    """All results of all queries."""
    return jax.vmap(lambda query: hopfield.denoise(query, table, sigma=SIGMA))(queries)


def means(queries: jax.Array, table: jax.Array) -> jax.Array:
    """Posterior means of all queries."""
    return retrieve(queries, table).value


def from_candidates(queries: jax.Array, table: jax.Array) -> jax.Array:
    """Means of the eight likeliest patterns."""

    def one(query: jax.Array) -> jax.Array:
        likeliest = hopfield.candidates(query, table, count=8, sigma=SIGMA)
        return jax.nn.softmax(likeliest.log_likelihood) @ table[likeliest.index]

    return jax.vmap(one)(queries)


def product(queries: jax.Array, table: jax.Array) -> jax.Array:
    """All inner products, in full float32 as in `denoise`: GPUs round the factors by default."""
    return jnp.matmul(queries, table.T, precision="highest")


def peaks(*sizes: int) -> dict[str, float]:
    """Growth of fresh processes during one call, in megabytes; nothing on a GPU."""
    if not sys.platform.startswith("linux") or jax.default_backend() != "cpu":
        return {}
    calls = {"peak memory, MB": f"compiled(retrieve, *arrays{sizes})"}
    if torch_peer():
        theirs = f"torch_peer().denoise(*arrays{sizes}, SIGMA"
        calls["PyTorch's peak memory, MB"] = f"{theirs})"
        calls["peak memory of PyTorch in blocks, MB"] = f"{theirs}, block_size=BLOCK_SIZE)"
    setup, line = f"from {__name__} import *; call = ", "jax.block_until_ready(call())"
    return {name: peak_bytes(setup + make, line) / 1e6 for name, make in calls.items()}


def programs(data_dir: str | None, *sizes: int) -> dict[str, Program | float]:
    """Posterior means that agree or have an error, the product alone, and memory in megabytes."""
    inputs = queries, table = arrays(*sizes)
    calls: dict[str, Any] = {"hopfax, mean": compiled(means, *inputs)}
    if peer := torch_peer():
        calls["PyTorch"] = peer.denoise(*inputs, SIGMA)
        calls["PyTorch in blocks"] = peer.denoise(*inputs, SIGMA, block_size=BLOCK_SIZE)
    # Arrays of jax are converted by NumPy, tensors of a GPU only by PyTorch.
    values = {name: call() for name, call in calls.items()}
    check_equal({n: np.asarray(x.cpu() if hasattr(x, "cpu") else x) for n, x in values.items()})
    approximate = {
        "bfloat16": compiled(means, queries, jnp.asarray(table, jnp.bfloat16)),
        "8 candidates": compiled(from_candidates, *inputs),
    }
    exact = values["hopfax, mean"]
    errors = {
        f"error of {name}": float(jnp.linalg.norm(call() - exact) / jnp.linalg.norm(exact))
        for name, call in approximate.items()
    }
    planned = {
        "temporary memory, MB": temporary_bytes(retrieve, *inputs) / 1e6,
        "temporary memory of the mean, MB": temporary_bytes(means, *inputs) / 1e6,
    }
    calls |= {"hopfax": compiled(retrieve, *inputs), "product": compiled(product, *inputs)}
    return {**calls, **approximate, **errors, **planned, **peaks(*sizes)}
