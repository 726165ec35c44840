"""Influence of tokens on a model's layers and heads, and texts that a causal model samples.

A band is one of `BANDS` equal parts of a text, without special tokens; its influence is the root
mean square of its tokens'. Along random signs s at their embeddings, one directional derivative J s
has E |J s|² = Σ_i |J_i|² over tokens i, for all layers and heads at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from experiments.models import is_causal
from hopfax.nn import Params, Pretrained, causal
from hopfax.nn.families import find_family

BANDS = 16
LAYER_PROJECTIONS = 4  # random directions of a layer's derivative; a head has one


def pooled(model: Pretrained, states: jax.Array) -> jax.Array:
    """Returns a text's embedding, or what a causal model has at the last token."""
    if is_causal(model):
        return states[-1]
    mean = states.mean(0)
    return mean / jnp.linalg.norm(mean)


def inside(model: Pretrained, params: Params, embeddings: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the states after each layer, `(layers, tokens, width)`, and what its heads pass on.

    Those are `(layers, tokens, heads, head width)`, before the output projection.
    """
    mask, (_, config) = jnp.ones(len(embeddings), bool), find_family(model.config)
    num_heads = config["num_attention_heads"]
    if is_causal(model):
        forward = getattr(causal, config["model_type"])(config)
        _, states, (_, mixed) = forward(params, embeddings, mask)
        return states[1:], mixed.reshape(*mixed.shape[:2], num_heads, -1)
    states = model.forward(embeddings[None], mask[None], params=params).hidden_states[:, 0]
    each = [
        head_outputs(params["blocks"][layer]["attention"], of_layer, num_heads)
        for layer, of_layer in enumerate(states[:-1])
    ]
    return states[1:], jnp.stack(each)


def head_outputs(params: Params, states: jax.Array, num_heads: int) -> jax.Array:
    """Returns what each head of a layer of BERT passes on, `(tokens, heads, head width)`."""
    query, keys, values = (
        (states @ p["kernel"] + p["bias"]).reshape(len(states), num_heads, -1)
        for p in (params["query"], params["key"], params["value"])
    )
    return jax.nn.dot_product_attention(query, keys, values)


def inner_influences(
    model: Pretrained, params: Params, ids: jax.Array, key: jax.Array, *, layer: int
) -> jax.Array:
    """Returns the influence of every token on an encoder's layer and on the output of its heads.

    In units of the mean over tokens, `(1 + heads, tokens)`.
    """
    (embeddings,) = model.embed(ids[None], params=params)

    def outputs(x: jax.Array, keys: jax.Array) -> jax.Array:
        states, heads = inside(model, params, x)
        value, passed = pooled(model, states[layer]), heads[layer].mean(0)
        signs = jax.random.rademacher(keys[0], (LAYER_PROJECTIONS, len(value)), x.dtype)
        of_heads = (jax.random.rademacher(keys[1], passed.shape, x.dtype) * passed).sum(-1)
        return jnp.concatenate([signs @ value, of_heads])

    slopes = jax.jacrev(outputs)(embeddings, jax.random.split(key))
    squares = jnp.square(slopes).sum(-1)
    of_states, of_heads = jnp.split(squares, [LAYER_PROJECTIONS])
    each = jnp.sqrt(jnp.concatenate([of_states.sum(0, keepdims=True), of_heads]))
    return each / each.mean(-1, keepdims=True)


def band_influences(
    model: Pretrained, params: Params, ids: jax.Array, key: jax.Array, *, special: tuple[int, int]
) -> jax.Array:
    """Returns the influence of each band of a text on all layers and heads.

    In units of the mean over bands, `(layers, 1 + heads, BANDS)`. There are `special` tokens before
    and after the text.
    """
    (embeddings,) = model.embed(ids[None], params=params)
    signs = jax.random.rademacher(key, embeddings.shape, embeddings.dtype)
    bands = (jnp.arange(len(ids)) - special[0]) * BANDS // (len(ids) - sum(special))

    def outputs(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        states, heads = inside(model, params, x)
        of_heads = heads[:, -1] if is_causal(model) else heads.mean(1)
        return jax.vmap(partial(pooled, model))(states), of_heads

    _, derivative = jax.linearize(outputs, embeddings)

    def squares(band: jax.Array) -> jax.Array:
        chosen = (bands == band)[:, None]
        of_states, of_heads = derivative(jnp.where(chosen, signs, 0))
        sums = [jnp.square(of_states).sum(-1)[:, None], jnp.square(of_heads).sum(-1)]
        return jnp.concatenate(sums, axis=1) / chosen.sum()

    each = jnp.sqrt(jnp.moveaxis(jax.lax.map(squares, jnp.arange(BANDS)), 0, -1))
    return each / each.mean(-1, keepdims=True)


def sampler(model: Pretrained, *, num_tokens: int) -> Callable[[Params, jax.Array], jax.Array]:
    """Returns a function of parameters and a key: a text that a causal model samples, as ids.

    At temperature 1, after the model's start token. Gumbel noise is drawn once. All positions then
    take their likeliest token under it, given the text so far, until none changes: the text as
    drawn token by token, in fewer passes.

    Raises:
        ValueError: The configuration has no start token.
    """
    start, vocab_size = model.config.get("bos_token_id"), len(model.table)
    if not isinstance(start, int) or not 0 <= start < vocab_size:
        raise ValueError(f"bos_token_id must be an id below {vocab_size} to sample, got {start!r}")

    @jax.jit
    def settle(params: Params, ids: jax.Array, noise: jax.Array) -> jax.Array:
        def redraw(ids: jax.Array) -> jax.Array:
            before = jnp.concatenate([jnp.array([start]), ids[:-1]])[None]
            embeddings, mask = model.embed(before, params=params), jnp.ones(before.shape, bool)
            logits = model.forward(embeddings, mask, params=params).output[0]
            return (logits + noise).argmax(-1).astype(ids.dtype)

        changes = lambda pair: (pair[0] != pair[1]).any()  # noqa: E731
        step = lambda pair: (pair[1], redraw(pair[1]))  # noqa: E731
        return jax.lax.while_loop(changes, step, (ids - 1, ids))[1]

    def sample(params: Params, key: jax.Array) -> jax.Array:
        noise, ids = jax.random.gumbel(key, (num_tokens, vocab_size)), jnp.zeros(0, int)
        for length in (num_tokens // 4, num_tokens // 2, num_tokens):  # short passes cost less
            ids = settle(params, jnp.pad(ids, (0, length - len(ids))), noise[:length])
        return ids

    return sample
