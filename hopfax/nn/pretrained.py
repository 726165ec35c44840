"""Loads BERT, RoBERTa, GPT-2 and Gemma-2 from folders in the Hugging Face layout.

References:
    Layout and names: https://github.com/huggingface/transformers; file format:
    https://github.com/huggingface/safetensors.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from hopfax.hub import model_folder
from hopfax.nn.families import Config, Forward, encoder, gemma2, gpt2, rows
from hopfax.nn.functional import Params


class PretrainedOutput(NamedTuple):
    """The output of a pretrained model, with the state of every layer.

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
            with the model's scaling. An id outside of the vocabulary gives NaN.
        forward: `forward(embeddings, mask, *, token_types=None, params=params)` adds positions and
            token types, and returns a `PretrainedOutput`. It is compiled, once for every shape.
            In a function that you compile yourself, pass `params` through its arguments: the
            default becomes a constant of the program.
        config: Contents of `config.json`.
        table: Token embeddings as stored, (vocabulary, width).
        params: Parameters, those of all layers stacked along the first axis.
        unused: Names of stored tensors that are not part of the model: heads, poolers, buffers.
    """

    embed: Callable[..., Float[Array, "batch tokens width"]]
    forward: Callable[..., PretrainedOutput]
    config: dict[str, Any]
    table: Float[Array, "vocabulary width"]
    params: Params
    unused: tuple[str, ...]


def load_pretrained(
    folder: str | os.PathLike[str], *, dtype: DTypeLike = jnp.float32
) -> Pretrained:
    """Loads a model in the Hugging Face layout: BERT, RoBERTa, GPT-2 or Gemma-2.

    Positions count from the first real token, RoBERTa's count real tokens: padding on either side
    changes nothing. Softmax and norms compute in float32 at least. On GPUs, JAX may round the
    inputs of float32 products, see `jax.default_matmul_precision`.

    Args:
        folder: Folder with `config.json` and `model.safetensors`, or with shards and
            `model.safetensors.index.json`; or a name on the Hugging Face hub.
        dtype: Dtype of parameters, hidden states and output: float32 or bfloat16.

    Returns:
        The model's `embed` and `forward`, its configuration and its parameters. `forward` is
        jittable and differentiable in embeddings and parameters. It raises a ValueError if a text
        is longer than the model's positions.

    Raises:
        FileNotFoundError: The folder or one of its files is missing.
        ModuleNotFoundError: safetensors is not installed.
        ValueError: The family or a setting is not supported; a file cannot be read; or tensors are
            missing, unknown or of the wrong shape (all of them are named).

    Example:
        >>> model = load_pretrained("all-MiniLM-L6-v2")  # doctest: +SKIP
        >>> ids, mask = jnp.array([[101, 7592, 102]]), jnp.ones((1, 3), bool)
        >>> encoded = model.forward(model.embed(ids), mask)  # doctest: +SKIP
        >>> encoded.output.shape, encoded.hidden_states.shape  # doctest: +SKIP
        ((1, 3, 384), (7, 1, 3, 384))
    """
    dtype = jnp.dtype(dtype)
    if dtype not in (jnp.float32, jnp.bfloat16):
        raise ValueError(f"dtype must be float32 or bfloat16, got {dtype}")
    folder = model_folder(folder)
    raw = _read_json(folder / "config.json")
    try:
        family, config = _find_family(raw)
        run, leaves = family.build(config), _leaves(family, config)
        width = config["hidden_size"]
        max_tokens = config["max_position_embeddings"] - config.first_position
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'}: {error}") from error
    params, unused = _load_params(folder, leaves, family, dtype)

    def embed(ids: Int[Array, "batch tokens"], *, params: Params = params) -> Array:
        tokens = rows(params["tokens"], jnp.asarray(ids))
        return tokens * jnp.asarray(width**0.5, tokens.dtype) if family.scaled else tokens

    run_batch = jax.jit(jax.vmap(run, in_axes=(None, 0, 0, 0), out_axes=(0, 1)))

    def forward(
        embeddings: Float[Array, "batch tokens width"],
        mask: Int[Array, "batch tokens"] | Bool[Array, "batch tokens"],
        *,
        token_types: Int[Array, "batch tokens"] | None = None,
        params: Params = params,
    ) -> PretrainedOutput:
        shape = jnp.shape(embeddings)
        if len(shape) != 3 or shape[2] != width:
            raise ValueError(f"embeddings must have shape (batch, tokens, {width}), got {shape}")
        for name, array in (("mask", mask), ("token_types", token_types)):
            if array is not None and jnp.shape(array) != shape[:2]:
                raise ValueError(f"{name} must have shape {shape[:2]}, got {jnp.shape(array)}")
        if shape[1] > max_tokens:
            raise ValueError(f"texts must have at most {max_tokens} tokens, got {shape[1]}")
        if token_types is not None and "types" not in params:
            raise ValueError(f"token_types must be None for {raw['model_type']}")
        types = jnp.zeros(shape[:2], int) if token_types is None else jnp.asarray(token_types)
        embeddings = jnp.asarray(embeddings, params["tokens"]["weight"].dtype)
        return PretrainedOutput(*run_batch(params, embeddings, jnp.asarray(mask) != 0, types))

    return Pretrained(embed, forward, raw, params["tokens"]["weight"], params, unused)


# -- Families --------------------------------------------------------------------------------------

# Module of the file, module of the parameters, sizes of its weight; {} is the layer's number.
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
    ("lm_head", "head", "vocab width"),
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
    ("lm_head", "head", "vocab width"),
)
# Without a bias and stored as they are used in every family.
_EMBEDDINGS = ("tokens", "positions", "types", "head")
_RENAMED = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


class _Family(NamedTuple):
    """A family's names, and what differs in how it is stored.

    Attributes:
        build: Returns the forward pass for a configuration.
        table: Tensors of the model.
        unused: Patterns of tensors that are not part of it; a tied head is stored by some files.
        prefix: Start of the names in files that are saved with a head.
        settings: The family's names of settings.
        fixed: Settings of which one value is supported.
        biases: Whether all modules but embeddings have a bias.
        transposed: Whether their matrices are stored as (outputs, inputs).
        scaled: Whether token embeddings are multiplied by the square root of their width.
    """

    build: Callable[[Config], Forward]
    table: _Table
    unused: tuple[str, ...]
    prefix: str
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
    fixed={"position_embedding_type": "absolute", "is_decoder": False},
)
_FAMILIES = {
    "bert": _BERT,
    "roberta": _BERT._replace(prefix="roberta.", unused=(*_BERT.unused, "lm_head.*")),
    "gpt2": _Family(
        build=gpt2,
        table=_GPT2,
        unused=("h.*.attn.bias", "h.*.attn.masked_bias", "lm_head.weight"),
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
        fixed={"add_cross_attention": False},
        transposed=False,
    ),
    "gemma2": _Family(
        build=gemma2,
        table=_GEMMA2,
        unused=("layers.*.self_attn.rotary_emb.inv_freq", "lm_head.weight"),
        prefix="model.",
        settings={"hidden_act": "hidden_activation"},
        fixed={"attention_bias": False, "use_bidirectional_attention": False},
        biases=False,
        scaled=True,
    ),
}


def _find_family(raw: Mapping[str, Any]) -> tuple[_Family, Config]:
    family = Config(raw, {}).choose("model_type", _FAMILIES)
    config = Config(raw, family.settings)
    for key, value in family.fixed.items():
        if config.get(key, value) != value:
            raise ValueError(f"{key} must be {value!r}, got {config[key]!r}")
    return family, config


# -- Tensors ---------------------------------------------------------------------------------------


class _Leaf(NamedTuple):
    """A parameter, the tensors of which it is the stack, and their stored shape."""

    path: str
    names: list[str]
    shape: tuple[int, ...]
    transposed: bool


def _leaves(family: _Family, config: Config) -> list[_Leaf]:
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
    }
    leaves = []
    for module, path, dims in family.table:
        if path == "head" and config.get("tie_word_embeddings", True):
            continue
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


class _Stored(NamedTuple):
    """A tensor of a file."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: str


