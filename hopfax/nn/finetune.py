"""Pretrained encoders as an `Encoder`, to fine-tune or with another attention."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from hopfax.nn.attention import Mask, SoftmaxAttention, Tokens
from hopfax.nn.encoder import Attention, Encoder, EncoderConfig
from hopfax.nn.families import encoder_positions
from hopfax.nn.functional import Compiled, Functional, Params, flatten, functional
from hopfax.nn.pretrained import FAMILIES, Pretrained, PretrainedOutput, run_checked

# Module of a loaded layer -> module of a `Block`'s attention.
_ATTENTION = {"query": "query", "key": "key", "value": "value", "attention_out": "out"}
_BLOCK = ("attention_norm", "ff_in", "ff_out", "ff_norm")


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
        pretrained: BERT or RoBERTa, from `load_pretrained`.
        num_outputs: Outputs of a new classifier, which reads the mean over tokens: the number of
            classes, or 1 for regression and for scoring choices. None keeps the loaded classifier,
            which reads the first token; its classes are `pretrained.labels`.
        attention: Class of the attention layers, which get the pretrained projections. None keeps
            `pretrained.attention`.
        dropout: Dropout rate, in [0, 1); also of the attention weights in `SoftmaxAttention`.
        separator: Id of the token between two texts, for BERT's token types; see `Encoder`.
        **options: Options of the attention layers, such as `beta`.

    Returns:
        `init(key)`, which returns the pretrained parameters and, with `num_outputs`, a new
        classifier drawn from N(0, 0.02^2); and `apply`.

    Raises:
        TypeError: `attention` is not a class.
        ValueError: The model is not an encoder, its activation is not GELU, a number is out of
            range, `options` has `num_heads`, or `num_outputs` is None and it has no classifier.

    Example:
        >>> import jax
        >>> from hopfax.nn import load_pretrained, text_classifier
        >>> model = load_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
        >>> classifier = text_classifier(model, 2, separator=102)  # doctest: +SKIP
        >>> params = classifier.init(jax.random.key(0))  # doctest: +SKIP
    """
    config = pretrained.config
    if config["model_type"] not in ("bert", "roberta"):
        raise ValueError(f"the model must be a BERT or RoBERTa, got {config['model_type']}")
    if config["hidden_act"] != "gelu":
        raise ValueError(f'hidden_act must be "gelu", got {config["hidden_act"]!r}')
    keep = num_outputs is None
    outputs = len(pretrained.labels) if num_outputs is None else num_outputs
    if keep and not pretrained.labels:
        raise ValueError("num_outputs is required: the model has no classifier")
    if attention is None:
        attention, options = pretrained.attention[0], {**pretrained.attention[1], **options}
    if not isinstance(attention, type):
        raise TypeError(f"attention must be a class, such as HopfieldAttention, got {attention!r}")
    if "num_heads" in options:
        heads = config["num_attention_heads"]
        raise ValueError(f"num_heads must not be passed: the model has {heads} heads")
    if issubclass(attention, SoftmaxAttention):
        options = {"dropout": dropout, **options}
    vocabulary, width = pretrained.table.shape

    build = partial(
        Encoder,
        vocabulary,
        outputs,
        attention=partial(attention, num_heads=config["num_attention_heads"], **options),
        width=width,
        num_layers=config["num_hidden_layers"],
        ff_width=pretrained.params["layers"]["ff_in"]["weight"].shape[-1],
        max_length=pretrained.max_length,
        norm_first=False,
        pooling="cls" if keep else "mean",
        dropout=dropout,
        epsilon=config["layer_norm_eps"],
        num_types=len(pretrained.params["types"]["weight"]),
        # RoBERTa has only one type in use, whatever the size of its table.
        separator=separator if config["model_type"] == "bert" else None,
        position_offset=config["max_position_embeddings"] - pretrained.max_length,
    )
    model = functional(build)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return Functional(partial(_init, shapes, pretrained.params, keep), model.apply)


def _init(shapes: Params, params: Params, keep: bool, key: PRNGKeyArray) -> Params:
    loaded = _loaded(shapes, params)
    # In float32: bfloat16 would round small updates away.
    expected = {name: shapes[name] for name in loaded}
    loaded = jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), loaded, expected)
    if keep:
        return loaded
    classifier = _zeros(shapes["classifier"])
    kernel = classifier["kernel"]
    classifier["kernel"] = 0.02 * jax.random.normal(key, kernel.shape, kernel.dtype)
    return {**loaded, "classifier": classifier}


def replace_attention(
    pretrained: Pretrained, attention: type[Attention], **options: Any
) -> Pretrained:
    """Returns a pretrained encoder with another attention on the same projections.

    In `HopfieldAttention`, `beta` multiplies the inverse temperature 1/sqrt(head width). At
    `beta=1.0`, `max_steps=0` is the original attention; `max_steps=1` first applies one Hopfield
    update to each query. Iterated to convergence at a small
    `beta`, all queries of a head reach one state and attend alike: in MiniLM at `beta=1.0`, but not
    at 4.

    Args:
        pretrained: BERT or RoBERTa, from `load_pretrained`.
        attention: Class of the attention layers.
        **options: Its options, such as `beta`.

    Returns:
        The model with a new `forward` and `attention_maps` of the same parameters, which
        `text_classifier` can fine-tune.

    Raises:
        TypeError: `attention` is not a class.
        ValueError: The model is not an encoder, or its activation is not GELU.

    Example:
        >>> from hopfax.nn import HopfieldAttention, load_pretrained, replace_attention
        >>> model = load_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
        >>> iterated = replace_attention(model, HopfieldAttention, beta=1.0)  # doctest: +SKIP
    """
    encoder = text_classifier(pretrained, 1, attention=attention, dropout=0.0, **options)
    shapes = jax.eval_shape(encoder.init, jax.random.key(0))
    compiled = Compiled(partial(_run, encoder.apply, shapes), (4,))
    call = partial(run_checked, compiled, pretrained.max_length, params=pretrained.params)
    return pretrained._replace(
        forward=partial(call, maps=False),
        attention_maps=partial(call, maps=True),
        attention=(attention, options),
    )


