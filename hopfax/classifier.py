"""A trained text classifier: strings in, labels out, saved to and loaded from a folder."""

import json
import math
import os
import reprlib
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float

from hopfax.checks import share
from hopfax.data.batching import Encoded, bucket_boundaries, to_buckets
from hopfax.data.tasks import Example
from hopfax.data.tokenize import WordPiece, encode_splits, is_blank, text_tokenizer
from hopfax.data.tokenizer_files import fewest_tokens, read_tokenizer, tokenizer_settings
from hopfax.hub import model_folder, new_folder, optional_import, read_json
from hopfax.nn.attention import HopfieldAttention, SoftmaxAttention
from hopfax.nn.encoder import Encoder, EncoderConfig, Site
from hopfax.nn.families import FAMILIES, Family, encoder_leaves, family_config
from hopfax.nn.functional import Functional, Params, flatten, functional
from hopfax.nn.memory import initial_memory, with_memory
from hopfax.nn.pretrained import load_pretrained, text_classifier
from hopfax.nn.tensor_files import (
    Leaf,
    full_name,
    leaves_of,
    list_tensors,
    mismatches,
    read_params,
    sha256,
)
from hopfax.nn.universal import UniversalEncoder
from hopfax.train.evaluate import Noise, Predictor, make_predictor, predict, rows_per_call
from hopfax.train.sharding import Sharding

Text = str | tuple[str, str]
_ENCODERS = {each.settings.__name__: each for each in (Encoder, UniversalEncoder)}
_ATTENTION = {each.__name__: each for each in (SoftmaxAttention, HopfieldAttention)}


class Prediction(NamedTuple):
    """Labels of texts.

    Attributes:
        labels: The most probable label of each text.
        probabilities: Probability of every label, in the order of `Classifier.labels`.
    """

    labels: list[str]
    probabilities: Float[np.ndarray, "texts labels"]


