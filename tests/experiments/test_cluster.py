"""Workers: every unit measured once, lost ones again, and results only from the coordinator."""

import json
import os
import time
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from experiments import cluster, conditions, report, runner
from experiments.cluster import Workers
from experiments.memory import smoothing
from experiments.noise_stability import theory
from experiments.settings import Cluster
from hopfax.train import interrupt

SUBMITIT, CONFIG = Cluster(launcher="submitit"), theory.Config()


def job(number, cell="", fails=False):
    def measure(on_progress):
        on_progress(0.5)
        if fails:
            raise FloatingPointError("the loss is not finite")
        return {"results": [{"model": f"m{number}", "metric": "score", "score": float(number)}]}

    return runner.Job(f"Task, model {number}", measure, cell)


def ended(status=0):
    future = Future()
    if isinstance(status, Exception):
        future.set_exception(status)
    else:
        future.set_result(SimpleNamespace(returncode=status))
    return future


def in_process(jobs, monkeypatch, tmp_path):
    """Has workers measure at once, in this process."""
    started = []

    def submit(*_, input):
        request = json.loads(input)
        started.append(request["units"])
        with monkeypatch.context() as patch:
            patch.setattr(cluster, "assigned", request)
            try:
                cluster.work(jobs, tmp_path)
            except FloatingPointError as error:
                cluster.leave(Path(request["folder"]), request["units"][0], error=str(error))
        return ended()

    monkeypatch.setattr(cluster, "launcher", lambda *_: submit)
    return started


def fill(tmp_path, jobs, flags=SUBMITIT):
    config = theory.Config(budget="smoke", runs=str(tmp_path), cluster=flags)
    return runner.fill("theory", config, jobs, lambda _: report.Page(title="a"))


def test_workers_measure_each_unit_once_and_the_coordinator_writes(monkeypatch, tmp_path):
    jobs = [job(0, "shared"), job(1, "other"), job(2, "shared"), job(3)]
    started = in_process(jobs, monkeypatch, tmp_path)
    folder = fill(tmp_path, jobs)
    assert started == [["shared"], ["other"], ["job-3"]]
    assert [line[:2] for line in (folder / "results.csv").read_text().splitlines()[1:]]
    assert folder == fill(tmp_path, jobs, Cluster())  # the same run without workers
    assert not [*folder.glob("workers-*")]


def test_the_rest_goes_on_after_a_failure_and_the_end_names_it(monkeypatch, tmp_path):
    jobs = [job(0, "a"), job(1, "b", fails=True), job(2, "c")]
    in_process(jobs, monkeypatch, tmp_path)
    with pytest.raises(ChildProcessError, match=r"1 of 3 jobs failed:\n  Task, model 1: the loss"):
        fill(tmp_path, jobs)
    (results,) = tmp_path.glob("theory/*/results.csv")
    assert results.read_text().count("\n") == 3 and "m1" not in results.read_text()


@pytest.mark.parametrize("status", [-9, RuntimeError("the node is gone")])
def test_a_lost_worker_is_replaced_twice(status, tmp_path):
    starts = []
    submit = lambda *_, input: starts.append(input) or ended(status)  # noqa: E731
    with Workers(
        theory.Config(), [job(0, "a")], [["a"]], submit, count=1, folder=tmp_path / "w"
    ) as workers:
        while workers.are_busy():
            assert workers.has(0)
            workers.poll()
    assert [json.loads(each)["units"] for each in starts] == [["a"]] * 3
    assert "lost its worker 3 times" in workers.failed[0] and str(status) in workers.failed[0]


def test_a_worker_that_does_not_see_the_runs_is_an_error(tmp_path):
    submit = lambda *_, input: ended(cluster.UNSEEN)  # noqa: E731
    workers = Workers(
        theory.Config(), [job(0)], [["job-0"]], submit, count=1, folder=tmp_path / "w"
    )
    with workers, pytest.raises(OSError, match=r"do not see .*set --runs to a folder"):
        workers.poll(), workers.poll()


def assign(monkeypatch, tmp_path, jobs, unit):
    titles = [job.title for job in jobs]
    request = {"folder": str(tmp_path), "units": [unit], "waits": True, "titles": titles}
    monkeypatch.setattr(cluster, "assigned", request)


def test_a_worker_waits_for_a_cell_in_use(monkeypatch, tmp_path):
    calls = []

    def busy(on_progress):
        calls.append(1)
        if len(calls) < 3:
            raise BlockingIOError("in use")
        return {}

    jobs = [runner.Job("", busy, "a")]
    assign(monkeypatch, tmp_path, jobs, "a")
    monkeypatch.setattr(cluster.time, "sleep", lambda _: None)
    cluster.work(jobs, tmp_path)
    assert json.loads((tmp_path / "a.result").read_bytes()) == {"tables": {"0": {}}}
    calls.clear()
    monkeypatch.setattr(cluster, "IN_USE_SECONDS", 0.0)
    with pytest.raises(SystemExit) as left:
        cluster.work(jobs, tmp_path)
    assert left.value.code == os.EX_TEMPFAIL


