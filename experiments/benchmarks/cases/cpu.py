"""CPU optimizations of `hopfax.cpu`: a train step with all, against all but one.

Steps on 32 rows from initial weights, every row padded to the same length.
"""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import jax

from experiments.benchmarks.harness import Program
from experiments.benchmarks.programs import MAX_LENGTH, VOCAB_SIZE, TrainSteps, workload
from hopfax import cpu
from hopfax.data import Encoded, bucketed
from hopfax.nn import precision, tinybert

SECONDS, STEPS = 90, 4
SETTINGS = {
    f"{title}: {tokens} tokens": (title, tokens)
    for title in ("TinyBERT", "Robertha")
    for tokens in (32, MAX_LENGTH)
}
LEFT_OUT: dict[str, Callable[..., Any]] = {
    "quick": lambda key: key,
    "by_groups": lambda fn, *arrays, **_: fn(*arrays),
    "flat_dot_general": jax.lax.dot_general,
}
RATIOS = {f"without {name} / with all": None for name in LEFT_OUT}


def programs(data_dir: str | None, title: str, tokens: int) -> dict[str, Program]:
    """Train steps with all optimizations, and with all but one."""
    padded = workload(data_dir).padded
    rows = Encoded(padded.ids[..., :tokens], padded.lengths.clip(max=tokens), *padded[2:])
    (bucket,) = bucketed(rows, boundaries=(tokens,))

    def compiled() -> Program:
        options = {} if title == "Robertha" else {"model": tinybert(VOCAB_SIZE, 2), "esr_weight": 0}
        program = TrainSteps([bucket], **options).mean_step(STEPS)
        program[0][1]()  # compiles
        return program

    calls = {"with all": compiled()}
    for name in LEFT_OUT:
        with ExitStack() as stack:
            leave_out(name, stack)
            calls[f"without {name}"] = compiled()
    return calls


def leave_out(name: str, stack: ExitStack) -> None:
    """Replaces a function of `hopfax.cpu` wherever it was imported."""
    optimized, plain = getattr(cpu, name), LEFT_OUT[name]
    for module in [each for key, each in sys.modules.items() if key.startswith("hopfax.")]:
        if getattr(module, name, None) is optimized:
            stack.enter_context(mock.patch.object(module, name, plain))
    if name == "flat_dot_general":  # a default of the linear layers
        stack.enter_context(mock.patch.dict(precision.linear.keywords, dot_general=plain))
