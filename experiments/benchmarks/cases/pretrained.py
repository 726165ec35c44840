"""A pretrained encoder: forward pass, fine-tuning, influence and loading, against PyTorch.

all-MiniLM-L6-v2 (6 layers, width 384) from the folder that the variable HOPFAX_MINILM names. The
weights are the same in both, and outputs must agree. Fine-tuning steps have 32 rows of SST-2's
lengths, padded to 64 tokens, or to the lengths of buckets. Influence: the mean gradient norm of
each token, one compiled call against a loop over texts. "with memory": token embeddings are first
retrieved from the vocabulary. Loading ends when every weight is in RAM; PyTorch's loader is
safetensors'. Peak memory: that of a fresh process, including mapped pages of the file (Linux only).
"""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import workloads
from experiments.benchmarks.cases.memory import peak_bytes
from experiments.benchmarks.harness import Program, torch_peer
from experiments.benchmarks.workloads import TrainSteps, check_equal, compiled
from hopfax import nn, stability
from hopfax.data.batching import Bucket

SECONDS = 60
RATIOS = {
    "PyTorch / hopfax": "≥ 1 (CPU)",
    "PyTorch / hopfax in buckets": "≥ 2 (CPU)",
    "PyTorch loop / hopfax": "≥ 2 (CPU)",
    "hopfax with memory / hopfax": "≤ 2.2",
    "PyTorch loader / hopfax": None,
    "peak memory / weights": "≤ 1.3",
    "PyTorch loader's peak memory / weights": None,
}
TEXTS, TOKENS, LONGEST = 16, 256, 64


def folder() -> Path:
    """The model's folder."""
    if not (path := os.environ.get("HOPFAX_MINILM")):
        raise FileNotFoundError("set HOPFAX_MINILM to a folder of all-MiniLM-L6-v2")
    return Path(path)


def texts() -> workloads.PaddedRows:
    """Texts of whole words, without padding."""
    return workloads.full_rows(TEXTS, TOKENS, words=(2000, 28000))


def forward(data_dir: str | None) -> dict[str, Program]:
    """Logits of 16 texts of 256 tokens, all of them real."""
    classifier = nn.text_classifier(nn.load_pretrained(folder()), 2)
    params, rows = classifier.init(jax.random.key(0)), texts()

    def logits(model: Any, params: Any) -> Any:
        return compiled(lambda *rows: model.apply(params, *rows).logits, *rows)

    remembering = nn.with_memory(classifier)
    memory = remembering.init(jax.random.key(0))["memory"]
    calls: dict[str, Any] = {
        "hopfax": logits(classifier, params),
        "hopfax with memory": logits(remembering, {**params, "memory": memory}),
    }
    if peer := torch_peer():
        calls["PyTorch"] = peer.forward(partial(peer.bert, peer.tensors(params)), rows)
    check_equal({name: np.asarray(call()) for name, call in calls.items()})
    return calls


def fine_tuning(data_dir: str | None) -> dict[str, Program]:
    """Steps of 32 rows, mean pooling, dropout 0.1."""
    classifier = nn.text_classifier(nn.load_pretrained(folder()), 2)
    params, rows = classifier.init(jax.random.key(0)), workloads.workload(data_dir)
    fitting = [bucket for bucket in rows.buckets if bucket.ids.shape[-1] <= LONGEST]
    padded = padded_to(rows.padded, LONGEST)
    step: Any = partial(TrainSteps, params=params, model=classifier, esr_weight=0.0)
    calls: dict[str, Program] = {
        "hopfax": step([padded]).mean_step(1),
        "hopfax in buckets": step(fitting).mean_step(1),
    }
    if peer := torch_peer():
        model = partial(peer.bert, peer.tensors(params), dropout=0.1)
        calls["PyTorch"] = partial(peer.TrainSteps(model, padded).run, 1)
    return calls


def influence(data_dir: str | None) -> dict[str, Program]:
    """Influence of each token on the sum of a text's mean state."""
    model = nn.load_pretrained(folder())
    embeddings = np.asarray(model.embed(texts().ids))
    mask = jnp.ones((1, TOKENS), bool)

    def output(text: jax.Array) -> jax.Array:
        return jnp.sum(jnp.mean(model.forward(text[None], mask).output, axis=1))

    def influences(texts: jax.Array) -> jax.Array:
        return stability.geometric_influence(output, texts, per_token=True, batch_size=4)

    calls: dict[str, Any] = {"hopfax": compiled(influences, embeddings)}
    if peer := torch_peer():
        params = nn.text_classifier(model, 2).init(jax.random.key(0))
        calls["PyTorch loop"] = peer.influence_bert(params, embeddings)
    check_equal({name: np.asarray(call())[None] for name, call in calls.items()})
    return calls


def loading(data_dir: str | None) -> dict[str, Program | float]:
    """Every weight read from the folder's file, and the peak memory over the file's size."""
    path, weights = folder(), folder() / "model.safetensors"
    calls: dict[str, Any] = {
        "hopfax": lambda: jax.block_until_ready(nn.load_pretrained(path).params)
    }
    peaks = {
        "peak memory / weights": (
            "import jax; from hopfax import nn; jax.numpy.zeros(1).block_until_ready()",
            f"jax.block_until_ready(nn.load_pretrained({str(path)!r}).params)",
        )
    }
    if peer := torch_peer():
        calls["PyTorch loader"] = partial(peer.load, weights)
        peaks["PyTorch loader's peak memory / weights"] = (
            "import safetensors.torch; from experiments.benchmarks import torch_peer",
            f"torch_peer.load({str(weights)!r})",
        )
    if sys.platform.startswith("linux"):
        size = weights.stat().st_size
        calls |= {name: peak_bytes(*lines) / size for name, lines in peaks.items()}
    return calls


SETTINGS = {
    "forward: 16 texts": (forward,),
    "fine-tuning: 32 rows": (fine_tuning,),
    "influence: 16 texts": (influence,),
    "loading: all weights": (loading,),
}


def programs(data_dir: str | None, make: Any) -> dict[str, Program]:
    """Programs of one setting."""
    return make(data_dir)


def padded_to(rows: Bucket, length: int) -> Bucket:
    """The rows that fit, with less padding."""
    fitting = Bucket(*(part[rows.lengths[:, 0] <= length] for part in rows))
    return fitting._replace(ids=fitting.ids[..., :length])
