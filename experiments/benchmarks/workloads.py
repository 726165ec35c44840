"""What the cases share: rows, sizes, and Robertha's train step and forward pass in hopfax."""

from __future__ import annotations

import csv
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hopfax.data import bucket_boundaries, bucketed, load_task
from hopfax.data.batching import Bucket, Encoded
from hopfax.nn import PRESETS, Encoder, Functional, robertha
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


class Workload(NamedTuple):
    """The same rows in length buckets and padded to 128."""

    buckets: list[Bucket]
    padded: Bucket


class PaddedRows(NamedTuple):
    """Token ids of some texts, and the mask of real tokens."""

    ids: np.ndarray
    mask: np.ndarray


@functools.lru_cache(maxsize=1)
def workload(data_dir: str | None) -> Workload:
    """Returns tokenized SST-2 of a folder of raw data sets, or synthetic rows with its lengths."""
    if data_dir is None:
        rows = _synthetic()
    else:
        vocabulary = Path(data_dir) / "vocab" / "bert-base-uncased" / "vocab.txt"
        options: dict[str, Any] = {"vocabulary": vocabulary, "max_length": MAX_LENGTH}
        rows = load_task("sst2", data_dir=data_dir, **options).train
    padded = bucketed(rows, boundaries=(MAX_LENGTH,))[0]
    return Workload(bucketed(rows, boundaries=bucket_boundaries(rows.lengths)), padded)


def _synthetic() -> Encoded:
    with LENGTHS.open(newline="", encoding="utf-8") as stream:
        counts = [(int(row["length"]), int(row["rows"])) for row in csv.DictReader(stream)]
    rng = np.random.default_rng(0)
    lengths = rng.permutation(np.repeat(*np.transpose(counts))).astype(np.int32)
    ids = rng.integers(1000, VOCAB_SIZE, (lengths.size, lengths.max()), dtype=np.int32)
    ids *= np.arange(lengths.max()) < lengths[:, None]
    labels = rng.integers(0, 2, lengths.size, dtype=np.int32)
    return Encoded(ids[:, None], lengths[:, None], labels, np.arange(lengths.size, dtype=np.int32))


def single_texts(bucket: Bucket, rows: Any = slice(None)) -> PaddedRows:
    """Returns rows of a bucket of single texts."""
    ids, lengths = bucket.ids[rows, 0], bucket.lengths[rows]
    return PaddedRows(ids, np.arange(ids.shape[1]) < lengths)


def full_rows(
    batch: int, tokens: int, *, words: tuple[int, int] = (1000, VOCAB_SIZE)
) -> PaddedRows:
    """Random tokens, ids from a range; no padding."""
    ids = np.random.default_rng(0).integers(*words, (batch, tokens), dtype=np.int32)
    return PaddedRows(ids, np.ones(ids.shape, bool))


def check_equal(outputs: Mapping[str, np.ndarray]) -> None:
    """Checks that programs compute the same outputs.

    Outputs have shape (rows, outputs). The largest difference from the first program may be a
    thousandth of its largest output. One row in a hundred may differ ten times as much, since
    rounding can add an update to an iteration.
    """
    (first, expected), *others = outputs.items()
    for name, values in others:
        errors = np.sort(np.abs(values - expected).max(axis=1) / np.abs(expected).max())
        typical = errors[len(errors) - 1 - len(errors) // 100]
        # nan, which sorts last, fails these comparisons.
        if not (typical <= 1e-3 and errors[-1] <= 1e-2):
            raise RuntimeError(
                f"{name} and {first} must agree, got a relative error of {errors[-1]:.2g}"
            )


def model_of(size: str, **options: Any) -> Functional[Encoder]:
    """Returns Robertha in a size of `SIZES`, with options of `robertha`."""
    sizes = dict(SIZES[size])
    preset = dataclasses.replace(PRESETS["hopfax"], num_heads=sizes.pop("num_heads"))
    return robertha(VOCAB_SIZE, 2, preset=preset, **sizes, **options)


@functools.cache
def fresh(size: str, tokens: int = MAX_LENGTH) -> Any:
    """Initial parameters for texts of at most `tokens` tokens."""
    return jax.jit(model_of(size, max_length=tokens).init)(jax.random.key(23))


@functools.cache
def trained(data_dir: str | None) -> Any:
    """Parameters of base Robertha after `TRAINED_STEPS` steps on all buckets."""
    buckets = workload(data_dir).buckets
    program = TrainSteps(buckets, learning_rate=2e-3)
    rng = np.random.default_rng(1)
    for _ in range(TRAINED_STEPS // 10):
        program.run(int(rng.choice(len(buckets), p=program.shares)), 10)
    return jax.tree.map(lambda leaf: leaf[0], program.states.params)


class TrainSteps:
    """Training state of some seeds, and compiled chunks of steps on each bucket.

    `params` are initial parameters of every seed (drawn if None), `esr` options of
    `classification`, and `model` replaces Robertha.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        *,
        params: Mapping[str, Any] | None = None,
        seeds: int = 1,
        learning_rate: float = LEARNING_RATE,
        size: str = "base",
        model: Functional[Encoder] | None = None,
        **esr: Any,
    ):
        model = model or model_of(size)
        self.batch_size = BATCH_SIZES[size]
        optimizer = adamw(learning_rate, total_steps=TOTAL_STEPS)
        objective = classification(model, **{"esr_weight": ESR_WEIGHT, **esr})
        self._chunk = make_chunk(objective, optimizer)
        self._rows = [
            Batch(*map(jnp.asarray, (b.ids, b.lengths, b.labels, np.ones(len(b.labels), "f"))))
            for b in buckets
        ]
        self._keys = seed_keys(range(seeds))
        self._rng = np.random.default_rng(0)
        counts = np.array([len(bucket.labels) for bucket in buckets])
        self.shares = counts / counts.sum()  # share of an epoch's steps
        self.states = init_states(model, optimizer, range(seeds))
        if params is not None:
            stacked = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], seeds, axis=0), params)
            self.states = self.states._replace(params=stacked)

    def run(self, bucket: int, steps: int) -> None:
        """Trains for some steps on random rows of one bucket."""
        rows = self._rows[bucket]
        shape = (steps, len(self._keys), self.batch_size)
        picks = self._rng.integers(0, len(rows.labels), shape, dtype=np.int32)
        weights = np.ones(shape, np.float32)
        self.states, _ = self._chunk(self.states, rows, picks, weights, self._keys)
        jax.block_until_ready(self.states)

    def mean_step(self, steps: int) -> list[tuple[float, Callable[[], None]]]:
        """The mean step of an epoch: buckets weighted by their share of its steps."""
        return [
            (share / steps, functools.partial(self.run, bucket, steps))
            for bucket, share in enumerate(self.shares)
        ]


def hopfax_forward(
    size: str, params: Any, rows: PaddedRows, *, tol: float, max_steps: int
) -> Callable[[], np.ndarray]:
    """Compiled logits of the rows."""
    max_length = params["positions"]["embedding"].shape[0]
    model = model_of(size, tol=tol, max_steps=max_steps, max_length=max_length)
    program = compiled(lambda *inputs: model.apply(*inputs).logits, params, *rows)
    return lambda: np.asarray(program())


def compiled(fn: Callable[..., Any], *inputs: Any) -> Callable[[], Any]:
    """A call of the compiled function that waits for its result."""
    on_device = jax.tree.map(jnp.asarray, inputs)
    program = jax.jit(fn).lower(*on_device).compile()
    return lambda: jax.block_until_ready(program(*on_device))
