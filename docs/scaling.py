"""Writes the tables of scaling.md: python docs/scaling.py.

With the folder of the raw data sets, `python docs/scaling.py DIR` first measures scaling.csv: the
processor time (which other programs do not lengthen) and FLOPs of a training step of the paper's
models, five seeds of random tokens at several padded lengths; the steps of an epoch by padded
length; and what grows with a sweep. Half an hour on one core.
"""

import heapq
import re
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from experiments import report, runner
from experiments.models import VARIANTS, build
from experiments.provenance import origin_line, provenance
from experiments.settings import BUDGETS, PAPER_SEEDS, Data, Flags, resolved
from hopfax.data import TASKS, bucket_boundaries, load_task
from hopfax.train.objectives import Batch
from hopfax.train.schedule import epoch_chunks
from hopfax.train.state import adamw, init_states, seed_keys
from hopfax.train.step import make_chunk

PAGE, FILE = Path(__file__).with_name("scaling.md"), Path(__file__).with_name("scaling.csv")
COLUMNS = ("what", "task", "model", "size", "median", "low", "high", "rounds")
SEEDS, BATCH, WIDTH, LAYERS, LENGTHS = PAPER_SEEDS, 32, 128, 2, (16, 32, 64, 96, 128)
TASK_NAMES = [name for name, spec in TASKS.items() if spec.train_rows]
# XLA counts the body of a loop once. Robertha's maximum number of updates, also of the adjoint.
BODIES, UPDATES = {"freelb": 3, "universal": 2}, 50
# The paper's nine models; dropout and weight decay do not change the cost.
WITHOUT = "robertha-no-esr"
GRID = ["tinybert", "freelb", "data-augment", "universal", "robertha-no-iteration-no-esr", "robertha",
        WITHOUT, WITHOUT, WITHOUT]  # fmt: skip
# FLOP/s of an H100 or H200 (SXM) in float32, from the vendor's data sheets, and assumed shares.
PEAK, SHARES = 67e12, (0.2, 0.02)


def step_of(name: str, length: int):
    """Returns a call that trains one step, and XLA's count of its FLOPs."""
    sizes = {"width": WIDTH, "ff_width": 4 * WIDTH, "num_layers": LAYERS, "max_length": 128}
    built = build(VARIANTS[name], TASKS["mnli"], vocab_size=30522, **sizes)
    optimizer = adamw(2e-5, total_steps=10_000, weight_decay=built.weight_decay)
    chunk, rng = make_chunk(built.objective, optimizer), np.random.default_rng(0)
    states, keys = init_states(built.model, optimizer, SEEDS), seed_keys(SEEDS)
    ids = rng.integers(1000, 30522, (256, 1, length), dtype=np.int32)
    parts = ids, np.full((256, 1), length, np.int32), np.arange(256) % 3, np.ones(256, np.float32)
    rows, ones = Batch(*map(jnp.asarray, parts)), np.ones((1, len(SEEDS), BATCH), np.float32)
    picks = rng.integers(0, 256, ones.shape, dtype=np.int32)
    flops = chunk.lower(states, rows, picks, ones, keys).cost_analysis()["flops"]

    def run() -> None:
        nonlocal states
        states = jax.block_until_ready(chunk(states, rows, picks, ones, keys)[0])

    return run, flops


def steps_of(data, rows: int) -> list[tuple[int, int]]:
    """Returns padded lengths with an epoch's steps, as `cells.buckets`, scaled to all rows."""
    lengths = data.train.lengths.max(axis=1)
    known = np.concatenate([lengths, data.validation.lengths.max(axis=1)])
    total = data.spec.train_rows - min(round(0.1 * data.spec.train_rows), 1000)
    edges = bucket_boundaries(
        known, max_buckets=min(4, 1 + total // rows), multiple=8, max_length=128
    )
    counts = np.bincount(np.searchsorted(edges, lengths), minlength=len(edges))
    sizes = np.round(counts / counts.sum() * total).astype(int).tolist()
    chunks = [epoch_chunks([n], batch_size=BATCH, seeds=(0,), epoch=0) for n in sizes]
    return [(edge, sum(len(c.picks) for c in each)) for edge, each in zip(edges, chunks)]


def limits(data):
    """Times a list of cells, and results.csv, by their numbers of cells and rows."""
    flags = resolved(Flags(budget="paper", data=Data(task=("cola",), data_dir="DIR")))
    for count in (100, 1000):
        trial = runner.Trial("cola", "robertha", VARIANTS["robertha"], ())
        start = time.process_time()
        runner.jobs(flags, [trial] * count, data={"cola": data})
        yield "seconds for a list of cells", count, time.process_time() - start
    row = dict(task="sst2", model="robertha", denoiser="none", corruption="gaussian", level=0.5,
               site="token", seed=23, metric="accuracy", score=81.19266055, num_examples=872,
               snr_db=-6.0206)  # fmt: skip
    for count in (100_000, 1_000_000):
        with tempfile.TemporaryDirectory() as folder:
            start, table = time.process_time(), pd.DataFrame([row] * count)
            report.write_results(Path(folder), table)
            yield "seconds for results.csv", count, time.process_time() - start


def measure(folder: str) -> None:
    """Writes scaling.csv."""
    origin, rows = origin_line(provenance()), []
    vocabulary = f"{folder}/vocab/bert-base-uncased/vocab.txt"
    for task in TASK_NAMES:
        start = time.process_time()
        data = load_task(task, data_dir=folder, vocabulary=vocabulary, max_length=128)
        seconds, count = time.process_time() - start, len(data.train.labels)
        rows.append(("seconds to load", task, "", count, seconds, None, None, 1))
        for what, size in (("steps", 1000), ("steps on a GPU", 40_000)):
            rows += [(what, task, "", *each, None, None, 1) for each in steps_of(data, size)]
        if task == "cola":
            rows += [(what, task, "", *each, None, None, 1) for what, *each in limits(data)]
    for length in LENGTHS:
        programs = {name: step_of(name, length) for name in dict.fromkeys(GRID)}
        times = {name: [] for name in programs}
        for turn in range(6):  # the first compiles
            for name, (run, _) in programs.items():
                start = time.process_time()
                run()
                times[name] += [time.process_time() - start] if turn else []
        for name, (_, flops) in programs.items():
            quartiles = np.percentile(times[name], (50, 25, 75))
            rows.append(("seconds per step", "", name, length, *quartiles, len(times[name])))
            rows.append(("FLOPs per step", "", name, length, flops, None, None, 1))
            print(*rows[-2], flush=True)
    text = pd.DataFrame(rows, columns=list(COLUMNS)).to_csv(index=False, float_format="%.5g")
    FILE.write_text(f"# {origin}; seeds {SEEDS}\n{text}", encoding="utf-8")


if __name__ == "__main__":
    measure(sys.argv[1])
