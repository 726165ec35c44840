"""Measure the robustness, stability and influence of a text model."""

import argparse
import csv
import io
import itertools
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import hopfax
from hopfax import stability
from hopfax.classifier import Classifier, encode_texts
from hopfax.data import (
    Encoded,
    WordPiece,
    bucket_boundaries,
    bucketed,
    eval_batches,
    read_table,
    read_tokenizer,
    spread,
)
from hopfax.data.tokenize import is_blank, text_tokenizer
from hopfax.hub import local_path, model_folder, read_json
from hopfax.nn import EncoderConfig, Params, Pretrained, load_pretrained, recall, text_classifier
from hopfax.nn.pooling import Pooling
from hopfax.optional import optional_import
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


class TextEncoder:
    """An encoder as a function of texts: a saved `Classifier`, or a pretrained model.

    The output is the labels' probabilities, a regression model's score, or, without labels, the
    text's embedding as `modules.json` of sentence-transformers defines it, by default the mean of
    the last hidden state, scaled to norm 1.

    Args:
        name: Folder of `Classifier.save`, or a BERT, RoBERTa, GPT-2 or Gemma-2 by folder or name on
            the Hugging Face hub.

    Attributes:
        labels: Names of the classes; one name for a regression model; () without labels.
        causal: The model if it is a GPT-2 or Gemma-2, else None.
        memory: The site of the model's own memory, see `hopfax.nn.with_memory`; else None.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A file is broken, or the model is of another family.
    """

    def __init__(self, name: str | os.PathLike[str]):
        self.pooling = Pooling(model_folder(name))
        folder = self.pooling.folder
        self.labels: tuple[str, ...] = ()
        self.causal: Pretrained | None = None
        self.memory: str | None = None
        self.run = jax.jit(self._batch, static_argnums=0)
        if "hopfax" in read_json(folder / "config.json"):
            saved = Classifier.load(folder)
            model, self.params = saved.model, saved.params
            self.vocabulary, self.labels = saved.vocabulary, saved.labels
        else:
            pretrained, self.vocabulary = load_pretrained(folder), read_tokenizer(folder)
            if pretrained.config["model_type"] in ("gpt2", "gemma2"):
                self.causal, self.params = pretrained, pretrained.params
                self.max_length, self.vocab_size = pretrained.max_length, len(pretrained.table)
                self.num_layers = len(self.params["layers"]["ff_norm"]["weight"])
                return
            self.labels = pretrained.labels
            outputs = None if self.labels else 1
            model = text_classifier(pretrained, outputs, separator=self.vocabulary.sep_id)
            self.params = model.init(jax.random.key(0))
        self.apply = model.apply
        config: EncoderConfig = model.config
        self.max_length, self.vocab_size = config.max_length, config.vocab_size
        self.num_layers, self.memory = config.num_layers, config.memory
        if config.stores_padding:
            raise ValueError(
                f"{folder}: the model must mask padding, as all but preset released do"
            )

    @property
    def _prompt_length(self) -> int:
        """Number of prompt tokens that pooling skips."""
        if self.pooling.include_prompt or not self.pooling.prompt:
            return 0
        ids, special = (
            text_tokenizer(self.vocabulary).encode(text).ids for text in (self.pooling.prompt, "")
        )
        return len(ids) - (ids[-1] in special)  # a final special token follows the text

    def encode(self, texts: Sequence[Any]) -> Encoded:
        """Tokenizes texts; for embeddings, with the model's prompt."""
        longest = min(self.max_length, self.pooling.max_length or self.max_length)
        if not self.labels:
            texts = [self.pooling.prepare(x) if isinstance(x, str) else x for x in texts]
        return encode_texts(texts, self.vocabulary, max_length=longest)

    def embed_tokens(self, params: Params, ids: Array) -> Array:
        """Returns the token embeddings, the *token* site."""
        if self.causal:
            return self.causal.embed(ids, params=params)
        return self.apply(params, ids, method="embed_tokens")

    def embed(self, params: Params, tokens: Array, ids: Array) -> Array:
        """Returns the first layer's input, the *embedding* site; in causal models, `tokens`."""
        if self.causal:
            return tokens
        types = self.apply(params, ids, method="token_types")
        return self.apply(params, tokens, types, method="embed")

    def output(
        self,
        params: Params,
        embeddings: Float[Array, "batch tokens width"],
        mask: Array,
        ids: Array,
        *,
        layer: int | Array | None = None,
    ) -> Float[Array, "batch outputs"]:
        """Returns the output, or the embedding from the output of `layer`, counted from 0."""
        if self.causal:
            hidden = self.causal.forward(embeddings, mask, params=params).hidden_states[1:]
        else:
            types = self.apply(params, ids, method="token_types")
            hidden = self.apply(params, embeddings, mask, types, method="hidden_states")
        hidden = hidden[-1 if layer is None else layer]
        if self.labels and layer is None:
            logits = self.apply(params, hidden, mask, method="classify")
            return logits if len(self.labels) == 1 else jax.nn.softmax(logits)
        pooled = self.pooling(hidden, mask, skip=self._prompt_length)
        return pooled / jnp.linalg.norm(pooled, axis=-1, keepdims=True)

    def _batch(
        self,
        corruption: str,
        params: Params,
        ids: Array,
        lengths: Array,
        index: Array,
        level: Array,
    ) -> Array:
        original, mask = ids, jnp.arange(ids.shape[1]) < lengths
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), index)
        if corruption == "replacement":
            special = text_tokenizer(self.vocabulary).encode("").ids
            inner = mask & ~jnp.isin(ids, jnp.array(special, ids.dtype))
            ids = _replaced(keys, ids, inner, level, self.vocab_size)
        tokens = self.embed_tokens(params, ids)
        if corruption in ("token", "memory"):
            tokens = add_noise(keys, tokens, mask, level)
        if corruption == "memory":
            table = self.embed_tokens(params, jnp.arange(self.vocab_size)[None])[0]
            tokens = recall(tokens, table)
        # Token types of the text itself: a replaced token may be a separator.
        embeddings = self.embed(params, tokens, original)
        if corruption == "embedding":
            embeddings = add_noise(keys, embeddings, mask, level)
        return self.output(params, embeddings, mask, original)

    def outputs(
        self, texts: Sequence[Any], corruption: str = "clean", level: float = 0.0
    ) -> Float[np.ndarray, "texts outputs"]:
        """Returns the output of each text, a string or a pair of strings.

        Args:
            texts: The texts.
            corruption: `"clean"`; `"token"` or `"embedding"`, noise at that site with a
                signal-to-noise ratio of `level` dB; `"memory"`, noise at the token site, then
                `hopfax.nn.recall`; or `"replacement"`, tokens drawn anew.
            level: Signal-to-noise ratio in dB, or ρ: a token is kept with probability (1 + ρ)/2.
        """
        encoded = self.encode(texts)
        edges = bucket_boundaries(encoded.lengths, max_buckets=3, max_length=self.max_length)
        parts, order = [], []
        for bucket in bucketed(encoded, boundaries=edges, pad_id=self.vocabulary.pad_id):
            for batch, weights in eval_batches(bucket, batch_size=rows_per_call(bucket)):
                inputs = batch.ids[:, 0], batch.lengths, batch.index
                part = self.run(corruption, self.params, *inputs, np.float32(level))
                parts.append(np.asarray(part)[weights > 0])
                order.append(batch.index[weights > 0])
        return _finite(np.concatenate(parts))[np.argsort(np.concatenate(order))]


