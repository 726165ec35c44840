"""TensorFlow Datasets builders for the thirteen tasks, with no TensorFlow.

One builder, one config a task. Rows come from raw files or from the official archives, go to
array_record files and come back through ``tfds.data_source``:

    build("sst2", tfds_dir="sets", raw_dir="glue_data")
    tfds.data_source("hopfax_tasks/sst2", split="validation", data_dir="sets")

tensorflow_datasets is imported with this module, so `hopfax.data` does not import it.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hopfax.data.downloads import fetch_raw, sha256
from hopfax.data.optional import optional_import
from hopfax.data.raw import read_rows, task_folder
from hopfax.data.tasks import TASKS, Example, TaskSpec, check_split, task

if TYPE_CHECKING:
    import tensorflow_datasets as tfds
else:
    tfds = optional_import("tensorflow_datasets")

_RAW_TASKS = tuple(name for name, spec in TASKS.items() if spec.suite != "synthetic")


class HopfaxTasks(tfds.core.GeneratorBasedBuilder):
    """Train and validation rows of a GLUE or SuperGLUE task, columns as in its raw files.

    Features are the text columns (lower case, other signs as ``_``), `label` (-1 never occurs:
    the hidden test labels are left out) and `index`, the row's number in its file.
    """

    name = "hopfax_tasks"
    VERSION = tfds.core.Version("2.0.0")  # 1 called the validation split dev
    BUILDER_CONFIGS = tuple(tfds.core.BuilderConfig(name=name) for name in _RAW_TASKS)

    # TFDS looks for checksums and metadata beside this file through importlib_resources, which it
    # does not install; there are none here, so it need not look.
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
        label = tfds.features.ClassLabel(names=list(self.spec.labels))
        if self.spec.regression:
            label = tfds.features.Scalar(np.float32)
        features: dict[str, Any] = {
            feature_name(column): tfds.features.Text() for column in self.spec.columns
        }
        features |= {"label": label, "index": tfds.features.Scalar(np.int32)}
        # Shuffled at training, not here: rows keep the order of their file.
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(features),
            disable_shuffling=True,
            metadata=tfds.core.MetadataDict(sha256=self._sha256()),
        )

    def _sha256(self) -> dict[str, str]:
        """Hash of each raw file, kept with the set to tell whether it is another's."""
        if self._raw_dir is None:
            return {}
        folder = task_folder(self.spec, self._raw_dir)
        files = {split: folder / name for split, name in self.spec.files.items()}
        return {split: sha256(path) for split, path in files.items() if path.is_file()}

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict]]]:
        if self._raw_dir is None:
            raise ValueError("the builder needs raw_dir; hopfax.data.builders.build fetches one")
        folder = task_folder(self.spec, self._raw_dir)
        files = self.spec.files
        present = [split for split, file in files.items() if (folder / file).is_file()]
        # Without any file the reader says what is missing and where to get it.
        return {split: self._generate_examples(split) for split in present or files}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        assert self._raw_dir is not None
        for row in read_rows(self.spec, self._raw_dir, split):
            columns = {feature_name(name): text for name, text in row.columns.items()}
            yield row.index, {**columns, "label": row.label, "index": row.index}


def feature_name(column: str) -> str:
    """Returns the feature a raw column is stored as: ``#1 String`` as ``1_string``."""
    return re.sub(r"\W+", "_", column).strip("_").lower()


def build(
    name: str,
    *,
    tfds_dir: str | os.PathLike,
    raw_dir: str | os.PathLike | None = None,
    download_dir: str | os.PathLike | None = None,
) -> HopfaxTasks:
    """Writes a task as array_record files, unless they are there.

    Args:
        name: A GLUE or SuperGLUE task.
        tfds_dir: Folder of built sets.
        raw_dir: Folder of raw files, see `hopfax.data.read_split`. A set with its
            validation file alone is built with that split alone.
        download_dir: Where the official archives are fetched to when there is no `raw_dir`;
            default ``tfds_dir/downloads``.

    Returns:
        The builder; ``.as_data_source("validation")`` reads rows.

    Raises:
        ValueError: The task is unknown or generated, its files are malformed, or the set that is
            there was built from other files.
        OSError: Files are missing, or cannot be fetched.
    """
    spec = task(name)
    if spec.suite == "synthetic":
        raise ValueError(f"{name} is generated and has no files; sets are {', '.join(_RAW_TASKS)}")
    built = HopfaxTasks(config=name, data_dir=str(tfds_dir), file_format="array_record")
    if raw_dir is None:
        if built.is_prepared():
            return built
        raw_dir = fetch_raw(spec, download_dir or Path(tfds_dir) / "downloads")
    builder = HopfaxTasks(
        config=name, data_dir=str(tfds_dir), file_format="array_record", raw_dir=raw_dir
    )
    if not built.is_prepared():
        builder.download_and_prepare()
    elif (built.info.metadata or {}).get("sha256") != builder._sha256():
        raise ValueError(
            f"{built.data_dir} was built from other files than those under {raw_dir}: delete it "
            "to build anew, or give another tfds_dir"
        )
    return builder


def read_built(spec: TaskSpec, tfds_dir: str | os.PathLike, split: str) -> list[Example]:
    """Reads a split that `build` wrote: the rows `hopfax.data.read_split` gives.

    Raises:
        FileNotFoundError: The set or the split has not been built there.
        ValueError: The split is unknown.
    """
    check_split(split, spec.files, spec.title)
    builder = HopfaxTasks(
        config=spec.name, data_dir=str(Path(tfds_dir).expanduser()), file_format="array_record"
    )
    if not builder.is_prepared() or split not in builder.info.splits:
        built = ", ".join(builder.info.splits) if builder.is_prepared() else "nothing"
        raise FileNotFoundError(
            f"no {split} split of {spec.title} under {builder.data_dir} ({built} is built there): "
            "build it with hopfax.data.builders.build"
        )
    examples = []
    for row in builder.as_data_source(split):  # pyright: ignore[reportCallIssue]
        columns = {name: row[feature_name(name)].decode() for name in spec.columns}
        kind = float if spec.regression else int
        examples.append(Example(spec.join(columns), kind(row["label"]), int(row["index"])))
    return examples
