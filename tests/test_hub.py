"""Folders of models by path and by name on the hub."""

import sys
import types

import pytest

from hopfax.hub import model_folder


def test_a_folder_is_itself(tmp_path):
    assert model_folder(str(tmp_path)) == model_folder(tmp_path) == tmp_path


@pytest.mark.parametrize("name", ["gpt2", "a/b/c", ""])
def test_other_names_are_missing_folders(name):
    message = f"^'{name}' is not a folder; names on .* have the form owner/name, such as open"
    with pytest.raises(FileNotFoundError, match=message):
        model_folder(name)


def test_a_hub_name_is_downloaded(tmp_path, monkeypatch):
    asked = []

    def snapshot_download(name, *, allow_patterns):
        asked.append((name, "*.safetensors" in allow_patterns))
        return str(tmp_path)

    hub = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert model_folder("someone/a-model") == tmp_path
    assert asked == [("someone/a-model", True)]


def test_errors_without_the_network_or_the_package(monkeypatch):
    def snapshot_download(name, **_):
        raise ConnectionError("no route to host\nmore")

    hub = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    with pytest.raises(FileNotFoundError, match=r"cannot be downloaded .* no route to host$"):
        model_folder("someone/a-model")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(FileNotFoundError, match="pip install huggingface_hub"):
        model_folder("someone/a-model")
