"""The report of a text model: what typos and noise cost it, what helps, and which texts break.

Scores of the same texts are compared, clean and changed. A change is *harmless* if the 95 %
interval of the points lost ends below `MARGIN`, *costly* if it does not and starts above zero, else
*unclear*: there are too few texts to tell. Noise is harmless "down to" a level if that and all
weaker ones are.
"""

import argparse
import itertools
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from hopfax import measure, page
from hopfax.hub import optional_import
from hopfax.measure import TYPOS, Row, Task
from hopfax.text import Version, restore, split_words
from hopfax.text.log import strings
from hopfax.text_model import NativeModel, with_progress, words
from hopfax.train.metrics import with_interval

MARGIN = 2.0  # points
MOST_TEXTS = 10  # that break most easily
NOISE, MEMORY, RANDOM = "noise", "noise, then memory", "random tokens"
LEVELS = {
    **dict.fromkeys(TYPOS, measure.RATES),
    **dict.fromkeys((NOISE, MEMORY), measure.SNR_DB),
    RANDOM: tuple(round((1 - rho) / 2, 4) for rho in measure.RHO),
}
_SITES = {NOISE: "token", MEMORY: "memory"}
_COLORS, _LOOKS = ("#0072B2", "#D55E00"), ("o-", "^--")
Key = tuple[str, float]  # kind and level of a change


def report(flags: argparse.Namespace) -> tuple[list[Row], dict[str, bytes]]:
    """Measures one or two models; returns the rows, and the files report.json and report.html.

    Raises:
        ValueError: The models have different metrics, or a model, the file or a flag is invalid.
    """
    optional_import("jinja2")
    if flags.compare and str(flags.dev) == "-":
        raise ValueError("--compare reads --dev twice: it must be a file, got standard input")
    folders = [flags.folder, *filter(None, [flags.compare])]
    each_flags = [argparse.Namespace(**vars(flags) | {"folder": folder}) for folder in folders]
    tasks = [measure.read_task(each) for each in each_flags]
    metric, names = tasks[0].metric, [measure._name(each) for each in each_flags]
    if metric != tasks[-1].metric:
        got = f"{metric} and {tasks[-1].metric}"
        raise ValueError(f"--compare must name a model with the same metric, got {got}")
    names = names if len({*names}) == len(names) else folders
    models = [_measure(*each) for each in zip(names, folders, tasks, strict=True)]
    shown = {"flags": vars(flags), "metric": metric, "margin": MARGIN, "models": models}
    plots = {"typos": ([*TYPOS], "words with typos, %"), "noise": ([*_SITES], "noise, dB")}
    pictures = {
        name: page.Picture(partial(_draw, models, f"{metric} × 100", *each), "")
        for name, each in plots.items()
    }
    options = {"quote": shlex.quote, "typos": [*TYPOS], "noises": [*_SITES], "random": RANDOM}
    html = page.html(page.Page(" and ".join(names), pictures), "report.html.j2", **options, **shown)
    values = json.dumps(shown, indent=2, ensure_ascii=False, default=str)
    rows = [
        {"model": model["name"], **row}
        for model in models
        for row in (model["clean"], *itertools.chain(*model["rows"].values()))
    ]
    files = {"report.html": html, "report.json": values}
    return rows, {name: each.encode(errors="replace") for name, each in files.items()}


