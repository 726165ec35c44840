"""What typos and noise cost a text model, how stable it is, and which tokens matter."""

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hopfax.data import evenly_spaced
from hopfax.data.labels import class_numbers
from hopfax.data.raw import read_text
from hopfax.data.tables import read_table
from hopfax.data.tokenize import is_blank
from hopfax.text import misspell, swap_characters
from hopfax.text.log import strings
from hopfax.text_model import TextModel, load_text_model, with_progress
from hopfax.train.metrics import bootstrap, scores, with_interval

SNR_DB = (6, 3, 0, -3, -6, -9, -12, -14)
SITES = {
    "token": "on the token embeddings",
    "embedding": "on the first layer's input",
    "memory": "on the token embeddings, with memory",
}
TYPOS = {"misspelled words": misspell, "swapped letters": swap_characters}
RATES = (0.05, 0.1, 0.2)
RHO = (0.99, 0.95, 0.9, 0.8, 0.6)
Row = dict[str, Any]


class Page(NamedTuple):
    """Results: `rows`, a figure and a note. The page shows `table`, if any, instead of the rows."""

    title: str
    rows: Sequence[Row]
    draw: Callable[[Any], None]
    note: str
    table: Sequence[Row] | None = None
    examples: Sequence[Row] = ()


class Task(NamedTuple):
    """A model and the texts of a file, with their labels as class numbers or scores."""

    model: TextModel
    texts: Sequence[Any]
    targets: np.ndarray
    metric: str

    @property
    def majority(self) -> float | None:
        """Accuracy of the most frequent class; None for scores."""
        classes = self.metric == "accuracy"
        return 100 * np.bincount(self.targets).max() / len(self.targets) if classes else None

    def predict(self, texts: Sequence[Any], *corruption: Any) -> np.ndarray:
        """Returns the outputs of the texts or, without labels, the cosines of pairs."""
        if self.model.labels:
            return self.model.outputs(texts, *corruption)
        texts = [text for column in zip(*texts, strict=True) for text in column]
        first, second = np.split(self.model.outputs(texts, *corruption), 2)
        return np.sum(first * second, axis=1, keepdims=True)

    def score(self, predicted: np.ndarray) -> Row:
        """Returns the score from 0 to 100 and its 95 % interval over the texts."""
        interval = (round(x, 2) for x in with_interval(self.metric, predicted, self.targets))
        named = dict(zip(("score", "low", "high"), interval, strict=True))
        return {"metric": self.metric, **named, "num_examples": len(self.targets)}

    def loss(self, clean: np.ndarray, changed: np.ndarray) -> Row:
        """Returns the score lost and its 95 % interval over the texts, the same for both."""

        def lost(rows: Any = slice(None)) -> float:
            metric, pair = self.metric, (clean[rows], changed[rows])
            first, second = (scores((metric,), x, self.targets[rows])[metric] for x in pair)
            return 100 * (first - second)

        if self.metric == "accuracy":
            right, still = (each.argmax(1) == self.targets for each in (clean, changed))
            each, count = right.astype(float) - still, len(clean) + 2
            # Half a text more in each cell (Agresti and Min 2005): without a change, a width, too.
            mean = each.sum() / count
            half = 1.96 * np.sqrt(((each @ each + 1) / count - mean**2) / count)
            ends = 100 * np.clip([mean - half, mean + half], -1, 1)
        else:
            ends = bootstrap(len(clean), lost, num_resamples=300)
        named = zip(("loss", "loss_low", "loss_high"), (lost(), *ends), strict=True)
        return {name: round(float(value), 2) for name, value in named}


def read_model(flags: argparse.Namespace) -> TextModel:
    """Returns the model of the flags."""
    names = ("revision", "device", "trust_remote_code")
    options = {name: value for name, value in vars(flags).items() if name in names and value}
    model = load_text_model(flags.folder, **options)
    model.batch_size, model.seed = getattr(flags, "batch_size", None), flags.seed
    return model


def read_task(flags: argparse.Namespace) -> Task:
    """Returns the model and the rows of the file of the flags."""
    columns = {"text": flags.text, "pair": flags.pair, "label": flags.label}
    if len(set(columns.values())) < 3:
        got = ", ".join(filter(None, columns.values()))
        raise ValueError(f"--text, --pair and --label must differ, got {got}")
    model = read_model(flags)
    table = read_table(flags.dev, **columns)
    print(f"{flags.dev}: {', '.join(table.notes)}", file=sys.stderr)
    texts, labels = (evenly_spaced(each, flags.rows) for each in table)
    return Task(model, texts, *_targets(flags, model.labels, labels))


