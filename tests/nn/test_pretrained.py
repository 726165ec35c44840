"""`load_pretrained` against recorded runs and a slow RoBERTa; its files and errors."""

import json
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from nn import checkpoints, slow
from nn.checkpoints import CONFIGS, PAD, VOCAB, WIDTH, save, shapes
from safetensors.numpy import save_file

from hopfax.nn import causal, load_pretrained, tensor_files

FAMILIES = ("bert", "roberta", "distilbert", "electra", "gpt2", "gemma2", "llama")


def load(folder, family, tensors, **changes):
    return load_pretrained(save(folder, CONFIGS[family] | changes, tensors))


@pytest.fixture
def draw(rng):
    return lambda family: {
        name: (0.5 * rng.normal(size=shape)).astype(np.float32)
        for name, shape in shapes(family).items()
    }


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def folder(family, tmp_path, draw):
    return save(tmp_path / family, CONFIGS[family], draw(family))


@pytest.fixture
def texts(rng):
    ids = rng.integers(PAD + 1, VOCAB, (3, 7))
    mask = np.array([[1] * 7, [1] * 5 + [0] * 2, [1] * 2 + [0] * 5])
    return np.where(mask, ids, PAD), mask


@pytest.mark.parametrize(
    "name", ["bert", "xlm_roberta", "distilbert", "electra", "gpt2", "gemma2", "llama"]
)
def test_recorded_states_outputs_and_gradients(shared, name):
    path = shared / "golden" / f"hf_{name}_tiny"
    if not path.is_dir():
        pytest.skip(f"no recorded run at {path}")
    model = load_pretrained(path)
    with np.load(path / "expected.npz", allow_pickle=False) as file:
        expected = dict(file)
    embeddings, mask = model.embed(expected["ids"]), expected["mask"]

    def scalar(embeddings):
        """The norm of the sum over real tokens, for each text."""
        result = model.forward(embeddings, mask)
        total = jnp.linalg.norm((result.output * mask[..., None]).sum(1), axis=-1)
        return total.sum(), (result, total)

    gradient, (result, total) = jax.grad(scalar, has_aux=True)(embeddings)
    np.testing.assert_allclose(result.output, expected["output"], atol=1e-4)
    np.testing.assert_allclose(result.hidden_states, expected["hidden_states"], atol=1e-4)
    np.testing.assert_allclose(total, expected["scalar"], rtol=1e-5)
    norms = jnp.linalg.norm(gradient, axis=-1)
    np.testing.assert_allclose(norms, expected["grad_norm_per_token"], rtol=1e-5)


def test_recorded_cosines_of_minilm(minilm):
    tokenizer = tokenizers.Tokenizer.from_file(str(minilm / "tokenizer.json"))
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(
        ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    )
    mask = np.array([text.attention_mask for text in encoded])
    model = load_pretrained(minilm)
    output = model.forward(model.embed(np.array([text.ids for text in encoded])), mask).output
    sums = np.sum(output * mask[..., None], axis=1)
    units = sums / np.linalg.norm(sums, axis=-1, keepdims=True)
    cosines = (units @ units.T)[np.triu_indices(3, 1)]
    np.testing.assert_allclose(cosines, [0.6660, 0.1046, 0.1411], atol=5e-5)


