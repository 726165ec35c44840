"""Workers: processes that measure jobs of a run, on this machine or on a cluster.

`runner.fill` coordinates. It submits units: a cell with all of its jobs, or a job without a cell. A
worker is a new process that gets the configuration, makes the same list of jobs, measures those of
its units and leaves their tables in a folder of the run that both see. Only the coordinator writes
results.csv and the page.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import inf, isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from experiments.rundir import write_whole
from hopfax.hub import read_json
from hopfax.train import interrupt

if TYPE_CHECKING:
    from experiments.runner import Job, Rows

RETRIES = 2  # of a unit whose worker was lost
IN_USE_SECONDS = 600.0  # that a worker waits for a cell in use by another process
SAVING_SECONDS = 60.0  # that workers have to save their states when the coordinator stops
STOP = "stop"  # file that asks workers to stop
UNSEEN = 72  # exit status of a worker that does not see the folder of the run
COMMAND = (  # of a worker; its standard input is a pickled request
    sys.executable,
    "-c",
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
    "from experiments import cluster; cluster.main()",
)


class Request(NamedTuple):
    """What a worker gets."""

    folder: Path  # for results and logs
    directory: str  # for relative paths
    command: Sequence[str]  # for provenance
    config: bytes  # pickled: its modules are imported later
    units: Sequence[str]
    waits: bool  # for cells in use


class Worker(NamedTuple):
    """A process that was started somewhere."""

    units: Sequence[str]
    has_ended: Callable[[], bool]
    status: Callable[[], int]  # exit status; raises any error if the worker was lost
    end: Callable[[], Any]


Start = Callable[[Sequence[str], bytes], Worker]
_request: Request | None = None  # in a worker


class Workers:
    """The workers of a run, and what they have measured so far.

    Args:
        config: The configuration of the run.
        jobs: Its jobs.
        turns: Units of each worker.
        start: Starts a worker.
        count: Number of workers at a time.
        folder: For what they leave, and their logs; removed at the end, unless jobs failed.
        own: Whether the coordinator measures too, and repeats what failed.
    """

    def __init__(
        self, config: Any, jobs: Sequence[Job], turns: Sequence[Sequence[str]], start: Start, *,
        count: int, folder: Path, own: bool = False,
    ):  # fmt: skip
        self.config, self.start, self.count, self.own = config, start, count, own
        self.units = units(jobs)
        self.names = {number: name for name, each in self.units.items() for number in each}
        self.waiting, self.running = [*turns], list[Worker]()
        self.pending = {name for turn in turns for name in turn}
        self.lost = dict.fromkeys(self.units, 0)
        self.tables: dict[int, Mapping[str, Rows]] = {}
        self.failed: dict[int, str] = {}
        self.folder = folder

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: Any, *error: object) -> None:
        """Stops the workers, which save first."""
        if self.folder.exists():
            (self.folder / STOP).touch()
        until = time.monotonic() + SAVING_SECONDS
        while (left := [each for each in self.running if not each.has_ended()]) and (
            time.monotonic() < until
        ):
            if self.own:
                left[0].end()
            time.sleep(0.2)
        for each in left:
            each.end()
        if not self.failed:
            shutil.rmtree(self.folder, ignore_errors=True)

    def share(self, number: int) -> float:
        """Returns the share done of a job, -1 if no worker has begun it."""
        if number in self.tables or self.names[number] not in self.pending:
            return float(number in self.tables) or -1.0
        try:
            return float((self.folder / f"{number}.share").read_text())
        except (OSError, ValueError):
            return -1.0

    def has(self, number: int) -> bool:
        """Returns whether a worker measures a job, or will."""
        if self.names[number] not in self.pending or number in self.tables:
            return False
        return not self.own or (bool(self.running) and self.share(number) >= 0)

    def are_busy(self) -> bool:
        """Returns whether results may follow."""
        return bool(self.running or self.waiting)

    def title(self, done: int) -> str:
        """Returns what to show of the workers, with the number of jobs done."""
        return f"[{done}/{len(self.names)}] {len(self.running)} of {self.count} workers"

    def add(self, number: int) -> None:
        """Has workers measure a job's unit, too."""
        self.pending.add(name := self.names[number])
        self.waiting.append([name])

    def poll(self) -> None:
        """Collects results, and starts workers for what is left."""
        ended = [worker for worker in self.running if worker.has_ended()]
        for name in self.pending & {name for each in self.running for name in each.units}:
            with contextlib.suppress(FileNotFoundError):
                self.collect(name, pickle.loads((self.folder / f"{name}.result").read_bytes()))
        for worker in ended:
            self.running.remove(worker)
            self.account(worker)
        while self.waiting and len(self.running) < self.count:
            self.folder.mkdir(exist_ok=True)
            names, config = self.waiting.pop(0), pickle.dumps(self.config)
            request = Request(
                self.folder, os.getcwd(), sys.orig_argv, config, names, waits=not self.own
            )
            with ignored(signal.SIGINT):  # Ctrl-C reaches the coordinator, which tells workers
                self.running.append(self.start(names, pickle.dumps(request)))

    def collect(self, name: str, result: Mapping[int, Mapping[str, Rows]] | str) -> None:
        """Takes over the result of a unit: tables by job, or an error."""
        self.pending.remove(name)
        if not isinstance(result, str):
            self.tables.update(result)
        elif not self.own:
            self.failed |= dict.fromkeys(self.units[name], result)

    def account(self, worker: Worker) -> None:
        """Submits the units of a lost worker again."""
        left = [name for name in worker.units if name in self.pending]
        if self.own:
            self.pending -= {*left}
        if not left or self.own:
            return
        try:
            reason = f"status {(status := worker.status())}"
        except Exception as error:  # its class depends on the launcher
            status, reason = None, str(error).partition("\n")[0]
        if status == UNSEEN:
            raise OSError(
                f"workers do not see {self.folder}: set --runs to a folder that all machines share"
            )
        if status == os.EX_TEMPFAIL:  # in use by another process, which the coordinator will say
            self.pending -= {*left}
            return
        for name in left:
            self.lost[name] += 1
            if self.lost[name] > RETRIES:
                self.collect(name, f"lost its worker {self.lost[name]} times ({reason})")
        if again := [name for name in left if name in self.pending]:
            self.waiting.append(again)


