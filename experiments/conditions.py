"""Conditions to test a trained model under: Gaussian noise, typos, attacks, evaluation sets.

Under each condition a cell predicts the logits of every seed on every row once. They are stored in
the cell's folder, one file per condition; scores are computed from them.
"""

from __future__ import annotations

import functools
import io
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from experiments import cells, tidy
from experiments.cells import Cell, buckets, digest_of
from experiments.rundir import identifier, write_whole
from hopfax import text
from hopfax.data import EVALUATION_SETS, Encoded, Example, evenly_spaced, read_evaluation_set
from hopfax.data.batching import Bucket, to_buckets
from hopfax.data.load import task_rows
from hopfax.data.tokenize import encode
from hopfax.text import Version, Victim
from hopfax.text.hotflip import Form
from hopfax.train import interrupt
from hopfax.train.evaluate import Noise, Predictions, Predictor, check_noise, collect, predict
from hopfax.train.metrics import scores
from hopfax.train.sharding import any_process, first
from hopfax.train.white_box import white_box

RANDOM = {"misspelling": text.misspell, "char_swap": text.swap_characters}
computes = ContextVar("computes", default=True)  # whether `predictions` does
_ROWS = 64  # batch size on texts, the same for all sets


class NotStored(Exception):
    """This process is not to compute predictions that are not stored."""


class CellPredictions(NamedTuple):
    """Predictions of all seeds of a cell on every row."""

    logits: np.ndarray  # (seeds, rows, outputs)
    labels: np.ndarray  # (rows,)
    # The others are (seeds,); the last two are empty where no words were changed.
    snr_db: np.ndarray  # realized signal-to-noise ratio, inf without noise
    num_steps: np.ndarray  # mean Hopfield updates per query
    words_changed: np.ndarray = np.array([])  # mean share of a text's words
    edits: np.ndarray = np.array([])  # JSON of the edits of the texts


class Condition(Protocol):
    """A condition to test a cell under; a frozen dataclass."""

    def key(self, cell: Cell) -> Any:
        """Everything besides the cell that its predictions depend on, as JSON."""

    def columns(self, cell: Cell) -> Any:
        """Its columns in results.csv, such as corruption and level."""

    def predict(self, cell: Cell) -> CellPredictions:
        """Predicts every row."""
        ...


def predictions(cell: Cell, condition: Condition) -> CellPredictions:
    """Returns the cell's predictions under a condition, from its folder if stored."""
    key = condition.key(cell)
    if cell.denoiser == "memory":
        key = {"condition": key, "memory": "one site, with token types"}
    elif cell.undenoised:
        key = {"condition": key, "denoiser": cell.denoiser}
    if cell.loud:
        key = {"condition": key, "loud": "log odds"}
    path = cell.folder / "predictions" / f"{type(condition).__name__.lower()}-{identifier(key)}.npz"
    content = first(lambda: path.read_bytes() if path.exists() else None)
    if content is not None:
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as stored:
                return CellPredictions(**{name: stored[name] for name in CellPredictions._fields})
        except Exception as error:  # damaged archives raise errors of many classes
            warnings.warn(f"{path} is damaged ({error}): computing it again", stacklevel=2)
    if any_process(interrupt.is_requested()):
        raise KeyboardInterrupt
    if not computes.get():
        raise NotStored(f"{path} is not stored")
    predicted = condition.predict(cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **predicted._asdict())
    write_whole(path, buffer.getvalue())
    return predicted


