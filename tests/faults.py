"""Injects faults into real runs, and counts the trials that survive.

python -m tests.faults [CASE ...] [--count N] [--seed S] [--out FILE.csv]

A trial survives if the run, resumed after the fault, ends with the results and predictions of an
undisturbed run, bit for bit. An error survives only where there can be no result, and if it names
its file. Runs are forked from a process that has imported the project, and load programs that are
compiled already, so that a random moment is one of work. Cases in FILE.csv are not repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import io
import json
import multiprocessing
import os
import random
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

RUN = shlex.split(
    "robustness --budget smoke --task sentiment --denoiser none --model tinybert --seeds 1 2"
    " --epochs 4 --patience 4 --width 16 --num-layers 1 --train-size 64 --test-size 32"
    " --vocab-size 200 --sites token --protocols sigma --levels 1 --noise-draws 1"
)
TWO = [*RUN, "--model", "tinybert", "tinybert-mean"]
SWEEP = [*TWO, "--budget", "laptop"]  # in two processes
WAIT = 300  # seconds until a run counts as hanging
PIECES = [*",;\t|\"'\\{}[]:\r\0\ufeff\u0301\u200b\u2028é那😀", "\r\n", "1e999", "nan", "null", "-1"]
CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(["experiments.robertha.suites", "matplotlib.pyplot", "tyro"])
Outcomes = Iterator[str]  # of trials: "" for one that survived, or what happened


def command(words: Sequence[str], folder: Path, jump: tuple[float, float]) -> None:
    """Runs a command line, in a child; its clock jumps by some seconds after some others."""
    os.setpgrp()  # with processes that it starts
    os.chdir(folder)
    with open(log(folder), "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    clock, begin = time.time, time.time()
    time.time = lambda: clock() + jump[0] * (clock() - begin > jump[1])
    sys.argv = ["experiments", *words]
    runpy.run_module("experiments", run_name="__main__")


def log(folder: Path) -> Path:
    """Returns the file of the output of the runs in a folder."""
    return folder.with_suffix(".txt")


def fresh(folder: Path) -> Path:
    """Empties a folder and its log."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    log(folder).write_text("")
    return folder


def start(folder: Path, words: Sequence[str] = RUN, runs: Any = "runs", jump: Any = (0, 0)) -> Any:
    """Starts a command line in a folder."""
    process = CHILDREN.Process(target=command, args=([*words, "--runs", str(runs)], folder, jump))
    process.start()
    return process


