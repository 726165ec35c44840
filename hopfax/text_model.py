"""Text models for measurements: strings in, outputs out, with noise on the embeddings."""

import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hopfax.checks import share
from hopfax.classifier import Classifier, encode_texts
from hopfax.data import Encoded, bucket_boundaries, eval_batches, to_buckets
from hopfax.data.tokenize import WordPiece, text_tokenizer
from hopfax.data.tokenizer_files import read_tokenizer
from hopfax.hub import model_folder, optional_import, read_json
from hopfax.nn import Params, Pretrained, load_pretrained, recall, text_classifier
from hopfax.nn.pooling import Pooling
from hopfax.stability import bonami_beckner_pair, geometric_influence
from hopfax.train.evaluate import add_noise, rows_per_call
from hopfax.train.progress import Progress
from hopfax.train.sharding import check_devices

_PROJECTIONS = 8  # random directions of an embedding's derivative
_DRAWS, _DRAWS_DB = 16, 20.0  # noisy copies of a text, and their signal-to-noise ratio


class Influences(NamedTuple):
    """How strongly each token's embedding moves a model.

    Attributes:
        tokens: The text's tokens, special ones included.
        layers: Names of the outputs: of every layer, and of the classifier.
        mean: Norm of the derivative with respect to a token's embedding, times the embeddings' root
            mean square norm; mean over noisy copies of the text.
        standard_error: Its standard error.
        label: The predicted label; None without labels.
        toward: Derivative of the log-probability of `label`, or of a regression model's score,
            along the token's embedding: positive where the token supports it. None without
            labels.
    """

    tokens: list[str]
    layers: list[str]
    mean: Float[np.ndarray, "layers tokens"]
    standard_error: Float[np.ndarray, "layers tokens"]
    label: str | None
    toward: Float[np.ndarray, " tokens"] | None


