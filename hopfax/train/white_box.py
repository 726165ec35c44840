"""White-box access to an encoder's losses and gradients, for the attacks of `hopfax.text`."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from hopfax.data.tasks import Example
from hopfax.data.tokenize import WordPiece, text_tokenizer
from hopfax.nn.encoder import Encoder
from hopfax.nn.functional import Functional, Params
from hopfax.text import Gradients, Linearized, Text, Victim
from hopfax.text.attack import Label
from hopfax.train import interrupt
from hopfax.train.objectives import Batch, losses_of, per_example, texts_of


def white_box(
    model: Functional[Encoder],
    params: Params,
    vocabulary: WordPiece,
    *,
    regression: bool = False,
    max_length: int = 128,
    lengths: Sequence[int] = (16, 32, 64, 128),
    batch_sizes: Sequence[int] = (8, 64),
) -> Victim:
    """Returns the functions that attacks query, compiled once per padded length and batch size.

    Texts are tokenized and truncated as by `hopfax.data.encode`. The loss is cross-entropy, or the
    squared error for regression; gradients are with respect to the token embeddings (the *token*
    site), without dropout. Rows of a batch are independent, except with the `released` preset,
    which stops by one norm over the batch.

    Args:
        model: The classifier.
        params: Parameters of one seed, not stacked.
        vocabulary: Tokens and their ids.
        regression: Whether labels are scores.
        max_length: Maximum number of tokens of a text, in [5, model's positions].
        lengths: Padded lengths, increasing; those above `max_length` count as `max_length`. Models
            that store padding always use `max_length`.
        batch_sizes: Batch sizes, increasing. Only the smallest may be less than half full.

    Raises:
        ValueError: Parameters are stacked, `max_length` is out of range, or lengths or sizes do not
            increase. The functions raise one for labels that do not fit the model's outputs and
            different numbers of choices, and a TypeError for texts of more than two strings.

    Example:
        >>> import jax
        >>> from hopfax import nn, text
        >>> from hopfax.data import train_vocabulary
        >>> from hopfax.train.white_box import white_box
        >>> films = ["a wonderful film", "the story drags badly"]
        >>> vocabulary = train_vocabulary(films)
        >>> sizes = {"width": 8, "num_layers": 1, "ff_width": 8, "max_length": 32}
        >>> model = nn.tinybert(vocabulary.size, 2, **sizes)
        >>> params = model.init(jax.random.key(0))  # or a trained model's
        >>> victim = white_box(
        ...     model, params, vocabulary, max_length=32, lengths=(32,), batch_sizes=(8,)
        ... )
        >>> results = text.textbugger(victim, films, [1, 0], rate=0.3)
        >>> [text.restore(result.version) for result in results] == films
        True
    """
    for name, sizes in (("lengths", lengths), ("batch_sizes", batch_sizes)):
        if not sizes or (np.diff((0, *sizes)) <= 0).any():
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
    tokenizer, bare = text_tokenizer(vocabulary), text_tokenizer(vocabulary)
    tokenizer.enable_truncation(max_length, strategy="longest_first")
    one_length = model.config.stores_padding
    edges = (*(edge for edge in lengths if edge < max_length and not one_length), max_length)

    def run(
        texts: Sequence[Text], labels: Sequence[Label], with_gradient: bool
    ) -> list[tuple[Any, ...]]:
        """Tokens, loss and, if requested, gradient of each text, in one batch per shape."""
        rows, pending = _tokenized(tokenizer, texts), []
        program = _program(model, regression, with_gradient)
        targets = np.asarray(labels, np.float32 if regression else np.int32)
        widest = [max(map(len, row)) for row in rows]
        for numbers, width, size in _batches(widest, edges, batch_sizes):
            interrupt.check()
            padded = numbers + numbers[-1:] * (size - len(numbers))
            tokens = [rows[row] for row in padded]
            batch = _batch(tokens, targets[padded], width=width, pad_id=vocabulary.pad_id)
            pending.append((numbers, program(params, batch)))
        results: list[Any] = [None] * len(texts)
        for numbers, (logits, *parts) in pending:  # once all calls are dispatched
            outputs = range(logits.shape[1])
            owned = [labels[row] for row in numbers]
            if not regression and (wrong := [each for each in owned if each not in outputs]):
                raise ValueError(f"labels must be in [0, {len(outputs)}), got {wrong[0]}")
            for row, *values in zip(numbers, *map(np.asarray, parts), strict=False):
                results[row] = rows[row], *values
        return results

    def loss(texts: Sequence[Text], labels: Sequence[Label]) -> np.ndarray:
        return np.array([value for _, value in run(texts, labels, False)], np.float64)

    def linearize(texts: Sequence[Text], labels: Sequence[Label]) -> list[Linearized]:
        return [_linear(*each) for each in run(texts, labels, True)]

    def pieces(words: Sequence[str]) -> list[tuple[int, ...]]:
        rows = bare.encode_batch(list(words), add_special_tokens=False)
        return [tuple(row.ids) for row in rows]

    gradients = Gradients(
        linearize, pieces, table[: vocabulary.size], vocabulary.tokens, _cache(vocabulary)
    )
    return Victim(loss, gradients)


@functools.lru_cache(maxsize=1)
def _cache(vocabulary: WordPiece) -> dict[str, Any]:
    """HotFlip's cache for a vocabulary, shared by the rates, seeds and models of a task."""
    return {}


@functools.lru_cache(maxsize=8)
def _program(
    model: Functional[Encoder], regression: bool, with_gradient: bool
) -> Callable[[Params, Batch], tuple[Array, ...]]:
    """Logits, losses and optionally gradients of every row; one program for all seeds."""

    @jax.jit
    def program(params: Params, batch: Batch) -> tuple[Array, ...]:
        run = functools.partial(model.apply, params)
        ids, mask = texts_of(batch)

        def total(tokens: Array) -> tuple[Array, tuple[Array, Array]]:
            types = run(ids, method="token_types")
            encoding = run(run(tokens, types, method="embed"), mask, types, method="encode")
            logits = per_example(run(encoding.hidden, mask, method="classify"), batch)
            losses = losses_of(logits, batch.labels, regression=regression)
            return jnp.sum(losses), (logits, losses)

        tokens = run(ids, method="embed_tokens")
        if not with_gradient:
            return total(tokens)[1]
        # Rows are independent, so the gradient of the sum is each row's gradient.
        (_, outputs), gradient = jax.value_and_grad(total, has_aux=True)(tokens)
        # In units of the table, which the model scales.
        gradient *= model.config.embedding_scale
        return *outputs, gradient.reshape(*batch.ids.shape, -1)

    return program


def _tokenized(tokenizer: Any, texts: Sequence[Text]) -> list[list[Any]]:
    examples = [Example(text, 0, 0).texts for text in texts]
    numbers = sorted({len(choices) for choices in examples})
    if len(numbers) > 1:
        raise ValueError(f"all texts of a call must have equally many choices, got {numbers}")
    flat = [choice if len(choice) == 2 else choice[0] for row in examples for choice in row]
    encodings = iter(tokenizer.encode_batch(flat))
    return [[next(encodings) for _ in choices] for choices in examples]


def _batches(
    widest: Sequence[int], edges: Sequence[int], sizes: Sequence[int]
) -> Iterator[tuple[list[int], int, int]]:
    """Row numbers, padded length and size of batches; only the smallest may be under half full."""
    buckets = np.searchsorted(edges, widest)
    for bucket, width in enumerate(edges):
        numbers = np.flatnonzero(buckets == bucket).tolist()
        while numbers:
            size = next((size for size in reversed(sizes) if 2 * len(numbers) >= size), sizes[0])
            yield numbers[:size], width, size
            numbers = numbers[size:]


def _batch(rows: Sequence[Sequence[Any]], labels: np.ndarray, *, width: int, pad_id: int) -> Batch:
    lengths = np.array([[len(tokens) for tokens in row] for row in rows], np.int32)
    ids = np.full((*lengths.shape, width), pad_id, np.int32)
    for number, row in enumerate(rows):
        for choice, tokens in enumerate(row):
            ids[number, choice, : len(tokens)] = tokens.ids
    # NumPy arrays: faster for a compiled call than jnp.asarray of each.
    return Batch(ids, lengths, labels, np.ones(len(rows), np.float32))  # pyright: ignore


def _linear(row: Sequence[Any], loss: float, gradient: np.ndarray) -> Linearized:
    """The tokens that come from the text, without special ones, with all choices in sequence."""
    parts, first = [], 0
    for tokens, slope in zip(row, gradient, strict=True):
        fields = np.array([-1 if own is None else first + own for own in tokens.sequence_ids])
        real, spans = fields >= 0, np.asarray(tokens.offsets, np.int32)
        columns = np.asarray(tokens.ids), fields, *spans.T
        parts.append([*(each[real].astype(np.int32) for each in columns), slope[: len(real)][real]])
        first += tokens.n_sequences
    return Linearized(float(loss), *map(np.concatenate, zip(*parts, strict=True)))
