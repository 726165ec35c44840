"""Loads BERT, RoBERTa, GPT-2 and Gemma-2 from Hugging Face folders, as pure functions.

References:
    Devlin et al. (2019), BERT; Liu et al. (2019), RoBERTa; Radford et al. (2019), Language Models are
    Unsupervised Multitask Learners; Gemma Team (2024), Gemma 2. Names of tensors and settings:
    https://github.com/huggingface/transformers.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from hopfax.nn.functional import Params
from hopfax.nn.tensor_files import (
    FLOATS,
    StoredTensor,
    read_json,
    read_stacked,
    stored_tensors,
)


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
        embed: `embed(ids, *, params=params)` returns token embeddings, (batch, tokens, width), scaled
            as the model's input. An id outside of the vocabulary gives NaN.
        forward: `forward(embeddings, mask, *, token_types=None, params=params)` adds positions and
            token types, and returns a `PretrainedOutput`.
        config: Contents of `config.json`.
        table: Token embeddings as stored, (vocabulary, width).
        params: Parameters; those of all layers are stacked along the first axis.
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
    """Loads a model in the Hugging Face layout.

    Positions count from the first real token, so padding on either side changes nothing. RoBERTa's
    count real tokens only. Attention, softmax and norms compute in float32 at least. On GPUs, JAX
    may round float32 products: see `jax.default_matmul_precision`.

    Args:
        folder: Folder with `config.json` and `model.safetensors`, or shards of it and
            `model.safetensors.index.json`. Families: BERT, RoBERTa, GPT-2, Gemma-2.
        dtype: float32 or bfloat16, the dtype of parameters, hidden states and output.

    Returns:
        The model's `embed` and `forward`, its configuration and its parameters. `forward` is
        jittable and differentiable in embeddings and parameters. It raises a ValueError if a text
        is longer than the model's positions.

    Raises:
        FileNotFoundError: The folder or one of its files is missing.
        ModuleNotFoundError: `safetensors` is not installed.
        ValueError: The family or a setting is not supported; a file cannot be read; or tensors are
            missing, unknown or of the wrong shape (all of them are named).

    Example:
        >>> model = load_pretrained("all-MiniLM-L6-v2")  # doctest: +SKIP
        >>> ids, mask = jnp.array([[101, 7592, 102]]), jnp.ones((1, 3), bool)
        >>> encoded = model.forward(model.embed(ids), mask)  # doctest: +SKIP
        >>> encoded.output.shape, encoded.hidden_states.shape  # doctest: +SKIP
        ((1, 3, 384), (7, 1, 3, 384))
    """
    folder, dtype = Path(folder), jnp.dtype(dtype)
    if dtype not in (jnp.float32, jnp.bfloat16):
        raise ValueError(f"dtype must be float32 or bfloat16, got {dtype}")
    raw = read_json(folder / "config.json")
    try:
        family, config = _find_family(raw)
        sizes = _find_sizes(config)
        run = family.build(config, sizes)
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'}: {error}") from error
    leaves = _leaves(family, config, sizes)
    try:
        stored, unused = _match(stored_tensors(folder), leaves, family)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error
    params: Params = {}
    for leaf in leaves:
        stack = read_stacked(
            [stored[name] for name in leaf.names], dtype=dtype, transpose=leaf.transposed
        )
        *modules, name = leaf.path.split("/")
        place = params
        for module in modules:
            place = place.setdefault(module, {})
        place[name] = jax.device_put(stack if modules[0] == "layers" else stack[0])

    def embed(ids: Int[Array, "batch tokens"], *, params: Params = params) -> Array:
        tokens = _rows(params["tokens"], ids)
        return tokens * jnp.asarray(sizes.width**0.5, tokens.dtype) if family.scaled else tokens

    # Compiled with the parameters as arguments, not as constants.
    run_batch = jax.jit(jax.vmap(run, in_axes=(None, 0, 0, 0), out_axes=PretrainedOutput(0, 1)))

    def forward(
        embeddings: Float[Array, "batch tokens width"],
        mask: Int[Array, "batch tokens"] | Bool[Array, "batch tokens"],
        *,
        token_types: Int[Array, "batch tokens"] | None = None,
        params: Params = params,
    ) -> PretrainedOutput:
        shape = jnp.shape(embeddings)
        if len(shape) != 3 or shape[2] != sizes.width:
            raise ValueError(
                f"embeddings must have shape (batch, tokens, {sizes.width}), got {shape}"
            )
        if jnp.shape(mask) != shape[:2]:
            raise ValueError(f"mask must have shape {shape[:2]}, got {jnp.shape(mask)}")
        if shape[1] > sizes.positions - sizes.offset:
            raise ValueError(
                f"texts must have at most {sizes.positions - sizes.offset} tokens, got {shape[1]}"
            )
        if token_types is None:
            token_types = jnp.zeros(shape[:2], int)
        elif not sizes.types:
            raise ValueError(f"{raw['model_type']} has no token types")
        dtype = params["tokens"]["weight"].dtype
        real = jnp.asarray(mask) != 0
        return run_batch(params, jnp.asarray(embeddings, dtype), real, jnp.asarray(token_types))

    return Pretrained(embed, forward, raw, params["tokens"]["weight"], params, unused)


# -- Settings --------------------------------------------------------------------------------------


class _Config:
    """Contents of `config.json`, under one name for every family; null is the same as missing."""

    def __init__(self, raw: Mapping[str, Any], names: Mapping[str, str]):
        self._raw, self._names = raw, names

    def get(self, key: str, default: Any = None) -> Any:
        value = self._raw.get(self._names.get(key, key))
        return default if value is None else value

    def __getitem__(self, key: str) -> Any:
        if (value := self.get(key)) is None:
            raise ValueError(f"{self._names.get(key, key)} is missing")
        return value


class _Sizes(NamedTuple):
    """Sizes that the tables of tensors refer to."""

    vocab: int
    width: int
    layers: int
    head: int  # width of a head
    queries: int  # width of all heads
    keys: int  # of all heads of keys, which may be fewer
    qkv: int
    ff: int
    positions: int
    types: int
    offset: int  # position of the first token


def _find_sizes(config: _Config) -> _Sizes:
    width, heads = config["hidden_size"], config["num_attention_heads"]
    head = config.get("head_dim", width // heads)
    roberta = config["model_type"] == "roberta"
    return _Sizes(
        vocab=config["vocab_size"],
        width=width,
        layers=config["num_hidden_layers"],
        head=head,
        queries=heads * head,
        keys=config.get("num_key_value_heads", heads) * head,
        qkv=3 * heads * head,
        ff=config.get("intermediate_size", 4 * width),
        positions=config["max_position_embeddings"],
        types=config.get("type_vocab_size", 0),
        offset=config["pad_token_id"] + 1 if roberta else 0,
    )


def _find_family(raw: Mapping[str, Any]) -> tuple["_Family", _Config]:
    """Returns the family and its settings; raises if one of them is not supported."""
    family = _FAMILIES.get(raw.get("model_type", ""))
    if family is None:
        raise ValueError(
            f"model_type must be {', '.join(_FAMILIES)}, got {raw.get('model_type')!r}"
        )
    config = _Config(raw, family.config_names)
    for key, value in family.fixed.items():
        if config.get(key, value) != value:
            raise ValueError(f"{key} must be {value!r}, got {config[key]!r}")
    return family, config


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_new": jax.nn.gelu,
    "gelu_pytorch_tanh": jax.nn.gelu,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}


def _activation(config: _Config) -> Callable[[Array], Array]:
    name = config["hidden_act"]
    if name not in _ACTIVATIONS:
        raise ValueError(f"the activation must be {', '.join(_ACTIVATIONS)}, got {name!r}")
    return _ACTIVATIONS[name]


# -- Models, for one sequence ----------------------------------------------------------------------

Run = Callable[[Params, Array, Array, Array], PretrainedOutput]


def _encoder(config: _Config, sizes: _Sizes) -> Run:
    """BERT and RoBERTa."""
    norm = partial(_layer_norm, eps=config["layer_norm_eps"])
    activation = _activation(config)

    def run(params: Params, embeddings: Array, mask: Array, types: Array) -> PretrainedOutput:
        def block(x: Array, p: Params, _: None) -> Array:
            query, keys, values = (
                _split(_linear(p[name], x), sizes) for name in ("query", "key", "value")
            )
            mixed = _attend(query, keys, values, mask[None], scale=sizes.head**-0.5)
            x = norm(p["attention_norm"], x + _linear(p["attention_out"], mixed))
            hidden = activation(_linear(p["ff_in"], x))
            return norm(p["ff_norm"], x + _linear(p["ff_out"], hidden))

        positions = _positions(mask)
        if sizes.offset:  # RoBERTa
            positions = sizes.offset - 1 + jnp.cumsum(mask) * mask
        added = _rows(params["positions"], positions) + _rows(params["types"], types)
        x = norm(params["norm"], embeddings + added)
        states = _hidden_states(block, x, params["layers"])
        return PretrainedOutput(states[-1], states)

    return run


def _gpt2(config: _Config, sizes: _Sizes) -> Run:
    norm = partial(_layer_norm, eps=config["layer_norm_eps"])
    activation = _activation(config)
    scales = jnp.full(sizes.layers, sizes.head**-0.5)
    if not config.get("scale_attn_weights", True):
        scales = jnp.ones_like(scales)
    if config.get("scale_attn_by_inverse_layer_idx", False):
        scales = scales / (1 + jnp.arange(sizes.layers))

    def run(params: Params, embeddings: Array, mask: Array, types: Array) -> PretrainedOutput:
        allowed = mask & (_distances(mask) >= 0)

        def block(x: Array, p: Params, scale: Array) -> Array:
            qkv = jnp.split(_linear(p["qkv"], norm(p["attention_norm"], x)), 3, axis=-1)
            mixed = _attend(*(_split(part, sizes) for part in qkv), allowed, scale=scale)
            x = x + _linear(p["attention_out"], mixed)
            hidden = activation(_linear(p["ff_in"], norm(p["ff_norm"], x)))
            return x + _linear(p["ff_out"], hidden)

        x = embeddings + _rows(params["positions"], _positions(mask))
        final = partial(norm, params["norm"])
        states = _hidden_states(block, x, params["layers"], scales, final=final)
        return PretrainedOutput(_logits(params, states[-1]), states)

    return run


def _gemma2(config: _Config, sizes: _Sizes) -> Run:
    norm = partial(_rms_norm, eps=config["rms_norm_eps"])
    activation = _activation(config)
    scale = config["query_pre_attn_scalar"] ** -0.5
    cap, final_cap = config.get("attn_logit_softcapping"), config.get("final_logit_softcapping")
    theta = _rope_theta(config)
    windows = _windows(config, sizes)

    def run(params: Params, embeddings: Array, mask: Array, types: Array) -> PretrainedOutput:
        distances = _distances(mask)
        causal = mask & (distances >= 0)

        def block(x: Array, p: Params, window: Array) -> Array:
            h = norm(p["attention_norm"], x)
            query, keys, values = (
                _split(_linear(p[name], h), sizes) for name in ("query", "key", "value")
            )
            mixed = _attend(
                _rotate(query, theta=theta),
                _rotate(keys, theta=theta),
                values,
                causal & (distances < window),
                scale=scale,
                cap=cap,
            )
            x = x + norm(p["attention_out_norm"], _linear(p["attention_out"], mixed))
            h = norm(p["ff_norm"], x)
            hidden = activation(_linear(p["ff_gate"], h)) * _linear(p["ff_in"], h)
            return x + norm(p["ff_out_norm"], _linear(p["ff_out"], hidden))

        final = partial(norm, params["norm"])
        states = _hidden_states(block, embeddings, params["layers"], windows, final=final)
        return PretrainedOutput(_soft_cap(_logits(params, states[-1]), final_cap), states)

    return run


def _rope_theta(config: _Config) -> float:
    """Returns the base of the rotary embedding's wavelengths."""
    rope = config.get("rope_parameters", config.get("rope_scaling", {}))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise ValueError(f"rope_type must be 'default', got {kind!r}")
    return rope["rope_theta"] if "rope_theta" in rope else config["rope_theta"]


