"""Loads weights of the released Robertha program."""

import os
import re
import zipfile
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from hopfax.nn.encoder import Encoder, Perturbation
from hopfax.nn.functional import Functional, Params
from hopfax.nn.models import robertha
from hopfax.nn.tensor_files import Shape, leaves_of, mismatches

# Module of the model -> its name in the state dict.
_MODULES = {
    "tokens": "token_embeddings",
    "positions": "position_embeddings",
    "norm": "layer_norm",
    "blocks.{}.attention_norm": "layer_norms.{}",
    "blocks.{}.attention.query": "hopfield_layers.{}.W_query",
    "blocks.{}.attention.key": "hopfield_layers.{}.W_key",
    "blocks.{}.attention.value": "hopfield_layers.{}.W_value",
    "blocks.{}.attention.out": "hopfield_layers.{}.W_out",
    "blocks.{}.ff_norm": "ffn_norms.{}",
    "blocks.{}.ff_in": "ffn_layers.{}.linear1",
    "blocks.{}.ff_out": "ffn_layers.{}.linear2",
    "classifier": "classifier",
}


class ProgramOutput(NamedTuple):
    """Logits, and the number of updates, convergence and keys of each layer."""

    logits: Float[Array, "batch labels"]
    num_steps: Int[Array, " layers"]
    converged: Bool[Array, " layers"]
    keys: Float[Array, "layers batch tokens width"]


class Program:
    """A loaded program. Calling it is the same as `classify`.

    Attributes:
        model: The model's `init` and `apply`, preset `released`.
        params: The loaded parameters.
    """

    def __init__(self, model: Functional[Encoder], params: Params):
        self.model, self.params = model, params

    def classify(
        self,
        ids: Int[Array, "batch tokens"],
        mask: Int[Array, "batch tokens"] | Bool[Array, "batch tokens"],
        *,
        noise: Float[Array, "batch tokens width"] | None = None,
    ) -> ProgramOutput:
        """Classifies texts as the released program does in evaluation mode.

        Args:
            ids: Token ids.
            mask: 1 or True at real tokens. As in that program, only the pooling leaves out padding:
                it takes part in retrieval, so its ids matter.
            noise: Added after the embedding LayerNorm.

        Returns:
            Logits; the number of iterations and convergence of each layer, one for the whole
            batch; and each layer's keys.
        """
        ids, real = jnp.asarray(ids), jnp.asarray(mask) != 0
        # GPUs would otherwise round the factors to 10 bits, which changes the number of steps.
        with jax.default_matmul_precision("highest"):
            added = Perturbation(embedding=noise)
            logits, encoding = self.model.apply(self.params, ids, real, added=added)
        # All texts, heads and tokens share one count.
        num_steps, converged = encoding.num_steps[:, 0, 0, 0], encoding.converged[:, 0, 0, 0]
        return ProgramOutput(logits, num_steps, converged, encoding.keys)

    __call__ = classify


def load_released(path: str | os.PathLike[str]) -> Program:
    """Loads an .npz file of the released program's weights.

    Args:
        path: File with an array `w:NAME` for every entry of the state dict, and optionally `beta`
            (default: 15) and `max_iterations` (default: 50).

    Returns:
        The program as a jittable function: call it, or its `classify`.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is not an .npz, or weights are missing, unknown or of the wrong shape
            (all of them are named).

    Example:
        >>> from hopfax.nn import load_released
        >>> load_released("weights.npz").classify(ids, mask).logits  # doctest: +SKIP
    """
    arrays = _read(path)
    weights = {name[2:]: value for name, value in arrays.items() if name.startswith("w:")}
    layers = {m[1] for name in weights if (m := re.match(r"hopfield_layers\.(\d+)\.", name))}

    def matrix(module: str) -> tuple[int, ...]:
        shape = weights[f"{module}.weight"].shape if f"{module}.weight" in weights else ()
        return shape if len(shape) == 2 else (1, 1)  # `import_params` raises the error

    vocab_size, width = matrix("token_embeddings")
    model = robertha(
        vocab_size,
        matrix("classifier")[0],
        preset="released",
        beta=float(arrays.get("beta", 15.0)),
        max_steps=int(arrays.get("max_iterations", 50)),
        width=width,
        num_layers=max(1, len(layers)),
        ff_width=matrix("ffn_layers.0.linear1")[0],
        max_length=matrix("position_embeddings")[0],
    )
    try:
        return Program(model, import_params(weights, model))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def import_params(weights: Mapping[str, np.ndarray], model: Functional[Encoder]) -> Params:
    """Maps a released state dict (or its gradients) to the parameters of the model.

    Raises:
        ValueError: Names do not correspond one to one, or shapes differ.
    """
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    leaves = leaves_of(shapes, _MODULES).values()
    expected: dict[str, Shape | None] = {leaf.names[0]: leaf.shape for leaf in leaves}
    present = {name: array.shape for name, array in weights.items()}
    if present.keys() != expected.keys():  # the sizes are then unknown
        expected = dict.fromkeys(expected)
    if problems := mismatches(present, expected):
        raise ValueError(f"not the released program's state dict: {'; '.join(problems)}")
    arrays = [
        weights[leaf.names[0]].T if leaf.transposed else weights[leaf.names[0]] for leaf in leaves
    ]
    return jax.tree.unflatten(jax.tree.structure(shapes), map(jnp.asarray, arrays))


def _read(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    # np.load does not close a file that it cannot read.
    with open(path, "rb") as stream:
        try:
            file = np.load(stream, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise ValueError("it holds a single array")
            return {name: file[name] for name in file.files}
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} is not an .npz file of plain arrays: {error}") from error
