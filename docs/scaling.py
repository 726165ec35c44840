"""Writes the tables of scaling.md from scaling.csv: python docs/scaling.py.

With the folder of the raw data sets as argument, first measures scaling.csv: processor time,
which other programs lengthen little, and FLOPs of a step of five seeds on random tokens; the rest.
"""

import heapq
import re
import sys
import tempfile
import time
from functools import partial
from itertools import product
from pathlib import Path
from timeit import timeit

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from experiments import report, runner
from experiments.models import VARIANTS, build
from experiments.provenance import origin_line, provenance
from experiments.settings import PAPER_SEEDS, Data, Flags, resolved
from hopfax.data import TASKS, bucket_boundaries, load_task
from hopfax.train.objectives import Batch
from hopfax.train.schedule import epoch_chunks
from hopfax.train.state import adamw, init_states, seed_keys
from hopfax.train.step import make_chunk

PAGE, FILE = Path(__file__).with_name("scaling.md"), Path(__file__).with_name("scaling.csv")
SEEDS, BATCH, WIDTH, LAYERS, EPOCHS = PAPER_SEEDS, 32, 128, 2, 30  # Table 15
SPECS = {name: spec for name, spec in TASKS.items() if spec.train_rows}
MODELS = ("tinybert", "freelb", "data-augment", "universal", "robertha-no-iteration-no-esr",
          "robertha-no-esr", "robertha")  # fmt: skip
GRID = (*MODELS, *["robertha-no-esr"] * 2)  # dropout and weight decay cost nothing
# XLA counts the body of a loop once. Robertha updates queries, and the adjoint, up to 50 times.
BODIES, UPDATES = {"freelb": 3, "universal": 2}, {"robertha-no-esr": 50, "robertha": 50}
PEAK, SHARES = 67e12, (0.2, 0.02)  # float32 FLOP/s of an H100 or H200 (SXM), and what is used
seconds = partial(timeit, number=1, timer=time.process_time)


def step_of(name: str, length: int):
    """Returns a call that trains one step, and XLA's count of its FLOPs."""
    sizes = {"width": WIDTH, "ff_width": 4 * WIDTH, "num_layers": LAYERS, "max_length": 128}
    built = build(VARIANTS[name], TASKS["mnli"], vocab_size=30522, **sizes)
    optimizer = adamw(2e-5, total_steps=10_000, weight_decay=built.weight_decay)
    chunk, rng = make_chunk(built.objective, optimizer), np.random.default_rng(0)
    states, keys = init_states(built.model, optimizer, SEEDS), seed_keys(SEEDS)
    ids = jnp.asarray(rng.integers(1000, 30522, (256, 1, length), dtype=np.int32))
    rows = Batch(ids, jnp.full((256, 1), length), jnp.arange(256) % 3, jnp.ones(256))
    picks = rng.integers(0, 256, (1, len(SEEDS), BATCH), dtype=np.int32)
    inputs = rows, picks, jnp.ones(picks.shape), keys

    def run() -> None:
        nonlocal states
        states = jax.block_until_ready(chunk(states, *inputs)[0])

    return run, chunk.lower(states, *inputs).cost_analysis()["flops"]


