"""Trains with two processes, and writes `INDEX.npz` for `test_distributed.py`."""

import signal
import warnings
from functools import partial
from pathlib import Path

import jax
import numpy as np
import tiny

from experiments import __main__, hosts  # noqa: F401
from hopfax.train import loop, schedule
from hopfax.train.checkpoint import Checkpoints, CheckpointWarning
from hopfax.train.evaluate import Noise, make_predictor, predict
from hopfax.train.metrics import MetricsLog
from hopfax.train.objectives import classification
from hopfax.train.sharding import fetch, first, make_sharding
from hopfax.train.state import adamw

EXPERIMENT = (
    "robustness --budget smoke --task sentiment --train-size 32 --test-size 16 --vocab-size 100 "
    "--model tinybert-mean --width 8 --levels 1 --sites token --protocols matched"
)
SEEDS = {"seeds": (23, 42), "batch": (23,)}
MODEL = tiny.bag()
VALIDATION = tiny.buckets(10, seed=1, boundaries=(12,))


def run(folder, axis, **options):
    """Trains over an axis, and returns the results by name."""
    sharding = make_sharding(num_seeds=len(SEEDS[axis]), batch_size=8)
    predictor = make_predictor(MODEL, sharding=sharding)
    log, rows = MetricsLog(folder / "log"), tiny.buckets(48, boundaries=(12,))
    with Checkpoints(folder, config={"a": 1}, interval=1e-3) as checkpoints, log:
        result = loop.fit(
            predictor, classification(MODEL), train=rows, validation=VALIDATION,
            score=tiny.accuracy, seeds=SEEDS[axis], epochs=2, optimizer=partial(adamw, 3e-3),
            batch_size=8, checkpoints=checkpoints, log=log, **options,
        )  # fmt: skip
    noise = Noise("embedding", "matched", 1.0)
    params = [np.ravel(fetch(leaf)) for leaf in jax.tree.leaves(result.params)]
    logits = predict(predictor, result.params, VALIDATION, noise=noise).logits
    return {"params": np.concatenate(params), "scores": result.scores, "logits": logits}


def outcome(fn):
    """What a call returns or raises, as text."""
    try:
        return str(fn())
    except (Exception, KeyboardInterrupt) as error:
        return f"{type(error).__name__}: {error}"


def main(index, address, folder):
    index, folder, schedule.CHUNK_STEPS = int(index), Path(folder), 2
    place = ["--distributed", "--coordinator", address, "--num-processes", "2", "--process-index"]
    flags = [*EXPERIMENT.split(), "--runs", str(folder / "two"), *place, str(index)]
    statuses = [__main__.main([*flags, "--epochs", str(1 + index)])]  # flags that differ
    jax.distributed.initialize = lambda *_, **__: None  # done
    statuses.append(__main__.main(flags))
    results = {axis: run(folder / axis, axis) for axis in SEEDS}
    stop = lambda share, **_: index and share and signal.raise_signal(signal.SIGTERM)  # noqa: E731
    texts = [outcome(lambda: run(folder / "cut", "seeds", on_progress=stop))]
    with Checkpoints(folder / "damaged", config={"a": 1}) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, {"x": np.float64([step * np.pi])})
        checkpoints.wait()
        newest = folder / "damaged" / "checkpoints" / "2" / "arrays"
        first(lambda: [path.write_bytes(b"") for path in newest.rglob("d/*")])
        with warnings.catch_warnings(action="ignore", category=CheckpointWarning):
            texts.append(outcome(lambda: checkpoints.restore({"x": np.zeros(1)})))
    other = partial(Checkpoints, folder / "damaged", config={"a": 2})
    absent = partial(first, (folder / "absent").read_bytes)
    texts += map(outcome, (other, absent, lambda: make_sharding(1, num_seeds=2, batch_size=8)))
    flat = {f"{axis}: {name}": x for axis, each in results.items() for name, x in each.items()}
    np.savez(folder / f"{index}.npz", texts=texts, statuses=statuses, **flat)
