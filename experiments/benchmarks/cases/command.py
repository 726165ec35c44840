"""The commands `hopfax robustness`, `influence` and `stability` on a pretrained encoder.

Seconds from start to page, one run each, in a fresh process without compilation cache: 400 pairs of
STS-B at 17 noise conditions, one sentence, 400 sentences of SST-2. The folder of all-MiniLM-L6-v2
is in the variable HOPFAX_MINILM.
"""

import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from experiments.benchmarks.cases.pretrained import folder
from hopfax.data import task_rows

RATIOS = {"seconds": "≤ 120 (CPU)"}


def programs(data_dir: str | None, *, name: str) -> dict[str, float]:
    """Seconds of one command."""
    if data_dir is None:
        raise FileNotFoundError("the commands need data: set --data-dir")
    with tempfile.TemporaryDirectory() as place:
        texts = Path(place, "texts.txt")
        rows = task_rows("sst2", "test", data_dir=data_dir)
        texts.write_text("\n".join(row.texts[0][0] for row in rows), encoding="utf-8")
        arguments = {
            "robustness": ["--dev", f"{data_dir}/glue_data/STS-B/dev.tsv", "--text", "sentence1",
                           "--pair", "sentence2", "--label", "score"],
            "influence": ["The weather is lovely today."],
            "stability": ["--texts", str(texts)],
        }[name]  # fmt: skip
        line = [sys.executable, "-m", "hopfax.command", name, str(folder()), *arguments]
        line += ["--out", f"{place}/out"]
        cold = {key: value for key, value in os.environ.items() if "COMPILATION_CACHE" not in key}
        start = time.perf_counter()
        subprocess.run(line, check=True, env=cold, stdout=subprocess.DEVNULL)
        return {"seconds": time.perf_counter() - start}


SETTINGS = {
    f"hopfax {name}: all-MiniLM-L6-v2": partial(programs, name=name)
    for name in ("robustness", "influence", "stability")
}
