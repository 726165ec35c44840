"""All benchmarks by one line: which are run, with which flags, and which are not run again."""

import json
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
            report = {"provenance": here}
            name = line[2].rpartition(".")[2]
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


def test_every_benchmark_is_a_command_with_the_flags_it_is_given():
    for name, benchmark in everything.BENCHMARKS.items():
        text = (everything.Path(everything.__file__).parent / f"{name}.py").read_text()
        given = [flag for flag in benchmark.quick if flag.startswith("--")]
        for flag in ["--out", *given, *(["--data-dir"] if benchmark.reads_data else [])]:
            assert f'"{flag}"' in text, (name, flag)


def test_an_unknown_name_is_named(capsys):
    with pytest.raises(SystemExit):
        everything.main(["retreival"])
    assert "no benchmark retreival" in capsys.readouterr().err
