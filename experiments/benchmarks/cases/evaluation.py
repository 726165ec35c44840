"""Logits of Robertha at equal padding, against PyTorch.

32 texts of 128 tokens for base and 4 for large, with 7 iterations in every layer, and until
convergence (at most 50). The logits are compared before anything is timed.
"""

from typing import Any

import numpy as np

from experiments.benchmarks.harness import Program
from experiments.benchmarks.programs import (
    BATCH_SIZES,
    MAX_LENGTH,
    PaddedRows,
    check_equal,
    fresh,
    full_rows,
    hopfax_forward,
    torch_peer,
    trained,
    workload,
)

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
    params, rows = fresh(size, MAX_LENGTH), full_rows(BATCH_SIZES[size], MAX_LENGTH)
    if which.startswith("trained"):
        padded = workload(data_dir).padded
        picks = np.random.default_rng(0).integers(0, len(padded.labels), BATCH_SIZES[size])
        params, rows = trained(data_dir), PaddedRows(padded.ids[picks, 0], padded.lengths[picks, 0])
    inputs, stop = (size, params, rows), {"tol": tol, "max_steps": max_steps}
    calls: dict[str, Any] = {"hopfax": hopfax_forward(*inputs, **stop)}
    if peer := torch_peer():
        calls["PyTorch"] = peer.forward(*inputs, **stop)
    check_equal({name: call() for name, call in calls.items()})
    return calls
