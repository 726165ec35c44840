"""Raw files to array_record files and back, with no TensorFlow and no download."""

import json
import sys
import zipfile
from pathlib import Path

import pytest
import tensorflow_datasets as tfds

from hopfax.data import TASKS, builders, load_task, read_split, task

tfds.disable_progress_bar()

ROWS = "sentence\tlabel\nfine\t1\nbad\t0\n"
RAW_TASKS = [name for name, spec in TASKS.items() if spec.suite != "synthetic"]


def write_raw(folder, name, rows=6):
    """Tiny raw files of any task, in its layout."""
    spec = task(name)
    for split, file in spec.files.items():
        labels = spec.labels or ("0.000", "0.800", "1.600", "4.000")
        lines = []
        for number in range(rows):
            row = dict.fromkeys(spec.header, "")
            row |= {column: f'{split} "{column}" é {number}' for column in spec.columns}
            row[spec.label_column] = labels[number % len(labels)]
            if name == "copa":
                row["question"] = ("cause", "effect")[number % 2]
            lines.append(row)
        if file.endswith(".jsonl"):
            text = "".join(f"{json.dumps(nested(row))}\n" for row in lines)
        else:
            cells = [*([] if spec.header else [lines[0]]), *(row.values() for row in lines)]
            text = "".join("\t".join(row) + "\n" for row in cells)
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)


def nested(row):
    flat = {key: value for key, value in row.items() if "." not in key}
    if flat["label"] in ("true", "false"):
        flat["label"] = flat["label"] == "true"
    inner = {key.split(".")[1]: value for key, value in row.items() if "." in key}
    return flat | ({"target": inner} if inner else {})


@pytest.mark.parametrize("name", RAW_TASKS)
def test_built_rows_are_the_raw_rows(tmp_path, name):
    write_raw(tmp_path / "raw", name)
    builder = builders.build(name, tfds_dir=tmp_path / "sets", raw_dir=tmp_path / "raw")
    for split in ("train", "validation"):
        raw = read_split(task(name), tmp_path / "raw", split)
        built = builders.read_built(task(name), tmp_path / "sets", split)
        assert built == [row._replace(label=pytest.approx(row.label, abs=1e-6)) for row in raw]
        assert len(builder.as_data_source(split)) == len(raw) == 6
    assert list((tmp_path / "sets").rglob("*.array_record*"))
    assert "tensorflow" not in sys.modules


def test_tfds_and_load_task_find_the_set(tmp_path):
    write_raw(tmp_path / "raw", "mrpc", rows=30)
    builders.build("mrpc", tfds_dir=tmp_path / "sets", raw_dir=tmp_path / "raw")
    source = tfds.data_source("hopfax_tasks/mrpc", split="validation", data_dir=tmp_path / "sets")
    assert source[0]["1_string"].decode() == 'validation "#1 String" é 0'
    built, raw = (load_task("mrpc", data_dir=tmp_path / folder) for folder in ("sets", "raw"))
    for one, two in zip([*built.train, *built.test], [*raw.train, *raw.test], strict=True):
        assert one.tobytes() == two.tobytes() and one.dtype == two.dtype


def test_a_set_built_from_other_files_is_an_error(tmp_path):
    write_raw(tmp_path / "raw", "rte")
    arguments = {"tfds_dir": tmp_path / "sets", "raw_dir": tmp_path / "raw"}
    builders.build("rte", **arguments)
    builders.build("rte", **arguments)
    builders.build("rte", tfds_dir=tmp_path / "sets")  # neither raw files nor network needed
    write_raw(tmp_path / "raw", "rte", rows=7)
    with pytest.raises(ValueError, match="was built from other files than those in"):
        builders.build("rte", **arguments)


def test_malformed_and_missing_files(tmp_path):
    raw, sets, dev = tmp_path / "raw", tmp_path / "sets", tmp_path / "raw" / "SST-2" / "dev.tsv"
    write_raw(raw, "sst2", rows=30)
    table = dev.read_text()
    dev.write_text("sentence\tlabel\nfine\t7\n")
    with pytest.raises(ValueError, match=r"dev\.tsv, line 2: unknown label '7'"):
        builders.build("sst2", tfds_dir=raw, raw_dir=raw)
    dev.write_text(table)
    assert load_task("sst2", data_dir=raw).spec.name == "sst2"  # from the raw files

    (raw / "SST-2" / "train.tsv").unlink()
    builders.build("sst2", tfds_dir=sets, raw_dir=raw)
    with pytest.raises(FileNotFoundError, match=r"no train .* SST-2.*\(built splits: validation\)"):
        builders.read_built(task("sst2"), sets, "train")


def archive(folder, files):
    with zipfile.ZipFile(path := folder / "SST-2.zip", "w") as opened:
        for name, text in files.items():
            opened.writestr(name, text)
    return path


def test_the_outermost_files_of_an_archive_become_raw_files(tmp_path):
    outer = {"SST-2/train.tsv": ROWS, "SST-2/dev.tsv": ROWS}
    inner = {"_/SST-2/original/train.tsv": "junk", "SST-2/original/dev.tsv": "junk"}
    path = archive(tmp_path, {**inner, **outer, "../escape": "no"})
    builders.extract(task("sst2"), [path], tmp_path / "raw")
    for split in ("train", "validation"):
        assert [row.label for row in read_split("sst2", tmp_path / "raw", split)] == [1, 0]
    files = sorted(file.name for file in tmp_path.rglob("*") if file.is_file())
    assert files == ["SST-2.zip", "dev.tsv", "train.tsv"]

    with pytest.raises(ValueError, match=r"SST-2\.zip has no train\.tsv"):
        builders.extract(task("sst2"), [archive(tmp_path, {"dev.tsv": "x"})], tmp_path / "raw")


def test_mrpc_is_split_by_its_list_of_ids(tmp_path):
    rows = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
    rows += "1\t10\t11\ta\tb\r\n0\t12\t13\tc\td\r\n1\t14\t15\te\tf\r\n"
    paths = [tmp_path / "train.txt", tmp_path / "ids.tsv"]
    paths[0].write_bytes(rows.encode())
    paths[1].write_bytes(b"12\t13\n")
    builders.extract(task("mrpc"), paths, tmp_path / "raw")
    train, dev = (read_split("mrpc", tmp_path / "raw", split) for split in ("train", "validation"))
    assert [row.texts for row in dev] == [(("c", "d"),)]
    assert [row.texts for row in train] == [(("a", "b"),), (("e", "f"),)]


def test_a_set_is_built_from_a_download(tmp_path, monkeypatch):
    def download(manager, urls):
        assert urls == ["https://dl.fbaipublicfiles.com/glue/data/SST-2.zip"]
        assert manager._force_checksums_validation and Path(manager._download_dir).is_dir()
        return [str(archive(tmp_path, {"train.tsv": ROWS, "dev.tsv": ROWS}))]

    monkeypatch.setattr(tfds.download.DownloadManager, "download", download)
    builder = builders.build("sst2", tfds_dir=tmp_path / "sets")
    assert [row["sentence"] for row in builder.as_data_source("train")] == [b"fine", b"bad"]
