"""Workers: processes that measure jobs of a run, on this machine or on a cluster.

`runner.fill` submits units: a cell with all of its jobs, or a job without a cell. A worker, a new
process, makes the same list of jobs from the configuration, measures those of its units and leaves
their tables in a folder that both see. Only `runner.fill` writes results.csv and the page.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf, nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.rundir import plain, restore, write_whole
from hopfax.hub import read_json
from hopfax.train import interrupt

RETRIES = 2  # per unit whose worker was lost
IN_USE_SECONDS = 600.0  # that a worker waits for a cell that is in use
SAVING_SECONDS = 60.0  # for workers to save when the coordinator stops
STOP = "stop"  # workers stop once this file exists
UNSEEN = 72  # exit status of a worker that does not see the folder of the run
# Starts a worker, which reads a request from standard input.
CODE = "import sys; sys.path[:0] = sys.argv[1:]; __import__('experiments.cluster').cluster.main()"
COMMAND = (sys.executable, "-c", CODE, str(Path(__file__).parents[1]))

Rows = pd.DataFrame | Sequence[Mapping[str, Any]]


class Job(NamedTuple):
    """One part of a run, such as a model to train and test.

    `measure(on_progress)` returns rows by the stem of their CSV file, such as "results".
    `on_progress(share, **shown)` takes the share done, in [0, 1]. A BlockingIOError says that
    another process works on it.
    """

    title: str  # in the progress line
    measure: Callable[[Callable[..., None]], Mapping[str, Rows]]
    cell: str = ""  # its folder in `runs/cells/`, if it has one


Submit = Callable[..., Any]  # submits a call to a worker; returns a future
assigned: dict[str, Any] = {}  # a worker's request, see `Workers.poll`


class Workers:
    """The workers of a run, and what they have measured so far.

    Each of `turns` lists the units of one of `count` workers at a time. With `own`, the coordinator
    measures too. `folder`, for results and logs, is removed at the end unless jobs failed.
    """

    def __init__(
        self, config: Any, jobs: Sequence[Job], turns: Sequence[Sequence[str]], submit: Submit, *,
        count: int, folder: Path, own: bool = False,
    ):  # fmt: skip
        self.config, self.submit, self.count, self.own = config, submit, count, own
        self.jobs = jobs
        self.units, self.folder = units(jobs), folder
        self.unit_of = {number: name for name, each in self.units.items() for number in each}
        self.waiting, self.running = [*turns], list[tuple[Sequence[str], Any]]()
        self.pending, self.lost = {name for turn in turns for name in turn}, Counter[str]()
        self.tables: dict[int, Mapping[str, Rows]] = {}
        self.failed: dict[int, str] = {}

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        """Stops the workers, which save first."""
        until = time.monotonic() + SAVING_SECONDS
        while self.running and time.monotonic() < until:
            (self.folder / STOP).touch()
            time.sleep(0.1)
            self.running = [each for each in self.running if not each[1].done()]
        for _, job in self.running:
            job.cancel()
        if not self.failed:
            shutil.rmtree(self.folder, ignore_errors=True)

    def share(self, number: int) -> float:
        """Returns the share done of a job, -1 if no worker has begun it."""
        if any(self.unit_of[number] in names for names, _ in self.running):
            with contextlib.suppress(OSError, ValueError):
                return float((self.folder / f"{number}.share").read_text())
        return -1.0

    def has(self, number: int) -> bool:
        """Returns whether a worker measures a job, or will."""
        if self.own:
            return 0 <= self.share(number) < 1 and number not in self.tables
        return self.unit_of[number] in self.pending

    def are_busy(self) -> bool:
        """Returns whether workers run or wait to start."""
        return bool(self.running or self.waiting)

    def add(self, number: int) -> None:
        """Queues a job's unit for the workers."""
        self.pending.add(self.unit_of[number])
        self.waiting.append([self.unit_of[number]])

    def poll(self) -> None:
        """Collects results, and starts workers for what is left."""
        ended = [each for each in self.running if each[1].done()]
        for name in self.pending & {name for names, _ in self.running for name in names}:
            with contextlib.suppress(FileNotFoundError):
                self.collect(name, read_json(self.folder / f"{name}.result"))
        for each in ended:
            self.running.remove(each)
            self.account(*each)
        while self.waiting and len(self.running) < self.count:
            self.folder.mkdir(exist_ok=True)
            request = {
                "folder": str(self.folder),
                "directory": os.getcwd(),  # for relative paths
                "command": sys.orig_argv,  # for provenance
                "kind": (type(self.config).__module__, type(self.config).__name__),
                "config": plain(self.config),
                "units": (names := self.waiting.pop(0)),
                "waits": not self.own,  # for cells in use
                "titles": [job.title for job in self.jobs],  # the worker must have the same
            }
            # Ctrl-C reaches only the coordinator, which asks workers to stop.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                job = self.submit(subprocess.run, COMMAND, input=json.dumps(request).encode())
            except Exception as error:  # its class depends on the launcher
                reason = str(error).strip().partition("\n")[0]
                raise OSError(f"the launcher refused a worker: {reason}") from error
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            self.running.append((names, job))

    def collect(self, name: str, result: Mapping[str, Any]) -> None:
        """Takes over the result of a unit: tables by job, or an error."""
        self.pending.remove(name)
        if "error" in result:
            self.failed.update((number, result["error"]) for number in self.units[name])
        for number, tables in result.get("tables", {}).items():
            self.tables[int(number)] = {stem: unpack(each) for stem, each in tables.items()}

    def account(self, names: Sequence[str], job: Any) -> None:
        """Submits the unit of a lost worker again."""
        left, reason = self.pending & {*names}, ""
        try:
            status = job.result().returncode
        except Exception as error:  # its class depends on the launcher
            status, reason = -1, str(error).partition("\n")[0]
        if status == UNSEEN:
            raise OSError(
                f"workers do not see {self.folder}: set --runs to a folder that all machines share"
            )
        self.lost.update(left)
        if self.own or status == os.EX_TEMPFAIL:  # the coordinator tries, too
            self.pending -= left
        elif left and self.lost[name := names[0]] > RETRIES:
            reason = f"{reason or f'status {status}'}; log: {self.folder / name}.log"
            self.collect(name, {"error": f"lost its worker {self.lost[name]} times: {reason}"})
        elif left:
            self.waiting.append(names)