def robustness(flags: argparse.Namespace) -> Page:
    """Measures the score against the signal-to-noise ratio at both sites."""
    task = read_task(flags)
    if flags.memory and task.model.memory:
        raise ValueError(f"{flags.folder} already has memory: leave out --memory")
    sites, note = ["token", *["memory"] * flags.memory, *task.model.sites[1:]], ""
    plan = [("clean", np.inf), *itertools.product(sites, SNR_DB)]
    rows = [
        {"site": SITES.get(site, site), "snr_db": snr_db}
        | task.score(task.predict(task.texts, site, snr_db))
        for site, snr_db in with_progress(plan)
    ]
    if task.model.memory:
        note += f" The model removes noise {SITES[task.model.memory]} (hopfax.nn.with_memory)."
    if flags.memory:
        note += " Memory: posterior means of the token embeddings (hopfax.nn.recall)."
    return _page(flags, task, rows, "signal-to-noise ratio in dB", note)


def typos(flags: argparse.Namespace) -> Page:
    """Measures the score against the rate of words with typos, and finds texts that it breaks."""
    task = read_task(flags)
    clean, none = task.predict(task.texts), dict.fromkeys(("loss", "loss_low", "loss_high"), 0.0)
    rows = [{"typos": "none", "rate": 0.0, "changed": 0.0} | task.score(clean) | none]
    examples: dict[int, Row] = {}
    for rate, kind in with_progress([*itertools.product(RATES, TYPOS)]):
        each = enumerate(task.texts)
        edits = [TYPOS[kind](text, rate=rate, seed=(flags.seed, row)) for row, text in each]
        level = {"typos": kind, "rate": rate}
        changed = {"changed": round(float(np.mean([edit.rate for edit in edits])), 4)}
        predicted = task.predict([edit.text for edit in edits])
        rows.append(level | changed | task.score(predicted) | task.loss(clean, predicted))
        before, after = clean.argmax(1), predicted.argmax(1)
        for row in np.flatnonzero(before != after).tolist():
            names = [task.model.labels[each[row]] for each in (task.targets, before, after)]
            labels = dict(zip(("label", "clean", "with typos"), names, strict=True))
            old, new = (" / ".join(strings(text)) for text in (task.texts[row], edits[row].text))
            words = zip(old.split(), new.split(), strict=True)
            typed = ", ".join(f"{was} → {now}" for was, now in words if was != now)
            examples.setdefault(row, {"row": row} | level | labels | {"words": typed, "text": old})
    note = (
        " Rate: share of words to change; changed: share changed, at least one word a text. Loss: "
        "clean score minus score, with its interval over the same texts."
    )
    return _page(flags, task, rows, "rate of words with typos", note, *examples.values())


def _page(flags: Any, task: Task, rows: list[Row], axis: str, note: str, *examples: Row) -> Page:
    """Returns the page of scores by kind and level, the first two columns; the first is clean."""
    (kind, level), count, majority = [*rows[0]][:2], len(task.targets), task.majority
    if majority is not None:
        note = f" Majority baseline: {majority:.2f}.{note}"

    def draw(axes: Any) -> None:
        for name, marker in zip(dict.fromkeys(row[kind] for row in rows[1:]), "o^s", strict=False):
            marks = [row for row in rows if row[kind] == name]
            x, y, *ends = ([row[key] for row in marks] for key in (level, "score", "low", "high"))
            (line,) = axes.plot(x, y, marker=marker, label=name)
            axes.fill_between(x, *ends, color=line.get_color(), alpha=0.15, lw=0)
            axes.set_xticks(x)
        axes.axhline(rows[0]["score"], color="gray", ls=":", label="clean")
        if majority is not None:
            axes.axhline(majority, color="gray", ls="--", label="majority baseline")
        axes.xaxis.set_inverted(level == "snr_db")
        axes.set(xlabel=axis, ylabel=f"{task.metric} × 100")
        axes.legend()

    file = "standard input" if str(flags.dev) == "-" else flags.dev.name
    title = f"{_name(flags)}: {flags.command}, {task.metric} on {count} rows of {file}"
    note = f"Bands: 95 % intervals over the texts.{note}"
    return Page(title, rows, draw, note, examples=examples)


