"""Train step of Robertha, against PyTorch padded to 128, and against one without ESR.

The same initial weights, with ESR; the gradient is implicit in hopfax and through all updates in
PyTorch. "In buckets": the mean step of an epoch in length buckets, whose texts have 13 tokens on
average. "5 seeds": a step of five models. Base takes 32 rows per step, large (BERT-base's size) 4.
"shannon" and "no ESR": the mean step of an epoch with and without ESR.
"""

from functools import partial
from typing import Any

from experiments.benchmarks import workloads
from experiments.benchmarks.harness import Program, torch_peer
from experiments.benchmarks.workloads import mean_step

SECONDS = 120
RATIOS = {
    "PyTorch / hopfax in buckets": "≥ 5",
    "PyTorch / hopfax padded": "≥ 1",
    "hopfax 5 seeds / hopfax in buckets": "",
    "shannon / no ESR": "≤ 1.3 (CPU), ≤ 1.15 (GPU)",
}


def programs(data_dir: str | None, *, size: str, steps: int) -> dict[str, Program]:
    """Train steps of one size from the same weights, `steps` in a call."""
    padded, params = workloads.padded(data_dir), workloads.fresh(size)
    step: Any = partial(mean_step, params=params, size=size)
    calls: dict[str, Program] = {"hopfax padded": step([padded], steps)}
    if size == "base":
        buckets = workloads.buckets(data_dir)
        calls["hopfax in buckets"] = step(buckets, 4 * steps)
        calls["hopfax 5 seeds"] = step(buckets, steps, seeds=5)
    if peer := torch_peer():
        model = peer.model_of(size, params, dropout=0.3)
        run = peer.train_steps(model, padded, batch_size=workloads.BATCH_SIZES[size])
        calls["PyTorch"] = [(1 / steps, partial(run, steps))]
    return calls


def esr(data_dir: str | None, *, use_trained: bool) -> dict[str, Program]:
    """The mean step of an epoch with and without ESR."""
    params = workloads.trained(data_dir) if use_trained else workloads.fresh("base")
    step = partial(mean_step, workloads.buckets(data_dir), 4, params=params)
    return {"no ESR": step(esr_weight=0.0), "shannon": step()}


SETTINGS = {
    "base, initial weights": partial(programs, size="base", steps=2),
    "large, initial weights": partial(programs, size="large", steps=1),
    "ESR: initial weights": partial(esr, use_trained=False),
    "ESR: trained weights": partial(esr, use_trained=True),
}