def _finite(values: Any) -> np.ndarray:
    values = np.asarray(values)
    if not np.isfinite(values).all():
        raise ValueError("the model's outputs are not finite")
    return values


def _replaced(keys: Array, ids: Array, mask: Array, rho: Array, vocab_size: int) -> Array:
    """Replaces tokens where `mask` is True, each with probability (1 - rho)/2, by random ones."""

    def one(key: Array, ids: Array) -> Array:
        return stability.bonami_beckner_pair(key, ids, rho=rho, num_tokens=vocab_size)[1]

    return jnp.where(mask, jax.vmap(one)(keys, ids), ids)


def robustness(flags: argparse.Namespace) -> Path:
    """Measures the score against the signal-to-noise ratio at both sites."""
    for name in ("pair", "label"):
        if getattr(flags, name) == flags.text:
            raise ValueError(f"--{name} must differ from --text, got {flags.text}")
    encoder = TextEncoder(flags.folder)
    texts, labels = read_table(flags.dev, text=flags.text, pair=flags.pair, label=flags.label)
    texts, labels = spread(texts, flags.rows), spread(labels, flags.rows)
    if len(set(map(str, labels))) < 2:
        raise ValueError(
            f"--label must have two or more values in the {len(labels)} rows used of {flags.dev}"
        )
    if flags.labels and len(flags.labels) != len(encoder.labels):
        names = ", ".join(encoder.labels)
        raise ValueError(f"--labels must have a name for each of {names}; got {flags.labels}")
    if flags.memory and encoder.memory:
        raise ValueError(f"{flags.folder} already has memory: leave out --memory")
    if len(encoder.labels) > 1:
        targets, metric = _class_numbers(labels, flags.labels or encoder.labels), "accuracy"
    else:
        if not (encoder.labels or flags.pair):
            raise ValueError(
                f"{flags.folder} has no labels (a classifier is read from BERT and RoBERTa "
                "for sequence classification only). To score text similarity, pass --pair and a "
                "numeric --label column"
            )
        targets, metric = np.array([_score(label) for label in labels]), "spearman"
        if not (finite := np.isfinite(targets)).all():
            raise ValueError(
                "--label must be finite numbers for a model without classes, got "
                f"{labels[finite.argmin()]} in {flags.dev}"
            )
        if not encoder.labels:
            texts = [text for column in zip(*texts, strict=True) for text in column]

    rows, count = [], len(targets)
    sites = ["token", *["memory"] * flags.memory, *["embedding"] * (not encoder.causal)]
    plan = [("clean", 0.0), *((site, db) for site in sites for db in SNR_DB)]
    for site, db in _progress(plan):
        predicted = encoder.outputs(texts, site, db)
        if not encoder.labels:
            first, second = np.split(predicted, 2)
            predicted = np.sum(first * second, axis=1, keepdims=True)  # cosines
        interval = with_interval(metric, predicted, targets)
        score, low, high = (round(value, 2) for value in interval)
        snr_db = np.inf if site == "clean" else db
        rows.append(
            {"site": SITES.get(site, site), "snr_db": snr_db, "metric": metric}
            | {"score": score, "low": low, "high": high, "num_examples": count}
        )
    title = f"{_name(flags)}: {metric} against noise, {count} rows of {flags.dev.name}"
    majority = 100 * np.bincount(targets).max() / count if metric == "accuracy" else None

    def draw(axes: Any) -> None:
        for site, marker in zip(sites, "o^s", strict=False):
            marks = [row for row in rows if row["site"] == SITES[site]]
            x, y, *bounds = (
                [row[key] for row in marks] for key in ("snr_db", "score", "low", "high")
            )
            (line,) = axes.plot(x, y, marker=marker, label=f"noise {SITES[site]}")
            axes.fill_between(x, *bounds, color=line.get_color(), alpha=0.15, lw=0)
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
    return _write(flags, title, rows, draw, note)


