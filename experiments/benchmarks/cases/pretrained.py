"""A pretrained encoder: forward pass, fine-tuning, influence and loading, against PyTorch.

all-MiniLM-L6-v2 (6 layers, width 384) from the folder that the variable HOPFAX_MINILM names. The
weights are the same in both, and outputs must agree. Fine-tuning steps have 32 rows of SST-2's
lengths, padded to 64 tokens, or to the lengths of buckets. Influence: the mean gradient norm of
each token, one compiled call against a loop over texts. "with memory": token embeddings are first
retrieved from the vocabulary. Loading ends when every weight is in RAM; PyTorch's loader is
safetensors', which maps the file into memory until it is read.
"""

import os
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import workloads
from experiments.benchmarks.harness import Program, torch_peer
from experiments.benchmarks.workloads import check_equal, compiled, mean_step
from hopfax import nn, stability

SECONDS = 60
RATIOS = {
    "PyTorch / hopfax": "≥ 1 (CPU)",
    "PyTorch / hopfax in buckets": "≥ 2 (CPU)",
    "PyTorch loop / hopfax": "≥ 2 (CPU)",
    "hopfax with memory / hopfax": "≤ 2.2",
    "PyTorch loader / hopfax": "",
}
TEXTS, TOKENS, LONGEST = 16, 256, 64


def folder() -> Path:
    """The model's folder."""
    if not (path := os.environ.get("HOPFAX_MINILM")):
        raise FileNotFoundError("set HOPFAX_MINILM to a folder of all-MiniLM-L6-v2")
    return Path(path)


def classifier() -> tuple[nn.Functional[Any], nn.Params]:
    """The encoder with a classification head, and its parameters."""
    model = nn.text_classifier(nn.load_pretrained(folder()), 2)
    return model, model.init(jax.random.key(0))


def forward(data_dir: str | None) -> dict[str, Program]:
    """Logits of 16 texts of 256 tokens, all of them real."""
    (model, params), texts = classifier(), workloads.full_texts(TEXTS, TOKENS)
    remembering = nn.with_memory(model)
    memory = remembering.init(jax.random.key(0))["memory"]

    def logits(model: Any, params: Any) -> Any:
        return compiled(lambda *texts: model.apply(params, *texts).logits, *texts)

    calls: dict[str, Any] = {
        "hopfax": logits(model, params),
        "hopfax with memory": logits(remembering, {**params, "memory": memory}),
    }
    if peer := torch_peer():
        calls["PyTorch"] = peer.forward(partial(peer.bert, peer.tensors(params)), texts)
    check_equal({name: np.asarray(call()) for name, call in calls.items()})
    return calls


def fine_tuning(data_dir: str | None) -> dict[str, Program]:
    """Steps of 32 rows, mean pooling, dropout 0.1."""
    model, params = classifier()
    buckets = [each for each in workloads.buckets(data_dir) if each.ids.shape[-1] <= LONGEST]
    padded = workloads.padded(data_dir, LONGEST)
    step = partial(mean_step, steps=1, params=params, model=model, esr_weight=0.0)
    calls: dict[str, Program] = {"hopfax": step([padded]), "hopfax in buckets": step(buckets)}
    if peer := torch_peer():
        twin = partial(peer.bert, peer.tensors(params), dropout=0.1)
        calls["PyTorch"] = partial(peer.train_steps(twin, padded), 1)
    return calls


def influence(data_dir: str | None) -> dict[str, Program]:
    """Influence of each token on the sum of a text's mean state."""
    model = nn.load_pretrained(folder())
    embeddings = np.asarray(model.embed(workloads.full_texts(TEXTS, TOKENS)[0]))
    mask = jnp.ones((1, TOKENS), bool)

    def output(text: jax.Array) -> jax.Array:
        return jnp.sum(jnp.mean(model.forward(text[None], mask).output, axis=1))

    def influences(texts: jax.Array) -> jax.Array:
        return stability.geometric_influence(output, texts, per_token=True, batch_size=4)

    calls: dict[str, Any] = {"hopfax": compiled(influences, embeddings)}
    if peer := torch_peer():
        calls["PyTorch loop"] = peer.influence_bert(classifier()[1], embeddings)
    check_equal({name: np.asarray(call())[None] for name, call in calls.items()})
    return calls


def loading(data_dir: str | None) -> dict[str, Program]:
    """Every weight read from the folder's file."""
    path = folder()
    calls: dict[str, Program] = {
        "hopfax": lambda: jax.block_until_ready(nn.load_pretrained(path).params)
    }
    if torch_peer():
        from safetensors.torch import load_file

        weights = path / "model.safetensors"
        calls["PyTorch loader"] = lambda: [x.sum().item() for x in load_file(weights).values()]
    return calls


SETTINGS = {
    "forward: 16 texts": forward,
    "fine-tuning: 32 rows": fine_tuning,
    "influence: 16 texts": influence,
    "loading: all weights": loading,
}
