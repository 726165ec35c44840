"""Logits of all seeds on every row of a set, with or without noise at a named site."""

import difflib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hopfax import hopfield
from hopfax.data.batching import Bucket, eval_batches
from hopfax.nn.encoder import Encoder, Site
from hopfax.nn.functional import Functional, Params
from hopfax.train import interrupt
from hopfax.train.objectives import Batch, per_example, texts_of
from hopfax.train.sharding import Sharding

Protocol = Literal["sigma", "matched"]
SITES: tuple[Site, ...] = get_args(Site)
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)


# Tokens of a call, padding included.
_TOKENS = 8192


class Noise(NamedTuple):
    """Gaussian noise on a model's inputs.

    Attributes:
        site: `"token"`, on the token vectors before positions and LayerNorm, or `"embedding"`,
            on what that LayerNorm returns.
        protocol: `"sigma"`: `level` is the standard deviation itself; `"matched"`: in units of
            the root mean square of the example's own signal at the site, so that every model
            meets the same ratio, -20 log10(level) dB.
        level: The standard deviation, >= 0.
        draw: Number of the draw. Levels and models share their draws, which depend on the row but
            not on its batch, so that differences between models are paired.
        seeds: A number for each stacked model, from which its draws derive, such as its training
            seed: the models then draw independently. None: they share their draws.
    """

    site: Site
    protocol: Protocol
    level: float
    draw: int = 0
    seeds: tuple[int, ...] | None = None


class Predictions(NamedTuple):
    """What the seeds say about every row, in the order of the rows' `index`.

    Attributes:
        logits: `(seeds, examples, outputs)`.
        labels: `(examples,)`.
        snr_db: `(seeds,)` realised signal-to-noise ratio over all real tokens; +inf when clean.
        num_steps: `(seeds,)` mean Hopfield updates per real query; 0 in softmax models.
    """

    logits: np.ndarray
    labels: np.ndarray
    snr_db: np.ndarray
    num_steps: np.ndarray


class _Counts(NamedTuple):
    """Sums over the rows of a batch that count."""

    signal: Float[Array, ""]
    noise: Float[Array, ""]
    steps: Float[Array, ""]
    queries: Float[Array, ""]


Predictor = Callable[..., tuple[Array, _Counts]]


def check_noise(noise: Noise) -> None:
    """Raises a ValueError for an unknown site or protocol, or a negative level."""
    for kind, name, known in (
        ("site", noise.site, SITES),
        ("protocol", noise.protocol, PROTOCOLS),
    ):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1) or known
            raise ValueError(f"unknown {kind} {name!r}; did you mean {' or '.join(near)}?")
    if not 0 <= noise.level < np.inf:
        raise ValueError(f"noise level is a standard deviation and must be >= 0, got {noise.level}")


def make_predictor(model: Functional[Encoder], *, sharding: Sharding | None = None) -> Predictor:
    """Compiles prediction of all seeds under noise; one compilation per padded length.

    Args:
        model: What predicts.
        sharding: How several devices share the work, if they do; the one given to `predict`.

    Returns:
        A function for `predict`.
    """

    def one_seed(
        params: Params,
        root: Array,
        batch: Batch,
        index: Array,
        at_token: Array,
        level: Array,
        relative: Array,
    ) -> tuple[Array, _Counts]:
        run = partial(model.apply, params)
        ids, mask = texts_of(batch)
        choices, length = batch.ids.shape[1:]
        # Parameters decide the dtype: with x64 enabled, JAX's defaults would be wider than they.
        table = params["tokens"]["embedding"]
        blank = jnp.zeros((length, table.shape[-1]), table.dtype)

        def draw_of(row: Array, choice: Array) -> Array:
            key = jax.random.fold_in(jax.random.fold_in(root, row), choice)
            return hopfield.gaussian_noise(key, blank, sigma=1.0)

        rows, numbers = jnp.repeat(index, choices), jnp.tile(jnp.arange(choices), len(index))
        # Clean inputs need no draws, which take a few per cent of the time.
        draws = jax.lax.cond(
            level > 0,
            lambda: jax.vmap(draw_of)(rows, numbers),
            lambda: jnp.zeros((len(rows), *blank.shape), blank.dtype),
        )

        counted = mask & (jnp.repeat(batch.weights, batch.ids.shape[1]) > 0)[:, None]

        def power(values: Array) -> Array:
            return jnp.sum(jnp.where(counted[..., None], jnp.square(values), 0))

        def add_noise(signal: Array) -> tuple[Array, Array, Array]:
            rms = jax.vmap(lambda s, m: hopfield.matched_sigma(s, snr_db=0.0, mask=m))(signal, mask)
            sigma = level * jnp.where(relative, rms, 1.0)
            # Padding stays as it is: a model that does not mask its keys would see the noise.
            noise = jnp.where(mask[..., None], sigma[:, None, None] * draws, 0.0)
            return signal + noise, power(signal), power(noise)

        def leave(signal: Array) -> tuple[Array, Array, Array]:
            nothing = jnp.zeros((), signal.dtype)
            return signal, nothing, nothing

        # A branch, not a noise of zero at the other site: nothing is computed there.
        tokens = run(ids, method="embed_tokens")
        tokens, *of_tokens = jax.lax.cond(at_token, add_noise, leave, tokens)
        embeddings = run(tokens, method="embed")
        embeddings, *of_embeddings = jax.lax.cond(at_token, leave, add_noise, embeddings)
        encoding = run(embeddings, mask, method="encode")
        logits = per_example(run(encoding.hidden, mask, method="classify"), batch)
        real = jnp.broadcast_to(counted[None, :, None, :], encoding.num_steps.shape)
        return logits, _Counts(
            signal=of_tokens[0] + of_embeddings[0],
            noise=of_tokens[1] + of_embeddings[1],
            steps=jnp.sum(jnp.where(real, encoding.num_steps, 0)).astype(jnp.float32),
            queries=jnp.sum(real).astype(jnp.float32),
        )

    all_seeds = jax.vmap(one_seed, in_axes=(0, 0, *[None] * 5))
    if sharding is None:
        return jax.jit(all_seeds)
    if sharding.split == "batch":
        # No word on where rows lie: those that do not divide lie everywhere.
        return jax.jit(sharding.in_mesh(all_seeds))
    seeds, shared = sharding.states, [sharding.replicated] * 5
    return sharding.jit(all_seeds, (seeds, seeds, *shared), (seeds, seeds))


