"""Train step with ESR, against the step without.

The mean step of an epoch of base Robertha in length buckets, with every entropy of
`hopfax.hopfield.eigen_entropy`, from the same weights.
"""

from typing import Any, get_args

from experiments.benchmarks.harness import Program
from experiments.benchmarks.workloads import TrainSteps, fresh, trained, workload
from hopfax import hopfield

SECONDS = 120
ENTROPIES: tuple[hopfield.Entropy, ...] = get_args(hopfield.Entropy)
GOALS = {"shannon": "≤ 1.3 (CPU), ≤ 1.15 (GPU)"}
RATIOS = {f"{entropy} / no ESR": GOALS.get(entropy) for entropy in ENTROPIES}
SETTINGS = {"initial weights": (False,), "trained weights": (True,)}


def programs(data_dir: str | None, use_trained: bool) -> dict[str, Program]:
    """The mean step of an epoch without ESR and with each entropy."""
    params = trained(data_dir) if use_trained else fresh("base")
    variants: dict[str, Any] = {"no ESR": {"esr_weight": 0.0}}
    variants |= {entropy: {"esr_entropy": entropy} for entropy in ENTROPIES}
    buckets = workload(data_dir).buckets
    return {
        name: TrainSteps(buckets, params=params, **variant).mean_step(4)
        for name, variant in variants.items()
    }