def _measure(name: str, folder: str, task: Task) -> dict[str, Any]:
    """Measures a model; returns what its part of the page says."""
    kinds = [kind for kind in LEVELS if kind != MEMORY or not task.model.memory]
    keys: list[Key] = [(kind, level) for kind in kinds for level in LEVELS[kind]]
    print(f"{name}: {1 + len(keys)} passes over {len(task.texts)} texts", flush=True)
    edited = {("clean", 0.0): list(map(split_words, task.texts))}
    for kind, rate in itertools.product(TYPOS, measure.RATES):
        change, rows = partial(TYPOS[kind], rate=rate), enumerate(task.texts)
        edited[kind, rate] = [change(text, seed=(task.model.seed, row)) for row, text in rows]
    # In one call, so that few shapes are compiled.
    predicted = task.predict([each.text for versions in edited.values() for each in versions])
    outputs = dict(zip(edited, np.split(predicted, len(edited)), strict=True))
    # Kinds take turns, so that the time left is right.
    turns = sorted(keys, key=lambda key: LEVELS[key[0]].index(key[1]))
    for kind, level in with_progress([key for key in turns if key not in outputs]):
        change = ("replacement", 1 - 2 * level) if kind == RANDOM else (_SITES[kind], level)
        outputs[kind, level] = task.predict(task.texts, *change)

    clean = _row(task, outputs, "clean", 0.0)
    rows = {kind: [_row(task, outputs, kind, level) for level in LEVELS[kind]] for kind in kinds}
    facts = {"name": name, "folder": folder, "labels": task.model.labels, "clean": clean}
    facts |= {"majority": task.majority, "informative": clean["low"] > (task.majority or 0)}
    single = len(task.model.labels) > 1 and task.model.problem != "multi_label_classification"
    native = isinstance(task.model, NativeModel) and "embedding" in task.model.sites
    facts |= {
        "trainable": native and single,
        "sites": task.model.sites,
        "memory": task.model.memory,
    }
    facts |= {"rows": rows, "down_to": {}, "then": {}, "gain": None}
    for kind in {*_SITES} & {*kinds}:
        harmless = [*itertools.takewhile(lambda row: row["verdict"] == "harmless", rows[kind])]
        facts["down_to"][kind] = harmless[-1]["level"] if harmless else None
        # What costs points first or, if nothing does, what is unclear first.
        rest = sorted(rows[kind][len(harmless) :], key=lambda row: row["verdict"] != "costly")
        facts["then"][kind] = rest[0] if rest else None
    if MEMORY in kinds:
        facts["gain"] = task.loss(outputs[MEMORY, -6], outputs[NOISE, -6])
    return facts | {"decibels": _decibels(task), "texts": [*_fragile(task, outputs, edited)]}


def _row(task: Task, outputs: Mapping[Key, np.ndarray], kind: str, level: float) -> Row:
    """Returns a condition's score, loss, agreement with the clean output, and verdict."""
    clean, output = outputs["clean", 0.0], outputs[kind, level]
    row = {"kind": kind, "level": level, **task.score(output), **task.loss(clean, output)}
    own = clean.argmax(1) if task.metric == "accuracy" else clean[:, 0]
    kept = (round(value, 2) for value in with_interval(task.metric, output, own))
    row |= zip(("agreement", "agreement_low", "agreement_high"), kept, strict=True)
    lost = "costly" if row["loss_low"] > 0 else "unclear"
    return row | {"verdict": "harmless" if row["loss_high"] < MARGIN else lost}


def _decibels(task: Task) -> list[dict[str, Any]]:
    """Returns the tokens nearest to that of a frequent word, with more and more noise."""
    model = task.model
    texts = task.texts if model.labels else [first for first, _ in task.texts]
    counts = np.bincount(np.concatenate([np.ravel(ids) for ids in model.encode(texts).ids]))
    frequent = np.argsort(-counts, kind="stable")[:500]
    spelled = zip(frequent, words(model.vocabulary, frequent), strict=True)
    token = next((n for n, word in spelled if len(word) > 3 and word.isalpha()), frequent[0])
    table = np.asarray(model.embed_tokens(np.arange(model.vocab_size)[None])[0], np.float64)
    noise, rows = np.random.default_rng(model.seed).standard_normal(table.shape[1]), []
    noise *= (size := np.linalg.norm(table[token])) / np.linalg.norm(noise)
    for snr_db in (None, 6, 0, -6, -12):
        noisy = table[token] + (0 if snr_db is None else 10 ** (-snr_db / 20)) * noise
        distances = np.linalg.norm(table - noisy, axis=1) / size
        nearest = np.argsort(distances, kind="stable")[:3]
        named = zip(words(model.vocabulary, nearest), distances[nearest].tolist(), strict=True)
        rows.append({"snr_db": snr_db, "nearest": [*named]})
    return rows


