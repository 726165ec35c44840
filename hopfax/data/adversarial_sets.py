"""Adversarial evaluation sets for models trained on GLUE: AdvGLUE, PAWS and PAWS-X.

Do not train on them: PAWS-X contains development rows of PAWS, and AdvGLUE those of GLUE.
"""

import json
import os
from dataclasses import dataclass
from typing import Any

from hopfax.data.raw import first_existing, tab_rows, usable_rows
from hopfax.data.tasks import Example, TaskSpec, named, stripped, task

_LANGUAGES = ("en", "de", "es", "fr", "ja", "ko", "zh")


@dataclass(frozen=True, kw_only=True)
class EvaluationSet:
    """Specification of one evaluation set.

    `columns` and `placeholder` are those of `TaskSpec`.

    Attributes:
        name: Name for `read_evaluation_set`.
        title: Name in Table 11 of the Robertha paper.
        task: Training task of the models that the paper tests on this set.
        others: Other training tasks whose labels have the same meaning.
        folders: Folders of `data_dir` to search for the file.
        file: File of the reported split.
        section: Key of the rows in a JSON file, or empty.
        labels: Labels of `task` in the order of the label numbers in the files.
        source: Address to download it from.
    """

    name: str
    title: str
    task: str
    others: tuple[str, ...] = ()
    folders: tuple[str, ...]
    file: str
    section: str = ""
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    placeholder: str | None = None
    source: str


def evaluation_set(name: str) -> EvaluationSet:
    """Returns the specification of an evaluation set.

    Args:
        name: A key of `EVALUATION_SETS`.

    Raises:
        ValueError: If there is no such set; the message lists the nearest names and all names.

    Example:
        >>> from hopfax.data import evaluation_set
        >>> evaluation_set("paws").others
        ('mrpc', 'paraphrase')
    """
    return named("evaluation set", name, EVALUATION_SETS)


def read_evaluation_set(
    name: str, data_dir: str | os.PathLike, *, trained: str | TaskSpec | None = None
) -> list[Example]:
    """Returns the rows of an evaluation set, labeled with class numbers of a training task.

    Args:
        name: A key of `EVALUATION_SETS`.
        data_dir: Folder with the set's files, for instance ``advglue/dev.json``,
            ``paws/labeled_final/test.tsv`` or ``x-final/de/test_2k.tsv``.
        trained: The model's training task; default: the set's own task.

    Raises:
        ValueError: If the set is unknown, its labels are not those of the trained task,
            or a row is malformed.
        FileNotFoundError: If the file is missing.

    Warns:
        UserWarning: If rows marked `NS` were dropped (PAWS-X has them for untranslated sentences,
            see github.com/google-research-datasets/paws/issues/15).

    Example:
        >>> import json, pathlib, tempfile
        >>> from hopfax.data import read_evaluation_set
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> rows = {"sst2": [{"sentence": "a fi1m", "label": 1}]}
        >>> _ = (folder / "dev.json").write_text(json.dumps(rows))
        >>> read_evaluation_set("adv-sst2", folder)
        [Example(texts=(('a fi1m',),), label=1, index=0)]
    """
    spec = evaluation_set(name)
    trained = task(spec.task if trained is None else trained)
    check_trained(spec, trained)
    candidates = [f"{folder}/{spec.file}" for folder in spec.folders]
    path = first_existing(f"file of {spec.title}", data_dir, candidates, spec.source)
    raw = TaskSpec(
        name=spec.name,
        title=spec.title,
        suite="glue",
        columns=spec.columns,
        labels=tuple(map(str, range(len(spec.labels)))),
        placeholder=spec.placeholder,
        # Some untranslated rows are empty instead of marked.
        damaged_share=0.01 if spec.placeholder else 0.0,
        join=stripped,
    )
    if spec.section:
        try:
            section = list(json.loads(path.read_bytes())[spec.section])
        except (KeyError, RecursionError, TypeError, ValueError) as error:
            message = f"{path}: not a JSON object with {spec.section!r} ({error})"
            raise ValueError(message) from None
        rows = usable_rows(raw, path, enumerate(section, start=1), unit=f"{spec.section} row")
    else:
        rows = usable_rows(raw, path, tab_rows(raw, path))
    labels = spec.labels if set(trained.labels) == set(spec.labels) else trained.labels
    classes = [trained.labels.index(label) for label in labels]
    return [row._replace(label=classes[int(row.label)]) for _, row in rows]


def check_trained(spec: EvaluationSet, trained: TaskSpec) -> None:
    """Raises a ValueError unless a set can test models of the task `trained`."""
    allowed = (spec.task, *spec.others)
    # GLUE tasks list labels of other names in the same order.
    compared = set if trained.suite == "own" else len
    if trained.name not in allowed or compared(trained.labels) != compared(spec.labels):
        raise ValueError(
            f"{spec.title} tests models of {' or '.join(allowed)} with labels "
            f"{', '.join(spec.labels)}; the model was trained on {trained.name} with "
            f"{', '.join(trained.labels) or 'scores'}"
        )


def _advglue(section: str, columns: tuple[str, ...], title: str) -> EvaluationSet:
    name = section.removesuffix("-mm")
    return EvaluationSet(
        name=f"adv-{section}",
        title=title,
        task=name,
        folders=(".", "advglue", "AdvGLUE", "adversarial-glue"),
        file="dev.json",
        section=section,
        columns=columns,
        labels=task(name).labels,
        source="github.com/AI-secure/adversarial-glue",
    )


def _paws(name: str, title: str, file: str, **options: Any) -> EvaluationSet:
    return EvaluationSet(
        name=name,
        title=title,
        task="qqp",
        others=("mrpc", "paraphrase"),
        folders=(".", "paws", "PAWS", "pawsx", "paws-x", "PAWS-X"),
        file=file,
        columns=_PAIR,
        labels=("0", "1"),
        source="github.com/google-research-datasets/paws",
        **options,
    )


_PAIR = ("sentence1", "sentence2")
_CLAIM = ("premise", "hypothesis")

EVALUATION_SETS: dict[str, EvaluationSet] = {
    spec.name: spec
    for spec in (
        _advglue("sst2", ("sentence",), "AdvSST-2"),
        _advglue("qqp", ("question1", "question2"), "AdvQQP"),
        _advglue("mnli", _CLAIM, "AdvMNLI"),
        _advglue("mnli-mm", _CLAIM, "AdvMNLI-mm"),
        _advglue("qnli", ("question", "sentence"), "AdvQNLI"),
        _advglue("rte", _PAIR, "AdvRTE"),
        _paws("paws", "PAWS", "labeled_final/test.tsv"),
        *(
            _paws(f"paws-x-{x}", f"PAWS-X-{x}", f"x-final/{x}/test_2k.tsv", placeholder="NS")
            for x in _LANGUAGES
        ),
    )
}
