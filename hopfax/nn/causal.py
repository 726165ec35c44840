"""GPT-2, Gemma-2 and Llama's family as pure functions of their parameters, for one sequence.

Parameters are nested dicts; those of all layers are stacked along the first axis. Weights are
(inputs, outputs).

References:
    Radford et al. (2019), Language Models are Unsupervised Multitask Learners; Gemma Team (2024),
    Gemma 2; Touvron et al. (2023), LLaMA; Jiang et al. (2023), Mistral 7B; Qwen Team (2024, 2025),
    Qwen2 and Qwen3.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from hopfax.nn.block import ACTIVATIONS
from hopfax.nn.families import Settings, check_positive
from hopfax.nn.functional import Params

Memory = Float[Array, "tokens groups head"]  # keys or values of a layer


class Cache(NamedTuple):
    """Keys and values of the tokens read so far, and their number."""

    keys: Float[Array, "layers tokens groups head"]
    values: Float[Array, "layers tokens groups head"]
    length: Int[Array, ""]


class Output(NamedTuple):
    """What a model computes for one text, or for one token after those of a cache.

    The output is the logits of the next token, or, with a classifier, of the classes.
    """

    output: Float[Array, "tokens outputs"]
    hidden_states: Float[Array, "states tokens width"]
    weights: Float[Array, "layers heads queries tokens"]
    mixed: Float[Array, "layers tokens mixed"]  # what the heads pass on, side by side
    keys: Float[Array, "layers tokens groups head"]
    values: Float[Array, "layers tokens groups head"]


# Output of a layer, then its part of each field of `Output` from the weights on.
Layer = tuple[Float[Array, "tokens width"], Array, Array, Memory, Memory]
# (parameters, embeddings, mask, cache) -> output; with a cache, embeddings are those of one token,
# and the mask covers all tokens that the cache has room for.
Forward = Callable[..., Output]


def gpt2(config: Settings) -> Forward:
    """GPT-2: pre-norm blocks, causal attention, one projection for queries, keys and values."""
    norm = partial(_layer_norm, eps=config["layer_norm_eps"])
    activation = config.choose("hidden_act", ACTIVATIONS)
    heads = partial(_split, head_width=config.head_width)
    scale = config.head_width**-0.5

    def forward(
        params: Params, embeddings: Array, mask: Array, cache: Cache | None = None
    ) -> Output:
        places = _places(mask, cache)
        allowed = mask & (_distances(mask, places) >= 0)
        # Positions count from the first real token.
        positions = jnp.maximum(places - jnp.argmax(mask), 0)
        x = embeddings + params["positions"]["embedding"][positions]

        def block(x: Array, p: Params, _: None, seen: Any) -> Layer:
            h = _linear(p["qkv"], norm(p["attention_norm"], x))
            query, keys, values = (heads(part) for part in jnp.split(h, 3, axis=-1))
            read = _append(seen, places, keys, values)
            mixed, weights = _attend(query, *read, allowed, scale=scale)
            x = x + _linear(p["attention_out"], mixed)
            hidden = activation(_linear(p["ff_in"], norm(p["ff_norm"], x)))
            return x + _linear(p["ff_out"], hidden), weights, mixed, keys, values

        final = partial(norm, params["norm"])
        states, *parts = _run_layers(block, x, params["layers"], cache, final=final)
        return Output(states[-1] @ _head(params), states, *parts)

    return forward


def gemma2(config: Settings) -> Forward:
    """Gemma-2: RMS norms around both parts, rotary positions, soft caps, alternating windows."""
    norm = partial(_rms_norm, eps=config["rms_norm_eps"], offset=1)
    activation = config.choose("hidden_act", ACTIVATIONS)
    heads = partial(_split, head_width=config.head_width)
    rotate = partial(_rotate, theta=_rope_theta(config))
    scale = config["query_pre_attn_scalar"] ** -0.5
    cap, final_cap = (config.get(f"{name}_logit_softcapping") for name in ("attn", "final"))
    windows = _windows(config, lambda layer: layer % 2 == 0)

    def forward(
        params: Params, embeddings: Array, mask: Array, cache: Cache | None = None
    ) -> Output:
        places = _places(mask, cache)
        distances = _distances(mask, places)
        causal = mask & (distances >= 0)

        def block(x: Array, p: Params, window: Array, seen: Any) -> Layer:
            h = norm(p["attention_norm"], x)
            query, keys, values = (heads(_linear(p[k], h)) for k in ("query", "key", "value"))
            allowed = causal & (distances < window)
            query, keys = rotate(query, places), rotate(keys, places)
            read = _append(seen, places, keys, values)
            mixed, weights = _attend(query, *read, allowed, scale=scale, cap=cap)
            x = x + norm(p["attention_out_norm"], _linear(p["attention_out"], mixed))
            h = norm(p["ff_norm"], x)
            hidden = activation(_linear(p["ff_gate"], h)) * _linear(p["ff_in"], h)
            x = x + norm(p["ff_out_norm"], _linear(p["ff_out"], hidden))
            return x, weights, mixed, keys, values

        final, layers = partial(norm, params["norm"]), params["layers"]
        states, *parts = _run_layers(block, embeddings, layers, cache, windows, final=final)
        cap_of_head = None if "score" in params else final_cap
        return Output(_soft_cap(states[-1] @ _head(params), cap_of_head), states, *parts)

    return forward


def llama(config: Settings) -> Forward:
    """Llama: RMS norms, rotary positions, a gated feed-forward; the output may have a matrix.

    Qwen2 has biases of queries, keys and values, Qwen3 norms of each head's queries and keys;
    Mistral and some of Qwen's layers attend to a window of tokens.
    """
    norm = partial(_rms_norm, eps=config["rms_norm_eps"])
    activation = config.choose("hidden_act", ACTIVATIONS)
    heads = partial(_split, head_width=config.head_width)
    rotate = partial(_rotate, theta=_rope_theta(config))
    scale = config.head_width**-0.5
    windowed = config.get("use_sliding_window") and config.get("sliding_window")
    first = config["max_window_layers"] if windowed else config["num_hidden_layers"]
    windows = _windows(config, lambda layer: layer >= first)

    def forward(
        params: Params, embeddings: Array, mask: Array, cache: Cache | None = None
    ) -> Output:
        places = _places(mask, cache)
        distances = _distances(mask, places)
        causal = mask & (distances >= 0)

        def block(x: Array, p: Params, window: Array, seen: Any) -> Layer:
            h = norm(p["attention_norm"], x)
            query, keys, values = (heads(_linear(p[k], h)) for k in ("query", "key", "value"))
            if "query_norm" in p:
                query, keys = norm(p["query_norm"], query), norm(p["key_norm"], keys)
            allowed = causal & (distances < window)
            query, keys = rotate(query, places), rotate(keys, places)
            read = _append(seen, places, keys, values)
            mixed, weights = _attend(query, *read, allowed, scale=scale)
            x = x + _linear(p["attention_out"], mixed)
            h = norm(p["ff_norm"], x)
            hidden = activation(_linear(p["ff_gate"], h)) * _linear(p["ff_in"], h)
            return x + _linear(p["ff_out"], hidden), weights, mixed, keys, values

        final = partial(norm, params["norm"])
        layers = params["layers"]
        states, *parts = _run_layers(block, embeddings, layers, cache, windows, final=final)
        return Output(states[-1] @ _head(params), states, *parts)

    return forward


# By `model_type`.
CAUSAL = {
    "gpt2": gpt2, "gemma2": gemma2, "llama": llama, "mistral": llama, "qwen2": llama,
    "qwen3": llama,
}  # fmt: skip


def _head(params: Params) -> Float[Array, "width outputs"]:
    """Returns the matrix of a classifier, or of a language model, which may be the embeddings'."""
    own = params.get("score", params.get("head"))
    return params["tokens"]["embedding"].T if own is None else own["weight"]


