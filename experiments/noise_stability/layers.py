"""The functions whose stability the theory speaks of, random and trained."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

Weights = list[Array]


def relu(x: Array) -> Array:
    """One unit on one standard normal input, Theorem 5.1's."""
    return jax.nn.relu(x[0])


def random_network(key: PRNGKeyArray, *, width: int, depth: int) -> Weights:
    """Square weights N(0, 2/width), which keep every layer's inputs at unit variance."""
    keys = jax.random.split(key, depth)
    return [jax.random.normal(key, (width, width)) * (2 / width) ** 0.5 for key in keys]


def activations(weights: Weights, x: Float[Array, " width"]) -> Float[Array, "depth width"]:
    """ReLU activations of every layer; the input is taken as it is, not through a ReLU."""
    found = []
    for number, weight in enumerate(weights):
        # The factor 2 makes up for what a ReLU takes away, and the input has been through none.
        x = jax.nn.relu(x @ weight / (2**0.5 if number == 0 else 1.0))
        found.append(x)
    return jnp.stack(found)


def attention_pair(num_tokens: int, width: int) -> Callable[..., tuple[Array, Array]]:
    """A sampler of attention inputs: tokens with noise, and the layer's W and value vector without.

    The theorem is about random parameters, so every sample draws its own: rows are `num_tokens`
    tokens, then W, then one column of W_V.
    """

    def pair(
        key: PRNGKeyArray, shape: tuple[int, ...], *, rho: float | Array
    ) -> tuple[Array, Array]:
        for_all, for_noise = jax.random.split(key)
        first = jax.random.normal(for_all, shape)
        fresh = jax.random.normal(for_noise, (num_tokens, width))
        root = jnp.sqrt(jnp.maximum(1 - jnp.square(rho), 0))
        return first, first.at[:num_tokens].set(rho * first[:num_tokens] + root * fresh)

    return pair


def attention(num_tokens: int) -> Callable[[Array], Array]:
    r"""$\sigma(XWX^\top)XW_V$: one token, one output, of what `attention_pair` draws."""

    def layer(rows: Float[Array, "rows width"]) -> Array:
        x, w, v = rows[:num_tokens], rows[num_tokens:-1], rows[-1]
        weights = jax.nn.softmax(x[0] @ w @ x.T)
        return weights @ (x @ v) / v.size**0.5

    return layer


def mlp(params: Weights, x: Float[Array, " inputs"]) -> Float[Array, ""]:
    """A ReLU network with one output; the last row of each matrix is its bias."""
    for number, layer in enumerate(params):
        x = x @ layer[:-1] + layer[-1]
        x = x if number == len(params) - 1 else jax.nn.relu(x)
    return x[0]


def init_mlp(key: PRNGKeyArray, sizes: tuple[int, ...]) -> Weights:
    """He-initialised matrices with a row of zero biases."""
    return [
        jnp.vstack(
            [jax.random.normal(key, (fan_in, fan_out)) * (2 / fan_in) ** 0.5, jnp.zeros(fan_out)]
        )
        for key, fan_in, fan_out in zip(
            jax.random.split(key, len(sizes) - 1), sizes[:-1], sizes[1:], strict=True
        )
    ]


def train_mlp(
    params: Weights,
    key: PRNGKeyArray,
    target: Callable[[Array], Array],
    *,
    steps: int,
    batch: int = 256,
    learning_rate: float = 1e-3,
) -> tuple[Weights, Array]:
    """Fits `target` on fresh standard normal inputs by least squares; returns the last loss too."""
    optimizer = optax.adam(learning_rate)

    def loss(params: Weights, x: Array) -> Array:
        found = jax.vmap(lambda x: mlp(params, x))(x)
        return jnp.mean(jnp.square(found - jax.vmap(target)(x)))

    def step(carry: tuple[Weights, Any], key: PRNGKeyArray) -> tuple[tuple[Weights, Any], Array]:
        params, state = carry
        x = jax.random.normal(key, (batch, params[0].shape[0] - 1))
        value, gradient = jax.value_and_grad(loss)(params, x)
        updates, state = optimizer.update(gradient, state)
        return (jax.tree.map(jnp.add, params, updates), state), value

    (params, _), losses = jax.lax.scan(
        step, (params, optimizer.init(params)), jax.random.split(key, steps)
    )
    return params, losses[-1]
