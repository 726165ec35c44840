"""How a classifier of texts responds to noise on its embeddings, as rows of results.csv."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from hopfax import hopfield
from hopfax.nn import Encoder, Functional, Params
from hopfax.stability import LevelWeights, gaussian_pair, level_weights

RHOS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
DEGREE = 4  # Hermite levels reported separately

Row = dict[str, Any]  # of results.csv, without the columns of the model


class Network(NamedTuple):
    """A classifier in two stages, as functions of its parameters."""

    embed: Callable[[Any, Array], Float[Array, "rows choices tokens width"]]  # of ids
    respond: Callable[[Any, Array, Array], Float[Array, "rows classes"]]  # of embeddings and mask


class Texts(NamedTuple):
    """Rows of one padded length, or one; `index` is their number, which keys their noise."""

    ids: Int[Array, "*rows choices tokens"]
    mask: Bool[Array, "*rows choices tokens"]
    index: Int[Array, "*rows"]


class Response(NamedTuple):
    """What noise Z on a text's embeddings does to its class probabilities p, which become f(Z)."""

    changes: Float[Array, "draws rhos"]  # <f(Z) - p, f(Z') - p> at each of `RHOS`
    mean: Float[Array, " classes"]  # E f
    power: Float[Array, "2"]  # squared norms: of the embeddings, and of noise on average


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

    return Network(embed, respond)


def response(
    network: Network, params: Any, text: Texts, key: PRNGKeyArray, *, snr_db: float, draws: int
) -> Response:
    """Compares noise Z on a text's embeddings with its partner Z' at each of `RHOS`."""
    (embeddings,) = network.embed(params, text.ids[None])
    (clean,) = network.respond(params, embeddings[None], text.mask[None])
    scale = noise_scale(embeddings, text.mask, snr_db)
    masks = jnp.broadcast_to(text.mask, (len(RHOS), *text.mask.shape))

    def of_draw(draw: Array) -> tuple[Array, ...]:
        own = jax.random.fold_in(jax.random.fold_in(key, text.index), draw)
        pair = partial(gaussian_pair, own, embeddings.shape)
        first, others = jax.vmap(lambda rho: pair(rho=rho), out_axes=(None, 0))(
            jnp.array(RHOS[:-1])
        )
        noise = scale * jnp.concatenate([others, first[None]])
        noisy = network.respond(params, embeddings + noise, masks)
        changes = noisy - clean  # what is constant drowns what varies
        products = jnp.sum(changes * changes[-1], axis=-1)
        return products, jnp.mean(noisy, axis=0), jnp.sum(jnp.square(noise)) / len(noise)

    products, means, powers = jax.lax.map(of_draw, jnp.arange(draws))
    signal = jnp.sum(jnp.square(embeddings), where=text.mask[..., None])
    return Response(products, jnp.mean(means, axis=0), jnp.stack([signal, jnp.mean(powers)]))


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
        scale = jax.vmap(partial(noise_scale, snr_db=snr_db))(embeddings, texts.mask)

        def change(z: Array) -> Array:
            probabilities = network.respond(params, embeddings + scale * z, texts.mask)
            return (probabilities - center) / len(probabilities) ** 0.5

        sizes: Any = {"num_samples": num_samples, "degree": DEGREE, "batch_size": 1}
        return level_weights(change, key, shape=embeddings.shape, **sizes)

    return measure


def noise_scale(embeddings: Array, mask: Array, snr_db: float) -> Array:
    """Deviation of the noise on each token of a text, `(choices, tokens, 1)`, 0 at padding."""
    sigma = jax.vmap(partial(hopfield.matched_sigma, snr_db=snr_db))(embeddings, mask=mask)
    return jnp.where(mask, sigma[:, None], 0)[..., None]


def correlation_rows(measured: Response) -> list[Row]:
    """Correlation of the outputs at each of `RHOS`: their covariance over the variance."""
    # Differences from rho = 0: what is constant in the noise drops out of them.
    centered = measured.changes - measured.changes[..., :1]
    columns = RHOS, *ratio(centered, centered[..., -1:])
    signal, noise = np.sum(measured.power, axis=0)
    shared = {"metric": "correlation", "corruption": "gaussian", "num_examples": len(centered)}
    shared |= {"snr_db": float(10 * np.log10(signal / noise))}
    names = ("level", "score", "standard_error", "noise_error")
    return [shared | dict(zip(names, point, strict=True)) for point in zip(*columns, strict=True)]


def level_rows(measured: LevelWeights, num_texts: int, snr_db: float) -> list[Row]:
    """Shares of the variance at the levels 1, 2, ..., and above those, with 95 % intervals."""
    shared = {"metric": "level share", "corruption": "gaussian", "num_examples": num_texts}
    shared["snr_db"] = snr_db
    return [
        shared | {"level": float(level), "score": share, "low": low, "high": high}
        for level, (share, low, high) in enumerate(np.asarray(measured.shares).T.tolist(), 1)
    ]


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
