"""The page's section of noise stability."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.speed.publish import markdown_table

GOALS = {"ten rhos over one": "at most 6"}


def stability(report: Mapping[str, Any]) -> list[str]:
    """Estimates beside NumPy and PyTorch: time, error, memory."""
    timed = [
        (
            row["program"],
            f"{row['seconds']:.2f} ({row['low']:.2f} to {row['high']:.2f})",
            f"{1e6 * row['seconds'] / report['num_samples']:.2f}",
            # Of peers nothing is compiled, and ten rhos have ten errors.
            f"{row['compile_seconds']:.1f}" if row["compile_seconds"] else "",
            f"{row['mean']:.5f} ± {row['standard_error']:.5f}" if row["rhos"] == 1 else "",
            f"{row['seconds_at_equal_error']:.2f}" if row["rhos"] == 1 else "",
            row["copies"],
            row["rounds"],
        )
        for row in report["table"]
    ]
    heads = ("program", "seconds (quartiles)", "µs a pair", "compilation, s")
    heads += ("mean ± standard error", "seconds to the peer's error", "copies", "rounds")
    ratios = [
        (
            f"{name} (goal: {GOALS.get(name, 'at least 3')})",
            f"{r['median']:.2f} ({r['low']:.2f} to {r['high']:.2f})",
        )
        for name, r in report["ratios"].items()
    ]
    memory = [
        (
            row["copies"],
            f"{row['num_samples']:,}",
            *(f"{row[name]:.1f}" for name in ("peak_mb", "before_mb", "temporary_mb")),
        )
        for row in report["memory"]
    ]
    exact = next(row["exact"] for row in report["table"] if row["rhos"] == 1)
    width, batch = report["width"], report["batch_size"]
    threads = ", ".join(f"{k}={v}" for k, v in report["provenance"]["threads_set"].items())
    return [
        f"## Noise stability\n\n{report['num_samples']:,} Gaussian pairs at rho {report['rho']}, "
        f"network {width}-{width}-1 with ReLU, batches of {batch}; {report['clock']}. "
        f"Exactly {exact:.5f}, and every estimate within 5 standard errors of it; numpy "
        f"{report['provenance']['numpy']}, threads set: {threads or 'none'}.",
        markdown_table(heads, timed),
        markdown_table(("ratio of seconds", "median (quartiles) over rounds"), ratios),
        "*Copies*: correlated inputs a sample, 2 for a pair; *pilot*: hopfax first tries on a few "
        "which number is cheapest. The peer is the faster of NumPy and PyTorch; *rbg* is another "
        "generator of jax.",
        "Memory, each row in a process of its own; the peak before the estimate is that of imports "
        "and compilation. So few pairs as 10,000 have no pilot.",
        markdown_table(
            ("copies", "pairs", "peak, MB", "before it, MB", "XLA's temporaries, MB"), memory
        ),
    ]