def _name(flags: argparse.Namespace) -> str:
    """Returns the model's name, also for the folder "." and for the folder of a seed."""
    path = Path(flags.folder) if Path(flags.folder).name else Path(flags.folder).resolve()
    return "/".join(path.parts[-2:]) if path.name.isdigit() else path.name


def _class_numbers(labels: Sequence[Any], names: Sequence[str]) -> np.ndarray:
    """Returns class numbers of labels, which are class names or unambiguous class numbers."""
    if not set(map(str, labels)) <= set(names):  # 1.0 for class 1, as in columns with gaps
        labels = [int(x) if isinstance(x, float) and x.is_integer() else x for x in labels]
    labels, numbers = list(map(str, labels)), list(map(str, range(len(names))))
    known = numbers if set(labels) <= set(numbers) - set(names) else names
    # The class "1 star" has the number 0.
    named = {each: str(at) for at, name in enumerate(names) for each in re.findall(r"\d+", name)}
    doubtful = known is numbers and {*labels} <= named.keys() and any(named[x] != x for x in labels)
    if doubtful or not set(labels) <= set(known):
        raise ValueError(
            f"--label has {', '.join(sorted(set(labels))[:20])}, but the model's labels are "
            f"{', '.join(names)}: list the column's names for them with --labels, in this order"
        )
    return np.array([known.index(label) for label in labels])


def _score(label: Any) -> float:
    """Returns a label as a number, or nan."""
    try:
        return float(label)
    except (TypeError, ValueError):
        return np.nan


def stability_of(flags: argparse.Namespace) -> Path:
    """Measures the agreement of a text's output before and after random token replacement."""
    encoder = TextEncoder(flags.folder)
    if len(encoder.labels) == 1:
        raise ValueError(
            "stability requires a model with two or more classes or without labels, got the "
            f"regression model {flags.folder}"
        )
    try:
        lines = flags.texts.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise ValueError(f"{flags.texts} must be encoded in UTF-8") from None
    texts = spread([line.strip() for line in lines if not is_blank(line)], flags.rows)
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
    what = "probabilities" if encoder.labels else "embedding"
    title = f"{_name(flags)}: stability of the {what}, {len(texts)} texts"

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
    still = [
        f"{rho:g}"
        for rho, changed in zip(RHO, outputs, strict=True)
        if np.allclose(changed, reference, rtol=0, atol=1e-6)
    ]
    if still:
        note += f" No output changed at ρ = {', '.join(still)}: pass more or longer texts."
    return _write(flags, title, rows, draw, note)


