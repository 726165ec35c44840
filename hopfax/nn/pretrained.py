"""Loads pretrained encoders and causal models from folders in the Hugging Face layout.

Encoders become an `Encoder`, whose attention can be replaced and which can be fine-tuned.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from hopfax.checks import check_range, is_traced
from hopfax.hub import model_folder, read_json
from hopfax.nn import causal
from hopfax.nn.attention import SoftmaxAttention
from hopfax.nn.block import ACTIVATIONS, Attention
from hopfax.nn.encoder import Encoder
from hopfax.nn.families import (
    Family,
    Settings,
    causal_leaves,
    encoder_leaves,
    find_family,
    labels_of,
)
from hopfax.nn.functional import Compiled, Functional, Params, functional
from hopfax.nn.precision import normal
from hopfax.nn.tensor_files import read_params


class PretrainedOutput(NamedTuple):
    """The output of a pretrained model.

    Attributes:
        output: The last hidden state of encoders; of causal models the logits of the next token,
            or, with `labels`, those of the classes at every token.
        hidden_states: Input of the first layer and output of every layer, the last one after the
            final norm.
    """

    output: Float[Array, "batch tokens outputs"]
    hidden_states: Float[Array, "states batch tokens width"]


class Pretrained(NamedTuple):
    """A pretrained model as pure functions.

    Attributes:
        embed: `embed(ids, *, params=params)` returns token embeddings, (batch, tokens, width),
            with the model's scaling; NaN for ids outside the vocabulary.
        forward: `forward(embeddings, mask, *, token_types=None, params=params)` adds positions and
            token types, and returns a `PretrainedOutput`; it is compiled once for every shape.
            Within `jax.jit`, pass `params` as an argument: the default becomes a constant.
        config: Contents of `config.json`, and the defaults of missing settings.
        table: Token embeddings as stored, (vocabulary, width); narrower than the hidden states in
            an ELECTRA that projects them.
        params: Parameters: of encoders those of `encoder`, of causal models with those of all
            layers stacked along the first axis. With `labels`, they include the classifier: the
            `pooler` and `classifier` that `text_classifier` uses, or the `score` of causal models.
        max_length: Maximum number of tokens of a text.
        labels: Names of the logits of a model for sequence classification, one for each; () for
            all others.
        attention_maps: Returns the attention weights, (layers, batch, heads, queries, tokens), in
            float32 at least, for the arguments of `forward`. Rows of padding have no meaning.
        classify: `classify(hidden, mask, *, params=params)` returns the logits of a model with
            `labels`, (batch, labels), from the last of the `hidden_states`: at the first real token
            in encoders, at the last one in causal models.
        problem: What the logits are: `"single_label_classification"` (softmax gives
            probabilities), `"multi_label_classification"` (sigmoid of each) or `"regression"`
            (scores); None without `labels`.
        encoder: The `Encoder` as functions; None for causal models.
    """

    embed: Callable[..., Float[Array, "batch tokens width"]]
    forward: Callable[..., PretrainedOutput]
    config: dict[str, Any]
    table: Float[Array, "vocabulary width"]
    params: Params
    max_length: int
    labels: tuple[str, ...]
    attention_maps: Callable[..., Float[Array, "layers batch heads queries tokens"]]
    classify: Callable[..., Float[Array, "batch labels"]]
    problem: str | None = None
    encoder: Functional[Encoder] | None = None


def load_pretrained(folder: str | os.PathLike[str], *, dtype: Any = jnp.float32) -> Pretrained:
    """Loads a model in the Hugging Face layout.

    The families are BERT, RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT and ELECTRA, which are
    encoders, and the causal GPT-2, Gemma-2, Llama, Mistral, Qwen2 and Qwen3.

    Positions start at the first real token, so padding on either side changes nothing. On GPUs, JAX
    may round the inputs of float32 products, see `jax.default_matmul_precision`.

    Files are mapped into memory: loading takes at most 1.3 times the parameters' memory. Tensors of
    common heads of each family are ignored, such as `cls.*` in BERT, except for the classifier of a
    model for sequence classification.

    Args:
        folder: Folder with `config.json` and `model.safetensors`, or with shards and
            `model.safetensors.index.json`; or a name on the Hugging Face hub.
        dtype: Type of the parameters and of the computation, float32 or bfloat16, whatever the
            type of the files. Softmax and norms are in float32 at least.

    Returns:
        The model's `embed` and `forward`, its configuration and its parameters. `forward` is
        jittable and differentiable in embeddings and parameters. It raises a ValueError if the
        padded length exceeds the model's `max_length`.

    Raises:
        FileNotFoundError: The folder or one of its files is missing.
        ModuleNotFoundError: safetensors is not installed.
        ValueError: The family, a setting or `dtype` is not supported; a file cannot be read; or
            tensors are missing, unknown or of the wrong shape (all of them are named).

    Example:
        >>> import jax.numpy as jnp
        >>> from hopfax.nn import load_pretrained
        >>> model = load_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
        >>> ids, mask = jnp.array([[101, 7592, 102]]), jnp.ones((1, 3), bool)
        >>> encoded = model.forward(model.embed(ids), mask)  # doctest: +SKIP
        >>> encoded.output.shape, encoded.hidden_states.shape  # doctest: +SKIP
        ((1, 3, 384), (7, 1, 3, 384))
    """
    try:
        supported = jnp.dtype(dtype) in (jnp.float32, jnp.bfloat16)
    except TypeError:  # not a dtype
        supported = False
    if not supported:
        raise ValueError(f"dtype must be float32 or bfloat16, got {dtype}")
    folder = model_folder(folder)
    raw = read_json(folder / "config.json")
    if raw.get("model_type") == "hopfax":
        raise ValueError(f"{folder} holds a hopfax classifier: load it with hopfax.Classifier.load")
    try:
        family, config = find_family(raw)
        labels, problem = labels_of(config)
        width = config["hidden_size"]
        max_length = config["max_position_embeddings"] - config.first_position
        if raw["model_type"] in causal.CAUSAL:
            encoder, run = None, partial(_run_causal, raw)
            causal.CAUSAL[raw["model_type"]](config)  # checks the other settings
            leaves = causal_leaves(family, config, len(labels))
        else:
            encoder = functional(_build(family, config, len(labels) or None))
            run = partial(_run_encoder, encoder)
            shapes = jax.eval_shape(encoder.init, jax.random.key(0))
            leaves = encoder_leaves(shapes, family)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{folder / 'config.json'}: {error}") from error
    files = {"prefix": family.prefix, "unused": family.unused}
    arrays = read_params(folder, leaves, dtype=dtype, **files)
    if encoder is None:
        params = unflatten_dict(arrays, sep=".")
    else:
        params = jax.tree.unflatten(jax.tree.structure(shapes), arrays.values())
    return Pretrained(
        config={**family.defaults, **raw},
        table=params["tokens"]["embedding"],
        params=params,
        max_length=max_length,
        labels=labels,
        problem=problem,
        encoder=encoder,
        **_functions(run, encoder, params, max_length, width**0.5 if family.scaled else None),
    )


def _build(family: Family, config: Settings, num_outputs: int | None) -> Callable[..., Encoder]:
    width, first = config["hidden_size"], config.first_position
    narrow = config["embedding_size"] if "project" in family.modules else width
    config.choose("hidden_act", ACTIVATIONS)
    return partial(
        Encoder,
        config["vocab_size"],
        num_outputs=num_outputs,
        attention=partial(SoftmaxAttention, num_heads=config["num_attention_heads"]),
        width=width,
        embedding_width=None if narrow == width else narrow,
        num_layers=config["num_hidden_layers"],
        ff_width=config.get("intermediate_size", 4 * width),
        max_length=config["max_position_embeddings"] - first,
        norm_first=False,
        activation=config["hidden_act"],
        pooling="cls" if num_outputs else "mean",
        pooler_activation=family.head_activation,
        dropout=0.0,
        epsilon=config["layer_norm_eps"],
        num_types=config.get("type_vocab_size", 0),
        position_offset=first,
    )


# -- Functions of the parameters -------------------------------------------------------------------


def _functions(
    run: Callable[..., Any],
    encoder: Functional[Encoder] | None,
    params: Params,
    max_length: int,
    scale: float | None = None,
) -> dict[str, Callable[..., Any]]:
    """Returns the functions of a `Pretrained`."""
    call = partial(_check_and_run, Compiled(run, (4,)), max_length, params=params)
    return {
        "embed": partial(_embed, scale, params=params),
        "forward": partial(call, maps=False),
        "attention_maps": partial(call, maps=True),
        "classify": partial(_classify, encoder, params=params),
    }


def _embed(scale: float | None, ids: Int[Array, "batch tokens"], *, params: Params) -> Array:
    ids, table = jnp.asarray(ids), params["tokens"]["embedding"]
    # By default, negative ids count from the end.
    tokens = jnp.take(table, jnp.where(ids < 0, len(table), ids), axis=0)
    return tokens if scale is None else tokens * jnp.asarray(scale, tokens.dtype)


def _run_causal(
    raw: Mapping[str, Any], params: Params, x: Array, mask: Array, types: Array, maps: bool
) -> Any:
    _, config = find_family(raw)
    forward = causal.CAUSAL[raw["model_type"]](config)
    run = jax.vmap(lambda *text: tuple(forward(params, *text))[:3], out_axes=(0, 1, 1))
    output, hidden_states, weights = run(x, mask)
    return weights if maps else PretrainedOutput(output, hidden_states)


def _run_encoder(
    encoder: Functional[Encoder], params: Params, x: Array, mask: Array, types: Array, maps: bool
) -> Any:
    run, start = partial(encoder.apply, params), encoder.config.position_offset
    if start:  # RoBERTa's positions count real tokens
        positions = start - 1 + jnp.cumsum(mask, axis=1) * mask
    else:
        first = jnp.argmax(mask, axis=1)[:, None]
        positions = jnp.maximum(jnp.arange(mask.shape[1]) - first, 0)
    x = run(x, types, positions=positions, method="embed")
    if maps:
        return run(x, mask, method="attention_maps")
    first = run(x, mask, method="start")[None]
    states = jnp.concatenate([first, run(x, mask, method="hidden_states")])
    return PretrainedOutput(states[-1], states)


def _classify(
    encoder: Functional[Encoder] | None,
    hidden: Float[Array, "batch tokens width"],
    mask: Int[Array, "batch tokens"] | Bool[Array, "batch tokens"],
    *,
    params: Params,
) -> Float[Array, "batch labels"]:
    if not params.keys() & {"score", "classifier"}:
        raise ValueError("the model has no classifier")
    real = jnp.asarray(mask) != 0
    last = real.shape[1] - 1 - jnp.argmax(real[:, ::-1], axis=1)
    at = jnp.argmax(real, axis=1) if encoder else last
    states = jnp.asarray(hidden)[jnp.arange(len(real)), at]
    if encoder:
        return encoder.apply(params, states[:, None], real, method="classify")
    return states @ params["score"]["weight"]


def _check_and_run(
    compiled: Compiled,
    max_length: int,
    embeddings: Float[Array, "batch tokens width"],
    mask: Int[Array, "batch tokens"] | Bool[Array, "batch tokens"],
    *,
    params: Params,
    maps: bool,
    token_types: Int[Array, "batch tokens"] | None = None,
) -> Any:
    if token_types is not None and "types" not in params:
        raise ValueError("token_types must be None for a model without token types")
    table = params["tokens"]["embedding"]
    embeddings, width = jnp.asarray(embeddings, table.dtype), table.shape[1]
    if mask is None:
        raise ValueError("mask must have shape (batch, tokens), got None")
    real = jnp.asarray(mask) != 0
    if not is_traced(mask) and len(wrong := np.setdiff1d(np.asarray(mask), (0, 1))):
        raise ValueError(f"mask must be 1 at real tokens and 0 at padding, got {wrong[0]}")
    if real.ndim != 2 or embeddings.shape != (*real.shape, width):
        raise ValueError(
            f"embeddings must have shape (batch, tokens, {width}) and mask (batch, tokens), got "
            f"{embeddings.shape} and {real.shape}"
        )
    if real.shape[1] > max_length:
        raise ValueError(f"texts must have at most {max_length} tokens, got {real.shape[1]}")
    types = jnp.zeros(real.shape, int) if token_types is None else jnp.asarray(token_types)
    if types.shape != real.shape:
        raise ValueError(f"token_types must have shape {real.shape}, got {types.shape}")
    if token_types is not None:
        check_range(0, len(params["types"]["embedding"]) - 1, token_types=types)
    # Embeddings of ids outside the vocabulary are nan, which padding must not pass on.
    usable = real[..., None] | jnp.isfinite(embeddings)
    return compiled.call(params, jnp.where(usable, embeddings, 0), real, types, maps)


# -- Other attention and classifiers ---------------------------------------------------------------


def replace_attention(
    pretrained: Pretrained, attention: type[Attention], **options: Any
) -> Pretrained:
    """Returns a pretrained encoder with another attention on the same projections.

    In `HopfieldAttention`, `beta` multiplies the inverse temperature 1/sqrt(head width). At
    `beta=1.0`, `max_steps=0` is the original attention; `max_steps=1` first applies one Hopfield
    update to each query. Iterated to convergence at a small `beta`, all queries of a head reach one
    state and attend alike: in MiniLM at `beta=1.0`, but not at 4.

    Args:
        pretrained: An encoder, such as a BERT, from `load_pretrained`.
        attention: Class of the attention layers.
        **options: Its options, such as `beta`.

    Returns:
        The model with a new `forward` and `attention_maps` of the same parameters, which
        `text_classifier` can fine-tune.

    Raises:
        TypeError: `attention` is not a class.
        ValueError: The model is not an encoder, or `options` has `num_heads`.

    Example:
        >>> from hopfax.nn import HopfieldAttention, load_pretrained, replace_attention
        >>> model = load_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
        >>> iterated = replace_attention(model, HopfieldAttention, beta=1.0)  # doctest: +SKIP
    """
    encoder = _change(pretrained, attention, options)
    params = _select(pretrained.params, jax.eval_shape(encoder.init, jax.random.key(0)))
    run, longest = partial(_run_encoder, encoder), pretrained.max_length
    functions = _functions(run, encoder, params, longest)
    return pretrained._replace(encoder=encoder, params=params, **functions)


def text_classifier(
    pretrained: Pretrained,
    num_outputs: int | None = None,
    *,
    attention: type[Attention] | None = None,
    dropout: float = 0.1,
    separator: int | None = None,
    **options: Any,
) -> Functional[Encoder]:
    """Returns a pretrained encoder with a new or the loaded classifier, to fine-tune.

    Args:
        pretrained: An encoder, such as a BERT, from `load_pretrained`.
        num_outputs: Outputs of a new classifier, which reads the mean over tokens: the number of
            classes, or 1 for regression and for scoring choices. None keeps the loaded classifier,
            which reads the first token; its classes are `pretrained.labels`.
        attention: Class of the attention layers, which get the pretrained projections. None keeps
            those of the model.
        dropout: Dropout rate, in [0, 1); also of the attention weights in `SoftmaxAttention`.
        separator: Id of the token between two texts, for BERT's token types; see `Encoder`.
        **options: Options of the attention layers, such as `beta`.

    Returns:
        `init(key)`, which returns the pretrained parameters and, with `num_outputs`, a new
        classifier drawn from N(0, 0.02^2); and `apply`.

    Raises:
        TypeError: `attention` is not a class.
        ValueError: The model is not an encoder, a number is out of range, `options` has
            `num_heads`, or `num_outputs` is None and the model has no classifier.

    Example:
        >>> import jax
        >>> from hopfax.nn import load_pretrained, text_classifier
        >>> model = load_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
        >>> classifier = text_classifier(model, 2, separator=102)  # doctest: +SKIP
        >>> params = classifier.init(jax.random.key(0))  # doctest: +SKIP
    """
    keep = num_outputs is None
    if keep and not pretrained.labels:
        raise ValueError("num_outputs is required: the model has no classifier")
    model = _change(
        pretrained,
        attention,
        options,
        num_outputs=len(pretrained.labels) if keep else num_outputs,
        pooling="cls" if keep else "mean",
        dropout=dropout,
        # RoBERTa uses only one type, whatever the size of its table.
        separator=separator if pretrained.config["model_type"] in ("bert", "electra") else None,
    )
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return model._replace(init=partial(_init, shapes, pretrained.params, keep))


def _change(
    pretrained: Pretrained, attention: type[Attention] | None, options: Any, **settings: Any
) -> Functional[Encoder]:
    """Returns the encoder with another attention, and with other settings of `EncoderConfig`."""
    encoder = pretrained.encoder
    if encoder is None:
        kind = pretrained.config["model_type"]
        raise ValueError(f"the model must be an encoder, such as a BERT, got {kind}")
    build: Any = encoder.build
    old = build.keywords["attention"]
    heads, layer = old.keywords["num_heads"], attention or old.func
    if not isinstance(layer, type):
        raise TypeError(f"attention must be a class, such as HopfieldAttention, got {attention!r}")
    if "num_heads" in options:
        raise ValueError(f"num_heads must not be passed: the model has {heads} heads")
    if attention is None:
        options = {**old.keywords, **options}
    if issubclass(layer, SoftmaxAttention):
        options = {"dropout": settings.get("dropout", 0.0), **options}
    new = partial(layer, **{**options, "num_heads": heads})
    return functional(partial(build, attention=new, **settings))


def _select(params: Params, like: Params) -> Params:
    """Returns the parameters that `like` has: an attention may lack a query or an output."""
    return {
        name: _select(params[name], each) if isinstance(each, dict) else params[name]
        for name, each in like.items()
    }


def _init(shapes: Params, params: Params, keep: bool, key: PRNGKeyArray) -> Params:
    new = {} if keep else {"classifier": shapes["classifier"]}
    loaded = _select(params, {n: each for n, each in shapes.items() if n not in new})
    # In float32: bfloat16 would round small updates away.
    loaded = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), loaded)
    drawn = {"kernel": lambda leaf: normal(key, leaf.shape, leaf.dtype), "bias": jnp.zeros_like}
    return loaded | {n: {k: drawn[k](leaf) for k, leaf in each.items()} for n, each in new.items()}
