"""TensorFlow Datasets builders for the thirteen tasks, without TensorFlow.

Rows of raw files or of the official archives are stored as array_record files:

    build("sst2", tfds_dir="sets", raw_dir="glue_data")
    tfds.data_source("hopfax_tasks/sst2", split="validation", data_dir="sets")
"""

import contextlib
import hashlib
import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from hopfax.data.raw import raw_file, read_rows
from hopfax.data.tasks import TASKS, Example, TaskSpec, task
from hopfax.hub import local_path, optional_import

if TYPE_CHECKING:
    import tensorflow_datasets as tfds
else:
    tfds = optional_import("tensorflow_datasets")

_SITE = "https://dl.fbaipublicfiles.com"
_ARCHIVES = {"glue": f"{_SITE}/glue/data", "superglue": f"{_SITE}/glue/superglue/data/v2"}
_MRPC = (
    f"{_SITE}/senteval/senteval_data/msr_paraphrase_train.txt",
    "https://firebasestorage.googleapis.com/v0/b/mtl-sentence-representations.appspot.com/o/"
    "data%2Fmrpc_dev_ids.tsv?alt=media&token=ec5c0836-31d5-48f4-b431-7480817f1adc",
)
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
        scores = self.spec.regression
        features: dict[str, Any] = {
            **{_feature(name): tfds.features.Text() for name in self.spec.columns},
            "label": np.float32 if scores else tfds.features.ClassLabel(names=self.spec.labels),
            "index": np.int32,
        }
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(features),
            disable_shuffling=True,  # keep the order of the raw file
            metadata=tfds.core.MetadataDict(sha256=_checksums(self.spec, self._raw_dir)),
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict]]]:
        if self._raw_dir is None:
            raise ValueError("raw_dir is required; hopfax.data.builders.build downloads one")
        # Without any file, the reader raises an error that says what is missing.
        splits = _checksums(self.spec, self._raw_dir) or self.spec.files
        return {split: self._generate_examples(split) for split in splits}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        assert self._raw_dir is not None
        for columns, (_, label, index) in read_rows(self.spec, self._raw_dir, split):
            texts = {_feature(name): text for name, text in columns.items()}
            yield index, {**texts, "label": label, "index": index}


def _checksums(spec: TaskSpec, raw_dir: str | os.PathLike | None) -> dict[str, str]:
    """SHA-256 of the raw files that exist, by split."""
    checksums = {}
    for split in spec.files:
        with contextlib.suppress(FileNotFoundError):
            if raw_dir is not None:
                content = raw_file(spec, raw_dir, split).read_bytes()
                checksums[split] = hashlib.sha256(content).hexdigest()
    return checksums


def _feature(column: str) -> str:
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
    builder = _builder(name, tfds_dir)
    if not builder.is_prepared():
        if raw_dir is None:
            raw_dir = _download(spec, local_path(tfds_dir) / "downloads")
        builder = _builder(name, tfds_dir, raw_dir=raw_dir)
        builder.download_and_prepare()
    elif raw_dir and (builder.info.metadata or {}).get("sha256") != _checksums(spec, raw_dir):
        raise ValueError(
            f"{builder.data_dir} was built from other files than those in {raw_dir}: delete it to "
            "build it again, or pass another tfds_dir"
        )
    return builder


def _builder(name: str, tfds_dir: str | os.PathLike, **kwargs: Any) -> HopfaxTasks:
    kwargs |= {"data_dir": local_path(tfds_dir), "file_format": "array_record"}
    return HopfaxTasks(config=name, **kwargs)


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
        label = (float if spec.regression else int)(row["label"])
        examples.append(spec.example(columns, label, int(row["index"])))
    return examples


def _download(spec: TaskSpec, folder: Path) -> Path:
    """Downloads a task unless `folder` has its archives, and returns the folder of raw files."""
    archive = "QNLIv2" if spec.name == "qnli" else spec.title
    urls = _MRPC if spec.name == "mrpc" else (f"{_ARCHIVES[spec.suite]}/{archive}.zip",)
    # tensorflow_datasets has the checksums.
    manager = tfds.download.DownloadManager(
        download_dir=folder, manual_dir=folder, force_checksums_validation=True
    )
    files: Any = manager.download(list(urls))
    extract(spec, list(map(Path, files)), folder / "raw")
    return folder / "raw"


def extract(spec: TaskSpec, paths: Sequence[Path], raw: Path) -> None:
    """Writes the raw files of a task from its downloaded files."""
    if spec.name == "mrpc":
        contents = _split_mrpc(*(path.read_bytes() for path in paths))
    else:
        contents = {split: _member(paths[0], Path(file).name) for split, file in spec.files.items()}
    for split, content in contents.items():
        path = raw / spec.files[split]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _member(archive: Path, file: str) -> bytes:
    """The file with this name in an archive; the outermost one if there are several."""
    with zipfile.ZipFile(archive) as opened:
        names = [name for name in opened.namelist() if PurePosixPath(name).name == file]
        if not names:
            raise ValueError(f"{archive} has no {file}")
        return opened.read(min(names, key=lambda name: len(PurePosixPath(name).parts)))


def _split_mrpc(text: bytes, dev_ids: bytes) -> dict[str, bytes]:
    """Splits the MRPC train file as GLUE does: pairs in the list of ids are validation rows."""
    in_dev = {tuple(line.split(b"\t")[:2]) for line in dev_ids.splitlines()}
    header, *rows = text.split(b"\n")
    parts: dict[str, list[bytes]] = {"train": [header], "validation": [header]}
    for row in filter(None, rows):
        parts["validation" if tuple(row.split(b"\t")[1:3]) in in_dev else "train"].append(row)
    return {split: b"\n".join(lines) + b"\n" for split, lines in parts.items()}
