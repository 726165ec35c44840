"""Attacks on the token vectors of an encoder's texts, each moved by at most a radius.

They move the vectors of a pair's first text, to change the cosine with the second text towards the
wrong side: down for pairs more similar than the median, up for the others. Projected gradient
descent attacks the encoder as it is, memory, and the nearest vector, which has no gradient, through
softmax surrogates at several temperatures; substitution moves tokens towards the neighbors that the
gradient prefers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.memory import pipeline
from hopfax.hopfield import certified_radius
from hopfax.nn import Pretrained

MAX_TOKENS = 24  # of an attacked text, so that all have one compiled shape
NUM_NEIGHBOURS = 32  # that attacks know of each token, the token itself included
TEMPERATURES = (0.1, 0.2, 0.4)  # of the surrogates, in units of the RMS norm of a token
NUM_ROUNDS = 3  # of substitution


class Surrogate(NamedTuple):
    r"""What an attack takes a system for: a differentiable function of a token's vector.

    $$x \mapsto k x + (1 - k) \sum_v p_v e_v, \qquad
    p = \mathrm{softmax}_v(-s \|x - e_v\|^2 - l \log \|x - e_v\|^2 + c \log \pi_v)$$

    over the token's neighbors.
    """

    keep: float = 0.0  # k, 1 for the encoder as it is, else 0
    square: float = 0.0  # s, 1/(2 temperature^2) for the nearest token
    log: float = 0.0  # l, half of the width for memory
    prior: float = 0.0  # c, 1 for memory


class Batch(NamedTuple):
    """Texts of one padded length, and the data that attacks need."""

    ids: np.ndarray  # token ids, (texts, tokens)
    mask: np.ndarray  # True at real tokens
    labels: np.ndarray  # of each pair
    goal: np.ndarray  # unit output of each pair's second text
    sign: np.ndarray  # 1 where an attack raises the cosine of the pair, -1 where it lowers it
    near: np.ndarray  # ids of the neighbors of each token, itself first
    unit: float  # root mean square norm of the token vectors of STS-B's texts


class Reader(NamedTuple):
    """An encoder with its vocabulary."""

    table: np.ndarray  # vectors of the vocabulary
    log_prior: np.ndarray  # log-frequencies of the tokens
    radius: np.ndarray  # certified radius of each token
    output: Callable[..., Any]  # of vectors and mask: unit vector along each text's mean state
    slope: Callable[..., Any]  # of vectors, batch, surrogate: gradient of the attacker's gain
    denoise: Callable[..., Any]  # of vectors and noise levels, see `pipeline.denoiser`


def reader_of(model: Pretrained, table: np.ndarray, log_prior: np.ndarray) -> Reader:
    """Returns compiled functions of an encoder and its vocabulary."""

    @jax.jit
    def output(params: Any, vectors: jax.Array, mask: jax.Array) -> jax.Array:
        states = model.forward(vectors, mask, params=params).output
        total = jnp.sum(jnp.where(mask[..., None], states, 0), axis=1)
        return total / jnp.linalg.norm(total, axis=1, keepdims=True)

    @jax.jit
    @jax.grad
    def slope(vectors: jax.Array, params: Any, batch: Batch, surrogate: Surrogate) -> jax.Array:
        near = jnp.asarray(table)[batch.near]
        apart = jnp.sum(jnp.square(vectors[..., None, :] - near), axis=-1)
        logits = -surrogate.square * apart - surrogate.log * jnp.log(apart + 1e-9)
        bias = jnp.asarray(log_prior)[batch.near]
        weights = jax.nn.softmax(logits + surrogate.prior * bias)
        soft = jnp.einsum("ntk,ntkd->ntd", weights, near)
        vectors = surrogate.keep * vectors + (1 - surrogate.keep) * soft
        cosines = jnp.sum(output(params, vectors, batch.mask) * batch.goal, axis=1)
        return jnp.sum(batch.sign * cosines)

    radius = np.asarray(certified_radius(jnp.asarray(table)))
    return Reader(
        table, log_prior, radius, partial(output, model.params),
        lambda vectors, *how: slope(vectors, model.params, *how),
        pipeline.denoiser(table, log_prior),
    )  # fmt: skip


def batch_of(
    reader: Reader, first: Sequence[np.ndarray], second: Sequence[np.ndarray], labels: np.ndarray,
    unit: float,
) -> Batch:  # fmt: skip
    """Pads the first texts of pairs, encodes the second ones, and finds the tokens' neighbors."""
    (ids, mask), (others, of_others) = (
        pipeline.padded(each, MAX_TOKENS) for each in (first, second)
    )
    goal = np.asarray(reader.output(reader.table[others], of_others))
    unique, home = np.unique(ids, return_inverse=True)
    squares = np.sum(np.square(reader.table), axis=1)
    distances = squares - 2 * reader.table[unique] @ reader.table.T
    distances[np.arange(len(unique)), unique] = -np.inf  # itself first
    order = np.argsort(distances, axis=1)[:, :NUM_NEIGHBOURS]
    sign = np.where(labels > np.median(labels), -1.0, 1.0).astype(np.float32)
    return Batch(ids, mask, labels, goal, sign, order[home.reshape(ids.shape)], unit)