SLOW_ACTIVATIONS = {
    "gelu": lambda x: x / 2 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_new": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


def slow_roberta(tensors, ids, types, activation):
    """Returns the last hidden state of one text's real tokens."""

    part = partial(slow.module, tensors)
    norm = partial(slow.norm, epsilon=checkpoints.ENCODER["layer_norm_eps"])
    table, positions, kinds = (
        tensors[f"embeddings.{name}_embeddings.weight"].astype(float)
        for name in ("word", "position", "token_type")
    )
    real = ids != PAD
    x = table[ids[real]] + positions[PAD + 1 :][: real.sum()] + kinds[types[real]]
    x = norm(part("embeddings.LayerNorm"), x)
    for layer in (f"encoder.layer.{i}" for i in range(checkpoints.LAYERS)):
        attention = {n: part(f"{layer}.attention.self.{n}") for n in ("query", "key", "value")}
        attention["out"] = part(f"{layer}.attention.output.dense")
        mixed = slow.attend(attention, x[None], np.ones((1, len(x)), bool))[0]
        x = norm(part(f"{layer}.attention.output.LayerNorm"), x + mixed)
        hidden = np.vectorize(activation)(slow.linear(part(f"{layer}.intermediate.dense"), x))
        change = slow.linear(part(f"{layer}.output.dense"), hidden)
        x = norm(part(f"{layer}.output.LayerNorm"), x + change)
    return x


@pytest.mark.parametrize("name", SLOW_ACTIVATIONS)
def test_roberta_equals_the_slow_reference(x64, tmp_path, draw, texts, rng, monkeypatch, name):
    """Read in chunks; with padding on the right, on the left and in between."""
    monkeypatch.setattr(tensor_files, "_CHUNK", 2**6)
    tensors = draw("roberta")
    model = load(tmp_path, "roberta", tensors, hidden_act=name)
    ids = np.concatenate([texts[0], texts[0][:, ::-1], rng.permuted(texts[0], axis=1)])
    types = rng.integers(0, 2, ids.shape)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), model.params)
    embeddings = model.embed(ids, params=params)
    result = model.forward(embeddings, ids != PAD, token_types=types, params=params)
    for row, text, kinds in zip(result.output, ids, types, strict=True):
        slow = slow_roberta(tensors, text, kinds, SLOW_ACTIVATIONS[name])
        np.testing.assert_allclose(row[text != PAD], slow, rtol=1e-10)


@pytest.mark.parametrize("family", checkpoints.HEADS_OF)
def test_the_head_for_sequence_classification(tmp_path, family):
    named, settings = checkpoints.with_head(family, 3)
    tensors = {name: np.full(shape, i, np.float32) for i, (name, shape) in enumerate(named.items())}
    labels = {"id2label": {"0": "no", "2": 3, "1": "yes"}}
    model = load(tmp_path, family, tensors, **settings, **labels)
    assert model.labels == ("no", "yes", "3")
    parts = (model.params[name] for name in ("pooler", "classifier"))
    head = [np.max(part[kind]) for part in parts for kind in ("kernel", "bias")]
    assert head == [len(named) + i for i in (-4, -3, -2, -1)]
    other = {"architectures": ["ForTokenClassification"]}
    assert load(tmp_path, family, tensors, **labels, **other).labels == ()
    for labels, message in (
        # The default is two labels, which `transformers` does not write.
        ({}, r"weight must have shape \(2, 8\), got \(3, 8\)"),
        ({"id2label": {"1": "yes", "2": "no"}}, "id2label must map 0, 1"),
        ({"id2label": {"0": "a", "1": "b", "2": "a"}}, "id2label .* distinct names, got a, b, a"),
    ):
        with pytest.raises(ValueError, match=message):
            load(tmp_path, family, tensors, **settings, **labels)
    with pytest.raises(ValueError, match=f"missing tensor {checkpoints.HEADS_OF[family][1]}"):
        load(tmp_path, family, {name: tensors[name] for name in shapes(family)}, **settings)


def equal(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


def test_every_number_of_the_file_is_in_one_leaf(family, tmp_path):
    start, tensors = 0, {}
    for name, shape in shapes(family).items():
        tensors[name] = np.arange(start, start + math.prod(shape), dtype=np.float32).reshape(shape)
        start += math.prod(shape)
    model = load(tmp_path, family, tensors)
    numbers = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(model.params)])
    np.testing.assert_array_equal(np.sort(numbers), np.arange(start))
    assert model.config.items() >= CONFIGS[family].items()
    assert model.table.shape == (VOCAB, checkpoints.NARROW if family == "electra" else WIDTH)


