import dataclasses
import json
import os
import platform
import sys
from pathlib import Path

import pytest

from experiments import rundir
from experiments.__main__ import earlier
from experiments.provenance import command_line, processor, provenance


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    runs: Path
    sigmas: tuple[float, ...] = (0.5, 1.0)
    data_dir: Path | None = Path("some") / "dir"


def test_the_same_configuration_finds_the_same_folder(tmp_path):
    first, again, elsewhere = (
        rundir.open_run("robustness", Config(runs=tmp_path / runs)) for runs in ("", "", "b")
    )
    other = rundir.open_run("robustness", Config(runs=tmp_path, sigmas=(0.5, 2.0)))
    assert first == again != other and first.parent == tmp_path / "robustness"
    assert elsewhere.name == first.name


def test_a_lock_names_its_owner(tmp_path):
    message = rf"is in use by process {os.getpid()} on {platform.node()} since 2\d{{3}}-.*; wait"
    with rundir.locked(tmp_path), pytest.raises(BlockingIOError, match=message):
        rundir.locked(tmp_path).__enter__()


def test_config_json_holds_settings_plan_and_one_entry_per_origin(tmp_path, monkeypatch):
    origin = provenance()
    for changes in ({}, {"date": "2000-01-01"}, {"commit": "0" * 40}):
        monkeypatch.setattr(rundir, "provenance", lambda changes=changes: origin | changes)
        folder = rundir.open_run("robustness", Config(runs=tmp_path), plan={"seeds": (23, 42)})
    document = rundir.read_config(folder)
    del document["config"]["runs"]
    assert document["config"] == {"sigmas": [0.5, 1.0], "data_dir": "some/dir"}
    assert document["plan"] == {"seeds": [23, 42]}
    assert [each["commit"] for each in document["provenance"]] == [origin["commit"], "0" * 40]


@pytest.mark.parametrize(
    "damage", [b"\xff", b"{}", b'{"experiment": "a", "config": {}, "provenance": [{}]}']
)
def test_a_damaged_config_json_is_named_and_written_again(tmp_path, damage):
    path = rundir.open_run("robustness", Config(runs=tmp_path)) / "config.json"
    before = rundir.read_config(path.parent)
    path.write_bytes(damage)
    assert earlier(tmp_path).strip() == f"damaged: {path}"
    with pytest.warns(UserWarning, match=f"{path} .*written again"):
        rundir.open_run("robustness", Config(runs=tmp_path))
    assert rundir.read_config(path.parent)["config"] == before["config"]


def test_a_folder_without_locks_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)  # as on Windows
    message = r"cannot be locked .* set --runs to"
    with pytest.raises(OSError, match=message), rundir.locked(tmp_path):
        pass


def test_writers_do_not_meet_and_leave_the_old_file_if_they_fail(tmp_path, monkeypatch):
    path, left = tmp_path / "config.json", [tmp_path / f".x.{name}.tmp" for name in ("old", "new")]
    for each in left:
        each.touch()
    os.utime(left[0], (0, 0))

    def other_machine(_):
        monkeypatch.undo()
        rundir.write_whole(path, "second")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", other_machine)
    rundir.write_whole(path, '"\udce9"')  # of a file name that is not UTF-8
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        rundir.write_whole(path, "new")
    assert json.loads(path.read_text()) == "\udce9"
    assert {*tmp_path.iterdir()} == {path, left[1]}


def test_provenance_names_versions_hardware_and_vector_instructions(monkeypatch):
    listed = "model name\t: A CPU\nflags\t\t: fpu sse2 avx512f avx2 fma erms\n\nmodel name: other\n"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda *_, **__: listed)
        fields = processor()
    monkeypatch.setattr("experiments.provenance.processor", lambda: fields)
    origin = provenance()
    assert (origin["cpu"], origin["cpu_features"]) == ("A CPU", "avx2 avx512f fma sse2")
    assert origin["jax"] and origin["flax"] and origin["cores"] >= 1 and origin["device"]


def test_the_command_is_shown_without_the_path_of_the_machine(monkeypatch):
    monkeypatch.setattr("sys.orig_argv", ["/somewhere/python3", "/somewhere/measure.py", "a b"])
    assert command_line() == "python measure.py 'a b'"
