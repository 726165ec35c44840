"""The robustness, the stability and the influence of tokens of a text model, for `hopfax`."""

import argparse
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

from hopfax.classifier import Classifier, encode_texts
from hopfax.data import Encoded, bucket_boundaries, eval_batches, evenly_spaced, to_buckets
from hopfax.data.raw import read_text
from hopfax.data.tables import read_table
from hopfax.data.tokenize import is_blank, text_tokenizer
from hopfax.data.tokenizer_files import read_tokenizer
from hopfax.hub import model_folder, optional_import, read_json
from hopfax.nn import Params, Pretrained, load_pretrained, recall, text_classifier
from hopfax.nn.pooling import Pooling
from hopfax.stability import bonami_beckner_pair, geometric_influence
from hopfax.train.evaluate import add_noise, rows_per_call
from hopfax.train.metrics import with_interval
from hopfax.train.progress import Progress
from hopfax.train.sharding import check_devices

SNR_DB = (6, 3, 0, -3, -6, -9, -12, -14)
SITES = {
    "token": "on the token embeddings",
    "embedding": "on the first layer's input",
    "memory": "on the token embeddings, with memory",
}
RHO = (0.99, 0.95, 0.9, 0.8, 0.6)
_PROJECTIONS = 8  # random directions of an embedding's derivative
_DRAWS, _DRAWS_DB = 16, 20.0  # noisy copies of a sentence, and their signal-to-noise ratio

Row = dict[str, Any]


class Page(NamedTuple):
    """Results: a table of `rows`, a figure and a note; the page shows `table`, if any, instead."""

    title: str
    rows: Sequence[Row]
    draw: Callable[[Any], None]
    note: str
    table: Sequence[Row] | None = None


