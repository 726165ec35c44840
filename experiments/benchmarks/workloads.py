"""What the cases share: rows, sizes, and Robertha's train step and forward pass in hopfax."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hopfax.data import bucket_boundaries, load_task, to_buckets
from hopfax.data.batching import Bucket, Encoded
from hopfax.fixed_point import Gradient
from hopfax.nn import PRESETS, Encoder, Functional, Params, robertha
from hopfax.train.objectives import Batch, classification
from hopfax.train.state import adamw, init_states, seed_keys
from hopfax.train.step import make_chunk

VOCAB_SIZE, MAX_LENGTH = 30522, 128  # bert-base-uncased's; what the paper pads to
# Lengths of SST-2's training rows in tokens, including [CLS] and [SEP], with their counts.
LENGTHS = Path(__file__).with_name("sst2_lengths.csv")
# The paper's; `num_heads` is part of a preset in hopfax.
SIZES: dict[str, dict[str, int]] = {
    "base": {"width": 128, "num_layers": 2, "ff_width": 512, "num_heads": 2},
    "large": {"width": 768, "num_layers": 12, "ff_width": 3072, "num_heads": 12},
}
BATCH_SIZES = {"base": 32, "large": 4}
ESR_WEIGHT, LEARNING_RATE, TOTAL_STEPS = 0.05, 2e-5, 60_000  # Table 15
BETA = 15.0
TRAINED_STEPS = 300  # for weights that differ from their initial values

Texts = tuple[np.ndarray, np.ndarray]  # token ids, and the mask of real tokens


@functools.lru_cache(maxsize=1)
def sst2(data_dir: str | None) -> Encoded:
    """Tokenized SST-2 of a folder of raw data sets, or synthetic rows with its lengths."""
    if data_dir is not None:
        vocabulary = Path(data_dir) / "vocab" / "bert-base-uncased" / "vocab.txt"
        options: dict[str, Any] = {"vocabulary": vocabulary, "max_length": MAX_LENGTH}
        return load_task("sst2", data_dir=data_dir, **options).train
    rng = np.random.default_rng(0)
    counts = np.loadtxt(LENGTHS, np.int32, delimiter=",", skiprows=1, unpack=True)
    lengths = rng.permutation(np.repeat(*counts))
    ids = rng.integers(1000, VOCAB_SIZE, (lengths.size, lengths.max()), dtype=np.int32)
    ids *= np.arange(lengths.max()) < lengths[:, None]
    labels = rng.integers(0, 2, lengths.size, dtype=np.int32)
    return Encoded(ids[:, None], lengths[:, None], labels, np.arange(lengths.size, dtype=np.int32))


def buckets(data_dir: str | None, count: int | None = None) -> list[Bucket]:
    """The first rows, or all, in length buckets."""
    rows = sst2(data_dir)
    first = Encoded(*(part[:count] for part in rows))
    return to_buckets(first, boundaries=bucket_boundaries(rows.lengths))


def padded(data_dir: str | None, length: int = MAX_LENGTH) -> Bucket:
    """The rows of at most `length` tokens, padded to it."""
    rows = sst2(data_dir)
    fitting = Encoded(*(part[rows.lengths[:, 0] <= length] for part in rows))
    return to_buckets(fitting, boundaries=(length,))[0]


def single_texts(bucket: Bucket, rows: Any = slice(None)) -> Texts:
    """Rows of a bucket of single texts."""
    ids, lengths = bucket.ids[rows, 0], bucket.lengths[rows]
    return ids, np.arange(ids.shape[1]) < lengths


def full_texts(batch: int, tokens: int) -> Texts:
    """Random words without padding."""
    ids = np.random.default_rng(0).integers(2000, 28_000, (batch, tokens), dtype=np.int32)
    return ids, np.ones(ids.shape, bool)


def check_equal(outputs: Mapping[str, np.ndarray]) -> None:
    """Checks that programs compute the same outputs (rows, outputs), up to a relative 0.001.

    One row in a hundred may differ ten times as much: rounding can add an update to an iteration.
    """
    (first, expected), *others = outputs.items()
    for name, values in others:
        errors = np.sort(np.abs(values - expected).max(axis=1) / np.abs(expected).max())
        typical = errors[len(errors) - 1 - len(errors) // 100]
        # nan, which sorts last, fails these comparisons.
        if not (typical <= 1e-3 and errors[-1] <= 1e-2):
            raise RuntimeError(f"{name} and {first} must agree, got an error of {errors[-1]:.2g}")


def model_of(size: str, *, gradient: Gradient = "implicit", **options: Any) -> Functional[Encoder]:
    """Robertha in a size of `SIZES`, with options of `robertha`."""
    sizes = dict(SIZES[size])
    heads = sizes.pop("num_heads")
    preset = dataclasses.replace(PRESETS["hopfax"], num_heads=heads, gradient=gradient)
    return robertha(VOCAB_SIZE, 2, preset=preset, **sizes, **options)


@functools.cache
def fresh(size: str) -> Params:
    """Initial parameters."""
    return jax.jit(model_of(size).init)(jax.random.key(23))


@functools.cache
def trained(data_dir: str | None) -> Params:
    """Parameters of base Robertha after `TRAINED_STEPS` steps on all buckets."""
    weights, calls = zip(*mean_step(buckets(data_dir), 10, learning_rate=2e-3), strict=True)
    rng = np.random.default_rng(1)
    picks = rng.choice(len(calls), TRAINED_STEPS // 10, p=10 * np.array(weights))
    *_, states = (calls[pick]() for pick in picks)
    return jax.tree.map(lambda leaf: leaf[0], states.params)


def mean_step(
    buckets: Sequence[Bucket],
    steps: int,
    *,
    size: str = "base",
    model: Functional[Encoder] | None = None,
    params: Params | None = None,
    seeds: int = 1,
    learning_rate: float = LEARNING_RATE,
    esr_weight: float = ESR_WEIGHT,
) -> list[tuple[float, Callable[[], Any]]]:
    """The mean train step of an epoch: a call for each bucket, weighted by its share of the steps.

    A call trains on random rows and returns the states, which all calls share. `model` replaces
    Robertha; `params` are the initial parameters of every seed, drawn if None.
    """
    model = model or model_of(size)
    optimizer = adamw(learning_rate, total_steps=TOTAL_STEPS)
    chunk = make_chunk(classification(model, esr_weight=esr_weight), optimizer)
    keys, rng = seed_keys(range(seeds)), np.random.default_rng(0)
    states = init_states(model, optimizer, range(seeds))
    if params is not None:
        stacked = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], seeds, axis=0), params)
        states = states._replace(params=stacked)

    def run(rows: Batch) -> Any:
        nonlocal states
        shape = (steps, seeds, BATCH_SIZES[size])
        picks = rng.integers(0, len(rows.labels), shape, dtype=np.int32)
        states, _ = chunk(states, rows, picks, np.ones(shape, np.float32), keys)
        return jax.block_until_ready(states)

    batches = [
        Batch(*map(jnp.asarray, (*bucket[:3], np.ones(len(bucket.labels), np.float32))))
        for bucket in buckets
    ]
    total = steps * sum(len(rows.labels) for rows in batches)
    return [(len(rows.labels) / total, functools.partial(run, rows)) for rows in batches]


def forward(size: str, params: Params, texts: Texts, **stop: Any) -> Callable[[], np.ndarray]:
    """Compiled logits of Robertha; `stop` is its `tol` and `max_steps`."""
    model = model_of(size, **stop)
    program = compiled(lambda *inputs: model.apply(*inputs).logits, params, *texts)
    return lambda: np.asarray(program())


def compiled(fn: Callable[..., Any], *inputs: Any) -> Callable[[], Any]:
    """A call of the compiled function that waits for its result."""
    on_device = jax.tree.map(jnp.asarray, inputs)
    program = jax.jit(fn).lower(*on_device).compile()
    return lambda: jax.block_until_ready(program(*on_device))