def stop(process: Any) -> None:
    """Kills a process and those that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()


def trouble(folder: Path, process: Any, statuses: Sequence[int] = (0,), words: Any = ("",)) -> str:
    """Waits for a run; returns what is wrong with its end. Errors must have one of the words."""
    process.join(WAIT)
    output, status = log(folder).read_text(errors="replace"), process.exitcode
    stop(process)
    right = not status or any(each in output for each in words)
    right = right and status in statuses and "Traceback" not in output
    return "" if right else f"status {status}: {output[-3000:]}"


def results(folder: Path) -> dict[str, bytes]:
    """Returns results and predictions by path."""
    paths = (path for each in ("*.csv", "*.npz") for path in (folder / "runs").rglob(each))
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def finish(
    folder: Path, expected: dict[str, bytes], words: Sequence[str] = RUN, ends: Any = (), **how: Any
) -> str:
    """Resumes a run to its end; returns what differs. `ends` are those of `trouble`."""
    wrong, actual = trouble(folder, process := start(folder, words, **how), *ends), results(folder)
    differing = [each for each in expected | actual if expected.get(each) != actual.get(each)]
    return wrong or ("" if process.exitcode else ", ".join(differing))


def undisturbed(place: Path, words: Sequence[str] = RUN) -> tuple[dict[str, bytes], float]:
    """Returns the results and the seconds of a run without faults that compiles nothing."""
    folder = place / f"undisturbed-{len(words)}"
    seconds = folder.with_suffix(".seconds")
    for _ in range(0 if seconds.exists() else 2):
        begin, process = time.monotonic(), start(fresh(folder), words)
        if wrong := trouble(folder, process):
            raise RuntimeError(wrong)
        seconds.write_text(str(time.monotonic() - begin))
    return results(folder), float(seconds.read_text())


def cut(folder: Path, rng: Any, seconds: float, **how: Any) -> Path:
    """Starts a run, and kills it at a random moment."""
    process = start(fresh(folder), **how)
    process.join(rng.uniform(0, seconds))
    stop(process)
    return folder


def struck(
    place: Path, rng: Any, count: int, strike: Callable[..., str], words: Any = RUN
) -> Outcomes:
    """Strikes at random moments of a run, up to six times before it may finish."""
    expected, seconds = undisturbed(place, words)
    while count > 0:
        folder, outcomes, processes = fresh(place / "struck"), [], []
        while len(outcomes) < min(count, 6):
            processes.append(process := start(folder, words))
            process.join(rng.uniform(0, seconds))
            if process.exitcode is not None:
                break
            outcomes.append(strike(folder, process))
        end = finish(folder, expected, words)
        for process in processes:
            stop(process)
        yield from (each or end for each in outcomes)
        count -= len(outcomes)


def kill(place: Path, rng: Any, count: int) -> Outcomes:
    """SIGKILL."""
    return struck(place, rng, count, lambda folder, process: stop(process) or "")


def sigterm(place: Path, rng: Any, count: int) -> Outcomes:
    """SIGTERM: the run saves, ends with status 130 and says how to go on."""

    def strike(folder: Path, process: Any) -> str:
        log(folder).write_text("")
        process.terminate()
        wrong = trouble(folder, process, (130, 0), ("To go on, run:",))
        return "" if process.exitcode == -signal.SIGTERM else wrong  # it had not begun

    return struck(place, rng, count, strike)


def sweep(place: Path, rng: Any, count: int) -> Outcomes:
    """SIGKILL of the first process of several, or of a worker, without which the first goes on."""

    def strike(folder: Path, process: Any) -> str:
        family = [process.pid]
        for parent in family:
            for path in Path(f"/proc/{parent}/task").glob("*/children"):
                family += map(int, path.read_text().split())
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim := int(rng.choice(family)), signal.SIGKILL)
        return process.join() or "" if victim == process.pid else trouble(folder, process)

    return struck(place, rng, count, strike, SWEEP)


def move(place: Path, rng: Any, count: int) -> Outcomes:
    """Another name of the folder of a killed run, given by a relative or an absolute path."""
    expected, seconds = undisturbed(place)
    for number in range(count):
        folders = place / "before", fresh(place / "after")
        before, after = (each / "runs" if number % 2 else "runs" for each in folders)
        cut(folders[0], rng, seconds, runs=before).replace(folders[1])
        yield finish(folders[1], expected, runs=after)


def clock(place: Path, rng: Any, count: int) -> Outcomes:
    """A clock that has jumped since a run was killed, and jumps back while it is resumed."""
    expected, seconds = undisturbed(place)
    for _ in range(count):
        folder = cut(place / "clock", rng, seconds)
        jump = rng.choice([-1, 1]) * 10 ** rng.uniform(1, 8)  # a year has 3e7 seconds
        for path in folder.rglob("*"):
            os.utime(path, (path.stat().st_mtime + jump,) * 2)
        yield finish(folder, expected, jump=(jump, rng.uniform(0, seconds)))


def writers(place: Path, rng: Any, count: int) -> Outcomes:
    """Two or four processes at once: each finishes, or says that others are at work."""
    expected, _ = undisturbed(place, TWO)
    for number in range(count):
        folder = fresh(place / "writers")
        processes = [start(folder, TWO) for _ in range(2 + number % 2 * 2)]
        said = (0, 1), ("in progress in other processes",)
        wrong = "".join([trouble(folder, process, *said) for process in processes])
        yield wrong or finish(folder, expected, TWO)


def disk(place: Path, rng: Any, count: int) -> Outcomes:
    """A full disk, a tmpfs of some KiB, which root can mount; then there is space."""
    expected, _ = undisturbed(place)
    for size in np.linspace(40, 1000, count).astype(int):
        folder = fresh(place / "disk")
        mount = ["mount", "-t", "tmpfs", "tmpfs", str(folder), "-o"]
        subprocess.run([*mount, f"size={size}k"], check=True)
        try:
            wrong = trouble(folder, start(folder), (0, 1), ("No space left on device",))
            subprocess.run([*mount, "remount,size=1g"], check=True)
            yield wrong or finish(folder, expected)
        finally:
            subprocess.run(["umount", str(folder)], check=True)


def damage(place: Path, rng: Any, count: int) -> Outcomes:
    """A file lost, cut off, with a flipped bit or without some bytes, of any run."""
    expected, seconds = undisturbed(place)
    for number in range(count):
        half = place / "half" if number % 8 else cut(place / "half", rng, seconds)
        source = (
            half
            if number % 4 == 0 and any(half.rglob("*.*"))
            else place / f"undisturbed-{len(RUN)}"
        )
        shutil.copytree(source, folder := fresh(place / "damage"), dirs_exist_ok=True)
        path = rng.choice([each for each in sorted(folder.rglob("*")) if each.is_file()])
        data, kind = bytearray(path.read_bytes() or b" "), rng.integers(4)
        first, last = sorted(rng.integers(len(data), size=2))
        if kind == 0:
            data[first] ^= 1 << rng.integers(8)
        else:
            del data[first : last if kind == 1 else None]
        path.unlink() if kind == 3 else path.write_bytes(data)
        name = path.relative_to(folder)
        places = [str(each) for each in (name, *name.parents) if len(each.parts) > 2]
        wrong = finish(folder, expected, ends=((0, 1), places))
        yield wrong and f"{name}, {kind} at {first} to {last}: {wrong}"


def state(step: int) -> dict[str, np.ndarray]:
    """Returns arrays that depend on the step."""
    return {"x": np.random.default_rng(step).normal(size=(200, 300)), "step": np.array(step)}


def save(folder: Path, complete: Any) -> None:
    """Saves checkpoints without end, in a child; `complete` is the step of the newest."""
    from hopfax.train.checkpoint import Checkpoints

    with Checkpoints(folder, config={}) as checkpoints:
        for step in range(complete.value + 1, 10**9):
            checkpoints.save(step, state(step))
            complete.value = step - 1


def checkpoint(place: Path, rng: Any, count: int) -> Outcomes:
    """SIGKILL of a process that saves checkpoints: the newest is read, as it was saved."""
    from hopfax.train.checkpoint import Checkpoints

    folder, complete = fresh(place / "checkpoint"), CHILDREN.Value("q", 0, lock=False)
    for _ in range(count):
        process = CHILDREN.Process(target=save, args=(folder, complete))
        process.start()
        process.join(rng.uniform(0, 1))
        process.kill()
        process.join()
        with warnings.catch_warnings(record=True) as caught, Checkpoints(folder, config={}) as run:
            step, tree = run.restore(state(0)) or (0, state(0))
        same = all(tree[name].tobytes() == each.tobytes() for name, each in state(step).items())
        lost, complete.value = complete.value - step, step
        yield "" if lost <= 0 and same and not caught else f"{step=} {lost=} {same=} {caught=}"


def written(draw: random.Random) -> str:
    """Returns a short string of any characters."""
    codes = (draw.randrange(32, 0xD800) for _ in range(draw.randrange(12)))
    return "".join(draw.choice(PIECES) if draw.random() < 0.3 else chr(code) for code in codes)


def table(draw: random.Random, rows: int) -> tuple[str, bytes]:
    """Returns the ending and the content of a file of rows, perhaps garbled."""
    names, ending = ["sentence", "label"], draw.choice(["csv", "tsv", "jsonl", "json.gz"])
    cells = [[written(draw), draw.choice(["0", "1", "a", written(draw)])] for _ in range(rows)]
    content, separator = io.StringIO(), draw.choice(",\t;|")
    if "json" in ending:
        objects = [json.dumps(dict(zip(names, each, strict=True))) for each in cells]
        content.write("\n".join(objects) if ending == "jsonl" else f"[{','.join(objects)}]")
    elif draw.random() < 0.5:
        content.writelines(f"{separator.join(each)}\n" for each in [names, *cells])
    else:
        csv.writer(content, delimiter=separator).writerows([names, *cells])
    data = bytearray(
        content.getvalue().encode(draw.choice(["utf-8", "utf-16", "cp1252"]), "ignore")
    )
    for _ in range(draw.randrange(4)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return ending, gzip.compress(data)[: draw.randrange(10_000)] if ".gz" in ending else bytes(data)


def undocumented(call: Callable[..., Any], *arguments: Any) -> str:
    """Returns an error that is no ValueError, TypeError or OSError; SIGALRM ends a hang."""
    signal.alarm(60)
    try:
        with warnings.catch_warnings(action="ignore"), contextlib.redirect_stderr(io.StringIO()):
            call(*arguments)
    except Exception as error:
        if not isinstance(error, (ValueError, TypeError, OSError)) or not str(error):
            return f"{error!r} of {arguments}"
    finally:
        signal.alarm(0)
    return ""


def fuzz(place: Path, rng: Any, count: int) -> Outcomes:
    """Random rows in files, texts for a tokenizer and a model, and flags."""
    import jax

    from experiments import __main__ as commands
    from experiments.robertha.suites import Robustness
    from experiments.settings import resolved
    from hopfax import Classifier, data, nn

    draw, folder, size = random.Random(int(rng.integers(2**32))), fresh(place / "fuzz"), 100
    vocabulary = data.train_vocabulary(written(draw) for _ in range(99))
    model = nn.tinybert(vocabulary.size, 2, width=8, num_layers=1, ff_width=8, max_length=32)
    classifier = Classifier(model, model.init(jax.random.key(0)), vocabulary, ("a", "b"))
    (folder / "SST-2").mkdir()

    def read(ending: str, content: bytes) -> None:
        (folder / f"rows.{ending}").write_bytes(content)
        data.from_rows(*data.read_table(folder / f"rows.{ending}", text="sentence"))

    def read_raw(_: str, content: bytes) -> None:
        (folder / "SST-2" / "dev.tsv").write_bytes(content)
        data.read_split("sst2", folder, "validation")

    def encode(texts: Sequence[str]) -> None:
        data.encode([data.Example(each, 0, 0) for each in texts], vocabulary, max_length=16)

    def parse(texts: Sequence[str]) -> None:
        for text in texts:
            words = list(RUN)
            words[draw.randrange(1, len(words))] = draw.choice([text, draw.choice(RUN)])
            commands.main(words)

    with mock.patch.object(Robustness, "run", resolved):
        for number in range(-(-count // size)):
            if number % 10 < 8:
                outcome = undocumented((read, read_raw)[number % 4 == 0], *table(draw, size))
            else:
                last = draw.choice(["a", "a", "", "\ud800"])
                call = {8: encode, 9: classifier.predict, 18: encode, 19: parse}[number % 20]
                outcome = undocumented(call, [f"{written(draw)}{last}" for _ in range(size)])
            yield from [outcome] * size


COUNTS = {
    kill: 200, sweep: 100, checkpoint: 200, writers: 20, disk: 10, sigterm: 50, move: 20, clock: 20,
    damage: 300, fuzz: 100_000,
}  # fmt: skip
CASES = {case.__name__: case for case in COUNTS}


def main() -> None:
    """Runs cases and appends their rows to a file."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("case", nargs="*", help=", ".join(CASES))
    parser.add_argument("--count", type=int, help="number of trials of each case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("faults.csv"))
    flags = parser.parse_args()
    header = "case,trials,survived,worst,seconds"
    done = flags.out.read_text() if flags.out.exists() else header
    with tempfile.TemporaryDirectory() as place, flags.out.open("w") as file:
        print(done.strip(), file=file, flush=True)
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{place}/compiled")
        for name in flags.case or CASES:
            if f"\n{name}," in done:
                continue
            begin, rng, outcomes = time.monotonic(), np.random.default_rng(flags.seed), []
            for each in CASES[name](Path(place), rng, flags.count or COUNTS[CASES[name]]):
                outcomes.append(each)
                print(f"{name} {len(outcomes)} {each}", file=sys.stderr, flush=True)
            worst = " ".join(max(outcomes, key=len)[-200:].split()).replace(",", ";")
            row = name, len(outcomes), outcomes.count(""), worst or "same results"
            print(*row, round(time.monotonic() - begin), sep=",", file=file, flush=True)


if __name__ == "__main__":
    os.environ |= {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    os.environ |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    main()
