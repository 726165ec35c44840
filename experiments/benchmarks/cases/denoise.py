"""Retrieval of 4,096 noisy tokens from a vocabulary, against PyTorch and one matrix product.

MiniLM's sizes, float32, known noise level. "hopfax" returns the posterior mean, the likeliest
pattern and its probability, "hopfax, mean" the mean only. PyTorch computes the mean as product,
softmax and product over all patterns, or in blocks of queries that fit the caches. "product" is the
first of the two products. "bfloat16": patterns in bfloat16. Other means must agree.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.harness import Program, torch_peer
from experiments.benchmarks.workloads import check_equal, compiled
from hopfax import hopfield

RATIOS = {
    "hopfax / product": "≤ 1.3",
    "hopfax, mean / product": "",
    "bfloat16 / product": "",
    "PyTorch / hopfax, mean": "≥ 1",
    "PyTorch in blocks / hopfax, mean": "",
}
SIGMA = 3.0  # times the patterns' standard deviation: -9.5 dB
BLOCK_SIZE = 256  # queries, for PyTorch

retrieve = jax.vmap(partial(hopfield.denoise, sigma=SIGMA), in_axes=(0, None))


def programs(
    data_dir: str | None, *, queries: int, patterns: int, width: int
) -> dict[str, Program]:
    """All results, posterior means, and the product alone."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((patterns, width), np.float32)
    noise = SIGMA * rng.standard_normal((queries, width), np.float32)
    noisy = table[rng.integers(0, patterns, queries)] + noise

    def means(noisy: jax.Array, table: jax.Array) -> jax.Array:
        return retrieve(noisy, table).value

    def product(noisy: jax.Array, table: jax.Array) -> jax.Array:
        # In full float32 as in `denoise`: GPUs round the factors by default.
        return jnp.matmul(noisy, table.T, precision="highest")

    calls: dict[str, Any] = {"hopfax, mean": compiled(means, noisy, table)}
    if peer := torch_peer():
        calls["PyTorch"] = peer.denoise(noisy, table, SIGMA, block_size=queries)
        calls["PyTorch in blocks"] = peer.denoise(noisy, table, SIGMA, block_size=BLOCK_SIZE)
    # Arrays of jax are converted by NumPy, tensors of a GPU only by PyTorch.
    values = {name: call() for name, call in calls.items()}
    check_equal({n: np.asarray(x.cpu() if hasattr(x, "cpu") else x) for n, x in values.items()})
    return calls | {
        "hopfax": compiled(retrieve, noisy, table),
        "bfloat16": compiled(means, noisy, jnp.asarray(table, jnp.bfloat16)),
        "product": compiled(product, noisy, table),
    }


SETTINGS = {"30,522 patterns": partial(programs, queries=4096, patterns=30522, width=384)}
