"""Two real processes that train one model equal one process."""

import contextlib
import shutil
import socket

import numpy as np
import pandas as pd
import pytest
import tiny
import two_processes

from experiments import __main__

pytestmark = pytest.mark.usefixtures("compiled_once")
PROGRAM = "import sys, two_processes; two_processes.main(*sys.argv[1:])"
LATE = "import sys, two_processes as two; two.hosts.SECONDS = 3; two.__main__.main(sys.argv[1:])"


def together(program, *lists):
    """Runs a process for each list of arguments; returns their statuses, outputs and errors."""
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(tiny.start(program, *each)) for each in lists]
        for process in processes:
            stack.callback(process.kill)
        outputs = [process.communicate(timeout=500) for process in processes]
    return [(process.returncode, *both) for process, both in zip(processes, outputs, strict=True)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The folder of `two_processes.py`, what each process wrote there, and what it printed."""
    folder = tmp_path_factory.mktemp("pair")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    runs = together(PROGRAM, *((index, address, folder) for index in range(2)))
    assert [status for status, *_ in runs] == [0, 0], runs
    return folder, [dict(np.load(folder / f"{index}.npz")) for index in range(2)], runs


def assert_close(both, axis, expected):
    for name, array in expected.items():
        ours, theirs = (each[f"{axis}: {name}"] for each in both)
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_allclose(ours, array, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("axis", two_processes.SEEDS)
def test_both_processes_hold_the_results_of_one(pair, tmp_path, axis):
    assert_close(pair[1], axis, two_processes.run(tmp_path, axis))


def test_a_stop_of_one_process_saves_and_stops_both_and_one_process_resumes(pair, tmp_path):
    folder, both, _ = pair
    assert [each["texts"][0] for each in both] == ["KeyboardInterrupt: "] * 2
    assert {path.name for path in (folder / "cut" / "checkpoints").iterdir()} == {"2"}
    cut = shutil.copytree(folder / "cut", tmp_path / "cut")
    assert_close(both, "seeds", two_processes.run(cut, "seeds"))


def test_process_0_alone_decides_on_files(pair):
    for each in pair[1]:
        _, restored, config, absent, devices = each["texts"]
        assert restored == "Restored(step=1, tree={'x': array([3.14159265])})"
        assert config.startswith("ValueError: ") and "a: 1 → 2" in config
        assert absent.startswith("FileNotFoundError: ")
        assert devices == "ValueError: num_devices must be in [2, 2], got 1"


def test_an_experiment_of_two_processes_has_the_results_of_one(pair, tmp_path, monkeypatch):
    folder, both, ((_, output, progress), (_, nothing, errors)) = pair
    assert [each["statuses"].tolist() for each in both] == [[__main__.FAILED, __main__.OK]] * 2
    for text, names in ((progress, "in another one"), (errors, "training/epochs")):
        assert text.startswith(f"error: flags differ between processes: {names}\n")
    assert "page: " in output and "100%" in progress and not nothing and "%" not in errors
    monkeypatch.setattr(__main__, "quick_to_compile", lambda: None)  # of this process
    flags = [*two_processes.EXPERIMENT.split(), "--runs", str(tmp_path)]
    assert __main__.main(flags) == __main__.OK
    one, two = (next(each.glob("robustness/*/results.csv")) for each in (tmp_path, folder / "two"))
    assert one.parent.name == two.parent.name and two.with_name("report.html").exists()
    pd.testing.assert_frame_equal(pd.read_csv(one), pd.read_csv(two), rtol=1e-5)


def test_processes_that_do_not_come_or_fit_are_an_error(capsys):
    flags = f"{two_processes.EXPERIMENT} --distributed --num-processes 2 --process-index".split()
    ((status, _, errors),) = together(LATE, [*flags, "1", "--coordinator", "127.0.0.1:9"])
    assert status == __main__.FAILED
    assert errors == "error: not all processes joined 127.0.0.1:9 in 3 seconds\n"
    for address, index in (("host", "1"), ("host:1", "2")):
        assert __main__.main([*flags, index, "--coordinator", address]) == __main__.FAILED
        assert f"and with --distributed, got {address}, 2 and {index}" in capsys.readouterr().err
