"""Specifications of the tasks: files, columns, labels, metrics, and how rows become texts.

Nine GLUE tasks (Wang et al. 2019a), four SuperGLUE tasks (Wang et al. 2019b) and the three
synthetic tasks of `hopfax.data.synthetic`. To add a task, add an entry to ``TASKS``.
"""

import difflib
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self, TypeVar

import numpy as np

Metric = Literal["accuracy", "f1", "mcc", "pearson", "spearman"]
Suite = Literal["glue", "superglue", "advglue", "paws", "synthetic", "own"]
Names = tuple[str, ...]
Texts = tuple[tuple[str, ...], ...]
V = TypeVar("V")
Join = Callable[[Mapping[str, str]], str | Sequence[str] | Sequence[Sequence[str]]]


class _Row(NamedTuple):
    texts: Texts
    label: int | float
    index: int


class Example(_Row):
    """One row of a task as text.

    Attributes:
        texts: A string, a pair of strings, or choices: a tuple of pairs or of tuples of one
            string; otherwise a TypeError. The attribute always has choices (COPA has two).
        label: Class number, number of the correct choice, or regression score.
        index: Row number in its file or stream, from 0.

    Example:
        >>> from hopfax.data import Example
        >>> Example("hello world", 0, 0)
        Example(texts=(('hello world',),), label=0, index=0)
    """

    __slots__ = ()

    def __new__(
        cls, texts: str | Sequence[str] | Sequence[Sequence[str]], label: int | float, index: int
    ) -> Self:
        """Turns `texts` into choices."""
        return super().__new__(cls, _choices(texts), label, index)

    @classmethod
    def _make(cls, iterable: Iterable[Any]) -> Self:  # also behind _replace
        return cls(*iterable)


def _choices(texts: Any) -> Texts:
    choices = (texts,) if isinstance(texts, str) else texts
    choices = (choices,) if _is_text(choices) else choices
    if not (isinstance(choices, tuple | list) and choices and all(map(_is_text, choices))):
        raise TypeError(
            "texts must be a string, a pair of strings, or a tuple of choices with one or two "
            f"strings each, got {reprlib.repr(texts)}"
        )
    return tuple(map(tuple, choices))


def _is_text(value: Any) -> bool:
    is_short = isinstance(value, tuple | list) and len(value) in (1, 2)
    return is_short and all(isinstance(part, str) for part in value)


def _all_columns(row: Mapping[str, str]) -> Texts:
    return (tuple(row.values()),)


def _copa(row: Mapping[str, str]) -> Texts:
    questions = {"cause": "What was the cause?", "effect": "What happened as a result?"}
    if row["question"] not in questions:
        raise ValueError(f"question must be 'cause' or 'effect', got {row['question']!r}")
    first = f"{row['premise']} {questions[row['question']]}"
    return ((first, row["choice1"]), (first, row["choice2"]))


def _wic(row: Mapping[str, str]) -> Texts:
    """The word precedes the first sentence: ``run : Run rogue.`` / ``She ran 10 miles.``."""
    return ((f"{row['word']} : {row['sentence1']}", row["sentence2"]),)


def _wsc(row: Mapping[str, str]) -> Texts:
    """The text, then a claim: ``He refers to Mark``."""
    return ((row["text"], f"{row['target.span2_text']} refers to {row['target.span1_text']}"),)


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """Specification of one task.

    Attributes:
        name: Name on the command line and in `results.csv`.
        title: Name in the papers' tables.
        suite: Collection of the task; "own" for tasks of `hopfax.data.from_rows`.
        files: File of each raw split, ``"train"`` and ``"validation"`` (the official dev file), in
            the folder of the suite.
        section: Key of the rows in a JSON file; empty for other files.
        train_rows: Rows of the official train file; None for synthetic tasks.
        columns: Columns of the texts, or JSON keys (``a.b`` is nested).
        header: Columns of a file without a header line; empty if the file has one.
        label_column: Column of the label.
        labels: Labels as the files write them (JSON booleans in lower case), in class order;
            class 1 is the positive class of F1 and MCC. Empty for regression.
        unlabeled: Marks a missing gold label; such rows are dropped with a warning.
        placeholder: Marks a missing text; such rows are dropped with a warning.
        damaged_share: Largest fraction of rows without a column or a text that are dropped with a
            warning; more are an error.
        label_range: Lowest and highest score of a regression task.
        metrics: Metrics whose mean is the score.
        num_choices: Number of choices per row.
        join: Turns the text columns of a row, without surrounding whitespace, into the texts of an
            `Example`: a string, a pair, or choices. Default: all columns, one or two.
    """

    name: str
    title: str
    suite: Suite
    files: Mapping[str, str] = field(default_factory=dict)
    section: str = ""
    train_rows: int | None = None
    columns: Names
    header: Names = ()
    label_column: str = "label"
    labels: Names
    unlabeled: str | None = None
    placeholder: str | None = None
    damaged_share: float = 0.0
    label_range: tuple[float, float] | None = None
    metrics: tuple[Metric, ...] = ("accuracy",)
    num_choices: int = 1
    join: Join = _all_columns

    @property
    def regression(self) -> bool:
        """Whether labels are scores rather than classes."""
        return self.label_range is not None

    @property
    def num_outputs(self) -> int:
        """Outputs of the model's head: classes, or 1 for regression and multiple choice."""
        return 1 if self.regression or self.num_choices > 1 else len(self.labels)

    def example(self, row: Mapping[str, str], label: int | float, index: int) -> Example:
        """Returns a row with these text columns."""
        return Example(self.join({name: row[name].strip() for name in self.columns}), label, index)


