"""Sixteen small grokking runs in one `vmap`, against sequential runs.

One epoch of modular addition by a decoder with Adam, with and without the stability regularizer;
compiled beforehand. A single run does not fill a device.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.benchmarks.harness import Program
from hopfax import stability
from hopfax.cpu import quick
from hopfax.data.algorithmic import modular_addition
from hopfax.nn import decoder

SECONDS = 30
RATIOS = {"one after another / one vmap": "≥ 3"}
RUNS = 16
SMALL = {"modulus": 31, "num_train": 720, "num_validation": 140, "num_test": 100}
SIZES: dict[str, tuple[int, int, dict[str, int]]] = {
    "width 16, batch 30": (16, 30, SMALL),
    "width 48, batch 120": (48, 120, SMALL),
    "width 128, batch 256": (128, 256, {"modulus": 113}),  # Table 2's
}
ARMS = ("baseline", "stability_reg")
SETTINGS = {f"{size}, {arm}": (size, arm) for size in SIZES for arm in ARMS}


def programs(data_dir: str | None, size: str, arm: str, *, runs: int = RUNS) -> dict[str, Program]:
    """Both ways to train all runs for an epoch; they return each run's loss in its last step."""
    width, batch_size, data = SIZES[size]
    sets = [modular_addition(seed, **data) for seed in range(runs)]
    ids = jnp.asarray(np.stack([each.train.ids[:, 0] for each in sets]))
    labels = jnp.asarray(np.stack([each.train.labels for each in sets]))
    model = decoder(sets[0].vocab_size, sets[0].num_classes, width=width)
    epoch = epoch_of(model, batch_size, sets[0].vocab_size if arm == "stability_reg" else None)
    inputs = jax.vmap(jax.random.key)(jnp.arange(runs, dtype=jnp.uint32)), ids, labels
    together = jax.jit(jax.vmap(epoch))

    def some(first: int, last: int) -> Any:
        part = jax.tree.map(lambda leaf: leaf[first:last], inputs)
        return jax.block_until_ready(together(*part))

    def apart() -> list[Any]:
        return [some(run, run + 1) for run in range(runs)]

    return {"one vmap": partial(some, 0, runs), "one after another": apart}


def epoch_of(model: Any, batch_size: int, num_tokens: int | None) -> Callable[..., jax.Array]:
    """One run's epoch; `num_tokens` is the vocabulary of the noise, None for no regularizer."""
    adam = optax.adam(1e-3)

    def loss(params: Any, ids: jax.Array, labels: jax.Array, key: jax.Array) -> jax.Array:
        network = partial(model.apply, params)
        logits = network(ids)
        task = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        if num_tokens is None:
            return task
        noise: Any = {"rho": 0.25, "num_tokens": num_tokens}
        return task + 0.75 * stability.stability_regularizer(
            lambda ids: jax.nn.softmax(network(ids)), key, ids, jax.nn.softmax(logits), **noise
        )

    def epoch(key: jax.Array, ids: jax.Array, labels: jax.Array) -> jax.Array:
        params, steps = model.init(key), len(ids) // batch_size
        order = jax.random.permutation(key, len(ids))[: steps * batch_size]

        def step(carry: Any, plan: tuple[jax.Array, jax.Array]) -> Any:
            (params, moments), (picks, number) = carry, plan
            value, gradient = jax.value_and_grad(loss)(
                params, ids[picks], labels[picks], jax.random.fold_in(quick(key), number)
            )
            updates, moments = adam.update(gradient, moments, params)
            return (optax.apply_updates(params, updates), moments), value

        plans = (order.reshape(steps, batch_size), jnp.arange(steps))
        return jax.lax.scan(step, (params, adam.init(params)), plans)[1][-1]

    return epoch
