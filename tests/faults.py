"""Injects faults into real runs, and counts the trials that survive.

python -m tests.faults [CASE ...] [--count N] [--seed S] [--out FILE.csv]

A trial of a run survives if the run, resumed after the fault, ends with the results and
predictions of an undisturbed run, bit for bit, or where no result is possible, with an error that
says what the case expects, such as the damaged file. `checkpoint` and `fuzz` say what they check.
Runs are forked from a process that has imported the project, so that random moments do not fall
into imports. Cases that are in FILE.csv are skipped.
"""

import argparse
import contextlib
import csv
import functools
import gzip
import io
import json
import multiprocessing
import os
import random
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from unittest import mock

import numpy as np

FLAGS = (
    "robustness --budget smoke --task sentiment --denoiser none --model tinybert --seeds 1 2"
    " --epochs 4 --patience 4 --width 16 --num-layers 1 --train-size 64 --test-size 32"
    " --vocab-size 200 --sites token --protocols sigma --levels 1 --noise-draws 1"
)
RUN = tuple(FLAGS.split())
TWO = (*RUN, "--model", "tinybert", "tinybert-mean")
SWEEP = (*TWO, "--launcher", "submitit", "--workers", "2")
PIECES = [*",;\t|\"'\\{}[]:\r\0\ufeff\u0301\u200b\u2028é那😀", "\r\n", "1e999", "nan", "null", "-1"]
CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(["experiments.robertha.suites", "matplotlib.pyplot", "tyro"])