def steps_of(data, rows: int) -> list[tuple[int, int]]:
    """Returns padded lengths and steps of an epoch, as `cells.buckets`, for all official rows."""
    lengths = data.train.lengths.max(axis=1)
    total = data.spec.train_rows - min(round(0.1 * data.spec.train_rows), 1000)
    edges = bucket_boundaries(lengths, max_buckets=min(4, 1 + total // rows), max_length=128)
    counts = np.bincount(np.searchsorted(edges, lengths), minlength=len(edges))
    sizes = np.round(counts / counts.sum() * total).astype(int).tolist()
    chunks = [epoch_chunks([n], batch_size=BATCH, seeds=(0,), epoch=0) for n in sizes]
    return [(edge, sum(len(c.picks) for c in e)) for edge, e in zip(edges, chunks, strict=True)]


def measure(folder: str) -> None:
    """Writes scaling.csv."""
    origin, rows, vocabulary = origin_line(provenance()), [], f"{folder}/vocab/bert-base-uncased"
    for task in SPECS:
        start = time.process_time()
        data = load_task(task, data_dir=folder, vocabulary=vocabulary, max_length=128)
        rows.append(("load", task, "", len(data.train.labels), time.process_time() - start))
        for what, size in (("steps", 1000), ("steps on a GPU", 40_000)):
            rows += [(what, task, "", *each) for each in steps_of(data, size)]
    flags = resolved(Flags(budget="paper", data=Data(task=("wsc",), data_dir=folder)))
    trials = [runner.Trial("wsc", "robertha", VARIANTS["robertha"], ())] * 1000
    listing = seconds(lambda: runner.jobs(flags, trials, data={"wsc": data}))
    rows.append(("list cells", "", "", len(trials), listing))
    table = pd.read_csv("experiments/results/data/robustness.csv")
    table = table.take(np.arange(1_000_000) % len(table))
    with tempfile.TemporaryDirectory() as place:
        writing = seconds(lambda: report.write_results(Path(place), table))
    rows.append(("write results.csv", "", "", len(table), writing))
    for length in (16, 32, 64, 96, 128):
        programs = {name: step_of(name, length) for name in MODELS}
        turns = [[seconds(run) for run, _ in programs.values()] for _ in range(6)]
        for name, *times in zip(MODELS, *turns[1:], strict=True):  # the first turn compiles
            quartiles = np.percentile(times, (50, 25, 75))
            rows.append(("step", "", name, length, *quartiles, len(times)))
            rows.append(("FLOPs", "", name, length, programs[name][1]))
    rows = pd.DataFrame([(*row, None, None, None)[:8] for row in rows])
    text = rows.to_csv(index=False, header=False, float_format="%.5g")
    head = "what,task,model,size,median,low,high,rounds"
    FILE.write_text(f"# {origin}; seeds {SEEDS}\n{head}\n{text}", encoding="utf-8")


def costs(table: pd.DataFrame, what: str, steps: str) -> dict[tuple[str, str], float]:
    """Returns seconds or FLOPs of all epochs of each task and model."""
    totals = {}
    for task, model in product(SPECS, MODELS):
        epoch = table[(table.what == steps) & (table.task == task)]
        curve, lengths = table[(table.what == what) & (table.model == model)], epoch["size"]
        step = np.interp(lengths, curve["size"], curve["median"])
        if what == "FLOPs":  # two products of states and keys in each update
            updates = 2 * UPDATES.get(model, 0) * LAYERS * BATCH * len(SEEDS)
            step = BODIES.get(model, 1) * step + updates * 4 * WIDTH * lengths**2
        totals[task, model] = EPOCHS * SPECS[task].num_choices * float(step @ epoch["median"])
    return totals


def main() -> None:
    """Replaces the rows of the tables, each found by the first name of its header."""
    table = pd.read_csv(FILE, comment="#")
    times, flops = costs(table, "step", "steps"), costs(table, "FLOPs", "steps on a GPU")
    lines: dict[str, list] = {"task": [], "hardware": []}
    for task, spec in SPECS.items():
        cells = np.array([times[task, model] for model in GRID]) / 3600
        shown = f"{spec.title}|{spec.train_rows:,}", cells.sum(), *cells[[0, 1, 3, 4, 6]]
        lines["task"].append(shown)
    curves = table[table.what == "step"].groupby("model", sort=False)["median"]
    lines["model"] = [(f"`{model}`", *curve) for model, curve in curves]
    for name in ("1 core", "2 cores", "1 GPU", "8 GPUs", "64 GPUs", "60 GPUs, one seed each"):
        every, shares = (flops, SHARES) if "GPU" in name else (times, [1 / PEAK] * 2)
        parts = 5 if "seed" in name else 1  # of a cell
        each = [every[key] / parts for key in product(SPECS, GRID)]
        ends = [0.0] * (int(name.split()[0]) // parts)  # of each worker
        for cost in sorted(each, reverse=True):  # the longest that is left
            heapq.heapreplace(ends, ends[0] + cost)
        hours, idle = [max(ends) / PEAK / s / 3600 for s in shares], 1 - np.mean(ends) / max(ends)
        lines["hardware"].append((name, *hours, f"{idle:.0%}"))
    text = PAGE.read_text(encoding="utf-8")
    for name, rows in lines.items():
        cells = [[x if isinstance(x, str) else f"{float(f'{x:.2g}'):,g}" for x in r] for r in rows]
        body = "".join(f"|{'|'.join(row)}|\n" for row in cells)
        text = re.sub(rf"(?m)(^\|{name}\|.*\n\|-.*\n)(?:^\|.*\n)*", rf"\g<1>{body}", text)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:]:
        measure(sys.argv[1])
    main()