def _rope_theta(config: Settings) -> float:
    for key in ("rope_parameters", "rope_scaling"):
        if not isinstance(value := config.get(key, {}), dict):
            raise ValueError(f"{key} must be an object, got {value!r}")
    rope = config.get("rope_parameters", config.get("rope_scaling", {}))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise ValueError(f"rope_type must be default, got {kind!r}")
    theta = rope["rope_theta"] if "rope_theta" in rope else config["rope_theta"]
    check_positive("rope_theta", theta)
    return theta


def _windows(config: Settings, is_windowed: Callable[[int], bool]) -> Int[Array, " layers"]:
    """Returns the number of tokens each layer's queries attend to, including their own.

    Without `layer_types`, `is_windowed` says whether a layer has a window.
    """
    num_layers = config["num_hidden_layers"]
    sizes = {
        "full_attention": "max_position_embeddings",
        "sliding_attention": "sliding_window",
    }
    default = [list(sizes)[is_windowed(layer)] for layer in range(num_layers)]
    types = config.get("layer_types", default)
    known = isinstance(types, list) and all(name in list(sizes) for name in types)
    if not known or len(types) != num_layers:
        raise ValueError(
            f"layer_types must be a list of {num_layers} of {', '.join(sizes)}, got {types!r}"
        )
    return jnp.array([config[sizes[name]] for name in types])