def command(words, folder, jump):
    """Runs a command line, in a child; its clock jumps by some seconds after some others."""
    os.chdir(folder)
    with open(log(folder), "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    clock, begin = time.time, time.time()
    time.time = lambda: clock() + jump[0] * (clock() - begin > jump[1])
    sys.argv = ["experiments", *words]
    runpy.run_module("experiments", run_name="__main__")


def log(folder):
    return folder.with_suffix(".txt")


def fresh(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    log(folder).write_text("")
    return folder


def start(folder, words=RUN, runs="runs", jump=(0, 0)):
    process = CHILDREN.Process(target=command, args=([*words, "--runs", str(runs)], folder, jump))
    process.start()
    return process


def trouble(folder, process, statuses=(0,), named=("",)):
    """Waits for a run; returns what is wrong with its end. Errors must have one of some words."""
    process.join(300)
    output, status = log(folder).read_text(errors="replace"), process.exitcode
    process.kill()  # if it hangs
    right = status in statuses and (status <= 0 or any(each in output for each in named))
    return "" if right and "Traceback" not in output else f"status {status}: {output[-3000:]}"


def results(folder):
    arrays = lambda x: {name: each.tobytes() for name, each in np.load(x).items()}  # noqa: E731
    read, paths = {".csv": io.BytesIO.read, ".npz": arrays}, folder.rglob("*.[cn][sp][vz]")
    return {str(p.relative_to(folder)): read[p.suffix](io.BytesIO(p.read_bytes())) for p in paths}


def finish(folder, whole, words=RUN, ends=(), **how):
    """Resumes a run to its end; returns what differs. `ends` are allowed ones, see `trouble`."""
    wrong = trouble(folder, process := start(folder, words, **how), *ends)
    if wrong or process.exitcode:
        return wrong
    expected, actual = results(whole), results(folder)
    return ", ".join(p for p in expected | actual if expected.get(p) != actual.get(p))


@functools.cache
def undisturbed(place, words=RUN):
    for _ in range(2):  # the second compiles nothing
        folder, begin = fresh(place / f"undisturbed-{len(words)}"), time.monotonic()
        assert not (wrong := trouble(folder, start(folder, words))), wrong
    return folder, time.monotonic() - begin


def cut(folder, rng, seconds, **how):
    process = start(fresh(folder), **how)
    process.join(rng.uniform(0, seconds))
    process.kill()
    process.join()
    return folder


def kill(place, rng, count, words=RUN, by=signal.SIGKILL):
    """A signal to a run or one of its workers, at up to six moments before it may finish."""
    whole, seconds = undisturbed(place, words)
    while count > 0:
        folder, outcomes = fresh(place / f"killed-{count}"), []  # workers of the last may still end
        while len(outcomes) < min(count, 6):
            process = start(folder, words)
            process.join(rng.uniform(0, seconds))
            if process.exitcode is not None:
                break
            family = [process.pid]
            for parent in family:
                for path in Path(f"/proc/{parent}/task").glob("*/children"):
                    family += map(int, path.read_text().split())
            log(folder).write_text("")
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(rng.choice(family)), by)
            outcomes.append(trouble(folder, process, (0, 130, -by), ["To go on, run:"]))
        end = finish(folder, whole, words)
        yield from (each or end for each in outcomes)
        count -= len(outcomes)


def move(place, rng, count):
    """Another name of the folder of a killed run, given by a relative or an absolute path."""
    whole, seconds = undisturbed(place)
    for number in range(count):
        folders = place / "before", fresh(place / "after")
        before, after = (each / "runs" if number % 2 else "runs" for each in folders)
        cut(folders[0], rng, seconds, runs=before).replace(folders[1])
        yield finish(folders[1], whole, runs=after)


def clock(place, rng, count):
    """A clock that has jumped since a run was killed, and jumps back while it is resumed."""
    whole, seconds = undisturbed(place)
    for _ in range(count):
        folder = cut(place / "clock", rng, seconds)
        jump = rng.choice([-1, 1]) * 10 ** rng.uniform(1, 8)  # a year has 3e7 seconds
        for path in folder.rglob("*"):
            os.utime(path, (path.stat().st_mtime + jump,) * 2)
        yield finish(folder, whole, jump=(jump, rng.uniform(0, seconds)))


def writers(place, rng, count):
    """Two or four processes at once: each finishes, or says that others are at work."""
    whole, _ = undisturbed(place, TWO)
    for number in range(count):
        folder, ends = fresh(place / "writers"), ((0, 1), ["in progress in other processes"])
        processes = [start(folder, TWO) for _ in range(2 + number % 2 * 2)]
        wrong = "".join([trouble(folder, process, *ends) for process in processes])
        yield wrong or finish(folder, whole, TWO)


def disk(place, rng, count):
    """A full disk, a tmpfs of some KiB, which root can mount; then there is space."""
    whole, _ = undisturbed(place)
    for size in np.linspace(40, 1000, count).astype(int):
        folder = fresh(place / "disk")
        mount = ["mount", "-t", "tmpfs", "tmpfs", str(folder), "-o"]
        subprocess.run([*mount, f"size={size}k"], check=True)
        try:
            wrong = trouble(folder, start(folder), (0, 1), ["No space left on device"])
            subprocess.run([*mount, "remount,size=1g"], check=True)
            yield wrong or finish(folder, whole)
        finally:
            subprocess.run(["umount", str(folder)], check=True)


def damage(place, rng, count):
    """A file lost, cut off, with a flipped bit or without some bytes, of any run."""
    whole, seconds = undisturbed(place)
    for number in range(count):
        half = place / "half" if number % 8 else cut(place / "half", rng, seconds)
        source = half if number % 4 == 0 and any(half.rglob("*.*")) else whole
        shutil.copytree(source, folder := fresh(place / "damage"), dirs_exist_ok=True)
        path = rng.choice([each for each in sorted(folder.rglob("*")) if each.is_file()])
        data, kind = path.read_bytes() or b" ", rng.integers(4)
        first, last = sorted(rng.integers(len(data), size=2))
        rest = b"", data[last:], bytes([data[first] ^ 1 << rng.integers(8)]) + data[first + 1 :]
        path.unlink() if kind == 3 else path.write_bytes(data[:first] + rest[kind])
        name = path.relative_to(folder)
        places = [str(each) for each in (name, *name.parents) if len(each.parts) > 2]
        wrong = finish(folder, whole, ends=((0, 1), places))
        yield wrong and f"{name}, {kind} at {first} to {last}: {wrong}"


def state(step):
    return {"x": np.random.default_rng(step).normal(size=(200, 300)), "step": np.array(step)}


def save(folder, complete):
    from hopfax.train.checkpoint import Checkpoints

    with Checkpoints(folder, config={}) as checkpoints:
        for step in range(complete.value + 1, 10**9):
            checkpoints.save(step, state(step))
            complete.value = step - 1


def checkpoint(place, rng, count):
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


def written(draw):
    codes = (draw.randrange(32, 0xD800) for _ in range(draw.randrange(12)))
    return "".join(draw.choice(PIECES) if draw.random() < 0.3 else chr(code) for code in codes)


def table(draw, size, path):
    names, content, separator = ["sentence", "label"], io.StringIO(), draw.choice(",\t;|")
    cells = [[written(draw), draw.choice(["0", "1", "a", written(draw)])] for _ in range(size)]
    csv.writer(content, delimiter=separator).writerows([names, *cells])
    objects = ",\n".join(json.dumps(dict(zip(names, each, strict=True))) for each in cells)
    raw = "\n".join(separator.join(each) for each in [names, *cells])
    text = draw.choice([content.getvalue(), raw, f"[{objects}]", objects.replace(",\n", "\n")])
    data = bytearray(text.encode(draw.choice(["utf-8", "utf-16", "cp1252"]), "ignore"))
    for _ in range(draw.randrange(4)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    path.write_bytes(data if draw.random() < 0.9 else gzip.compress(data)[: draw.randrange(9000)])


def fuzz(place, rng, count):
    """Random rows in files, texts for a tokenizer and a model, and flags: documented errors."""
    import jax

    from experiments import __main__ as commands
    from experiments.robertha.suites import Robustness
    from experiments.settings import resolved
    from hopfax import Classifier, data, nn

    draw, size = random.Random(int(rng.integers(2**32))), 100
    vocabulary = data.train_vocabulary(written(draw) for _ in range(99))
    model = nn.tinybert(vocabulary.size, 2, width=8, num_layers=1, ff_width=8, max_length=32)
    classifier = Classifier(model, model.init(jax.random.key(0)), vocabulary, ("a", "b"))
    path = fresh(place / "SST-2") / "dev.tsv"

    def parse(texts):
        for text in texts:
            words = list(RUN)
            words[draw.randrange(1, len(words))] = draw.choice([text, draw.choice(RUN)])
            with mock.patch.object(Robustness, "run", lambda config: resolved(config) and None):
                commands.main(words)

    calls = (
        *[lambda _: data.from_rows(*data.read_table(path, text="sentence"))] * 12,
        *[lambda _: data.read_split("sst2", place, "validation")] * 4,
        *[lambda texts: data.encode([data.Example(each, 0, 0) for each in texts], vocabulary)] * 2,
        classifier.predict,
        parse,
    )
    for number in range(-(-count // size)):
        table(draw, size, path)
        last, outcome = draw.choice(["a", "a", "", "\ud800"]), ""
        texts = [written(draw) + last for _ in range(size)]
        signal.alarm(600)  # ends a hang
        try:
            with warnings.catch_warnings(action="ignore"), mock.patch("sys.stderr", io.StringIO()):
                calls[number % len(calls)](texts)
        except Exception as error:
            documented = isinstance(error, (ValueError, OSError)) and str(error)
            outcome = "" if documented else f"{error!r} of {texts}"
        yield from [outcome] * size
    signal.alarm(0)


CASES = {
    "kill": (kill, 200),
    "sweep": (functools.partial(kill, words=SWEEP), 100),
    "checkpoint": (checkpoint, 200),
    "writers": (writers, 20),
    "disk": (disk, 10),
    "sigterm": (functools.partial(kill, by=signal.SIGTERM), 50),
    "move": (move, 20),
    "clock": (clock, 20),
    "damage": (damage, 300),
    "fuzz": (fuzz, 100_000),
}


def main():
    words = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m tests.faults", None, __doc__, formatter_class=words)
    parser.add_argument("case", nargs="*", help=", ".join(CASES))
    parser.add_argument("--count", type=int, help="number of trials of each case")
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults (default: 0)")
    parser.add_argument("--out", type=Path, default=Path("faults.csv"), help="table of results")
    flags = parser.parse_args()
    if unknown := {*flags.case} - {*CASES}:
        parser.error(f"cases must be of {', '.join(CASES)}, got {', '.join(unknown)}")
    with tempfile.TemporaryDirectory() as place, flags.out.open("a+") as file:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{place}/compiled")
        if not file.tell():
            print("case,trials,survived,worst,seconds", file=file, flush=True)
        done = flags.out.read_text()
        for name in [each for each in flags.case or CASES if f"\n{each}," not in done]:
            begin, rng, outcomes = time.monotonic(), np.random.default_rng(flags.seed), []
            for each in CASES[name][0](Path(place), rng, flags.count or CASES[name][1]):
                outcomes.append(each)
                print(f"{name} {len(outcomes)} {each}", file=sys.stderr, flush=True)
            worst = " ".join(max(outcomes, key=len)[-200:].split()).replace(",", ";")
            row = name, len(outcomes), outcomes.count(""), worst, round(time.monotonic() - begin)
            print(*row, sep=",", file=file, flush=True)


if __name__ == "__main__":
    os.environ |= {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    os.environ |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    main()
