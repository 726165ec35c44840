"""Folders of models, by path or by name on the Hugging Face hub."""

import json
import os
import re
from pathlib import Path
from typing import Any

_NAME = re.compile(r"[\w.-]+/[\w.-]+")
# Weights in other formats can be several times as large.
_FILES = ("*.json", "*.safetensors", "*.txt")


def model_folder(name: str | os.PathLike[str]) -> Path:
    """Returns a model's folder, downloaded if `name` is on the hub.

    Args:
        name: A folder, or a name such as `sentence-transformers/all-MiniLM-L6-v2`, which requires
            `huggingface_hub`. Downloads are cached.

    Raises:
        FileNotFoundError: There is no such folder, and the name cannot be downloaded.

    Example:
        >>> import tempfile
        >>> from hopfax.hub import model_folder
        >>> folder = tempfile.mkdtemp()
        >>> str(model_folder(folder)) == folder
        True
    """
    folder = Path(name).expanduser()
    if os.fspath(name) and folder.is_dir():
        return folder
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise FileNotFoundError(
            f"{str(name)!r} is not a folder; names on the Hugging Face hub have the form "
            "owner/name, such as openai-community/gpt2"
        )
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError as error:
        raise FileNotFoundError(
            f"{name} is not a folder; to download it from the Hugging Face hub: pip install "
            "huggingface_hub"
        ) from error
    try:
        return Path(snapshot_download(name, allow_patterns=list(_FILES)))
    except Exception as error:  # errors of the network have no common class
        reason = str(error).strip().partition("\n")[0]
        raise FileNotFoundError(
            f"{name} is not a folder, and cannot be downloaded from the Hugging Face hub: {reason}"
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file; raises an error that names the file."""
    if not path.exists():
        raise FileNotFoundError(f"{path.parent} has no {path.name}")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not a JSON file: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must contain an object, got {type(value).__name__}")
    return value
