"""Trained models, each stored under a hash of everything that determines it.

A cell is one model, trained on one task with all seeds. Experiments share cells: each spec is
trained once and then loaded. `runs/cells/<hash>/` holds the spec (config.json), where it was
trained (provenance.json), parameters of each seed's best epoch (checkpoints/), losses, validation
scores and the share of converged queries (metrics.jsonl), and one .npz per condition with the
logits of every seed on every row (predictions/).

Training runs in `<hash>.partial/`, which is renamed when complete, and resumes from its last
checkpoint. A lock prevents two processes from training the same cell.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.models import Trainable, Variant, build
from experiments.provenance import provenance
from experiments.rundir import LOCK, identifier, locked, plain, write_whole
from hopfax import hopfield, nn
from hopfax.data import Bucket, Encoded, TaskData, bucket_boundaries, to_buckets
from hopfax.nn import Encoder, Functional, Params
from hopfax.train.checkpoint import Checkpoints
from hopfax.train.evaluate import Predictor, make_predictor
from hopfax.train.loop import fit
from hopfax.train.metrics import MetricsLog, scores
from hopfax.train.sharding import Sharding, any_process, first
from hopfax.train.state import adamw, seed_keys

FORMAT = 3  # increase it when the same spec no longer trains the same model
UNSEEN = 0.1  # occurrences of a token that the training texts lack, for its prior
RESUMPTION = "training"  # folder of the states that training resumes from


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Everything that determines a trained model, up to rounding and padded lengths."""

    task: str
    data: str  # SHA-256 of the task's tokenized rows and its vocabulary, see `digest`
    model: Mapping[str, Any]  # `Variant.settings()`: architecture, objective and optimizer
    sizes: Mapping[str, Any]  # of the encoder: width, ff_width, num_layers, max_length
    seeds: tuple[int, ...]  # trained in parallel
    epochs: int  # maximum number
    patience: int  # epochs without a better validation score before a seed stops
    learning_rate: float  # peak
    batch_size: int

    @property
    def stores_padding(self) -> bool:
        """Whether padding takes part in attention, so that all texts have the longest length."""
        options = {**self.model.get("preset", {}), **self.model.get("options", {})}
        return not options.get("mask_keys", True)

    @functools.cached_property
    def id(self) -> str:
        """Twelve hexadecimal digits of the SHA-256 of the spec and the format version."""
        return identifier({"format": FORMAT, **plain(self)})


class Cell(NamedTuple):
    """A trained model."""

    folder: Path
    spec: Spec
    data: TaskData  # the rows that it was trained on, and the rows to report
    model: Functional[Encoder]
    params: Params  # of each seed's best epoch, stacked over seeds
    predictor: Predictor  # shared by all conditions
    iterates: bool  # whether its attention iterates; if so, steps are reported
    undenoised: Cell | None = None  # the same model without a denoiser, if this one has one
    denoiser: str = "none"  # see `with_denoiser`
    # With memory after the embedding LayerNorm instead, if there is one, for noise at that site.
    at_embedding: Predictor | None = None
    loud: bool = False  # whether its tokens are scaled by `with_loud_tokens`
    variant: Variant | None = None  # of the spec, with its precision


def digest(data: TaskData) -> str:
    """SHA-256 over the tokenized rows to train and select on, and the vocabulary."""
    parts = "\n".join(data.vocabulary.tokens), digest_of(data.train), digest_of(data.validation)
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


def digest_of(rows: Encoded) -> str:
    """SHA-256 over tokenized rows and their labels."""
    parts = (np.ascontiguousarray(x).tobytes() for x in (rows.ids, rows.lengths, rows.labels))
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def train(
    spec: Spec, variant: Variant, data: TaskData, *, root: str | Path,
    sharding: Sharding | None = None, on_progress: Callable[..., None] | None = None,
) -> Cell:  # fmt: skip
    """Trains the cell of a spec in `root`, the folder of all cells, or loads it.

    Raises:
        BlockingIOError: Another process trains this cell; the message names it.
        hopfax.train.loop.DivergedError: Training diverged.
    """
    folder, partial = Path(root) / spec.id, Path(root) / f"{spec.id}.partial"
    sizes = {"vocab_size": data.vocabulary.size, **plain(spec.sizes)}
    built = build(variant, data.spec, log_prior=log_prior(data), **sizes)
    predictor, config = make_predictor(built.model, sharding=sharding), plain(spec)
    if any_process(first(lambda: spec.id) != spec.id):
        raise ValueError("processes must have the same data and code: their cells differ")
    if first(lambda: partial.exists() or not folder.exists()):
        with contextlib.ExitStack() as stack:
            first(lambda: stack.enter_context(locked(partial)))
            if not first(folder.exists):  # another process may have finished it meanwhile
                _fit(spec, built, data, partial, predictor, on_progress=on_progress)
                first(lambda: partial.rename(folder))
            first(lambda: shutil.rmtree(partial, ignore_errors=True))
    if first((folder / LOCK).exists):  # also of a process that was killed here
        first(lambda: shutil.rmtree(folder / RESUMPTION, ignore_errors=True))  # large
        first(lambda: (folder / LOCK).unlink(missing_ok=True))
    # Shapes only: drawing parameters takes longer than testing a small model.
    like = jax.eval_shape(jax.vmap(built.model.init), seed_keys(spec.seeds))
    with Checkpoints(folder, config=config) as checkpoints:
        restored = checkpoints.restore(like)
    if restored is None:
        raise FileNotFoundError(f"{folder} has no parameters; delete the folder to train again")
    cell = Cell(folder, spec, data, built.model, restored.tree, predictor, built.iterates)
    cell = cell._replace(variant=variant)
    return with_loud_tokens(cell) if variant.loud else cell