def units(jobs: Sequence[Job]) -> dict[str, list[int]]:
    """Returns the numbers of the jobs of each unit, by its name."""
    found: dict[str, list[int]] = {}
    for number, job in enumerate(jobs):
        found.setdefault(job.cell or f"job-{number}", []).append(number)
    return found


def plan(jobs: Sequence[Job], root: Path, workers: int) -> str:
    """Returns a line for each unit: how far it is, its name, and the hours of its training.

    Hours still to come are estimates (≈): of the cell itself, else the median of the same task.
    """
    titles = {name: jobs[numbers[0]].title for name, numbers in units(jobs).items()}
    known = {name: each for name in titles if (each := training_hours(root, name))}
    lines, left, shown = [], 0.0, lambda hours: f"{hours:.2f}".replace("nan", "?")
    for name, title in titles.items():
        task = title.partition(",")[0]
        alike = [h for each, (h, _) in known.items() if titles[each].startswith(f"{task},")]
        hours, share = known.get(name, (float(np.median(alike or [nan])), 0.0))
        state = "complete" if (root / name).exists() else f"{share:8.0%}" if share else "missing"
        left += hours * (1 - share) if state != "complete" else 0
        hint = "≈ "[state == "complete"]
        lines.append(f"{state:>8}  {name:16} {hint}{shown(hours):>6} h  {title}")
    done = sum(line.startswith("complete") for line in lines)
    total = f"≈ {shown(left)} h left, ≈ {shown(left / workers)} h with {workers} workers"
    return "\n".join([*lines, f"{done} of {len(lines)} complete; {total}"])


def training_hours(root: Path, name: str) -> tuple[float, float] | None:
    """Returns the hours that a cell's whole training takes, and its share done; None if unknown."""
    folder = root / name if (root / name).exists() else root / f"{name}.partial"
    with contextlib.suppress(OSError, ValueError, LookupError):
        records = [*map(json.loads, (folder / "metrics.jsonl").read_bytes().splitlines())]
        gaps = np.diff([each["time"] for each in records])
        gaps[gaps > 100 * np.median(gaps)] = np.median(gaps)  # interruptions
        hours = float(gaps.sum()) / 3600
        if folder.suffix != ".partial":
            return hours, 1.0
        epochs = read_json(next(folder.rglob("config.json")))["epochs"]
        share = max(each["epoch"] for each in records if "validation" in each) / epochs
        return hours / share, share


def launcher(name: str, options: Sequence[str], count: int, folder: Path) -> Submit:
    """Returns the submit function of a launcher; options are KEY=VALUE.

    Raises:
        ValueError: The launcher is not installed, or refuses an option.
        OSError: The Ray cluster does not answer.
    """
    given: dict[str, Any] = {}
    for each in options:
        key, _, value = each.partition("=")
        if not (key and value):
            raise ValueError(f"--launcher-options must be KEY=VALUE, got {each}")
        given[key] = value
        with contextlib.suppress(ValueError):
            given[key] = json.loads(value)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        raise ValueError(
            f'--launcher {name} is not installed: pip install -e ".[experiments,cluster]"'
        ) from None
    return {"submitit": with_submitit, "ray": with_ray}[name](module, given, count, folder)


