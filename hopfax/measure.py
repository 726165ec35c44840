"""The robustness, the stability and the influence of tokens of a text model, for `hopfax`."""

import argparse
import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hopfax.data import evenly_spaced
from hopfax.data.raw import read_text
from hopfax.data.tables import read_table
from hopfax.data.tokenize import is_blank
from hopfax.text_model import load_text_model, with_progress
from hopfax.train.metrics import with_interval

SNR_DB = (6, 3, 0, -3, -6, -9, -12, -14)
SITES = {
    "token": "on the token embeddings",
    "embedding": "on the first layer's input",
    "memory": "on the token embeddings, with memory",
}
RHO = (0.99, 0.95, 0.9, 0.8, 0.6)
Row = dict[str, Any]


class Page(NamedTuple):
    """Results: a table of `rows`, a figure and a note; the page shows `table`, if any, instead."""

    title: str
    rows: Sequence[Row]
    draw: Callable[[Any], None]
    note: str
    table: Sequence[Row] | None = None


def robustness(flags: argparse.Namespace) -> Page:
    """Measures the score against the signal-to-noise ratio at both sites."""
    columns = {"text": flags.text, "pair": flags.pair, "label": flags.label}
    if len(set(columns.values())) < 3:
        got = ", ".join(filter(None, columns.values()))
        raise ValueError(f"--text, --pair and --label must differ, got {got}")
    model = load_text_model(flags.folder)
    if flags.memory and model.memory:
        raise ValueError(f"{flags.folder} already has memory: leave out --memory")
    texts, labels = (evenly_spaced(each, flags.rows) for each in read_table(flags.dev, **columns))
    targets, metric = _targets(flags, model.labels, labels)
    if not model.labels:
        texts = [text for column in zip(*texts, strict=True) for text in column]

    rows, count = [], len(targets)
    sites = ["token", *["memory"] * flags.memory, *model.sites[1:]]
    plan = [("clean", np.inf), *itertools.product(sites, SNR_DB)]
    for site, snr_db in with_progress(plan):
        predicted = model.outputs(texts, site, snr_db)
        if not model.labels:
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
    if model.memory:
        note += f" The model itself removes noise {SITES[model.memory]} (hopfax.nn.with_memory)."
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
    model = load_text_model(flags.folder)
    if len(model.labels) == 1:
        raise ValueError(f"stability is not defined for a regression model, got {flags.folder}")
    lines = read_text(flags.texts).split("\n")
    texts = evenly_spaced([line.strip() for line in lines if not is_blank(line)], flags.rows)
    if len(texts) < 2:
        raise ValueError(f"{flags.texts} must have two or more lines of text, got {len(texts)}")
    plan = [("clean", 0.0), *(("replacement", rho) for rho in RHO)]
    reference, *outputs = [model.outputs(texts, *each) for each in with_progress(plan)]
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
    what = "probabilities" if model.labels else "embedding"
    title = f"{_name(flags)}: stability of the {what}, {len(texts)} texts"
    return Page(title, rows, draw, note)


def influence(flags: argparse.Namespace) -> Page:
    """Measures the influence of each token's embedding on every layer and on the output."""
    if is_blank(flags.text):
        raise ValueError("SENTENCE must not be empty")
    model = load_text_model(flags.folder)
    measured = model.influence(flags.text)
    words, layers, means = measured.tokens, measured.layers, measured.mean
    shares = means / np.maximum(means.max(axis=1, keepdims=True), 1e-30)
    rows, table = [], []
    for at, word in enumerate(words):
        table.append({"token": word})
        # A spreadsheet would compute "=1+1".
        place = {"position": at, "token": re.sub(r"^(?=[-=+@].)", "'", word)}
        for name, mean, error in zip(
            layers, means[:, at], measured.standard_error[:, at], strict=True
        ):
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
        f"{' or on the output' if model.labels else ''}: norm of the derivative with respect "
        "to the token's embedding, times the embeddings' RMS norm; mean over "
        "16 noisy copies at 20 dB ± standard error (Noise Stability of "
        "Transformer Models, section 3)."
    )
    return Page(f"{_name(flags)}: influence of tokens", rows, draw, note, table)