LEFT_OUT = {  # of transformers
    "bert": {"layer_norm_eps": 1e-12, "hidden_act": "gelu", "type_vocab_size": 2},
    "roberta": {"layer_norm_eps": 1e-12, "hidden_act": "gelu", "pad_token_id": 1},
    "distilbert": {"activation": "gelu"},
    "electra": {"layer_norm_eps": 1e-12, "hidden_act": "gelu", "type_vocab_size": 2},
    "gpt2": {"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"},
    "gemma2": {
        "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh", "rope_theta": 10000.0,
        "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "sliding_window": 4096,
        "final_logit_softcapping": 30.0,
    },
    "llama": {
        "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    },
}  # fmt: skip


def test_settings_that_are_left_out_have_the_family_s_defaults(family, tmp_path, draw, texts):
    tensors, defaults = draw(family), LEFT_OUT[family]
    short = {name: value for name, value in CONFIGS[family].items() if name not in defaults}
    models = [load_pretrained(save(tmp_path, short | x, tensors)) for x in ({}, defaults)]
    equal(*(model.forward(model.embed(texts[0]), texts[1]) for model in models))
    assert models[0].config.items() >= defaults.items()


def test_shards_are_the_same_as_one_file(folder, tmp_path, draw, family):
    tensors = draw(family)
    params = load(folder, family, tensors).params
    (folder / "model.safetensors").unlink()
    index = {}
    for number, names in enumerate(np.array_split(sorted(tensors), 3)):
        save_file({name: tensors[name] for name in names}, folder / f"{number}.safetensors")
        index |= dict.fromkeys(names.tolist(), f"{number}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    equal(load_pretrained(folder).params, params)


IGNORED = {
    "bert": ("embeddings.position_ids", "pooler.dense.weight", "cls.predictions.bias"),
    "roberta": ("embeddings.position_ids", "lm_head.dense.weight", "classifier.out_proj.bias"),
    "distilbert": ("vocab_projector.bias", "pre_classifier.weight", "classifier.bias"),
    "electra": ("discriminator_predictions.dense.bias", "generator_lm_head.bias"),
    "gpt2": ("h.0.attn.bias", "h.1.attn.masked_bias", "lm_head.weight"),
    "gemma2": ("lm_head.weight",),
    "llama": ("layers.0.self_attn.rotary_emb.inv_freq",),
}


def other_name(family, name):
    """The name of a tensor in an older BERT, and in a GPT-2 without a head."""
    if family in ("bert", "distilbert", "electra"):
        return f"{family}." + name.replace("Norm.weight", "Norm.gamma").replace(
            "Norm.bias", "Norm.beta"
        )
    return name.removeprefix("transformer.")


def test_other_names_are_read_and_heads_and_buffers_ignored(tmp_path, family, draw):
    tensors = draw(family)
    params = load(tmp_path, family, tensors).params
    ignored = {name: np.zeros(3, np.int32) for name in IGNORED[family]}
    renamed = {other_name(family, name): value for name, value in tensors.items()}
    for other in (tensors | ignored, renamed):
        equal(load(tmp_path, family, other).params, params)


def test_bfloat16_files_and_parameters(tmp_path, family, draw, texts):
    ids, mask = texts
    narrow = {name: value.astype(jnp.bfloat16) for name, value in draw(family).items()}
    exact = {name: value.astype(np.float32) for name, value in narrow.items()}
    model = load(tmp_path, family, exact)
    equal(load(tmp_path, family, narrow).params, model.params)
    half = load_pretrained(tmp_path, dtype=jnp.bfloat16)
    equal(half.params, jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), model.params))
    result = half.forward(half.embed(ids), mask)
    for output, expected in zip(result, model.forward(model.embed(ids), mask), strict=True):
        assert output.dtype == jnp.bfloat16
        error = np.abs(np.asarray(output, np.float32) - expected)[..., mask == 1, :]
        assert error.max() < 0.05 * np.abs(expected[..., mask == 1, :]).max()
    for name in ("float16", "foo"):
        with pytest.raises(ValueError, match=f"dtype must be float32 or bfloat16, got {name}"):
            load_pretrained(tmp_path, dtype=name)


