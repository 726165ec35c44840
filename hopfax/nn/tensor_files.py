"""Reads tensors from the safetensors files of a model's folder."""

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from hopfax.hub import lfs_hint, optional_import, read_json
from hopfax.nn.functional import Params, flatten

Shape = tuple[int, ...]
_FLOATS = ("F64", "F32", "F16", "BF16")
_OTHERS = (
    "pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack",
)  # fmt: skip
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
_CHUNK = 2**22  # bytes read at once


class Tensor(NamedTuple):
    """A tensor of a file."""

    path: Path
    name: str
    shape: Shape
    dtype: str


class Leaf(NamedTuple):
    """How files store a parameter.

    Attributes:
        names: The tensors of all layers, or a single one.
        shape: The shape of each in the file.
        transposed: Whether the parameter is their transpose.
        stacked: Whether the parameter has a first axis of layers.
    """

    names: list[str]
    shape: Shape
    transposed: bool = False
    stacked: bool = False


def leaves_of(params: Params, modules: Mapping[str, str] | None = None) -> dict[str, Leaf]:
    """Returns how PyTorch's files store the parameters of a module, by path.

    Args:
        params: Parameters, or their shapes.
        modules: Name in the file of each module, {} for a layer's number; None for the paths.

    Example:
        >>> import numpy as np
        >>> from hopfax.nn.tensor_files import leaves_of
        >>> leaves_of({0: {"kernel": np.ones((2, 3))}}, {"{}": "layer.{}.dense"})["0.kernel"]
        Leaf(names=['layer.0.dense.weight'], shape=(3, 2), transposed=True, stacked=False)
    """
    leaves = {}
    for path, leaf in flatten(params).items():
        if modules is None:
            leaves[path] = Leaf([path], leaf.shape)
            continue
        module, _, kind = path.rpartition(".")
        name = modules[re.sub(r"\d+", "{}", module)].format(*re.findall(r"\d+", module))
        flip = kind == "kernel"  # PyTorch's matrices are (outputs, inputs)
        name = f"{name}.{'bias' if kind == 'bias' else 'weight'}"
        leaves[path] = Leaf([name], leaf.shape[::-1] if flip else leaf.shape, flip)
    return leaves


def read_params(
    folder: Path,
    leaves: Mapping[str, Leaf],
    *,
    prefix: str = "",
    unused: Sequence[str] = (),
    dtype: Any = np.float32,
) -> dict[str, jax.Array]:
    """Reads parameters by path.

    Args:
        folder: Folder of the files.
        leaves: How they store each parameter.
        prefix: Prefix of the names in some files.
        unused: Name patterns of tensors to ignore.
        dtype: Type of the parameters.

    Raises:
        ValueError: Tensors are missing, unknown or of the wrong shape (all of them are named).
    """
    expected = {name: leaf.shape for leaf in leaves.values() for name in leaf.names}
    tensors: dict[str, Tensor] = {}
    problems = []
    for tensor in list_tensors(folder):
        name = tensor.name.removeprefix(prefix)
        for old, new in _OLD_NAMES.items():
            name = name.replace(old, new)
        if name not in expected and any(fnmatchcase(name, each) for each in unused):
            continue
        if name in tensors:
            problems.append(f"{tensors[name].name} and {tensor.name} are the same tensor")
        tensors[name] = tensor
    problems += [
        f"{tensor.name} must be {', '.join(_FLOATS)}, got {tensor.dtype}"
        for tensor in tensors.values()
        if tensor.dtype not in _FLOATS
    ]
    # Missing tensors are named with the prefix of most others; a head's have none.
    most = 2 * sum(tensor.name.startswith(prefix) for tensor in tensors.values()) > len(tensors)
    in_file = {name: full_name(name, prefix if most else "") for name in expected}
    in_file |= {name: tensor.name for name, tensor in tensors.items()}
    shapes = {tensor.name: tensor.shape for tensor in tensors.values()}
    problems += mismatches(shapes, {in_file[name]: shape for name, shape in expected.items()})
    if problems:
        raise ValueError(f"{folder}: {summary(problems)}")

    def read(leaf: Leaf) -> jax.Array:
        parts = [tensors[name] for name in leaf.names]
        stack = _read_stack(parts, transposed=leaf.transposed, dtype=dtype)
        return jax.device_put(stack if leaf.stacked else stack[0])

    return {path: read(leaf) for path, leaf in leaves.items()}


