"""Layers in slow float64 NumPy, on nested dicts of this library's parameters."""

import math
from functools import partial

import numpy as np
from flax import nnx


def module(tensors, name):
    """Returns a PyTorch module's arrays under this library's names."""
    weight, bias = (np.asarray(tensors[f"{name}.{part}"], float) for part in ("weight", "bias"))
    return {"kernel": weight.T, "scale": weight, "bias": bias}


def linear(params, x):
    return x @ np.asarray(params["kernel"]) + np.asarray(params.get("bias", 0))


def norm(params, x, epsilon=1e-5):
    centered = x - x.mean(-1, keepdims=True)
    scale = np.sqrt((centered**2).mean(-1, keepdims=True) + epsilon)
    return centered / scale * np.asarray(params["scale"]) + np.asarray(params["bias"])


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def project(params, name, x):
    return linear(params[name], x) if name in params else x


def attend(params, x, mask, *, num_heads=2, beta=1.0, move=None, causal=False):
    """Attention with a loop over heads and queries.

    `move(text, head, token, query, keys)` returns the query's state for the read-out.
    """
    result = np.zeros_like(x)
    head_width = x.shape[-1] // num_heads
    beta = beta / np.sqrt(head_width)
    for b, rows in enumerate(x):
        query, key, value = (project(params, name, rows) for name in ("query", "key", "value"))
        for h, t in np.ndindex(num_heads, len(rows)):
            part = slice(h * head_width, (h + 1) * head_width)
            visible = mask[b] & (np.arange(len(rows)) <= t) if causal else mask[b]
            keys, values = key[visible, part], value[visible, part]
            state = query[t, part] if move is None else move(b, h, t, query[t, part], keys)
            weights = np.exp([beta * key @ state for key in keys])
            result[b, t, part] = weights @ values / weights.sum()
    return project(params, "out", result)


def block(params, x, mask, *, norm_first, activation=gelu, causal=False):
    """Attention and feed-forward of one layer."""
    first, second = (partial(norm, params[name]) for name in ("attention_norm", "ff_norm"))

    def feed_forward(x):
        return linear(params["ff_out"], activation(linear(params["ff_in"], x)))

    attended = partial(attend, params["attention"], mask=mask, causal=causal)
    if norm_first:
        x = x + attended(first(x))
        return x + feed_forward(second(x))
    x = first(x + attended(x))
    return second(x + feed_forward(x))


def bind(model, params):
    """Returns the module with these parameters."""
    module = model.build(rngs=nnx.Rngs(0))
    nnx.update(module, params)
    return module
