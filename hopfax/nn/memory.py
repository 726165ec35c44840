"""Encoders that first denoise their token vectors by retrieval from the vocabulary."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from hopfax.checks import check_range, check_shape, check_shapes, compile_once
from hopfax.hopfield import denoise, denoise_normalized
from hopfax.hopfield.denoise import check_values
from hopfax.nn.encoder import Encoder, EncoderConfig, Site, Tokens, TokenTypes
from hopfax.nn.functional import Functional, Params, functional


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


@compile_once(check=_check_recall, split=True)
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
    Without noise, the vectors do not change. Local devices share the first axis if they divide it.

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
        TypeError, ValueError: Shapes do not match, or `log_scale` is not finite. For `sigma` and
            `log_prior`, see `hopfax.hopfield.denoise`.

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
    model: Functional[Encoder],
    *,
    site: Site = "token",
    sigma: float | None = None,
    denoise: Callable[..., Tokens] = recall,
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
        denoise: Replaces `recall` at the token site; takes the same arguments.

    Raises:
        TypeError: `model` is not a `Functional` with an `Encoder`. To denoise the embeddings of a
            `Pretrained`, use `recall`.
        ValueError: `site` is neither of these, or is `"embedding"` and the encoder has no
            embedding LayerNorm; the model already has memory; or `sigma` is out of range.

    Example:
        >>> import jax
        >>> from hopfax import nn
        >>> model = nn.with_memory(nn.tinybert(100, 2, width=8, num_layers=1))
        >>> sorted(model.init(jax.random.key(0))["memory"])
        ['log_prior', 'log_scale']
    """
    if site not in ("token", "embedding"):
        raise ValueError(f'site must be "token" or "embedding", got {site!r}')
    if not isinstance(model, Functional):
        raise TypeError(
            "model must be a Functional, such as text_classifier(pretrained, 2), got a "
            f"{type(model).__name__}; to denoise embeddings of a Pretrained, use recall"
        )
    if sigma is not None:
        check_shapes(sigma=(sigma, ""))
        check_range(0, ends="()", sigma=sigma)
    config: Any = model.config
    if not isinstance(config, EncoderConfig):
        raise TypeError(f"model must be an Encoder, got one with config {config!r}")
    if site == "embedding" and not config.embedding_norm:
        raise ValueError('site "embedding" requires an encoder with an embedding LayerNorm')
    if config.memory:
        raise ValueError("the model already has memory; memory at both sites is not supported")
    start = partial(initial_memory, config.vocab_size, config.token_width, sigma)
    assert model.build
    build = partial(_add, model.build, partial(Memory, start, site=site, denoise=denoise))
    return functional(build)._replace(init=partial(_init, model.init, start))


def initial_memory(vocab_size: int, width: int, sigma: float | None) -> Params:
    """Returns the parameters that `with_memory` adds."""
    memory = {"log_prior": jnp.zeros(vocab_size), "log_scale": jnp.zeros(width)}
    return memory if sigma is None else {**memory, "log_sigma": jnp.log(jnp.full(1, sigma))}


def _add(build: Callable[..., Encoder], memory: Callable[[], "Memory"], **rngs: Any) -> Encoder:
    network = build(**rngs)
    network.remember(memory())
    return network


def _init(init: Callable[..., Params], start: Callable[[], Params], key: PRNGKeyArray) -> Params:
    return {**init(key), "memory": start()}


class Memory(nnx.Module):
    """Retrieval from the vocabulary of an encoder; see `with_memory`."""

    def __init__(self, start: Callable[[], Params], *, site: Site, denoise: Callable[..., Tokens]):
        self.site: Site = site
        self.denoise = denoise
        params = {name: nnx.Param(value) for name, value in start().items()}
        self.log_prior, self.log_scale = params["log_prior"], params["log_scale"]
        self.log_sigma = params.get("log_sigma")

    def __call__(self, network: Encoder, x: Tokens, types: TokenTypes) -> Tokens:
        """Removes the noise of token vectors or embeddings."""
        table, padding = network.tokens.embedding[...], network.config.padding_idx
        if padding is not None:  # without a gradient, as in the encoder
            table = table.at[padding].set(jax.lax.stop_gradient(table[padding]))
        table, log_prior = network.config.embedding_scale * table, self.log_prior[...]
        sigma = None if self.log_sigma is None else jnp.exp(self.log_sigma[0])
        if self.site == "token":
            known = {"log_prior": log_prior, "log_scale": self.log_scale[...]}
            return self.denoise(x, table, sigma=sigma, **known)
        norm = network.norm
        assert norm and norm.scale and norm.bias
        options = {"scale": norm.scale[...], "bias": norm.bias[...], "epsilon": norm.epsilon}

        def one(row: Array, offset: Array) -> Array:
            known = {"sigma": sigma, "log_prior": log_prior}
            return denoise_normalized(row, table, offset, **known, **options).value

        offsets = network.offsets(x.shape[:-1], types)
        if network.types is None:  # all texts share the offsets, and their products with the table
            return jax.vmap(jax.vmap(one), in_axes=(0, None))(x, offsets[0])
        return jax.vmap(jax.vmap(one))(x, offsets)
