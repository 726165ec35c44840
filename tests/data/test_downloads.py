"""Downloads come from file: addresses; the official addresses are only looked up."""

import dataclasses
import hashlib
import io
import zipfile

import pytest

from hopfax.data import TASKS, downloads, read_split, task
from hopfax.data.downloads import Resource, fetch, fetch_raw, resources


@pytest.fixture
def site(tmp_path):
    """Returns a function that writes a file and returns its resource."""

    def put(name, content):
        path = tmp_path / "site" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return Resource(path.as_uri(), len(content), hashlib.sha256(content).hexdigest(), name)

    return put


def archive(**files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as opened:
        for name, text in files.items():
            opened.writestr(name.replace("__", "/").replace("_tsv", ".tsv"), text)
    return buffer.getvalue()


def test_every_set_has_an_official_address():
    for name, spec in TASKS.items():
        if spec.suite == "synthetic":
            continue
        listed = resources(spec)
        assert len(listed) == (2 if name == "mrpc" else 1)
        for resource in listed:
            assert resource.url.startswith("https://")
            assert len(resource.sha256) == 64 and resource.size > 1000
        assert spec.suite != "superglue" or "/v2/" in listed[0].url
    with pytest.raises(ValueError, match=r"glue\.txt does not list Nothing\.zip"):
        resources(dataclasses.replace(task("sst2"), folder="Nothing"))


def test_fetch_verifies_and_does_not_fetch_twice(site, tmp_path):
    resource = site("a.zip", b"content")
    path = fetch(resource, tmp_path / "kept")
    assert path.read_bytes() == b"content"
    site("a.zip", b"changed")
    assert fetch(resource, tmp_path / "kept") == path
    path.write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"has 7 bytes with sha256 .* expected 7 bytes"):
        fetch(resource, tmp_path / "kept")
    assert [file.name for file in path.parent.iterdir()] == ["a.zip"]


def test_unreachable_address(site, tmp_path):
    resource = site("a.zip", b"content")
    with pytest.raises(OSError, match=r"cannot download file:.*missing.*, or pass a folder"):
        fetch(resource._replace(url=resource.url + ".missing"), tmp_path / "kept")
    assert not list((tmp_path / "kept").iterdir())


def test_an_archive_becomes_raw_files(site, tmp_path, monkeypatch):
    rows = "sentence\tlabel\nfine\t1\n"
    content = archive(
        **{"__MACOSX__SST-2__original__train_tsv": "junk", "SST-2__train_tsv": rows},
        **{"SST-2__dev_tsv": rows, "../escape": "no", "SST-2__original__dev_tsv": "junk"},
    )
    resource = site("SST-2.zip", content)
    monkeypatch.setattr(downloads, "resources", lambda spec: [resource])
    raw = fetch_raw(task("sst2"), tmp_path / "kept")
    assert read_split(task("sst2"), raw, "train") == read_split(task("sst2"), raw, "validation")
    files = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert files == ["SST-2.zip", "SST-2.zip", "dev.tsv", "train.tsv"]


def test_an_archive_without_a_split(site, tmp_path, monkeypatch):
    resource = site("SST-2.zip", archive(**{"SST-2__dev_tsv": "x"}))
    monkeypatch.setattr(downloads, "resources", lambda spec: [resource])
    with pytest.raises(ValueError, match=r"SST-2\.zip has no train\.tsv"):
        fetch_raw(task("sst2"), tmp_path / "kept")


def test_mrpc_is_split_by_its_list_of_ids(site, tmp_path, monkeypatch):
    header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
    rows = "1\t10\t11\ta\tb\r\n0\t12\t13\tc\td\r\n1\t14\t15\te\tf\r\n"
    text = site("train.txt", (header + rows).encode())
    ids = site("ids.tsv", b"12\t13\n")
    monkeypatch.setattr(downloads, "resources", lambda spec: [text, ids])
    raw = fetch_raw(task("mrpc"), tmp_path / "kept")
    train, dev = (read_split(task("mrpc"), raw, split) for split in ("train", "validation"))
    assert [row.texts for row in dev] == [(("c", "d"),)]
    assert [row.texts for row in train] == [(("a", "b"),), (("e", "f"),)]


def test_a_set_is_built_from_a_download(site, tmp_path, monkeypatch):
    from hopfax.data import builders

    rows = "sentence\tlabel\nfine\t1\nbad\t0\n"
    resource = site("SST-2.zip", archive(**{"S__train_tsv": rows, "S__dev_tsv": rows}))
    monkeypatch.setattr(downloads, "resources", lambda spec: [resource])
    builder = builders.build("sst2", tfds_dir=tmp_path / "sets")
    assert [row["sentence"] for row in builder.as_data_source("train")] == [b"fine", b"bad"]
