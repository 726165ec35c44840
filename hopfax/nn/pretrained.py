"""Loads BERT, RoBERTa, GPT-2 and Gemma-2 from folders in the Hugging Face layout."""

import os
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict
from jaxtyping import Array, Bool, Float, Int

from hopfax.checks import check_range, is_traced
from hopfax.hub import model_folder, read_json
from hopfax.nn.attention import SoftmaxAttention
from hopfax.nn.families import Config, Forward, check_positive, encoder, gemma2, gpt2, rows
from hopfax.nn.functional import Compiled, Params
from hopfax.nn.tensor_files import (
    Shape,
    Stored,
    joined,
    mismatches,
    read_stack,
    stored_tensors,
    wrong_dtypes,
)


class PretrainedOutput(NamedTuple):
    """The output of a pretrained model.

    Attributes:
        output: Logits of causal models, the last hidden state of encoders.
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
        table: Token embeddings as stored, (vocabulary, width).
        params: Parameters, those of all layers stacked along the first axis. With `labels`,
            they include the `pooler` and `classifier` that `text_classifier` uses.
        max_length: Maximum number of tokens of a text.
        labels: Class names of a BERT or RoBERTa for sequence classification, one for a regression
            model; () for all others, multi-label models included.
        attention_maps: Returns the attention weights, (layers, batch, heads, queries, tokens), in
            float32 at least, for the arguments of `forward`. Rows of padding have no meaning.
        attention: Class of an encoder's attention layers and its options, see `replace_attention`.
    """

    embed: Callable[..., Float[Array, "batch tokens width"]]
    forward: Callable[..., PretrainedOutput]
    config: dict[str, Any]
    table: Float[Array, "vocabulary width"]
    params: Params
    max_length: int
    labels: tuple[str, ...]
    attention_maps: Callable[..., Float[Array, "layers batch heads queries tokens"]]
    attention: tuple[type, dict[str, Any]] = (SoftmaxAttention, {})


