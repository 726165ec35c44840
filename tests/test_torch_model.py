import json
import sys
import types

import numpy as np
import pytest

from hopfax import text_model
from hopfax.data.tokenize import WordPiece, text_tokenizer
from hopfax.text_model import NativeModel, load_text_model
from hopfax.torch_model import TorchModel

TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno")
TEXTS = ["a b c d e f", "g h", "i j k l"]
SIZES = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 24}
SIZES |= {"encoder_layers": 2, "decoder_layers": 1, "num_decoder_layers": 1, "num_labels": 3}
SIZES |= {"pad_token_id": 0, "eos_token_id": 3, "bos_token_id": 2, "decoder_start_token_id": 3}
SIZES |= {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "tie_word_embeddings": True}
FAMILIES = "albert bart bert deberta-v2 distilbert electra gpt2 llama modernbert mpnet qwen2 t5"
TYPED = ("albert", "bert", "electra")  # families whose tokenizer numbers the texts of a pair
KINDS = {"encoder": "AutoModel", "classifier": "AutoModelForSequenceClassification"}


@pytest.fixture
def save(tmp_path):
    """Saves a random model of `transformers` with a tokenizer."""
    transformers = pytest.importorskip("transformers", "5", reason="requires the extra torch")
    transformers.utils.logging.disable_progress_bar()
    torch, tokenizer = pytest.importorskip("torch"), text_tokenizer(WordPiece(tokens=TOKENS))
    torch.set_num_threads(1)

    def run(family, kind="encoder", **changes):
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(family, **SIZES | changes)
        model = getattr(transformers, KINDS[kind]).from_config(config)
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.3)
        model.save_pretrained(tmp_path)
        special = {"pad_token": "[PAD]", "tokenizer_object": tokenizer}
        if family not in TYPED:
            special["model_input_names"] = ["input_ids", "attention_mask"]
        transformers.PreTrainedTokenizerFast(**special).save_pretrained(tmp_path)
        return tmp_path

    return run


def plain(folder, kind, texts):
    """Returns what `transformers` computes of padded texts."""
    transformers = pytest.importorskip("transformers")
    model = getattr(transformers, KINDS[kind]).from_pretrained(folder).eval()
    if kind == "encoder" and model.config.is_encoder_decoder:
        model = model.get_encoder()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    output = model(**inputs)
    if kind == "classifier":
        return output.logits.softmax(-1).detach().numpy()
    mask = inputs["attention_mask"][..., None]
    mean = ((output.last_hidden_state * mask).sum(1) / mask.sum(1)).detach().numpy()
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES.split())
def test_outputs_and_derivatives_are_right(family, kind, save, monkeypatch):
    monkeypatch.setattr(text_model, "bucket_boundaries", lambda *_, **__: (20,))  # much padding
    texts = TEXTS if kind == "encoder" else [("a b c", "d e"), ("f", "g h i j")]
    model = TorchModel(save(family, kind))
    expected = plain(model.pooling.folder, kind, texts)
    np.testing.assert_allclose(model.outputs(texts), expected, atol=1e-5)
    assert model.num_layers == 2 and model.max_length == (22 if family == "mpnet" else 24)
    if model.labels:
        ids, table, ends = model.encode(texts[:1]).ids[0], model._table, []
        for model._table in (table * 0.99, table * 1.01):
            ends.append(np.log(model.outputs(texts[:1])[0, 1]))
        slopes = model.toward(ids, table[ids], 1)
        np.testing.assert_allclose(slopes.sum(), np.diff(ends)[0] / 0.02, 0.01, 1e-3)


