"""Temporary memory of a gradient through 50 updates, unrolled against implicit.

XLA's planned memory for `retrieve` of every query of a base-size layer, and for the train step.
"""

import dataclasses
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from experiments.benchmarks import workloads
from experiments.benchmarks.workloads import MAX_LENGTH
from hopfax import hopfield
from hopfax.fixed_point import Gradient
from hopfax.nn import PRESETS, robertha
from hopfax.train.objectives import Batch, classification
from hopfax.train.state import adamw, init_states, seed_keys
from hopfax.train.step import make_step

RATIOS = {"unrolled / implicit": "≥ 5"}
STEPS, BATCH_SIZE, HEADS, HEAD_WIDTH = 50, 32, 2, 64
PEAK = "import sys; from {} import growth; print(growth(*sys.argv[1:]))"


def layer_bytes(gradient: Gradient) -> int:
    """The gradient through `retrieve` of every query of a layer, in queries and patterns."""
    options: Any = {"beta": 15 / HEAD_WIDTH**0.5, "max_steps": STEPS, "gradient": gradient}

    def one(query: jax.Array, patterns: jax.Array) -> jax.Array:
        return hopfield.retrieve(query, patterns, **options).value

    def loss(queries: jax.Array, patterns: jax.Array) -> jax.Array:
        tokens = jax.vmap(one, in_axes=(0, None))
        return jnp.sum(jnp.square(jax.vmap(jax.vmap(tokens))(queries, patterns)))

    shape = jax.ShapeDtypeStruct((BATCH_SIZE, HEADS, MAX_LENGTH, HEAD_WIDTH), jnp.float32)
    return temporary_bytes(jax.grad(loss, argnums=(0, 1)), shape, shape)


def step_bytes(gradient: Gradient) -> int:
    """The base train step of one seed, ESR and AdamW included."""
    preset = dataclasses.replace(PRESETS["hopfax"], gradient=gradient)
    model = robertha(workloads.VOCAB_SIZE, 2, preset=preset, max_steps=STEPS)
    optimizer = adamw(workloads.LEARNING_RATE, total_steps=workloads.TOTAL_STEPS)
    states = jax.eval_shape(lambda: init_states(model, optimizer, [0]))
    state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), states)
    lengths = jnp.ones((BATCH_SIZE, 1), jnp.int32)
    ids = jnp.zeros((BATCH_SIZE, 1, MAX_LENGTH), jnp.int32)
    batch = Batch(ids, lengths, lengths[:, 0], jnp.ones(BATCH_SIZE))
    step = make_step(classification(model, esr_weight=workloads.ESR_WEIGHT), optimizer)
    return temporary_bytes(step, state, batch, seed_keys([0])[0])


def temporary_bytes(fn: Callable[..., Any], *arguments: Any) -> int:
    """Returns the memory of a compiled function without its arguments and results."""
    analysis = jax.jit(fn).lower(*arguments).compile().memory_analysis()
    if analysis is None:
        raise RuntimeError(f"XLA reports no memory on {jax.default_backend()}")
    return analysis.temp_size_in_bytes


def peak_bytes(setup: str, line: str) -> int:
    """Returns the increase in peak resident memory while a fresh process runs a line."""
    command = [sys.executable, "-c", PEAK.format(__name__), setup, line]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return int(done.stdout)


def growth(setup: str, line: str) -> int:
    """Returns the increase in this process's peak resident memory while it runs a line (Linux)."""

    def kilobytes(name: str) -> int:
        text = Path("/proc/self/status").read_text()
        (size,) = re.findall(rf"{name}:\s+(\d+)", text)
        return int(size)

    scope: dict[str, Any] = {}
    exec(setup, scope)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now the current size
    before = kilobytes("VmRSS")
    exec(line, scope)
    return 1024 * (kilobytes("VmHWM") - before)


SETTINGS = {"retrieve, one layer": (layer_bytes,), "train step": (step_bytes,)}


def programs(data_dir: str | None, measure: Callable[[Gradient], int]) -> dict[str, float]:
    """Megabytes of both gradients, and their ratio."""
    implicit, unrolled = measure("implicit") / 1e6, measure("unrolled") / 1e6
    ratio = unrolled / implicit
    return {"implicit, MB": implicit, "unrolled, MB": unrolled, "unrolled / implicit": ratio}