def test_padding_on_either_side_changes_nothing(folder, texts, rng):
    ids, mask = texts
    model = load_pretrained(folder)
    embeddings = np.array(model.embed(ids))

    def energy(embeddings, mask):
        output = model.forward(embeddings, mask).output
        return jnp.square(jnp.where(mask[..., None] == 1, output, 0)).sum()

    filled = rng.choice([np.nan, 1.0], size=embeddings.shape)  # as of ids outside the vocabulary
    right = np.where(mask[..., None] == 1, embeddings, filled)
    left = np.stack([np.roll(row, 7 - m.sum(), axis=0) for row, m in zip(right, mask, strict=True)])
    for padded, real in ((right, mask), (left, mask[:, ::-1])):
        states = model.forward(padded, real).hidden_states
        gradient = jax.grad(energy)(jnp.asarray(padded), real)
        assert not np.any(np.asarray(gradient)[real == 0])
        for text in range(3):
            length = mask[text].sum()
            alone = model.forward(embeddings[text : text + 1, :length], np.ones((1, length)))
            found = states[:, text, real[text] == 1]
            np.testing.assert_allclose(found, alone.hidden_states[:, 0], atol=2e-5)


def test_attention_weights_are_those_of_the_values(rng):
    """With two heads for each key and value, as in Gemma-2."""
    query, keys, values = (rng.normal(size=(5, n, 3)) for n in (4, 2, 2))
    mixed, weights = causal._attend(query, keys, values, np.tri(5, dtype=bool), scale=1.0)
    want = np.einsum("hqt,thw->qhw", weights, np.repeat(values, 2, axis=1)).reshape(5, 12)
    np.testing.assert_allclose(mixed, want, rtol=1e-4, atol=1e-5)
    scores = np.where(np.tri(5), query[:, 3] @ keys[:, 1].T, -np.inf)
    np.testing.assert_allclose(weights[3], jax.nn.softmax(scores), rtol=1e-4, atol=1e-6)


def test_parameters_can_be_arguments(folder, texts):
    ids, mask = texts
    model = load_pretrained(folder)

    @jax.jit
    def loss(params):
        result = model.forward(model.embed(ids, params=params), mask, params=params)
        return jnp.square(result.output - 1).mean()

    gradient = jax.grad(loss)(model.params)
    for block in gradient.get("blocks", {}).values():
        del block["attention"]["key"]["bias"]  # the softmax does not depend on it
    assert all(np.any(leaf) for leaf in jax.tree.leaves(gradient))
    out = model.forward(model.embed(ids), mask).output
    np.testing.assert_allclose(loss(model.params), np.square(out - 1).mean(), rtol=1e-5)


def test_settings_of_gemma2(tmp_path, draw, texts):
    """In files of older and newer versions."""
    older, tensors = CONFIGS["gemma2"], draw("gemma2")
    newer = {name: value for name, value in older.items() if name != "rope_theta"} | {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    }

    def output(config):
        model = load_pretrained(save(tmp_path / "gemma2", config, tensors))
        return np.asarray(model.forward(model.embed(texts[0]), texts[1]).output)[0]

    plain, wide = output(older), output(older | {"sliding_window": 7})
    np.testing.assert_array_equal(output(newer), plain)
    full = output(newer | {"layer_types": ["full_attention"] * 2})
    np.testing.assert_allclose(wide, full, atol=1e-5)
    capped = output(older | {"final_logit_softcapping": 0.1})
    assert np.abs(capped).max() <= 0.1
    others = {"attn_logit_softcapping": None}, {"query_pre_attn_scalar": 50}
    for other in (wide, capped, *(output(older | changes) for changes in others)):
        assert not np.allclose(other, plain)