def task(name: str | TaskSpec) -> TaskSpec:
    """Returns the specification of a task.

    Args:
        name: A key of `TASKS` (a ValueError lists the nearest ones), or a specification, which is
            returned unchanged.

    Example:
        >>> from hopfax.data import task
        >>> task("sst2").title, task("sst2").labels
        ('SST-2', ('0', '1'))
    """
    return name if isinstance(name, TaskSpec) else look_up("task", name, TASKS)


def look_up(kind: str, name: Any, values: Mapping[str, V]) -> V:
    """Returns `values[name]`, or raises a ValueError that suggests the nearest names."""
    if isinstance(name, str) and name in values:
        return values[name]
    near = difflib.get_close_matches(str(name).lower(), values, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ValueError(f"unknown {kind} {name!r}: {hint}allowed: {', '.join(values)}")


def check_integer(name: str, value: Any, low: int, high: int | None = None) -> None:
    """Raises a ValueError unless `value` is an integer from `low` to `high`."""
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_integer or value < low or (high is not None and value > high):
        allowed = f">= {low:,}" if high is None else f"from {low:,} to {high:,}"
        raise ValueError(f"{name} must be an integer {allowed}, got {reprlib.repr(value)}")


_FILES = {
    "glue": {"train": "train.tsv", "validation": "dev.tsv"},
    "superglue": {"train": "train.jsonl", "validation": "val.jsonl"},
}
_ENTAILMENT = ("entailment", "not_entailment")
_BINARY, _BOOLEAN = ("0", "1"), ("false", "true")
_PAIR = ("sentence1", "sentence2")
_F1 = ("f1", "accuracy")


def _spec(
    suite: Suite, title: str, train_rows: int | None, columns: Names, labels: Names, **options: Any
) -> TaskSpec:
    name, files = title.lower().replace("-", ""), _FILES.get(suite, {})
    options.setdefault("files", {split: f"{title}/{file}" for split, file in files.items()})
    options |= {"train_rows": train_rows, "columns": columns, "labels": labels}
    return TaskSpec(name=name, title=title, suite=suite, **options)


_COLA = {"header": ("source", "label", "star", "sentence"), "metrics": ("mcc",)}
_MRPC = {"label_column": "Quality", "metrics": _F1}
# Some official questions are empty or continue on a second line.
_QQP = {"label_column": "is_duplicate", "metrics": _F1, "damaged_share": 1e-3}
_RANKS = ("pearson", "spearman")
_STSB = {"label_column": "score", "label_range": (0.0, 5.0), "metrics": _RANKS}
_MNLI = {
    "files": {"train": "MNLI/train.tsv", "validation": "MNLI/dev_matched.tsv"},
    "label_column": "gold_label",
    "unlabeled": "-",
}
_NLI = ("entailment", "neutral", "contradiction")
_COPA_COLUMNS = ("premise", "question", "choice1", "choice2")
_WSC_COLUMNS = ("text", "target.span1_text", "target.span2_text")

TASKS: dict[str, TaskSpec] = {
    spec.name: spec
    for spec in (
        _spec("glue", "CoLA", 8_551, ("sentence",), _BINARY, **_COLA),
        _spec("glue", "SST-2", 67_349, ("sentence",), _BINARY),
        _spec("glue", "MRPC", 3_668, ("#1 String", "#2 String"), _BINARY, **_MRPC),
        _spec("glue", "QQP", 363_849, ("question1", "question2"), _BINARY, **_QQP),
        _spec("glue", "STS-B", 5_749, _PAIR, (), **_STSB),
        _spec("glue", "MNLI", 392_702, _PAIR, _NLI, **_MNLI),
        _spec("glue", "QNLI", 104_743, ("question", "sentence"), _ENTAILMENT),
        _spec("glue", "RTE", 2_490, _PAIR, _ENTAILMENT),
        _spec("glue", "WNLI", 635, _PAIR, _BINARY),
        _spec("superglue", "BoolQ", 9_427, ("question", "passage"), _BOOLEAN),
        _spec("superglue", "COPA", 400, _COPA_COLUMNS, _BINARY, num_choices=2, join=_copa),
        _spec("superglue", "WiC", 5_428, ("word", *_PAIR), _BOOLEAN, join=_wic),
        _spec("superglue", "WSC", 554, _WSC_COLUMNS, _BOOLEAN, join=_wsc),
        _spec("synthetic", "Sentiment", None, ("text",), ("negative", "positive")),
        _spec("synthetic", "Entailment", None, ("premise", "hypothesis"), _ENTAILMENT),
        _spec("synthetic", "Paraphrase", None, ("first", "second"), ("different", "same")),
    )
}
