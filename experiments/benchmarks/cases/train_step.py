"""Train step of Robertha, against PyTorch padded to 128.

The same initial weights, with ESR; the gradient is implicit in hopfax and through all updates in
PyTorch. "In buckets": the mean step of an epoch in length buckets, whose texts have 13 tokens on
average. "5 seeds": a step of five models. Base takes 32 rows per step, large (BERT-base's size) 4.
"""

from functools import partial
from typing import Any

from experiments.benchmarks.harness import Program, torch_peer
from experiments.benchmarks.workloads import BATCH_SIZES, TrainSteps, fresh, workload

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
        model = peer.model_of(size, params, dropout=0.3)
        steps = peer.TrainSteps(model, rows.padded, batch_size=BATCH_SIZES[size])
        calls["PyTorch"] = [(1 / few, partial(steps.run, few))]
    return calls