@contextlib.contextmanager
def ignored(number: int) -> Iterator[None]:
    """Has new processes ignore a signal."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


def units(jobs: Sequence[Job]) -> dict[str, list[int]]:
    """Returns the numbers of the jobs of each unit, by its name."""
    found: dict[str, list[int]] = {}
    for number, job in enumerate(jobs):
        found.setdefault(job.cell or f"job-{number}", []).append(number)
    return found


def start_here(names: Sequence[str], request: bytes) -> Worker:
    """Starts a worker on this machine."""
    process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE)
    assert process.stdin
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(request)
    return Worker(names, lambda: process.poll() is not None, process.wait, process.terminate)


def plan(jobs: Sequence[Job], root: Path, workers: int) -> str:
    """Returns a line for each unit: how far it is, its name, and the hours of its training.

    Hours still to come are estimates (≈), from trained models of the same task or else of any.
    """
    titles = {name: jobs[numbers[0]].title for name, numbers in units(jobs).items()}
    known = {name: each for name in titles if (each := trained(root, name))}
    lines, left = [], 0.0
    for name, title in titles.items():
        hours, share = known.get(name, (nan, 0.0))
        if isnan(hours):
            task = title.partition(",")[0]
            alike = [h for each, (h, _) in known.items() if titles[each].startswith(f"{task},")]
            alike = alike or [h for h, _ in known.values()]
            hours = float(np.median(alike)) if alike else nan
        state = "complete" if (root / name).exists() else f"{share:8.0%}" if share else "missing"
        left += hours * (1 - share) if state != "complete" else 0
        about = " " if state == "complete" else "≈"
        lines.append(f"{state:>8}  {name:16}  {about}{hours:6.2f} h  {title}")
    done = sum(line.startswith("complete") for line in lines)
    total = f"≈ {left:.1f} h left, ≈ {left / workers:.1f} h with {workers} workers"
    return "\n".join([*lines, f"{done} of {len(lines)} complete; {total}"]).replace("nan", "?")


def trained(root: Path, name: str) -> tuple[float, float] | None:
    """Returns the hours that a cell's whole training takes, and its share done; None if unknown."""
    folder = root / name if (root / name).exists() else root / f"{name}.partial"
    with contextlib.suppress(OSError, ValueError, LookupError):
        text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
        records = [json.loads(line) for line in text.splitlines()]
        gaps = np.diff([each["time"] for each in records])
        typical = np.median(gaps)
        hours = (
            float(np.where(gaps < 100 * typical, gaps, typical).sum()) / 3600
        )  # no interruptions
        if folder.suffix != ".partial":
            return hours, 1.0
        epochs = read_json(next(folder.rglob("config.json")))["epochs"]
        share = max(each["epoch"] for each in records if "validation" in each) / epochs
        return hours / share, share
    return None


def is_worker() -> bool:
    """Returns whether this process is a worker."""
    return _request is not None


def engine(name: str, options: Sequence[str], count: int, folder: Path) -> Start:
    """Returns what starts workers by a launcher with options KEY=VALUE.

    Raises:
        ValueError: The launcher is not installed, or refuses an option.
        OSError: A cluster is not there, or does not answer.
    """
    given: dict[str, Any] = {}
    for each in options:
        key, equals, value = each.partition("=")
        if not (key and equals and value):
            raise ValueError(f"--launcher-options must be KEY=VALUE, got {each}")
        try:
            given[key] = json.loads(value)
        except ValueError:
            given[key] = value
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        raise ValueError(
            f'--launcher {name} is not installed: pip install -e ".[experiments,cluster]"'
        ) from None
    return {"submitit": with_submitit, "ray": with_ray}[name](module, given, count, folder)