def influence(flags: argparse.Namespace) -> Path:
    """Measures the influence of each token's embedding on every layer and on the output."""
    if is_blank(flags.text):
        raise ValueError("SENTENCE must not be empty")
    encoder = TextEncoder(flags.folder)
    encoded = encoder.encode([flags.text])
    ids, params = jnp.asarray(encoded.ids[0]), encoder.params
    mask, tokens = jnp.ones(ids.shape, bool), encoder.embed_tokens(params, ids)

    @jax.jit
    def measure(params: Params, sample: Array, key: Array, layer: Array | None) -> Array:
        """Returns the influences, in random directions if the output has many coordinates."""

        def outputs(x: Array) -> Array:
            embeddings = encoder.embed(params, x[None], ids)
            values = encoder.output(params, embeddings, mask, ids, layer=layer)[0]
            # The directions differ between copies, so that the errors include theirs.
            signs = jax.random.rademacher(key, (_PROJECTIONS, len(values))) / _PROJECTIONS**0.5
            return signs @ values if len(values) > _PROJECTIONS else values

        return stability.geometric_influence(outputs, sample[None], per_token=True)

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
    words = _words(encoder.vocabulary, encoded.ids[0, 0])
    rows, table = [], []
    for at, word in enumerate(words):
        table.append({"token": word})
        for name, mean, error in zip(layers, means[:, at], errors[:, at], strict=True):
            numbers = {"influence": f"{mean:.4g}", "standard_error": f"{error:.2g}"}
            table[-1][name] = " ± ".join(numbers.values())
            # A spreadsheet would compute "=1+1".
            place = {"position": at, "token": re.sub(r"^(?=[-=+@].)", "'", word)}
            place["layer"] = name.removeprefix("layer ")
            rows.append(place | numbers)
    print(_colored(words, shares[-1]))

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
    title = f"{_name(flags)}: influence of tokens"
    return _write(flags, title, rows, draw, note, table)


def _progress(parts: Sequence[Any]) -> Iterator[Any]:
    """Yields the parts, and shows the time left."""
    with Progress(len(parts)) as progress:
        for number, part in enumerate(parts, start=1):
            yield part
            progress.update(number)


def _words(vocabulary: WordPiece, ids: np.ndarray) -> list[str]:
    """Returns tokens as text: those of byte-level vocabularies are decoded."""
    words = [vocabulary.tokens[number] for number in ids]
    decoder = text_tokenizer(vocabulary).decoder
    if not isinstance(decoder, optional_import("tokenizers").decoders.ByteLevel):
        return words
    texts = [decoder.decode([word]) for word in words]
    # A part of a character cannot be decoded.
    return [
        word if "\ufffd" in text else text.strip() or repr(text)
        for word, text in zip(words, texts, strict=True)
    ]


def _colored(words: Sequence[str], shares: np.ndarray) -> str:
    """Returns words with their shares, as a blue background if the output is a terminal."""
    if not sys.stdout.isatty():
        return " ".join(f"{word} ({share:.2f})" for word, share in zip(words, shares, strict=True))
    parts = []
    for word, share in zip(words, shares, strict=True):
        red, green, blue = (round(255 - share * (255 - each)) for each in (0, 114, 178))
        ink = 97 if share > 0.6 else 30
        parts.append(f"\033[{ink};48;2;{red};{green};{blue}m {word} \033[0m")
    return "".join(parts)


def _record(flags: argparse.Namespace) -> str:
    """Returns config.json: the command and its flags, which tell whose results a folder has."""
    values = {name: value for name, value in vars(flags).items() if name not in ("run", "out")}
    if Path(flags.folder).is_dir():
        values["folder"] = Path(flags.folder)
    return json.dumps(values, indent=2, default=lambda path: str(path.absolute()))