def rows(cell: Cell, condition: Condition, *, model: str) -> Iterator[dict[str, Any]]:
    """Rows of results.csv, one per seed and metric; the first has those of the data, too."""
    predicted, columns = predictions(cell, condition), condition.columns(cell)
    of_two = cell.data.spec.suite == "own" and predicted.logits.shape[-1] == 2
    metrics = ("accuracy",) if isinstance(condition, EvaluationSet) else cell.data.spec.metrics
    of_data = {}
    if not columns["level"]:
        of_data["constant"] = constant_score(metrics, predicted.labels, predicted.logits.shape[-1])
        if cell.undenoised:
            of_data["capacity_snr_db"] = cells.capacity(cell)
    changes = predicted.words_changed.tolist() or [None] * len(cell.spec.seeds)
    gains, interval = [None] * len(cell.spec.seeds), {}
    if cell.undenoised:
        without = predictions(cell.undenoised, condition)
        gains, low, high = with_interval(metrics, predicted, without)
        interval = {"low": round(low, 4), "high": round(high, 4)}
    numbers = predicted.snr_db.tolist(), predicted.num_steps.tolist(), changes, gains
    for seed, logits, snr_db, steps, changed, gained in zip(
        cell.spec.seeds, predicted.logits, *numbers, strict=True
    ):
        values = scores(metrics, logits, predicted.labels)
        f1 = scores(("f1",), logits, predicted.labels)["f1"] if of_two else None
        optional = {"f1": f1, "words_changed": changed, "gain": gained}
        values |= {name: value for name, value in optional.items() if value is not None}
        for metric, value in (values | of_data).items():
            yield {
                "task": cell.data.spec.name, "model": model, "denoiser": cell.denoiser,
                "seed": seed, "metric": metric, "score": round(value, 6),
                "num_examples": len(predicted.labels), "num_train": len(cell.data.train.labels),
                "snr_db": round(snr_db, 4) if np.isfinite(snr_db) else None,
                "steps_mean": round(steps, 3) if cell.iterates else None,
                **columns, **(interval if metric == "gain" else {}),
            }  # fmt: skip
        of_data = {}


def with_interval(
    metrics: tuple[str, ...], ours: CellPredictions, theirs: CellPredictions | None = None
) -> tuple[list[float], float, float]:
    """Each seed's score, or difference, and the mean's 95 % bootstrap interval over rows."""

    def scored(predicted: CellPredictions, rows: Any) -> np.ndarray:
        labels = ours.labels[rows]
        return np.array([scores(metrics, each[rows], labels)["score"] for each in predicted.logits])

    def of_seeds(rows: Any) -> np.ndarray:
        return scored(ours, rows) - (scored(theirs, rows) if theirs else 0)

    low, high = tidy.bootstrap(len(ours.labels), lambda rows: np.mean(of_seeds(rows)))
    return of_seeds(slice(None)).tolist(), low, high


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """Gaussian noise, see `settings.Noise`, on the embeddings of the reported rows."""

    site: str = ""
    protocol: str = ""
    level: float = 0.0  # 0 is clean
    draw: int = 0  # index of the noise draw

    @property
    def noise(self) -> Noise:
        """What `hopfax.train.evaluate.predict` adds."""
        return Noise(self.site, self.protocol, self.level, self.draw)  # pyright: ignore[reportArgumentType]

    def key(self, cell: Cell) -> Any:
        """See `Condition`."""
        return {**asdict(self), "rows": digest_of(cell.data.test)}

    def columns(self, cell: Cell) -> Mapping[str, Any]:
        """See `Condition`."""
        return {"corruption": "gaussian" if self.level else "none", **asdict(self)}

    def predict(self, cell: Cell) -> CellPredictions:
        """See `Condition`."""
        predictor = self.predictor(cell)
        return predict_split(cell, cell.data.test, predictor, noise=self.drawn(cell))

    def predictor(self, cell: Cell) -> Predictor:
        """Returns the predictor, with any memory at the site of the noise."""
        return (self.site == "embedding" and cell.at_embedding) or cell.predictor

    def drawn(self, cell: Cell) -> Noise | None:
        """Returns the noise, None without; seeds draw independently, models share the draws."""
        return self.noise._replace(seeds=cell.spec.seeds) if self.level else None

    def collect(self, cell: Cell, fn: Callable[..., Any]) -> list[Any]:
        """Applies a function to the reported texts, see `hopfax.train.evaluate.collect`."""
        model, split = self.predictor(cell).model, split_of(cell, cell.data.test)
        return collect(model, cell.params, split, fn, noise=self.drawn(cell))


@dataclass(frozen=True)
class Validation:
    """The rows that training selects its best epoch on."""

    def key(self, cell: Cell) -> Any:
        """See `Condition`."""
        return {"rows": digest_of(cell.data.validation)}

    def columns(self, cell: Cell) -> Mapping[str, Any]:
        """See `Condition`."""
        return {"corruption": "none", "level": 0.0}

    def predict(self, cell: Cell) -> CellPredictions:
        """See `Condition`."""
        return predict_split(cell, cell.data.validation, cell.predictor)


