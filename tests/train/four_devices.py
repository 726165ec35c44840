"""Trains on one, two and four of four devices, and writes `results.npz` for `test_sharding.py`."""

import contextlib
import shutil
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tiny

from hopfax import hopfield, stability
from hopfax.train import loop
from hopfax.train.checkpoint import Checkpoints
from hopfax.train.evaluate import Noise, make_predictor, predict
from hopfax.train.metrics import MetricsLog
from hopfax.train.objectives import classification
from hopfax.train.sharding import make_sharding
from hopfax.train.state import adamw, init_states
from hopfax.train.step import make_chunk

SEEDS, BATCH = (23, 42, 77, 112), 8
OPTIMIZER = cache(partial(adamw, 3e-3))
VALIDATION = tiny.buckets(10, seed=1, boundaries=(12,))


@cache
def program(sharding):
    model = tiny.hopfield(max_steps=6, dropout=0.1)
    return make_predictor(model, sharding=sharding), classification(model, esr_weight=0.05)


class Killed(BaseException):
    """Replaces a kill in the second epoch."""


def run(folder, sharding, *, killed=False):
    """Trains, and returns the results by name."""
    calls, (predictor, objective) = 0, program(sharding)

    def score(logits, labels):
        """Increases with every epoch, so that the last one is the best."""
        nonlocal calls
        calls += 1
        if killed and calls > len(SEEDS):
            raise Killed
        return calls if killed else 100 + calls

    with Checkpoints(folder, config={}) as checkpoints, MetricsLog(folder / "m.jsonl") as log:
        result = loop.fit(
            predictor,
            objective,
            train=tiny.buckets(24, boundaries=(12,)),
            validation=VALIDATION,
            score=score,
            seeds=SEEDS,
            epochs=2,
            optimizer=OPTIMIZER,
            batch_size=BATCH,
            checkpoints=checkpoints,
            log=log,
        )
    # The shapes on each device, before anything reads the parameters.
    shards = [leaf.addressable_shards for leaf in jax.tree.leaves(result.params)]
    rows = sharding.put(jnp.zeros((BATCH, 1)), "batch") if sharding else jnp.zeros((BATCH, 1))
    noise = Noise("embedding", "matched", 1.0)
    predictions = predict(predictor, result.params, VALIDATION, noise=noise)
    alone = predict(predictor, tiny.take(result.params, slice(1, 2)), VALIDATION, noise=noise)
    lines = tiny.records(folder / "m.jsonl")
    return {
        "params": np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(result.params)]),
        "epochs": result.epochs,
        "devices": np.array([len(each) for each in shards]),
        "seeds_held": np.array([each[0].data.shape[0] for each in shards]),
        "rows_held": np.array([each.data.shape[0] for each in rows.addressable_shards]),
        "noisy_logits": predictions.logits,
        "noisy_logits_of_one_seed": alone.logits,
        "snr_db": predictions.snr_db,
    } | {
        name: [line[name] for line in lines if name in line]
        for name in ("loss", "esr", "gradient_norm")
    }


def core():
    """Values and gradients of core functions: on one device, by `shard_map`, on explicit axes."""
    draw = lambda seed, *shape: jax.random.normal(jax.random.key(seed), shape)  # noqa: E731
    rows, patterns, spec = draw(0, 8, 5), draw(1, 6, 5), jax.P("devices")

    def most(rows, patterns):
        retrieve, unrolled = (
            jax.vmap(partial(hopfield.retrieve, beta=2.0, gradient=gradient), (0, None))
            for gradient in ("implicit", "unrolled")
        )
        attend = partial(hopfield.attend, beta=2.0)
        twice = jnp.concatenate([patterns, patterns])
        read = attend(rows, patterns, patterns).values + attend(rows, twice, twice).values
        options = {"shape": (5,), "rho": 0.5, "num_samples": 50, "batch_size": 20}
        fn, key = lambda x: jnp.sin(x @ patterns[0]), jax.random.key(2)
        total = read + stability.noise_stability(fn, key, **options).mean
        return total + retrieve(rows, patterns).value + unrolled(rows, patterns).value

    def all_of(rows, patterns):  # with explicit axes, jax cannot look up an index of each row
        denoise = jax.vmap(partial(hopfield.denoise, sigma=1.0, block_size=4), (0, None))
        return most(rows, patterns) + denoise(rows, patterns).value

    def run(fn, rows):
        loss = lambda rows, patterns: jnp.sum(jnp.square(fn(rows, patterns)))  # noqa: E731
        gradients = jax.jit(jax.grad(loss, (0, 1)))(rows, patterns)
        return [np.asarray(x) for x in (jax.jit(fn)(rows, patterns), *gradients)]

    mesh = jax.make_mesh((4,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
    mapped = jax.shard_map(all_of, mesh=mesh, in_specs=(spec, jax.P()), out_specs=spec)
    results = {"shard_map": [*run(all_of, rows), *run(mapped, rows)]}
    expected = run(most, rows)
    with jax.set_mesh(jax.make_mesh((4,), ("devices",))):
        results["explicit axes"] = [*expected, *run(most, jax.device_put(rows, spec))]
    return results


def main(folder):
    folder = Path(folder)
    assert len(jax.local_devices()) == 4
    # Each program compiles once, not once a call.
    loop.make_chunk, initial = cache(make_chunk), cache(init_states)
    loop.init_states = lambda *options: jax.tree.map(jnp.copy, initial(*options))
    shardings = {
        "one": None,
        "seeds": make_sharding(num_seeds=len(SEEDS), batch_size=BATCH),
        "batch": make_sharding(2, num_seeds=1, batch_size=BATCH),
    }
    results = {name: run(folder / name, sharding) for name, sharding in shardings.items()}
    # Killed on four devices, and resumed on one, on four and on two.
    with contextlib.suppress(Killed):
        run(folder / "cut", shardings["seeds"], killed=True)
    for name, sharding in shardings.items():
        copied = shutil.copytree(folder / "cut", folder / f"cut-{name}")
        results[f"{name} resumed"] = run(copied, sharding)
    flat = {f"{run}: {name}": x for run, parts in results.items() for name, x in parts.items()}
    for name, arrays in core().items():
        flat |= {f"{name}: {number}": array for number, array in enumerate(arrays)}
    np.savez(folder / "results.npz", **flat)
