"""Logits of Robertha at equal padding, against PyTorch.

32 texts of 128 tokens for base and 4 for large, with 7 iterations in every layer, and until
convergence (at most 50). The logits are compared before anything is timed.
"""

from typing import Any

import numpy as np

from experiments.benchmarks import workloads
from experiments.benchmarks.harness import Program, torch_peer
from experiments.benchmarks.workloads import BATCH_SIZES, MAX_LENGTH

RATIOS = {"PyTorch / hopfax": "≥ 1 (CPU)"}
SETTINGS = {
    f"{size}, {rows}, {end}": (size, rows, *stop)
    for size, rows in (
        ("base", "initial weights, real tokens only"),
        ("base", "trained weights, SST-2's lengths"),
        ("large", "initial weights, real tokens only"),
    )
    for end, stop in {"7 iterations": (0.0, 7), "until convergence": (1e-4, 50)}.items()
}


def programs(
    data_dir: str | None, size: str, which: str, tol: float, max_steps: int
) -> dict[str, Program]:
    """Forward passes that agree."""
    count = BATCH_SIZES[size]
    params, rows = workloads.fresh(size, MAX_LENGTH), workloads.full_rows(count, MAX_LENGTH)
    if which.startswith("trained"):
        padded = workloads.workload(data_dir).padded
        picks = np.random.default_rng(0).integers(0, len(padded.labels), count)
        params, rows = workloads.trained(data_dir), workloads.single_texts(padded, picks)
    stop: Any = {"tol": tol, "max_steps": max_steps}
    calls: dict[str, Any] = {"hopfax": workloads.hopfax_forward(size, params, rows, **stop)}
    if peer := torch_peer():
        calls["PyTorch"] = peer.forward(peer.model_of(size, params, **stop), rows)
    workloads.check_equal({name: call() for name, call in calls.items()})
    return calls
