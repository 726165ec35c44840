"""Measures the speed and memory of hopfax against PyTorch and against its own variants.

    python -m experiments.benchmarks                      # list the cases
    python -m experiments.benchmarks all --data-dir DIR   # run all: two hours on two idle cores
    python -m experiments.benchmarks memory --quick       # check that a case works

Results go to runs/benchmarks/ID. The same command at the same commit resumes an interrupted run.
PyTorch is optional: pip install -e '.[benchmarks]'. Use an idle machine: on a busy one, PyTorch's
threads wait for each other, and the ratios favor hopfax.

`experiments.benchmarks.cases` explains how to write a case.
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
PAGE_COLUMNS = ("measurement", "lowest median", "highest median", "ratio < 1", "goal", "met")
SECONDS, ROUNDS, QUICK_ROUNDS = 20.0, 5, 2
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "XLA_FLAGS")
MISSING = "not measured"
NOTE = (
    "A / B is the time (or memory) of A divided by that of B: above 1, B needs less. Brackets: "
    "quartiles over rounds. Of several settings, the lowest and the highest median are shown, and "
    "in how many the ratio is below 1; results.csv has all."
)
NO_GOALS = "None has a goal."
UNMEASURED = "No goal is for this kind of device."
APART = "Cases ran in different sessions and on different machines: compare only within one."

# A call returns when its work is done. A program of several calls takes their weighted sum.
Call = Callable[[], object]
Program = Call | Sequence[tuple[float, Call]]


def bound(goal: str, device: str) -> tuple[bool, float] | None:
    """Returns a goal's bound for a device.

    Args:
        goal: Bounds such as "≥ 5", or by kind of device "≤ 1.3 (CPU), ≤ 1.15 (GPU)".
        device: Name of a device, from `provenance`.

    Returns:
        Whether the bound is a lower one, and its value; None if the goal has none for the device.
    """
    kind = "(CPU)" if "cpu" in device.lower() else "(GPU)"
    for sign, value, *devices in map(str.split, goal.split(", ")):
        if devices in ([], [kind]):
            return sign == "≥", float(value)
    return None


def load(name: str) -> ModuleType:
    """The module of a case."""
    return importlib.import_module(f"experiments.benchmarks.cases.{name}")


def title(name: str) -> str:
    """The first line of a case's docstring, read without importing jax."""
    return introduction(f"experiments.benchmarks.cases.{name}")[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 1 if a setting failed."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"all, or {', '.join(CASES)}")
    parser.add_argument("--quick", action="store_true", help="One setting per case, two rounds.")
    parser.add_argument("--data-dir", help="Folder of the raw data sets (default: synthetic rows).")
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
    plan["torch"] = importlib.metadata.version("torch") if has_torch() else None
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
            for _, row in tables[-1].iterrows():
                print(f"{name}, {setting}: {row['name']} {with_quartiles(row, '.4g')}", flush=True)
    if tables:
        print(report.write_report(folder, page(folder)))
    return failed


def has_torch() -> bool:
    """Whether PyTorch is installed; otherwise its programs are skipped."""
    return importlib.util.find_spec("torch") is not None


def measure(
    name: str, setting: str, data_dir: str | None = None, *, quick: bool = False
) -> list[dict[str, Any]]:
    """Measures one setting of a case.

    Returns:
        Rows with `COLUMNS`; kind is "seconds", "ratio" or "figure". Ratios are computed per round.
    """
    case, values = load(name), {("figure", "load average"): os.getloadavg()[0]}
    arguments = data_dir, *case.SETTINGS[setting]
    if hasattr(case, "figures"):
        values |= {("figure", each): value for each, value in case.figures(*arguments).items()}
    if hasattr(case, "programs"):
        seconds = 0.0 if quick else getattr(case, "SECONDS", SECONDS)
        rounds = QUICK_ROUNDS if quick else ROUNDS
        times = interleaved(case.programs(*arguments), seconds=seconds, min_rounds=rounds)
        values |= {("seconds", program): taken for program, taken in times.items()}
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
    """Runs every program once per round, in random order.

    Other load on the machine then affects all programs equally. In a fixed order, each program
    would always find the caches as the same other program left them.

    Args:
        programs: By name.
        seconds: Time after which no round starts, once there are `min_rounds`.
        min_rounds: Minimum number of rounds, after a warm-up round that is not measured.

    Returns:
        `(rounds,)` seconds of each program.
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


def page(folder: Path) -> report.Page:
    """The page of a folder of results: one table per case, ratios with their goals."""
    frame, lines = pd.read_csv(folder / "results.csv"), tables_of(folder)
    notes = [NOTE, *load_note(frame, read_config(folder)["provenance"])]
    if missing := not_measured(frame):
        notes.append(f"Not measured: {report.joined(missing)}.")
    if len(lines) > 1:
        notes.append(APART)
    subfolders = sorted(path.parent for path in folder.glob("*/results.csv"))
    if subfolders:
        links = [f"[{each.name}]({each.name}/README.md)" for each in subfolders]
        notes.append(f"Other cases have their own pages: {report.joined(links)}.")
    counts = [goals_met(tables_of(each)) for each in (folder, *subfolders)]
    met, measured = np.sum(counts, axis=0)
    goals = any(line[4] for each in lines.values() for line in each)
    ratios = frame[frame.kind == "ratio"]
    peers = ratios[ratios["name"].str.endswith("/ hopfax")]
    named, medians = ("Time of PyTorch / hopfax", peers) if len(peers) else ("Ratios", ratios)
    spread = f"{named}: {medians['median'].min():.2f} to {medians['median'].max():.2f} (medians)."
    where = ", including those of the linked pages" if subfolders else ""
    answer = (
        f"hopfax meets {met} of the {measured} measured goals for speed and memory{where}. A goal "
        "is met only if every setting meets it."
    )
    return report.Page(
        "Speed and memory" if len(lines) > 1 else f"Speed and memory: {report.joined(list(lines))}",
        answer if measured else f"{spread} {UNMEASURED if goals else NO_GOALS}",
        tables=[tabulated(rows, description(name)) for name, rows in lines.items()],
        notes=notes,
    )


def tabulated(rows: Sequence[Sequence[str]], caption: str) -> report.Table:
    """Returns the table of a case, without columns that are empty."""
    kept = [n for n in range(len(PAGE_COLUMNS)) if any(row[n] for row in rows)]
    columns = [PAGE_COLUMNS[n] for n in kept]
    if "highest median" not in columns:
        columns[1] = "median"
    return report.Table(columns, [tuple(row[n] for n in kept) for row in rows], caption)


def description(name: str) -> str:
    """A case's docstring as one paragraph."""
    return " ".join((load(name).__doc__ or "").split())


def load_note(frame: pd.DataFrame, provenance: Sequence[Mapping[str, Any]]) -> list[str]:
    """A note on other work of the machine, if the load average was recorded."""
    loads = frame["median"][frame["name"] == "load average"]
    if loads.empty:
        return []
    cores = report.joined(dict.fromkeys(str(each["cores"]) for each in provenance))
    span = " to ".join(dict.fromkeys(f"{each:.1f}" for each in (loads.min(), loads.max())))
    return [
        f"Load average when a setting started: {span}, on {cores} cores. It includes compilation "
        "and the setting before; other work makes ratios with PyTorch, if any, favor hopfax."
    ]


def not_measured(frame: pd.DataFrame) -> list[str]:
    """The settings that measured cases lack; only their number if there are many."""
    missing = []
    for name, rows in frame.groupby("case", sort=False):
        published, settings = set(rows.setting), load(str(name)).SETTINGS
        absent = [each for each in settings if not any(p.endswith(each) for p in published)]
        shown = "; ".join(absent) if len(absent) <= 3 else f"{len(absent)} of {len(settings)}"
        missing += [f"{name} ({shown})"] if absent else []
    return missing


def tables_of(folder: Path) -> dict[str, list[tuple[str, ...]]]:
    """The lines of each case of a folder."""
    frame = pd.read_csv(folder / "results.csv")
    device = read_config(folder)["provenance"][0]["device"]
    parts = {name: frame[frame["case"] == name] for name in CASES}
    return {name: lines_of(name, part, device) for name, part in parts.items() if len(part)}


def goals_met(lines: dict[str, list[tuple[str, ...]]]) -> tuple[int, int]:
    """Number of goals met, and of goals measured."""
    verdicts = [line[-1] for each in lines.values() for line in each if line[-1]]
    return verdicts.count("yes"), len(verdicts) - verdicts.count(MISSING)


def lines_of(name: str, frame: pd.DataFrame, device: str) -> list[tuple[str, ...]]:
    """One line per ratio or figure of a case and group of settings."""
    lines = []
    for ratio, goal in load(name).RATIOS.items():
        rows = frame[frame["name"] == ratio]
        groups = rows["setting"].map(lambda setting: setting.rpartition(":")[0])
        for group in dict.fromkeys(groups):
            label = f"{group}: {ratio}" if group else ratio
            lines.append(line_of(label, goal, rows[groups == group], device))
    return lines


def line_of(label: str, goal: str | None, rows: pd.DataFrame, device: str) -> tuple[str, ...]:
    """The settings with the lowest and the highest median, and how many meet the goal."""
    rows, several = rows.sort_values("median"), len(rows) > 1
    low, high = with_quartiles(rows.iloc[0]), with_quartiles(rows.iloc[-1]) if several else ""
    below = ""
    if several and (rows.kind == "ratio").all():
        below = f"{int((rows['median'] < 1).sum())} of {len(rows)}"
    if goal is None:
        return label, low, high, below, "", ""
    if (limit := bound(goal, device)) is None:
        return label, low, high, below, goal, MISSING
    met = int((rows["median"] >= limit[1] if limit[0] else rows["median"] <= limit[1]).sum())
    verdict = {len(rows): "yes", 0: "no"}.get(met, f"in {met} of {len(rows)}")
    return label, low, high, below, goal, verdict


def with_quartiles(row: pd.Series, digits: str = "#.3g") -> str:
    """A median with its quartiles, to three significant digits, or to the integer from 1,000."""
    numbers = (row[each] for each in ("median", "low", "high"))
    median, low, high = (
        f"{each:,.0f}" if each >= 999.5 else f"{each:{digits}}".rstrip(".") for each in numbers
    )
    return median if pd.isna(row.low) else f"{median} [{low}, {high}]"
