"""Folders of models, by path or by name on the Hugging Face hub, and packages of the extras."""

import importlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_NAME = re.compile(r"[\w.-]+/[\w.-]+")
# All that is read, and no more: a snapshot by another program lacks the rest, such as onnx/*.json.
_FILES = (
    "config.json", "adapter_config.json", "model*.safetensors*", "tokenizer*.json", "vocab.json",
    "vocab.txt", "merges.txt", "added_tokens.json", "special_tokens_map.json", "modules.json",
    "*sentence_*.json", "[0-9]*_*/*.json", "[0-9]*_*/*.txt", "[0-9]*_*/*.safetensors",
)  # fmt: skip
_LFS = b"version https://git-lfs.github.com/"


def model_folder(
    name: str | os.PathLike[str], revision: str | None = None, more: Sequence[str] = ()
) -> Path:
    """Returns a model's folder, downloaded if `name` is on the hub.

    Args:
        name: A folder, or a name such as `sentence-transformers/all-MiniLM-L6-v2`, which requires
            `huggingface_hub`. Downloads are cached.
        revision: Branch, tag or commit on the hub; None for its default branch.
        more: Patterns of other files to download.

    Raises:
        FileNotFoundError: There is no such folder, and the name cannot be downloaded.
        ValueError: A folder has no `revision`.

    Example:
        >>> import tempfile
        >>> from hopfax.hub import model_folder
        >>> folder = tempfile.mkdtemp()
        >>> str(model_folder(folder)) == folder
        True
    """
    folder = local_path(name)
    if os.fspath(name) and folder.is_dir():
        if revision is not None:
            raise ValueError(f"revision must be None for a folder, got {revision!r} for {folder}")
        return folder
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise FileNotFoundError(
            f"{str(name)!r} is not a folder; names on the Hugging Face hub have the form "
            "owner/name, such as openai-community/gpt2"
        )
    try:
        from huggingface_hub import snapshot_download

        patterns = [*_FILES, *more]
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except Exception as error:  # errors of the network have no common class
        missing = isinstance(error, ModuleNotFoundError) and "pip install huggingface_hub"
        reason = missing or str(error).strip().partition("\n")[0]
        raise FileNotFoundError(
            f"{name} is not a folder, and cannot be downloaded from the Hugging Face hub: {reason}"
        ) from error


def local_path(path: str | os.PathLike[str]) -> Path:
    """Returns the path if it exists, else the path with ~ expanded."""
    literal = Path(path)
    return literal if literal.exists() else Path(os.path.expanduser(path))


def new_folder(path: str | os.PathLike[str]) -> Path:
    """Returns the path of a folder to write; raises an error, before long work, if it cannot be.

    Raises:
        FileExistsError, PermissionError: It exists, or its parent is not a writable folder.

    Example:
        >>> import tempfile
        >>> from hopfax.hub import new_folder
        >>> new_folder(f"{tempfile.mkdtemp()}/films/1").name
        '1'
    """
    folder = local_path(path)
    if folder.exists():
        raise FileExistsError(f"folder must not exist, got {folder}")
    parent = next(each for each in folder.absolute().parents if each.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK)):
        raise PermissionError(f"folder must be in a writable folder, got {folder} in {parent}")
    return folder


def read_json(path: Path, kind: type = dict) -> Any:
    """Returns the object, or the list, in a JSON file; raises an error that names the file."""
    if not path.exists():
        adapter = (path.parent / "adapter_config.json").exists()
        hint = "; it holds a PEFT adapter: save the model of its merge_and_unload()"
        raise FileNotFoundError(f"{path.parent} has no {path.name}{hint if adapter else ''}")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ValueError(f"{path} is not a JSON file: {lfs_hint(path) or reason}") from error
    if not isinstance(value, kind):
        expected = "an object" if kind is dict else "a list"
        raise ValueError(f"{path} must contain {expected}, got {type(value).__name__}")
    return value


def lfs_hint(path: Path) -> str:
    """Returns what to do if a file is a pointer of Git LFS; "" for other files."""
    with path.open("rb") as file:
        pointer = file.read(len(_LFS)) == _LFS
    return "it is a pointer of Git LFS: download the file with git lfs pull" if pointer else ""


def optional_import(name: str) -> Any:
    """Imports a module of an extra, or raises an error that names the smallest extra with it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != (name := name.partition(".")[0]):
            raise
        extras = {"tensorflow_datasets": "experiments", "torch": "torch", "transformers": "torch"}
        extra = extras.get(name, "pretrained")
        message = f'{name} is not installed: pip install "hopfax[{extra}]"'
        raise ModuleNotFoundError(message, name=name) from None
