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
from typing import Any

import numpy as np
import pandas as pd

from experiments import report
from experiments.__main__ import introduction
from experiments.provenance import provenance
from experiments.rundir import open_run, read_config, write_whole

CASES = (
    "train_step", "evaluation", "retrieval", "noise", "esr", "attack", "seeds", "stability",
    "memory", "denoise", "pretrained", "command", "cpu",
)  # fmt: skip
COLUMNS = ("case", "setting", "name", "kind", "median", "low", "high", "rounds")
SECONDS, ROUNDS, QUICK_ROUNDS = 20.0, 5, 2
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "XLA_FLAGS")

# A call returns when its work is done. A program of several calls takes their weighted sum.
Call = Callable[[], object]
Program = Call | Sequence[tuple[float, Call]]


def load(name: str) -> ModuleType:
    """The module of a case."""
    return importlib.import_module(f"experiments.benchmarks.cases.{name}")


def title(name: str) -> str:
    """The first line of a case's docstring, read without importing jax."""
    return introduction(f"experiments.benchmarks.cases.{name}")[1]


def torch_peer() -> ModuleType | None:
    """The module with the PyTorch programs; None without PyTorch."""
    if importlib.util.find_spec("torch") is None:
        return None
    return importlib.import_module("experiments.benchmarks.torch_peer")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 1 if a setting failed."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"all, or {', '.join(CASES)}")
    parser.add_argument("--quick", action="store_true", help="One setting per case, two rounds.")
    parser.add_argument("--data-dir", help="Raw data sets (default: synthetic rows).")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="Folder of all runs.")
    flags = parser.parse_args(arguments)
    flags.cases = list(CASES) if flags.cases == ["all"] else flags.cases
    if unknown := [name for name in flags.cases if name not in CASES]:
        parser.error(f"unknown case {unknown[0]}; choose among all, {', '.join(CASES)}")
    if not flags.cases:
        print("\n".join(f"{name:11} {title(name)}" for name in CASES))
        return 0
    return run(flags)


def run(flags: argparse.Namespace) -> int:
    """Measures missing settings and writes the page; returns 1 if a setting failed."""
    # Results of one folder share these; changed source files are measured again.
    origin = provenance()
    plan = {name: origin[name] for name in ("commit", "dirty", "cpu", "device", "jax")}
    plan["torch"] = importlib.metadata.version("torch") if torch_peer() else None
    plan["threads"] = {name: os.environ.get(name) for name in THREADS}
    folder = open_run("benchmarks", vars(flags), plan=plan)
    path, failed, tables = folder / "results.csv", 0, []
    if path.exists() and not plan["dirty"]:
        tables = [pd.read_csv(path)]
    done = {place for table in tables for place in zip(table["case"], table.setting, strict=True)}
    for name in flags.cases:
        for setting in list(load(name).SETTINGS)[: 1 if flags.quick else None]:
            if (name, setting) in done:
                print(f"{name}, {setting}: already measured")
                continue
            try:
                rows = measure(name, setting, flags.data_dir, quick=flags.quick)
            except Exception as error:
                print(f"{name}, {setting}: {type(error).__name__}: {error}", file=sys.stderr)
                failed = 1
                continue
            tables.append(pd.DataFrame(rows, columns=list(COLUMNS)))
            write_whole(path, pd.concat(tables, ignore_index=True).to_csv(index=False))
            for row in rows:
                print(f"{name}, {setting}: {row['name']} {with_quartiles(row, '.4g')}", flush=True)
    if tables:
        print(report.write_report(folder, page(folder)))
    return failed


def measure(
    name: str, setting: str, data_dir: str | None = None, *, quick: bool = False
) -> list[dict[str, Any]]:
    """Returns the rows of one setting, with `COLUMNS`; ratios are computed per round."""
    case, values = load(name), {("figure", "load average"): os.getloadavg()[0]}
    measured = case.programs(data_dir, *case.SETTINGS[setting])
    figures = {each: value for each, value in measured.items() if isinstance(value, float)}
    programs = {each: call for each, call in measured.items() if each not in figures}
    seconds = 0.0 if quick else getattr(case, "SECONDS", SECONDS)
    rounds = QUICK_ROUNDS if quick else ROUNDS
    times = interleaved(programs, seconds=seconds, min_rounds=rounds) if programs else {}
    values |= {("figure", each): value for each, value in figures.items()}
    values |= {("seconds", each): taken for each, taken in times.items()}
    for ratio in case.RATIOS:
        first, _, second = ratio.partition(" / ")
        if first in times and second in times:
            values["ratio", ratio] = times[first] / times[second]
    return [
        {"case": name, "setting": setting, "name": each, "kind": kind, **spread(value)}
        for (kind, each), value in values.items()
    ]


