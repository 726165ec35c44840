"""Loads weights of the released Robertha program into this library's model."""

import os
import re
import zipfile
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from hopfax.nn.encoder import Encoder
from hopfax.nn.functional import Functional, Params
from hopfax.nn.models import robertha

# Name in the state dict, path in the model, and the model's name for `weight`.
_PARTS = (
    ("token_embeddings", "tokens", "embedding"),
    ("position_embeddings", "positions", "embedding"),
    ("layer_norm", "norm", "scale"),
    ("layer_norms.{}", "blocks/{}/attention_norm", "scale"),
    ("hopfield_layers.{}.W_query", "blocks/{}/attention/query", "kernel"),
    ("hopfield_layers.{}.W_key", "blocks/{}/attention/key", "kernel"),
    ("hopfield_layers.{}.W_value", "blocks/{}/attention/value", "kernel"),
    ("hopfield_layers.{}.W_out", "blocks/{}/attention/out", "kernel"),
    ("ffn_norms.{}", "blocks/{}/ff_norm", "scale"),
    ("ffn_layers.{}.linear1", "blocks/{}/ff_in", "kernel"),
    ("ffn_layers.{}.linear2", "blocks/{}/ff_out", "kernel"),
    ("classifier", "classifier", "kernel"),
)


class ReleasedOutput(NamedTuple):
    """The output of the released program, and the keys of every layer."""

    logits: Float[Array, "batch labels"]
    num_steps: Int[Array, " layers"]
    converged: Bool[Array, " layers"]
    keys: Float[Array, "layers batch tokens width"]


class Released:
    """A loaded program: call it, or its `classify`.

    Attributes:
        model: The model's `init` and `apply`, preset `released`.
        params: The loaded parameters.
    """

    def __init__(self, model: Functional[Encoder], params: Params):
        self.model = model
        self.params = params

    def classify(
        self,
        ids: Int[Array, "batch tokens"],
        mask: Int[Array, "batch tokens"] | Bool[Array, "batch tokens"],
        *,
        noise: Float[Array, "batch tokens width"] | None = None,
    ) -> ReleasedOutput:
        """Classifies texts as the released program does in evaluation mode.

        Args:
            ids: Token ids.
            mask: 1 or True at real tokens. As in that program, only the pooling leaves out padding:
                it takes part in retrieval, so its ids matter.
            noise: Added after the embedding LayerNorm.

        Returns:
            Logits, and the number of iterations and convergence of each layer (one for the
            whole batch).
        """
        run = partial(self.model.apply, self.params)
        real = jnp.asarray(mask) != 0
        # GPUs would otherwise round products to 10 bits, which changes the number of steps.
        with jax.default_matmul_precision("highest"):
            tokens = run(jnp.asarray(ids), method="embed_tokens")
            embeddings = run(tokens, method="embed")
            if noise is not None:
                embeddings = embeddings + noise
            encoding = run(embeddings, real, method="encode")
            logits = run(encoding.hidden, real, method="classify")
        return ReleasedOutput(
            logits,
            encoding.num_steps[:, 0, 0, 0],
            encoding.converged[:, 0, 0, 0],
            encoding.keys,
        )

    __call__ = classify


def load_released(path: str | os.PathLike[str]) -> Released:
    """Loads an .npz file of the released program's weights.

    Args:
        path: File with an array `w:NAME` for every entry of the state dict, and optionally `beta`
            (default: 15) and `max_iterations` (default: 50).

    Returns:
        A callable `classify(ids, mask, *, noise=None)`; jittable.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is not an .npz, or weights are missing, unknown or of the wrong shape;
            all of them are named.

    Example:
        >>> load_released("weights.npz").classify(ids, mask).logits  # doctest: +SKIP
    """
    arrays = _read(path)
    weights = {name[2:]: value for name, value in arrays.items() if name.startswith("w:")}
    beta = float(arrays.get("beta", 15.0))
    max_steps = int(arrays.get("max_iterations", 50))
    try:
        model = _model_for(weights, beta=beta, max_steps=max_steps)
        return Released(model, import_params(weights, model))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def import_params(weights: Mapping[str, np.ndarray], model: Functional[Encoder]) -> Params:
    """Maps a released state dict (or its gradients) to the parameters of the model.

    Raises:
        ValueError: Names do not correspond one to one, or shapes differ.
    """
    expected = _leaves(jax.eval_shape(model.init, jax.random.key(0)))
    paths = _paths(sum(path.endswith("/attention/key/kernel") for path in expected))
    _check_names(weights, paths)
    # PyTorch stores matrices as (out, in).
    params = {
        path: weights[name].T if path.endswith("kernel") else weights[name]
        for name, path in paths.items()
    }
    problems = [
        f"w:{name} must have shape "
        f"{expected[path].shape[::-1] if path.endswith('kernel') else expected[path].shape}, got "
        f"{weights[name].shape}"
        for name, path in paths.items()
        if params[path].shape != expected[path].shape
    ]
    if problems:
        raise ValueError("; ".join(problems))
    return _nested({path: jnp.asarray(value) for path, value in params.items()})


def _read(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    # Opened here, since np.load does not close a file that it cannot read.
    with open(path, "rb") as stream:
        try:
            file = np.load(stream, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise ValueError("it holds a single array")
            return {name: file[name] for name in file.files}
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} is not an .npz file of plain arrays: {error}") from error


def _model_for(
    weights: Mapping[str, np.ndarray], *, beta: float, max_steps: int
) -> Functional[Encoder]:
    layers = {m[1] for name in weights if (m := re.match(r"hopfield_layers\.(\d+)\.", name))}
    _check_names(weights, _paths(len(layers)))
    parts = ("token_embeddings", "position_embeddings", "classifier", "ffn_layers.0.linear1")
    if wrong := [part for part in parts if weights[f"{part}.weight"].ndim != 2]:
        raise ValueError(f"{', '.join(f'w:{part}.weight' for part in wrong)} must be matrices")
    (vocab_size, width), (max_length, _), (num_outputs, _), (ff_width, _) = (
        weights[f"{part}.weight"].shape for part in parts
    )
    return robertha(
        vocab_size,
        num_outputs,
        preset="released",
        beta=beta,
        max_steps=max_steps,
        width=width,
        num_layers=len(layers),
        ff_width=ff_width,
        max_length=max_length,
    )


def _paths(num_layers: int) -> dict[str, str]:
    """Returns the parameter's path for every name of a state dict with this number of layers."""
    paths = {}
    for part, place, weight in _PARTS:
        for layer in range(max(num_layers, 1)) if "{}" in part else (0,):
            paths[f"{part}.weight".format(layer)] = f"{place}/{weight}".format(layer)
            if weight != "embedding":
                paths[f"{part}.bias".format(layer)] = f"{place}/bias".format(layer)
    return paths


def _check_names(weights: Mapping[str, np.ndarray], paths: Mapping[str, str]) -> None:
    problems = [f"missing array w:{name}" for name in paths if name not in weights]
    problems += [f"unknown array w:{name}" for name in weights if name not in paths]
    if problems:
        raise ValueError("not the released program's state dict: " + "; ".join(problems))


def _leaves(params: Params) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _nested(leaves: Mapping[str, Array]) -> Params:
    tree: dict[Any, Any] = {}
    for path, leaf in leaves.items():
        *folders, name = path.split("/")
        place = tree
        for folder in folders:
            # nnx.List numbers its members.
            place = place.setdefault(int(folder) if folder.isdigit() else folder, {})
        place[name] = leaf
    return tree
