"""Causal language models as priors of noisy token vectors."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from hopfax.checks import check_count, check_range, check_shape, full_mask, share
from hopfax.hopfield import Decoded, beam_decode
from hopfax.hopfield.denoise import check_values
from hopfax.nn.causal import CAUSAL, Cache
from hopfax.nn.families import find_family
from hopfax.nn.functional import Params
from hopfax.nn.pretrained import Pretrained

Step = Callable[[Cache, Int[Array, ""]], tuple[Cache, Float[Array, " vocabulary"]]]


def language_prior(
    model: Pretrained,
    num_tokens: int,
    *,
    start: int | None = None,
    mixture: float | Float[Array, ""] = 0.0,
    log_prior: Float[Array, " vocabulary"] | None = None,
    params: Params | None = None,
) -> tuple[Step, Cache]:
    r"""Returns a model's decoding step and the empty cache of keys and values it starts from.

    Args:
        model: A causal model, such as GPT-2 or Llama, from `load_pretrained`.
        num_tokens: Tokens that the cache has room for, from 1 to the model's `max_length`.
        start: Id of the token before the text; None takes `bos_token_id` of the configuration.
        mixture: Share $m$ of `log_prior`, in [0, 1], in $(1 - m) p_{LM} + m \pi$. After a
            wrong token, language models are overconfident; a share of 0.1 to 0.3 helps.
        log_prior: Log-probabilities $\log \pi$ of tokens, such as their frequencies, normalized;
            None: uniform.
        params: Parameters of the model; None takes `model.params`. Within `jax.jit`, pass them as
            an argument: the default becomes a constant.

    Returns:
        `step(cache, token)`, which returns the cache with the token (-1: `start`) and the
        log-probabilities of the next one; and the cache. See `hopfax.hopfield.beam_decode`.

    Raises:
        TypeError, ValueError: The model is not causal or has no `bos_token_id`; a number is out of
            range; or `log_prior` has another size than the vocabulary.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from hopfax.nn import language_prior, load_pretrained
        >>> model = load_pretrained("gpt2")  # doctest: +SKIP
        >>> step, cache = language_prior(model, 16)  # doctest: +SKIP
        >>> cache, log_probs = jax.jit(step)(cache, jnp.int32(-1))  # doctest: +SKIP
    """
    start = _check(model, num_tokens, start, mixture, log_prior)
    numbers = {"start": start, "mixture": mixture, "log_prior": log_prior}
    return _prior(model.config, params or model.params, num_tokens, **numbers)


def recall_text(
    model: Pretrained,
    noisy: Float[Array, "batch tokens width"],
    mask: Bool[Array, "batch tokens"] | None = None,
    *,
    sigma: float | Float[Array, " batch"] | Float[Array, "batch tokens"] | None = None,
    beam: int = 16,
    num_candidates: int = 256,
    start: int | None = None,
    mixture: float = 0.1,
    log_prior: Float[Array, " vocabulary"] | None = None,
) -> Decoded:
    """Recovers the tokens of noisy texts, with a causal language model as their prior.

    The sum of a text's log-probability and of the log-likelihoods of its noisy vectors is maximized
    by beam search. It allocates `batch * beam` caches of keys and values: pass many texts in
    batches. Local devices share a batch that they divide.

    Args:
        model: A causal model, such as GPT-2 or Llama, from `load_pretrained`.
        noisy: Noisy embeddings, on the scale of `model.embed`.
        mask: True at real tokens, padding last; None means all.
        sigma: Standard deviation of the noise, > 0: for all texts, each text or each token; None if
            it is unknown.
        beam: See `beam_decode`.
        num_candidates: See `beam_decode`.
        start: See `language_prior`.
        mixture: See `language_prior`; 0.1 by default.
        log_prior: See `language_prior`.

    Returns:
        `Decoded` with a leading axis of texts: the tokens' ids and vectors, the log-probability of
        each text, and its margin over the runner-up.

    Raises:
        TypeError, ValueError: See `language_prior` and `beam_decode`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from hopfax.nn import load_pretrained, recall_text
        >>> model = load_pretrained("gpt2")  # doctest: +SKIP
        >>> clean = model.embed(jnp.array([[464, 3139, 286, 4881, 318]]))  # doctest: +SKIP
        >>> noise = 0.3 * jax.random.normal(jax.random.key(0), clean.shape)  # doctest: +SKIP
        >>> recall_text(model, clean + noise, sigma=0.3).index  # doctest: +SKIP
        Array([[ 464, 3139,  286, 4881,  318]], dtype=int32)
    """
    noisy, width = jnp.asarray(noisy), model.table.shape[1]
    if noisy.ndim != 3 or noisy.shape[2] != width:
        raise ValueError(f"noisy must have shape (batch, tokens, {width}), got {noisy.shape}")
    shape = noisy.shape[:2]
    start = _check(model, shape[1], start, mixture, log_prior)
    mask = full_mask(mask, shape)
    if sigma is not None:
        check_range(0, ends="()", sigma=sigma)
        if np.shape(sigma) not in ((), shape[:1], shape):
            allowed = f"a number or have shape {shape[:1]} or {shape}"
            raise ValueError(f"sigma must be {allowed}, got {np.shape(sigma)}")
        sigma = jnp.asarray(sigma, jnp.float32)
        sigma = jnp.broadcast_to(sigma[:, None] if sigma.ndim == 1 else sigma, shape)
    numbers = {"start": start, "mixture": mixture, "log_prior": log_prior}
    config = json.dumps(model.config, sort_keys=True)  # hashable
    (noisy, mask, sigma), (params, numbers) = share((noisy, mask, sigma), (model.params, numbers))
    return _recall_text(config, beam, num_candidates, params, noisy, mask, sigma, numbers)


def _check(model: Pretrained, num_tokens: int, start: Any, mixture: Any, log_prior: Any) -> Any:
    """Returns the id of the token before a text."""
    if (kind := model.config["model_type"]) not in CAUSAL or model.labels:
        allowed = f"causal ({', '.join(CAUSAL)}) and no classifier"
        raise ValueError(f"the model must be {allowed}, got {kind} with {len(model.labels)} labels")
    if (start := model.config.get("bos_token_id") if start is None else start) is None:
        raise ValueError("start is required: the model's configuration has no bos_token_id")
    size = len(model.table)
    check_count(0, size - 1, start=start)
    check_count(1, model.max_length, num_tokens=num_tokens)
    check_range(0, 1, mixture=mixture)
    check_values(log_prior=log_prior)
    if log_prior is not None:
        check_shape((size,), log_prior=log_prior)
    return start


@partial(jax.jit, static_argnums=(0, 1, 2))
def _recall_text(
    config: str, beam: int, num_candidates: int,
    params: Params, noisy: Array, mask: Array, sigma: Array | None, numbers: dict[str, Any],
) -> Decoded:  # fmt: skip
    raw = json.loads(config)
    step, cache = _prior(raw, params, noisy.shape[1], **numbers)
    options = {"beam": beam, "num_candidates": num_candidates, "log_prior": numbers["log_prior"]}
    patterns = _patterns(raw, params)

    def one(noisy: Array, mask: Array, sigma: Array | None) -> Decoded:
        return beam_decode(noisy, patterns, step, cache, sigma=sigma, mask=mask, **options)

    return jax.vmap(one)(noisy, mask, sigma)


def _patterns(raw: dict[str, Any], params: Params) -> Float[Array, "vocabulary width"]:
    """Returns the embeddings of all tokens, as a model reads them."""
    family, settings = find_family(raw)
    table = params["tokens"]["embedding"]
    return table * settings["hidden_size"] ** 0.5 if family.scaled else table


def _prior(
    raw: dict[str, Any],
    params: Params,
    num_tokens: int,
    *,
    start: Any,
    mixture: Any,
    log_prior: Any,
) -> tuple[Step, Cache]:
    """Returns what `language_prior` does."""
    forward, patterns = CAUSAL[raw["model_type"]](find_family(raw)[1]), _patterns(raw, params)
    room = jnp.ones(num_tokens, bool)
    other = -jnp.log(len(patterns)) if log_prior is None else jnp.asarray(log_prior)

    def step(cache: Cache, token: Array) -> tuple[Cache, Array]:
        vector = patterns[jnp.where(token < 0, start, token)]
        outputs = forward(params, vector[None], room, cache)
        own = jax.nn.log_softmax(outputs.output[0].astype(jnp.float32))
        mixed = jnp.logaddexp(own + jnp.log1p(-mixture), other + jnp.log(mixture))
        return Cache(outputs.keys, outputs.values, cache.length + 1), mixed

    one = jax.eval_shape(forward, params, patterns[:1], room[:1])
    layers, _, *heads = one.keys.shape
    empty = jnp.zeros((layers, num_tokens, *heads), one.keys.dtype)
    return step, Cache(empty, empty, jnp.int32(0))
