"""Robertha with `hopfax.cpu.by_groups`, against all texts of a batch at once.

Train steps and logits of 32 rows from initial weights, padded to the same length.
"""

from unittest import mock

from experiments.benchmarks.harness import Program
from experiments.benchmarks.programs import (
    BATCH_SIZES,
    MAX_LENGTH,
    TrainSteps,
    fresh,
    full_rows,
    hopfax_forward,
    workload,
)
from hopfax.data import Encoded, bucketed
from hopfax.nn import attention

SECONDS, STEPS = 60, 4
SETTINGS = {
    f"{what}: {tokens} tokens": (what, tokens)
    for what in ("train step", "evaluation")
    for tokens in (32, MAX_LENGTH)
}
RATIOS = {"all at once / groups": None}


def programs(data_dir: str | None, what: str, tokens: int) -> dict[str, Program]:
    """The same program with and without groups."""

    def compiled() -> Program:
        if what == "evaluation":
            rows = full_rows(BATCH_SIZES["base"], tokens)
            return hopfax_forward("base", fresh("base", tokens), rows, tol=1e-4, max_steps=50)
        padded = workload(data_dir).padded
        rows = Encoded(padded.ids[..., :tokens], padded.lengths.clip(max=tokens), *padded[2:])
        program = TrainSteps(bucketed(rows, boundaries=(tokens,))).mean_step(STEPS)
        program[0][1]()  # compiles
        return program

    calls = {"groups": compiled()}
    with mock.patch.object(attention, "by_groups", lambda fn, *arrays, **_: fn(*arrays)):
        calls["all at once"] = compiled()
    return calls