def test_settings_of_llama(tmp_path, draw, texts):
    """Of the output matrix, and of older and newer versions."""
    tensors, older = draw("llama"), CONFIGS["llama"]
    rope = {"rope_type": "default", "rope_theta": 100.0}
    rest = {name: value for name, value in older.items() if name not in ("rope_theta", "head_dim")}

    def output(config):
        model = load_pretrained(save(tmp_path, config, tensors))
        return np.asarray(model.forward(model.embed(texts[0]), texts[1]).output)[0]

    plain, tied = output(older), output(older | {"tie_word_embeddings": True})
    for key in ("rope_parameters", "rope_scaling"):
        np.testing.assert_array_equal(output(rest | {"head_dim": 6, key: rope}), plain)
    with pytest.raises(ValueError, match=r"q_proj\.weight must have shape \(8, 8\), got \(24, 8\)"):
        output(rest)  # heads of the width divided by their number
    assert not np.allclose(output(older | {"rope_theta": 1e4}), plain)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    np.testing.assert_allclose(output(older), tied, atol=1e-5)
    assert not np.allclose(tied, plain)
    del tensors["lm_head.weight"]
    np.testing.assert_array_equal(output(older | {"tie_word_embeddings": True}), tied)
    with pytest.raises(ValueError, match=r"missing tensor lm_head\.weight"):
        output(older)


def test_all_wrong_tensors_are_named(tmp_path, draw):
    tensors = draw("bert")
    missing, misshapen, integer, twice = list(tensors)[-4:]
    del tensors[missing]
    tensors[misshapen] = np.zeros((2, 3), np.float32)
    tensors[integer] = np.zeros(tensors[integer].shape, np.int32)
    tensors[f"bert.{twice}"] = tensors[twice]
    tensors["adapter.weight"] = np.zeros(1, np.float32)
    with pytest.raises(ValueError) as error:
        load(tmp_path, "bert", tensors)
    message = str(error.value)
    for part in (
        f"{tmp_path}: ",
        f"missing tensor {missing}",
        f"{misshapen} must have shape {shapes('bert')[misshapen]}, got (2, 3)",
        f"{integer} must be F64, F32, F16, BF16, got I32",
        "are the same tensor",
        "unknown tensor adapter.weight",
    ):
        assert part in message
    assert message.count(";") == 4


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("bert", {"model_type": "t5"}, r"model_type must be one of .*, got 't5'; .*\[torch\]"),
        ("llama", {"attention_bias": True}, "attention_bias must be False, got True"),
        ("llama", {"mlp_bias": True}, "mlp_bias must be False, got True"),
        ("llama", {"rope_scaling": {"rope_type": "llama3"}}, "rope_type must be .*, got 'llama3'"),
        ("llama", {"num_key_value_heads": 3}, ".*heads must be a multiple of .*, got 4 and 3"),
        ("bert", {"num_hidden_layers": 10**9}, "num_hidden_layers .* from 1 to 10000, got "),
        ("bert", {"hidden_size": "32"}, "hidden_size must be an integer >= 1, got '32'"),
        ("bert", {"hidden_act": "mish"}, "hidden_act must be one of gelu, .*, got 'mish'"),
        ("bert", {"position_embedding_type": "x"}, "position_embedding_type must be 'absolute'"),
        ("bert", {"layer_norm_eps": -1}, "layer_norm_eps must be a number > 0, got -1"),
        ("roberta", {"pad_token_id": 15}, "pad_token_id must be an integer from 0 to 14, got 15"),
        ("gpt2", {"n_embd": None}, "n_embd is missing"),
        ("gpt2", {"n_head": True}, "n_head must be an integer >= 1, got True"),
        ("gpt2", {"n_head": 3}, "n_embd must be a multiple of n_head, got 8 and 3"),
        ("gpt2", {"tie_word_embeddings": False}, "tie_word_embeddings must be True, got"),
        ("gemma2", {"rope_theta": "x"}, "rope_theta must be a number > 0, got 'x'"),
        ("gemma2", {"rope_parameters": "x"}, "rope_parameters must be an object, got 'x'"),
        ("gemma2", {"rope_scaling": {"type": "yarn"}}, "rope_type must be default, got"),
        ("gemma2", {"layer_types": ["local"] * 2}, "layer_types must be a list of 2 .*local"),
    ],
)
def test_unsupported_settings(tmp_path, family, changes, message):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[family] | changes))
    with pytest.raises(ValueError, match=rf"config\.json: {message}"):
        load_pretrained(tmp_path)


