"""CPU optimizations of `hopfax.cpu`: a train step with all, against all but one.

Steps on 32 rows of SST-2's lengths, padded to one length, from initial weights: one seed of base
models, and three seeds of small models, as in the default run of `robustness`.
"""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest import mock

import jax

from experiments.benchmarks.harness import Program
from experiments.benchmarks.workloads import ESR_WEIGHT, MAX_LENGTH, VOCAB_SIZE, mean_step, padded
from hopfax import cpu
from hopfax.nn import precision, robertha, tinybert

SECONDS, STEPS = 90, 4
LEFT_OUT: dict[str, Callable[..., Any]] = {
    "fast_key": lambda key: key,
    "group_size": lambda texts, **_: texts,
    "flat_dot_general": jax.lax.dot_general,
}
RATIOS = {f"without {name} / with all": "" for name in LEFT_OUT}
MODELS: dict[str, Any] = {"TinyBERT": tinybert, "Robertha": robertha}
SMALL = {"vocab_size": 512, "width": 64, "ff_width": 256, "max_length": 16}


def programs(
    data_dir: str | None, *, name: str, tokens: int, seeds: int = 1, **sizes: int
) -> dict[str, Program]:
    """Train steps with all optimizations, and with all but one."""
    sizes = {"vocab_size": VOCAB_SIZE, "num_outputs": 2, **sizes}
    options: Any = {"seeds": seeds, "esr_weight": ESR_WEIGHT if name == "Robertha" else 0.0}
    bucket = padded(data_dir, tokens)
    bucket = bucket._replace(ids=bucket.ids % sizes["vocab_size"])
    calls: dict[str, Program] = {}
    for left_out in (None, *LEFT_OUT):
        with ExitStack() as stack:
            if left_out:
                leave_out(left_out, stack)
            program = mean_step([bucket], STEPS, model=MODELS[name](**sizes), **options)
            program[0][1]()  # compiles
        calls[f"without {left_out}" if left_out else "with all"] = program
    return calls


def leave_out(name: str, stack: ExitStack) -> None:
    """Replaces a function of `hopfax.cpu` wherever it was imported."""
    optimized, plain = getattr(cpu, name), LEFT_OUT[name]
    for module in [each for key, each in sys.modules.items() if key.startswith("hopfax.")]:
        if getattr(module, name, None) is optimized:
            stack.enter_context(mock.patch.object(module, name, plain))
    if name == "flat_dot_general":  # a default of the linear layers
        stack.enter_context(mock.patch.dict(precision.linear.keywords, dot_general=plain))


SETTINGS = {
    f"{name}: {tokens} tokens": partial(programs, name=name, tokens=tokens)
    for name in MODELS
    for tokens in (32, MAX_LENGTH)
} | {
    f"three seeds of small {name}: 16 tokens": partial(
        programs, name=name, tokens=16, seeds=3, **SMALL
    )
    for name in MODELS
}
