"""TensorFlow Datasets builders for the thirteen tasks, without TensorFlow.

Rows of raw files or of the official archives are stored as array_record files:

    build("sst2", tfds_dir="sets", raw_dir="glue_data")
    tfds.data_source("hopfax_tasks/sst2", split="validation", data_dir="sets")

`hopfax.data` does not import this module, which imports tensorflow_datasets.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hopfax.data.downloads import fetch_raw
from hopfax.data.raw import raw_file, read_rows
from hopfax.data.tasks import TASKS, Example, TaskSpec, task
from hopfax.hub import optional_import

if TYPE_CHECKING:
    import tensorflow_datasets as tfds
else:
    tfds = optional_import("tensorflow_datasets")

_RAW_TASKS = tuple(name for name, spec in TASKS.items() if spec.suite != "synthetic")


class HopfaxTasks(tfds.core.GeneratorBasedBuilder):
    """Train and validation rows of a GLUE or SuperGLUE task, with the columns of its raw files.

    Features are the text columns (lower case, other characters as ``_``), `label` (never -1: rows
    with hidden labels are omitted) and `index`, the row number in the file.
    """

    name = "hopfax_tasks"
    VERSION = tfds.core.Version("2.0.0")
    BUILDER_CONFIGS = tuple(tfds.core.BuilderConfig(name=name) for name in _RAW_TASKS)

    # Otherwise TFDS searches for metadata with importlib_resources, which it does not install.
    code_path = None  # pyright: ignore[reportAssignmentType]

    def __init__(self, *, raw_dir: str | os.PathLike | None = None, **kwargs: Any):
        self._raw_dir = raw_dir
        super().__init__(**kwargs)

    @property
    def spec(self) -> TaskSpec:
        """The task of this config."""
        assert self.builder_config is not None
        return task(self.builder_config.name)

    def _info(self) -> tfds.core.DatasetInfo:
        features: dict[str, Any] = {
            _feature(name): tfds.features.Text() for name in self.spec.columns
        }
        features["label"] = tfds.features.ClassLabel(names=list(self.spec.labels))
        if self.spec.regression:
            features["label"] = tfds.features.Scalar(np.float32)
        features["index"] = tfds.features.Scalar(np.int32)
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(features),
            disable_shuffling=True,  # keep the order of the raw file
            metadata=tfds.core.MetadataDict(sha256=_checksums(self._raw_files())),
        )

    def _raw_files(self) -> dict[str, Path]:
        """The raw files that exist, by split."""
        files = {}
        for split in self.spec.files:
            with contextlib.suppress(FileNotFoundError):
                if self._raw_dir is not None:
                    files[split] = raw_file(self.spec, self._raw_dir, split)
        return files

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict]]]:
        if self._raw_dir is None:
            raise ValueError("raw_dir is required; hopfax.data.builders.build downloads one")
        # Without any file, the reader raises an error that says what is missing.
        return {
            split: self._generate_examples(split) for split in self._raw_files() or self.spec.files
        }

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        assert self._raw_dir is not None
        for columns, (_, label, index) in read_rows(self.spec, self._raw_dir, split):
            texts = {_feature(name): text for name, text in columns.items()}
            yield index, {**texts, "label": label, "index": index}


def _checksums(files: dict[str, Path]) -> dict[str, str]:
    return {split: hashlib.sha256(path.read_bytes()).hexdigest() for split, path in files.items()}


def _feature(column: str) -> str:
    """The feature name of a raw column: ``#1 String`` becomes ``1_string``."""
    return re.sub(r"\W+", "_", column).strip("_").lower()


def build(
    name: str, *, tfds_dir: str | os.PathLike, raw_dir: str | os.PathLike | None = None
) -> HopfaxTasks:
    """Writes a task as array_record files, unless they exist.

    Args:
        name: A GLUE or SuperGLUE task.
        tfds_dir: Folder of built sets.
        raw_dir: Folder of raw files, see `hopfax.data.read_split`; splits without a file are
            omitted. None downloads the official archives to ``tfds_dir/downloads`` unless they
            are already there.

    Returns:
        The builder; ``.as_data_source("validation")`` reads rows.

    Raises:
        ValueError: If the task is unknown or synthetic, its files are malformed, or the existing
            set was built from other files.
        OSError: If files are missing or a download fails.
    """
    spec = task(name)
    if spec.suite == "synthetic":
        raise ValueError(f"{name} is synthetic and has no files; allowed: {', '.join(_RAW_TASKS)}")
    built = _builder(name, tfds_dir)
    if raw_dir is None:
        if built.is_prepared():
            return built
        raw_dir = fetch_raw(spec, Path(os.path.expanduser(tfds_dir)) / "downloads")
    builder = _builder(name, tfds_dir, raw_dir=raw_dir)
    if not built.is_prepared():
        builder.download_and_prepare()
        return builder
    if (built.info.metadata or {}).get("sha256") != _checksums(builder._raw_files()):
        raise ValueError(
            f"{built.data_dir} was built from other files than those in {raw_dir}: delete it to "
            "build it again, or pass another tfds_dir"
        )
    return builder


def _builder(name: str, tfds_dir: str | os.PathLike, **kwargs: Any) -> HopfaxTasks:
    folder = os.path.expanduser(tfds_dir)
    return HopfaxTasks(config=name, data_dir=folder, file_format="array_record", **kwargs)


def read_built(spec: TaskSpec, tfds_dir: str | os.PathLike, split: str) -> list[Example]:
    """Reads a split that `build` wrote: the rows of `read_split`, with scores in float32."""
    builder = _builder(spec.name, tfds_dir)
    splits = list(builder.info.splits) if builder.is_prepared() else []
    if split not in splits:
        raise FileNotFoundError(
            f"no {split} split of {spec.title} in {builder.data_dir} (built splits: "
            f"{', '.join(splits) or 'none'}): build it with hopfax.data.builders.build"
        )
    examples = []
    for row in builder.as_data_source(split):  # pyright: ignore[reportCallIssue]
        columns = {name: row[_feature(name)].decode() for name in spec.columns}
        label = float(row["label"]) if spec.regression else int(row["label"])
        examples.append(Example(spec.join(columns), label, int(row["index"])))
    return examples