def _windows(config: _Config, sizes: _Sizes) -> Int[Array, " layers"]:
    """Returns how many tokens each layer looks back."""
    window = {"sliding_attention": config["sliding_window"], "full_attention": sizes.positions}
    alternating = [tuple(window)[layer % 2] for layer in range(sizes.layers)]
    types = config.get("layer_types", alternating)
    if len(types) != sizes.layers or not set(types) <= set(window):
        raise ValueError(
            f"layer_types must be {sizes.layers} of {', '.join(window)}, got {types!r}"
        )
    return jnp.array([window[name] for name in types])


def _attend(
    query: Float[Array, "tokens heads head"],
    keys: Float[Array, "tokens groups head"],
    values: Float[Array, "tokens groups head"],
    allowed: Bool[Array, "#tokens tokens"],
    *,
    scale: float | Array,
    cap: float | None = None,
) -> Float[Array, "tokens width"]:
    """Softmax attention; heads of queries share those of keys and values in equal groups."""

    def head(query: Array, keys: Array, values: Array) -> Array:
        scores = _soft_cap(scale * (_wide(query) @ _wide(keys).T), cap)
        weights = jax.nn.softmax(jnp.where(allowed, scores, jnp.finfo(scores.dtype).min))
        return weights.astype(values.dtype) @ values

    shared = query.shape[1] // keys.shape[1]
    keys, values = (jnp.repeat(x, shared, axis=1) for x in (keys, values))
    return jax.vmap(head, in_axes=1, out_axes=1)(query, keys, values).reshape(len(query), -1)


