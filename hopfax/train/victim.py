"""Makes a victim for `hopfax.text` of an encoder, its parameters and its vocabulary.

Texts are tokenised as `hopfax.data.encode` does, padded to one of few lengths and batched to one of
few sizes, so that a whole attack compiles once per pair of them and meets no new shape after.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from hopfax.data.tokenize import WordPiece, text_tokenizer
from hopfax.nn.encoder import Encoder
from hopfax.nn.functional import Functional, Params
from hopfax.text import Gradients, Linearized, Text, Victim
from hopfax.text.victim import Label
from hopfax.train import interrupt
from hopfax.train.objectives import Batch, per_example, texts_of


@dataclass
class Counts:
    """What a victim has been asked so far.

    Attributes:
        calls: Calls of a compiled program.
        texts: Texts whose loss was computed.
        gradients: Texts whose gradient was computed too.
        rows: Rows computed, those that only filled a batch included.
    """

    calls: int = 0
    texts: int = 0
    gradients: int = 0
    rows: int = 0


class _Tokenized(NamedTuple):
    """One example: ids of each choice; field, first and last character (+ 1) of every token.

    The field of a special token is -1.
    """

    ids: list[np.ndarray]
    fields: list[np.ndarray]
    spans: list[np.ndarray]

    @property
    def length(self) -> int:
        return max(map(len, self.ids))


class _Answer(NamedTuple):
    losses: Array
    logits: Array
    gradient: Array | None


def make_victim(
    model: Functional[Encoder],
    params: Params,
    vocabulary: WordPiece,
    *,
    regression: bool = False,
    max_length: int = 128,
    lengths: Sequence[int] = (16, 32, 64, 128),
    batch_sizes: Sequence[int] = (8, 64),
) -> tuple[Victim, Counts]:
    """Makes the functions that attacks ask, compiled once per padded length and batch size.

    The loss is cross-entropy, or the squared error for regression; a text's gradient is that of its
    own loss in the vectors of its tokens (the *token* site), without dropout. Rows of a batch do
    not depend on one another, but for models whose attention stops by one norm over the batch (the
    `released` preset): theirs is what the batch makes of them.

    Args:
        model: The classifier.
        params: Of one seed, not stacked.
        vocabulary: Tokens and their ids.
        regression: Labels are scores.
        max_length: Longest text in tokens, at least 5 and at most the model's positions; longer
            ones are cut as in `hopfax.data.encode`.
        lengths: Padded lengths, increasing; those beyond `max_length` count as `max_length`.
        batch_sizes: Increasing. None but the smallest is computed less than half full; `(1,)`
            makes one call a text.

    Returns:
        The victim, and the counts that go up with every call of it.

    Raises:
        ValueError: Parameters are stacked, `max_length` is out of its range, or lengths or sizes
            do not increase. The victim raises one for labels the model does not have, for outputs
            of another kind than the labels, for a text of more than two strings, and for choices of
            unequal number.

    Example:
        >>> import jax
        >>> from hopfax import nn, text
        >>> from hopfax.data import train_vocabulary
        >>> films = ["a wonderful film", "the story drags badly"]
        >>> vocabulary = train_vocabulary(films)
        >>> sizes = {"width": 8, "num_layers": 1, "ff_width": 8, "max_length": 32}
        >>> model = nn.tinybert(vocabulary.size, 2, **sizes)
        >>> params = model.init(jax.random.key(0))  # here a trained model's
        >>> victim, counts = make_victim(
        ...     model, params, vocabulary, max_length=32, lengths=(32,), batch_sizes=(8,)
        ... )
        >>> found = text.textbugger(victim, films, [1, 0], rate=0.3)
        >>> [(result.corrupted.num_changed, result.corrupted.num_words) for result in found]
        [(1, 3), (1, 4)]
        >>> [text.restore(result.corrupted) for result in found] == films
        True
        >>> counts.texts == sum(result.num_losses for result in found)
        True
    """
    for name, sizes in (("lengths", lengths), ("batch_sizes", batch_sizes)):
        if not sizes or sizes[0] < 1 or (np.diff(np.asarray(sizes)) <= 0).any():
            raise ValueError(f"{name} must be positive and increase, got {tuple(sizes)}")
    table = params["tokens"]["embedding"]
    if table.ndim != 2:
        raise ValueError(
            f"the embedding table has shape {table.shape}: give the parameters of one seed, for "
            "instance jax.tree.map(lambda leaf: leaf[0], params)"
        )
    if vocabulary.size > len(table):
        raise ValueError(
            f"the vocabulary has {vocabulary.size} tokens and the model {len(table)} embeddings"
        )
    if max_length < 5:
        raise ValueError(f"max_length must be at least 5, got {max_length}")
    if "positions" in params and max_length > (most := len(params["positions"]["embedding"])):
        raise ValueError(
            f"max_length {max_length} is more than the model's {most} positions: pass "
            f"max_length={most}"
        )
    tokenizer = text_tokenizer(vocabulary)
    tokenizer.enable_truncation(max_length, strategy="longest_first")
    bare = text_tokenizer(vocabulary)
    edges = (*(edge for edge in lengths if edge < max_length), max_length)
    counts = Counts()
    programs = {gradient: _compiled(model, regression, gradient) for gradient in (False, True)}

    def run(
        texts: Sequence[Text], labels: Sequence[Label], with_gradient: bool
    ) -> Iterator[tuple[int, _Tokenized, float, np.ndarray | None]]:
        """Number, tokens, loss and gradient of each text, in any order."""
        rows = _tokenized(tokenizer, texts)
        pending: list[tuple[list[int], _Answer]] = []
        for numbers, width in _by_length(rows, edges):
            for chunk, size in _chunks(numbers, batch_sizes):
                interrupt.check()
                batch = _batch(
                    [rows[number] for number in chunk],
                    [labels[number] for number in chunk],
                    width,
                    size,
                    vocabulary.pad_id,
                    regression,
                )
                pending.append((chunk, programs[with_gradient](params, batch)))
                counts.calls += 1
                counts.rows += size
        counts.texts += len(texts)
        counts.gradients += len(texts) if with_gradient else 0
        for chunk, answer in pending:  # after all are under way
            losses = np.asarray(answer.losses)
            gradient = None if answer.gradient is None else np.asarray(answer.gradient)
            _check_labels([labels[number] for number in chunk], answer.logits.shape[1], regression)
            for place, number in enumerate(chunk):
                own = None if gradient is None else gradient[place]
                yield number, rows[number], float(losses[place]), own

    def loss(texts: Sequence[Text], labels: Sequence[Label]) -> np.ndarray:
        losses = np.zeros(len(texts))
        for number, _, value, _ in run(texts, labels, False):
            losses[number] = value
        return losses

    def linearize(texts: Sequence[Text], labels: Sequence[Label]) -> list[Linearized]:
        found: dict[int, Linearized] = {}
        for number, row, value, gradient in run(texts, labels, True):
            assert gradient is not None
            found[number] = _linear(row, value, gradient)
        return [found[number] for number in range(len(texts))]

    def pieces(words: Sequence[str]) -> list[tuple[int, ...]]:
        rows = bare.encode_batch(list(words), add_special_tokens=False)
        return [tuple(row.ids) for row in rows]

    gradients = Gradients(
        linearize, pieces, table[: vocabulary.size], vocabulary.tokens, _known(vocabulary)
    )
    return Victim(loss, gradients), counts


@functools.lru_cache(maxsize=1)
def _known(vocabulary: WordPiece) -> dict[str, Any]:
    """What HotFlip has tokenised with a vocabulary: rates, seeds and models of a task share it."""
    return {}


@functools.lru_cache(maxsize=8)
def _compiled(
    model: Functional[Encoder], regression: bool, with_gradient: bool
) -> Callable[[Params, Batch], _Answer]:
    """Victims of one model share their programs, whatever the seed of their parameters."""
    return jax.jit(_program(model, regression, with_gradient))


def _program(
    model: Functional[Encoder], regression: bool, with_gradient: bool
) -> Callable[[Params, Batch], _Answer]:
    """Losses, and on request gradients, of every row of a batch."""

    def program(params: Params, batch: Batch) -> _Answer:
        run = functools.partial(model.apply, params)
        ids, mask = texts_of(batch)

        def total(tokens: Array) -> tuple[Array, tuple[Array, Array]]:
            encoding = run(run(tokens, method="embed"), mask, method="encode")
            logits = per_example(run(encoding.hidden, mask, method="classify"), batch)
            if regression:
                losses = jnp.square(logits[:, 0] - batch.labels)
            else:
                chosen = jnp.take_along_axis(logits, batch.labels[:, None], axis=1)[:, 0]
                losses = jax.nn.logsumexp(logits, axis=1) - chosen
            return jnp.sum(losses), (losses, logits)

        tokens = run(ids, method="embed_tokens")
        if not with_gradient:
            return _Answer(*total(tokens)[1], None)
        # Rows do not depend on one another: the gradient of the sum is that of each.
        (_, (losses, logits)), gradient = jax.value_and_grad(total, has_aux=True)(tokens)
        # In the table's units, which the model scales.
        gradient *= run(method=_embedding_scale)
        return _Answer(losses, logits, gradient.reshape(*batch.ids.shape, -1))

    return program


def _embedding_scale(network: Encoder) -> float:
    return network.embedding_scale


def _choices(text: Text) -> tuple[tuple[str, ...], ...]:
    """A text as the choices of an example, each of one or two strings."""
    choices: Any = text
    if isinstance(text, str):
        choices = ((text,),)
    elif not text or isinstance(text[0], str):
        choices = (text,)
    for choice in choices:
        if len(choice) not in (1, 2):
            raise ValueError(
                f"a text the model reads is one string or a pair, got {len(choice)} strings: "
                f"{choice!r}"
            )
    return choices


def _tokenized(tokenizer: Any, texts: Sequence[Text]) -> list[_Tokenized]:
    examples = [_choices(text) for text in texts]
    numbers = sorted({len(choices) for choices in examples})
    if len(numbers) > 1:
        raise ValueError(
            "all examples of a call need the same number of choices, got "
            f"{' and '.join(map(str, numbers))}"
        )
    flat = [choice if len(choice) == 2 else choice[0] for row in examples for choice in row]
    encodings = iter(tokenizer.encode_batch(flat))
    rows = []
    for choices in examples:
        row, first = _Tokenized([], [], []), 0
        for choice in choices:
            found = next(encodings)
            fields = [-1 if part is None else first + part for part in found.sequence_ids]
            row.ids.append(np.asarray(found.ids, np.int32))
            row.fields.append(np.asarray(fields, np.int32))
            row.spans.append(np.asarray(found.offsets, np.int32))
            first += len(choice)
        rows.append(row)
    return rows


def _by_length(rows: Sequence[_Tokenized], edges: Sequence[int]) -> Iterator[tuple[list[int], int]]:
    """Numbers of the rows that share a padded length, and that length."""
    home = np.searchsorted(edges, [row.length for row in rows])
    for place, width in enumerate(edges):
        numbers = np.flatnonzero(home == place).tolist()
        if numbers:
            yield numbers, width


def _chunks(numbers: list[int], sizes: Sequence[int]) -> Iterator[tuple[list[int], int]]:
    """Cuts rows into batches of the given sizes, none but the smallest less than half full."""
    while numbers:
        size = next((size for size in reversed(sizes) if 2 * len(numbers) >= size), sizes[0])
        yield numbers[:size], size
        numbers = numbers[size:]


def _batch(
    rows: Sequence[_Tokenized],
    labels: Sequence[Label],
    width: int,
    size: int,
    pad_id: int,
    regression: bool,
) -> Batch:
    """Rows padded to a width, and to a number by repeating the last."""
    choices = len(rows[0].ids)
    ids = np.full((size, choices, width), pad_id, np.int32)
    lengths = np.zeros((size, choices), np.int32)
    for number in range(size):
        for choice, found in enumerate(rows[min(number, len(rows) - 1)].ids):
            ids[number, choice, : len(found)] = found
            lengths[number, choice] = len(found)
    kind = np.float32 if regression else np.int32
    padded = [*labels, *[labels[-1]] * (size - len(labels))]
    weights = (np.arange(size) < len(rows)).astype(np.float32)
    # As NumPy has them: a compiled call takes them faster than one by one through jnp.asarray.
    return Batch(ids, lengths, np.asarray(padded, kind), weights)  # pyright: ignore


def _linear(row: _Tokenized, loss: float, gradient: np.ndarray) -> Linearized:
    """What concerns the tokens that come from the text, all choices in a row."""
    real = [fields >= 0 for fields in row.fields]
    spans = np.concatenate([spans[kept] for spans, kept in zip(row.spans, real, strict=True)])
    return Linearized(
        loss=loss,
        ids=np.concatenate([ids[kept] for ids, kept in zip(row.ids, real, strict=True)]),
        fields=np.concatenate([each[kept] for each, kept in zip(row.fields, real, strict=True)]),
        starts=spans[:, 0],
        ends=spans[:, 1],
        gradient=np.concatenate(
            [own[: len(kept)][kept] for own, kept in zip(gradient, real, strict=True)]
        ),
    )


def _check_labels(labels: Sequence[Label], num_outputs: int, regression: bool) -> None:
    if (num_outputs == 1) != regression:
        wanted = "one output, a score" if regression else "two or more, of classes or choices"
        raise ValueError(
            f"the model has {num_outputs} outputs a text, and with regression={regression} "
            f"{wanted} is wanted: give make_victim the kind of label the model was trained on"
        )
    if regression:
        return
    wrong = [label for label in labels if label not in range(num_outputs)]
    if wrong:
        raise ValueError(
            f"label {wrong[0]} is none of the model's {num_outputs} classes: the rows and the "
            "model are not of one task"
        )
