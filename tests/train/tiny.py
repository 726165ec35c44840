"""Models and rows small enough to train in a second."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hopfax.data.batching import Encoded, to_buckets
from hopfax.nn.encoder import CLEAN, Classification, Encoding
from hopfax.nn.functional import Functional
from hopfax.nn.models import PRESETS, robertha, tinybert
from hopfax.train.objectives import Batch

FOLDER = Path(__file__).resolve().parent
# The warning that pyproject.toml ignores, for processes that tests start.
HALF_WRITTEN = "ignore:Error reading persistent compilation cache:UserWarning"
VOCAB = 50
BOUNDARIES = (6, 12)
SIZES = {"width": 16, "num_layers": 1, "ff_width": 16, "max_length": 16}


def softmax(num_outputs=2, *, dropout=0.1, **sizes):
    return tinybert(VOCAB, num_outputs, dropout=dropout, **SIZES | sizes)


def hopfield(num_outputs=2, *, preset="hopfax", dropout=None, max_steps=8, **sizes):
    chosen = PRESETS[preset]
    chosen = chosen if dropout is None else replace(chosen, dropout=dropout)
    return robertha(VOCAB, num_outputs, preset=chosen, max_steps=max_steps, **SIZES | sizes)


def encoded(count, *, seed=0, choices=1, longest=12, shuffled=False):
    """Random texts of 3 to `longest` tokens; the parity of the second token is the label."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, longest + 1, (count, choices)).astype(np.int32)
    ids = rng.integers(1, VOCAB, (count, choices, longest)).astype(np.int32)
    ids[np.arange(longest) >= lengths[..., None]] = 0
    index = rng.permutation(count) if shuffled else np.arange(count)
    return Encoded(ids, lengths, ids[:, 0, 1] % 2, index.astype(np.int32))


def buckets(count, *, boundaries=BOUNDARIES, **how):
    return to_buckets(encoded(count, **how), boundaries=boundaries)


def batch(count, *, weights=None, **how):
    rows = encoded(count, **how)
    weights = np.ones(count, np.float32) if weights is None else np.asarray(weights, np.float32)
    return Batch(*map(jnp.asarray, (rows.ids, rows.lengths, rows.labels, weights)))


def lively(model, *, seed=3, scale=0.4):
    """Random parameters: none is 0 or 1, which could hide a fault."""
    rng = np.random.default_rng(seed)
    leaves = jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree.map(lambda x: jnp.float32(scale * rng.normal(size=x.shape)), leaves)


def start(program, *arguments, **environment):
    """Starts a Python process that can import hopfax and the modules of this folder."""
    paths = os.pathsep.join(map(str, (FOLDER.parents[1], FOLDER)))
    filters, pipe = f"error::UserWarning,{HALF_WRITTEN}", subprocess.PIPE
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONWARNINGS": filters} | environment
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)


def stack(*trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def take(tree, number):
    return jax.tree.map(lambda leaf: leaf[number], tree)


def accuracy(logits, labels):
    return float((logits.argmax(-1) == labels).mean())


def same_bits(one, other):
    one, other = (list(map(np.asarray, jax.tree.leaves(tree))) for tree in (one, other))
    return [leaf.dtype for leaf in one] == [leaf.dtype for leaf in other] and all(
        a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True)
    )


def records(path):
    lines = map(json.loads, path.read_text().splitlines())
    return [{name: value for name, value in line.items() if name != "time"} for line in lines]


def assert_close(one, other, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), one, other)


class Bag(NamedTuple):
    """A bag of words with the stages of an encoder, which compiles fast."""

    params: dict

    def embed_tokens(self, ids):
        return self.params["tokens"]["embedding"][ids]

    def token_types(self, ids):
        return ids * 0

    def embed(self, tokens, types=None, *, key=None):
        return tokens

    def encode(self, embeddings, mask, types=None, *, key=None):
        steps = jnp.zeros((1, len(mask), 1, mask.shape[1]), jnp.int32)
        return Encoding(embeddings, embeddings[None], steps, steps == 0)

    def classify(self, hidden, mask, *, key=None):
        return jnp.where(mask[..., None], hidden, 0).sum(1) @ self.params["out"]

    def __call__(self, ids, mask, *, key=None, added=CLEAN):
        tokens = self.embed_tokens(ids)
        tokens = tokens if added.token is None else tokens + added.token
        encoding = self.encode(self.embed(tokens), mask)
        return Classification(self.classify(encoding.hidden, mask), encoding)


def apply_of(module):
    def apply(params, *inputs, method="__call__", **options):
        return getattr(module, method)(module(params), *inputs, **options)

    return apply


class Config(NamedTuple):
    embedding_scale: float = 1.0
    stores_padding: bool = False


def bag(width=4):
    def init(key):
        one, other = jax.random.split(key)
        table = jax.random.normal(one, (VOCAB, width))
        return {"tokens": {"embedding": table}, "out": jax.random.normal(other, (width, 2))}

    return Functional(init, apply_of(Bag), config=Config())
