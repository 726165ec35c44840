"""Makes a victim for `hopfax.text` from an encoder, its parameters and its vocabulary.

Texts are tokenised as by `hopfax.data.encode`, and padded to a few lengths and batch sizes, so that
a whole attack compiles once per pair of them.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
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


class _Tokenized(NamedTuple):
    """Ids of each choice; field (-1 for special tokens) and character span of every token."""

    ids: list[np.ndarray]
    fields: list[np.ndarray]
    spans: list[np.ndarray]

    @property
    def length(self) -> int:
        return max(map(len, self.ids))


class _Outputs(NamedTuple):
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
) -> Victim:
    """Makes the functions that attacks query, compiled once per padded length and batch size.

    The loss is cross-entropy, or the squared error for regression; the gradient of a text's loss is
    in the vectors of its tokens (the *token* site), without dropout. Rows of a batch are
    independent, except with the `released` preset, which stops by one norm over the batch.

    Args:
        model: The classifier.
        params: Parameters of one seed, not stacked.
        vocabulary: Tokens and their ids.
        regression: Whether labels are scores.
        max_length: Maximum number of tokens of a text, in [5, model's positions]; longer texts are
            truncated as by `hopfax.data.encode`.
        lengths: Padded lengths, increasing; those above `max_length` count as `max_length`.
        batch_sizes: Batch sizes, increasing. Only batches of the smallest may be less than half
            full; `(1,)` makes one call per text.

    Raises:
        ValueError: Parameters are stacked, `max_length` is out of range, or lengths or sizes do not
            increase. The victim raises one for labels that do not fit the model's outputs, for a
            text of more than two strings, and for different numbers of choices.

    Example:
        >>> import jax
        >>> from hopfax import nn, text
        >>> from hopfax.data import train_vocabulary
        >>> films = ["a wonderful film", "the story drags badly"]
        >>> vocabulary = train_vocabulary(films)
        >>> sizes = {"width": 8, "num_layers": 1, "ff_width": 8, "max_length": 32}
        >>> model = nn.tinybert(vocabulary.size, 2, **sizes)
        >>> params = model.init(jax.random.key(0))  # here a trained model's
        >>> victim = make_victim(
        ...     model, params, vocabulary, max_length=32, lengths=(32,), batch_sizes=(8,)
        ... )
        >>> results = text.textbugger(victim, films, [1, 0], rate=0.3)
        >>> [(result.corrupted.num_changed, result.corrupted.num_words) for result in results]
        [(1, 3), (1, 4)]
        >>> [text.restore(result.corrupted) for result in results] == films
        True
    """
    for name, sizes in (("lengths", lengths), ("batch_sizes", batch_sizes)):
        if not sizes or sizes[0] < 1 or (np.diff(np.asarray(sizes)) <= 0).any():
            raise ValueError(f"{name} must be positive and increase, got {tuple(sizes)}")
    table = params["tokens"]["embedding"]
    if table.ndim != 2 or vocabulary.size > len(table):
        raise ValueError(
            "the embedding table must have shape (tokens, width) with tokens >= "
            f"{vocabulary.size}, got {table.shape}"
        )
    positions = len(params["positions"]["embedding"]) if "positions" in params else max_length
    if not 5 <= max_length <= positions:
        raise ValueError(f"max_length must be in [5, {positions}], got {max_length}")
    tokenizer = text_tokenizer(vocabulary)
    tokenizer.enable_truncation(max_length, strategy="longest_first")
    bare = text_tokenizer(vocabulary)
    edges = (*(edge for edge in lengths if edge < max_length), max_length)
    programs = {gradient: _compiled(model, regression, gradient) for gradient in (False, True)}

    def run(
        texts: Sequence[Text], labels: Sequence[Label], with_gradient: bool
    ) -> Iterator[tuple[int, _Tokenized, float, np.ndarray | None]]:
        """Number, tokens, loss and gradient of each text, in any order."""
        rows = _tokenized(tokenizer, texts)
        pending: list[tuple[list[int], _Outputs]] = []
        for numbers, width in _by_length(rows, edges):
            for chunk, size in _chunks(numbers, batch_sizes):
                interrupt.check()
                tokens = [rows[number] for number in chunk]
                targets = [labels[number] for number in chunk]
                batch = _batch(tokens, targets, width, size, vocabulary.pad_id, regression)
                pending.append((chunk, programs[with_gradient](params, batch)))
        for chunk, outputs in pending:  # once all calls are dispatched
            losses = np.asarray(outputs.losses)
            gradients = None if outputs.gradient is None else np.asarray(outputs.gradient)
            _check_labels([labels[number] for number in chunk], outputs.logits.shape[1], regression)
            for place, number in enumerate(chunk):
                gradient = None if gradients is None else gradients[place]
                yield number, rows[number], float(losses[place]), gradient

    def loss(texts: Sequence[Text], labels: Sequence[Label]) -> np.ndarray:
        losses = np.zeros(len(texts))
        for number, _, value, _ in run(texts, labels, False):
            losses[number] = value
        return losses

    def linearize(texts: Sequence[Text], labels: Sequence[Label]) -> list[Linearized]:
        linearized: dict[int, Linearized] = {}
        for number, row, value, gradient in run(texts, labels, True):
            assert gradient is not None
            linearized[number] = _linear(row, value, gradient)
        return [linearized[number] for number in range(len(texts))]

    def pieces(words: Sequence[str]) -> list[tuple[int, ...]]:
        rows = bare.encode_batch(list(words), add_special_tokens=False)
        return [tuple(row.ids) for row in rows]

    gradients = Gradients(
        linearize, pieces, table[: vocabulary.size], vocabulary.tokens, _known(vocabulary)
    )
    return Victim(loss, gradients)


@functools.lru_cache(maxsize=1)
def _known(vocabulary: WordPiece) -> dict[str, Any]:
    """HotFlip's cache for a vocabulary, shared by the rates, seeds and models of a task."""
    return {}


@functools.lru_cache(maxsize=8)
def _compiled(
    model: Functional[Encoder], regression: bool, with_gradient: bool
) -> Callable[[Params, Batch], _Outputs]:
    """Losses, and optionally gradients, of every row; one program for all seeds of a model."""

    @jax.jit
    def program(params: Params, batch: Batch) -> _Outputs:
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
            return _Outputs(*total(tokens)[1], None)
        # Rows are independent, so the gradient of the sum is that of each.
        (_, (losses, logits)), gradient = jax.value_and_grad(total, has_aux=True)(tokens)
        # In units of the table, which the model scales.
        gradient *= run(method=_embedding_scale)
        return _Outputs(losses, logits, gradient.reshape(*batch.ids.shape, -1))

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
            raise ValueError(f"a text must be one string or a pair, got {choice!r}")
    return choices


def _tokenized(tokenizer: Any, texts: Sequence[Text]) -> list[_Tokenized]:
    examples = [_choices(text) for text in texts]
    numbers = sorted({len(choices) for choices in examples})
    if len(numbers) > 1:
        raise ValueError(f"all texts of a call must have equally many choices, got {numbers}")
    flat = [choice if len(choice) == 2 else choice[0] for row in examples for choice in row]
    encodings = iter(tokenizer.encode_batch(flat))
    rows = []
    for choices in examples:
        row, first = _Tokenized([], [], []), 0
        for choice in choices:
            encoding = next(encodings)
            fields = [-1 if part is None else first + part for part in encoding.sequence_ids]
            row.ids.append(np.asarray(encoding.ids, np.int32))
            row.fields.append(np.asarray(fields, np.int32))
            row.spans.append(np.asarray(encoding.offsets, np.int32))
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
        for choice, tokens in enumerate(rows[min(number, len(rows) - 1)].ids):
            ids[number, choice, : len(tokens)] = tokens
            lengths[number, choice] = len(tokens)
    kind = np.float32 if regression else np.int32
    padded = [*labels, *[labels[-1]] * (size - len(labels))]
    weights = (np.arange(size) < len(rows)).astype(np.float32)
    # NumPy arrays: faster for a compiled call than jnp.asarray of each.
    return Batch(ids, lengths, np.asarray(padded, kind), weights)  # pyright: ignore


def _linear(row: _Tokenized, loss: float, gradient: np.ndarray) -> Linearized:
    """The tokens that come from the text, without special ones, with all choices in sequence."""
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
        raise ValueError(
            f"regression must be {num_outputs == 1} for a model with {num_outputs} outputs, got "
            f"{regression}"
        )
    if regression:
        return
    wrong = [label for label in labels if label not in range(num_outputs)]
    if wrong:
        raise ValueError(f"labels must be in [0, {num_outputs}), got {wrong[0]}")
