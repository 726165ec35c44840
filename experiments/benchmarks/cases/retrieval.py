"""Retrieval of attention heads, against PyTorch and against single-pass attention.

T updates of all queries and the read-out, two heads, without projections, at tolerance 0. The
gradient is implicit in hopfax and through all T updates in PyTorch. "fused": PyTorch's fused
attention, T + 1 times. "T = ...": the heads, and base Robertha at 32 texts of 128 tokens (the
paper's Table 4); adaptive stops at a relative change of 1e-4.
"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx

from experiments.benchmarks.harness import Program, torch_peer
from experiments.benchmarks.workloads import BETA, compiled, fresh, full_rows, hopfax_forward
from hopfax.nn import HopfieldAttention

SECONDS = 2
STEPS = (5, 10, 20, 30)  # Table 4's
RATIOS = {
    "PyTorch loop / hopfax": None,
    "PyTorch fused / hopfax": None,
    **{f"T = {steps} / single pass": None for steps in STEPS},
    "T = 5 / single pass": "≤ 1.15 (GPU)",
    "T = 50, adaptive / single pass": "≤ 1.5 (GPU)",
}
HEADS = 2
SCALE = 0.25  # keys of base Robertha's initial weights are about this large

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


def latencies(whole_model: bool) -> dict[str, Program]:
    """Numbers of updates, of the heads or of the model."""
    make: Any = partial(hopfax_call, arrays(tokens=128, width=64, batch=32))
    if whole_model:
        make = partial(hopfax_forward, "base", fresh("base"), full_rows(32, 128))
    calls = {"single pass": make(max_steps=0, tol=0.0)}
    calls |= {f"T = {steps}": make(max_steps=steps, tol=0.0) for steps in STEPS}
    return calls | {"T = 50, adaptive": make(max_steps=50, tol=1e-4)}


def against_torch(gradient: bool, tokens: int, width: int, batch: int, steps: int) -> Any:
    """The programs on one shape."""
    inputs = arrays(tokens=tokens, width=width, batch=batch)
    calls = {"hopfax": hopfax_call(inputs, max_steps=steps, gradient=gradient)}
    if peer := torch_peer():
        calls["PyTorch loop"] = peer.retrieval(inputs, steps, gradient, fused=False)
        calls["PyTorch fused"] = peer.retrieval(inputs, steps, gradient, fused=True)
    return calls


SETTINGS: dict[str, tuple[Any, ...]] = {
    "latency of the heads": (latencies, False),
    "latency of the model": (latencies, True),
} | {
    f"{what}: {tokens} tokens, width {width}, batch {batch}, T {steps}": (
        against_torch, what == "gradient", tokens, width, batch, steps
    )
    for what, tokens, width, batch, steps in itertools.product(
        ("forward", "gradient"), (32, 128, 512), (64, 128), (8, 64), (1, 5, 10, 20, 50)
    )
}  # fmt: skip


def programs(data_dir: str | None, make: Any, *arguments: Any) -> dict[str, Program]:
    """Latencies, or forward and gradient over tokens, head width, batch and T."""
    return make(*arguments)


def arrays(*, tokens: int, width: int, batch: int) -> Arrays:
    """Queries, keys and values (batch, heads, tokens, width)."""
    drawn = np.random.default_rng(0).standard_normal((3, batch, HEADS, tokens, width))
    query, key, value = (SCALE * drawn).astype(np.float32)
    return query, key, value


def hopfax_call(
    inputs: Arrays, *, max_steps: int, tol: float = 0.0, gradient: bool = False
) -> Callable[[], Any]:
    """The layer's own retrieval, compiled; `max_steps = 0` is single-pass attention."""
    query, key, value = map(jax.numpy.asarray, inputs)
    options: Any = {"beta": BETA, "tol": tol, "max_steps": max_steps, "rngs": nnx.Rngs(0)}
    layer = HopfieldAttention(HEADS * key.shape[-1], num_heads=HEADS, **options)
    mask = jax.numpy.ones((key.shape[0], key.shape[2]), bool)

    def forward(key: jax.Array, value: jax.Array) -> jax.Array:
        return layer.attend_heads(query, key, value, mask, mask[:, None])[0]

    def both(key: jax.Array, value: jax.Array) -> Any:
        output, pull = jax.vjp(forward, key, value)
        return output, pull(output)

    return compiled(both if gradient else forward, key, value)