def with_submitit(submitit: Any, options: dict[str, Any], count: int, folder: Path) -> Start:
    """Returns what submits to Slurm, or where there is none, to this machine."""
    try:
        cluster = options.pop("cluster", None)
        executor = submitit.AutoExecutor(folder=folder / "submitit", cluster=cluster)
        # The default of five minutes is for tests of a cluster.
        executor.update_parameters(**{"timeout_min": 24 * 60, **options})
    except (RuntimeError, TypeError, NameError) as error:
        raise ValueError(f"--launcher submitit: {error}") from None

    def start(names: Sequence[str], request: bytes) -> Worker:
        job = executor.submit(subprocess.run, COMMAND, input=request)
        return Worker(names, job.done, lambda: job.result().returncode, job.cancel)

    return start


def with_ray(ray: Any, options: dict[str, Any], count: int, folder: Path) -> Start:
    """Returns what submits to the cluster at the option `address`, or to one on this machine."""
    address = options.pop("address", None)
    quiet: Any = {"log_to_driver": False, "logging_level": "error"}
    if address is None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # its children use no jax
            ray.init(num_cpus=count, include_dashboard=False, **quiet)
    else:
        host, _, port = str(address).rpartition("/")[2].rpartition(":")
        try:  # Ray itself waits for many minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        except (OSError, ValueError) as error:
            raise OSError(f"no Ray cluster answers at address={address}: {error}") from None
        ray.init(address=address, **quiet)
    try:
        remote = ray.remote(subprocess.run).options(max_retries=0, **options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"--launcher ray: {error}") from None

    def start(names: Sequence[str], request: bytes) -> Worker:
        task = remote.remote(COMMAND, input=request)
        return Worker(
            names, lambda: bool(ray.wait([task], timeout=0)[0]),
            lambda: ray.get(task).returncode, partial(ray.cancel, task, force=True),
        )  # fmt: skip

    return start


def main() -> None:
    """Runs in a worker."""
    global _request
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several may share a GPU
    signal.signal(signal.SIGUSR2, interrupt.request)  # Slurm's, before it ends a job
    _request = request = pickle.load(sys.stdin.buffer)
    if not request.folder.is_dir():
        sys.exit(UNSEEN)
    log = os.open(
        request.folder / f"{request.units[0]}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND
    )
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.orig_argv = [*request.command]
    try:
        os.chdir(request.directory)
        config = pickle.loads(request.config)
        if config.budget == "smoke":
            importlib.import_module("experiments.__main__").quick_to_compile()
        run = getattr(config, "run", None)
        with interrupt.listen():
            run() if run else sys.modules[type(config).__module__].run(config)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        for name in request.units:
            if not (request.folder / f"{name}.result").exists():
                leave(request, name, f"{type(error).__name__}: {error}")
        raise


def work(jobs: Sequence[Job], root: Path) -> None:
    """Measures a worker's units; `runner.fill` calls it in place of all jobs."""
    request = _request
    assert request
    parent, found, in_use = os.getppid(), units(jobs), False
    if unknown := {*request.units} - found.keys():
        raise ValueError(f"the worker has no {', '.join(unknown)}: its code or files differ")
    written: dict[int, float] = {}

    def on_progress(number: int, share: float, **_: Any) -> None:
        if time.monotonic() - written.get(number, -inf) > 1:
            written[number] = time.monotonic()
            write_whole(request.folder / f"{number}.share", str(share))
            if (request.folder / STOP).exists() or os.getppid() != parent:
                interrupt.request()
        interrupt.check()

    for name in request.units:
        until, numbers = time.monotonic() + IN_USE_SECONDS * request.waits, found[name]
        done = not request.waits and (root / name).exists()  # the coordinator tests it
        while not done:
            on_progress(numbers[0], 0.0)
            try:
                leave(request, name, {n: jobs[n].measure(partial(on_progress, n)) for n in numbers})
                done = True
            except BlockingIOError:
                written.clear()
                (request.folder / f"{numbers[0]}.share").unlink()
                if done := time.monotonic() >= until:
                    in_use = True
                else:
                    time.sleep(2)
    if in_use:
        sys.exit(os.EX_TEMPFAIL)


def leave(request: Request, name: str, result: Mapping[int, Mapping[str, Rows]] | str) -> None:
    """Stores what the coordinator collects of a unit: tables by the job's number, or an error."""
    write_whole(request.folder / f"{name}.result", pickle.dumps(result))