_FLOATS = ("F64", "F32", "F16", "BF16")
_CHUNK = 2**22  # bytes that are read at once


def _load_params(
    folder: Path, leaves: Sequence[_Leaf], family: _Family, dtype: np.dtype
) -> tuple[Params, tuple[str, ...]]:
    stored, unused = _match(folder, leaves, family)
    params: Params = {}
    for leaf in leaves:
        *modules, name = leaf.path.split("/")
        place = params
        for module in modules:
            place = place.setdefault(module, {})
        stack = _read([stored[n] for n in leaf.names], dtype, transposed=leaf.transposed)
        # On a CPU, JAX takes over aligned memory without a copy.
        place[name] = jax.device_put(stack if modules[0] == "layers" else stack[0])
    return params, unused


def _match(
    folder: Path, leaves: Sequence[_Leaf], family: _Family
) -> tuple[dict[str, _Stored], tuple[str, ...]]:
    """Pairs names in the tables with tensors one to one; an error lists all that do not fit."""
    shapes = {name: leaf.shape for leaf in leaves for name in leaf.names}
    matched: dict[str, _Stored] = {}
    unused, problems = [], []
    for tensor in _stored_tensors(folder):
        name = tensor.name.removeprefix(family.prefix)
        for old, new in _RENAMED.items():
            name = name.replace(old, new)
        if name in matched:
            problems.append(f"{matched[name].name} and {tensor.name} are the same tensor")
        elif name in shapes:
            matched[name] = tensor
            if tensor.shape != shapes[name]:
                problems.append(f"{tensor.name} must have shape {shapes[name]}, got {tensor.shape}")
            if tensor.dtype not in _FLOATS:
                problems.append(f"{tensor.name} must be {', '.join(_FLOATS)}, got {tensor.dtype}")
        elif any(fnmatchcase(name, pattern) for pattern in family.unused):
            unused.append(tensor.name)
        else:
            problems.append(f"unknown tensor {tensor.name}")
    problems += [f"missing tensor {name}" for name in shapes if name not in matched]
    if problems:
        raise ValueError(f"{folder}: {'; '.join(problems)}")
    return matched, tuple(unused)


