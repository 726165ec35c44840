"""How long the device waits for the host while base Robertha trains: read off a profiler's trace.

Goal: under 2 % of the time. Three epochs of `fit` as an experiment calls it, with validation, log
and checkpoints; traced from the second epoch's end to the third's, when everything is compiled. The
device waits where the trace shows no program on it. About 2 minutes on 2 idle cores.

    python -m experiments.speed.waiting
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.provenance import provenance
from experiments.speed.flags import parser_of, workload_of
from experiments.speed.programs import BATCH_SIZE, ESR_WEIGHT, LEARNING_RATE
from experiments.speed.publish import publish
from experiments.speed.workload import VOCAB_SIZE, first_rows
from hopfax.data.batching import Bucket
from hopfax.nn import Encoder, Functional, robertha
from hopfax.train.allocator import keep_freed_memory
from hopfax.train.checkpoint import Checkpoints
from hopfax.train.loop import fit
from hopfax.train.metrics import MetricsLog
from hopfax.train.objectives import classification

COLUMNS = (
    "seeds",
    "steps",
    "seconds",
    "waiting_seconds",
    "waiting_percent",
    "longest_wait_ms",
    "programs",
)
_TRACED = "hopfax traced epoch"
# The lines of a trace that say when a device computes: a GPU's streams; of a CPU the threads that
# run programs (by their names of jax 0.10 and 0.12) and the pool that helps them.
_STREAM, _CPU_THREADS = "Stream #", ("tf_XLAPjRtCpuClient", "tf_XLAExecute", "tf_XLAEigen")


class Waiting(NamedTuple):
    """What the device did in a window of time.

    Attributes:
        seconds: Length of the window.
        waiting: Seconds of it without a program on the device.
        longest: The longest such gap.
        programs: Stretches of work between gaps.
    """

    seconds: float
    waiting: float
    longest: float
    programs: int


def waiting_within(window: tuple[float, float], starts: np.ndarray, ends: np.ndarray) -> Waiting:
    """Time in a window that no interval covers.

    Args:
        window: Its start and end, in nanoseconds.
        starts: Of the intervals, in any order; they may overlap and reach out of the window.
        ends: The same.
    """
    order = np.argsort(starts, kind="stable")
    begins = np.clip(starts[order], *window)
    until = np.maximum.accumulate(np.clip(ends[order], *window))
    gaps = np.append(begins, window[1]) - np.insert(until, 0, window[0])
    gaps = np.maximum(gaps, 0) / 1e9
    return Waiting(
        (window[1] - window[0]) / 1e9, float(gaps.sum()), float(gaps.max()), int((gaps > 0).sum())
    )


def read_trace(folder: Path) -> Waiting:
    """What the newest trace in a folder says of the epoch marked in it.

    Raises:
        FileNotFoundError: There is no trace.
        ValueError: No epoch is marked, or no work of a device is in it.
    """
    found = sorted(folder.rglob("*.xplane.pb"))
    if not found:
        raise FileNotFoundError(f"no trace (*.xplane.pb) in {folder}")
    window, starts, ends = None, [], []
    for plane in jax.profiler.ProfileData.from_file(str(found[-1])).planes:
        for line in plane.lines:
            on_gpu = plane.name.startswith("/device:") and _STREAM in line.name
            works = on_gpu or line.name.startswith(_CPU_THREADS)
            for event in line.events:
                if event.name == _TRACED:
                    window = (event.start_ns, event.start_ns + event.duration_ns)
                elif works and event.duration_ns:
                    starts.append(event.start_ns)
                    ends.append(event.start_ns + event.duration_ns)
    if window is None or not starts:
        lacking = "marked epoch" if window is None else "work of a device"
        raise ValueError(f"{found[-1]} has no {lacking}")
    return waiting_within(window, np.array(starts), np.array(ends))


def traced_fit(
    model: Functional[Encoder],
    train: Sequence[Bucket],
    validation: Sequence[Bucket],
    *,
    seeds: Sequence[int],
    folder: Path,
) -> tuple[Waiting, int]:
    """Trains three epochs, and reads the third: its times, and its steps."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # tracing every Python call would itself make the device wait
    mark = contextlib.ExitStack()
    calls = 0

    def score(logits: np.ndarray, labels: np.ndarray) -> float:
        nonlocal calls
        calls += 1
        if calls == 2 * len(seeds):
            jax.profiler.start_trace(folder / "trace", profiler_options=options)
            mark.enter_context(jax.profiler.TraceAnnotation(_TRACED))
        elif calls == 3 * len(seeds):
            mark.close()  # before the end of training, which waits for its checkpoints
        # More with every epoch, so that each also saves its best.
        return calls + float((logits.argmax(-1) == labels).mean())

    with (
        Checkpoints(folder / "run", config={}) as checkpoints,
        MetricsLog(folder / "run" / "metrics.jsonl") as log,
    ):
        fitted = fit(
            model,
            classification(model, esr_weight=ESR_WEIGHT),
            train=train,
            validation=validation,
            score=score,
            seeds=seeds,
            epochs=3,
            learning_rate=LEARNING_RATE,
            batch_size=BATCH_SIZE,
            checkpoints=checkpoints,
            log=log,
        )
        jax.profiler.stop_trace()
    return read_trace(folder / "trace"), fitted.steps // 3


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints and writes `waiting.json` and `waiting.csv`."""
    parser = parser_of("waiting", __doc__, "--data-dir")
    parser.add_argument("--rows", type=int, default=2000, help="training rows (default 2000)")
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=[1],
        help="numbers of seeds trained side by side, one measurement each (default 1)",
    )
    flags = parser.parse_args(arguments)
    rows = workload_of(parser, flags)
    train, validation = (first_rows(rows.buckets, n) for n in (flags.rows, flags.rows / 10))
    table = []
    for count in flags.seeds:
        with tempfile.TemporaryDirectory() as folder:
            found, steps = traced_fit(
                robertha(VOCAB_SIZE, 2),
                train,
                validation,
                seeds=range(count),
                folder=Path(folder),
            )
        seconds, waited, longest, programs = found
        values = (count, steps, seconds, waited, 100 * waited / seconds, 1e3 * longest, programs)
        table.append(dict(zip(COLUMNS, values, strict=True)))
        print(
            f"{count} seed(s), {steps} steps in {seconds:.1f} s: the device waits "
            f"{100 * waited / seconds:.2f} % of the time, at most {1e3 * longest:.0f} ms at once",
            flush=True,
        )
    report = {"provenance": provenance(), "rows": rows.source, "table": table}
    publish(flags.out, "waiting", COLUMNS, report)
    return report


if __name__ == "__main__":
    keep_freed_memory()
    main()