class TextEncoder:
    """A saved `Classifier`, BERT, RoBERTa, GPT-2, Gemma-2 or Llama as a function of texts.

    The output is the probabilities of `labels`, the score of a regression model, which has one
    label, or, without labels, the text's embedding as `Pooling` defines it, scaled to norm 1.
    """

    def __init__(self, name: str | os.PathLike[str]):
        check_devices()
        self.pooling = Pooling(model_folder(name))
        self.run = jax.jit(self._batch, static_argnums=0)
        self.memory: str | None = None  # site of the model's own memory
        folder, self.causal = self.pooling.folder, False
        if "hopfax" in read_json(folder / "config.json"):
            saved = Classifier.load(folder)
            model, self.params = saved.model, saved.params
            self.vocabulary, self.labels = saved.vocabulary, saved.labels
        else:
            loaded, self.vocabulary = load_pretrained(folder), read_tokenizer(folder)
            self.labels = loaded.labels
            if loaded.encoder is None:  # a causal model
                self.causal, self.apply = True, partial(_call_causal, loaded)
                self.params, self.max_length = loaded.params, loaded.max_length
                self.vocab_size = len(loaded.table)
                self.num_layers = len(self.params["layers"]["ff_norm"]["weight"])
                return
            outputs = None if self.labels else 1
            model = text_classifier(loaded, outputs, separator=self.vocabulary.sep_id)
            self.params = model.init(jax.random.key(0))
        self.apply, config = model.apply, model.config
        self.max_length, self.vocab_size = config.max_length, config.vocab_size
        self.num_layers, self.memory = config.num_layers, config.memory
        if config.stores_padding:
            raise ValueError(f"{folder}: the model must mask padding, unlike preset released")

    def encode(self, texts: Sequence[Any]) -> Encoded:
        """Tokenizes texts; for embeddings, with the model's prompt."""
        longest = min(self.max_length, self.pooling.max_length or self.max_length)
        if not self.labels:
            texts = list(map(self.pooling.prepare, texts))
        return encode_texts(texts, self.vocabulary, max_length=longest)

    def output(
        self, params: Params, embeddings: Array, mask: Array, types: Array, layer: Any = None
    ) -> Float[Array, "batch outputs"]:
        """Returns the output, or the embedding from the output of `layer`, counted from 0."""
        hidden = self.apply(params, embeddings, mask, types, method="hidden_states")
        hidden = hidden[-1 if layer is None else layer]
        if self.labels and layer is None:
            logits = self.apply(params, hidden, mask, method="classify")
            return logits if len(self.labels) == 1 else jax.nn.softmax(logits)
        skip = 0  # tokens of the prompt
        if self.pooling.prompt and not self.pooling.include_prompt:
            tokenizer = text_tokenizer(self.vocabulary)
            prompt, special = (tokenizer.encode(text).ids for text in (self.pooling.prompt, ""))
            skip = len(prompt) - (prompt[-1] in special)  # a final special token follows the text
        pooled = self.pooling(hidden, mask, skip=skip)
        return pooled / jnp.linalg.norm(pooled, axis=-1, keepdims=True)

    def _batch(self, corruption: str, params: Params, batch: Any, level: Array) -> Array:
        ids = batch.ids[:, 0]
        # Of the text itself: a token that replaces another may be a separator.
        types = self.apply(params, ids, method="token_types")
        mask = jnp.arange(ids.shape[1]) < batch.lengths
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), batch.index)
        if corruption == "replacement":
            special = text_tokenizer(self.vocabulary).encode("").ids
            inner = mask & ~jnp.isin(ids, jnp.array(special, ids.dtype))
            ids = _replaced(keys, ids, inner, level, self.vocab_size)
        tokens = self.apply(params, ids, method="embed_tokens")
        if corruption in ("token", "memory"):
            tokens = add_noise(keys, tokens, mask, level)
        if corruption == "memory":
            every = jnp.arange(self.vocab_size)[None]
            tokens = recall(tokens, self.apply(params, every, method="embed_tokens")[0])
        embeddings = self.apply(params, tokens, types, method="embed")
        if corruption == "embedding":
            embeddings = add_noise(keys, embeddings, mask, level)
        return self.output(params, embeddings, mask, types)

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
            for batch, weights in eval_batches(bucket, batch_size=rows_per_call(bucket)):
                part = self.run(corruption, self.params, batch, np.float32(level))
                parts.append(np.asarray(part)[weights > 0])
                order.append(batch.index[weights > 0])
        return _finite(np.concatenate(parts))[np.argsort(np.concatenate(order))]


def _call_causal(model: Pretrained, params: Params, *inputs: Any, method: str) -> Any:
    """Calls a causal model by the names of an `Encoder`'s methods."""
    if method == "embed_tokens":
        return model.embed(*inputs, params=params)
    if method == "hidden_states":
        return model.forward(*inputs[:2], params=params).hidden_states[1:]
    return inputs[0]  # there are no token types, and `embed` changes nothing


def _finite(values: Any) -> np.ndarray:
    values = np.asarray(values)
    if not np.isfinite(values).all():
        raise ValueError("the model's outputs are not finite")
    return values


def _replaced(keys: Array, ids: Array, mask: Array, rho: Array, vocab_size: int) -> Array:
    """Replaces tokens where `mask` is True, each with probability (1 - rho)/2, by random ones."""

    def one(key: Array, ids: Array) -> Array:
        return bonami_beckner_pair(key, ids, rho=rho, num_tokens=vocab_size)[1]

    return jnp.where(mask, jax.vmap(one)(keys, ids), ids)