def _stored_tensors(folder: Path) -> list[_Stored]:
    path, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if path.exists():
        paths = [path]
    elif index.exists():
        paths = [
            folder / name for name in sorted(set(_read_json(index).get("weight_map", {}).values()))
        ]
    else:
        raise FileNotFoundError(f"{folder} has no {path.name} and no {index.name}")
    tensors = []
    for path in paths:
        with _open(path) as file:
            for name in file.keys():  # noqa: SIM118 (no dict)
                part = file.get_slice(name)
                tensors.append(_Stored(path, name, tuple(part.get_shape()), part.get_dtype()))
    return tensors


def _read(tensors: Sequence[_Stored], dtype: np.dtype, *, transposed: bool) -> np.ndarray:
    """Reads tensors of one shape, stacked; takes the memory of the result and of two chunks."""
    shape = tensors[0].shape[::-1] if transposed else tensors[0].shape
    stack = _aligned((len(tensors), *shape), dtype)
    for tensor, part in zip(tensors, stack, strict=True):
        target = part.T if transposed else part
        step = max(1, _CHUNK // target[:1].nbytes)
        for start in range(0, len(target), step):
            end = min(start + step, len(target))
            # Mapped pages count as memory of the process until the file is closed.
            with _open(tensor.path) as file:
                target[start:end] = file.get_slice(tensor.name)[start:end]
    return stack


def _aligned(shape: tuple[int, ...], dtype: np.dtype, *, bytes: int = 64) -> np.ndarray:
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.empty(size + bytes, np.uint8)
    start = -memory.ctypes.data % bytes
    return memory[start : start + size].view(dtype).reshape(shape)


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    """Maps a file into memory."""
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError as error:
        message = 'safetensors is not installed: pip install "hopfax[pretrained]"'
        raise ModuleNotFoundError(message, name="safetensors") from error
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except SafetensorError as error:
        raise ValueError(f"{path} is incomplete or not a safetensors file: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not a JSON file: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must contain an object, got {type(value).__name__}")
    return value
