"""A program for a process of four devices: trains on one, two and four, and notes what it found.

`test_sharding.py` runs it once and looks at `found.npz`.
"""

import contextlib
import shutil
import sys
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tiny

from hopfax.train import loop
from hopfax.train.checkpoint import Checkpoints
from hopfax.train.evaluate import Noise, make_predictor, predict
from hopfax.train.metrics import MetricsLog, read_metrics
from hopfax.train.objectives import classification
from hopfax.train.sharding import make_sharding
from hopfax.train.state import adamw, init_states
from hopfax.train.step import make_chunk

SEEDS, BATCH = (23, 42, 77, 112), 8
MODEL = tiny.hopfield(max_steps=6, dropout=0.1)
FUSED = tiny.hopfield(max_steps=6, dropout=0.1, implementation="pallas")
OPTIMIZER = cache(partial(adamw, 3e-3))
VALIDATION = tiny.buckets(10, seed=1, boundaries=(12,))


predictor_of = cache(make_predictor)
objective_of = cache(classification)


class Killed(BaseException):
    """Stands for a kill in the second epoch."""


def train(folder, sharding, *, model=MODEL, killed=False):
    calls = 0

    def score(logits, labels):
        """More with every epoch, so that what comes back is the last one's."""
        nonlocal calls
        calls += 1
        if killed and calls > len(SEEDS):
            raise Killed
        return calls if killed else 100 + calls

    with Checkpoints(folder, config={}) as kept, MetricsLog(folder / "m.jsonl") as log:
        fitted = loop.fit(
            model,
            objective_of(model, esr_weight=0.05),
            train=tiny.buckets(24, boundaries=(12,)),
            validation=VALIDATION,
            score=score,
            seeds=SEEDS,
            epochs=2,
            optimizer=OPTIMIZER,
            batch_size=BATCH,
            checkpoints=kept,
            log=log,
            predictor=predictor_of(model, sharding=sharding),
            sharding=sharding,
        )
    return fitted


def found(folder, fitted, sharding, model=MODEL):
    """Everything a run leaves, by name."""
    noise = Noise("embedding", "matched", 1.0)
    predictor = predictor_of(model, sharding=sharding)
    answers = predict(predictor, fitted.params, VALIDATION, noise=noise, sharding=sharding)
    names = ("loss", "esr", "gradient_norm")
    lines = read_metrics(folder / "m.jsonl")
    logged = {name: [line[name] for line in lines if name in line] for name in names}
    # Before anything reads the parameters: the shapes that each device holds.
    shards = [leaf.addressable_shards for leaf in jax.tree.leaves(fitted.params)]
    return {
        "params": np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(fitted.params)]),
        "epochs": fitted.epochs,
        "devices": np.array([len(each) for each in shards]),
        "seeds_held": np.array([each[0].data.shape[0] for each in shards]),
        "noisy_logits": answers.logits,
        "snr_db": answers.snr_db,
    } | logged


def main(folder):
    assert len(jax.local_devices()) == 4
    # Each program compiles once, not once a call.
    loop.make_chunk, initial = cache(make_chunk), cache(init_states)
    loop.init_states = lambda *asked: jax.tree.map(jnp.copy, initial(*asked))
    sizes = {"num_seeds": len(SEEDS), "batch_size": BATCH}
    ways = {
        "one": None,
        "seeds": make_sharding(**sizes),
        "batch": make_sharding(2, **sizes, split="batch"),
    }
    results = {}
    for name, way in ways.items():
        results[name] = found(folder / name, train(folder / name, way), way)
    # XLA cannot share a kernel out: each device runs it on its own seeds, or on its own texts.
    for name in ("seeds", "batch"):
        fused = folder / f"{name}-fused"
        results[f"{name} fused"] = found(
            fused, train(fused, ways[name], model=FUSED), ways[name], FUSED
        )
    # Begun on four, broken off, and continued on one, on four and on two.
    with contextlib.suppress(Killed):
        train(folder / "cut", ways["seeds"], killed=True)
    for name, way in ways.items():
        cut = shutil.copytree(folder / "cut", folder / f"cut-{name}")
        results[f"{name} continued"] = found(cut, train(cut, way), way)
    flat = {
        f"{run}: {name}": part for run, parts in results.items() for name, part in parts.items()
    }
    np.savez(folder / "found.npz", **flat)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
