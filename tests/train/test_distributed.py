"""Two real processes that train one model equal one process."""

import contextlib
import shutil
import socket

import numpy as np
import pandas as pd
import pytest
import tiny
import two_processes

from experiments.__main__ import FAILED, OK, main

pytestmark = pytest.mark.usefixtures("compiled_once")
EXPERIMENT = (
    "robustness --budget smoke --task sentiment --train-size 32 --test-size 16 --vocab-size 100 "
    "--model tinybert-mean --width 8 --levels 1 --sites token --protocols matched"
)
MAIN = "import sys; from experiments import __main__, hosts; hosts.SECONDS = int(sys.argv[1]); "
MAIN += "sys.exit(__main__.main(sys.argv[2:]))"


def together(program, *lists):
    """Runs a process for each list of arguments; `ADDRESS` in them is that of a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings = {"PJRT_NPROC": "4", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    with contextlib.ExitStack() as stack:
        processes = []
        for each in lists:
            arguments = [address if part == "ADDRESS" else part for part in each]
            processes.append(stack.enter_context(tiny.start(program, *arguments, **settings)))
            stack.callback(processes[-1].kill)
        outputs = [process.communicate(timeout=300) for process in processes]
    return [(process.returncode, *both) for process, both in zip(processes, outputs, strict=True)]


def flags(index, *own, seconds=200):
    place = ("--coordinator", "ADDRESS", "--num-processes", "2", "--process-index", index)
    return [seconds, *EXPERIMENT.split(), "--distributed", *place, *own]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The folder of `two_processes.py`, and what each process wrote there and on its stderr."""
    folder = tmp_path_factory.mktemp("pair")
    program = "import sys, two_processes; two_processes.main(*sys.argv[1:])"
    runs = together(program, *((index, "ADDRESS", folder) for index in range(2)))
    assert [status for status, *_ in runs] == [OK, OK], runs
    arrays = [dict(np.load(folder / f"{index}.npz")) for index in range(2)]
    return folder, arrays, [errors for *_, errors in runs]


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


def test_process_0_alone_shows_progress_and_decides_on_files(pair):
    _, both, (ours, theirs) = pair
    assert "100%" in ours and "%" not in theirs
    for each in both:
        _, restored, config, absent, devices = each["texts"]
        assert restored == "Restored(step=1, tree={'x': array([3.14159265])})"
        assert config.startswith("ValueError: ") and "a: 1 → 2" in config
        assert absent.startswith("FileNotFoundError: ")
        assert devices == "ValueError: num_devices must be in [2, 2], got 1"


def test_an_experiment_writes_the_results_of_one_process(tmp_path):
    first, second = together(MAIN, *(flags(n, "--runs", tmp_path / "two") for n in range(2)))
    assert first[0] == OK and "page: " in first[1] and "100%" in first[2], first
    assert second == (OK, "", "")
    assert main([*EXPERIMENT.split(), "--runs", str(tmp_path / "one")]) == OK
    one, two = (pd.read_csv(path) for path in tmp_path.glob("*/robustness/*/results.csv"))
    pd.testing.assert_frame_equal(one, two, rtol=1e-5)
    assert len({path.name for path in tmp_path.glob("*/*/*/") if path.is_dir()}) == 2


def test_processes_that_differ_or_do_not_come_are_an_error(tmp_path, capsys):
    runs = "--runs", tmp_path
    both = together(MAIN, flags(0, *runs), flags(1, *runs, "--epochs", "2"))
    for (status, _, errors), names in zip(both, ("not here", "training/epochs"), strict=True):
        assert status == FAILED
        assert errors.splitlines()[0] == f"error: flags differ from those of process 0: {names}"
    ((status, _, errors),) = together(MAIN, flags(0, seconds=1))
    assert status == FAILED and "joined 127.0.0.1:" in errors and len(errors.splitlines()) == 1
    assert not list(tmp_path.iterdir())
    assert main(list(map(str, flags(2)[1:]))) == FAILED  # no port either
    assert "must be set together, got ADDRESS, 2 and 2" in capsys.readouterr().err