def with_steps(cell: Cell, steps: int) -> Cell:
    """Returns the trained model with another maximum number of Hopfield updates, 0 for none."""
    predictor, folder = _limited(cell.model.build, steps), cell.folder / f"updates-{steps}"
    return cell._replace(model=predictor.model, predictor=predictor, folder=folder)


@functools.lru_cache(maxsize=16)  # each is compiled once
def _limited(build: Callable[..., Encoder], steps: int) -> Predictor:
    def limited(**rngs: Any) -> Encoder:
        network: Any = build(**rngs)
        for block in network.blocks:
            block.attention.max_steps = steps
        return network

    return make_predictor(nn.functional(limited))


def with_loud_tokens(cell: Cell) -> Cell:
    """Returns the trained model with louder vectors for tokens that tell its two classes apart.

    By 1 + |log(p(token | 1) / p(token | 0))| in the training rows. The LayerNorm after the
    embeddings undoes most of this. Noise of one SNR for each text harms these tokens less.
    """
    train, size = cell.data.train, cell.data.vocabulary.size
    real = np.arange(train.ids.shape[-1]) < train.lengths[..., None]
    counts = np.stack([
        np.bincount(train.ids[real & (train.labels == label)[:, None, None]], minlength=size) + 5
        for label in (0, 1)
    ])  # fmt: skip
    odds = np.diff(np.log(counts / counts.sum(1, keepdims=True)), axis=0)[0]
    table = cell.params["tokens"]["embedding"] * (1 + np.abs(odds)[:, None]).astype(np.float32)
    return cell._replace(params={**cell.params, "tokens": {"embedding": table}}, loud=True)


def log_prior(data: TaskData) -> np.ndarray:
    """Returns the log frequency of each token in the training texts, up to a constant."""
    ids, lengths = data.train.ids, data.train.lengths
    real = ids[np.arange(ids.shape[-1]) < lengths[..., None]]
    return log_frequencies(real, data.vocabulary.size).astype(np.float32)


def log_frequencies(tokens: np.ndarray, count: int) -> np.ndarray:
    """Returns the logarithm of each token's number of occurrences, at least `UNSEEN`."""
    return np.log(np.bincount(tokens, minlength=count) + UNSEEN)


def capacity(cell: Cell) -> float:
    """Returns `hopfield.capacity_snr_db` of the reported texts under the memory's prior."""
    ids, lengths = cell.data.test.ids, cell.data.test.lengths
    log_prior = np.asarray(jax.nn.log_softmax(cell.params["memory"]["log_prior"][0]))
    bits = -np.mean(log_prior[ids[np.arange(ids.shape[-1]) < lengths[..., None]]]) / np.log(2)
    width = cell.params["tokens"]["embedding"].shape[-1]
    return float(hopfield.capacity_snr_db(float(bits), width=width))


def with_denoiser(cell: Cell, name: str) -> Cell:
    """Returns the trained model with a denoiser of its token embeddings.

    It is `memory` (`hopfax.nn.with_memory`, with the token frequencies of the training texts as
    prior), `nearest` (the nearest embedding of the vocabulary), `linear` (the Wiener filter of the
    vocabulary under that prior), or `none`.
    """
    if name == "none":
        return cell
    (seeds, _, width), prior = cell.params["tokens"]["embedding"].shape, log_prior(cell.data)
    memory = {"log_prior": jnp.tile(prior, (seeds, 1)), "log_scale": jnp.zeros((seeds, width))}
    predictor = functools.partial(make_predictor, sharding=cell.predictor.sharding)
    at_embedding = None
    if name == "memory":
        model = nn.with_memory(cell.model)
        if "norm" in cell.params:
            at_embedding = predictor(nn.with_memory(cell.model, site="embedding"))
    else:
        one = functools.partial(_denoise_all, {"nearest": nearest, "linear": wiener}[name])
        model = nn.with_memory(cell.model, denoise=one)
    cell = cell._replace(undenoised=cell, params={**cell.params, "memory": memory}, model=model)
    return cell._replace(predictor=predictor(model), denoiser=name, at_embedding=at_embedding)