def robustness(flags: argparse.Namespace) -> Page:
    """Measures the score against the signal-to-noise ratio at both sites."""
    columns = {"text": flags.text, "pair": flags.pair, "label": flags.label}
    if len(set(columns.values())) < 3:
        got = ", ".join(filter(None, columns.values()))
        raise ValueError(f"--text, --pair and --label must differ, got {got}")
    encoder = TextEncoder(flags.folder)
    if flags.memory and encoder.memory:
        raise ValueError(f"{flags.folder} already has memory: leave out --memory")
    texts, labels = (evenly_spaced(each, flags.rows) for each in read_table(flags.dev, **columns))
    targets, metric = _targets(flags, encoder.labels, labels)
    if not encoder.labels:
        texts = [text for column in zip(*texts, strict=True) for text in column]

    rows, count = [], len(targets)
    sites = ["token", *["memory"] * flags.memory, *["embedding"] * (not encoder.causal)]
    plan = [("clean", np.inf), *itertools.product(sites, SNR_DB)]
    for site, snr_db in _progress(plan):
        predicted = encoder.outputs(texts, site, snr_db)
        if not encoder.labels:
            first, second = np.split(predicted, 2)
            predicted = np.sum(first * second, axis=1, keepdims=True)  # cosines
        interval = with_interval(metric, predicted, targets)
        score, low, high = (round(value, 2) for value in interval)
        rows.append(
            {"site": SITES.get(site, site), "snr_db": snr_db, "metric": metric}
            | {"score": score, "low": low, "high": high, "num_examples": count}
        )
    majority = 100 * np.bincount(targets).max() / count if metric == "accuracy" else None

    def draw(axes: Any) -> None:
        for site, marker in zip(sites, "o^s", strict=False):
            marks = [row for row in rows if row["site"] == SITES[site]]
            y, *bounds = ([row[key] for row in marks] for key in ("score", "low", "high"))
            (line,) = axes.plot(SNR_DB, y, marker=marker, label=f"noise {SITES[site]}")
            axes.fill_between(SNR_DB, *bounds, color=line.get_color(), alpha=0.15, lw=0)
        axes.axhline(rows[0]["score"], color="gray", ls=":", label="clean")
        if majority is not None:
            axes.axhline(majority, color="gray", ls="--", label="majority baseline")
        axes.invert_xaxis()
        axes.set_xticks(SNR_DB)
        axes.set(xlabel="signal-to-noise ratio in dB", ylabel=f"{metric} × 100")
        axes.legend()

    note = "Bands: 95 % intervals over the texts."
    if majority is not None:
        note += f" Majority baseline: {majority:.2f}."
    if encoder.memory:
        note += f" The model itself removes noise {SITES[encoder.memory]} (hopfax.nn.with_memory)."
    if flags.memory:
        note += (
            " Memory: token embeddings are replaced by their posterior means, given the model's "
            "vocabulary and a uniform prior (hopfax.nn.recall)."
        )
    title = f"{_name(flags)}: {metric} against noise, {count} rows of {flags.dev.name}"
    return Page(title, rows, draw, note)


def _name(flags: argparse.Namespace) -> str:
    """Returns the model's name, also for the folder "." and for the folder of a seed."""
    path = Path(flags.folder) if Path(flags.folder).name else Path(flags.folder).resolve()
    return "/".join(path.parts[-2:]) if path.name.isdigit() else path.name


def _targets(
    flags: argparse.Namespace, names: Sequence[str], labels: Sequence[Any]
) -> tuple[np.ndarray, str]:
    """Returns the labels as class numbers or scores, and the metric; `names` are the model's."""
    if len(set(map(str, labels))) < 2:
        rows = f"the {len(labels)} rows used of {flags.dev}"
        raise ValueError(f"--label must have two or more values in {rows}")
    if flags.labels and len(flags.labels) != len(names):
        known = ", ".join(names)
        raise ValueError(f"--labels must have a name for each of {known}; got {flags.labels}")
    if len(names) > 1:
        return _class_numbers(labels, flags.labels or names), "accuracy"
    if not (names or flags.pair):
        raise ValueError(
            f"{flags.folder} has no labels (only a BERT or RoBERTa for sequence classification "
            "has): to score text similarity, pass --pair and a numeric --label column"
        )
    if wrong := [x for x in labels if not (isinstance(x, int | float) and np.isfinite(x))]:
        got = f"{wrong[0]} in {flags.dev}"
        raise ValueError(f"--label must be finite numbers for a model without classes, got {got}")
    return np.array(labels, float), "spearman"