def _hidden_states(
    block: Callable[[Array, Params, Any], Array],
    x: Float[Array, "tokens width"],
    layers: Params,
    settings: Array | None = None,
    *,
    final: Callable[[Array], Array] = lambda x: x,
) -> Float[Array, "states tokens width"]:
    """Runs the layers; returns the input of each and the last one's output after `final`."""
    last, before = jax.lax.scan(lambda x, layer: (block(x, *layer), x), x, (layers, settings))
    return jnp.concatenate([before, final(last)[None]])


def _rotate(x: Float[Array, "tokens heads head"], *, theta: float) -> Array:
    """Rotary position embedding, of halves: Su et al. (2021), RoFormer."""
    half = x.shape[-1] // 2
    angles = jnp.arange(len(x))[:, None, None] * theta ** (-jnp.arange(half) / half)
    left, right = _wide(x[..., :half]), _wide(x[..., half:])
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    rotated = jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)
    return rotated.astype(x.dtype)


def _positions(mask: Bool[Array, " tokens"]) -> Int[Array, " tokens"]:
    return jnp.maximum(jnp.arange(len(mask)) - jnp.argmax(mask), 0)


def _distances(mask: Bool[Array, " tokens"]) -> Int[Array, "tokens tokens"]:
    """Returns how far each key lies behind each query."""
    return jnp.arange(len(mask))[:, None] - jnp.arange(len(mask))


