"""Nothing is downloaded."""

import zipfile
from pathlib import Path

import pytest

from hopfax.data import read_split, task
from hopfax.data.builders import extract

ROWS = "sentence\tlabel\nfine\t1\nbad\t0\n"


def archive(folder, files):
    path = folder / "SST-2.zip"
    with zipfile.ZipFile(path, "w") as opened:
        for name, text in files.items():
            opened.writestr(name, text)
    return path


def test_the_outermost_files_of_an_archive_become_raw_files(tmp_path):
    outer = {"SST-2/train.tsv": ROWS, "SST-2/dev.tsv": ROWS}
    inner = {"_/SST-2/original/train.tsv": "junk", "SST-2/original/dev.tsv": "junk"}
    path = archive(tmp_path, {**inner, **outer, "../escape": "no"})
    extract(task("sst2"), [path], tmp_path / "raw")
    for split in ("train", "validation"):
        assert [row.label for row in read_split("sst2", tmp_path / "raw", split)] == [1, 0]
    files = sorted(file.name for file in tmp_path.rglob("*") if file.is_file())
    assert files == ["SST-2.zip", "dev.tsv", "train.tsv"]

    with pytest.raises(ValueError, match=r"SST-2\.zip has no train\.tsv"):
        extract(task("sst2"), [archive(tmp_path, {"SST-2/dev.tsv": "x"})], tmp_path / "raw")


def test_mrpc_is_split_by_its_list_of_ids(tmp_path):
    rows = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
    rows += "1\t10\t11\ta\tb\r\n0\t12\t13\tc\td\r\n1\t14\t15\te\tf\r\n"
    paths = [tmp_path / "train.txt", tmp_path / "ids.tsv"]
    paths[0].write_bytes(rows.encode())
    paths[1].write_bytes(b"12\t13\n")
    extract(task("mrpc"), paths, tmp_path / "raw")
    train, dev = (read_split("mrpc", tmp_path / "raw", split) for split in ("train", "validation"))
    assert [row.texts for row in dev] == [(("c", "d"),)]
    assert [row.texts for row in train] == [(("a", "b"),), (("e", "f"),)]


def test_a_set_is_built_from_a_download(tmp_path, monkeypatch):
    import tensorflow_datasets as tfds

    from hopfax.data import builders

    def download(manager, urls):
        assert urls == ["https://dl.fbaipublicfiles.com/glue/data/SST-2.zip"]
        assert manager._force_checksums_validation and Path(manager._download_dir).is_dir()
        return [str(archive(tmp_path, {"train.tsv": ROWS, "dev.tsv": ROWS}))]

    monkeypatch.setattr(tfds.download.DownloadManager, "download", download)
    builder = builders.build("sst2", tfds_dir=tmp_path / "sets")
    assert [row["sentence"] for row in builder.as_data_source("train")] == [b"fine", b"bad"]
