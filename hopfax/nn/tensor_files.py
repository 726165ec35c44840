"""Tensors of a folder in the safetensors format, read with little more memory than they take.

References:
    The format: https://github.com/huggingface/safetensors.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jax.typing import DTypeLike

FLOATS = ("F64", "F32", "F16", "BF16")
# Bytes of an array in a single read, and the alignment with which a CPU device takes over memory.
_CHUNK, _ALIGNMENT = 2**22, 64


class StoredTensor(NamedTuple):
    """Where a tensor is, and its shape."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: str


def stored_tensors(folder: Path) -> list[StoredTensor]:
    """Returns the tensors of `model.safetensors`, or of the shards that its index names.

    Raises:
        FileNotFoundError: There is neither, or a shard is missing.
        ValueError: A file is not of the format, or incomplete.
    """
    path, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    paths = [path]
    if not path.exists():
        if not index.exists():
            raise FileNotFoundError(f"{folder} has no {path.name} and no {index.name}")
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict):
            raise ValueError(f"{index} has no weight_map")
        paths = [folder / name for name in sorted(set(shards.values()))]
    tensors = []
    for path in paths:
        with _opened(path) as file:
            for name in file.keys():
                part = file.get_slice(name)
                tensors.append(StoredTensor(path, name, tuple(part.get_shape()), part.get_dtype()))
    return tensors


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file; raises a ValueError with its path if there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not a JSON file: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must be a JSON object, got {type(value).__name__}")
    return value


def read_stacked(
    tensors: Sequence[StoredTensor], *, dtype: DTypeLike, transpose: bool = False
) -> np.ndarray:
    """Reads tensors of one shape, stacked along a new first axis.

    The peak of memory is the result and 8 MB, and `jax.device_put` takes over the result on a CPU
    without a copy.

    Args:
        tensors: Tensors of one shape.
        dtype: Dtype of the result.
        transpose: Whether to reverse the axes of each tensor.
    """
    shape = tensors[0].shape[::-1] if transpose else tensors[0].shape
    stack = _aligned((len(tensors), *shape), np.dtype(dtype))
    for part, tensor in zip(stack, tensors, strict=True):
        rows = part.T if transpose else part
        size = max(1, _CHUNK // max(1, rows[:1].nbytes))
        for start in range(0, len(rows), size):
            end = min(start + size, len(rows))
            # Pages of a map count as the process's memory until it is closed.
            with _opened(tensor.path) as file:
                rows[start:end] = file.get_slice(tensor.name)[start:end]
    return stack


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Memory-maps a file, with errors that name it."""
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError as error:
        message = 'safetensors is not installed: pip install "hopfax[pretrained]"'
        raise ModuleNotFoundError(message, name="safetensors") from error
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except SafetensorError as error:
        raise ValueError(f"{path} is not a complete safetensors file: {error}") from error
