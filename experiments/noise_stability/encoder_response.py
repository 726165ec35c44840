"""What noise does to a classifier of texts: how it responds, and the numbers made of that."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from hopfax import hopfield
from hopfax.nn import Encoder, Functional, Params
from hopfax.stability import LevelWeights, bonami_beckner_pair, gaussian_pair, level_weights

RHOS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
DEGREE = 4  # Hermite levels reported separately

Row = dict[str, Any]  # of results.csv, without the columns of the model


class Network(NamedTuple):
    """A classifier in two compiled stages, as functions of its parameters."""

    embed: Callable[[Any, Array], Float[Array, "rows choices tokens width"]]  # of ids
    respond: Callable[[Any, Array, Array], Float[Array, "rows classes"]]  # of embeddings and mask


class Texts(NamedTuple):
    """Rows of one padded length; `index` is their number in the split, which keys their noise."""

    ids: Int[Array, "rows choices tokens"]
    mask: Bool[Array, "rows choices tokens"]
    index: Int[Array, " rows"]


class Response(NamedTuple):
    """What noise does to the class probabilities p of each text x, at each of `RHOS`.

    Y is a copy of x under token noise; f has the probabilities under noise Z on the embeddings.
    """

    token_products: Float[Array, "rows draws rhos"]  # <p(x), p(Y)>
    same_class: Float[Array, "rows draws rhos"]  # whether Y's class is x's, 0 or 1
    products: Float[Array, "rows draws rhos"]  # <f(Z), f(Z')>
    changes: Float[Array, "rows draws rhos"]  # of f - p: what is constant drowns what varies
    mean: Float[Array, "rows classes"]  # E f
    power: Float[Array, "rows 2"]  # squared norms: of the embeddings, and of noise on average


def network_of(model: Functional[Encoder]) -> Network:
    """An encoder in two stages; an example's choices are alternatives, as classes are."""

    def embed(params: Params, ids: Array) -> Array:
        rows = ids.reshape(-1, ids.shape[-1])
        tokens = model.apply(params, rows, method="embed_tokens")
        types = model.apply(params, rows, method="token_types")
        embeddings = model.apply(params, tokens, types, method="embed")
        return embeddings.reshape(*ids.shape, -1)

    def respond(params: Params, embeddings: Array, mask: Array) -> Array:
        encoder = partial(model.apply, params)
        rows, _, tokens, width = embeddings.shape
        real = mask.reshape(-1, tokens)
        hidden = encoder(embeddings.reshape(-1, tokens, width), real, method="encode").hidden
        return jax.nn.softmax(encoder(hidden, real, method="classify").reshape(rows, -1))

    return Network(jax.jit(embed), jax.jit(respond))


def response(
    network: Network, params: Any, texts: Texts, key: PRNGKeyArray, token_key: PRNGKeyArray, *,
    num_tokens: int, special: tuple[int, ...], snr_db: float, draws: int,
) -> Response:  # fmt: skip
    """Compares each text with noisy copies, and noise Z on its embeddings with Z' for each rho."""
    kept = ~texts.mask | jnp.isin(texts.ids, jnp.array(special))
    embeddings = network.embed(params, texts.ids)
    scale = noise_scale(embeddings, texts.mask, snr_db)
    samples = []
    for draw in range(draws):
        ids = _noisy_ids(texts.ids, kept, texts.index, token_key, draw, num_tokens)
        copies = jnp.stack([network.embed(params, each) for each in ids])
        noise = _noise(scale, texts.index, key, draw, embeddings.shape[1:])
        families = (copies, embeddings + noise)
        responses = (_respond(network, params, each, texts.mask) for each in families)
        samples.append(_compare(*responses, noise))
    *products, means, powers = (jnp.stack(each, 1) for each in zip(*samples, strict=True))
    signal = _power(jnp.where(texts.mask[..., None], embeddings, 0))
    power = jnp.stack([signal, jnp.mean(powers, axis=1)], axis=-1)
    return Response._make([*products, jnp.mean(means, axis=1), power])


@jax.jit
def _compare(copies: Array, noisy: Array, noise: Array) -> tuple[Array, ...]:
    """Fields of one draw; of both `(rhos, rows, classes)` the last is the partner at rho = 1."""
    clean = copies[-1]
    same = jnp.argmax(copies, axis=-1) == jnp.argmax(clean, axis=-1)
    return (
        _products(copies),
        same.T.astype(float),
        _products(noisy),
        _products(noisy - clean),
        jnp.mean(noisy, axis=0),
        jnp.mean(_power(noise), axis=0),
    )


def level_meter(
    network: Network, texts: Texts, key: PRNGKeyArray, *, snr_db: float, num_samples: int
) -> Callable[[Any, Array], LevelWeights]:
    """Makes `(params, center) -> level weights of f - center`, averaged over the texts.

    The weights of one function, all texts' outputs side by side over the root of their number, are
    the mean of theirs. Close to E f, the center takes away most of the products' variance.
    """

    @jax.jit
    def measure(params: Any, center: Array) -> LevelWeights:
        embeddings = network.embed(params, texts.ids)
        scale = noise_scale(embeddings, texts.mask, snr_db)

        def change(z: Array) -> Array:
            probabilities = network.respond(params, embeddings + scale * z, texts.mask)
            return (probabilities - center) / len(probabilities) ** 0.5

        return level_weights(
            change, key, shape=embeddings.shape, num_samples=num_samples, degree=DEGREE,
            batch_size=1,
        )  # fmt: skip

    return measure


