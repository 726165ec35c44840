"""Models under attack, and the loop that runs attacks on them.

An attack on one text is a generator: it yields queries and receives their results. `attack_each`
runs many attacks at the same time, with one model call for all queries of a step.
"""

import itertools
import numbers
import reprlib
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int

from hopfax.text.log import T, Text, Version

Label = int | float


class Linearized(NamedTuple):
    """A model's loss on one text and its gradient with respect to token embeddings.

    Arrays have one entry per token of the text, without special tokens and padding.

    Attributes:
        fields: Index of the string that each token is in, see `hopfax.text.log.strings`.
        starts: First character of each token in its string.
        ends: One past the last character of each token.
        gradient: Gradient of the loss with respect to each token's row of the embedding table.
    """

    loss: float
    ids: Int[np.ndarray, " tokens"]
    fields: Int[np.ndarray, " tokens"]
    starts: Int[np.ndarray, " tokens"]
    ends: Int[np.ndarray, " tokens"]
    gradient: Float[np.ndarray, "tokens width"]


class Gradients(NamedTuple):
    """The interface of a model for gradient-based attacks.

    Attributes:
        linearize: `(texts, labels)` -> one `Linearized` per text.
        pieces: Words -> token ids of each, without special tokens.
        table: Embeddings of all tokens.
        tokens: Their spellings; a piece within a word starts with ``##``.
        cache: Initially empty dictionary in which `hotflip` keeps tokenized edits; models with the
            same `pieces` may share one. None discards them after each call.
    """

    linearize: Callable[[Sequence[Any], Sequence[Label]], list[Linearized]]
    pieces: Callable[[Sequence[str]], list[tuple[int, ...]]]
    table: Float[Array, "vocab width"] | Float[np.ndarray, "vocab width"]
    tokens: tuple[str, ...]
    cache: dict[str, Any] | None = None


class Victim(NamedTuple):
    """A model under attack. `hopfax.train.white_box.white_box` makes one from an encoder.

    `loss(texts, labels)` returns `(n,)` losses; a black-box model has no gradients.
    """

    loss: Callable[[Sequence[Any], Sequence[Label]], np.ndarray]
    gradients: Gradients | None = None


class Query(NamedTuple):
    """A query of the losses, or of the gradients, of versions of one text."""

    texts: Sequence[Text]
    gradient: bool = False


class AttackResult(NamedTuple, Generic[T]):
    """The attacked text with its log, and the model's loss on the clean and the attacked text.

    The version is the clean text if no edit increased the loss.
    """

    version: Version[T]
    clean_loss: float
    loss: float


Search = Generator[Query, Any, AttackResult[T]]


def attack_each(
    search: Callable[[T, int], Search[T]],
    victim: Victim,
    texts: Sequence[T],
    labels: Sequence[Label],
    *,
    rows: Sequence[int] | None,
    batch_size: int,
) -> list[AttackResult[T]]:
    """Runs `search(text, row)` for every text, `batch_size` texts at the same time."""
    if isinstance(texts, str):
        raise TypeError(f"texts must be a list of texts, got one string: {reprlib.repr(texts)}")
    check_positive(batch_size=batch_size)
    rows = range(len(texts)) if rows is None else rows
    if not len(texts) == len(labels) == len(rows):
        raise ValueError(
            f"texts, labels and rows must have equal lengths, got {len(texts)} texts, "
            f"{len(labels)} labels and {len(rows)} rows"
        )
    results: list[AttackResult[T]] = []
    for start in range(0, len(texts), batch_size):
        batch = slice(start, start + batch_size)
        searches = [search(*pair) for pair in zip(texts[batch], rows[batch], strict=True)]
        results += _run(searches, victim, labels[batch])
    return results


def check_positive(**values: int) -> None:
    """Raises a ValueError unless each value is an integer >= 1."""
    for name, value in values.items():
        if not isinstance(value, numbers.Integral) or value < 1:
            raise ValueError(f"{name} must be an integer >= 1, got {reprlib.repr(value)}")


def _run(
    searches: Sequence[Search[T]], victim: Victim, labels: Sequence[Label]
) -> list[AttackResult[T]]:
    """Runs searches to their end; each step makes one call for losses and one for gradients."""
    results: dict[int, AttackResult[T]] = {}
    replies: dict[int, Any] = dict.fromkeys(range(len(searches)))
    while replies:
        queries: dict[int, Query] = {}
        for number, reply in replies.items():
            try:
                queries[number] = searches[number].send(reply)
            except StopIteration as finished:
                results[number] = finished.value
        replies = {}
        for gradient, ask in ((False, _losses), (True, _linearized)):
            group = {number: q.texts for number, q in queries.items() if q.gradient == gradient}
            texts = list(itertools.chain(*group.values()))
            owners = [labels[number] for number, versions in group.items() for _ in versions]
            values = iter(ask(victim, texts, owners) if texts else ())
            for number, versions in group.items():
                replies[number] = list(itertools.islice(values, len(versions)))
    return [results[number] for number in range(len(searches))]


def _losses(victim: Victim, texts: list[Text], labels: list[Label]) -> np.ndarray:
    losses = np.asarray(victim.loss(texts, labels), np.float64)
    if losses.shape != (len(texts),):
        raise ValueError(f"loss must return shape ({len(texts)},), got {losses.shape}")
    if len(wrong := np.flatnonzero(~np.isfinite(losses))):
        raise ValueError(f"the loss must be finite, got {losses[wrong[0]]} on {texts[wrong[0]]!r}")
    return losses


def _linearized(victim: Victim, texts: list[Text], labels: list[Label]) -> list[Linearized]:
    assert victim.gradients is not None
    results = victim.gradients.linearize(texts, labels)
    for text, linear in zip(texts, results, strict=True):
        if not np.isfinite([linear.loss, linear.gradient.sum()]).all():
            raise ValueError(f"loss and gradient must be finite, got nan or inf on {text!r}")
    return results