def retrieved(reader: Reader, vectors: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    """Returns what each system's encoder reads; padding stays as it is."""
    real = np.broadcast_to(mask, vectors.shape[:-1])
    x = vectors[real]
    read = {"none": vectors}
    values, _ = pipeline.in_batches(reader.denoise, x, np.ones(len(x), np.float32))
    for name in ("nearest", "memory"):
        read[name] = vectors.copy()
        read[name][real] = values[name]
    return read


def attacks(reader: Reader, batch: Batch, radius: float, num_steps: int) -> np.ndarray:
    """Returns the perturbed vectors of every attack, that on the encoder as it is first.

    The radius, the largest norm of a token's perturbation, is in units of the vectors.
    """
    surrogates = [
        Surrogate(keep=1.0),
        Surrogate(log=reader.table.shape[1] / 2, prior=1.0),
        *(Surrogate(square=0.5 / (each * batch.unit) ** 2) for each in TEMPERATURES),
    ]
    return np.stack(
        [*(descent(reader, batch, each, radius, num_steps) for each in surrogates),
         substitution(reader, batch, radius)]
    )  # fmt: skip


def cosines(reader: Reader, batch: Batch, vectors: np.ndarray) -> np.ndarray:
    """Returns the cosine of each pair with `vectors` as its first text."""
    return np.sum(np.asarray(reader.output(vectors, batch.mask)) * batch.goal, axis=1)


def descent(
    reader: Reader, batch: Batch, surrogate: Surrogate, radius: float, num_steps: int
) -> np.ndarray:
    """Projected gradient descent in a ball around each token's vector, from a random direction."""
    clean, real = reader.table[batch.ids], batch.mask[..., None]

    def lengths(vectors: np.ndarray) -> np.ndarray:
        # float64: the squares of a vanishing slope would be zero.
        squares = np.sum(np.square(vectors, dtype=np.float64), axis=-1, keepdims=True)
        return np.sqrt(np.maximum(squares, 1e-300))

    start = np.random.default_rng(0).standard_normal(clean.shape, np.float32)
    delta = np.where(real, radius * start / lengths(start), 0).astype(np.float32)
    for _ in range(num_steps):
        slope = np.where(real, reader.slope(clean + delta, batch, surrogate), 0)
        delta = delta + 2.5 * radius / num_steps * slope / lengths(slope)
        delta = (delta * np.minimum(1, radius / lengths(delta))).astype(np.float32)
    return clean + delta


def substitution(reader: Reader, batch: Batch, radius: float) -> np.ndarray:
    """Moves tokens towards those neighbors within reach that raise the gain most, to first order.

    The nearest-token decoder always returns a token, so this attack searches tokens.
    """
    clean, near = reader.table[batch.ids], reader.table[batch.near]
    apart = np.linalg.norm(near - clean[..., None, :], axis=-1)
    reach = (apart < 2 * radius) & batch.mask[..., None]
    reach[..., 0] = True
    current, best, most = clean, clean, batch.sign * cosines(reader, batch, clean)
    for _ in range(NUM_ROUNDS):
        slope = np.asarray(reader.slope(current, batch, Surrogate(keep=1.0)))
        first_order = np.einsum("ntd,ntkd->ntk", slope, near)
        choice = np.argmax(np.where(reach, first_order, -np.inf), axis=-1)
        current = np.take_along_axis(near, choice[..., None, None], axis=2)[:, :, 0]
        gains = batch.sign * cosines(reader, batch, current)
        better = np.asarray(gains > most)
        best, most = np.where(better[:, None, None], current, best), np.maximum(most, gains)
    change = best - clean
    length = np.linalg.norm(change, axis=-1, keepdims=True)
    return clean + change * np.minimum(1, radius / np.maximum(length, 1e-9))
