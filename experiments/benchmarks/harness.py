"""Measures the speed and memory of hopfax against PyTorch and against its own variants.

    python -m experiments.benchmarks                      # list the cases
    python -m experiments.benchmarks all --data-dir DIR   # run all: two hours on two idle cores
    python -m experiments.benchmarks memory --quick       # check that a case works

The same command at the same commit resumes an interrupted run. Use an idle machine: on a busy one,
PyTorch's threads wait for each other, and the ratios favor hopfax. `experiments.benchmarks.cases`
explains how to write a case.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd

from experiments import report
from experiments.__main__ import introduction
from experiments.provenance import provenance
from experiments.rundir import open_run, write_whole

PACKAGE = "experiments.benchmarks"
CASES = (
    "train_step", "evaluation", "retrieval", "stability", "memory", "denoise",
    "pretrained", "command", "calls", "decoding",
)  # fmt: skip
COLUMNS = ("case", "setting", "name", "kind", "median", "low", "high", "rounds")
SECONDS = 20.0  # for the rounds of a setting
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "XLA_FLAGS")

# A call returns when its work is done. A program of several calls takes their weighted sum.
Call = Callable[[], object]
Program = Call | Sequence[tuple[float, Call]]


def load(name: str) -> ModuleType:
    """The module of a case."""
    return importlib.import_module(f"{PACKAGE}.cases.{name}")


def torch_peer() -> ModuleType | None:
    """The module with the PyTorch programs; None without PyTorch."""
    if importlib.util.find_spec("torch") is None:
        return None
    return importlib.import_module(f"{PACKAGE}.torch_peer")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 1 if a setting failed."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(f"python -m {PACKAGE}", None, __doc__, formatter_class=style)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"all, or {', '.join(CASES)}")
    parser.add_argument("--quick", action="store_true", help="One setting per case, two rounds.")
    parser.add_argument("--data-dir", help="Raw data sets (default: synthetic rows).")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="Folder of all runs.")
    flags = parser.parse_args(arguments)
    if unknown := [name for name in flags.cases if name not in ("all", *CASES)]:
        parser.error(f"unknown case {unknown[0]}; choose among all, {', '.join(CASES)}")
    if not flags.cases:
        for name in CASES:
            print(f"{name:11} {introduction(f'{PACKAGE}.cases.{name}')[1]}")
        return 0
    flags.cases = list(CASES) if "all" in flags.cases else flags.cases
    return run(flags)


def run(flags: argparse.Namespace) -> int:
    """Measures missing settings and writes the page; returns 1 if a setting failed."""
    # Results of one folder share these; changed source files are measured again.
    origin = provenance()
    plan = {name: origin[name] for name in ("commit", "dirty", "cpu", "device", "jax")}
    plan["torch"] = importlib.metadata.version("torch") if torch_peer() else None
    plan["threads"] = {name: os.environ.get(name) for name in THREADS}
    folder = open_run("benchmarks", vars(flags), plan=plan)
    path, failed = folder / "results.csv", 0
    tables = [pd.read_csv(path)] if path.exists() and not plan["dirty"] else []
    done = {place for table in tables for place in zip(table["case"], table.setting, strict=True)}
    for name in flags.cases:
        for setting in list(load(name).SETTINGS)[: 1 if flags.quick else None]:
            if (name, setting) in done:
                print(f"{name}, {setting}: already measured")
                continue
            try:
                table = measure(name, setting, flags.data_dir, quick=flags.quick)
            except Exception as error:
                print(f"{name}, {setting}: {type(error).__name__}: {error}", file=sys.stderr)
                failed = 1
                continue
            tables.append(table)
            write_whole(path, pd.concat(tables).to_csv(index=False))
            print(table.to_string(index=False, header=False), flush=True)
    if tables:
        print(report.write_report(folder, page(folder)))
    return failed


def measure(
    name: str, setting: str, data_dir: str | None = None, *, quick: bool = False
) -> pd.DataFrame:
    """Returns the rows of one setting, with `COLUMNS`; ratios are computed per round."""
    case, rows = load(name), [("load average", "figure", os.getloadavg()[0])]
    programs = case.SETTINGS[setting](data_dir)
    figures = {each: value for each, value in programs.items() if isinstance(value, float)}
    calls = {each: call for each, call in programs.items() if each not in figures}
    seconds = 0.0 if quick else getattr(case, "SECONDS", SECONDS)
    times = interleaved(calls, seconds=seconds, min_rounds=2 if quick else 5)
    rows += [(each, "figure", value) for each, value in figures.items()]
    rows += [(each, "seconds", value) for each, value in times.items()]
    for ratio in case.RATIOS:
        first, _, second = ratio.partition(" / ")
        if {first, second} <= times.keys():
            rows.append((ratio, "ratio", times[first] / times[second]))
    quartiles = [(*np.percentile(value, (50, 25, 75)), np.size(value)) for _, _, value in rows]
    parts = [(name, setting, *row[:2], *each) for row, each in zip(rows, quartiles, strict=True)]
    return pd.DataFrame(parts, columns=list(COLUMNS))


def interleaved(
    programs: Mapping[str, Program], *, seconds: float, min_rounds: int
) -> dict[str, np.ndarray]:
    """Runs every program once per round, in random order; returns the `(rounds,)` seconds of each.

    Other load on the machine then affects all programs equally, and no program always finds the
    caches as the same other one left them. A first round is not measured. No round starts after
    `seconds`, once there are `min_rounds`.
    """
    if not programs:
        return {}
    parts = {name: [(1.0, call)] if callable(call) else call for name, call in programs.items()}
    calls = [(name, weight, call) for name, part in parts.items() for weight, call in part]
    for _, _, call in calls:
        call()
    rounds: list[dict[str, float]] = []
    begin, rng = time.perf_counter(), np.random.default_rng(0)
    while len(rounds) < min_rounds or time.perf_counter() - begin < seconds:
        total = dict.fromkeys(parts, 0.0)
        for turn in rng.permutation(len(calls)):
            name, weight, call = calls[turn]
            start = time.perf_counter()
            call()
            total[name] += weight * (time.perf_counter() - start)
        rounds.append(total)
    return {name: np.array([each[name] for each in rounds]) for name in parts}


def page(folder: Path) -> report.Page:
    """The page of a run: the ratios as a figure; ratios, figures and their goals as a table."""
    frame = pd.read_csv(folder / "results.csv")
    cases = frame["case"].unique()
    goals = {(case, name): goal for case in cases for name, goal in load(case).RATIOS.items()}
    pairs = zip(frame["case"], frame["name"], strict=True)
    frame["goal"] = [goals.get(pair) for pair in pairs]  # None: not a ratio
    prefix = frame.setting.str.extract("^(.*: )", expand=False).fillna("")
    frame["line"] = frame["case"] + ", " + prefix + frame["name"]
    lines = frame.dropna(subset="goal").groupby(["line", "goal", "kind"], sort=False)
    ends = {"mean": ("median", "median"), "low": ("low", "min"), "high": ("high", "max")}
    table = lines.agg(settings=("setting", "size"), **ends).reset_index()
    ratios = table[table.kind == "ratio"].copy()
    ratios[list(ends)] = np.log2(ratios[list(ends)])
    picture = report.forest("Ratios A / B of times", ratios, label="line", xlabel="log₂ (A / B)")
    numbers = [table[each].map("{:.3g}".format) for each in ends]
    rows = [*zip(table.line, table.settings.astype(str), *numbers, table.goal, strict=True)]
    head = ("measurement", "settings", "median", "lowest quartile", "highest quartile", "goal")
    return report.Page(
        f"Speed and memory: {report.joined(cases)}",
        pictures={"ratios": picture} if len(ratios) else {},
        tables=[report.Table(head, rows, "Medians and quartiles over rounds")],
    )