class TextModel:
    """A text model, run by JAX or PyTorch.

    The output is the probabilities of `labels`, the score of a regression model, which has one
    label, or, without labels, the text's embedding as `Pooling` defines it, scaled to norm 1.

    Attributes:
        vocabulary: Tokens and their ids.
        labels: Names of the outputs; () for embeddings.
        max_length: Maximum number of tokens of a text.
        num_layers: Number of layers.
        sites: Where `outputs` can add noise.
        memory: Site of the model's own memory; None without.
        problem: `"multi_label_classification"` if each label has a probability of its own.
        batch_size: Texts computed at a time; None fits the device.
        seed: Seed of noise and replacements, from 0 to 2³¹ - 1.
    """

    vocabulary: WordPiece
    labels: Sequence[str]
    max_length: int
    vocab_size: int
    num_layers: int
    sites: tuple[str, ...] = ("token",)
    memory: str | None = None
    problem: str | None = None
    batch_size: int | None = None
    seed: int = 0

    def __init__(self, folder: Path):
        check_devices()
        self.pooling = Pooling(folder)

    # What each backend defines. Arrays are concrete, of whole batches.

    def embed_tokens(self, ids: Any) -> Any:
        """Returns the token embeddings `(..., width)` of ids, with the model's scaling."""
        raise NotImplementedError

    def run(self, corruption: str, batch: Any, level: float) -> Float[np.ndarray, "batch outputs"]:
        """Returns the outputs of a batch of `eval_batches` under a corruption of `outputs`."""
        raise NotImplementedError

    def slopes(
        self, ids: Any, samples: Float[Array, "copies tokens width"], keys: Any
    ) -> Float[np.ndarray, "layers copies tokens"]:
        """Returns the norms of the derivatives of every layer, then of labels' output."""
        raise NotImplementedError

    def toward(
        self, ids: Any, samples: Float[Array, "copies tokens width"], label: int
    ) -> Float[np.ndarray, "copies tokens"]:
        """Returns the derivatives of a label's log-probability along the embeddings."""
        raise NotImplementedError

    def encode(self, texts: Sequence[Any]) -> Encoded:
        """Tokenizes texts; for embeddings, with the model's prompt."""
        longest = min(self.max_length, self.pooling.max_length or self.max_length)
        if not self.labels:
            texts = list(map(self.pooling.prepare, texts))
        return encode_texts(texts, self.vocabulary, max_length=longest)

    def pool(self, hidden: Array, mask: Array) -> Float[Array, "batch outputs"]:
        """Returns the texts' embeddings, scaled to norm 1, from a layer's output."""
        skip = 0  # tokens of the prompt
        if self.pooling.prompt and not self.pooling.include_prompt:
            tokenizer = text_tokenizer(self.vocabulary)
            prompt, special = (tokenizer.encode(text).ids for text in (self.pooling.prompt, ""))
            skip = len(prompt) - (prompt[-1] in special)  # a final special token follows the text
        pooled = self.pooling(hidden, mask, skip=skip)
        return pooled / jnp.linalg.norm(pooled, axis=-1, keepdims=True)

    def scores(self, logits: Array) -> Float[Array, "batch outputs"]:
        """Returns probabilities; of a regression model, the score."""
        if self.problem == "multi_label_classification":
            return jax.nn.sigmoid(logits)
        return logits if len(self.labels) == 1 else jax.nn.softmax(logits)

    def outputs(
        self, texts: Sequence[Any], corruption: str = "clean", level: float = 0.0
    ) -> Float[np.ndarray, "texts outputs"]:
        """Returns the output of each text, a string or a pair of strings.

        `corruption` is `"clean"`; `"token"` or `"embedding"`, noise at that site at `level` dB;
        `"memory"`, noise at the token site, then `hopfax.nn.recall`; or `"replacement"`, where each
        token is kept with probability (1 + level)/2.
        """
        encoded = self.encode(texts)
        edges = bucket_boundaries(encoded.lengths, max_buckets=3, max_length=self.max_length)
        parts, order = [], []
        for bucket in to_buckets(encoded, boundaries=edges, pad_id=self.vocabulary.pad_id):
            size = self.batch_size or rows_per_call(bucket)
            for batch, weights in eval_batches(bucket, batch_size=size):
                # The row number seeds a text's draws: other seeds use numbers beyond all rows.
                draws = batch.index + np.uint32(self.seed * 1_000_003 % 2**32)
                part = self.run(corruption, batch._replace(index=draws.astype(np.uint32)), level)
                parts.append(part[weights > 0])
                order.append(batch.index[weights > 0])
        return _finite(np.concatenate(parts))[np.argsort(np.concatenate(order))]

    def influence(self, text: Any) -> Influences:
        """Measures the influence of each token of a text, a string or a pair, on every layer.

        Copies of the text have noise at 20 dB on their token embeddings. Where the output has more
        than 8 coordinates, the derivative is that of 8 random directions.
        """
        ids = np.asarray(self.encode([text]).ids[0])
        tokens = jnp.asarray(self.embed_tokens(ids))
        noise, directions = map(jax.random.key, (2 * self.seed, 2 * self.seed + 1))
        keys = jax.random.split(noise, _DRAWS)
        copies, mask = jnp.repeat(tokens, _DRAWS, axis=0), jnp.ones((_DRAWS, ids.shape[1]), bool)
        samples = add_noise(keys, copies, mask, jnp.float32(_DRAWS_DB))
        # Relative changes are comparable between models.
        scale = float(jnp.sqrt(jnp.square(tokens).sum(-1).mean()))
        slopes = self.slopes(ids, samples, jax.random.split(directions, _DRAWS))
        each = scale * _finite(slopes)
        label, toward = None, None
        if self.labels:
            best = int(self.outputs([text])[0].argmax())
            label, toward = self.labels[best], _finite(self.toward(ids, samples, best)).mean(0)
        # Without labels, the last layer's pooled state is the output.
        layers = [f"layer {n + 1}" for n in range(self.num_layers)] + ["output"] * bool(self.labels)
        errors = each.std(1, ddof=1) / np.sqrt(_DRAWS)
        return Influences(
            words(self.vocabulary, ids[0]), layers, each.mean(1), errors, label, toward
        )


