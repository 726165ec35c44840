"""Logits of Robertha at equal padding, against PyTorch.

32 texts of 128 tokens for base and 4 for large, with 7 iterations in every layer, and until
convergence (at most 50). The logits are compared before anything is timed.
"""

from functools import partial
from typing import Any

import numpy as np

from experiments.benchmarks import workloads
from experiments.benchmarks.harness import Program, torch_peer
from experiments.benchmarks.workloads import BATCH_SIZES, MAX_LENGTH

RATIOS = {"PyTorch / hopfax": "≥ 1 (CPU)"}
STOPS = {
    "7 iterations": {"tol": 0.0, "max_steps": 7},
    "until convergence": {"tol": 1e-4, "max_steps": 50},
}


def programs(data_dir: str | None, *, size: str, rows: str, **stop: Any) -> dict[str, Program]:
    """Forward passes that agree."""
    count = BATCH_SIZES[size]
    params, texts = workloads.fresh(size), workloads.full_texts(count, MAX_LENGTH)
    if rows.startswith("trained"):
        padded = workloads.padded(data_dir)
        picks = np.random.default_rng(0).integers(0, len(padded.labels), count)
        params, texts = workloads.trained(data_dir), workloads.single_texts(padded, picks)
    calls: dict[str, Any] = {"hopfax": workloads.forward(size, params, texts, **stop)}
    if peer := torch_peer():
        calls["PyTorch"] = peer.forward(peer.model_of(size, params, **stop), texts)
    workloads.check_equal({name: call() for name, call in calls.items()})
    return calls


SETTINGS = {
    f"{size}, {rows}, {end}": partial(programs, size=size, rows=rows, **stop)
    for size, rows in (
        ("base", "initial weights, real tokens only"),
        ("base", "trained weights, SST-2's lengths"),
        ("large", "initial weights, real tokens only"),
    )
    for end, stop in STOPS.items()
}
