"""What was wanted of each benchmark, what was measured, and whether that is enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.speed.publish import markdown_table

Report = Mapping[str, Any]


class Goal(NamedTuple):
    """A bound for medians of one or more cases.

    Attributes:
        what: Is compared.
        bound: That every case should keep.
        at_least: Whether larger is better.
        values: A median of each case; none where it can't be measured on this device.
    """

    what: str
    bound: float
    at_least: bool
    values: Sequence[float]

    def holds(self) -> str:
        """`yes`, `no`, or of how many cases."""
        kept = sum(v >= self.bound if self.at_least else v <= self.bound for v in self.values)
        if not self.values:
            return "not measured"
        if kept in (0, len(self.values)):
            return "yes" if kept else "no"
        return f"in {kept} of {len(self.values)} cases"


def train_step(report: Report) -> Iterator[Goal]:
    """Beside PyTorch's."""
    found = report["ratios"].values()
    for name, what, bound in (
        ("buckets_over_torch", "train step in length buckets over PyTorch's padded to 128", 5),
        ("equal_padding_over_torch", "train step over PyTorch's at equal padding", 1),
    ):
        values = [ratios[name]["median"] for ratios in found if name in ratios]
        yield Goal(f"speed of the {what}", bound, True, values)


def evaluation(report: Report) -> Iterator[Goal]:
    """Forward passes beside PyTorch's eager program."""
    values = [r["median"] for r in report["ratios"] if r["ratio"] == "PyTorch over hopfax"]
    yield Goal("speed of the logits of texts of 128 tokens over eager PyTorch's", 1, True, values)


def noise(report: Report) -> Iterator[Goal]:
    """What noise adds to a test."""
    wanted = "predict_noisy over forward"
    values = [r["median"] for r in report["ratios"] if r["ratio"] == wanted]
    yield Goal("time of a test under noise over plain forward passes", 1.3, False, values)


def retrieval(report: Report) -> Iterator[Goal]:
    """Latencies, which have goals on a GPU alone."""
    for run, bound in (("T = 5, fixed", 1.15), ("T = 50, adaptive", 1.5)):
        values = [
            row["over_single_pass"]
            for row in report["table"]
            if row["program"] == run and _on_gpu(report)
        ]
        yield Goal(f"latency over single-pass attention, {run}, on a GPU", bound, False, values)


def memory(report: Report) -> Iterator[Goal]:
    """Of the unrolled gradient over that of the implicit one."""
    values = [row["unrolled_over_implicit"] for row in report["table"]]
    yield Goal("memory of the unrolled gradient over the implicit one's", 5, True, values)


def stability(report: Report) -> Iterator[Goal]:
    """Estimates beside the quicker peer's loop."""
    found = {name: [ratio["median"]] for name, ratio in report["ratios"].items()}
    peer = next(name.removesuffix(" over hopfax") for name in found if name.endswith("over hopfax"))
    pairs = f"speed of a million noise-stability pairs over {peer}'s loop"
    yield Goal(pairs, 3, True, found[f"{peer} over hopfax"])
    yield Goal(f"{pairs}, to an equal error", 3, True, found[f"{peer} over hopfax, at equal error"])
    yield Goal("time of ten rhos over that of one", 6, False, found["ten rhos over one"])


def seeds(report: Report) -> Iterator[Goal]:
    """Runs in one vmap."""
    values = [row["apart_over_together"] for row in report["table"]]
    runs = report["table"][0]["runs"]
    yield Goal(f"speed of {runs} small runs at once over one after another", 3, True, values)


def esr(report: Report) -> Iterator[Goal]:
    """What exact ESR adds to a step over an epoch."""
    values = [
        row["added"]
        for row in report["table"]
        if row["entropy"] == "shannon" and row["weights"] and "/" in str(row["tokens"])
    ]
    on_gpu = _on_gpu(report)
    yield Goal(
        "what ESR adds to the mean step of an epoch, %, on a CPU",
        30,
        False,
        [] if on_gpu else values,
    )
    yield Goal(
        "what ESR adds to the mean step of an epoch, %, on a GPU",
        15,
        False,
        values if on_gpu else [],
    )
    for part, name in (("value", ""), ("gradient", "'s gradient")):
        errors = [100 * row[part] for row in report["errors"]]
        yield Goal(f"error of `shannon_matmul`{name} on keys of texts, %", 1, False, errors)


def attack(report: Report) -> Iterator[Goal]:
    """Batches beside one text a call."""
    for alone, what in ((False, "an attack"), (True, "an attack's model calls")):
        rows = [row for row in report["table"] if row["attack"].endswith(" alone") == alone]
        for name in ("one text a call", "one text a call, padded to 128"):
            values = [row["times"] for row in rows if row["program"] == name]
            yield Goal(f"speed of {what} in batches over {name}", 5, True, values)


def waiting(report: Report) -> Iterator[Goal]:
    """Share of an epoch."""
    values = [row["waiting_percent"] for row in report["table"]]
    yield Goal("share of an epoch that the device waits, %", 2, False, values)


GOALS: Mapping[str, Callable[[Report], Iterator[Goal]]] = {
    "train_step": train_step,
    "evaluation": evaluation,
    "noise": noise,
    "retrieval": retrieval,
    "memory": memory,
    "stability": stability,
    "seeds": seeds,
    "esr": esr,
    "attack": attack,
    "waiting": waiting,
}


def section(reports: Mapping[str, Report]) -> list[str]:
    """All goals of what was measured; nothing where none has one."""
    goals = [goal for name, of in GOALS.items() if name in reports for goal in of(reports[name])]
    if not goals:
        return []
    rows = [
        (
            goal.what,
            f"at {'least' if goal.at_least else 'most'} {goal.bound:g}",
            _range(goal.values),
            goal.holds(),
        )
        for goal in goals
    ]
    return [
        "## Goals\n\nOf several cases the smallest and largest median. Sections come from "
        "different sessions and machines: compare within one. Retrieval has no goal on a CPU.",
        markdown_table(("what", "goal", "measured", "holds, by medians"), rows),
    ]


def _range(values: Sequence[float]) -> str:
    ends = dict.fromkeys(f"{end:.3g}" for end in (min(values), max(values))) if values else ()
    return " to ".join(ends)


def _on_gpu(report: Report) -> bool:
    return "cpu" not in report["provenance"]["device"].lower()