def _check_out(flags: argparse.Namespace) -> None:
    """Raises an error before the measurement if its results could not be written."""
    folder, record = flags.out, flags.out / "config.json"
    optional_import("matplotlib")
    parent = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not parent.is_dir():
        raise NotADirectoryError(f"--out must be a folder, got the file {parent}")
    same = record.is_file() and record.read_bytes() == _record(flags).encode()
    if any(folder.glob("*")) and not same:
        raise FileExistsError(f"--out must be new, or a folder of the same command, got {folder}")
    if not os.access(parent, os.W_OK):
        raise PermissionError(f"--out must be in a writable folder, got {folder}")


def _write(
    flags: argparse.Namespace,
    title: str,
    rows: Sequence[dict[str, Any]],
    draw: Callable[[Any], None],
    note: str,
    table: Sequence[dict[str, Any]] | None = None,
) -> Path:
    """Writes config.json, results.csv, figure.png and the page README.md; returns the page's path.

    The page shows `table`, by default the rows of results.csv.
    """
    from matplotlib.figure import Figure

    folder, data = flags.out, io.StringIO(newline="")
    writer = csv.DictWriter(data, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(_record(flags), encoding="utf-8")
    (folder / "results.csv").write_bytes(data.getvalue().encode())
    # The picture comes last: it may fail. Names of files may not be UTF-8.
    title, table = title.encode(errors="replace").decode(), table or rows
    figure = Figure(figsize=(7, max(3.6, 0.24 * len(table))), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=10, loc="left", parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    draw(axes)
    lines = [f"# {_escaped(title)}", "", f"![{_escaped(title)}](figure.png)", ""]
    lines += [f"| {' | '.join(table[0])} |", f"|{'---|' * len(table[0])}"]
    lines += [f"| {' | '.join(map(_escaped, row.values()))} |" for row in table]
    lines += ["", f"{note} Data: [results.csv](results.csv).", ""]
    page = folder / "README.md"
    page.write_text("\n".join(lines), encoding="utf-8")
    figure.savefig(folder / "figure.png", dpi=130)
    return page


def _escaped(value: Any) -> str:
    """Returns a value as one line of Markdown that shows it unchanged, also in a table."""
    return re.sub(r"([\\|<>*_`~\[\]&])", r"\\\1", " ".join(str(value).split("\n")))


def _count(text: str) -> int:
    """Parses an integer >= 2."""
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"must be an integer >= 2, got {text}")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    top = argparse.ArgumentParser(prog="hopfax", description=__doc__)
    top.add_argument("--version", action="version", version=f"hopfax {hopfax.__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for name, run, text in (
        ("robustness", robustness, "Score against Gaussian noise on the embeddings."),
        ("influence", influence, "Influence of a sentence's tokens on each layer and the output."),
        ("stability", stability_of, "Agreement of outputs when tokens are replaced at random."),
    ):
        each = commands.add_parser(name, help=text, description=text)
        each.set_defaults(run=run, command=name)
        add = each.add_argument
        model = "folder of a Classifier, BERT, RoBERTa, GPT-2 or Gemma-2, or its Hugging Face name"
        add("folder", metavar="MODEL", help=model)
        out = "folder for the results (default: %(default)s)"
        add("--out", type=local_path, default=Path(f"hopfax_{name}"), help=out)
        if name != "influence":
            rows = "number of rows, evenly spaced (default: %(default)s)"
            add("--rows", type=_count, default=400, help=rows)
        if name == "robustness":
            table = "texts and labels: .csv, .tsv or .jsonl"
            add("--dev", type=local_path, required=True, metavar="FILE", help=table)
            text = "column of the texts (default: text)"
            add("--text", default="text", metavar="COLUMN", help=text)
            pair = "column of the second texts; required without a text classifier"
            add("--pair", metavar="COLUMN", help=pair)
            label = "column of the labels, or of similarity scores of pairs (default: label)"
            add("--label", default="label", metavar="COLUMN", help=label)
            names = "the column's names for the model's labels, in the model's order"
            add("--labels", nargs="+", metavar="NAME", help=names)
            memory = "also score denoised token embeddings (slower)"
            add("--memory", action="store_true", help=memory)
        elif name == "influence":
            add("text", metavar="SENTENCE", help="sentence to measure")
        else:
            lines = "text file, one text per line; blank lines are skipped"
            add("--texts", type=local_path, required=True, metavar="FILE", help=lines)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 0, 130 after Ctrl-C, or 1 after an error or a closed pipe."""
    warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # tokens that the terminal cannot show
    try:
        try:
            flags = parser().parse_args(arguments)
            _check_out(flags)
            check_devices()
            print(f"page: {flags.run(flags)}")
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Python would report the error again when it flushes the stream at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
