"""Encoders that first denoise their token vectors by retrieval from the vocabulary."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from hopfax.checks import check_range, check_shape, check_shapes, compile_once
from hopfax.hopfield import denoise, denoise_normalized
from hopfax.hopfield.denoise import check_values
from hopfax.nn.encoder import Encoder, Site, Tokens, TokenTypes
from hopfax.nn.functional import Functional, Method, Params, call


def _check_recall(
    tokens: Any, table: Any, *, sigma: Any = None, log_prior: Any = None, log_scale: Any = None
) -> dict[str, Any]:
    shape, of_table = np.shape(tokens), np.shape(table)
    if not shape or len(of_table) != 2 or shape[-1] != of_table[1]:
        allowed = "shape (..., width) and table (vocabulary, width)"
        raise ValueError(f"tokens must have {allowed}, got {shape} and {of_table}")
    if log_scale is not None:
        check_shape(of_table[1:], log_scale=log_scale)
        check_range(-np.inf, ends="()", log_scale=log_scale)
    if sigma is not None and np.shape(sigma) not in ((), shape[:-1]):
        allowed = f"a number or have shape {shape[:-1]}"
        raise ValueError(f"sigma must be {allowed}, got {np.shape(sigma)}")
    return check_values(sigma=sigma, log_prior=log_prior)


@compile_once(check=_check_recall)
def recall(
    tokens: Float[Array, "*batch width"],
    table: Float[Array, "vocabulary width"],
    *,
    sigma: float | Float[Array, "*batch"] | None = None,
    log_prior: Float[Array, " vocabulary"] | None = None,
    log_scale: Float[Array, " width"] | None = None,
) -> Float[Array, "*batch width"]:
    """Replaces noisy token vectors by their posterior means, given the vocabulary's vectors.

    The noise level may be unknown and differ between tokens, see `hopfax.hopfield.denoise`.
    Without noise, the vectors do not change.

    Args:
        tokens: Noisy token vectors.
        table: Clean vectors of the vocabulary, such as `load_pretrained(folder).table`; for a
            model that scales its embeddings, such as Gemma-2, `embed` of all ids.
        sigma: See `denoise`; one for all tokens or one for each.
        log_prior: See `denoise`.
        log_scale: Logarithm of each coordinate's relative noise level, which multiplies `sigma`;
            None if all are equal.

    Returns:
        The posterior means, in the shape of `tokens`, and in their dtype if it is floating.

    Raises:
        TypeError, ValueError: The shapes do not match, or see `hopfax.hopfield.denoise` for the
            table and `log_prior`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from hopfax import nn
        >>> table = jax.random.normal(jax.random.key(0), (1000, 128))
        >>> tokens = table[jnp.array([[1, 2, 3], [4, 5, 6]])]
        >>> noisy = tokens + jax.random.normal(jax.random.key(1), tokens.shape)
        >>> bool(jnp.abs(nn.recall(noisy, table) - tokens).max() < 1e-3)
        True
        >>> model = nn.load_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
        >>> model.forward(nn.recall(noisy, model.table), mask)  # doctest: +SKIP
    """
    tokens, table = jnp.asarray(tokens), jnp.asarray(table)
    if sigma is not None:
        sigma = jnp.broadcast_to(sigma, tokens.shape[:-1]).ravel()
    scale = 1.0 if log_scale is None else jnp.exp(jnp.asarray(log_scale))
    dtype = tokens.dtype if jnp.issubdtype(tokens.dtype, jnp.floating) else jnp.float32
    rows, patterns = (tokens / scale).reshape(-1, tokens.shape[-1]), table / scale

    def one(row: Array, sigma: Array | None) -> Array:
        return denoise(row, patterns, sigma=sigma, log_prior=log_prior).value

    return (jax.vmap(one)(rows, sigma) * scale).reshape(tokens.shape).astype(dtype)


def with_memory(
    model: Functional[Encoder], *, site: Site = "token", sigma: float | None = None
) -> Functional[Encoder]:
    """Returns an encoder that applies `recall` to its embeddings, with its own vocabulary.

    `params["memory"]` holds the `log_prior` and `log_scale` of `recall`, which start at 0, and, if
    `sigma` is given, its logarithm `log_sigma`, of shape (1,). All can be trained; `log_scale` has
    no effect at the embedding site. Without noise, the model computes the same function, unless
    `sigma` is so large that tokens are confused.

    Args:
        model: From `tinybert`, `robertha`, `text_classifier`, ...
        site: Site of the noise: `"token"`, the token vectors before positions and LayerNorm, or
            `"embedding"`, the LayerNorm's output, whose patterns depend on position and token type
            (positions as `Encoder.embed` counts them by default).
        sigma: Standard deviation of the noise in each coordinate, > 0; None if unknown, so that
            each token's noise level is integrated out.

    Raises:
        TypeError: `model` is not a `Functional` with an `Encoder`. To denoise the embeddings of a
            `Pretrained`, use `recall`.
        ValueError: `site` is neither of these, or is `"embedding"` and the encoder has no
            embedding LayerNorm; the model already has memory; or `sigma` is out of range. `apply`
            raises it for parameters without `"memory"`.

    Example:
        >>> import jax
        >>> from hopfax import nn
        >>> model = nn.with_memory(nn.tinybert(100, 2, width=8, num_layers=1))
        >>> sorted(model.init(jax.random.key(0))["memory"])
        ['log_prior', 'log_scale']
    """
    if site not in _RECALLS:
        raise ValueError(f'site must be "token" or "embedding", got {site!r}')
    if not isinstance(model, Functional):
        raise TypeError(
            "model must be a Functional, such as text_classifier(pretrained, 2), got a "
            f"{type(model).__name__}; to denoise embeddings of a Pretrained, use recall"
        )
    if sigma is not None:
        check_shapes(sigma=(sigma, ""))
        check_range(0, ends="()", sigma=sigma)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    if "positions" not in shapes:
        raise TypeError(f"model must be an Encoder, got one with parameters {', '.join(shapes)}")
    if site == "embedding" and "norm" not in shapes:
        raise ValueError('site "embedding" requires an encoder with an embedding LayerNorm')
    if "memory" in shapes:
        raise ValueError("the model already has memory; memory at both sites is not supported")

    return Functional(partial(_init, model.init, sigma), denoised(model, site, _RECALLS[site]))


def initial_memory(table: Array, sigma: float | None) -> Params:
    """Returns the parameters that `with_memory` adds."""
    memory = {"log_prior": jnp.zeros(len(table)), "log_scale": jnp.zeros(table.shape[1])}
    return memory if sigma is None else {**memory, "log_sigma": jnp.log(jnp.full(1, sigma))}


def _init(init: Callable[..., Params], sigma: float | None, key: PRNGKeyArray) -> Params:
    params = init(key)
    return {**params, "memory": initial_memory(params["tokens"]["embedding"], sigma)}


def _level(memory: Params) -> Array | None:
    return jnp.exp(memory["log_sigma"][0]) if "log_sigma" in memory else None


def _patterns(network: Encoder) -> Array:
    table, padding = network.tokens.embedding[...], network.padding_idx
    if padding is not None:  # without a gradient, as in the encoder
        table = table.at[padding].set(jax.lax.stop_gradient(table[padding]))
    return network.embedding_scale * table


def _at_token(memory: Params, network: Encoder, tokens: Tokens, types: TokenTypes) -> Tokens:
    others = {name: value for name, value in memory.items() if name != "log_sigma"}
    return recall(tokens, _patterns(network), sigma=_level(memory), **others)


def _at_embedding(
    memory: Params, network: Encoder, embeddings: Tokens, types: TokenTypes
) -> Tokens:
    norm = network.norm
    assert norm and norm.scale and norm.bias
    options = {"scale": norm.scale[...], "bias": norm.bias[...], "epsilon": norm.epsilon}
    table = _patterns(network)
    positions = network.position_offset + jnp.arange(embeddings.shape[-2])
    offsets, axis = network.positions(positions), None
    if network.types is not None:
        types = jnp.zeros(embeddings.shape[:-1], int) if types is None else types
        offsets, axis = offsets + network.types(types), 0
    offsets *= network.embedding_scale

    def recalled(row: Array, offset: Array) -> Array:
        known = {"sigma": _level(memory), "log_prior": memory["log_prior"]}
        return denoise_normalized(row, table, offset, **known, **options).value

    # Without types, all texts share the offsets, and their products with the table.
    return jax.vmap(jax.vmap(recalled), in_axes=(0, axis))(embeddings, offsets)


_RECALLS = {"token": _at_token, "embedding": _at_embedding}


def denoised(
    model: Functional[Encoder], site: Site, denoise: Callable[..., Array]
) -> Callable[..., Any]:
    """Returns the `apply` of a model with `denoise(memory, network, tokens, types)` at a site.

    `memory` is `params["memory"]`.
    """
    return partial(_apply, model.apply, site, denoise)


def _apply(
    apply: Callable[..., Any],
    site: Site,
    denoise: Callable[..., Array],
    params: Params,
    *inputs: Any,
    method: Method = "__call__",
    **options: Any,
) -> Any:
    if "memory" not in params:
        raise ValueError('params must have an entry "memory", see the `init` of with_memory')
    encoder = {name: each for name, each in params.items() if name != "memory"}

    def run(network: Encoder, *inputs: Any, **options: Any) -> Any:
        network.memory = {site: partial(denoise, params["memory"])}
        return call(network, method, *inputs, **options)

    return apply(encoder, *inputs, method=run, **options)
