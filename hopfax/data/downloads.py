"""Downloads the official archives of a task and extracts its raw files."""

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from hopfax.data.tasks import TaskSpec
from hopfax.hub import optional_import

_SITE = "https://dl.fbaipublicfiles.com"
_ARCHIVES = {"glue": f"{_SITE}/glue/data", "superglue": f"{_SITE}/glue/superglue/data/v2"}
_MRPC = (
    f"{_SITE}/senteval/senteval_data/msr_paraphrase_train.txt",
    "https://firebasestorage.googleapis.com/v0/b/mtl-sentence-representations.appspot.com/o/"
    "data%2Fmrpc_dev_ids.tsv?alt=media&token=ec5c0836-31d5-48f4-b431-7480817f1adc",
)


def addresses(spec: TaskSpec) -> list[str]:
    """Returns the addresses of a task's files; tensorflow_datasets has their checksums."""
    if spec.name == "mrpc":
        return list(_MRPC)
    archive = "QNLIv2" if spec.name == "qnli" else spec.folder
    return [f"{_ARCHIVES[spec.suite]}/{archive}.zip"]


def fetch_raw(spec: TaskSpec, folder: str | os.PathLike) -> Path:
    """Downloads a task unless `folder` has its files, and returns the folder for `read_split`."""
    tfds = optional_import("tensorflow_datasets")
    manager = tfds.download.DownloadManager(
        download_dir=folder, manual_dir=folder, force_checksums_validation=True
    )
    raw = Path(folder) / "raw"
    extract(spec, [Path(path) for path in manager.download(addresses(spec))], raw)
    return raw


def extract(spec: TaskSpec, paths: Sequence[Path], raw: Path) -> None:
    """Writes the raw files of a task from its downloaded files."""
    if spec.name == "mrpc":
        contents = _split_mrpc(*(path.read_bytes() for path in paths))
    else:
        contents = {split: _member(paths[0], file) for split, file in spec.files.items()}
    (raw / spec.folder).mkdir(parents=True, exist_ok=True)
    for split, content in contents.items():
        (raw / spec.folder / spec.files[split]).write_bytes(content)


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
