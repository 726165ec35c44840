"""Downloads the official archives of a task and extracts its raw files.

Addresses and sha256 sums come from the lists that tensorflow_datasets installs; tensorflow_datasets
itself is not imported.
"""

import hashlib
import importlib.util
import os
import shutil
import urllib.request
import zipfile
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from hopfax.data.tasks import TaskSpec

_ARCHIVES = {
    "QNLI": ("QNLIv2.zip",),
    "MRPC": ("msr_paraphrase_train.txt", "data_mrpc_dev_ids.tsv"),
}


class Resource(NamedTuple):
    """A file to download: its address, size in bytes, sha256 in hex and name."""

    url: str
    size: int
    sha256: str
    name: str


def resources(spec: TaskSpec) -> list[Resource]:
    """Returns the files to download for a task, from the lists of tensorflow_datasets."""
    package = importlib.util.find_spec("tensorflow_datasets")
    listing = "super_glue.txt" if spec.suite == "superglue" else "glue.txt"
    origin = package.origin if package and package.origin else ""
    path = Path(origin).parent / "url_checksums" / listing
    if not path.is_file():
        raise FileNotFoundError(f'no addresses at {path}: pip install "hopfax[experiments]"')
    names = _ARCHIVES.get(spec.folder, (f"{spec.folder}.zip",))
    by_name: dict[str, Resource] = {}
    for line in path.read_text().splitlines():
        url, size, digest, name = line.split("\t")
        if name not in by_name or "/v2/" in url:  # SuperGLUE was released twice
            by_name[name] = Resource(url, int(size), digest, name)
    if missing := [name for name in names if name not in by_name]:
        raise ValueError(f"{path} does not list {', '.join(missing)}")
    return [by_name[name] for name in names]


def fetch(resource: Resource, folder: str | os.PathLike) -> Path:
    """Downloads a file, unless `folder` has it already; keeps it only if its checksum is right."""
    target = Path(folder) / resource.name
    if target.is_file() and sha256(target) == resource.sha256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        with urllib.request.urlopen(resource.url, timeout=60) as source, part.open("wb") as to:
            shutil.copyfileobj(source, to)
        digest = sha256(part)
        if digest != resource.sha256:
            raise ValueError(
                f"{resource.url} has {part.stat().st_size} bytes with sha256 {digest}, expected "
                f"{resource.size} bytes with {resource.sha256}"
            )
        os.replace(part, target)
    except OSError as error:
        raise OSError(
            f"cannot download {resource.url} to {target}: {error}. Download it there by other "
            "means, or pass a folder of raw files"
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return target


def fetch_raw(spec: TaskSpec, folder: str | os.PathLike) -> Path:
    """Downloads a task, extracts its two files, and returns the folder for `read_split`."""
    paths = [fetch(resource, folder) for resource in resources(spec)]
    raw = Path(folder) / "raw"
    (raw / spec.folder).mkdir(parents=True, exist_ok=True)
    if spec.name == "mrpc":
        contents = _split_mrpc(*(path.read_bytes() for path in paths))
    else:
        contents = {split: _member(paths[0], file) for split, file in spec.files.items()}
    for split, content in contents.items():
        (raw / spec.folder / spec.files[split]).write_bytes(content)
    return raw


def _member(archive: Path, file: str) -> bytes:
    """The outermost file of a name in an archive."""
    with zipfile.ZipFile(archive) as opened:
        names = [name for name in opened.namelist() if PurePosixPath(name).name == file]
        if not names:
            raise ValueError(f"{archive} has no {file}")
        return opened.read(min(names, key=lambda name: len(PurePosixPath(name).parts)))


def _split_mrpc(text: bytes, dev_ids: bytes) -> dict[str, bytes]:
    """GLUE's split of the MRPC train file: pairs in the list of ids are dev."""
    in_dev = {tuple(line.split(b"\t")[:2]) for line in dev_ids.splitlines()}
    header, *rows = text.split(b"\n")
    parts: dict[str, list[bytes]] = {"train": [header], "validation": [header]}
    for row in filter(None, rows):
        parts["validation" if tuple(row.split(b"\t")[1:3]) in in_dev else "train"].append(row)
    return {split: b"\n".join(lines) + b"\n" for split, lines in parts.items()}


def sha256(path: Path) -> str:
    """Returns the sha256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