def interleaved(
    programs: Mapping[str, Program], *, seconds: float, min_rounds: int
) -> dict[str, np.ndarray]:
    """Runs every program once per round, in random order; returns the `(rounds,)` seconds of each.

    Other load on the machine then affects all programs equally, and no program always finds the
    caches as the same other one left them. A first round is not measured. No round starts after
    `seconds`, once there are `min_rounds`.
    """
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


def spread(values: Any) -> dict[str, Any]:
    """Median and quartiles over rounds; a single number has no quartiles."""
    low, median, high = np.percentile(np.asarray(values, float), (25, 50, 75)).tolist()
    if np.ndim(values) == 0:
        return {"median": median, "low": np.nan, "high": np.nan, "rounds": 1}
    return {"median": median, "low": low, "high": high, "rounds": len(values)}


def with_quartiles(row: Mapping[str, Any] | pd.Series, digits: str = "#.3g") -> str:
    """A median with its quartiles, to three significant digits, or to the integer from 1,000."""
    numbers = (row[each] for each in ("median", "low", "high"))
    median, low, high = (
        f"{each:,.0f}" if each >= 999.5 else f"{each:{digits}}".rstrip(".") for each in numbers
    )
    return median if np.isnan(row["low"]) else f"{median} [{low}, {high}]"


def bound(goal: str | None, device: str) -> tuple[bool, float] | None:
    """Returns whether a goal's bound for a device is a lower one, and its value; None without one.

    A goal is such as "≥ 5", or by kind of device "≤ 1.3 (CPU), ≤ 1.15 (GPU)".
    """
    kind = "(CPU)" if "cpu" in device.lower() else "(GPU)"
    for sign, value, *devices in map(str.split, goal.split(", ") if goal else ()):
        if devices in ([], [kind]):
            return sign == "≥", float(value)
    return None


def page(folder: Path) -> report.Page:
    """The page of a run: the ratios as a figure; ratios, figures and their goals as a table."""
    frame = pd.read_csv(folder / "results.csv")
    device = read_config(folder)["provenance"][0]["device"]
    table, marks = [], []
    prefix = frame["setting"].str.rpartition(":")[0]
    for (case, of, name), rows in frame.groupby(["case", prefix, "name"], sort=False):
        if name not in (goals := load(str(case)).RATIOS):
            continue
        label, rows = f"{of}: {name}" if of else name, rows.sort_values("median")
        ends = [rows.iloc[0], rows.iloc[-1]]
        met = number_met(goals[name], device, rows["median"])
        table.append((case, label, *map(with_quartiles, ends), goals[name] or "", met))
        if (rows.kind == "ratio").all():
            low, high = ("low", "high") if len(rows) == 1 else ("median", "median")
            numbers = np.log2([rows["median"].median(), ends[0][low], ends[1][high]])
            marks.append((f"{case}, {label}", *numbers))
    ratios = pd.DataFrame(marks, columns=["line", "mean", "low", "high"])
    picture = report.forest("Ratios A / B of times", ratios, label="line", xlabel="log₂ (A / B)")
    head = ("case", "measurement", "lowest median", "highest median", "goal", "met")
    return report.Page(
        f"Speed and memory: {report.joined(frame['case'].unique())}",
        pictures={"ratios": picture} if marks else {},
        tables=[report.Table(head, table, "Medians over rounds, quartiles in brackets")],
    )


def number_met(goal: str | None, device: str, medians: pd.Series) -> str:
    """How many medians meet a goal, such as "3 of 5"; empty without a goal for the device."""
    if not (limit := bound(goal, device)):
        return ""
    is_lower, value = limit
    return f"{int((medians >= value if is_lower else medians <= value).sum())} of {len(medians)}"