def test_workers_stop_where_the_coordinator_asks(monkeypatch, tmp_path):
    jobs = [job(0, "a")]
    assign(monkeypatch, tmp_path, jobs, "a")
    (tmp_path / cluster.STOP).touch()
    with pytest.raises(KeyboardInterrupt), interrupt.listen():
        cluster.watch(tmp_path, os.getppid())
        cluster.work(jobs, tmp_path)
    with pytest.raises(ValueError, match="the worker has other jobs: its code or files differ"):
        cluster.work([job(0, "b")], tmp_path)


def test_a_coordinator_that_stops_asks_workers_and_waits(tmp_path):
    folder, seen = tmp_path / "w", []
    done = lambda: seen.append((folder / cluster.STOP).exists()) or len(seen) > 3  # noqa: E731
    submit = lambda *_, input: SimpleNamespace(done=done)  # noqa: E731
    workers = Workers(CONFIG, [job(0)], [["job-0"]], submit, count=1, folder=folder)
    with pytest.raises(KeyboardInterrupt), workers:
        workers.poll()
        raise KeyboardInterrupt
    assert seen == [True] * 4 and not folder.exists()


@pytest.mark.parametrize("launcher", ["submitit", "ray"])
def test_real_workers_say_what_they_lack(launcher, tmp_path):
    engine, folder = pytest.importorskip(launcher), tmp_path / "w"
    submit = cluster.launcher(launcher, (), 1, folder)
    config = smoothing.Config(run=str(tmp_path / "nowhere"))
    try:
        with Workers(config, [job(0)], [["job-0"]], submit, count=1, folder=folder) as workers:
            while workers.are_busy():
                workers.poll()
                time.sleep(0.2)
    finally:
        getattr(engine, "shutdown", int)()
    assert "nowhere" in workers.failed[0] and (folder / "job-0.log").exists()


def test_tables_return_from_workers_as_they_were(tmp_path):
    rows = [{"n": n, "x": np.float32(x), "y": y} for n, x, y in ((1, 0.1, np.int8(3)), (2, 1, "a"))]
    for table in (rows, pd.DataFrame(rows).astype({"x": "float32"})):
        cluster.leave(tmp_path, "a", tables={0: {"results": cluster.pack(table)}})
        stored = json.loads((tmp_path / "a.result").read_bytes())["tables"]["0"]["results"]
        again = cluster.unpack(stored)
        pd.testing.assert_frame_equal(again, pd.DataFrame(table))


def test_predictions_that_a_trained_model_lacks_are_made_by_a_worker(monkeypatch, tmp_path):
    allowed = []

    def measure(*_):
        allowed.append(conditions.computes.get())
        if len(allowed) == 1:
            raise conditions.NotStored("no file")
        return {"results": [{"model": "m", "metric": "score", "score": 1.0}]}

    monkeypatch.setattr(runner, "measure", measure)
    cells = [tmp_path / "cells" / name for name in ("a", "b")]
    for cell in cells:
        cell.mkdir(parents=True)
    jobs = [runner.Job("", partial(measure), cell.name) for cell in cells]
    started = in_process(jobs, monkeypatch, tmp_path)
    fill(tmp_path, jobs)
    assert started == [["a"]] and allowed == [False, False, True]


@pytest.mark.parametrize(
    ("launcher", "options", "words"),
    [
        ("submitit", ("timeout_min",), "must be KEY=VALUE, got timeout_min"),
        ("nothing_like_it", (), "is not installed: pip install"),
    ],
)
def test_wrong_launchers_are_errors(launcher, options, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        cluster.launcher(launcher, options, 2, tmp_path)


def test_a_ray_cluster_that_does_not_answer_is_an_error(tmp_path):
    with pytest.raises(OSError, match="no Ray cluster answers at address=localhost:9"):
        cluster.with_ray(None, {"address": "localhost:9"}, 1, tmp_path)


def test_the_plan_estimates_hours_from_trained_models(tmp_path):
    names, epochs = ("a", "b", "c"), 4
    for name, done in (("a", 4), ("b.partial", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"epochs": epochs}))
        records = [
            {"time": 90.0 * step + 1e6 * (step > 15), "epoch": -(-step // 10)}
            | ({} if step % 10 else {"validation": 0})
            for step in range(10 * done + 1)
        ]
        text = "".join(json.dumps(each) + "\n" for each in records)
        (tmp_path / name / "metrics.jsonl").write_text(text)
    lines = cluster.plan([job(number, name) for number, name in enumerate(names)], tmp_path, 2)
    rows = [line.split()[:2] + line.split()[-5:-4] for line in lines.splitlines()]
    assert rows[:3] == [["complete", "a", "1.00"], ["50%", "b", "1.00"], ["missing", "c", "1.00"]]
    assert lines.endswith("1 of 3 complete; ≈ 1.50 h left, ≈ 0.75 h with 2 workers")
    with pytest.raises(SystemExit):
        fill(tmp_path, [job(0)], replace(SUBMITIT, plan=True))
    assert not (tmp_path / "theory").exists()
