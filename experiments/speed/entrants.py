"""The programs that the train step's benchmark sets side by side, and what each tells of itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.speed.programs import Hopfax, Torch
from experiments.speed.workload import MAX_LENGTH, Workload


class Entrant(NamedTuple):
    """One program of a comparison.

    Attributes:
        program: Its name on the page.
        padding: What texts are padded to.
        seeds: Runs side by side.
        run: `run(bucket, steps)` takes steps on a bucket's rows.
        shares: Of each bucket in an epoch's steps.
        steps: Of a measurement.
        iterations: Updates a query, once it has run.
        trips: Loop trips a step, once it has run.
    """

    program: str
    padding: str
    seeds: int
    run: Callable[[int, int], None]
    shares: np.ndarray
    steps: int
    iterations: Callable[[], float]
    trips: Callable[[], float]


def entrants(
    rows: Workload,
    params: Any,
    *,
    size: str,
    batch_size: int,
    seeds: Sequence[int],
    chunk: int,
    compile_torch: bool,
) -> tuple[dict[str, Entrant], str | None]:
    """The programs to compare, from one set of weights.

    Args:
        rows: What to train on.
        params: Of one seed, stacked.
        size: Of the model.
        batch_size: Rows a step.
        seeds: Numbers of runs to train side by side in length buckets; none leaves buckets out.
        chunk: Steps per measurement; a fourth of it where texts are padded to 128.
        compile_torch: Whether PyTorch runs through `torch.compile` too.

    Returns:
        The programs by name, and why `torch.compile` failed, if it did.
    """
    few, sizes = max(1, chunk // 4), {"size": size, "batch_size": batch_size}
    found = {}
    for count in seeds:
        stacked = jax.tree.map(lambda leaf, n=count: np.repeat(leaf, n, axis=0), params)
        program = Hopfax(rows.buckets, seeds=range(count), params=stacked, **sizes)
        found[f"buckets, {count}"] = _hopfax(
            program, rows.buckets, seeds=count, steps=chunk if count < 10 else few
        )
    padded = Hopfax([rows.padded], params=params, **sizes)
    found["padded"] = _hopfax(padded, [rows.padded], seeds=1, steps=few)
    single = jax.tree.map(lambda leaf: np.asarray(leaf[0]), params)
    found["torch"] = _torch("PyTorch", Torch(rows.padded, single, **sizes), few)
    failure = None
    if compile_torch:
        compiled = Torch(rows.padded, single, compiled=True, **sizes)
        try:
            compiled.run(1)
            found["torch, compiled"] = _torch("PyTorch, compiled", compiled, few)
        except Exception as error:  # whatever its compiler and ours lack
            failure = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    return found, failure


def _hopfax(program: Hopfax, buckets: Sequence[Any], *, seeds: int, steps: int) -> Entrant:
    counts = np.array([len(bucket.labels) for bucket in buckets])
    shares = counts / counts.sum()

    def iterations() -> float:
        return float(sum(s * np.mean(program.num_steps[b]) for b, s in enumerate(shares)))

    def trips() -> float:
        return float(sum(s * program.trips(b) for b, s in enumerate(shares)))

    widths = "/".join(str(bucket.ids.shape[-1]) for bucket in buckets)
    return Entrant("hopfax", widths, seeds, program.run, shares, steps, iterations, trips)


def _torch(name: str, program: Torch, steps: int) -> Entrant:
    return Entrant(
        name,
        str(MAX_LENGTH),
        1,
        lambda _, steps: program.run(steps),
        np.ones(1),
        steps,
        lambda: float(np.mean(program.num_steps)),
        lambda: float(np.mean(program.trips)),
    )
