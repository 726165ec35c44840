"""Tiny models with random weights in the layout of Hugging Face's folders."""

import json

import numpy as np
from safetensors.numpy import save_file

VOCAB, WIDTH, FF, LAYERS, HEADS, POSITIONS, PAD = 20, 8, 12, 2, 2, 16, 3
NARROW = 6  # width of ELECTRA's token embeddings

SIZES = {"vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": FF}
SIZES |= {"num_hidden_layers": LAYERS, "max_position_embeddings": POSITIONS}
ENCODER = SIZES | {"num_attention_heads": HEADS, "type_vocab_size": 2, "layer_norm_eps": 0.1}
ENCODER |= {"hidden_act": "gelu", "pad_token_id": PAD}
GPT2 = {"vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_inner": None}
GPT2 |= {"n_positions": POSITIONS, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
GEMMA2 = SIZES | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}
GEMMA2 |= {"query_pre_attn_scalar": 5, "sliding_window": 3, "rms_norm_eps": 1e-6}
GEMMA2 |= {"hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": 5.0}
GEMMA2 |= {"final_logit_softcapping": 3.0, "rope_theta": 100.0}
LLAMA = SIZES | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}
LLAMA |= {"rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 100.0}
DISTILBERT = {"vocab_size": VOCAB, "dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS}
DISTILBERT |= {"hidden_dim": FF, "max_position_embeddings": POSITIONS, "activation": "gelu"}
SETTINGS = {"bert": ENCODER, "roberta": ENCODER, "gpt2": GPT2, "gemma2": GEMMA2, "llama": LLAMA}
WINDOWS = {"sliding_window": 3, "use_sliding_window": True, "max_window_layers": 1}
SETTINGS |= {"mistral": LLAMA | {"sliding_window": 3}, "qwen2": LLAMA | WINDOWS}
SETTINGS |= {"qwen3": LLAMA | WINDOWS, "distilbert": DISTILBERT}
SETTINGS |= {"electra": ENCODER | {"embedding_size": NARROW}}
CONFIGS = {name: {"model_type": name, **settings} for name, settings in SETTINGS.items()}


def shapes(family):
    """Returns the shapes of a file's tensors by the names of Hugging Face's models."""
    named = {}

    def linear(name, inputs, outputs, *, transposed=True, bias=True):
        named[f"{name}.weight"] = (outputs, inputs) if transposed else (inputs, outputs)
        named.update({f"{name}.bias": (outputs,)} if bias else {})

    def norm(name, width=WIDTH):
        named[f"{name}.weight"] = named[f"{name}.bias"] = (width,)

    if family in ("bert", "roberta", "electra"):
        width = NARROW if family == "electra" else WIDTH
        for name, count in (("word", VOCAB), ("position", POSITIONS), ("token_type", 2)):
            named[f"embeddings.{name}_embeddings.weight"] = (count, width)
        norm("embeddings.LayerNorm", width)
        if family == "electra":
            linear("embeddings_project", width, WIDTH)
        for layer in (f"encoder.layer.{i}" for i in range(LAYERS)):
            for part in ("query", "key", "value"):
                linear(f"{layer}.attention.self.{part}", WIDTH, WIDTH)
            linear(f"{layer}.attention.output.dense", WIDTH, WIDTH)
            norm(f"{layer}.attention.output.LayerNorm")
            linear(f"{layer}.intermediate.dense", WIDTH, FF)
            linear(f"{layer}.output.dense", FF, WIDTH)
            norm(f"{layer}.output.LayerNorm")
    elif family == "distilbert":
        for name, count in (("word", VOCAB), ("position", POSITIONS)):
            named[f"embeddings.{name}_embeddings.weight"] = (count, WIDTH)
        norm("embeddings.LayerNorm")
        for layer in (f"transformer.layer.{i}" for i in range(LAYERS)):
            for part in ("q", "k", "v", "out"):
                linear(f"{layer}.attention.{part}_lin", WIDTH, WIDTH)
            norm(f"{layer}.sa_layer_norm")
            linear(f"{layer}.ffn.lin1", WIDTH, FF)
            linear(f"{layer}.ffn.lin2", FF, WIDTH)
            norm(f"{layer}.output_layer_norm")
    elif family == "gpt2":
        named["transformer.wte.weight"] = (VOCAB, WIDTH)
        named["transformer.wpe.weight"] = (POSITIONS, WIDTH)
        for layer in (f"transformer.h.{i}" for i in range(LAYERS)):
            norm(f"{layer}.ln_1")
            norm(f"{layer}.ln_2")
            linear(f"{layer}.attn.c_attn", WIDTH, 3 * WIDTH, transposed=False)
            linear(f"{layer}.attn.c_proj", WIDTH, WIDTH, transposed=False)
            linear(f"{layer}.mlp.c_fc", WIDTH, 4 * WIDTH, transposed=False)
            linear(f"{layer}.mlp.c_proj", 4 * WIDTH, WIDTH, transposed=False)
        norm("transformer.ln_f")
    else:
        named["model.embed_tokens.weight"] = (VOCAB, WIDTH)
        for layer in (f"model.layers.{i}" for i in range(LAYERS)):
            norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
            for part in norms if family == "gemma2" else norms[:2]:
                named[f"{layer}.{part}_layernorm.weight"] = (WIDTH,)
            for part, count in (("q", 24), ("k", 12), ("v", 12)):
                linear(f"{layer}.self_attn.{part}_proj", WIDTH, count, bias=family == "qwen2")
            for part in "qk" if family == "qwen3" else "":
                named[f"{layer}.self_attn.{part}_norm.weight"] = (6,)
            named[f"{layer}.self_attn.o_proj.weight"] = (WIDTH, 24)
            for part in ("gate", "up"):
                named[f"{layer}.mlp.{part}_proj.weight"] = (FF, WIDTH)
            named[f"{layer}.mlp.down_proj.weight"] = (WIDTH, FF)
        named["model.norm.weight"] = (WIDTH,)
        if family != "gemma2":
            named["lm_head.weight"] = (VOCAB, WIDTH)
    return named


HEADS_OF = {"bert": ("pooler.dense", "classifier")}
HEADS_OF["roberta"] = HEADS_OF["electra"] = ("classifier.dense", "classifier.out_proj")
HEADS_OF["distilbert"] = ("pre_classifier", "classifier")


def with_head(family, num_labels):
    """Returns the shapes and settings of a model for sequence classification."""
    named = shapes(family)
    if family in HEADS_OF:
        dense, out = HEADS_OF[family]
        named |= {f"{dense}.weight": (WIDTH, WIDTH), f"{dense}.bias": (WIDTH,)}
        named |= {f"{out}.weight": (num_labels, WIDTH), f"{out}.bias": (num_labels,)}
    else:
        named.pop("lm_head.weight", None)
        named["score.weight"] = (num_labels, WIDTH)
    return named, {"architectures": ["ModelForSequenceClassification"]}


def save(folder, config, tensors):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def save_random(folder, family, *, labels=(), seed=0, scale=1.0, **changes):
    """Saves a model with normal weights, for classification if there are labels.

    Biases are a tenth as large: large ones hide the tokens.
    """
    named, settings = shapes(family), {}
    if labels:
        named, settings = with_head(family, len(labels))
        settings["id2label"] = {str(number): label for number, label in enumerate(labels)}
    rng = np.random.default_rng(seed)
    tensors = {
        name: (scale * rng.normal(size=shape) * (0.1 if "bias" in name else 1)).astype("f")
        for name, shape in named.items()
    }
    return save(folder, CONFIGS[family] | settings | changes, tensors)
