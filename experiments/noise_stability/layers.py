"""Random and trained layers and networks, to measure the theory's formulas on."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from hopfax.stability import gaussian_pair

MAP_TOKENS, MAP_RHO = 12, 0.01

Weights = list[Array]
Sampler = Callable[..., tuple[Array, Array]]


@partial(jax.jit, static_argnames=("width", "depth"))
def random_network(key: PRNGKeyArray, *, width: int, depth: int) -> Weights:
    """Square weights N(0, 2/width), which keep every layer's inputs at unit variance."""
    keys = jax.random.split(key, depth)
    return [jax.random.normal(key, (width, width)) * (2 / width) ** 0.5 for key in keys]


def activations(weights: Weights, x: Float[Array, " width"]) -> Float[Array, "depth width"]:
    """ReLU activations of every layer; the input has not been through a ReLU."""
    outputs = []
    for number, weight in enumerate(weights):
        # The weights' factor 2 makes up for a ReLU before them; the first have none.
        x = jax.nn.relu(x @ weight / (2**0.5 if number == 0 else 1.0))
        outputs.append(x)
    return jnp.stack(outputs)


def attention_pair(num_tokens: int, width: int) -> Sampler:
    """A sampler of attention inputs: correlated tokens, and the same weights in both.

    The theorem is about random parameters, so every sample draws its own: rows are `num_tokens`
    tokens, then W if its rows are in the shape, then one column of W_V.
    """

    def pair(key: PRNGKeyArray, shape: Any, *, rho: Any) -> tuple[Array, Array]:
        for_all, for_noise = jax.random.split(key)
        first = jax.random.normal(for_all, shape)
        fresh = jax.random.normal(for_noise, (num_tokens, width))
        root = jnp.sqrt(jnp.maximum(1 - jnp.square(rho), 0))
        return first, first.at[:num_tokens].set(rho * first[:num_tokens] + root * fresh)

    return pair


def attention(
    num_tokens: int, rows: Float[Array, "rows width"], *, low_rank: bool = False
) -> Float[Array, ""]:
    r"""$\sigma(XWX^\top)XW_V$: one token, one output, of what `attention_pair` draws.

    Without rows for W it is the identity; with `low_rank`, they are the columns of U in W = UUᵀ.
    """
    x, w, v = rows[:num_tokens], rows[num_tokens:-1], rows[-1]
    query = x[0] @ w.T @ w if low_rank else x[0] @ w if len(w) else x[0]
    return jax.nn.softmax(query @ x.T) @ (x @ v) / v.size**0.5


def attention_map(x: Float[Array, "tokens width"], w: Array) -> Float[Array, "tokens tokens"]:
    r"""Attention weights $\sigma(XWX^\top)$, one row a query."""
    return jax.nn.softmax(x @ w @ x.T)


def map_pair(key: PRNGKeyArray, *, width: int) -> Float[Array, "kinds 2 tokens tokens"]:
    """Maps A_X and A_Y with identity and with unstructured scores."""
    for_pair, for_scores = jax.random.split(key)
    pair = jnp.stack(gaussian_pair(for_pair, (MAP_TOKENS, width), rho=MAP_RHO))
    kinds = jnp.stack([jnp.eye(width), jax.random.normal(for_scores, (width, width))])
    return jax.vmap(lambda w: jax.vmap(partial(attention_map, w=w))(pair))(kinds)


def attended(_: Weights, x: Float[Array, "tokens width"]) -> Float[Array, "2 width"]:
    """What the first token attends to with identity scores, and the token."""
    return jnp.stack([jax.nn.softmax(x[0] @ x.T) @ x, x[0]])


@partial(jax.jit, static_argnames=("width", "depth", "structured"))
def random_transformer(
    key: PRNGKeyArray, *, width: int, depth: int, value_norm: float, structured: bool
) -> Weights:
    """Every layer's W, the identity if `structured`, and W_V with columns of norm `value_norm`."""
    for_scores, for_values = jax.random.split(key)
    shape = (depth, width, width)
    scores = jnp.broadcast_to(jnp.eye(width), shape)
    if not structured:
        scores = jax.random.normal(for_scores, shape)
    values = jax.random.normal(for_values, shape)
    return [scores, values * (value_norm / jnp.linalg.norm(values, axis=1, keepdims=True))]


def transformer(weights: Weights, x: Float[Array, "tokens width"]) -> Array:
    """Outputs of every layer, attention and ReLU: no residuals, no normalization."""

    def layer(x: Array, weights: Weights) -> tuple[Array, Array]:
        scores, values = weights
        x = jax.nn.relu(attention_map(x, scores) @ (x @ values))
        return x, x

    return jax.lax.scan(layer, x, weights)[1]


def redrawing_pair(
    draw: Callable[[PRNGKeyArray, tuple[int, ...]], Array], scale: float | Array = 1.0
) -> Sampler:
    """A sampler whose second entries are `scale` times the first with probability rho, else new."""

    def pair(key: PRNGKeyArray, shape: Any, *, rho: Any) -> tuple[Array, Array]:
        for_first, for_fresh, for_choice = jax.random.split(key, 3)
        first, fresh = draw(for_first, shape), draw(for_fresh, shape)
        return first, jnp.where(jax.random.uniform(for_choice, shape) < rho, scale * first, fresh)

    return pair


def process_pair(mean: Array, std: Array, scale: Array) -> Sampler:
    """A sampler of Lemma 11's process, with these parameters of each coordinate."""
    return redrawing_pair(lambda key, shape: mean + std * jax.random.normal(key, shape), scale)


# Entries uniform on [-1, 1].
uniform_pair = redrawing_pair(partial(jax.random.uniform, minval=-1))
