import dataclasses
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import rundir
from experiments.provenance import command_line, cpu_features, provenance, same_origin


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    sigmas: tuple[float, ...] = (0.5, 1.0)
    data_dir: Path | None = None
    progress: bool = True


def test_the_same_configuration_finds_the_same_folder(tmp_path):
    first = rundir.open_run("robustness", Config(), root=tmp_path)
    again = rundir.open_run("robustness", Config(), root=tmp_path)
    other = rundir.open_run("robustness", Config(sigmas=(0.5, 2.0)), root=tmp_path)
    planned = rundir.open_run("robustness", Config(), plan={"seeds": (23,)}, root=tmp_path)
    assert first == again and len({first, other, planned}) == 3
    assert first.parent == tmp_path / "robustness"


LOCK = """
import sys
from experiments import rundir

rundir.lock(sys.argv[1])
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_lock_names_its_owner_and_ends_with_it(tmp_path):
    command = [sys.executable, "-c", LOCK, str(tmp_path)]
    root = Path(rundir.__file__).parents[1]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=root, text=True, stdin=pipe, stdout=pipe) as first:
        assert first.stdout and first.stdout.readline() == "ready\n"
        message = rf"is in use by process {first.pid} on {platform.node()} since 2\d{{3}}-.*; wait"
        with pytest.raises(BlockingIOError, match=message):
            rundir.lock(tmp_path)
        first.kill()
    rundir.lock(tmp_path)


def test_a_replaced_folder_is_locked_again(tmp_path):
    folder = tmp_path / "cell"
    for _ in range(2):
        folder.mkdir()
        rundir.lock(folder)
        assert (folder / rundir.LOCK).read_text().startswith(f"process {os.getpid()} on ")
        shutil.rmtree(folder)


def test_ignored_fields_do_not_change_the_id():
    ids = {rundir.run_id("x", Config(progress=on), ignore=("progress",)) for on in (True, False)}
    assert len(ids) == 1
    assert rundir.run_id("x", Config(progress=True)) != rundir.run_id("x", Config(progress=False))


def test_config_json_holds_settings_plan_and_one_entry_per_origin(tmp_path):
    config = Config(data_dir=Path("some") / "dir")
    for _ in range(2):
        folder = rundir.open_run("robustness", config, plan={"seeds": (23, 42)}, root=tmp_path)
    document = rundir.read_config(folder)
    assert document["config"] == {"sigmas": [0.5, 1.0], "data_dir": "some/dir", "progress": True}
    assert document["plan"] == {"seeds": [23, 42]}
    assert len(document["provenance"]) == 1


def test_another_commit_adds_an_origin(tmp_path):
    folder = rundir.open_run("robustness", Config(), root=tmp_path)
    document = json.loads((folder / "config.json").read_text())
    document["provenance"][0]["commit"] = "0" * 40
    (folder / "config.json").write_text(json.dumps(document))
    rundir.open_run("robustness", Config(), root=tmp_path)
    assert len(rundir.read_config(folder)["provenance"]) == 2


def test_a_value_json_cannot_hold_is_refused():
    with pytest.raises(TypeError, match="only numbers, text"):
        rundir.run_id("x", {"fn": len})
    with pytest.raises(ValueError):
        rundir.run_id("x", {"sigma": float("nan")})


def test_a_missing_or_broken_config_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="a run's folder is"):
        rundir.read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json"):
        rundir.read_config(tmp_path)


def test_a_failed_write_leaves_only_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "results.csv"
    rundir.write_whole(path, "old\n")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        rundir.write_whole(path, "new\n")
    assert path.read_text() == "old\n"
    assert os.listdir(tmp_path) == ["results.csv"]


def test_vector_instructions_are_recorded(monkeypatch):
    """XLA rounds by them: scores of one program differ between processors."""
    listed = "model name\t: A CPU\nflags\t\t: fpu sse2 avx512f avx2 fma erms\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: listed)
    assert cpu_features() == "avx2 avx512f fma sse2"


def test_provenance_names_versions_hardware_and_commit():
    found = provenance()
    assert found["jax"] and found["flax"] and found["python"].startswith("3.")
    assert "cpu_features" in found and found["cores"] >= 1 and found["cpu"] and found["device"]
    assert same_origin(found, {**found, "date": "1970-01-01"})
    assert not same_origin(found, {**found, "commit": "other"})


def test_the_command_is_shown_without_the_path_of_the_machine(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/experiments/__main__.py", "robustness", "a b"])
    assert command_line() == "python -m experiments robustness 'a b'"
    monkeypatch.setattr("sys.argv", ["/somewhere/experiments/benchmarks/__main__.py"])
    assert command_line() == "python -m experiments.benchmarks"
    monkeypatch.setattr("sys.argv", ["/somewhere/measure.py", "--fast"])
    assert command_line() == "python measure.py --fast"