@pytest.mark.parametrize(
    ("family", "kind"), [("bert", "classifier"), ("bert", "encoder"), ("llama", "encoder")]
)
def test_both_routes_compute_the_same(family, kind, save, monkeypatch):
    monkeypatch.setattr(text_model, "_DRAWS", 2)
    folder = save(family, kind)
    if (family, kind) == ("bert", "encoder"):  # as sentence-transformers saves it
        modules = [{"type": name, "path": ""} for name in ("Transformer", "Pooling")]
        (folder / "modules.json").write_text(json.dumps(modules))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"pooling_mode": ["cls", "max"]}))
    routes = load_text_model(folder), TorchModel(folder)
    assert isinstance(routes[0], NativeModel)
    for corruption in [("clean",), ("token", 0), ("memory", 0), ("replacement", 0.5)]:
        ours, theirs = (model.outputs(TEXTS, *corruption) for model in routes)
        np.testing.assert_allclose(theirs, ours, atol=1e-5)
    ours, theirs = (model.influence(TEXTS[0]) for model in routes)
    assert theirs.layers == ours.layers and theirs.label == ours.label
    for name in ("mean", "standard_error", *["toward"] * (kind == "classifier")):
        np.testing.assert_allclose(getattr(theirs, name), getattr(ours, name), 1e-4, 1e-5)


def test_outputs_of_several_labels_are_sigmoids_and_a_regression_has_a_score(save):
    settings = ({"problem_type": "multi_label_classification"}, {}, {"num_labels": 1})
    models = (load_text_model(save("mpnet", "classifier", **each)) for each in settings)
    outputs = [model.outputs(TEXTS) for model in models]
    odds = outputs[0] / (1 - outputs[0])
    np.testing.assert_allclose(odds / odds.sum(1, keepdims=True), outputs[1], atol=1e-5)
    assert outputs[2].shape == (3, 1) and outputs[2].max() > 1


def test_weights_in_the_format_of_pytorch_and_old_tokenizers_are_read(save):
    folder = save("bert", "classifier")
    expected = NativeModel(folder).outputs(TEXTS)
    weights = pytest.importorskip("safetensors.torch").load_file(folder / "model.safetensors")
    pytest.importorskip("torch").save(weights, folder / "pytorch_model.bin")
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    (folder / "vocab.txt").write_text("\n".join(TOKENS))
    model = load_text_model(folder)
    assert isinstance(model, TorchModel)
    np.testing.assert_allclose(model.outputs(TEXTS), expected, atol=1e-5)


LABELED = {"architectures": ["MPNetForSequenceClassification"]}
OLD = {"pytorch_model.bin": "model.safetensors", "tokenizer_config.json": "tokenizer.json"}
REFUSED = [
    ("model.safetensors", b"version https://git-lfs.github.com/", "Git LFS"),
    ("pytorch_model.bin", b"cbuiltins\nprint\n(S'executed'\ntR.", "Weights only load failed"),
    ("tokenizer.json", b"", "tokenizer.json is not a JSON file"),
    ("tokenizer_config.json", {"tokenizer_class": "ByT5Tokenizer"}, "ByT5Tokenizer has no tok"),
    ("config.json", {"model_type": "new"}, "model type `new`"),
    ("config.json", {"model_type": "new", "auto_map": {}}, "trust-remote-code"),
    ("config.json", LABELED, "missing tensor classifier.dense.bias"),
]


@pytest.mark.parametrize(("file", "content", "message"), REFUSED)
def test_what_cannot_be_loaded_is_refused(file, content, message, save, capsys):
    folder = save("mpnet")
    if isinstance(content, dict):
        content = json.dumps(json.loads((folder / file).read_text()) | content).encode()
    if file in OLD:
        (folder / OLD[file]).unlink()
    (folder / file).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_text_model(folder)
    assert "executed" not in capsys.readouterr().out


def test_what_reads_its_embeddings_otherwise_is_refused(save, monkeypatch):
    monkeypatch.delitem(SIZES, "max_position_embeddings")
    with pytest.raises(ValueError, match="XLNetModel is not supported: its embeddings have the sh"):
        load_text_model(save("xlnet", d_head=8))


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_without_the_extra_the_error_names_it(missing, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"model_type": "mpnet"}')
    monkeypatch.setitem(sys.modules, "torch", None if missing == "torch" else sys)
    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace(__version__="4.57.1"))
    with pytest.raises(ValueError, match=r'got .mpnet.; .*: pip install "hopfax\[torch\]"$'):
        load_text_model(tmp_path)