@jax.jit
def noise_scale(embeddings: Array, mask: Array, snr_db: float | Array) -> Array:
    """Deviation of each token's noise, `(rows, choices, tokens, 1)`: one a text, 0 at padding."""
    sigma = jax.vmap(jax.vmap(partial(hopfield.matched_sigma, snr_db=snr_db)))
    return jnp.where(mask, sigma(embeddings, mask=mask)[..., None], 0)[..., None]


@partial(jax.jit, static_argnums=4)
def _noise(scale: Array, index: Array, key: Array, draw: int, shape: tuple[int, ...]) -> Array:
    """Z and its partners at each rho < 1, `(rhos, rows, choices, tokens, width)`, scaled."""

    def of_row(row: Array) -> Array:
        own = jax.random.fold_in(jax.random.fold_in(key, row), draw)
        pairs = jax.vmap(lambda rho: gaussian_pair(own, shape, rho=rho), out_axes=(None, 0))
        first, others = pairs(jnp.array(RHOS[:-1]))
        return jnp.concatenate([others, first[None]])

    return scale * jax.vmap(of_row, out_axes=1)(index)


@partial(jax.jit, static_argnums=5)
def _noisy_ids(
    ids: Array, kept: Array, index: Array, key: Array, draw: int, num_tokens: int
) -> Array:
    """A copy of every text for each of `RHOS`, `(rhos, rows, choices, tokens)`."""

    def copy(rho: Array, row: Array, ids: Array, kept: Array) -> Array:
        own = jax.random.fold_in(jax.random.fold_in(key, row), draw)
        _, noisy = bonami_beckner_pair(own, ids, rho=rho, num_tokens=num_tokens)
        return jnp.where(kept, ids, noisy)

    rows = jax.vmap(copy, in_axes=(None, 0, 0, 0))
    return jax.vmap(rows, in_axes=(0, None, None, None))(jnp.array(RHOS), index, ids, kept)


def _respond(network: Network, params: Any, families: Array, mask: Array) -> Array:
    """Probabilities `(rhos, rows, classes)`, by one call: that is one program to compile."""
    flat = families.reshape(-1, *families.shape[2:])
    tiled = jnp.tile(mask, (len(families), 1, 1))
    return network.respond(params, flat, tiled).reshape(*families.shape[:2], -1)


def _products(values: Float[Array, "rhos rows classes"]) -> Float[Array, "rows rhos"]:
    return jnp.sum(values[-1] * values, axis=-1).T


def _power(x: Float[Array, "... choices tokens width"]) -> Float[Array, "..."]:
    return jnp.sum(jnp.square(x), axis=(-3, -2, -1))


def gaussian_rows(measured: Response) -> list[Row]:
    """Stability under Gaussian noise: plain, as a share of its value at rho = 1, and centered."""
    # Differences from rho = 0: what is constant in the noise drops out of them.
    centered = measured.changes - measured.changes[..., :1]
    rows = _stability(measured.products)
    rows += _curve("correlation", centered, centered[..., -1:])
    rows += [row | {"level": None} for row in _curve("variance", centered[..., -1:])]
    signal, noise = np.sum(measured.power, axis=0)
    shared = {"corruption": "gaussian", "snr_db": float(10 * np.log10(signal / noise))}
    return [row | shared for row in rows]


def token_rows(measured: Response) -> list[Row]:
    """Stability under token noise, plain and normalized, and how often the class stays."""
    rows = [*_stability(measured.token_products), *_curve("same class", measured.same_class)]
    return [row | {"corruption": "tokens"} for row in rows]


def _stability(products: Array) -> list[Row]:
    normalized = _curve("normalized stability", products, products[..., -1:])
    return [*_curve("stability", products), *normalized]


def level_rows(measured: LevelWeights, num_texts: int, snr_db: float) -> list[Row]:
    """Weights of the levels 1, 2, ..., and of those above, also as shares of the variance."""
    parts = zip(measured[:3], measured.tail, strict=True)
    weights = np.array([np.append(part[1:], above) for part, above in parts])
    shares = np.asarray(measured.shares)
    shared = {"corruption": "gaussian", "num_examples": num_texts, "snr_db": snr_db}
    return [
        shared | {"metric": metric, "level": float(level), "score": value, "low": low, "high": high}
        for metric, ends in (("level weight", weights), ("level share", shares))
        for level, (value, low, high) in enumerate(ends.T.tolist(), 1)
    ]


def _curve(metric: str, numerator: Any, denominator: Any = None) -> list[Row]:
    denominator = np.ones_like(numerator[..., :1]) if denominator is None else denominator
    names = ("level", "score", "standard_error", "noise_error")
    columns = (RHOS, *(part.tolist() for part in ratio(numerator, denominator)))
    shared = {"metric": metric, "num_examples": len(numerator)}
    return [shared | dict(zip(names, point, strict=True)) for point in zip(*columns, strict=False)]


def ratio(numerator: Any, denominator: Any) -> tuple[np.ndarray, ...]:
    """Ratio of means over texts and draws, its standard error, and that for the given texts.

    By the delta method. The first error takes texts and noise for random, the second noise alone.
    The numerator is `(texts, draws, rhos)`, the denominator `(texts, draws, 1)` of the same draws.
    """
    top, bottom = np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)
    texts, draws = top.shape[:2]
    value = top.mean((0, 1)) / bottom.mean()
    residual = (top - value * bottom) / bottom.mean()
    error = residual.mean(1).std(0, ddof=1) / texts**0.5
    noise_error = np.sqrt(residual.var(1, ddof=1).mean(0) / (texts * draws))
    return value, error, noise_error
