"""Noise stability over a million Gaussian pairs, against PyTorch.

A ReLU network of width 128 with one output at rho 0.5, batches of 1024. Every estimate must be
within 5 standard errors of the closed form. "hopfax" evaluates as many inputs on arcs of four
points. Leave OMP_NUM_THREADS unset.
"""

from functools import partial
from typing import Any

import jax
import numpy as np

from experiments.benchmarks.harness import Program, torch_peer
from experiments.benchmarks.workloads import compiled
from hopfax.stability import noise_stability

RATIOS = {"PyTorch / hopfax": "≥ 3", "PyTorch / hopfax pairs": ""}
WIDTH, BATCH_SIZE, RHO = 128, 1024, 0.5


def programs(data_dir: str | None, num_samples: int = 1_000_000) -> dict[str, Program]:
    """Estimates that agree with the closed form."""
    calls: dict[str, Any] = {
        "hopfax": estimator(num_samples // 2, arc_points=4),
        "hopfax pairs": estimator(num_samples),
    }
    if peer := torch_peer():
        calls["PyTorch"] = partial(peer.stability, *network(), num_samples, RHO, BATCH_SIZE)
    estimates, exact = {name: call() for name, call in calls.items()}, exact_stability(RHO)
    for name, (mean, error) in estimates.items():
        if not abs(mean - exact) <= 5 * error:  # nan fails this comparison
            raise RuntimeError(f"{name}: {mean} is over 5 standard errors ({error}) from {exact}")
    return {**calls}


def network() -> tuple[np.ndarray, np.ndarray]:
    """Random weights of x -> relu(x @ hidden) @ readout, of variance one over their inputs."""
    rng = np.random.default_rng(0)
    hidden, readout = rng.standard_normal((WIDTH, WIDTH)), rng.standard_normal(WIDTH)
    return (hidden / WIDTH**0.5).astype(np.float32), (readout / WIDTH**0.5).astype(np.float32)


def exact_stability(rho: float) -> float:
    """Closed form for Gaussian inputs: arc-cosine kernel, Cho and Saul (2009), Eq. 6, degree 1."""
    hidden, readout = (np.asarray(weights, float) for weights in network())
    norms = np.linalg.norm(hidden, axis=0)
    angles = np.arccos(np.clip(rho * (hidden.T @ hidden) / np.outer(norms, norms), -1, 1))
    kernel = (np.sin(angles) + (np.pi - angles) * np.cos(angles)) / (2 * np.pi)
    return float(norms * readout @ kernel @ (norms * readout))


def estimator(num_samples: int, *, rho: float = RHO, arc_points: int = 2) -> Any:
    """`noise_stability` of the network, compiled: mean and standard error."""
    hidden, readout = network()
    fn = lambda x: jax.nn.relu(x @ hidden) @ readout  # noqa: E731
    options: Any = {"rho": rho, "arc_points": arc_points, "shape": (WIDTH,)}
    options |= {"num_samples": num_samples, "batch_size": BATCH_SIZE}
    program = compiled(partial(noise_stability, fn, **options), jax.random.key(0))
    return lambda: tuple(map(float, program()[:2]))


SETTINGS = {"1,000,000 pairs": programs}
