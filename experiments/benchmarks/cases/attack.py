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
Attack = Callable[..., Sequence[text.AttackResult]]
SETTINGS: dict[str, tuple[Attack]] = {
    "attack: textbugger": (text.textbugger,),
    "attack: hotflip-characters": (partial(text.hotflip, form="characters"),),
    "attack: hotflip-tokens": (partial(text.hotflip, form="tokens"),),
}


def programs(data_dir: str | None, attack: Attack) -> dict[str, Program]:
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

    def program(lengths: Any, sizes: Any, at_once: int) -> Callable[[], list[float]]:
        victim = white_box(network, params, vocabulary, lengths=lengths, batch_sizes=sizes)
        assert victim.gradients is not None and victim.gradients.cache is not None
        clear = victim.gradients.cache.clear

        def losses() -> list[float]:
            clear()  # as for texts that have not been tokenized before
            results = attack(victim, texts, labels, rate=RATE, batch_size=at_once)
            return [each.loss for each in results]

        return losses

    calls = {name: program(*how) for name, how in PROGRAMS.items()}
    expected = calls["batches"]()
    for call in list(calls.values())[1:]:
        np.testing.assert_allclose(call(), expected, atol=1e-4)
    return {**calls}