def test_missing_and_broken_files(tmp_path, draw):
    folder = tmp_path / "bert"
    config, index = folder / "config.json", folder / "model.safetensors.index.json"

    def refused(message, error=ValueError):
        with pytest.raises(error, match=message):
            load_pretrained(folder)

    refused("bert' is not a folder", FileNotFoundError)
    folder.mkdir()
    refused(r" has no config\.json$", FileNotFoundError)
    (folder / "adapter_config.json").touch()
    refused(r"config\.json; it holds a PEFT adapter: save the", FileNotFoundError)
    for text, message in (("{", "is not a JSON file"), ("[]", "must contain an object, got list")):
        config.write_text(text)
        refused(rf"config\.json {message}")
    config.write_text(json.dumps(CONFIGS["bert"]))
    refused(r"no model\.safetensors and no .*index\.json$", FileNotFoundError)
    (folder / "tf_model.h5").touch()
    refused("json; convert tf_model.h5 to safe.* then call save_", FileNotFoundError)
    for shards in ({"a": 1}, None, *({"a": f"{x}b.safetensors"} for x in ("../", "/", "c\\"))):
        index.write_text(json.dumps({"weight_map": shards}))
        refused(r"weight_map from tensors to \.safetensors files in")
    index.write_text(json.dumps({"weight_map": {"a": "shard.safetensors"}}))
    refused(r"shard\.safetensors", FileNotFoundError)
    save_file(draw("bert"), folder / "shard.safetensors")
    data = (folder / "shard.safetensors").read_bytes()
    for size in (0, 100, len(data) - 1):
        (folder / "shard.safetensors").write_bytes(data[:size])
        refused(r"shard\.safetensors is incomplete or not a safet")
    (folder / "shard.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid 1")
    refused("it is a pointer of Git LFS: download the file with git")


def test_inputs_are_checked(folder, family):
    model = load_pretrained(folder)
    limit = checkpoints.POSITIONS - PAD - 1 if family == "roberta" else checkpoints.POSITIONS
    assert model.max_length == limit
    width = model.table.shape[1]
    tokens, types = np.zeros((2, limit + 1, width)), np.full((2, 3), 9)
    wrong = r"in \[0, \d\], got 9" if "types" in model.params else "None for a model without"
    for inputs, options, message in (
        ((tokens[:, :3], np.ones((2, 3))), {"token_types": types}, f"token_types must be {wrong}"),
        ((tokens, np.ones((2, limit + 1))), {}, f"at most {limit} tokens, got {limit + 1}"),
        ((tokens[:, :4], np.ones((2, 3))), {}, rf"embeddings must have .* tokens, {width}\)"),
        ((tokens[:, :4], None), {}, r"mask must have shape \(batch, tokens\), got None"),
        ((tokens[:, :1], np.full((2, 1), -1e3)), {}, "mask must be 1 at real .*, got -1000"),
    ):
        with pytest.raises(ValueError, match=message):
            model.forward(*inputs, **options)
    assert np.isnan(model.embed(np.array([[VOCAB, -1]]))).all()