class NativeModel(TextModel):
    """A saved `Classifier`, or a model that `load_pretrained` reads, in JAX."""

    def __init__(self, name: str | os.PathLike[str]):
        super().__init__(model_folder(name))
        self._run = jax.jit(self._batch, static_argnums=0)
        folder, self.sites = self.pooling.folder, ("token", "embedding")
        if "hopfax" in read_json(folder / "config.json"):
            saved = Classifier.load(folder)
            model, self.params = saved.model, saved.params
            self.vocabulary, self.labels = saved.vocabulary, saved.labels
        else:
            loaded, self.vocabulary = load_pretrained(folder), read_tokenizer(folder)
            several = loaded.problem == "regression" and len(loaded.labels) > 1
            self.labels, self.problem = () if several else loaded.labels, loaded.problem
            if loaded.encoder is None:  # a causal model
                self.sites, self.apply = ("token",), partial(_call_causal, loaded)
                self.params, self.max_length = loaded.params, loaded.max_length
                self.vocab_size = min(len(loaded.table), self.vocabulary.size)
                self.num_layers = len(self.params["layers"]["ff_norm"]["weight"])
                return
            outputs = None if self.labels else 1
            model = text_classifier(loaded, outputs, separator=self.vocabulary.sep_id)
            self.params = model.init(jax.random.key(0))
        self.apply, config = model.apply, model.config
        self.max_length = config.max_length
        self.vocab_size = min(config.vocab_size, self.vocabulary.size)
        self.num_layers, self.memory = config.num_layers, config.memory
        if config.stores_padding:
            raise ValueError(f"{folder}: the model must mask padding, unlike preset released")

    def output(
        self, params: Params, embeddings: Array, mask: Array, types: Array, layer: Any = None
    ) -> Float[Array, "batch outputs"]:
        """Returns the output, or the embedding from the output of `layer`, counted from 0."""
        hidden = self.apply(params, embeddings, mask, types, method="hidden_states")
        hidden = hidden[-1 if layer is None else layer]
        if self.labels and layer is None:
            logits = self.apply(params, hidden, mask, method="classify")
            return self.scores(logits)
        return self.pool(hidden, mask)

    def _batch(self, corruption: str, params: Params, batch: Any, level: Array) -> Array:
        embed = partial(self.apply, params, method="embed_tokens")
        tokens, mask, keys = corrupted(self, embed, corruption, batch, level)
        # Of the text itself: a token that replaces another may be a separator.
        types = self.apply(params, batch.ids[:, 0], method="token_types")
        embeddings = self.apply(params, tokens, types, method="embed")
        if corruption == "embedding":
            embeddings = add_noise(keys, embeddings, mask, level)
        return self.output(params, embeddings, mask, types)

    def embed_tokens(self, ids: Any) -> Array:
        """Returns the token embeddings of ids."""
        return self.apply(self.params, ids, method="embed_tokens")

    def run(self, corruption: str, batch: Any, level: float) -> np.ndarray:
        """Returns the outputs of a batch, which local devices share if they divide it."""
        batch, params = share(batch, self.params)
        return np.asarray(self._run(corruption, params, batch, np.float32(level)))

    def slopes(self, ids: Any, samples: Array, keys: Any) -> np.ndarray:
        """Returns the norms of the derivatives, each layer and copy in one call."""
        mask, types = jnp.ones(ids.shape, bool), self.apply(self.params, ids, method="token_types")

        @jax.jit
        def measure(params: Params, sample: Array, key: Array, layer: Array | None) -> Array:
            def outputs(x: Array) -> Array:
                embeddings = self.apply(params, x[None], types, method="embed")
                return projected(self.output(params, embeddings, mask, types, layer)[0], key)

            return geometric_influence(outputs, sample[None], per_token=True)

        layers = [*map(jnp.asarray, range(self.num_layers)), *[None] * bool(self.labels)]
        plan = list(itertools.product(layers, zip(samples, keys, strict=True)))
        each = [_finite(measure(self.params, *draw, layer)) for layer, draw in with_progress(plan)]
        return np.reshape(each, (len(layers), len(samples), -1))

    def toward(self, ids: Any, samples: Array, label: int) -> np.ndarray:
        """Returns the derivatives along the embeddings, one copy in a call."""
        mask, types = jnp.ones(ids.shape, bool), self.apply(self.params, ids, method="token_types")

        @jax.jit
        def measure(params: Params, sample: Array) -> Array:
            def value(x: Array) -> Array:
                embeddings = self.apply(params, x[None], types, method="embed")
                output = self.output(params, embeddings, mask, types)[0, label]
                return output if len(self.labels) == 1 else jnp.log(output)

            return jnp.sum(jax.grad(value)(sample) * sample, axis=-1)

        return np.stack([measure(self.params, sample) for sample in samples])


