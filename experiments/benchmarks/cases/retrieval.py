"""Retrieval of attention heads, against PyTorch and against single-pass attention.

T updates of all queries and the read-out, two heads, without projections, at tolerance 0.
"adaptive": padded texts and at most 50 updates; both libraries stop once every query's relative
change is at most 1e-4. The gradient is implicit in hopfax and through all updates in PyTorch.
"fused": PyTorch's fused attention in each update. "T = ...": the heads, and base Robertha at 32
texts of 128 tokens (the paper's Table 4).
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from experiments.benchmarks import workloads
from experiments.benchmarks.harness import Program, torch_peer
from experiments.benchmarks.workloads import BETA, compiled
from hopfax.nn import HopfieldAttention

SECONDS = 0.5  # of a hundred settings: under ten minutes in all
STEPS, TOL = (5, 10, 20, 30), 1e-4  # Table 4's; the layer's
RATIOS = {
    "PyTorch loop / hopfax": "",
    "PyTorch fused / hopfax": "",
    **{f"T = {steps} / single pass": "" for steps in STEPS},
    "T = 5 / single pass": "≤ 1.15 (GPU)",
    "T = 50, adaptive / single pass": "≤ 1.5 (GPU)",
}
HEADS = 2
SCALE = 0.25  # keys of base Robertha's initial weights are about this large


def latencies(data_dir: str | None, *, make: Callable[..., Program]) -> dict[str, Program]:
    """Numbers of updates, of the heads or of the model."""
    calls = {"single pass": make(max_steps=0, tol=0.0)}
    calls |= {f"T = {steps}": make(max_steps=steps, tol=0.0) for steps in STEPS}
    return calls | {"T = 50, adaptive": make(max_steps=50, tol=TOL)}


def of_heads(**stop: Any) -> Program:
    """The heads of 32 texts of 128 tokens."""
    return retrieval(arrays(128, 64, 32), **stop)


def of_model(**stop: Any) -> Program:
    """Base Robertha with initial weights on these texts."""
    return workloads.forward("base", workloads.fresh("base"), workloads.full_texts(32, 128), **stop)


def against_torch(
    data_dir: str | None, *, shape: tuple[int, ...], adaptive: bool, **loop: Any
) -> dict[str, Program]:
    """The programs on one shape; `loop` is `max_steps` and `gradient`."""
    inputs = arrays(*shape)
    loop |= {"tol": TOL, "mask": lengths(*shape)} if adaptive else {}
    calls = {"hopfax": retrieval(inputs, **loop)}
    if peer := torch_peer():
        for name in ("loop", "fused"):
            calls[f"PyTorch {name}"] = peer.retrieval(inputs, fused=name == "fused", **loop)
    return {**calls}


def arrays(tokens: int, width: int, batch: int) -> np.ndarray:
    """Queries, keys and values (3, batch, heads, tokens, width)."""
    drawn = np.random.default_rng(0).standard_normal((3, batch, HEADS, tokens, width))
    return (SCALE * drawn).astype(np.float32)


def lengths(tokens: int, width: int, batch: int) -> np.ndarray:
    """The mask (batch, tokens) of texts of half to all tokens."""
    drawn = np.random.default_rng(1).integers(tokens // 2, tokens + 1, (batch, 1))
    return np.arange(tokens) < drawn


def retrieval(
    inputs: np.ndarray,
    *,
    max_steps: int,
    tol: float = 0.0,
    gradient: bool = False,
    mask: np.ndarray | None = None,
) -> Callable[[], Any]:
    """The layer's own retrieval, compiled; `max_steps = 0` is single-pass attention."""
    query, key, value = map(jnp.asarray, inputs)
    options: Any = {"beta": BETA, "tol": tol, "max_steps": max_steps, "rngs": nnx.Rngs(0)}
    layer = HopfieldAttention(HEADS * key.shape[-1], num_heads=HEADS, **options)
    real = jnp.ones((key.shape[0], key.shape[2]), bool) if mask is None else jnp.asarray(mask)

    def forward(key: jax.Array, value: jax.Array) -> jax.Array:
        return layer.attend_heads(query, key, value, real, real[:, None])[0]

    def both(key: jax.Array, value: jax.Array) -> Any:
        output, pull = jax.vjp(forward, key, value)
        return output, pull(output)

    return compiled(both if gradient else forward, key, value)


# Tokens, widths, batches and updates of the heads.
SHAPES = {
    "": ((32, 128, 512), (64, 128), (8, 64), (1, 10, 50)),
    "adaptive ": ((32, 64, 128), (32, 64), (8, 32), (50,)),
}
SETTINGS = {
    "latency of the heads": partial(latencies, make=of_heads),
    "latency of the model": partial(latencies, make=of_model),
}
for kind, sizes in SHAPES.items():
    for what, *shape, steps in product(("forward", "gradient"), *sizes):
        tokens, width, batch = shape
        title = f"{kind}{what}: {tokens} tokens, width {width}, batch {batch}"
        loop: Any = {"max_steps": steps, "gradient": what == "gradient", "adaptive": bool(kind)}
        SETTINGS[title if kind else f"{title}, T {steps}"] = partial(
            against_torch, shape=tuple(shape), **loop
        )
