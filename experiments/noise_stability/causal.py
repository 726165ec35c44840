"""Influence on a causal model's layers and heads by bands of positions, and texts that it samples.

A band is one of `BANDS` equal parts of a text; its influence is the root mean square of those of
its tokens. Along random signs s at their embeddings, one directional derivative J s has
E |J s|² = Σ_i |J_i|² over tokens i, for all layers and heads at once.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from hopfax.nn import Params, Pretrained, causal
from hopfax.nn.families import find_family

BANDS = 16


def band_influences(
    model: Pretrained, special: int, params: Params, ids: jax.Array, key: jax.Array
) -> jax.Array:
    """Returns the influence of each band on layers and heads at the last token.

    In units of the mean over bands, `(layers, 1 + heads, BANDS)`. Bands exclude the first `special`
    tokens.
    """
    _, config = find_family(model.config)
    (embeddings,) = model.embed(ids[None], params=params)
    signs = jax.random.rademacher(key, embeddings.shape, embeddings.dtype)
    bands = (jnp.arange(len(ids)) - special) * BANDS // (len(ids) - special)

    def outputs(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        forward = causal.CAUSAL[config["model_type"]](config)
        text = forward(params, x, jnp.ones(len(x), bool))
        heads = text.mixed[:, -1].reshape(len(text.mixed), config["num_attention_heads"], -1)
        return text.hidden_states[1:, -1], heads

    _, derivative = jax.linearize(outputs, embeddings)

    def squares(band: jax.Array) -> list[jax.Array]:
        chosen = (bands == band)[:, None]
        slopes = derivative(jnp.where(chosen, signs, 0))
        return [jnp.square(each).sum(-1) / chosen.sum() for each in slopes]

    of_states, of_heads = jax.lax.map(squares, jnp.arange(BANDS))
    both = jnp.concatenate([of_states[..., None], of_heads], axis=-1)
    each = jnp.sqrt(jnp.moveaxis(both, 0, -1))
    return each / each.mean(-1, keepdims=True)


def sample(model: Pretrained, num_tokens: int, params: Params, key: jax.Array) -> jax.Array:
    """Returns ids of a text that a causal model samples at temperature 1 after its start token.

    Gumbel noise is drawn once. All positions then take their likeliest token under it, given the
    text so far, until none changes: the text as drawn token by token, in fewer passes.
    """
    noise, ids = jax.random.gumbel(key, (num_tokens, len(model.table))), jnp.zeros(0, int)

    def redraw(pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        before = jnp.concatenate([jnp.array([model.config["bos_token_id"]]), pair[1][:-1]])[None]
        embeddings, mask = model.embed(before, params=params), jnp.ones(before.shape, bool)
        logits = model.forward(embeddings, mask, params=params).output[0]
        return pair[1], (logits + noise[: len(logits)]).argmax(-1)

    for length in (num_tokens // 4, num_tokens // 2, num_tokens):  # short passes cost less
        ids = jnp.pad(ids, (0, length - len(ids)))
        changes = lambda pair: (pair[0] != pair[1]).any()  # noqa: E731
        _, ids = jax.lax.while_loop(changes, redraw, (ids - 1, ids))
    return ids
