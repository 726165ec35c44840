"""How every benchmark leaves its numbers: NAME.json with their origin, NAME.csv with the table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.provenance import provenance
from experiments.rundir import write_csv, write_whole


def publish(folder: Path, name: str, columns: Sequence[str], report: Mapping[str, Any]) -> None:
    """Writes both files and says where; `report["table"]` has the rows."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{name}.json", json.dumps(report, indent=1) + "\n")
    write_csv(folder / f"{name}.csv", columns, report["table"])
    print(f"results: {folder}")


def torch_provenance() -> dict[str, Any]:
    """`provenance`, and what PyTorch ran on."""
    import torch

    return provenance() | {
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "torch_device": "cuda" if torch.cuda.is_available() else "cpu",
    }


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table as a page has it."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