def predict(
    predictor: Predictor,
    params: Params,
    buckets: Sequence[Bucket],
    *,
    noise: Noise | None = None,
    batch_size: int | None = None,
    sharding: Sharding | None = None,
) -> Predictions:
    """Predicts every row of a set exactly once.

    A model whose attention stops by one norm over the batch (the `released` preset) depends on what
    else is in the call, the rows that fill the last one among it: give it the batch size of the
    program it follows.

    Args:
        predictor: From `make_predictor`.
        params: Parameters stacked over seeds.
        buckets: The set, as `hopfax.data.bucketed` makes it.
        noise: What to add, and where; None for clean inputs.
        batch_size: Rows a call; None takes what suits the device, 8,192 tokens at most.
        sharding: How several devices share the work; the parameters lie as `fit` leaves them.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed, see `hopfax.train.interrupt`.
        ValueError: See `check_noise`; there are no rows; or `noise.seeds` are not one per model.
    """
    if not buckets:
        raise ValueError("there is nothing to predict: the set has no rows")
    asked = Noise("embedding", "sigma", 0.0) if noise is None else noise
    check_noise(asked)
    at_token = jnp.asarray(asked.site == "token")
    relative = jnp.asarray(asked.protocol == "matched")
    level, roots = jnp.float32(asked.level), _roots(asked, len(jax.tree.leaves(params)[0]))
    pending, index, labels = [], [], []
    for bucket in buckets:
        for rows, weights in eval_batches(bucket, batch_size=batch_size or _rows(bucket)):
            interrupt.check()
            batch = Batch(*map(jnp.asarray, (rows.ids, rows.lengths, rows.labels, weights)))
            if sharding:
                batch = sharding.put_batch(batch)
            pending.append(predictor(params, roots, batch, rows.index, at_token, level, relative))
            index.append(rows.index[weights > 0])
            labels.append(rows.labels[weights > 0])
    logits = [
        np.asarray(part)[:, : len(rows)] for (part, _), rows in zip(pending, index, strict=True)
    ]
    counts = jax.tree.map(
        lambda *parts: np.sum(np.stack(parts), 0, dtype=np.float64), *[part for _, part in pending]
    )
    order = np.argsort(np.concatenate(index), kind="stable")
    with np.errstate(divide="ignore"):
        snr_db = 10 * np.log10(counts.signal / counts.noise)
    return Predictions(
        logits=np.concatenate(logits, axis=1)[:, order],
        labels=np.concatenate(labels)[order],
        snr_db=snr_db,
        num_steps=counts.steps / counts.queries,
    )


def _roots(noise: Noise, count: int) -> Array:
    """The key of every model's draws."""
    root = jax.random.fold_in(jax.random.key(0), noise.draw)
    if noise.seeds is None:
        return jnp.broadcast_to(root, (count,))
    if len(noise.seeds) != count:
        raise ValueError(f"noise.seeds must name each of {count} models, got {noise.seeds}")
    return jax.vmap(jax.random.fold_in, (None, 0))(root, jnp.asarray(noise.seeds, jnp.uint32))


def _rows(bucket: Bucket) -> int:
    """As many as keep a device busy, in calls of one size.

    A CPU computes the rows that only fill a call like any other. There the rows are shared out
    evenly, in eights, which divide into groups (`hopfax.nn.groups`). Other devices hardly notice
    them, but compile slowly: a power of two is one shape for all sets of a length.
    """
    tokens = bucket.ids.shape[1] * bucket.ids.shape[2]
    most = 2 ** max(0, (_TOKENS // tokens).bit_length() - 1)
    if jax.default_backend() != "cpu":
        return most
    calls = -(-len(bucket.labels) // most)
    return min(most, -(-len(bucket.labels) // (8 * calls)) * 8)