def _fragile(
    task: Task, outputs: Mapping[Key, np.ndarray], edited: Mapping[Key, Sequence[Version]]
) -> Iterator[dict[str, Any]]:
    """Yields the texts that the mildest typos, then noise, break, or whose scores change most."""
    clean, classes, names = outputs["clean", 0.0], task.metric == "accuracy", task.model.labels
    best, rows, broken = clean.argmax(1), np.arange(len(clean)), {}
    plan = [(kind, rate) for rate in measure.RATES for kind in TYPOS]
    for key in [*plan, *((NOISE, level) for level in LEVELS[NOISE])] if classes else plan[:1]:
        breaks = (best == task.targets) & (outputs[key].argmax(1) != best) | (not classes)
        drops = np.abs(clean[rows, best] - outputs[key][rows, best])
        for row in np.argsort(-drops, kind="stable").tolist():
            if breaks[row] and len(broken) < MOST_TEXTS:
                broken.setdefault(row, key)
    for row, key in broken.items():
        both, tokens = (clean[row], outputs[key][row]), []
        if names:
            ids = np.asarray(task.model.encode([task.texts[row]]).ids[0])
            samples = jnp.asarray(task.model.embed_tokens(ids))
            toward = task.model.toward(ids, samples, int(best[row]))[0].tolist()
            tokens = [*zip(words(task.model.vocabulary, ids[0]), toward, strict=True)]
        yield {
            "row": row, "kind": key[0], "level": key[1], "tokens": tokens,
            "label": names[int(task.targets[row])] if classes else task.targets[row].item(),
            "parts": [*_parts(edited.get(key, edited["clean", 0.0])[row])],
            "values": [each.max().item() for each in both],
            "predicted": [names[int(each.argmax())] if classes else None for each in both],
        }  # fmt: skip


def _parts(version: Version) -> Iterator[tuple[str, str | None]]:
    """Yields a text in parts: unchanged ones, and words with what they became."""
    clean, changed = split_words(restore(version)), strings(version.text)
    for field, text in enumerate(strings(clean.text)):
        at = 0
        for old, new in zip(clean.words, version.words, strict=True):
            if new.changed and field in old.fields:
                yield text[at : old.start], None
                yield text[old.start : old.end], changed[field][new.start : new.end]
                at = old.end
        yield text[at:] + " / " * (field + 1 < len(changed)), None


def _draw(models: Sequence[dict[str, Any]], ylabel: str, kinds: list[str], xlabel: str) -> Any:
    """Draws scores with intervals; the clean scores and the baseline are horizontal lines."""
    from matplotlib.figure import Figure

    figure, percent = Figure(figsize=(5.2, 3.6), layout="constrained"), kinds[0] in TYPOS
    axes = figure.subplots()
    for model, color in zip(models, _COLORS, strict=False):
        axes.axhline(model["clean"]["score"], color=color, ls=":", lw=1)
        for kind, look in zip(kinds, _LOOKS, strict=True):
            if rows := model["rows"].get(kind):
                x, y, low, high = np.transpose(
                    [[row[name] for name in ("level", "score", "low", "high")] for row in rows]
                )
                x = 100 * x if percent else x
                label = f"{model['name']}: {kind}" if len(models) > 1 else kind
                axes.plot(x, y, look, color=color, label=label)
                axes.fill_between(x, low, high, color=color, alpha=0.15, lw=0)
                axes.set_xticks(x)
    if models[0]["majority"] is not None:
        axes.axhline(models[0]["majority"], color="gray", ls="--", lw=1, label="majority baseline")
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_inverted(not percent)
    legend = figure.legend(loc="outside upper left", ncols=2, fontsize=9, frameon=False)
    for each in legend.get_texts():
        each.set_parse_math(False)  # names may have dollar signs
    return figure