def load_text_model(
    name: str | os.PathLike[str], *, revision: str | None = None, **options: Any
) -> TextModel:
    """Returns the model of a folder, or of a name on the Hugging Face hub.

    A saved `Classifier` and what `load_pretrained` reads run in JAX, other models in PyTorch with
    the extra `torch` and the options of `hopfax.torch_model.TorchModel`; both on `device`.
    """
    try:
        model = NativeModel(model_folder(name, revision))
        if device := options.get("device"):
            model.params = jax.device_put(model.params, jax.devices(device)[0])
        return model
    except RuntimeError as error:  # of `devices`; it lists those of this machine
        raise ValueError(f"device: {error}") from None
    except (FileNotFoundError, ValueError) as error:
        # Not supported: a family, a setting or the format. All other errors are of broken files.
        if not re.search(r"config\.json: |has no model\.safetensors", str(error)):
            raise
        reason = error
    try:  # by name: that module imports this one
        return optional_import("hopfax.torch_model").TorchModel(name, revision=revision, **options)
    except ModuleNotFoundError as error:
        raise type(reason)(f"{reason}; PyTorch can load more models, but {error}") from None


def _call_causal(model: Pretrained, params: Params, *inputs: Any, method: str) -> Any:
    """Calls a causal model by the names of an `Encoder`'s methods."""
    if method == "embed_tokens":
        return model.embed(*inputs, params=params)
    if method == "classify":
        return model.classify(*inputs, params=params)
    if method == "hidden_states":
        return model.forward(*inputs[:2], params=params).hidden_states[1:]
    return inputs[0]  # there are no token types, and `embed` changes nothing


def projected(values: Float[Array, " outputs"], key: Array) -> Float[Array, " directions"]:
    """Returns an output's coordinates in random directions, or all if they are few."""
    if len(values) <= _PROJECTIONS:
        return values
    # The directions differ between copies, so that the errors include theirs.
    signs = jax.random.rademacher(key, (_PROJECTIONS, len(values))) / _PROJECTIONS**0.5
    return signs @ values


def _finite(values: Any) -> np.ndarray:
    values = np.asarray(values)
    if not np.isfinite(values).all():
        raise ValueError("the model's outputs are not finite")
    return values


def corrupted(
    model: TextModel, embed: Callable[[Array], Array], corruption: str, batch: Any, level: Array
) -> tuple[Array, Array, Array]:
    """Returns a batch's token embeddings under a corruption, its mask, and a key for each text."""
    ids, mask = batch.ids[:, 0], jnp.arange(batch.ids.shape[-1]) < batch.lengths
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), batch.index)
    if corruption == "replacement":
        special = text_tokenizer(model.vocabulary).encode("").ids
        inner = mask & ~jnp.isin(ids, jnp.array(special, ids.dtype))
        ids = _replaced(keys, ids, inner, level, model.vocab_size)
    tokens = embed(ids)
    if corruption in ("token", "memory"):
        tokens = add_noise(keys, tokens, mask, level)
    if corruption == "memory":
        tokens = recall(tokens, embed(jnp.arange(model.vocab_size)[None])[0])
    return tokens, mask, keys


def _replaced(keys: Array, ids: Array, mask: Array, rho: Array, vocab_size: int) -> Array:
    """Replaces tokens where `mask` is True, each with probability (1 - rho)/2, by random ones."""
    replace = partial(bonami_beckner_pair, rho=rho, num_tokens=vocab_size)
    return jax.vmap(lambda key, ids, mask: replace(key, ids, mask=mask)[1])(keys, ids, mask)


def with_progress(parts: Sequence[Any]) -> Iterator[Any]:
    """Yields the parts, and shows the time left."""
    with Progress(len(parts)) as progress:
        for number, part in enumerate(parts, start=1):
            yield part
            progress.update(number)


def words(vocabulary: WordPiece, ids: np.ndarray) -> list[str]:
    """Returns tokens as text: those of byte-level vocabularies are decoded."""
    words = [vocabulary.tokens[number] for number in ids]
    decoder = text_tokenizer(vocabulary).decoder
    if not isinstance(decoder, optional_import("tokenizers").decoders.ByteLevel):
        return words
    pairs = ((word, decoder.decode([word])) for word in words)
    # A part of a character cannot be decoded.
    return [word if "\ufffd" in text else text.strip() or repr(text) for word, text in pairs]