def _class_numbers(labels: Sequence[Any], names: Sequence[str]) -> np.ndarray:
    """Returns class numbers of labels, which are class names or unambiguous class numbers."""
    if not set(map(str, labels)) <= set(names):  # 1.0 for class 1, as in columns with gaps
        labels = [int(x) if isinstance(x, float) and x.is_integer() else x for x in labels]
    labels, numbers = list(map(str, labels)), list(map(str, range(len(names))))
    known = numbers if {*labels} <= {*numbers} - {*names} else names
    # The class "1 star" has the number 0.
    named = {each: str(at) for at, name in enumerate(names) for each in re.findall(r"\d+", name)}
    doubtful = known is numbers and {*labels} <= named.keys() and any(named[x] != x for x in labels)
    if doubtful or not {*labels} <= {*known}:
        raise ValueError(
            f"--label has {', '.join(sorted({*labels})[:20])}, but the model's labels are "
            f"{', '.join(names)}: list the column's names for them with --labels, in this order"
        )
    return np.array([known.index(label) for label in labels])


def stability(flags: argparse.Namespace) -> Page:
    """Measures the agreement of a text's output before and after random token replacement."""
    encoder = TextEncoder(flags.folder)
    if len(encoder.labels) == 1:
        raise ValueError(f"stability is not defined for a regression model, got {flags.folder}")
    lines = read_text(flags.texts).split("\n")
    texts = evenly_spaced([line.strip() for line in lines if not is_blank(line)], flags.rows)
    if len(texts) < 2:
        raise ValueError(f"{flags.texts} must have two or more lines of text, got {len(texts)}")
    plan = [("clean", 0.0), *(("replacement", rho) for rho in RHO)]
    reference, *outputs = [encoder.outputs(texts, *each) for each in _progress(plan)]
    rows = []
    for rho, changed in zip(RHO, outputs, strict=True):
        norms = np.linalg.norm(reference, axis=1) * np.linalg.norm(changed, axis=1)
        agreement = np.sum(reference * changed, axis=1) / norms
        mean, half = agreement.mean(), 1.96 * agreement.std(ddof=1) / np.sqrt(len(texts))
        ends = np.clip([mean, mean - half, mean + half], -1, 1)  # a cosine's range
        score, low, high = (round(float(value), 4) for value in ends)
        rows.append(
            {"rho": rho, "replaced": round((1 - rho) / 2, 4)}
            | {"score": score, "low": low, "high": high, "num_examples": len(texts)}
        )

    def draw(axes: Any) -> None:
        x = [100 * row["replaced"] for row in rows]
        bars = [[row["score"] - row["low"], row["high"] - row["score"]] for row in rows]
        axes.errorbar(x, [row["score"] for row in rows], np.transpose(bars), marker="o")
        axes.set(xlabel="replaced tokens, %", ylabel="cosine with the clean output")

    note = (
        "Each token, except special tokens, is kept with probability (1 + ρ)/2 and otherwise "
        "drawn uniformly from the vocabulary (Noise Stability of Transformer Models, Eq. 7). "
        "Score: cosine of both outputs; 95 % intervals over the texts."
    )
    what = "probabilities" if encoder.labels else "embedding"
    title = f"{_name(flags)}: stability of the {what}, {len(texts)} texts"
    return Page(title, rows, draw, note)


