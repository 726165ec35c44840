"""Train step of Robertha, against PyTorch padded to 128.

The same model in both, with ESR, from the same initial weights; the gradient is implicit in hopfax
and through all updates in PyTorch. "In buckets": the mean step of an epoch in length buckets. As
texts have 13 tokens on average, most of its gain is padding left out. "5 seeds": a step of five
models. Base takes 32 rows per step, large (BERT-base's size, padded only) 4. Rows have SST-2's
lengths.
"""

from functools import partial
from typing import Any

from experiments.benchmarks.harness import Program, torch_peer
from experiments.benchmarks.workloads import TrainSteps, fresh, workload

SECONDS, SEEDS = 120, (5, 20)
RATIOS = {
    "PyTorch / hopfax in buckets": "≥ 5",
    "PyTorch / hopfax padded": "≥ 1",
    **{f"hopfax {seeds} seeds / hopfax in buckets": None for seeds in SEEDS},
}
SETTINGS = {f"{size}, initial weights": (size,) for size in ("base", "large")}


def programs(data_dir: str | None, size: str) -> dict[str, Program]:
    """Train steps of one size from the same weights."""
    rows, params = workload(data_dir), fresh(size)
    few = 2 if size == "base" else 1  # steps per call
    step: Any = partial(TrainSteps, params=params, size=size)
    calls: dict[str, Program] = {"hopfax padded": step([rows.padded]).mean_step(few)}
    if size == "base":
        calls["hopfax in buckets"] = step(rows.buckets).mean_step(4 * few)
        for seeds in SEEDS:
            calls[f"hopfax {seeds} seeds"] = step(rows.buckets, seeds=seeds).mean_step(few)
    if peer := torch_peer():
        calls["PyTorch"] = [(1 / few, partial(peer.TrainSteps(size, params, rows.padded).run, few))]
    return calls
