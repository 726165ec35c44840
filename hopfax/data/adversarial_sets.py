"""Adversarial evaluation sets for models trained on GLUE: AdvGLUE, PAWS and PAWS-X.

Do not train on them: PAWS-X contains development rows of PAWS, and AdvGLUE those of GLUE.
"""

import os
from dataclasses import dataclass
from typing import Any

from hopfax.data.raw import read_rows
from hopfax.data.tasks import Example, TaskSpec, look_up, task


@dataclass(frozen=True, kw_only=True)
class EvaluationSet(TaskSpec):
    """Specification of one evaluation set; its labels are the numbers in its file.

    Attributes:
        tasks: Training tasks whose labels have the same meaning, in the order of the numbers; the
            first is the one that the Robertha paper tests on this set (Table 11).
    """

    tasks: tuple[str, ...]


def read_evaluation_set(
    name: str, data_dir: str | os.PathLike, *, trained: str | TaskSpec | None = None
) -> list[Example]:
    """Returns the rows of an evaluation set, labeled with class numbers of a training task.

    Rows of PAWS-X without a translation, marked `NS`, are dropped with a warning (see
    github.com/google-research-datasets/paws/issues/15).

    Args:
        name: A key of `EVALUATION_SETS`.
        data_dir: Folder with the set's files, for instance ``advglue/dev.json``,
            ``paws/labeled_final/test.tsv`` or ``x-final/de/test_2k.tsv``.
        trained: The model's training task; default: the set's own task.

    Raises:
        ValueError: If the set is unknown or not one for the trained task, or a row is malformed.
        FileNotFoundError: If the file is missing.

    Example:
        >>> import json, pathlib, tempfile
        >>> from hopfax.data import read_evaluation_set
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> rows = {"sst2": [{"sentence": "a fi1m", "label": 1}]}
        >>> _ = (folder / "dev.json").write_text(json.dumps(rows))
        >>> read_evaluation_set("adv-sst2", folder)
        [Example(texts=(('a fi1m',),), label=1, index=0)]
    """
    spec = look_up("evaluation set", name, EVALUATION_SETS)
    labels, trained = task(spec.tasks[0]).labels, task(trained or spec.tasks[0])
    same = set(trained.labels) == set(labels)
    # GLUE tasks list labels of other names in the same order.
    fits = same if trained.suite == "own" else len(trained.labels) == len(labels)
    if trained.name not in spec.tasks or not fits:
        expected = f"{' or '.join(spec.tasks)} with labels {', '.join(labels)}"
        got = f"{trained.name} with {', '.join(trained.labels) or 'scores'}"
        raise ValueError(f"{spec.title} tests models of {expected}; the model was trained on {got}")
    classes = list(map(trained.labels.index, labels if same else trained.labels))
    rows = read_rows(spec, data_dir, "test")
    return [row._replace(label=classes[int(row.label)]) for _, row in rows]


def _advglue(section: str) -> EvaluationSet:
    trained = task(name := section.removesuffix("-mm"))
    return EvaluationSet(
        name=f"adv-{section}",
        title=f"Adv{section.replace(name, trained.title)}",
        suite="advglue",
        files={"test": "dev.json"},
        section=section,
        columns=("premise", "hypothesis") if name == "mnli" else trained.columns,
        labels=tuple(map(str, range(len(trained.labels)))),
        tasks=(name,),
    )


def _paws(name: str, title: str, file: str, **options: Any) -> EvaluationSet:
    return EvaluationSet(
        name=name,
        title=title,
        suite="paws",
        files={"test": file},
        columns=("sentence1", "sentence2"),
        labels=("0", "1"),
        tasks=("qqp", "mrpc", "paraphrase"),
        **options,
    )


# Some untranslated rows are empty instead of marked.
_PAWS_X: dict[str, Any] = {"placeholder": "NS", "damaged_share": 0.01}
EVALUATION_SETS: dict[str, EvaluationSet] = {
    spec.name: spec
    for spec in (
        *map(_advglue, ("sst2", "qqp", "mnli", "mnli-mm", "qnli", "rte")),
        _paws("paws", "PAWS", "labeled_final/test.tsv"),
        *(
            _paws(f"paws-x-{x}", f"PAWS-X-{x}", f"x-final/{x}/test_2k.tsv", **_PAWS_X)
            for x in ("en", "de", "es", "fr", "ja", "ko", "zh")
        ),
    )
}