def _run_layers(
    block: Callable[..., Layer],
    x: Float[Array, "tokens width"],
    layers: Params,
    cache: Cache | None,
    settings: Array | None = None,
    *,
    final: Callable[[Array], Array],
) -> tuple[Array, ...]:
    """Returns hidden states, the last one after `final`, and the other fields of `Output`."""

    def step(x: Array, layer: tuple[Any, ...]) -> tuple[Array, tuple[Array, ...]]:
        place, p, setting = layer
        seen = cache and (cache.keys[place], cache.values[place])
        output, *parts = block(x, p, setting, seen)
        return output, (x, *parts)

    number = len(jax.tree.leaves(layers)[0])
    last, (inputs, *parts) = jax.lax.scan(step, x, (jnp.arange(number), layers, settings))
    if cache:  # written once: a scan over caches would copy them in and out
        here = (jnp.arange(cache.keys.shape[1]) == cache.length)[:, None, None]
        parts[-2:] = (jnp.where(here, *each) for each in zip(parts[-2:], cache[:2], strict=True))
    return jnp.concatenate([inputs, final(last)[None]]), *parts


def _append(
    seen: tuple[Memory, Memory] | None, places: Array, keys: Memory, values: Memory
) -> tuple[Memory, Memory]:
    """Returns a layer's keys and values: with a cache, those before as well."""
    if seen is None:
        return keys, values
    here = (jnp.arange(len(seen[0])) == places)[:, None, None]
    return jnp.where(here, keys, seen[0]), jnp.where(here, values, seen[1])


def _attend(
    query: Float[Array, "tokens heads head"],
    keys: Float[Array, "tokens groups head"],
    values: Float[Array, "tokens groups head"],
    allowed: Bool[Array, "#tokens tokens"],
    *,
    scale: float,
    cap: float | None = None,
) -> tuple[Float[Array, "tokens mixed"], Float[Array, "heads queries tokens"]]:
    """Softmax attention in float32 at least; groups of heads share keys and values."""

    def group(query: Array, keys: Array, values: Array) -> tuple[Array, Array]:
        scores = _soft_cap(scale * (_wide(query) @ _wide(keys).T), cap)
        lowest = jnp.finfo(scores.dtype).min
        weights = jax.nn.softmax(jnp.where(allowed[:, None], scores, lowest))
        return weights.astype(values.dtype) @ values, weights

    # Heads of a group share keys and values, which are not copied for each.
    grouped = query.reshape(len(query), keys.shape[1], -1, query.shape[2])
    mixed, weights = jax.vmap(group, in_axes=1, out_axes=(1, 0))(grouped, keys, values)
    heads = jnp.moveaxis(weights, 2, 1).reshape(query.shape[1], len(query), -1)
    return mixed.reshape(len(query), -1), heads


def _rotate(
    x: Float[Array, "tokens heads head"], places: Int[Array, " tokens"], *, theta: float
) -> Array:
    """Rotary position embedding of the two halves of a head: Su et al. (2021), RoFormer."""
    half = x.shape[-1] // 2
    angles = places[:, None, None] * theta ** (-jnp.arange(half) / half)
    left, right = jnp.split(_wide(x), 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    rotated = jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)
    return rotated.astype(x.dtype)


def _places(mask: Bool[Array, " tokens"], cache: Cache | None) -> Int[Array, " queries"]:
    return jnp.arange(len(mask)) if cache is None else cache.length[None]


def _distances(mask: Bool[Array, " tokens"], places: Array) -> Int[Array, "queries keys"]:
    return places[:, None] - jnp.arange(len(mask))


def _split(x: Float[Array, "tokens width"], *, head_width: int) -> Array:
    return x.reshape(len(x), -1, head_width)


def _linear(p: Params, x: Array) -> Array:
    return x @ p["weight"] + p.get("bias", 0)


def _layer_norm(p: Params, x: Array, *, eps: float) -> Array:
    centered = _wide(x) - _wide(x).mean(-1, keepdims=True)
    return (_normalize(centered, eps=eps) * p["weight"] + p["bias"]).astype(x.dtype)


def _rms_norm(p: Params, x: Array, *, eps: float, offset: int = 0) -> Array:
    return (_normalize(_wide(x), eps=eps) * (offset + _wide(p["weight"]))).astype(x.dtype)


def _normalize(x: Array, *, eps: float) -> Array:
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + eps)


def _soft_cap(x: Array, cap: float | None) -> Array:
    return x if cap is None else cap * jnp.tanh(x / cap)


def _wide(x: Array) -> Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
