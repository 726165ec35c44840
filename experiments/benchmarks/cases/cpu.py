"""CPU optimizations of `hopfax.cpu`: a train step with all, against all but one.

Steps on 32 rows of SST-2's lengths, padded to one length, from initial weights: one seed of base
models, and three seeds of small models, as in the default run of `robustness`.
"""

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any
from unittest import mock

import jax

from experiments.benchmarks.harness import Program
from experiments.benchmarks.workloads import MAX_LENGTH, VOCAB_SIZE, TrainSteps, workload
from hopfax import cpu
from hopfax.data import Encoded, bucketed
from hopfax.nn import precision, robertha, tinybert

SECONDS, STEPS = 90, 4
# Builder, and options of the training steps.
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "TinyBERT": (tinybert, {"esr_weight": 0.0}),
    "Robertha": (robertha, {}),
}
# Number of seeds, size of the vocabulary, options of the model.
BASE: tuple[int, int, dict[str, int]] = (1, VOCAB_SIZE, {})
SMALL = (3, 512, {"width": 64, "ff_width": 256, "max_length": 16})
SETTINGS = {
    f"{title}: {tokens} tokens": (title, tokens, *BASE)
    for title in MODELS
    for tokens in (32, MAX_LENGTH)
} | {f"three seeds of small {title}: 16 tokens": (title, 16, *SMALL) for title in MODELS}
LEFT_OUT: dict[str, Callable[..., Any]] = {
    "quick": lambda key: key,
    "by_groups": lambda fn, *arrays, **_: fn(*arrays),
    "flat_dot_general": jax.lax.dot_general,
}
RATIOS = {f"without {name} / with all": None for name in LEFT_OUT}


def programs(
    data_dir: str | None,
    title: str,
    tokens: int,
    seeds: int,
    vocab_size: int,
    options: Mapping[str, Any],
) -> dict[str, Program]:
    """Train steps with all optimizations, and with all but one."""
    padded = workload(data_dir).padded
    ids, lengths = padded.ids[..., :tokens] % vocab_size, padded.lengths.clip(max=tokens)
    buckets = bucketed(Encoded(ids, lengths, *padded[2:]), boundaries=(tokens,))
    build, training = MODELS[title]
    calls: dict[str, Program] = {}
    for name in (None, *LEFT_OUT):
        with ExitStack() as stack:
            if name:
                leave_out(name, stack)
            model = build(vocab_size, 2, **options)
            program = TrainSteps(buckets, model=model, seeds=seeds, **training).mean_step(STEPS)
            program[0][1]()  # compiles
            calls[f"without {name}" if name else "with all"] = program
    return calls


def leave_out(name: str, stack: ExitStack) -> None:
    """Replaces a function of `hopfax.cpu` wherever it was imported."""
    optimized, plain = getattr(cpu, name), LEFT_OUT[name]
    for module in [each for key, each in sys.modules.items() if key.startswith("hopfax.")]:
        if getattr(module, name, None) is optimized:
            stack.enter_context(mock.patch.object(module, name, plain))
    if name == "flat_dot_general":  # a default of the linear layers
        stack.enter_context(mock.patch.dict(precision.linear.keywords, dot_general=plain))
