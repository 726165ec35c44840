import sys
import types
from fnmatch import fnmatch
from pathlib import Path

import pytest

from hopfax.hub import local_path, model_folder, new_folder

FILES = [
    "config.json", "config_sentence_transformers.json", "sentence_bert_config.json", "vocab.txt",
    "tokenizer_config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors",
    "1_Pooling/config.json", "2_Dense/model.safetensors",
    "onnx/config.json", "README.md", "pytorch_model.bin",
]  # fmt: skip


def test_a_hub_name_is_downloaded(tmp_path, monkeypatch):
    asked = []

    def snapshot_download(name, *, revision, allow_patterns):
        assert revision == "v1"
        asked.extend(path for path in FILES if any(fnmatch(path, each) for each in allow_patterns))
        return str(tmp_path)

    hub = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert model_folder("someone/a-model", "v1") == tmp_path
    assert asked == FILES[:-3]
    model_folder("someone/a-model", "v1", ["*.bin"])
    assert asked[len(FILES) - 3 :] == [*FILES[:-3], FILES[-1]]
    with pytest.raises(ValueError, match="revision must be None for a folder, got 'v1'"):
        model_folder(tmp_path, "v1")


def test_a_path_that_exists_is_taken_literally(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home")
    assert (local_path("~"), local_path("~/a")) == (Path("/home"), Path("/home/a"))
    for name in ("~nobody-here", "a/b/c", ""):
        with pytest.raises(FileNotFoundError, match=f"^'{name}' is not a folder; names on .* have"):
            model_folder(name)
    for name in ("~", "~nobody-here"):
        (tmp_path / name).mkdir()
        assert local_path(name) == model_folder(f"./{name}") == Path(name)


def test_a_new_folder_can_be_written(tmp_path, monkeypatch):
    assert new_folder(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    with pytest.raises(FileExistsError, match=f"must not exist, got {tmp_path}$"):
        new_folder(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(PermissionError, match=r"writable folder, got .*file/a in .*file$"):
        new_folder(tmp_path / "file" / "a")
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(PermissionError, match=f"got .* in {tmp_path}$"):
        new_folder(tmp_path / "a")


def test_errors_without_the_network_or_the_package(monkeypatch):
    def snapshot_download(name, **_):
        raise ConnectionError("no route to host\nmore")

    hub = types.SimpleNamespace(snapshot_download=snapshot_download)
    for package, message in ((hub, "downloaded .* no route to host$"), (None, "pip install hugg")):
        monkeypatch.setitem(sys.modules, "huggingface_hub", package)
        with pytest.raises(FileNotFoundError, match=message):
            model_folder("someone/a-model")