@dataclass(frozen=True, kw_only=True)
class Typos:
    """Test texts with a word or more, misspelled at random or by an attack on each seed's model."""

    corruption: str = "none"  # or misspelling, char_swap, textbugger or hotflip
    rate: float = 0.0  # share of the words, in [0, 1]
    num_texts: int | None = None  # rows drawn at random from those with a word; None for all
    beam: int = 2  # width of HotFlip's beam
    form: Form = "characters"  # what HotFlip edits, or "tokens"
    data_dir: str | None = None  # folder of the raw sets; changes no result

    def key(self, cell: Cell) -> Any:
        """See `Condition`."""
        chosen = with_words(cell.data.spec.name, self.data_dir, self.num_texts)
        fields = asdict(self)
        if self.corruption != "hotflip":
            del fields["beam"], fields["form"]
        return {**fields, "data_dir": None, "rows": chosen}

    def columns(self, cell: Cell) -> Mapping[str, Any]:
        """See `Condition`."""
        return {"corruption": self.corruption, "level": self.rate}

    def predict(self, cell: Cell) -> CellPredictions:
        """See `Condition`."""
        chosen = with_words(cell.data.spec.name, self.data_dir, self.num_texts)
        seeds, attacks = range(len(cell.spec.seeds)), self.corruption not in (*RANDOM, "none")
        parts, changed, edits = [], [], []
        for tested in [[seed] for seed in seeds] if attacks else [seeds]:
            made = self.corrupted(cell, chosen, tested[0])
            rows = [row._replace(texts=each.text) for row, each in zip(chosen, made, strict=True)]
            parts.append(predict_rows(cell, rows, tested))
            changed += [np.mean([each.rate for each in made])] * len(tested)
            edits += [json.dumps([each.edits for each in made], ensure_ascii=False)] * len(tested)
        names = "logits", "snr_db", "num_steps"
        fields = {n: np.concatenate([getattr(each, n) for each in parts]) for n in names}
        merged = CellPredictions(*parts[0]._replace(**fields))
        return merged._replace(words_changed=np.array(changed), edits=np.array(edits))

    def victim(self, cell: Cell, seed: int) -> Victim:
        """Returns what an attack queries: the model of a seed, given by its index."""
        # Memory does not change clean token vectors, but hides the gradient at them.
        cell = cell.undenoised or cell
        params, data = jax.tree.map(lambda leaf: leaf[seed], cell.params), cell.data
        options = {"regression": data.spec.regression, "max_length": cell.spec.sizes["max_length"]}
        return white_box(cell.model, params, data.vocabulary, **options)

    def corrupted(self, cell: Cell, rows: Sequence[Example], seed: int) -> Sequence[Version]:
        """Corrupts rows, under an attack against the model of a seed, given by its index."""
        if self.corruption == "none" or not self.rate:
            return [text.split_words(row.texts) for row in rows]
        if corrupt := RANDOM.get(self.corruption):
            return [corrupt(row.texts, rate=self.rate, seed=(0, row.index)) for row in rows]
        attack = text.textbugger
        if self.corruption == "hotflip":
            attack = functools.partial(text.hotflip, form=self.form, beam=self.beam)
        texts, labels, indices = (
            [getattr(row, name) for row in rows] for name in ("texts", "label", "index")
        )
        attacked = attack(self.victim(cell, seed), texts, labels, rate=self.rate, rows=indices)
        return [each.version for each in attacked]


@dataclass(frozen=True, kw_only=True)
class EvaluationSet:
    """An adversarial evaluation set for a task, or the task's own test rows."""

    name: str = ""  # a key of `hopfax.data.EVALUATION_SETS`, or "" for the task's own rows
    num_rows: int | None = None  # evenly spaced; None for all
    data_dir: str | None = None  # folder of the raw sets; changes no result

    def key(self, cell: Cell) -> Any:
        """See `Condition`."""
        return {"name": self.name, "rows": self.rows(cell)}

    def columns(self, cell: Cell) -> Mapping[str, Any]:
        """See `Condition`."""
        task = cell.data.spec.name
        trial = f"{self.name}:{task}" if self.name else task
        return {"task": trial, "corruption": "none", "level": 0.0}

    def rows(self, cell: Cell) -> list[Example]:
        """Returns its rows, with the labels of the cell's task."""
        spec = cell.data.spec
        if self.name:
            rows = read_evaluation_set(self.name, str(self.data_dir), trained=spec)
        else:
            rows = task_rows(spec.name, "test", data_dir=self.data_dir)
        return evenly_spaced(rows, self.num_rows)

    def predict(self, cell: Cell) -> CellPredictions:
        """See `Condition`."""
        return CellPredictions(*predict_rows(cell, self.rows(cell), range(len(cell.spec.seeds))))


