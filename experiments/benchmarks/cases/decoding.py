"""Beam search with a language model as prior: `nn.recall_text` against PyTorch.

SmolLM2-135M-Instruct from the folder that the variable HOPFAX_SMOLLM2 names; the peer is the model
of `transformers` with its cache of keys and values. Eight texts of 28 random tokens at -8 dB, a
beam of 16, 256 candidates; both must find the same tokens.
"""

import importlib.util
import os
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.harness import Program, torch_peer
from experiments.benchmarks.workloads import check_equal
from hopfax import nn

SECONDS = 180
RATIOS = {"PyTorch / hopfax": "≥ 0.67 (CPU)"}
TEXTS, TOKENS, START, SNR = 8, 28, 0, 10**-0.8


def beam_search(data_dir: str | None) -> dict[str, Program]:
    """Tokens of noisy texts."""
    if not (path := os.environ.get("HOPFAX_SMOLLM2")):
        raise FileNotFoundError("set HOPFAX_SMOLLM2 to a folder of SmolLM2-135M-Instruct")
    model, draw = nn.load_pretrained(path), np.random.default_rng(0)
    vectors = np.asarray(model.table)[draw.integers(len(model.table), size=(TEXTS, TOKENS))]
    sigma = float(np.sqrt(np.mean(np.square(vectors)) / SNR))
    noisy = np.float32(vectors + sigma * draw.normal(size=vectors.shape))
    search = partial(
        nn.recall_text, model, jnp.asarray(noisy), sigma=sigma, start=START, mixture=0.0
    )
    calls: dict[str, Any] = {"hopfax": lambda: jax.block_until_ready(search().index)}
    if (peer := torch_peer()) and importlib.util.find_spec("transformers"):
        calls["PyTorch"] = peer.beam_search(path, noisy, sigma, START)
    check_equal({name: np.asarray(call(), float) for name, call in calls.items()})
    return calls


SETTINGS = {"beam search: 8 texts": beam_search}
