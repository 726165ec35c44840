"""Weights of the released Robertha program, read into this library's model."""

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from hopfax.nn.encoder import Encoder
from hopfax.nn.functional import Functional, Params
from hopfax.nn.models import PRESETS, robertha

# State-dict name -> path of the parameter. Every name must match one row.
_NAMES = (
    (r"token_embeddings\.weight", "tokens/embedding"),
    (r"position_embeddings\.weight", "positions/embedding"),
    (r"layer_norm\.(weight|bias)", r"norm/\1"),
    (r"layer_norms\.(\d+)\.(weight|bias)", r"blocks/\1/attention_norm/\2"),
    (
        r"hopfield_layers\.(\d+)\.W_(query|key|value|out)\.(weight|bias)",
        r"blocks/\1/attention/\2/\3",
    ),
    (r"ffn_norms\.(\d+)\.(weight|bias)", r"blocks/\1/ff_norm/\2"),
    (r"ffn_layers\.(\d+)\.linear1\.(weight|bias)", r"blocks/\1/ff_in/\2"),
    (r"ffn_layers\.(\d+)\.linear2\.(weight|bias)", r"blocks/\1/ff_out/\2"),
    (r"classifier\.(weight|bias)", r"classifier/\1"),
)


class ReleasedOutput(NamedTuple):
    """What the released program returns, and the raw keys of every layer."""

    logits: Float[Array, "batch labels"]
    num_steps: Int[Array, " layers"]
    converged: Bool[Array, " layers"]
    keys: Float[Array, "layers batch tokens width"]


class Released:
    """A loaded program; call it, or its `classify`.

    Attributes:
        model: The model's `init` and `bind`, preset `released`.
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
            mask: 1 or True at real tokens. As in that program, padding still takes part in
                retrieval (and so its ids matter); only the pooling leaves it out.
            noise: Added after the embedding LayerNorm.

        Returns:
            Logits, and the number of iterations and convergence of each layer (one for the
            whole batch).
        """
        network = self.model.bind(self.params)
        real = jnp.asarray(mask) != 0
        embeddings = network.embed(network.embed_tokens(jnp.asarray(ids)))
        if noise is not None:
            embeddings = embeddings + noise
        encoding = network.encode(embeddings, real)
        return ReleasedOutput(
            network.classify(encoding.hidden, real),
            encoding.num_steps[:, 0, 0, 0],
            encoding.converged[:, 0, 0, 0],
            encoding.keys,
        )

    __call__ = classify


def load_released(path: str | os.PathLike[str]) -> Released:
    """Reads an .npz of the released program's weights.

    Args:
        path: File with one array `w:NAME` for every entry of the state dict, and optionally
            `beta` (15 if absent) and `max_iterations` (50).

    Returns:
        A callable `classify(ids, mask, *, noise=None)`; jittable.

    Raises:
        FileNotFoundError: No such file.
        ValueError: A weight that has no place in the model, a place without its weight, or a
            shape that does not fit: all of them are named.
    """
    with np.load(path, allow_pickle=False) as file:
        weights = {name[2:]: file[name] for name in file.files if name.startswith("w:")}
        beta = float(file["beta"]) if "beta" in file.files else 15.0
        max_steps = int(file["max_iterations"]) if "max_iterations" in file.files else 50
    model = _model_for(weights, path=path, beta=beta, max_steps=max_steps)
    return Released(model, import_params(weights, model))


def import_params(weights: Mapping[str, np.ndarray], model: Functional[Encoder]) -> Params:
    """Maps a released state dict (or its gradients) onto the parameters of the model.

    Raises:
        ValueError: If the two are not in one-to-one correspondence.
    """
    wanted = _leaves(jax.eval_shape(model.init, jax.random.key(0)))
    found, unknown = {}, []
    for name, value in weights.items():
        path = _path(name)
        if path is None:
            unknown.append(name)
            continue
        if path.endswith("weight"):
            norm = path.split("/")[-2].endswith("norm")
            path = path.removesuffix("weight") + ("scale" if norm else "kernel")
            value = value if norm else value.T  # PyTorch keeps (out, in)
        found[path] = value
    problems = [f"no place for {name}" for name in unknown]
    problems += [f"no place for {path}" for path in found.keys() - wanted.keys()]
    problems += [f"no weight for {path}" for path in wanted.keys() - found.keys()]
    problems += [
        f"{path} has shape {found[path].shape}, wanted {wanted[path].shape}"
        for path in found.keys() & wanted.keys()
        if found[path].shape != wanted[path].shape
    ]
    if problems:
        raise ValueError("weights do not fit the model: " + "; ".join(sorted(problems)))
    return _nested({path: jnp.asarray(value) for path, value in found.items()})


def _model_for(
    weights: Mapping[str, np.ndarray], *, path: Any, beta: float, max_steps: int
) -> Functional[Encoder]:
    layers = {m[1] for name in weights if (m := re.match(r"hopfield_layers\.(\d+)\.", name))}
    try:
        vocab_size, width = weights["token_embeddings.weight"].shape
        return robertha(
            vocab_size,
            weights["classifier.bias"].shape[0],
            details=PRESETS["released"],
            beta=beta,
            max_steps=max_steps,
            width=width,
            num_layers=len(layers),
            ff_width=weights["ffn_layers.0.linear1.weight"].shape[0],
            max_length=weights["position_embeddings.weight"].shape[0],
        )
    except KeyError as missing:
        raise ValueError(
            f"{path} has no array 'w:{missing.args[0]}': it is not an export of the released "
            "program's state dict"
        ) from None


def _path(name: str) -> str | None:
    for pattern, path in _NAMES:
        if match := re.fullmatch(pattern, name):
            return match.expand(path)
    return None


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