def full_name(name: str, prefix: str) -> str:
    """Returns a tensor's name in the file of a model with a head, whose tensors have none."""
    heads = ("classifier.", "pre_classifier.", "lm_head.", "score.")
    return name if name.startswith(heads) else prefix + name


def list_tensors(folder: Path) -> list[Tensor]:
    """Lists the tensors of `model.safetensors`, or of the shards that its index names.

    Raises:
        FileNotFoundError: A file is missing.
        ModuleNotFoundError: safetensors is not installed.
        ValueError: A file cannot be read.
    """
    path, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if path.exists():
        paths = [path]
    elif index.exists():
        shards = read_json(index).get("weight_map")
        names = set(map(str, shards.values() if isinstance(shards, dict) else [shards]))
        if wrong := [name for name in names if not re.fullmatch(r"[^/\\]+\.safetensors", name)]:
            raise ValueError(
                f"{index} must have a weight_map from tensors to .safetensors files in its folder, "
                f"got {wrong[0]!r}"
            )
        paths = [folder / name for name in sorted(names)]
    else:
        others = ", ".join(name for name in _OTHERS if (folder / name).exists())
        hint = (
            f"; convert {others} to safetensors: load the folder with its class of transformers, "
            "then call save_pretrained"
        )
        missing = f"{folder} has no {path.name} and no {index.name}"
        raise FileNotFoundError(missing + (hint if others else ""))
    tensors = []
    for path in paths:
        with _open(path) as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                part = file.get_slice(name)
                tensors.append(Tensor(path, name, tuple(part.get_shape()), part.get_dtype()))
    return tensors


def sha256(path: Path) -> str:
    """Returns the checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def mismatches(stored: Mapping[str, Shape], expected: Mapping[str, Shape | None]) -> list[str]:
    """Lists missing, unknown and misshapen tensors; the shape None allows any.

    Example:
        >>> from hopfax.nn.tensor_files import mismatches
        >>> mismatches({"a": (2,), "b": (3,)}, {"a": (1,), "c": None})
        ['missing tensor c', 'unknown tensor b', 'a must have shape (1,), got (2,)']
    """
    problems = [f"missing tensor {name}" for name in expected if name not in stored]
    problems += [f"unknown tensor {name}" for name in stored if name not in expected]
    return problems + [
        f"{name} must have shape {shape}, got {stored[name]}"
        for name, shape in expected.items()
        if shape is not None and name in stored and stored[name] != shape
    ]


def summary(problems: Sequence[str]) -> str:
    """Joins problems; those that differ only in the layer's number become one.

    Example:
        >>> from hopfax.nn.tensor_files import summary
        >>> summary([f"missing tensor layer.{n}.bias" for n in (6, 7, 8)])
        'missing tensor layer.6-8.bias'
    """
    layers: dict[tuple[str, str], list[int]] = {}
    for problem in problems:
        before, *rest = re.split(r"(?<=\.)(\d+)(?=\.)", problem, maxsplit=1)
        number, after = rest or ("", "")
        layers.setdefault((before, after), []).extend([int(number)] if number else [])
    lines = [before + _span(sorted(numbers)) + after for (before, after), numbers in layers.items()]
    return "; ".join(lines)


def _span(numbers: list[int]) -> str:
    if len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return ",".join(map(str, numbers))


def _read_stack(tensors: Sequence[Tensor], *, transposed: bool, dtype: Any) -> np.ndarray:
    """Returns tensors of one shape, stacked; reads them in chunks to save memory."""
    shape = tensors[0].shape[::-1] if transposed else tensors[0].shape
    dtype, shape = np.dtype(dtype), (len(tensors), *shape)
    # Aligned, so that JAX can use it without a copy.
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    stack = memory[start : start + size].view(dtype).reshape(shape)
    for tensor, part in zip(tensors, stack, strict=True):
        target = part.T if transposed else part
        step = max(1, _CHUNK // target[:1].nbytes) if target.size else 1
        for start in range(0, len(target), step):
            end = min(start + step, len(target))
            # Mapped pages count as the process's memory until the file is closed.
            with _open(tensor.path) as file:
                target[start:end] = file.get_slice(tensor.name)[start:end]
    return stack


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    safetensors = optional_import("safetensors")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            yield file
    except safetensors.SafetensorError as error:
        reason = lfs_hint(path) or error
        raise ValueError(f"{path} is incomplete or not a safetensors file: {reason}") from error
