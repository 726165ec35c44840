"""Attacks on text with candidates in batches, against one text a call.

TextBugger and HotFlip at a rate of 0.2 on 64 sentences and a TinyBERT with initial weights: SST-2's
dev sentences, or without `--data-dir` the embedded task `sentiment`. One text a call is padded to
the same few lengths, "one padded text" always to 128. All programs must end at the same losses.
"Model alone" is losses or gradients of misspelt sentences, without the search for the next.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.benchmarks.harness import Options, Programs, Setting, at_least
from hopfax import nn, text
from hopfax.data import read_split, read_vocabulary, synthetic_split, train_vocabulary
from hopfax.train.victim import make_victim

SECONDS = 30
RATIOS = {
    "one text a call / batches": at_least(5),
    "one padded text a call / batches": at_least(5),
}
LENGTHS = (16, 24, 32, 48, 64, 128)
# Padded lengths, batch sizes, and texts attacked side by side.
PROGRAMS = {
    "batches": (LENGTHS, (8, 64), 128),
    "one text a call": (LENGTHS, (1,), 1),
    "one padded text a call": ((128,), (1,), 1),
}
ATTACKS: dict[str, Callable[..., Sequence[text.AttackResult]]] = {
    "textbugger": text.textbugger,
    "hotflip-characters": partial(text.hotflip, form="characters"),
    "hotflip-tokens": partial(text.hotflip, form="tokens"),
}
RATE = 0.2
VERSIONS = 5  # misspelt ones of each sentence, for the model alone


def settings(options: Options) -> Iterator[Setting]:
    """The model alone and every attack; the quick run has losses and TextBugger."""
    for what in ("losses", "textbugger") if options.quick else ("losses", "gradients", *ATTACKS):
        kind = "attack" if what in ATTACKS else "model alone"
        yield Setting(f"{kind}: {what}", partial(programs, options, what))


def programs(options: Options, what: str) -> Programs:
    """One attack, or the model alone, by each program."""
    vocabulary, texts, labels = sentences(options.data_dir, 8 if options.quick else 64)
    network = nn.tinybert(vocabulary.size, 2)
    params = network.init(jax.random.key(0))
    ask = partial(attacked, ATTACKS[what]) if what in ATTACKS else partial(answered, what)
    calls: dict[str, Callable[[], list[float]]] = {}
    for name, (lengths, sizes, at_once) in PROGRAMS.items():
        victim, _ = make_victim(network, params, vocabulary, lengths=lengths, batch_sizes=sizes)
        calls[name] = partial(ask, victim, texts, labels, at_once)
    losses = [call() for call in calls.values()]
    for other in losses[1:]:
        np.testing.assert_allclose(losses[0], other, atol=1e-4)
    return Programs(calls)


def sentences(data_dir: str | None, count: int) -> tuple[Any, list[Any], list[Any]]:
    """Vocabulary, sentences and labels."""
    if data_dir is None:
        rows = synthetic_split("sentiment", "test", size=count, seed=0)
        vocabulary = train_vocabulary((row.texts[0][0] for row in rows), vocab_size=200)
    else:
        rows = read_split("sst2", Path(data_dir), "validation")[:count]
        vocabulary = read_vocabulary(Path(data_dir) / "vocab" / "bert-base-uncased")
    return vocabulary, [row.texts for row in rows], [row.label for row in rows]


def attacked(
    attack: Any, victim: text.Victim, texts: list[Any], labels: list[Any], at_once: int
) -> list[float]:
    """Losses at which an attack ends, on texts that no attack before it has tokenised."""
    assert victim.gradients is not None and victim.gradients.cache is not None
    victim.gradients.cache.clear()
    return [each.loss for each in attack(victim, texts, labels, rate=RATE, batch_size=at_once)]


def answered(
    what: str, victim: text.Victim, texts: list[Any], labels: list[Any], at_once: int
) -> list[float]:
    """Losses of misspelt versions, several of each text at once, as an attack asks for them."""
    seeds = range(VERSIONS)
    versions = [text.misspell(each, rate=RATE, seed=seed).text for each in texts for seed in seeds]
    repeated = [label for label in labels for _ in seeds]
    losses: list[float] = []
    for first in range(0, len(versions), at_once * VERSIONS):
        part = slice(first, first + at_once * VERSIONS)
        if what == "gradients":
            assert victim.gradients is not None
            linear = victim.gradients.linearize(versions[part], repeated[part])
            losses += [each.loss for each in linear]
        else:
            losses += map(float, victim.loss(versions[part], repeated[part]))
    return losses
