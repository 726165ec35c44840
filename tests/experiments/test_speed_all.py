"""All benchmarks by one line: which are run, with which flags, and which are not run again."""

import importlib
import json
import re
import shlex
import subprocess

import pytest

from experiments.speed import __main__ as everything


@pytest.fixture
def called(monkeypatch):
    """Lines that would have been run; each leaves its numbers, but for one that fails."""
    lines = []
    here = {"commit": "c0ffee", "dirty": False, "device": "cpu"}
    monkeypatch.setattr(everything, "provenance", lambda: here)
    monkeypatch.setattr(everything.page, "main", lambda arguments: lines.append(["page"]))

    def run(line, check):
        lines.append(line[2:])
        folder = line[line.index("--out") + 1]
        failed = "experiments.speed.memory" in line
        if not failed:
            name = line[2].rpartition(".")[2]
            report = {"provenance": here | {"command": shlex.join(["python", *line[1:]])}}
            (everything.Path(folder) / f"{name}.json").write_text(json.dumps(report))
        return subprocess.CompletedProcess(line, int(failed))

    monkeypatch.setattr(everything.subprocess, "run", run)
    return lines


def test_a_second_call_runs_what_is_missing(called, tmp_path, capsys):
    flags = ["--out", str(tmp_path), "--data-dir", "sets", "memory", "train_step"]
    assert everything.main(flags) == 1, "memory has failed"
    out = ["--out", str(tmp_path)]
    assert called == [
        ["experiments.speed.memory", *out],
        ["experiments.speed.train_step", *out, "--data-dir", "sets"],
        ["page"],
    ]
    called.clear()
    everything.main(flags)
    assert called == [["experiments.speed.memory", *out], ["page"]]
    assert "train_step: already measured" in capsys.readouterr().out


def test_quick_rounds_and_an_end_to_the_time(called, tmp_path):
    everything.main(["--out", str(tmp_path), "--quick", "scaling"])
    assert called[0][-2:] == ["--seconds", "8"]
    called.clear()
    everything.main(["--out", str(tmp_path), "--minutes", "-1", "retrieval"])
    assert called == [["page"]]


@pytest.mark.parametrize("other", [["--quick"], ["--data-dir", "sets"], []])
def test_numbers_of_other_flags_do_not_count(called, tmp_path, other):
    out = ["--out", str(tmp_path), "train_step"]
    everything.main([*out, *other])
    called.clear()
    everything.main([*out, *other])
    assert called == [["page"]], "the same flags"
    called.clear()
    for flags in (["--quick", "--data-dir", "sets"], ["--data-dir", "others"]):
        everything.main([*out, *flags])
        assert [line[0] for line in called] == ["experiments.speed.train_step", "page"], flags
        called.clear()


def test_flags_without_the_folder():
    line = "python -m experiments.speed.seeds --sizes 0 1 --out 'a folder' --rounds 3"
    assert everything.flags_of(line) == ["--sizes", "0", "1", "--rounds", "3"]
    assert everything.flags_of("python -m experiments.speed.seeds --out=x") == []


def test_all_that_time_hopfax_keep_freed_memory_as_experiments_do():
    for name in everything.BENCHMARKS:
        text = (everything.Path(everything.__file__).parent / f"{name}.py").read_text()
        start = text.partition('if __name__ == "__main__":')[2]
        # Memory is what XLA plans, whatever becomes of it.
        assert ("keep_freed_memory()" in start.partition(" main()")[0]) == (name != "memory"), name


@pytest.mark.parametrize("name", [*everything.BENCHMARKS, "page", "workload"])
def test_every_flag_is_described_and_those_given_are_taken(name, capsys):
    command = importlib.import_module(f"experiments.speed.{name}")
    with pytest.raises(SystemExit):
        command.main(["--help"])
    usage, _, told = capsys.readouterr().out.partition("options:")
    assert usage.startswith(f"usage: python -m experiments.speed.{name} ")
    flags = told.split("\n  --")[1:]
    # After the flag and its value: a column or a line of words.
    assert flags or name == "page"
    for flag in flags:
        assert re.search(r"\s{2,}\w", flag), flag
    if benchmark := everything.BENCHMARKS.get(name):
        given = [flag for flag in benchmark.quick if flag.startswith("--")]
        taken = {f"--{flag.split()[0]}" for flag in flags}
        assert taken >= {"--out", *given}
        assert ("--data-dir" in taken) == benchmark.reads_data


@pytest.mark.parametrize("name", ["train_step", "esr", "waiting", "attack"])
def test_a_folder_without_data_is_named_before_anything_runs(name, tmp_path, capsys):
    if name == "train_step":
        pytest.importorskip("torch", reason="the PyTorch peer is an optional extra: speed")
    command = importlib.import_module(f"experiments.speed.{name}")
    with pytest.raises(SystemExit) as stopped:
        command.main(["--data-dir", str(tmp_path / "nothing"), "--out", str(tmp_path)])
    assert stopped.value.code == 2
    assert "error: no folder of " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "line",
    ["attack --models", "attack --attacks", "waiting --seeds", "seeds --sizes", "seeds --sizes 7"],
)
def test_lists_of_nothing_publish_nothing(line, tmp_path, capsys):
    name, *flags = line.split()
    with pytest.raises(SystemExit):
        importlib.import_module(f"experiments.speed.{name}").main(["--out", str(tmp_path), *flags])
    assert f"argument {flags[0]}: " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_unknown_name_is_named(capsys):
    with pytest.raises(SystemExit):
        everything.main(["retreival"])
    assert "no benchmark retreival" in capsys.readouterr().err