def load_pretrained(folder: str | os.PathLike[str], *, dtype: Any = jnp.float32) -> Pretrained:
    """Loads a model in the Hugging Face layout: BERT, RoBERTa, GPT-2 or Gemma-2.

    Positions start at the first real token, so padding on either side changes nothing. On GPUs, JAX
    may round the inputs of float32 products, see `jax.default_matmul_precision`.

    Files are mapped into memory: loading takes at most 1.3 times the parameters' memory. Tensors of
    common heads of each family are ignored, such as `cls.*` in BERT, except for the classifier of a
    BERT or RoBERTa for sequence classification.

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
        family, config = _find_family(raw)
        labels = _labels(config) if family.head else ()
        family.build(config)  # checks the other settings
        leaves, width = _leaves(family, config, len(labels)), config["hidden_size"]
        max_length = config["max_position_embeddings"] - config.first_position
    except (TypeError, ValueError) as error:
        raise ValueError(f"{folder / 'config.json'}: {error}") from error
    params = _load_params(folder, leaves, family, dtype)
    call = partial(run_checked, Compiled(partial(_run, raw), (4,)), max_length, params=params)
    return Pretrained(
        embed=partial(_embed, width**0.5 if family.scaled else None, params=params),
        forward=partial(call, maps=False),
        config={**_DEFAULTS[raw["model_type"]], **raw},
        table=params["tokens"]["weight"],
        params=params,
        max_length=max_length,
        labels=labels,
        attention_maps=partial(call, maps=True),
    )


def _embed(scale: float | None, ids: Int[Array, "batch tokens"], *, params: Params) -> Array:
    tokens = rows(params["tokens"], jnp.asarray(ids))
    return tokens if scale is None else tokens * jnp.asarray(scale, tokens.dtype)


def _run(
    raw: Mapping[str, Any], params: Params, embeddings: Array, mask: Array, types: Array, maps: bool
) -> Any:
    family, config = _find_family(raw)
    run = jax.vmap(family.build(config), in_axes=(None, 0, 0, 0), out_axes=(0, 1, 1))
    output, hidden_states, weights = run(params, embeddings, mask, types)
    return weights if maps else PretrainedOutput(output, hidden_states)


def run_checked(
    compiled: Compiled,
    max_length: int,
    embeddings: Float[Array, "batch tokens width"],
    mask: Int[Array, "batch tokens"] | Bool[Array, "batch tokens"],
    *,
    params: Params,
    maps: bool,
    token_types: Int[Array, "batch tokens"] | None = None,
) -> Any:
    """Calls `compiled.call(params, embeddings, mask, token_types, maps)` with checked inputs."""
    if token_types is not None and "types" not in params:
        raise ValueError("token_types must be None for a model without token types")
    table = params["tokens"]["weight"]
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
        check_range(0, len(params["types"]["weight"]) - 1, token_types=types)
    # Embeddings of ids outside the vocabulary are nan, which padding must not pass on.
    usable = real[..., None] | jnp.isfinite(embeddings)
    return compiled.call(params, jnp.where(usable, embeddings, 0), real, types, maps)


# -- Families --------------------------------------------------------------------------------------

# Module in the file, module of the parameters, sizes of its weight; {} is the layer's number.
_Table = tuple[tuple[str, str, str], ...]
_ENCODER: _Table = (
    ("embeddings.word_embeddings", "tokens", "vocab width"),
    ("embeddings.position_embeddings", "positions", "positions width"),
    ("embeddings.token_type_embeddings", "types", "types width"),
    ("embeddings.LayerNorm", "norm", "width"),
    ("encoder.layer.{}.attention.self.query", "layers/query", "width queries"),
    ("encoder.layer.{}.attention.self.key", "layers/key", "width keys"),
    ("encoder.layer.{}.attention.self.value", "layers/value", "width keys"),
    ("encoder.layer.{}.attention.output.dense", "layers/attention_out", "queries width"),
    ("encoder.layer.{}.attention.output.LayerNorm", "layers/attention_norm", "width"),
    ("encoder.layer.{}.intermediate.dense", "layers/ff_in", "width ff"),
    ("encoder.layer.{}.output.dense", "layers/ff_out", "ff width"),
    ("encoder.layer.{}.output.LayerNorm", "layers/ff_norm", "width"),
)
_BERT_HEAD: _Table = (
    ("pooler.dense", "pooler", "width width"),
    ("classifier", "classifier", "width labels"),
)
_ROBERTA_HEAD: _Table = (
    ("classifier.dense", "pooler", "width width"),
    ("classifier.out_proj", "classifier", "width labels"),
)
_GPT2: _Table = (
    ("wte", "tokens", "vocab width"),
    ("wpe", "positions", "positions width"),
    ("h.{}.ln_1", "layers/attention_norm", "width"),
    ("h.{}.attn.c_attn", "layers/qkv", "width qkv"),
    ("h.{}.attn.c_proj", "layers/attention_out", "queries width"),
    ("h.{}.ln_2", "layers/ff_norm", "width"),
    ("h.{}.mlp.c_fc", "layers/ff_in", "width ff"),
    ("h.{}.mlp.c_proj", "layers/ff_out", "ff width"),
    ("ln_f", "norm", "width"),
)
_GEMMA2: _Table = (
    ("embed_tokens", "tokens", "vocab width"),
    ("layers.{}.input_layernorm", "layers/attention_norm", "width"),
    ("layers.{}.self_attn.q_proj", "layers/query", "width queries"),
    ("layers.{}.self_attn.k_proj", "layers/key", "width keys"),
    ("layers.{}.self_attn.v_proj", "layers/value", "width keys"),
    ("layers.{}.self_attn.o_proj", "layers/attention_out", "queries width"),
    ("layers.{}.post_attention_layernorm", "layers/attention_out_norm", "width"),
    ("layers.{}.pre_feedforward_layernorm", "layers/ff_norm", "width"),
    ("layers.{}.mlp.gate_proj", "layers/ff_gate", "width ff"),
    ("layers.{}.mlp.up_proj", "layers/ff_in", "width ff"),
    ("layers.{}.mlp.down_proj", "layers/ff_out", "ff width"),
    ("layers.{}.post_feedforward_layernorm", "layers/ff_out_norm", "width"),
    ("norm", "norm", "width"),
)
# In every family without a bias and not transposed.
_EMBEDDINGS = ("tokens", "positions", "types")
_RENAMED = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


class _Family(NamedTuple):
    """A family's forward pass, names and storage.

    Attributes:
        build: Returns the forward pass for a configuration.
        table: Tensors of the model.
        unused: Name patterns of ignored tensors: heads, poolers, buffers.
        prefix: Prefix of the names in files of models with a head.
        head: Tensors of the head of models for sequence classification, if it is supported.
        settings: The family's names of settings.
        fixed: Settings with only one supported value.
        biases: Whether all modules but embeddings have a bias.
        transposed: Whether their matrices are stored as (outputs, inputs).
        scaled: Whether token embeddings are multiplied by the square root of their width.
    """

    build: Callable[[Config], Forward]
    table: _Table
    unused: tuple[str, ...]
    prefix: str
    head: _Table = ()
    settings: Mapping[str, str] = {}
    fixed: Mapping[str, Any] = {}
    biases: bool = True
    transposed: bool = True
    scaled: bool = False


_BERT = _Family(
    build=encoder,
    table=_ENCODER,
    unused=("embeddings.position_ids", "pooler.*", "cls.*", "classifier.*", "qa_outputs.*"),
    prefix="bert.",
    head=_BERT_HEAD,
    fixed={"position_embedding_type": "absolute", "is_decoder": False},
)
FAMILIES = {
    "bert": _BERT,
    "roberta": _BERT._replace(
        prefix="roberta.", head=_ROBERTA_HEAD, unused=(*_BERT.unused, "lm_head.*")
    ),
    "gpt2": _Family(
        build=gpt2,
        table=_GPT2,
        unused=("h.*.attn.bias", "h.*.attn.masked_bias", "lm_head.weight", "score.weight"),
        prefix="transformer.",
        settings={
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "intermediate_size": "n_inner",
            "max_position_embeddings": "n_positions",
            "layer_norm_eps": "layer_norm_epsilon",
            "hidden_act": "activation_function",
        },
        fixed={
            "add_cross_attention": False,
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "tie_word_embeddings": True,
        },
        transposed=False,
    ),
    "gemma2": _Family(
        build=gemma2,
        table=_GEMMA2,
        unused=("layers.*.self_attn.rotary_emb.inv_freq", "lm_head.weight", "score.weight"),
        prefix="model.",
        settings={"hidden_act": "hidden_activation"},
        fixed={
            "attention_bias": False,
            "use_bidirectional_attention": False,
            "tie_word_embeddings": True,
        },
        biases=False,
        scaled=True,
    ),
}


_SIZES = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
    "max_position_embeddings", "num_key_value_heads", "head_dim", "type_vocab_size",
    "sliding_window", "num_labels",
)  # fmt: skip
_BERT_DEFAULTS = {
    "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "max_position_embeddings": 512, "type_vocab_size": 2,
    "layer_norm_eps": 1e-12, "hidden_act": "gelu", "pad_token_id": 0,
}  # fmt: skip
# Those of `transformers`, for settings that a file leaves out.
_DEFAULTS = {
    "bert": _BERT_DEFAULTS,
    "roberta": {**_BERT_DEFAULTS, "vocab_size": 50265, "pad_token_id": 1},
    "gpt2": {
        "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
        "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
    },
    "gemma2": {
        "vocab_size": 256000, "hidden_size": 2304, "num_hidden_layers": 26, "head_dim": 256,
        "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 9216,
        "max_position_embeddings": 8192, "sliding_window": 4096, "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh", "rope_theta": 10000.0,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    },
}  # fmt: skip
_LARGEST = {"num_hidden_layers": 10_000, "num_labels": 1_000_000}  # each is built, or named
_POSITIVE = (
    "layer_norm_eps", "rms_norm_eps", "query_pre_attn_scalar", "attn_logit_softcapping",
    "final_logit_softcapping",
)  # fmt: skip


def _find_family(raw: Mapping[str, Any]) -> tuple[_Family, Config]:
    family = Config(raw, {}).choose("model_type", FAMILIES)
    config = Config({**_DEFAULTS[raw["model_type"]], **raw}, family.settings)
    for key, value in family.fixed.items():
        if config.get(key, value) != value:
            raise ValueError(f"{key} must be {value!r}, got {config[key]!r}")
    for key in _SIZES:
        size, most = config.get(key, 1), _LARGEST.get(key)
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= (most or size):
            allowed = f"from 1 to {most}" if most else ">= 1"
            raise ValueError(
                f"{family.settings.get(key, key)} must be an integer {allowed}, got {size!r}"
            )
    width, heads = config["hidden_size"], config["num_attention_heads"]
    if config.get("head_dim") is None and width % heads:
        width_name, heads_name = (
            family.settings.get(key, key) for key in ("hidden_size", "num_attention_heads")
        )
        raise ValueError(
            f"{width_name} must be a multiple of {heads_name}, got {width} and {heads}"
        )
    for key in _POSITIVE:
        check_positive(family.settings.get(key, key), config.get(key, 1))
    return family, config


def _labels(config: Config) -> tuple[str, ...]:
    if (
        "ForSequenceClassification" not in str(config.get("architectures"))
        or config.get("problem_type") == "multi_label_classification"
    ):
        return ()
    # `transformers` does not write the default.
    default = {str(number): f"LABEL_{number}" for number in range(config.get("num_labels", 2))}
    labels = config.get("id2label", default)
    if not isinstance(labels, dict) or set(labels) != {str(n) for n in range(len(labels) or 1)}:
        raise ValueError(f"id2label must map 0, 1, ... to names, got {labels}")
    names = tuple(str(labels[str(number)]) for number in range(len(labels)))
    if config.get("problem_type") == "regression" and len(names) > 1:
        return ()
    if len(set(names)) < len(names):
        raise ValueError(f"id2label must have distinct names, got {', '.join(names)}")
    return names


# -- Tensors ---------------------------------------------------------------------------------------


class _Leaf(NamedTuple):
    """A parameter: its path, the tensors that it stacks, and their stored shape."""

    path: str
    names: list[str]
    shape: Shape
    transposed: bool


def _leaves(family: _Family, config: Config, num_labels: int) -> list[_Leaf]:
    width, heads = config["hidden_size"], config["num_attention_heads"]
    sizes = {
        "vocab": config["vocab_size"],
        "width": width,
        "queries": heads * config.head_width,
        "keys": config.get("num_key_value_heads", heads) * config.head_width,
        "qkv": 3 * heads * config.head_width,
        "ff": config.get("intermediate_size", 4 * width),
        "positions": config["max_position_embeddings"],
        "types": config.get("type_vocab_size", 2),
        "labels": num_labels,
    }
    leaves = []
    for module, path, dims in (*family.table, *(family.head if num_labels else ())):
        layers = config["num_hidden_layers"] if "{}" in module else 1
        names = [module.format(layer) for layer in range(layers)]
        shape = tuple(sizes[name] for name in dims.split())
        plain = path in _EMBEDDINGS
        transposed = family.transposed and not plain and len(shape) == 2
        stored = shape[::-1] if transposed else shape
        leaves.append(_Leaf(f"{path}/weight", [f"{n}.weight" for n in names], stored, transposed))
        if family.biases and not plain:
            leaves.append(_Leaf(f"{path}/bias", [f"{n}.bias" for n in names], shape[-1:], False))
    return leaves


def _load_params(folder: Path, leaves: Sequence[_Leaf], family: _Family, dtype: Any) -> Params:
    stored = _match(folder, leaves, family)
    params: Params = {}
    for leaf in leaves:
        tensors = [stored[name] for name in leaf.names]
        stack = read_stack(tensors, transposed=leaf.transposed, dtype=dtype)
        # On a CPU, JAX takes over aligned memory without a copy.
        params[leaf.path] = jax.device_put(stack if leaf.path.startswith("layers/") else stack[0])
    return unflatten_dict(params, sep="/")


def _match(folder: Path, leaves: Sequence[_Leaf], family: _Family) -> dict[str, Stored]:
    """Returns the tensors by name; raises a ValueError that lists all mismatches."""
    expected = {name: leaf.shape for leaf in leaves for name in leaf.names}
    stored: dict[str, Stored] = {}
    problems = []
    for tensor in stored_tensors(folder):
        name = tensor.name.removeprefix(family.prefix)
        for old, new in _RENAMED.items():
            name = name.replace(old, new)
        if name not in expected and any(fnmatchcase(name, each) for each in family.unused):
            continue
        if name in stored:
            problems.append(f"{stored[name].name} and {tensor.name} are the same tensor")
        stored[name] = tensor
    problems += wrong_dtypes(stored.values())
    # Missing tensors are named with the prefix of most others; a classifier's have none.
    prefixed = [tensor.name.startswith(family.prefix) for tensor in stored.values()]
    prefix = family.prefix if 2 * sum(prefixed) > len(prefixed) else ""
    in_file = {
        name: name if name.startswith("classifier.") else prefix + name for name in expected
    } | {name: tensor.name for name, tensor in stored.items()}
    problems += mismatches(
        {tensor.name: tensor.shape for tensor in stored.values()},
        {in_file[name]: shape for name, shape in expected.items()},
    )
    if problems:
        raise ValueError(f"{folder}: {joined(problems)}")
    return stored