class Classifier:
    """A text classifier with its vocabulary and labels.

    Args:
        model: A model of `hopfax.nn`, such as `robertha` or `text_classifier`.
        params: Its parameters, of one seed.
        vocabulary: Tokens and their ids, from `hopfax.data`.
        labels: Distinct names of the model's outputs, in order; at least two.

    Raises:
        TypeError: `labels` is one string.
        ValueError: The parameters, the labels or the vocabulary do not fit the model.

    Example:
        >>> import jax
        >>> import hopfax
        >>> from hopfax import Classifier
        >>> from hopfax.data import train_vocabulary
        >>> vocabulary = train_vocabulary(["a wonderful film", "the story drags badly"])
        >>> sizes = {"width": 8, "num_layers": 1, "ff_width": 8, "max_length": 32}
        >>> model = hopfax.nn.tinybert(vocabulary.size, 2, **sizes)
        >>> params = model.init(jax.random.key(0))  # here a trained model's
        >>> classifier = Classifier(model, params, vocabulary, ("bad", "good"))
        >>> prediction = classifier.predict(["a wonderful story"])
        >>> prediction.probabilities.shape, prediction.labels[0] in ("bad", "good")
        ((1, 2), True)
        >>> robust = classifier.with_memory()  # against noise on the token embeddings
    """

    def __init__(
        self,
        model: Functional[Encoder],
        params: Params,
        vocabulary: WordPiece,
        labels: Sequence[str],
    ):
        if isinstance(labels, str):
            raise TypeError(f"labels must be several strings, got one: {labels[:40]!r}")
        self.model, self.params, self.vocabulary = model, params, vocabulary
        self.labels, leaves = tuple(labels), flatten(params)
        shapes = flatten(jax.eval_shape(model.init, jax.random.key(0)))
        present, expected = ({n: x.shape for n, x in each.items()} for each in (leaves, shapes))
        problems = mismatches(present, expected)
        problems += [
            f"{name} must be float32, got {leaf.dtype} (see hopfax.nn.with_precision)"
            for name, leaf in leaves.items()
            if leaf.dtype not in (jnp.float32, jnp.float64)
        ]
        if problems:
            raise ValueError(f"params must be of one seed of the model: {problems[0]}")
        self.config: EncoderConfig = model.config
        count, most = self.config.num_outputs or 0, self.config.vocab_size
        strings = {label for label in self.labels if isinstance(label, str)}
        if count < 2 or not count == len(strings) == len(self.labels):
            raise ValueError(
                f"labels must be distinct strings, one for each of the model's {count} outputs, at "
                f"least two, got {reprlib.repr(self.labels)}"
            )
        least = math.ceil(fewest_tokens(most))
        if not least <= vocabulary.size <= most:
            raise ValueError(
                f"vocabulary must have {least} to {most} tokens, got {vocabulary.size}"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Returns what to copy or pickle: compiled functions cannot be."""
        return {name: value for name, value in vars(self).items() if name != "_predictor"}

    @cached_property
    def _predictor(self) -> Predictor:
        return make_predictor(self.model)

    def predict(self, texts: Sequence[Text], *, noise: Noise | None = None) -> Prediction:
        """Returns the label of each text, a string or a pair of strings.

        Texts longer than the model's positions are truncated; a warning says how many. All local
        devices share each batch, except for the preset `released`, which depends on it.

        Args:
            texts: The texts.
            noise: Noise to add, see `hopfax.train.evaluate.Noise`; None for clean inputs.

        Raises:
            TypeError: `texts` is one string.
            ValueError: There are no texts, one is empty or not valid Unicode, or an output is not
                finite.
        """
        longest = self.config.max_length
        encoded = encode_texts(texts, self.vocabulary, max_length=longest)
        edges = bucket_boundaries(encoded.lengths, max_buckets=2, max_length=longest)
        if self.config.stores_padding:
            edges = (longest,)
        buckets = to_buckets(encoded, boundaries=edges, pad_id=self.vocabulary.pad_id)
        predictor, size = self._predictor, None
        params = self.params if self.config.stores_padding else share((), self.params)[1]
        if params is not self.params:
            mesh = jax.tree.leaves(params)[0].sharding.mesh
            predictor = predictor._replace(sharding=Sharding(mesh, "batch"))
            size = mesh.size * min(*map(rows_per_call, buckets), -(-len(encoded.ids) // mesh.size))
        stacked = jax.tree.map(lambda leaf: leaf[None], params)
        logits = predict(predictor, stacked, buckets, noise=noise, batch_size=size).logits[0]
        if len(wrong := np.flatnonzero(~np.isfinite(logits).all(axis=1))):
            raise ValueError(f"the model's outputs are not finite for text {wrong[0]}")
        probabilities = np.asarray(jax.nn.softmax(logits))
        return Prediction([self.labels[i] for i in probabilities.argmax(1)], probabilities)

    def with_memory(
        self,
        *,
        site: Site = "token",
        sigma: float | None = None,
        log_prior: Float[ArrayLike, " vocabulary"] | None = None,
    ) -> "Classifier":
        """Returns a copy of the classifier that removes noise from its embeddings.

        Args:
            site: Site of the noise, `"token"` or `"embedding"`; see `hopfax.nn.with_memory`.
            sigma: Standard deviation of the noise; None if unknown.
            log_prior: Log-probabilities of the model's tokens, up to a constant; -inf excludes a
                token. None for uniform.

        Raises:
            ValueError: `log_prior` has nan or +inf, or excludes all tokens; and see
                `hopfax.nn.with_memory`.
        """
        model = with_memory(self.model, site=site, sigma=sigma)
        memory = initial_memory(self.config.vocab_size, self.config.token_width, sigma)
        if log_prior is not None:
            prior = np.asarray(log_prior, np.float32)
            if not (prior < np.inf).all() or not np.isfinite(prior).any():
                raise ValueError("log_prior must be finite or -inf, and finite for some token")
            memory["log_prior"] = jnp.asarray(prior)
        params = {**self.params, "memory": memory}
        return Classifier(model, params, self.vocabulary, self.labels)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes `config.json`, `model.safetensors` and `tokenizer.json` to a new folder.

        `load` checks the weights against `model.safetensors.sha256`.

        A RoBERTa, or a BERT with the vocabulary's separator, is written in the Hugging Face layout
        of its family, so `load_pretrained` and other libraries read its encoder. With memory,
        another attention or other positions, only `load` reads the folder.

        A loaded model computes in float32: the precision of `with_precision` is not saved.

        Raises:
            FileExistsError: The folder exists; `hopfax.hub.new_folder` checks this before training.
            ModuleNotFoundError: `safetensors` or `tokenizers` is not installed.
            ValueError: The attention is not of `hopfax.nn`.
        """
        folder = new_folder(folder)
        if (name := self.config.attention["name"]) not in _ATTENTION:
            raise ValueError(f"attention must be {' or '.join(_ATTENTION)}, got {name}")
        unfinished = folder.with_name(f"{folder.name}.{secrets.token_hex(8)}.partial")
        unfinished.mkdir(parents=True)
        try:
            self._write(unfinished)
            unfinished.rename(folder)
        except BaseException:
            shutil.rmtree(unfinished)
            raise

    def _write(self, folder: Path) -> None:
        # Other libraries take positions and token types from the tokens.
        encoder, tokens = self.config, self.vocabulary
        alike = encoder.position_offset in (0, tokens.pad_id + 1)
        alike &= encoder.separator in (None, tokens.sep_id)
        family = family_config(encoder) if alike else {}
        config = {
            "model_type": "hopfax",
            "pad_token_id": tokens.pad_id,
            **family,
            "vocab_size": encoder.vocab_size,
            "id2label": {str(number): label for number, label in enumerate(self.labels)},
            "hopfax": {"class": type(encoder).__name__, **asdict(encoder)},
        }
        described = FAMILIES.get(config["model_type"])
        leaves = _leaves(self.params, described)
        # Models without a head have no prefix, either.
        prefix = described.prefix if described and "pooler" in self.params else ""
        tensors = {
            full_name(leaf.names[0], prefix): np.ascontiguousarray(
                array.T if leaf.transposed else array
            )
            for leaf, array in zip(leaves.values(), jax.tree.leaves(self.params), strict=True)
        }
        weights = folder / "model.safetensors"
        optional_import("safetensors.numpy").save_file(tensors, weights, metadata={"format": "pt"})
        (folder / f"{weights.name}.sha256").write_text(f"{sha256(weights)}  {weights.name}\n")
        tokenizer = text_tokenizer(self.vocabulary)
        tokenizer.save(str(folder / "tokenizer.json"))
        settings = {
            "pad_token": tokens.pad_token,
            "model_max_length": encoder.max_length,
            **tokenizer_settings(tokenizer),
        }
        if encoder.position_offset and "add_prefix_space" not in settings:
            # Else `transformers` splits the words of an XLM-RoBERTa as those of a RoBERTa.
            settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        for name, value in (("tokenizer_config", settings), ("config", config)):
            text = json.dumps(value, indent=2, ensure_ascii=False, default=_number)
            (folder / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")
        # `save_file` lets only the owner read its file.
        shutil.copymode(folder / "config.json", weights)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "Classifier":
        """Loads a classifier that `save` wrote, or an encoder for sequence classification.

        `load_pretrained` lists the encoders, such as BERT and DistilBERT.

        Args:
            folder: The folder, or a name on the Hugging Face hub.

        Returns:
            The classifier, with identical parameters if `save` wrote it.

        Raises:
            FileNotFoundError: The folder or a file is missing.
            ModuleNotFoundError: `safetensors` or `tokenizers` is not installed.
            ValueError: The model has no classifier with two or more labels, a file is broken, or
                tensors do not fit.
        """
        folder = model_folder(folder)
        document = read_json(folder / "config.json")
        read = _read_saved if "hopfax" in document else _read_pretrained
        parts = read(folder, document)
        try:
            return cls(*parts)
        except ValueError as error:
            raise ValueError(f"{folder}: {error}") from error


_Parts = tuple[Functional[Encoder], Params, WordPiece, Sequence[str]]


def _read_pretrained(folder: Path, document: Mapping[str, Any]) -> _Parts:
    pretrained = load_pretrained(folder)
    count, problem = len(pretrained.labels), pretrained.problem
    if pretrained.encoder is None or count < 2 or problem != "single_label_classification":
        raise ValueError(
            f"{folder} must be an encoder, such as a BERT, that gives each text one of two or more "
            f"labels, got a {document['model_type']} with {count} labels and problem {problem}"
        )
    vocabulary = read_tokenizer(folder)
    model = text_classifier(pretrained, separator=vocabulary.sep_id)
    return model, model.init(jax.random.key(0)), vocabulary, pretrained.labels


def _read_saved(folder: Path, document: Mapping[str, Any]) -> _Parts:
    weights = folder / "model.safetensors"
    checksum = folder / f"{weights.name}.sha256"
    if checksum.exists() and checksum.read_bytes().split()[:1] != [sha256(weights).encode()]:
        raise ValueError(f"{weights} is damaged: its SHA-256 differs from {checksum.name}")
    names = {tensor.name for tensor in list_tensors(folder)}
    try:
        options = dict(document["hopfax"])
        if (kind := options.pop("class", None)) not in _ENCODERS:
            raise ValueError(f"class must be {' or '.join(_ENCODERS)}, got {kind!r}")
        build, memory = _ENCODERS[kind], options.pop("memory", None)
        attention = dict(options.pop("attention"))
        layer = partial(_ATTENTION[attention.pop("name")], **attention)
        labels = [document["id2label"][str(n)] for n in range(len(document["id2label"]))]
        if (count := options.get("num_layers", 1)) > len(names):
            raise ValueError(f"num_layers must be at most {len(names)}, got {count}")
        model = functional(partial(build, **options, attention=layer))
        if memory:
            sigma = 1.0 if "memory.log_sigma" in names else None
            model = with_memory(model, site=memory, sigma=sigma)
        shapes = jax.eval_shape(model.init, jax.random.key(0))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = repr(error) if isinstance(error, KeyError) else error
        raise ValueError(f"{folder / 'config.json'} cannot be used: {reason}") from error
    family = FAMILIES.get(document["model_type"])
    arrays = read_params(folder, _leaves(shapes, family), prefix=family.prefix if family else "")
    params = jax.tree.unflatten(jax.tree.structure(shapes), arrays.values())
    return model, params, read_tokenizer(folder), labels


def _leaves(params: Params, family: Family | None) -> dict[str, Leaf]:
    return leaves_of(params) if family is None else encoder_leaves(params, family)


def _number(value: Any) -> Any:
    """Returns the Python number of a NumPy scalar, for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"options must be numbers, strings or None, got {value!r}")


def encode_texts(texts: Sequence[Text], vocabulary: WordPiece, *, max_length: int) -> Encoded:
    """Tokenizes texts, and truncates those longer than `max_length` with a warning.

    Raises:
        TypeError: `texts` is one string, or a text has choices.
        ValueError: There are no texts, or one is empty or not valid Unicode.
    """
    if isinstance(texts, str):
        raise TypeError(f"texts must be several strings, got one: {texts[:40]!r}")
    if not (texts := list(texts)):
        raise ValueError("texts must not be empty")
    rows = [Example(text, 0, number) for number, text in enumerate(texts)]
    for row in rows:
        if len(row.texts) > 1:
            raise TypeError(f"text {row.index} must be a string or a pair of strings, got choices")
        if any(is_blank(part) for choice in row.texts for part in choice):
            raise ValueError(f"text {row.index} is empty")
    return encode_splits([rows], vocabulary, max_length, stacklevel=3)[0]
