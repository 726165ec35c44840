"""Predictions under noise, against as many plain forward passes.

5 σ, 3 draws and 2 sites. A prediction also draws noise, counts iterations and fills batches.
Robertha's queries may need more iterations under noise, which is more work for any program. Logits
without noise must agree.
"""

from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import workloads
from experiments.benchmarks.harness import Program
from experiments.benchmarks.workloads import MAX_LENGTH, VOCAB_SIZE
from hopfax.nn import robertha, tinybert
from hopfax.train.evaluate import SITES, Noise, make_predictor, predict

SECONDS = 60
RATIOS = {"noisy prediction / forward pass": "≤ 1.3"}
LEVELS, DRAWS = (0.1, 0.5, 1.0, 2.0, 5.0), 3
ROWS = 872  # as many as SST-2's test rows
TOKENS = 8192  # of a plain pass, padding included


def programs(data_dir: str | None, *, build: Any, use_trained: bool) -> dict[str, Program]:
    """A plain pass for every site, level and draw, and predictions under noise."""
    model = build(VOCAB_SIZE, 2, max_length=MAX_LENGTH)
    key = jax.random.key(23)
    params = workloads.trained(data_dir) if use_trained else jax.jit(model.init)(key)
    predictor, stacked = make_predictor(model), jax.tree.map(lambda leaf: leaf[None], params)
    logits = jax.jit(lambda *inputs: model.apply(*inputs).logits)
    buckets, texts, order = workloads.buckets(data_dir, ROWS), [], []
    for bucket in buckets:
        count = TOKENS // bucket.ids.shape[-1]
        for rows in (slice(at, at + count) for at in range(0, len(bucket.labels), count)):
            texts.append([*map(jnp.asarray, workloads.single_texts(bucket, rows))])
            order.append(bucket.index[rows])
    places = np.argsort(np.concatenate(order))

    def forward() -> np.ndarray:
        pending = [logits(params, *each) for each in texts]
        return np.concatenate([np.asarray(each) for each in pending])[places]

    def predicted(noise: Noise | None = None) -> np.ndarray:
        return predict(predictor, stacked, buckets, noise=noise).logits[0]

    workloads.check_equal({"forward pass": forward(), "prediction": predicted()})
    noisy = [
        (1.0, partial(predicted, Noise(site, "sigma", level, draw)))
        for site, level, draw in product(SITES, LEVELS, range(DRAWS))
    ]
    return {"forward pass": [(1.0, forward)] * len(noisy), "noisy prediction": noisy}


SETTINGS = {
    "tinybert, initial weights": partial(programs, build=tinybert, use_trained=False),
    "robertha, initial weights": partial(programs, build=robertha, use_trained=False),
    "robertha, trained weights": partial(programs, build=robertha, use_trained=True),
}
