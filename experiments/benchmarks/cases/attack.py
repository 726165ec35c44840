"""Attacks on text with candidates in batches, against one text per call.

TextBugger and HotFlip at a rate of 0.2 on 64 sentences of SST-2 (or `sentiment`, without
`--data-dir`) and a TinyBERT with initial weights. "one text a call" is padded to the same few
lengths, "one padded text" always to 128. The final losses must agree.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.benchmarks.harness import Program
from hopfax import nn, text
from hopfax.data import read_split, read_vocabulary, synthetic_split, train_vocabulary
from hopfax.train.white_box import white_box

SECONDS = 30
RATIOS = {"one text a call / batches": "≥ 5", "one padded text a call / batches": "≥ 5"}
LENGTHS = (16, 24, 32, 48, 64, 128)
# Padded lengths, batch sizes, and texts attacked together.
PROGRAMS = {
    "batches": (LENGTHS, (8, 64), 128),
    "one text a call": (LENGTHS, (1,), 1),
    "one padded text a call": ((128,), (1,), 1),
}
RATE, SENTENCES = 0.2, 64
SETTINGS: dict[str, tuple[Callable[..., Sequence[text.AttackResult]]]] = {
    "attack: textbugger": (text.textbugger,),
    "attack: hotflip-characters": (partial(text.hotflip, form="characters"),),
    "attack: hotflip-tokens": (partial(text.hotflip, form="tokens"),),
}


def programs(
    data_dir: str | None, attack: Callable[..., Sequence[text.AttackResult]]
) -> dict[str, Program]:
    """Returns one attack per program; programs return the final losses."""
    if data_dir is None:
        rows = synthetic_split("sentiment", "test", size=SENTENCES, seed=0)
        vocabulary = train_vocabulary((row.texts[0][0] for row in rows), vocab_size=200)
    else:
        rows = read_split("sst2", Path(data_dir), "validation")[:SENTENCES]
        vocabulary = read_vocabulary(Path(data_dir) / "vocab" / "bert-base-uncased")
    texts, labels = [row.texts for row in rows], [row.label for row in rows]
    network = nn.tinybert(vocabulary.size, 2)
    params = network.init(jax.random.key(0))
    calls: dict[str, Any] = {}
    for name, (lengths, sizes, at_once) in PROGRAMS.items():
        victim = white_box(network, params, vocabulary, lengths=lengths, batch_sizes=sizes)
        calls[name] = partial(attacked, attack, victim, texts, labels, at_once)
    expected = calls["batches"]()
    for call in list(calls.values())[1:]:
        np.testing.assert_allclose(call(), expected, atol=1e-4)
    return calls


def attacked(
    attack: Any, victim: text.Victim, texts: list[Any], labels: list[Any], at_once: int
) -> list[float]:
    """Returns the final losses of an attack on texts that have not been tokenized before."""
    assert victim.gradients is not None and victim.gradients.cache is not None
    victim.gradients.cache.clear()
    return [each.loss for each in attack(victim, texts, labels, rate=RATE, batch_size=at_once)]
