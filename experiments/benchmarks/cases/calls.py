"""Public functions called outside jit, against the same calls under `jax.jit`.

Small inputs, so that the ratio is the cost of a call; the goal is at most twice the time under
jit plus one millisecond.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from experiments.benchmarks.harness import Program
from hopfax import hopfield, nn, stability
from hopfax.fixed_point import fixed_point

SECONDS = 5
RATIOS = {"outside jit / under jit": ""}


def drawn(*shape: int) -> jax.Array:
    """Standard normal entries."""
    return jax.random.normal(jax.random.key(sum(shape)), shape)


def programs(data_dir: str | None, *, make: Callable[[], tuple[Any, ...]]) -> dict[str, Program]:
    """The same call, outside jit and under it."""
    fn, *inputs = make()
    under = jax.jit(fn)
    return {
        "outside jit": lambda: jax.block_until_ready(fn(*inputs)),
        "under jit": lambda: jax.block_until_ready(under(*inputs)),
    }


@jax.jit
def network(x: jax.Array) -> jax.Array:
    """The user's function."""
    return jnp.tanh(x).sum()


def half(params: jax.Array, x: jax.Array) -> jax.Array:
    """A contraction."""
    return x / 2 + params


def retrieve(query: jax.Array, patterns: jax.Array) -> jax.Array:
    """A query's attractor."""
    return hopfield.retrieve(query, patterns, beta=8.0).value


def attend(queries: jax.Array, keys: jax.Array) -> jax.Array:
    """A head."""
    return hopfield.attend(queries, keys, keys, beta=8.0).values


def model() -> tuple[Any, ...]:
    """A small Robertha on four texts."""
    robertha, ids = nn.robertha(1000, 2, width=64, ff_width=128), jnp.arange(64).reshape(4, 16)
    return robertha.apply, robertha.init(jax.random.key(0)), ids, ids >= 0


estimate = partial(stability.noise_stability, network, shape=(8,), rho=0.5, num_samples=1000)
CALLS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "noise_stability": lambda: (estimate, jax.random.key(0)),
    "attend": lambda: (attend, drawn(32, 64), drawn(32, 64)),
    "attend, gradient": lambda: (jax.grad(lambda x: jnp.sum(attend(x, x))), drawn(32, 64)),
    "denoise": lambda: (hopfield.denoise, drawn(64), drawn(3000, 64)),
    "HopfieldAttention": lambda: (
        nn.HopfieldAttention(64, rngs=nnx.Rngs(0)).__call__, drawn(4, 16, 64),
        jnp.ones((4, 16), bool),
    ),
    "robertha": model,
    "fixed_point": lambda: (lambda x: fixed_point(half, x, jnp.zeros(64)).value, drawn(64)),
    "retrieve": lambda: (retrieve, drawn(64), drawn(32, 64)),
    "recall": lambda: (nn.recall, drawn(4, 16, 64), drawn(1000, 64)),
    "esr_penalty": lambda: (hopfield.esr_penalty, drawn(32, 64)),
}  # fmt: skip
SETTINGS = {name: partial(programs, make=make) for name, make in CALLS.items()}