def _name(flags: argparse.Namespace) -> str:
    """Returns the model's name, also for the folder "." and for the folder of a seed."""
    path = Path(flags.folder) if Path(flags.folder).name else Path(flags.folder).resolve()
    return "/".join(path.parts[-2:]) if path.name.isdigit() else path.name


def _targets(
    flags: argparse.Namespace, names: Sequence[str], labels: Sequence[Any]
) -> tuple[np.ndarray, str]:
    """Returns the labels as class numbers or scores, and the metric; `names` are the model's."""
    if len(set(map(str, labels))) < 2:
        raise ValueError(f"--label must have two or more values, got {labels[0]} in {flags.dev}")
    if len(names) > 1:
        targets, note = class_numbers(labels, names, label_map=flags.label_map)
        if note:
            print(f"labels: {note}", file=sys.stderr)
        return targets, "accuracy"
    if not (names or flags.pair):
        raise ValueError(
            f"{flags.folder} has no labels: for text similarity, pass --pair and numeric --label"
        )
    if wrong := [x for x in labels if not (isinstance(x, int | float) and np.isfinite(x))]:
        got = f"{wrong[0]} in {flags.dev}"
        raise ValueError(f"--label must be finite numbers for a model without classes, got {got}")
    return np.array(labels, float), "spearman"


def stability(flags: argparse.Namespace) -> Page:
    """Measures the agreement of a text's output before and after random token replacement."""
    model = read_model(flags)
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
        "Each token that is not special is kept with probability (1 + ρ)/2, else drawn uniformly "
        "(Noise Stability of Transformer Models, Eq. 7). Score: cosine of outputs, 95 % intervals."
    )
    what = "probabilities" if model.labels else "embedding"
    title = f"{_name(flags)}: stability of the {what}, {len(texts)} texts"
    return Page(title, rows, draw, note)


def influence(flags: argparse.Namespace) -> Page:
    """Measures the influence of each token's embedding on every layer and on the output."""
    text = flags.text if flags.second is None else (flags.text, flags.second)
    if any(map(is_blank, strings(text))):
        raise ValueError("SENTENCE must not be empty")
    model = read_model(flags)
    words, layers, means, errors, label, toward = model.influence(text)
    shares = means / np.maximum(means.max(axis=1, keepdims=True), 1e-30)
    rows, table = [], []
    for at, word in enumerate(words):
        table.append({"token": word})
        signed = "" if toward is None else float(f"{toward[at]:.4g}")
        for name, mean, error in zip(layers, means[:, at], errors[:, at], strict=True):
            table[-1][name] = f"{mean:.4g} ± {error:.2g}"
            numbers = {"influence": float(f"{mean:.4g}"), "standard_error": float(f"{error:.2g}")}
            place = {"position": at, "token": word, "layer": name.removeprefix("layer ")}
            rows.append({**place, **numbers, "toward": signed})
        table[-1] |= {} if toward is None else {f"toward {label}": f"{signed:+.3g}"}
    last = shares[-1] if toward is None else np.copysign(shares[-1], toward)
    sign = "-" if toward is None else "+"
    named = [f"{word} ({share:{sign}.2f})" for word, share in zip(words, last, strict=True)]
    kind = "score" if len(model.labels) == 1 else "predicted label"
    said = [] if label is None else [f"{kind} {label}:"]
    print(" ".join([*said, *named]))

    def draw(axes: Any) -> None:
        picture = axes.imshow(shares.T, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set_yticks(range(len(words)), named, parse_math=False)
        axes.set_xticks(range(len(layers)), layers, rotation=45, ha="right")
        axes.figure.colorbar(picture, label="influence / largest of the column")

    note = (
        "Influence: norm of the derivative of a layer's pooled state, scaled to norm 1, or of the "
        "output, by a token's embedding, times the embeddings' RMS norm; mean over 16 noisy copies "
        "at 20 dB ± standard error (Noise Stability of Transformer Models, section 3)."
    )
    if label is not None:
        what = "score" if kind == "score" else "log-probability"
        note += f" Toward: derivative of the {what} along the embedding; + supports the label."
    title = ", ".join([f"{_name(flags)}: influence of tokens", *said]).removesuffix(":")
    return Page(title, rows, draw, note, table)