def _logits(params: Params, x: Array) -> Array:
    return x @ params.get("head", params["tokens"])["weight"].T


def _split(x: Float[Array, "tokens width"], sizes: _Sizes) -> Float[Array, "tokens heads head"]:
    return x.reshape(len(x), -1, sizes.head)


def _rows(p: Params, ids: Int[Array, "..."]) -> Float[Array, "... width"]:
    return jnp.take(p["weight"], ids, axis=0)


def _linear(p: Params, x: Array) -> Array:
    product = x @ p["weight"]
    return product + p["bias"] if "bias" in p else product


def _layer_norm(p: Params, x: Array, *, eps: float) -> Array:
    centred = _wide(x) - _wide(x).mean(-1, keepdims=True)
    return (_normalised(centred, eps=eps) * p["weight"] + p["bias"]).astype(x.dtype)


def _rms_norm(p: Params, x: Array, *, eps: float) -> Array:
    return (_normalised(_wide(x), eps=eps) * (1 + _wide(p["weight"]))).astype(x.dtype)


def _normalised(x: Array, *, eps: float) -> Array:
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + eps)


def _soft_cap(x: Array, cap: float | None) -> Array:
    return x if cap is None else cap * jnp.tanh(x / cap)


def _wide(x: Array) -> Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


# -- Tensors ---------------------------------------------------------------------------------------

