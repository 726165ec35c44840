"""The embedding of a text from the states of its tokens, as sentence-transformers computes it."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from hopfax.hub import read_json
from hopfax.nn.tensor_files import Leaf, read_params

# In the order in which files with a flag for each mode concatenate them.
_MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
_ACTIVATIONS = {
    "Tanh": jnp.tanh,
    "Identity": jnp.asarray,
    "ReLU": jax.nn.relu,
    "GELU": partial(jax.nn.gelu, approximate=False),
    "SiLU": jax.nn.silu,
    "Sigmoid": jax.nn.sigmoid,
}


class Pooling:
    """Pools token states into text embeddings: as `modules.json` says, else by their mean.

    Args:
        folder: Folder of a model; of sentence-transformers, it has a Transformer, a Pooling and any
            of Dense, Normalize and Dropout.

    Attributes:
        folder: Folder of the encoder and its tokenizer.
        prompt: Prefix of each text.
        include_prompt: Whether the prompt's tokens are pooled.
        max_length: Maximum number of tokens of a text; None for the encoder's.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A file is broken, or a module or one of its settings is not supported.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import jax.numpy as jnp
        >>> from hopfax.nn.pooling import Pooling
        >>> pooling = Pooling(Path(tempfile.mkdtemp()))
        >>> states, mask = jnp.array([[[1.0], [3.0], [9.0]]]), jnp.array([[True, True, False]])
        >>> pooling(states, mask).tolist()
        [[2.0]]
    """

    def __init__(self, folder: Path):
        self.folder, self.prompt, self.include_prompt = folder, "", True
        self.max_length: int | None = None
        self._modes, self._layers, self._lower = ["mean"], [], False
        path = folder / "modules.json"
        try:
            if path.is_file():
                self._read(path)
        except (AttributeError, TypeError) as error:
            raise ValueError(f"{path} or a file of its modules is broken: {error}") from error

    def _read(self, path: Path) -> None:
        folder, kinds, places = self.folder, [], []
        for module in read_json(path, list):
            kind, place = (str(dict(module).get(key)) for key in ("type", "path"))
            if ".." in Path(place).parts or Path(place).is_absolute():
                raise ValueError(f"{path}: path must be within the folder, got {place!r}")
            kinds.append(re.sub(r"^sentence_transformers\..*\.", "", kind))
            places.append(folder / place)
        allowed = {"Dense", "Normalize", "Dropout"}
        if kinds[:2] != ["Transformer", "Pooling"] or not allowed >= set(kinds[2:]):
            raise ValueError(
                f"{path} must list Transformer, Pooling and any of {', '.join(sorted(allowed))}, "
                f"got {', '.join(kinds)}"
            )
        self.folder = places[0]
        own = self.folder / "sentence_bert_config.json"
        own = next(self.folder.glob("sentence_*_config.json"), own)
        limits = _settings(own, transformer_task="feature-extraction", processing_kwargs={})
        texts, pooling = folder / "config_sentence_transformers.json", places[1] / "config.json"
        prompts = _settings(texts, model_type="SentenceTransformer", truncate_dim=None)
        pooled = read_json(pooling)
        name = prompts.get("default_prompt_name")
        prompt = "" if name is None else (prompts.get("prompts") or {}).get(name)
        self.prompt, self.include_prompt = str(prompt), bool(pooled.get("include_prompt", True))
        longest = limits.get("max_seq_length")
        if longest is None:
            longest = _settings(self.folder / "tokenizer_config.json").get("model_max_length")
        self.max_length = longest
        self._lower = bool(limits.get("do_lower_case"))
        ends = ("", "_token", "_tokens")
        flags = [m for m in _MODES if any(pooled.get(f"pooling_mode_{m}{end}") for end in ends)]
        modes = pooled.get("pooling_mode", flags or "mean")
        self._modes = [modes] if isinstance(modes, str) else modes
        for file, key, value, valid, needed in (
            (texts, "default_prompt_name", name, isinstance(prompt, str), "a prompt's"),
            (own, "max_seq_length", longest, longest is None or longest >= 1, ">= 1"),
            (
                pooling,
                "pooling_mode",
                modes,
                bool(self._modes) and {*self._modes} <= {*_MODES},
                ", ".join(_MODES),
            ),
        ):
            if not valid:
                raise ValueError(f"{file}: {key} must be {needed}, got {value!r}")
        rest = zip(kinds[2:], places[2:], strict=True)
        self._layers = [_read_layer(kind, place) for kind, place in rest if kind != "Dropout"]

    def prepare(self, text: str) -> str:
        """Returns the text to tokenize."""
        text = self.prompt + text
        # By character, as `tokenizers`: `str.lower` depends on context.
        return "".join(map(str.lower, text)) if self._lower else text

    def __call__(
        self,
        states: Float[Array, "batch tokens width"],
        mask: Bool[Array, "batch tokens"],
        *,
        skip: int = 0,
    ) -> Float[Array, "batch outputs"]:
        """Returns text embeddings that exclude the first `skip` tokens of each text."""

        def one(states: Array, mask: Array) -> Array:
            place = jnp.cumsum(mask)
            real = mask & (place > skip)
            filled, count = jnp.where(real[:, None], states, 0), jnp.maximum(real.sum(), 1)
            weights = jnp.where(real, place, 0)
            pooled = {
                "cls": states[jnp.argmax(real)],
                "max": jnp.where(real[:, None], states, -jnp.inf).max(0),
                "mean": filled.sum(0) / count,
                "mean_sqrt_len_tokens": filled.sum(0) / jnp.sqrt(count),
                "weightedmean": weights @ filled / jnp.maximum(weights.sum(), 1),
                "lasttoken": states[len(real) - 1 - jnp.argmax(real[::-1])],
            }
            x = jnp.concatenate([pooled[mode] for mode in self._modes])
            for layer in self._layers:
                x = layer(x)
            return x

        return jax.vmap(one)(states, mask)


def _settings(path: Path, **only: Any) -> dict[str, Any]:
    """Reads a file that may be missing; some settings have only one supported value."""
    config = read_json(path) if path.is_file() else {}
    for key, value in only.items():
        if config.get(key) not in (None, value):
            raise ValueError(f"{path}: {key} must be {value!r}, got {config[key]!r}")
    return config


def _read_layer(kind: str, folder: Path) -> Callable[[Array], Array]:
    names = dict.fromkeys(("module_input_name", "module_output_name"), "sentence_embedding")
    config = _settings(path := folder / "config.json", use_residual=False, **names)
    if kind == "Normalize":
        return lambda x: x / jnp.maximum(jnp.linalg.norm(x), 1e-12)
    name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    activation = _ACTIVATIONS.get(re.sub(r"^torch\.nn\..*\.", "", name))
    if activation is None:
        allowed = ", ".join(_ACTIVATIONS)
        raise ValueError(f"{path}: activation_function must be one of {allowed}, got {name!r}")
    outputs, inputs = (config.get(key, 0) for key in ("out_features", "in_features"))
    leaves = {"weight": Leaf(["linear.weight"], (outputs, inputs))}
    leaves |= {"bias": Leaf(["linear.bias"], (outputs,))} if config.get("bias", True) else {}
    weight, *bias = read_params(folder, leaves).values()
    return lambda x: activation(weight @ x + sum(bias))
