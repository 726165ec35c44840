"""Families of pretrained models: names of their tensors and settings, and defaults."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from hopfax.nn.encoder import EncoderConfig
from hopfax.nn.functional import Params
from hopfax.nn.tensor_files import Leaf, leaves_of


class Settings:
    """Settings of `config.json`, with the same names for every family. Null counts as missing."""

    def __init__(self, raw: Mapping[str, Any], names: Mapping[str, str]):
        self._raw, self._names = raw, names

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a setting, or the default if it is missing."""
        value = self._raw.get(self._names.get(key, key))
        return default if value is None else value

    def __getitem__(self, key: str) -> Any:
        if (value := self.get(key)) is None:
            raise ValueError(f"{self._names.get(key, key)} is missing")
        return value

    def choose(self, key: str, options: Mapping[str, Any]) -> Any:
        """Returns the option with the setting's name."""
        if (name := self.get(key)) not in list(options):  # lists have no hash
            allowed = ", ".join(options)
            raise ValueError(f"{self._names.get(key, key)} must be one of {allowed}, got {name!r}")
        return options[name]

    @property
    def head_width(self) -> int:
        """Width of an attention head."""
        return self.get("head_dim", self["hidden_size"] // self["num_attention_heads"])

    @property
    def first_position(self) -> int:
        """Position of the first token; RoBERTa's come after its padding id."""
        if self["model_type"] not in _ROBERTAS:
            return 0
        pad_id, last = self["pad_token_id"], self["max_position_embeddings"] - 2
        if not isinstance(pad_id, int) or not 0 <= pad_id <= last:
            raise ValueError(f"pad_token_id must be an integer from 0 to {last}, got {pad_id!r}")
        return pad_id + 1


def check_positive(name: str, value: Any) -> None:
    """Raises a ValueError unless a setting is a number > 0."""
    if not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{name} must be a number > 0, got {value!r}")


# Module of an `Encoder` -> its name in files; {} is the layer's number.
_ENCODER = {
    "tokens": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
    "blocks.{}.attention.query": "encoder.layer.{}.attention.self.query",
    "blocks.{}.attention.key": "encoder.layer.{}.attention.self.key",
    "blocks.{}.attention.value": "encoder.layer.{}.attention.self.value",
    "blocks.{}.attention.out": "encoder.layer.{}.attention.output.dense",
    "blocks.{}.attention_norm": "encoder.layer.{}.attention.output.LayerNorm",
    "blocks.{}.ff_in": "encoder.layer.{}.intermediate.dense",
    "blocks.{}.ff_out": "encoder.layer.{}.output.dense",
    "blocks.{}.ff_norm": "encoder.layer.{}.output.LayerNorm",
    "classifier": "classifier",
}
_DISTILBERT = _ENCODER | {
    "blocks.{}.attention.query": "transformer.layer.{}.attention.q_lin",
    "blocks.{}.attention.key": "transformer.layer.{}.attention.k_lin",
    "blocks.{}.attention.value": "transformer.layer.{}.attention.v_lin",
    "blocks.{}.attention.out": "transformer.layer.{}.attention.out_lin",
    "blocks.{}.attention_norm": "transformer.layer.{}.sa_layer_norm",
    "blocks.{}.ff_in": "transformer.layer.{}.ffn.lin1",
    "blocks.{}.ff_out": "transformer.layer.{}.ffn.lin2",
    "blocks.{}.ff_norm": "transformer.layer.{}.output_layer_norm",
}
# Module of a causal model -> its name in files.
_GPT2 = {
    "tokens": "wte",
    "positions": "wpe",
    "layers.attention_norm": "h.{}.ln_1",
    "layers.qkv": "h.{}.attn.c_attn",
    "layers.attention_out": "h.{}.attn.c_proj",
    "layers.ff_norm": "h.{}.ln_2",
    "layers.ff_in": "h.{}.mlp.c_fc",
    "layers.ff_out": "h.{}.mlp.c_proj",
    "norm": "ln_f",
}
_GEMMA2 = {
    "tokens": "embed_tokens",
    "layers.attention_norm": "layers.{}.input_layernorm",
    "layers.query": "layers.{}.self_attn.q_proj",
    "layers.key": "layers.{}.self_attn.k_proj",
    "layers.value": "layers.{}.self_attn.v_proj",
    "layers.attention_out": "layers.{}.self_attn.o_proj",
    "layers.attention_out_norm": "layers.{}.post_attention_layernorm",
    "layers.ff_norm": "layers.{}.pre_feedforward_layernorm",
    "layers.ff_gate": "layers.{}.mlp.gate_proj",
    "layers.ff_in": "layers.{}.mlp.up_proj",
    "layers.ff_out": "layers.{}.mlp.down_proj",
    "layers.ff_out_norm": "layers.{}.post_feedforward_layernorm",
    "norm": "norm",
}
_LLAMA = {
    **{path: name for path, name in _GEMMA2.items() if not path.endswith("_out_norm")},
    "layers.ff_norm": "layers.{}.post_attention_layernorm",
    "head": "lm_head",
}
_NORMS = {
    "layers.query_norm": "layers.{}.self_attn.q_norm",
    "layers.key_norm": "layers.{}.self_attn.k_norm",
}
# Inputs and outputs of a causal model's matrices; of norms, their width.
_MATRICES = {
    "tokens": ("vocab", "width"),
    "positions": ("positions", "width"),
    "layers.qkv": ("width", "qkv"),
    "layers.query": ("width", "queries"),
    "layers.key": ("width", "keys"),
    "layers.value": ("width", "keys"),
    "layers.attention_out": ("queries", "width"),
    "layers.ff_gate": ("width", "ff"),
    "layers.ff_in": ("width", "ff"),
    "layers.ff_out": ("ff", "width"),
    "layers.query_norm": ("head",),
    "layers.key_norm": ("head",),
    "head": ("width", "vocab"),
    "score": ("width", "labels"),
}


class Family(NamedTuple):
    """Names and storage of a family.

    Attributes:
        modules: Names in files of the model's modules.
        unused: Name patterns of ignored tensors: heads, poolers, buffers.
        prefix: Prefix of the names in files of models with a head.
        defaults: Those of `transformers`, for settings that a file leaves out.
        head: Names of the modules of an encoder's head for sequence classification.
        head_activation: Activation of its first layer.
        settings: The family's names of settings.
        fixed: Settings with only one supported value.
        biases: Modules of a causal model that have a bias.
        transposed: Whether a causal model's matrices are stored as (outputs, inputs).
        scaled: Whether token embeddings are multiplied by the square root of their width.
    """

    modules: Mapping[str, str]
    unused: tuple[str, ...]
    prefix: str
    defaults: Mapping[str, Any]
    head: Mapping[str, str] = {}
    head_activation: str = "tanh"
    settings: Mapping[str, str] = {}
    fixed: Mapping[str, Any] = {}
    biases: Collection[str] = ()
    transposed: bool = True
    scaled: bool = False


_BERT = Family(
    modules=_ENCODER,
    unused=("embeddings.position_ids", "pooler.*", "cls.*", "classifier.*", "qa_outputs.*"),
    prefix="bert.",
    defaults={
        "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "max_position_embeddings": 512, "type_vocab_size": 2,
        "layer_norm_eps": 1e-12, "hidden_act": "gelu", "pad_token_id": 0,
    },
    head={"pooler": "pooler.dense"},
    fixed={"position_embedding_type": "absolute", "is_decoder": False},
)  # fmt: skip
_LLAMA_FAMILY = Family(
    modules=_LLAMA,
    unused=("layers.*.self_attn.rotary_emb.inv_freq", "lm_head.weight", "score.weight"),
    prefix="model.",
    defaults={
        "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "intermediate_size": 11008, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    },
    fixed={"attention_bias": False, "mlp_bias": False},
)  # fmt: skip
_QWEN2 = _LLAMA_FAMILY._replace(
    defaults={
        **_LLAMA_FAMILY.defaults, "vocab_size": 151936, "intermediate_size": 22016,
        "num_key_value_heads": 32, "max_position_embeddings": 32768, "use_sliding_window": False,
        "sliding_window": 4096, "max_window_layers": 28,
    },
    fixed={},
    biases=("layers.query", "layers.key", "layers.value"),
)  # fmt: skip
_ROBERTA = _BERT._replace(
    prefix="roberta.",
    head={"pooler": "classifier.dense", "classifier": "classifier.out_proj"},
    unused=(*_BERT.unused, "lm_head.*"),
    defaults={**_BERT.defaults, "pad_token_id": 1},
)
_ROBERTAS = ("roberta", "xlm-roberta", "camembert")
FAMILIES = {
    "bert": _BERT,
    **dict.fromkeys(_ROBERTAS, _ROBERTA),
    "roberta": _ROBERTA._replace(defaults={**_ROBERTA.defaults, "vocab_size": 50265}),
    "distilbert": Family(
        modules=_DISTILBERT,
        unused=(
            "embeddings.position_ids", "pre_classifier.*", "classifier.*", "vocab_*",
            "qa_outputs.*",
        ),
        prefix="distilbert.",
        defaults={
            "vocab_size": 30522, "dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072,
            "max_position_embeddings": 512, "activation": "gelu", "layer_norm_eps": 1e-12,
            "pad_token_id": 0,
        },
        head={"pooler": "pre_classifier"},
        head_activation="relu",
        settings={
            "hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim", "hidden_act": "activation",
        },
    ),
    "electra": _ROBERTA._replace(
        modules={**_ENCODER, "project": "embeddings_project"},
        unused=(*_BERT.unused, "discriminator_predictions.*", "generator_*"),
        prefix="electra.",
        defaults={
            **_BERT.defaults, "embedding_size": 128, "hidden_size": 256, "num_attention_heads": 4,
            "intermediate_size": 1024,
        },
        head_activation="gelu",
    ),
    "gpt2": Family(
        modules=_GPT2,
        unused=("h.*.attn.bias", "h.*.attn.masked_bias", "lm_head.weight", "score.weight"),
        prefix="transformer.",
        defaults={
            "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
            "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
        },
        settings={
            "hidden_size": "n_embd", "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head", "intermediate_size": "n_inner",
            "max_position_embeddings": "n_positions", "layer_norm_eps": "layer_norm_epsilon",
            "hidden_act": "activation_function",
        },
        fixed={
            "add_cross_attention": False, "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False, "tie_word_embeddings": True,
        },
        biases=_GPT2.keys() - {"tokens", "positions"},
        transposed=False,
    ),
    "gemma2": Family(
        modules=_GEMMA2,
        unused=("layers.*.self_attn.rotary_emb.inv_freq", "lm_head.weight", "score.weight"),
        prefix="model.",
        defaults={
            "vocab_size": 256000, "hidden_size": 2304, "num_hidden_layers": 26, "head_dim": 256,
            "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 9216,
            "max_position_embeddings": 8192, "sliding_window": 4096, "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh", "rope_theta": 10000.0,
            "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        },
        settings={"hidden_act": "hidden_activation"},
        fixed={
            "attention_bias": False, "use_bidirectional_attention": False,
            "tie_word_embeddings": True,
        },
        scaled=True,
    ),
    "llama": _LLAMA_FAMILY,
    "mistral": _LLAMA_FAMILY._replace(
        defaults={
            **_LLAMA_FAMILY.defaults, "intermediate_size": 14336, "num_key_value_heads": 8,
            "max_position_embeddings": 131072, "sliding_window": 4096, "use_sliding_window": True,
            "max_window_layers": 0,
        },
    ),
    "qwen2": _QWEN2,
    "qwen3": _QWEN2._replace(
        modules={**_LLAMA, **_NORMS},
        defaults={**_QWEN2.defaults, "head_dim": 128},
        fixed={"attention_bias": False},
        biases=(),
    ),
}  # fmt: skip


_SIZES = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
    "max_position_embeddings", "num_key_value_heads", "head_dim", "type_vocab_size",
    "sliding_window", "num_labels", "embedding_size",
)  # fmt: skip
_LARGEST = {"num_hidden_layers": 10_000, "num_labels": 1_000_000}  # each is built, or named
_POSITIVE = (
    "layer_norm_eps", "rms_norm_eps", "query_pre_attn_scalar", "attn_logit_softcapping",
    "final_logit_softcapping",
)  # fmt: skip


PROBLEMS = ("single_label_classification", "multi_label_classification", "regression")


def find_family(raw: Mapping[str, Any]) -> tuple[Family, Settings]:
    """Returns the family of a `config.json` and its settings; a ValueError names a wrong one."""
    if (kind := raw.get("model_type")) not in list(FAMILIES):
        raise ValueError(
            f"model_type must be one of {', '.join(FAMILIES)}, got {kind!r}; after pip install "
            '"hopfax[torch]", the command hopfax reads any family that transformers can load'
        )
    family = FAMILIES[kind]
    config = Settings({**family.defaults, **raw}, family.settings)
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
        names = [family.settings.get(n, n) for n in ("hidden_size", "num_attention_heads")]
        sizes = f"got {width} and {heads}"
        raise ValueError(f"{names[0]} must be a multiple of {names[1]}, {sizes}")
    groups = config.get("num_key_value_heads", heads)
    if heads % groups:
        sizes = f"got {heads} and {groups}"
        raise ValueError(f"num_attention_heads must be a multiple of num_key_value_heads, {sizes}")
    for key in _POSITIVE:
        check_positive(family.settings.get(key, key), config.get(key, 1))
    return family, config


def labels_of(config: Settings) -> tuple[tuple[str, ...], str | None]:
    """Returns the class names and the problem type of a model for sequence classification.

    The model has one label for each logit. Others have () and None.
    """
    if "ForSequenceClassification" not in str(config.get("architectures")):
        return (), None
    # `transformers` does not write the default.
    default = {str(number): f"LABEL_{number}" for number in range(config.get("num_labels", 2))}
    labels = config.get("id2label", default)
    if not isinstance(labels, dict) or set(labels) != {str(n) for n in range(len(labels) or 1)}:
        raise ValueError(f"id2label must map 0, 1, ... to names, got {labels}")
    names = tuple(str(labels[str(number)]) for number in range(len(labels)))
    if len(set(names)) < len(names):
        raise ValueError(f"id2label must have distinct names, got {', '.join(names)}")
    if config.get("problem_type") is None:  # what `transformers` assumes of integer labels
        return names, "regression" if len(names) == 1 else PROBLEMS[0]
    return names, config.choose("problem_type", dict(zip(PROBLEMS, PROBLEMS, strict=True)))


def encoder_leaves(shapes: Params, family: Family) -> dict[str, Leaf]:
    """Returns how the files of a family store the parameters of an `Encoder`."""
    return leaves_of(shapes, {**family.modules, **(family.head if "pooler" in shapes else {})})


def causal_leaves(family: Family, config: Settings, num_labels: int) -> dict[str, Leaf]:
    """Returns how files store the parameters of a causal model, all layers stacked.

    A classifier has a `score` of the classes in place of the `head`.
    """
    heads, width = config["num_attention_heads"], config["hidden_size"]
    sizes = {
        "vocab": config["vocab_size"],
        "width": width,
        "queries": heads * config.head_width,
        "keys": config.get("num_key_value_heads", heads) * config.head_width,
        "qkv": 3 * heads * config.head_width,
        "head": config.head_width,
        "ff": config.get("intermediate_size", 4 * width),
        "positions": config["max_position_embeddings"],
        "labels": num_labels,
    }
    leaves, modules = {}, {**family.modules, **({"score": "score"} if num_labels else {})}
    for path, module in modules.items():
        if path == "head" and (num_labels or config["tie_word_embeddings"]):
            continue
        layers, stacked = range(config["num_hidden_layers"]), "{}" in module
        names = [module.format(layer) for layer in (layers if stacked else (0,))]
        shape = tuple(sizes[name] for name in _MATRICES.get(path, ("width",)))
        table = path in ("tokens", "positions")
        flip = (family.transposed or path == "score") and not table and len(shape) == 2
        weights = [f"{name}.weight" for name in names]
        kind = "embedding" if table else "weight"
        leaves[f"{path}.{kind}"] = Leaf(weights, shape[::-1] if flip else shape, flip, stacked)
        if path in family.biases:
            biases = [f"{name}.bias" for name in names]
            leaves[f"{path}.bias"] = Leaf(biases, shape[-1:], False, stacked)
    return leaves


def family_config(encoder: EncoderConfig) -> dict[str, Any]:
    """Returns the `config.json` of an encoder that is a BERT or its relative; {} for others.

    All have softmax attention, post-LN blocks and, but for DistilBERT, token types; a BERT with two
    types has a separator, and a RoBERTa has a position offset. The head is left out if the encoder
    pools by the mean.
    """
    attention, offset = encoder.attention, encoder.position_offset
    separated = encoder.separator is not None
    others = {"relu": "distilbert", "gelu": "electra"}
    kind = others.get(encoder.pooler_activation, "roberta" if offset else "bert")
    family, typed = FAMILIES[kind], kind != "distilbert"
    if (
        type(encoder) is not EncoderConfig
        or encoder.memory
        or attention["name"] != "SoftmaxAttention"
        or "num_heads" not in attention
        or attention.get("causal")
        or encoder.norm_first
        or not encoder.embedding_norm
        or encoder.embedding_scale != 1
        or encoder.pooler_activation != family.head_activation
        or bool(offset) != (kind == "roberta")
        or bool(encoder.num_types) != typed
        or (separated if offset or not typed else not separated and encoder.num_types > 1)
        or (encoder.embedding_width and kind != "electra")
        or (kind == "distilbert" and encoder.epsilon != family.defaults["layer_norm_eps"])
    ):
        return {}
    head = encoder.pooling == "cls"
    name = {"distilbert": "DistilBert"}.get(kind, kind.title())
    settings = {
        "hidden_size": encoder.width,
        **({"embedding_size": encoder.token_width} if kind == "electra" else {}),
        "num_hidden_layers": encoder.num_layers,
        "num_attention_heads": attention["num_heads"],
        "intermediate_size": encoder.ff_width,
        "max_position_embeddings": encoder.max_length + offset,
        **({"type_vocab_size": encoder.num_types} if typed else {}),
        "layer_norm_eps": encoder.epsilon,
        "hidden_act": encoder.activation,
        # RoBERTa counts positions from the padding token's id.
        **({"pad_token_id": offset - 1} if offset else {}),
    }
    return {
        "model_type": kind,
        "architectures": [f"{name}ForSequenceClassification" if head else f"{name}Model"],
        **{family.settings.get(key, key): value for key, value in settings.items()},
    }
