"""Train step of Robertha, against PyTorch padded to 128.

The same model in both, ESR included, from the same initial weights; the gradient is implicit in
hopfax and through all updates in PyTorch. hopfax trains on length buckets (the mean step of an
epoch), and padded to 128 as in PyTorch. SST-2's texts have 13 tokens on average, so most of the
gain in buckets is padding that hopfax leaves out. Base takes 32 rows per step, large (BERT-base's
size) 4. "5 seeds" is a step of five models at once. Without `--data-dir` the rows are synthetic, of
SST-2's lengths.
"""

from functools import partial
from typing import Any

from experiments.benchmarks.harness import Program
from experiments.benchmarks.programs import TrainSteps, fresh, torch_peer, workload

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