# Module of the file, module of the parameters, sizes of its weight; {} is the layer's number.
_Table = Sequence[tuple[str, str, str]]
_ENCODER_TABLE: _Table = (
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
_GPT2_TABLE: _Table = (
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
_GEMMA2_TABLE: _Table = (
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
_UNTIED_HEAD = ("lm_head", "head", "vocab width")
# Stored as they are used and without a bias in every family.
_EMBEDDINGS = ("tokens", "positions", "types", "head")


class _Family(NamedTuple):
    """How a family names its tensors and settings.

    Attributes:
        build: Returns the model of one sequence.
        table: The tensors of the model.
        unused: Patterns of tensors that are not part of it: heads, poolers, buffers.
        prefix: What precedes names in files saved with a head.
        config_names: The family's own names of settings.
        fixed: Settings of which one value is supported.
        biases: Whether modules other than embeddings have a bias.
        out_in: Whether matrices are stored as (outputs, inputs).
        scaled: Whether token embeddings are multiplied by the square root of their width.
        causal: Whether the output is logits of a head, which may share the token embeddings.
    """

    build: Callable[[_Config, _Sizes], Run]
    table: _Table
    unused: Sequence[str]
    prefix: str
    config_names: Mapping[str, str] = {}
    fixed: Mapping[str, Any] = {}
    biases: bool = True
    out_in: bool = True
    scaled: bool = False
    causal: bool = True


_BERT = _Family(
    build=_encoder,
    table=_ENCODER_TABLE,
    unused=(
        "embeddings.position_ids",
        "embeddings.token_type_ids",
        "pooler.dense.*",
        "cls.*",
        "classifier.*",
        "qa_outputs.*",
    ),
    prefix="bert.",
    fixed={"position_embedding_type": "absolute", "is_decoder": False},
    causal=False,
)
_FAMILIES = {
    "bert": _BERT,
    "roberta": _BERT._replace(prefix="roberta.", unused=(*_BERT.unused, "lm_head.*")),
    "gpt2": _Family(
        build=_gpt2,
        table=_GPT2_TABLE,
        unused=("h.*.attn.bias", "h.*.attn.masked_bias", "lm_head.weight"),
        prefix="transformer.",
        config_names={
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "intermediate_size": "n_inner",
            "max_position_embeddings": "n_positions",
            "layer_norm_eps": "layer_norm_epsilon",
            "hidden_act": "activation_function",
        },
        fixed={"add_cross_attention": False},
        out_in=False,
    ),
    "gemma2": _Family(
        build=_gemma2,
        table=_GEMMA2_TABLE,
        unused=("layers.*.self_attn.rotary_emb.inv_freq", "lm_head.weight"),
        prefix="model.",
        config_names={"hidden_act": "hidden_activation"},
        fixed={"attention_bias": False, "use_bidirectional_attention": False},
        biases=False,
        scaled=True,
    ),
}


class _Leaf(NamedTuple):
    """A parameter: its path, the tensors it stacks, their stored shape."""

    path: str
    names: list[str]
    shape: tuple[int, ...]
    transposed: bool


def _leaves(family: _Family, config: _Config, sizes: _Sizes) -> list[_Leaf]:
    """Returns all parameters of a model."""
    untied = family.causal and not config.get("tie_word_embeddings", True)
    leaves = []
    for module, path, dims in (*family.table, *([_UNTIED_HEAD] if untied else [])):
        layers = range(sizes.layers if "{}" in module else 1)
        names = [module.format(layer) for layer in layers]
        shape = tuple(getattr(sizes, name) for name in dims.split())
        transposed = family.out_in and len(shape) == 2 and path not in _EMBEDDINGS
        weights = [f"{name}.weight" for name in names]
        stored = shape[::-1] if transposed else shape
        leaves.append(_Leaf(f"{path}/weight", weights, stored, transposed))
        if family.biases and path not in _EMBEDDINGS:
            biases = [f"{name}.bias" for name in names]
            leaves.append(_Leaf(f"{path}/bias", biases, shape[-1:], False))
    return leaves


def _match(
    tensors: Sequence[StoredTensor], leaves: Sequence[_Leaf], family: _Family
) -> tuple[dict[str, StoredTensor], tuple[str, ...]]:
    """Returns the tensor of every name in `leaves`, and the names of those that are not used.

    Raises:
        ValueError: Names do not correspond one to one, or shapes or dtypes differ.
    """
    shapes = {name: leaf.shape for leaf in leaves for name in leaf.names}
    matched: dict[str, StoredTensor] = {}
    unused, problems = [], []
    for tensor in tensors:
        name = tensor.name.removeprefix(family.prefix)
        # Names of models converted from TensorFlow.
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        name = name.replace("LayerNorm.beta", "LayerNorm.bias")
        if name in matched:
            problems.append(f"tensors {matched[name].name} and {tensor.name} are the same")
        elif name in shapes:
            matched[name] = tensor
            if tensor.shape != shapes[name]:
                wanted = f"{tensor.name} must have shape {shapes[name]}"
                problems.append(f"{wanted}, got {tensor.shape}")
            if tensor.dtype not in FLOATS:
                problems.append(f"{tensor.name} must be {', '.join(FLOATS)}, got {tensor.dtype}")
        elif any(fnmatchcase(name, pattern) for pattern in family.unused):
            unused.append(tensor.name)
        else:
            problems.append(f"unknown tensor {tensor.name}")
    problems += [f"missing tensor {name}" for name in shapes if name not in matched]
    if problems:
        raise ValueError("; ".join(problems))
    return matched, tuple(unused)