def _denoise_all(
    one: Callable[..., jax.Array], tokens: jax.Array, table: jax.Array, *, log_prior: jax.Array,
    **unused: Any,
) -> jax.Array:  # fmt: skip
    """Applies `one(vector, table, log_prior)` to every token vector."""
    return jax.vmap(jax.vmap(functools.partial(one, table=table, log_prior=log_prior)))(tokens)


def nearest(vector: jax.Array, table: jax.Array, log_prior: jax.Array) -> jax.Array:
    """Returns the embedding of the vocabulary that is nearest to a noisy one; needs no prior."""
    return table[hopfield.denoise(vector, table).index]


def wiener(
    vector: jax.Array, table: jax.Array, log_prior: jax.Array, sigma: jax.Array | None = None
) -> jax.Array:
    """Returns the best linear estimate from the vocabulary's mean and covariance under a prior.

    Without `sigma`, the noise level is the most likely one, in steps of 1 dB, if both are Gaussian.
    """
    weights = jax.nn.softmax(log_prior)
    mean = weights @ table
    centered = table - mean
    values, directions = jnp.linalg.eigh((weights[:, None] * centered).T @ centered)
    values, coordinates = jnp.maximum(values, 0), (vector - mean) @ directions
    powers = jnp.mean(values) * 10 ** (-jnp.arange(-30.0, 41.0) / 10)
    powers = powers if sigma is None else jnp.square(sigma)[None]
    variances = values + powers[:, None]
    surprisals = jnp.sum(jnp.log(variances), axis=1) + (1 / variances) @ jnp.square(coordinates)
    gains = values / variances[jnp.argmin(surprisals)]
    return mean + (coordinates * gains) @ directions.T


def _fit(
    spec: Spec, built: Trainable, data: TaskData, folder: Path, predictor: Predictor, *,
    on_progress: Callable[..., None] | None,
) -> None:  # fmt: skip
    """Trains in a folder, from its last checkpoint if there is one."""
    splits = data.train, data.validation
    train, validation = buckets(
        data, spec.sizes["max_length"], *splits, one_length=spec.stores_padding
    )
    # A run may only be resumed with the same buckets, which depend on the device.
    config, sizes = plain(spec), [len(bucket.labels) for bucket in train]
    origin = {**config, "device": jax.default_backend(), "buckets": sizes}
    with (
        Checkpoints(folder / RESUMPTION, config=origin) as checkpoints,
        MetricsLog(folder / "metrics.jsonl") as log,
    ):
        write_whole(folder / "provenance.json", json.dumps(provenance(), indent=2))
        result = fit(
            predictor, built.objective, train=train, validation=validation,
            score=lambda *outputs: scores(data.spec.metrics, *outputs)["score"],
            seeds=spec.seeds, epochs=spec.epochs, patience=spec.patience,
            optimizer=functools.partial(adamw, spec.learning_rate, weight_decay=built.weight_decay),
            batch_size=spec.batch_size, checkpoints=checkpoints, log=log, on_progress=on_progress,
        )  # fmt: skip
    with Checkpoints(folder, config=config) as checkpoints:
        checkpoints.save(result.steps, result.params)


def buckets(
    data: TaskData, max_length: int, *splits: Encoded, one_length: bool = False
) -> list[list[Bucket]]:
    """Returns splits in buckets of padded lengths, chosen for the rows that `digest` covers.

    Longer rows are padded to `max_length`, and with `one_length` all are.
    """
    known = np.concatenate([split.lengths.max(axis=1) for split in (data.train, data.validation)])
    # Few rows get few buckets, as each compiles. On a GPU, that is slow and padding cheap.
    rows = 1000 if jax.default_backend() == "cpu" else 40_000
    most, multiple = min(4, 1 + len(data.train.labels) // rows), 8
    if data.spec.suite == "synthetic":
        most, multiple = 1, 4
    edges = bucket_boundaries(known, max_buckets=most, multiple=multiple, max_length=max_length)
    edges = [max_length] if one_length else sorted({*edges, max_length})
    return [to_buckets(split, boundaries=edges, pad_id=data.vocabulary.pad_id) for split in splits]