def gaussian_grid(
    *, levels: Sequence[float], sites: Sequence[str], protocols: Sequence[str], noise_draws: int
) -> list[Condition]:
    """Returns clean inputs and every combination of level, site, protocol and draw."""
    noisy = [
        Gaussian(site=site, protocol=protocol, level=float(level), draw=draw)
        for protocol, site, level, draw in product(protocols, sites, levels, range(noise_draws))
    ]
    for each in noisy:
        check_noise(each.noise)
    return [Gaussian(), *noisy]


def evaluation_sets(
    task: str, *, names: Sequence[str] | None, data_dir: str | None, num_rows: int | None
) -> list[Condition]:
    """Returns the task's own reported rows, then the named evaluation sets, by default all present.

    Raises:
        ValueError: A set does not fit the task, or none is left.
        FileNotFoundError: A named set is not in `data_dir`.
    """
    if data_dir is None:
        raise FileNotFoundError("evaluation sets are read from files: set --data-dir")
    of = functools.partial(EvaluationSet, num_rows=num_rows, data_dir=data_dir)
    fitting = [of()]
    for name in names or [name for name, each in EVALUATION_SETS.items() if task in each.tasks]:
        try:
            read_evaluation_set(name, data_dir, trained=task)
            fitting.append(of(name=name))
        except FileNotFoundError:
            if names:
                raise
    if len(fitting) == 1:
        tasks = sorted({n for each in EVALUATION_SETS.values() for n in each.tasks})
        raise ValueError(
            f"no evaluation set for {task} in {data_dir}: sets are for {', '.join(tasks)}, in "
            "advglue/dev.json, paws/labeled_final or x-final"
        )
    return [*fitting]


def predict_split(
    cell: Cell, rows: Encoded, predictor: Predictor, **options: Any
) -> CellPredictions:
    """Predicts tokenized rows; for the options see `predict`."""
    return CellPredictions(*predict(predictor, cell.params, split_of(cell, rows), **options))


def split_of(cell: Cell, rows: Encoded) -> list[Bucket]:
    """Returns tokenized rows at the padded lengths of training."""
    most, one_length = cell.spec.sizes["max_length"], cell.spec.stores_padding
    return buckets(cell.data, most, rows, one_length=one_length)[0]


def constant_score(metrics: Sequence[str], labels: np.ndarray, outputs: int) -> float:
    """Returns the best score of a constant prediction: the majority baseline."""
    if outputs == 1:  # a correlation with a constant is 0
        return scores(tuple(metrics), np.zeros((len(labels), 1)), labels)["score"]
    constants = (np.tile(np.eye(outputs)[each], (len(labels), 1)) for each in range(outputs))
    return max(scores(tuple(metrics), each, labels)["score"] for each in constants)


def predict_rows(cell: Cell, rows: Sequence[Example], seeds: Sequence[int]) -> Predictions:
    """Predicts rows of text with some seeds, at few padded lengths to limit compilation."""
    numbered = [row._replace(index=number) for number, row in enumerate(rows)]
    most = cell.spec.sizes["max_length"]
    encoded = encode(numbered, cell.data.vocabulary, max_length=most)
    # Each padded length is a program of its own: few rows do not repay its compilation.
    shorter = (16, 32, 64) if len(rows) > _ROWS and not cell.spec.stores_padding else ()
    edges = (*(edge for edge in shorter if edge < most), most)
    sets = to_buckets(encoded, boundaries=edges, pad_id=cell.data.vocabulary.pad_id)
    places = np.asarray(list(seeds))
    params = jax.tree.map(lambda leaf: leaf[places], cell.params)
    return predict(cell.predictor, params, sets, batch_size=_ROWS)


@functools.lru_cache(maxsize=4)
def with_words(task: str, data_dir: str | None, count: int | None) -> list[Example]:
    """Reported rows drawn at random among those that have a word to change, in file order."""
    rows = task_rows(task, "test", data_dir=data_dir)
    rows = [row for row in rows if text.split_words(row.texts).words]
    picked = np.random.default_rng(0).permutation(len(rows))[:count]
    return [rows[number] for number in sorted(picked)]