def influence(flags: argparse.Namespace) -> Page:
    """Measures the influence of each token's embedding on every layer and on the output."""
    if is_blank(flags.text):
        raise ValueError("SENTENCE must not be empty")
    encoder = TextEncoder(flags.folder)
    encoded = encoder.encode([flags.text])
    ids, params = jnp.asarray(encoded.ids[0]), encoder.params
    mask, types = jnp.ones(ids.shape, bool), encoder.apply(params, ids, method="token_types")
    tokens = encoder.apply(params, ids, method="embed_tokens")

    @jax.jit
    def measure(params: Params, sample: Array, key: Array, layer: Array | None) -> Array:
        """Returns the influences, in random directions if the output has many coordinates."""

        def outputs(x: Array) -> Array:
            embeddings = encoder.apply(params, x[None], types, method="embed")
            values = encoder.output(params, embeddings, mask, types, layer)[0]
            # The directions differ between copies, so that the errors include theirs.
            signs = jax.random.rademacher(key, (_PROJECTIONS, len(values))) / _PROJECTIONS**0.5
            return signs @ values if len(values) > _PROJECTIONS else values

        return geometric_influence(outputs, sample[None], per_token=True)

    copies = jnp.repeat(tokens, _DRAWS, axis=0)
    keys = jax.random.split(jax.random.key(0), _DRAWS)
    samples = add_noise(keys, copies, jnp.repeat(mask, _DRAWS, axis=0), jnp.float32(_DRAWS_DB))
    directions = jax.random.split(jax.random.key(1), _DRAWS)
    # Without labels, the last layer's pooled state is the output.
    layers = {f"layer {n + 1}": jnp.asarray(n) for n in range(encoder.num_layers)}
    layers |= {"output": None} if encoder.labels else {}
    plan = list(itertools.product(layers.values(), zip(samples, directions, strict=True)))
    each = np.stack([_finite(measure(params, *draw, layer)) for layer, draw in _progress(plan)])
    # Relative changes are comparable between models.
    scale = float(jnp.sqrt(jnp.square(tokens).sum(-1).mean()))
    each = scale * each.reshape(len(layers), _DRAWS, -1)
    means, errors = each.mean(1), each.std(1, ddof=1) / np.sqrt(_DRAWS)
    shares = means / np.maximum(means.max(axis=1, keepdims=True), 1e-30)
    words, rows, table = _words(encoder, encoded.ids[0, 0]), [], []
    for at, word in enumerate(words):
        table.append({"token": word})
        # A spreadsheet would compute "=1+1".
        place = {"position": at, "token": re.sub(r"^(?=[-=+@].)", "'", word)}
        for name, mean, error in zip(layers, means[:, at], errors[:, at], strict=True):
            numbers = {"influence": f"{mean:.4g}", "standard_error": f"{error:.2g}"}
            table[-1][name] = " ± ".join(numbers.values())
            rows.append({**place, "layer": name.removeprefix("layer "), **numbers})
    print(" ".join(f"{word} ({share:.2f})" for word, share in zip(words, shares[-1], strict=True)))

    def draw(axes: Any) -> None:
        picture = axes.imshow(shares.T, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set_yticks(range(len(words)), words, parse_math=False)
        axes.set_xticks(range(len(layers)), layers, rotation=45, ha="right")
        axes.figure.colorbar(picture, label="influence / largest of the column")

    note = (
        "Influence of a token on the direction of a layer's pooled hidden state"
        f"{' or on the output' if encoder.labels else ''}: norm of the derivative with respect "
        "to the token's embedding, times the embeddings' RMS norm; mean over "
        f"{_DRAWS} noisy copies at {_DRAWS_DB:g} dB ± standard error (Noise Stability of "
        "Transformer Models, section 3)."
    )
    return Page(f"{_name(flags)}: influence of tokens", rows, draw, note, table)


def _progress(parts: Sequence[Any]) -> Iterator[Any]:
    """Yields the parts, and shows the time left."""
    with Progress(len(parts)) as progress:
        for number, part in enumerate(parts, start=1):
            yield part
            progress.update(number)


def _words(encoder: TextEncoder, ids: np.ndarray) -> list[str]:
    """Returns tokens as text: those of byte-level vocabularies are decoded."""
    words = [encoder.vocabulary.tokens[number] for number in ids]
    decoder = text_tokenizer(encoder.vocabulary).decoder
    if not isinstance(decoder, optional_import("tokenizers").decoders.ByteLevel):
        return words
    pairs = ((word, decoder.decode([word])) for word in words)
    # A part of a character cannot be decoded.
    return [word if "\ufffd" in text else text.strip() or repr(text) for word, text in pairs]