def with_submitit(submitit: Any, options: dict[str, Any], count: int, folder: Path) -> Submit:
    """Returns the submit function of submitit: Slurm, or this machine without Slurm."""
    try:
        cluster = options.pop("cluster", None)
        executor = submitit.AutoExecutor(folder=folder / "submitit", cluster=cluster)
        # The default of five minutes is for tests of a cluster.
        executor.update_parameters(**{"timeout_min": 24 * 60, **options})
    except (RuntimeError, TypeError, NameError) as error:
        raise ValueError(f"--launcher submitit: {error}") from None
    return executor.submit


def with_ray(ray: Any, options: dict[str, Any], count: int, folder: Path) -> Submit:
    """Returns the submit function of Ray: the cluster at option address, or one on this machine."""
    if address := options.pop("address", None):
        host, _, port = str(address).rpartition("/")[2].rpartition(":")
        try:  # Ray itself waits for many minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        except (OSError, ValueError) as error:
            raise OSError(f"no Ray cluster answers at address={address}: {error}") from None
    own = {} if address else {"num_cpus": count, "include_dashboard": False}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # its children use no jax
        ray.init(address, **own, log_to_driver=False, logging_level="error")
    try:
        remote = ray.remote(subprocess.run).options(max_retries=0, **options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"--launcher ray: {error}") from None
    return lambda _, *args, **options: remote.remote(*args, **options).future()


def main() -> None:
    """Runs a worker: reads a request from standard input and measures its units."""
    global assigned
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several may share a GPU
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # Slurm's: submitit ends the worker
    assigned = request = json.load(sys.stdin)
    if not (folder := Path(request["folder"])).is_dir():
        sys.exit(UNSEEN)
    with (folder / f"{request['units'][0]}.log").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.orig_argv = request["command"]
    threading.Thread(target=watch, args=(folder, os.getppid()), daemon=True).start()
    try:
        os.chdir(request["directory"])
        module = importlib.import_module(request["kind"][0])
        config = restore(getattr(module, request["kind"][1])(), request["config"])
        if config.budget == "smoke":
            importlib.import_module("experiments.__main__").quick_to_compile()
        with interrupt.listen():
            module.run(config) if hasattr(module, "run") else config.run()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if request["waits"]:  # else the coordinator repeats it
            leave(folder, request["units"][0], error=f"{type(error).__name__}: {error}")
        raise


def watch(folder: Path, parent: int) -> None:
    """Requests a stop once the coordinator asks for it, or is gone; attacks report no progress."""
    while folder.exists() and not (folder / STOP).exists() and os.getppid() == parent:
        time.sleep(1)
    interrupt.request()


def work(jobs: Sequence[Job], root: Path) -> None:
    """Measures a worker's units; `runner.fill` calls it in place of all jobs."""
    request, folder, written = assigned, Path(assigned["folder"]), dict[int, float]()
    found, in_use = units(jobs), False
    if {*request["units"]} - found.keys() or request["titles"] != [job.title for job in jobs]:
        raise ValueError("the worker has other jobs: its code or files differ")

    def on_progress(number: int, share: float, **_: Any) -> None:
        if time.monotonic() - written.get(number, -inf) > 1:
            written[number] = time.monotonic()
            with contextlib.suppress(OSError):  # only shown
                write_whole(folder / f"{number}.share", str(share))
        interrupt.check()

    for name in request["units"]:
        until, numbers = time.monotonic() + IN_USE_SECONDS * request["waits"], found[name]
        while request["waits"] or not (root / name).exists():  # the coordinator tests trained ones
            on_progress(numbers[0], 0.0)
            try:
                measured = {n: jobs[n].measure(partial(on_progress, n)) for n in numbers}
            except BlockingIOError:
                written.clear()
                (folder / f"{numbers[0]}.share").unlink(missing_ok=True)
                if in_use := time.monotonic() >= until:
                    break
                time.sleep(2)
            else:
                tables = {n: {k: pack(v) for k, v in each.items()} for n, each in measured.items()}
                leave(folder, name, tables=tables)
                break
    if in_use:
        sys.exit(os.EX_TEMPFAIL)


def leave(folder: Path, name: str, **result: Any) -> None:
    """Stores what `Workers.collect` takes: `tables` by the job's number, or `error`."""
    write_whole(folder / f"{name}.result", json.dumps(result, default=np.generic.item))


def pack(rows: Rows) -> dict[str, tuple[str, list[Any]]]:
    """Returns the type and the values of each column, as JSON."""
    frame = pd.DataFrame(rows)
    return {str(name): (str(column.dtype), column.tolist()) for name, column in frame.items()}


def unpack(columns: Mapping[str, tuple[str, list[Any]]]) -> pd.DataFrame:
    """Returns the table of `pack`."""
    return pd.DataFrame({name: pd.Series(v, dtype=kind) for name, (kind, v) in columns.items()})
