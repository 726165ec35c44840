"""Predictions under noise, against as many plain forward passes.

5 σ, 3 draws and 2 sites. A prediction also draws noise, counts iterations and fills batches.
Robertha's queries may need more iterations under noise, which is more work for any program. Logits
without noise must agree.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.harness import Program
from experiments.benchmarks.workloads import (
    MAX_LENGTH,
    VOCAB_SIZE,
    check_equal,
    single_texts,
    trained,
    workload,
)
from hopfax.data.batching import Bucket
from hopfax.nn import Encoder, Functional, robertha, tinybert
from hopfax.train.evaluate import SITES, Noise, make_predictor, predict

SECONDS = 60
RATIOS = {"noisy prediction / forward pass": "≤ 1.3", "prediction / forward pass": None}
MODELS = {"tinybert": tinybert, "robertha": robertha}
SETTINGS = {
    "tinybert, initial weights": ("tinybert", False),
    "robertha, initial weights": ("robertha", False),
    "robertha, trained weights": ("robertha", True),
}
LEVELS, DRAWS = (0.1, 0.5, 1.0, 2.0, 5.0), 3
ROWS = 872  # SST-2's test rows
TOKENS = 8192  # of a plain pass, padding included


def programs(data_dir: str | None, name: str, use_trained: bool) -> dict[str, Program]:
    """A plain pass and a prediction for every site and level, and predictions under noise."""
    model = MODELS[name](VOCAB_SIZE, 2, max_length=MAX_LENGTH)
    params = trained(data_dir) if use_trained else jax.jit(model.init)(jax.random.key(23))
    buckets = first_rows(workload(data_dir).buckets, ROWS)
    predictor, stacked = make_predictor(model), jax.tree.map(lambda leaf: leaf[None], params)
    forward = forward_of(model, params, buckets)

    def predicted(noise: Noise | None = None) -> np.ndarray:
        return predict(predictor, stacked, buckets, noise=noise).logits[0]

    check_equal({"forward pass": forward(), "prediction": predicted()})
    noisy = [
        (1.0, partial(predicted, Noise(site, "sigma", level, draw)))
        for site, level, draw in itertools.product(SITES, LEVELS, range(DRAWS))
    ]
    return {
        "forward pass": [(1.0, forward)] * len(noisy),
        "prediction": [(len(noisy), predicted)],
        "noisy prediction": noisy,
    }


def first_rows(buckets: Sequence[Bucket], rows: float) -> list[Bucket]:
    """Returns about this many rows: the same fraction of every bucket, at least one row of each."""
    share = rows / sum(len(bucket.labels) for bucket in buckets)
    return [
        Bucket(*(field[: max(1, round(share * len(bucket.labels)))] for field in bucket))
        for bucket in buckets
    ]


def forward_of(
    model: Functional[Encoder], params: Any, buckets: Sequence[Bucket]
) -> Callable[[], np.ndarray]:
    """Logits of the rows in the order of their `index`, no row computed twice."""
    parts, order = [], []
    for bucket in buckets:
        count = TOKENS // bucket.ids.shape[-1]
        for rows in (slice(at, at + count) for at in range(0, len(bucket.labels), count)):
            parts.append([jnp.asarray(each) for each in single_texts(bucket, rows)])
            order.append(bucket.index[rows])
    places = np.argsort(np.concatenate(order))
    logits = jax.jit(lambda params, ids, mask: model.apply(params, ids, mask).logits)

    def forward() -> np.ndarray:
        pending = [logits(params, *part) for part in parts]
        return np.concatenate([np.asarray(each) for each in pending])[places]

    return forward