def _run(
    apply: Callable[..., Any],
    shapes: Params,
    params: Params,
    x: Tokens,
    mask: Mask,
    types: Array,
    maps: bool,
) -> Any:
    classifier = _zeros(shapes["classifier"])  # without effect
    run = partial(apply, {**_loaded(shapes, params), "classifier": classifier})
    offset = len(params["positions"]["weight"]) - len(shapes["positions"]["embedding"])
    positions = jax.vmap(partial(encoder_positions, first=offset))(mask)
    first = run(x, types, positions=positions, method="embed")
    if maps:
        return run(first, mask, method="attention_maps")
    states = jnp.concatenate([first[None], run(first, mask, method="hidden_states")])
    return PretrainedOutput(states[-1], states)


class TensorName(NamedTuple):
    """The tensor of a file that stores a parameter, and whether it is stored transposed."""

    name: str
    transposed: bool


def family_config(encoder: EncoderConfig) -> dict[str, Any]:
    """Returns the `config.json` of an encoder that is a BERT or RoBERTa; {} for others.

    Both have softmax attention, post-LN blocks and token types; a BERT with two types has a
    separator, and a RoBERTa has a position offset. The head is left out if the encoder pools by the
    mean.
    """
    attention, offset = encoder.attention, encoder.position_offset
    separated = encoder.separator is not None
    if (
        type(encoder) is not EncoderConfig
        or encoder.memory
        or attention["name"] != "SoftmaxAttention"
        or "num_heads" not in attention
        or attention.get("causal")
        or encoder.norm_first
        or not encoder.embedding_norm
        or encoder.embedding_scale != 1
        or not encoder.num_types
        or (separated if offset else not separated and encoder.num_types > 1)
    ):
        return {}
    head = encoder.pooling == "cls"
    name = "Roberta" if offset else "Bert"
    return {
        "model_type": name.lower(),
        "architectures": [f"{name}ForSequenceClassification" if head else f"{name}Model"],
        "hidden_size": encoder.width,
        "num_hidden_layers": encoder.num_layers,
        "num_attention_heads": attention["num_heads"],
        "intermediate_size": encoder.ff_width,
        "max_position_embeddings": encoder.max_length + offset,
        "type_vocab_size": encoder.num_types,
        "layer_norm_eps": encoder.epsilon,
        "hidden_act": encoder.activation,
        # RoBERTa counts positions from the padding token's id.
        **({"pad_token_id": offset - 1} if offset else {}),
    }


def tensor_names(params: Params, family: Mapping[str, Any]) -> dict[str, TensorName]:
    """Returns the tensor of each parameter, in the layout that `family_config` describes."""
    if not family:
        return {leaf: TensorName(leaf, False) for leaf in flatten(params)}
    described = FAMILIES[family["model_type"]]
    head = "pooler" in params
    modules = {}
    for module, path, _ in (*described.table, *(described.head if head else ())):
        layer = path.removeprefix("layers/")
        layer = f"attention.{_ATTENTION[layer]}" if layer in _ATTENTION else layer
        prefix = described.prefix if head and not module.startswith("classifier") else ""
        for number in range(family["num_hidden_layers"] if "{}" in module else 1):
            own = f"blocks.{number}.{layer}" if "{}" in module else path
            modules[own] = prefix + module.format(number)
    modules.setdefault("classifier", "classifier")
    names = {}
    for leaf in flatten(params):
        module, kind = leaf.rsplit(".", 1)
        suffix = "bias" if kind == "bias" else "weight"
        names[leaf] = TensorName(f"{modules[module]}.{suffix}", kind == "kernel")
    return names


def _zeros(shapes: Params) -> Params:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def _loaded(shapes: Params, params: Params) -> Params:
    """Returns pretrained parameters in the layout of an `Encoder`."""

    def module(loaded: Params, like: Params) -> Params:
        names = {name: "bias" if name == "bias" else "weight" for name in like}
        return {name: loaded[names[name]] for name in like}

    filled = {n: module(params[n], shapes[n]) for n in shapes.keys() & params.keys()}
    filled["blocks"] = {}
    for number, like in shapes["blocks"].items():
        layer = jax.tree.map(lambda leaf, at=int(number): leaf[at], params["layers"])
        filled["blocks"][number] = {name: module(layer[name], like[name]) for name in _BLOCK}
        filled["blocks"][number]["attention"] = {
            name: module(layer[loaded], like["attention"][name])
            for loaded, name in _ATTENTION.items()
            if name in like["attention"]  # Hopfield attention may lack a query or an output
        }
    return filled
