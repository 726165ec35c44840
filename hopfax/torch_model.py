"""A text model of any family that `transformers` can load: PyTorch runs it, JAX adds the noise."""

import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from hopfax.data.tokenizer_files import read_tokenizer
from hopfax.hub import lfs_hint, model_folder, optional_import, read_json
from hopfax.text_model import TextModel, corrupted, projected, with_progress


class TorchModel(TextModel):
    """A model that `transformers` loads, in float32.

    The model gets token ids as usual, so that positions, token types and the pooling of its head
    are those of `transformers`; a hook on its embedding layer replaces the embeddings.

    Args:
        name: A folder, or a name on the Hugging Face hub.
        revision: Branch, tag or commit on the hub.
        device: Device of PyTorch, such as `"cuda"`.
        trust_remote_code: Whether programs in the model's folder may run.

    Raises:
        FileNotFoundError, ModuleNotFoundError: The model, torch or transformers >= 5 is missing.
        ValueError: `transformers` cannot load the model; its output depends on padding; or it does
            not read its embeddings once for each text.

    Example:
        >>> from hopfax.torch_model import TorchModel
        >>> TorchModel("microsoft/mpnet-base").num_layers  # doctest: +SKIP
        12
    """

    def __init__(
        self, name: Any, *, revision: Any = None, device: str = "cpu", trust_remote_code=False
    ):
        self._torch, transformers = optional_import("torch"), optional_import("transformers")
        if int((version := transformers.__version__).partition(".")[0]) < 5:
            message = f"transformers must be >= 5, got {version}"
            raise ModuleNotFoundError(f'{message}: pip install "hopfax[torch]"')
        files = ["*.model", "*.py"]  # that only `transformers` reads
        if not any(model_folder(name, revision, files).glob("**/*.safetensors")):
            files.append("pytorch_model*.bin*")
        folder = model_folder(name, revision, files)
        super().__init__(folder)
        folder, trusted = self.pooling.folder, {"trust_remote_code": trust_remote_code}
        raw = read_json(folder / "config.json")
        known = raw.get("model_type") in transformers.CONFIG_MAPPING
        if "auto_map" in raw and not (known or trust_remote_code):
            raise ValueError(
                f"{folder} has programs that load it, which can do all that you can: read them, "
                "and pass --trust-remote-code (trust_remote_code=True) if you trust their author"
            )
        fast = (folder / "tokenizer.json").is_file()
        vocabulary = read_tokenizer(folder) if fast else None
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **trusted)
            config = transformers.AutoConfig.from_pretrained(folder, **trusted)
            self._model = model = (
                self._load(transformers, config, trusted).to(device.replace("gpu", "cuda")).eval()
            )
        except Exception as error:  # those of transformers have no common class
            hints = filter(None, map(lfs_hint, folder.glob("*model*.*")))
            reason = next(hints, "") or " ".join(str(error).split())[:300]
            raise ValueError(f"transformers cannot load {folder}: {reason}") from error
        self.vocabulary = vocabulary or _converted(folder, tokenizer)
        # The heads of causal models look for it.
        model.config.get_text_config().pad_token_id = self.vocabulary.pad_id
        typed = self.vocabulary.sep_id and "token_type_ids" in tokenizer.model_input_names
        self._typed = bool(typed) and getattr(config, "type_vocab_size", 0) > 1
        limits = [tokenizer.model_max_length, getattr(config, "max_position_embeddings", None) or 0]
        for part, module in model.named_modules():
            padding = getattr(module, "padding_idx", None)
            if part.endswith("position_embeddings") and padding is not None:  # RoBERTa
                limits.append(module.num_embeddings - padding - 1)
        self.max_length = min((n for n in limits if 0 < n < 10**6), default=512)  # T5 has none
        self._check(2 if self.labels and config.is_encoder_decoder else 1)
        self._corrupt = jax.jit(
            lambda kind, table, *batch: corrupted(self, table.__getitem__, kind, *batch)[:2],
            static_argnums=0,
        )

    def _load(self, transformers: Any, config: Any, trusted: dict[str, bool]) -> Any:
        """Returns the model of a config, and sets the labels."""
        self.labels, self.problem, config.use_cache = (), config.problem_type, False
        one = self.problem != "regression" or config.num_labels == 1
        if one and "ForSequenceClassification" in str(config.architectures):
            self.labels = tuple(str(config.id2label[n]) for n in range(config.num_labels))
        if len(set(self.labels)) < len(self.labels):
            raise ValueError(f"id2label must have distinct names, got {', '.join(self.labels)}")
        kind = "AutoModelForSequenceClassification" if self.labels else "AutoModel"
        options = {"config": config, "output_loading_info": True, "weights_only": True, **trusted}
        options["dtype"] = self._torch.float32  # else that of the files
        model, info = getattr(transformers, kind).from_pretrained(self.pooling.folder, **options)
        unused = () if self.labels else ("pooler.", "decoder.")
        if missing := [key for key in info["missing_keys"] if not key.startswith(unused)]:
            raise ValueError(f"missing tensor {', '.join(sorted(missing))}")
        model.requires_grad_(False)
        return model.get_encoder() if config.is_encoder_decoder and not self.labels else model

    def _check(self, reads: int) -> None:
        """Raises a ValueError unless the output depends on the embeddings and not on padding."""
        ids = self.encode(["A test of padding and positions"]).ids[0]
        tail, mask = ((0, 0), (0, 5)), np.ones_like(ids)
        padded = np.pad(ids, tail, constant_values=self.vocabulary.pad_id)
        name = f"{self.pooling.folder}: {type(self._model).__name__} is not supported"
        try:
            weight = self._model.get_input_embeddings().weight
            # Several modules may share the table; the model calls any of them.
            tables = (each for each in self._model.modules() if hasattr(each, "num_embeddings"))
            self._tables = [each for each in tables if each.weight is weight]
            with self._torch.no_grad():
                (plain,) = self._values(None, ids, mask)
                if self._reads != reads:
                    raise ValueError(
                        f"its embedding layer must run once a text, got {self._reads} calls"
                    )
                # With the model's scaling.
                table = self._tables[0](self._torch.arange(len(weight), device=weight.device))
                x = table[self._tensor(ids)]
                *layers, hooked = self._values(x, ids, mask, every=True)
                (longer,) = self._values(table[self._tensor(padded)], padded, np.pad(mask, tail))
                (other,) = self._values(1.5 * x.roll(1, 1), ids, mask)
        except Exception as error:  # those of models have no common class
            raise ValueError(f"{name}: {error}") from error
        longer = longer if self.labels else longer[:, : ids.shape[1]]
        scale = float(plain.abs().max())
        for reason, value in (("how embeddings are put in", hooked), ("padding", longer)):
            if not float((value - plain).abs().max()) <= 1e-3 * scale:
                raise ValueError(f"{name}: its output depends on {reason}")
        if not float((other - hooked).abs().max()) > 1e-6 * scale:
            raise ValueError(f"{name}: its output does not depend on the embeddings")
        self.num_layers = len(layers) + (not self.labels)
        self.vocab_size = min(len(table), self.vocabulary.size)
        self._table = jnp.asarray(table.cpu().numpy())

    def _tensor(self, array: Any) -> Any:
        return self._torch.tensor(np.asarray(array), device=self._model.device)

    def _values(self, x: Any, ids: Any, mask: Any, every: bool = False) -> list[Any]:
        """Returns states or logits, `every` layer's before; `x` replaces the ids' embeddings."""
        inputs = {"input_ids": np.broadcast_to(ids, mask.shape), "attention_mask": mask}
        inputs = {name: self._tensor(array).long() for name, array in inputs.items()}
        if self._typed:
            ends = inputs["input_ids"] == self.vocabulary.sep_id
            inputs["token_type_ids"] = (ends.cumsum(1) - ends.long()).clamp(max=1)
        self._reads = 0

        def replace(module: Any, _: Any, output: Any) -> Any:
            self._reads += 1
            if x is not None and output.shape != x.shape:
                raise ValueError(f"its embeddings have the shape {tuple(output.shape)}")
            if x is None or self._reads == 1:
                return x
            # The decoder of a classifier reads the same tokens, moved by one.
            return self._torch.cat([output[:, :1], x[:, :-1]], 1)

        hooks = [table.register_forward_hook(replace) for table in self._tables]
        try:
            output = self._model(**inputs, output_hidden_states=every)
        finally:
            for hook in hooks:
                hook.remove()
        states = output.get("hidden_states") or output.get("encoder_hidden_states") or ()
        if self.labels:
            return [*states[1:], output.logits]
        return [*states[1:-1], output.last_hidden_state]

    def embed_tokens(self, ids: Any) -> Array:
        """Returns the token embeddings of ids."""
        return self._table[jnp.asarray(ids)]

    def run(self, corruption: str, batch: Any, level: float) -> np.ndarray:
        """Returns the outputs of a batch."""
        x, mask = self._corrupt(corruption, self._table, batch, np.float32(level))
        with self._torch.no_grad():
            # Ids of the text itself: a token that replaces another may be a separator.
            (value,) = self._values(self._tensor(x), batch.ids[:, 0], mask)
        value = jnp.asarray(value.cpu().numpy())
        return np.asarray(self.scores(value) if self.labels else self.pool(value, mask))

    def slopes(self, ids: Any, samples: Array, keys: Any) -> np.ndarray:
        """Returns the norms of the derivatives, all layers and copies after one forward pass."""
        x = self._tensor(samples).requires_grad_()
        values = self._values(x, ids, np.ones(x.shape[:2]), every=True)
        pool = partial(self.pool, mask=jnp.ones(ids.shape, bool))

        @partial(jax.jit, static_argnums=0)
        @partial(jax.vmap, in_axes=(None, 0, 0), out_axes=1)
        def rows(finish: Callable[[Array], Array], value: Array, key: Array) -> Array:
            return jax.jacrev(lambda value: projected(finish(value[None])[0], key))(value)

        norms = []
        for number, value in with_progress(list(enumerate(values))):
            finish = pool if number < self.num_layers else self.scores
            after = rows(finish, value.detach().cpu().numpy(), keys)
            grad = partial(self._torch.autograd.grad, value, x, retain_graph=True)
            squares = [grad(self._tensor(each))[0].double().square().sum(-1) for each in after]
            norms.append(self._torch.stack(squares).sum(0).sqrt().cpu().numpy())
        return np.stack(norms)

    def toward(self, ids: Any, samples: Array, label: int) -> np.ndarray:
        """Returns the derivatives along the embeddings."""
        x = self._tensor(samples).requires_grad_()
        (logits,) = self._values(x, ids, np.ones(x.shape[:2]))

        def value(logits: Array) -> Array:
            output = self.scores(logits)[:, label]
            return jnp.sum(output if len(self.labels) == 1 else jnp.log(output))

        after = jax.grad(value)(jnp.asarray(logits.detach().cpu().numpy()))
        (slope,) = self._torch.autograd.grad(logits, x, self._tensor(after))
        return (slope * x).sum(-1).detach().cpu().numpy()


def _converted(folder: Path, tokenizer: Any) -> Any:
    """Returns a tokenizer that `transformers` converts to a `tokenizer.json`."""
    with tempfile.TemporaryDirectory() as copy:
        tokenizer.save_pretrained(copy)
        if not (Path(copy) / "tokenizer.json").is_file():
            raise ValueError(f"{folder}: {type(tokenizer).__name__} has no tokenizer.json")
        shutil.copy(folder / "config.json", copy)
        return read_tokenizer(copy)
