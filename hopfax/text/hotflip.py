"""HotFlip: edits of characters or tokens along the gradient of the loss."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from hopfax.text import changes
from hopfax.text.attack import (
    AttackResult,
    Gradients,
    Label,
    Linearized,
    Query,
    Search,
    Victim,
    attack_each,
    check_positive,
)
from hopfax.text.changes import Change, cased
from hopfax.text.log import T, Version, edit, split_words
from hopfax.text.typos import num_changes

Form = Literal["characters", "tokens"]
# The children of a state: the texts with one more edit, in order of their estimated gain.
Propose = Callable[[Version, Linearized], list[Version]]

# The tokens that a token may replace: none, words, or pieces within words.
NEVER, WORD, PIECE = 0, 1, 2
_TOKEN_MULTIPLE = 16  # the number of tokens is padded to a multiple of this, to compile few shapes
_MAX_CACHED = 3000  # words; the edits of one take about 60 kB
_OPERATIONS = (changes.flip, changes.insertion, changes.deletion)


def hotflip(
    victim: Victim,
    texts: Sequence[T],
    labels: Sequence[Label],
    *,
    rate: float,
    form: Form = "characters",
    beam: int = 3,
    num_candidates: int = 16,
    rows: Sequence[int] | None = None,
    batch_size: int = 32,
) -> list[AttackResult[T]]:
    r"""Attacks texts along the gradient of the loss, with beam search.

    Every step queries the gradient at each text of the beam, estimates the gain of every possible
    edit of a word that has not been edited, and keeps the texts with the greatest loss among the
    `num_candidates` best edits of each.

    *Tokens*: one token becomes another, with the estimate $(E_v - E_{x_i}) \cdot g_i$.
    Words replace words, numbers and punctuation, and pieces replace pieces; special tokens and
    padding do not change. Flips are dropped if the new word is tokenized differently. This is the
    paper's attack on words without its constraints on similarity, part of speech and stop words.

    *Characters*: one letter is flipped, inserted or deleted. The paper's models read characters. A
    WordPiece model reads tokens: one letter turns the word's tokens $x_1 .. x_k$ into
    $u_1 .. u_m$, with the estimate
    $\sum_j E_{u_j} \cdot g_{\min(j, k)} - \sum_j E_{x_j} \cdot g_j$: further pieces
    use the gradient of the last old one. It ignores that later words move; therefore the losses
    decide which texts are kept.

    A wider beam never gives a lower loss than beam 1, whose path always stays in the beam.

    Args:
        victim: The model, with gradients.
        texts: Texts as for `hopfax.text.misspell`; those without words stay as they are.
        labels: The correct labels.
        rate: Largest fraction of each text's words to change, in [0, 1]; see `num_changes`.
        form: What is edited: `"characters"` or `"tokens"`.
        beam: Texts kept after each step, >= 1; 1 is greedy.
        num_candidates: Edits of each text whose losses are queried, >= 1.
        rows: Row number of each text, for error messages.
        batch_size: Texts attacked at the same time.

    Raises:
        TypeError: If `texts` is one string.
        ValueError: If the victim has no gradients, its tokens depend on the spaces before words, a
            number is out of its range, or a loss or gradient is not finite.

    Example:
        >>> import numpy as np
        >>> from hopfax import text
        >>> tokens = ("good", "bad")
        >>> def loss(texts, labels):
        ...     return np.array([float(each == "bad") for each in texts])
        >>> def linearize(texts, labels):  # of texts of one token
        ...     zero, gradient = np.zeros(1, int), np.array([[0.0, 1.0]])
        ...     ids = [np.array([tokens.index(each)]) for each in texts]
        ...     return [text.Linearized(0.0, row, zero, zero, zero + 4, gradient) for row in ids]
        >>> def pieces(words):
        ...     return [(tokens.index(word),) for word in words]
        >>> victim = text.Victim(loss, text.Gradients(linearize, pieces, np.eye(2), tokens))
        >>> (result,) = text.hotflip(victim, ["good"], [1], rate=1, form="tokens")
        >>> result.version.text, result.loss
        ('bad', 1.0)

    References:
        Ebrahimi et al., HotFlip: White-Box Adversarial Examples for Text Classification (ACL 2018),
        sections 3 and 6.
    """
    gradients = victim.gradients
    if gradients is None:
        raise ValueError("hotflip requires gradients, got a victim with gradients=None")
    # Byte-level BPE and SentencePiece: the tokens of a word depend on the space before it.
    spaced = [token for token in gradients.tokens if token.startswith(("Ġ", "▁"))]
    if len(spaced) > sum(token.startswith("##") for token in gradients.tokens):
        raise ValueError(
            "hotflip requires tokens that do not depend on the space before a word (WordPiece), "
            f"got {spaced[0]!r}"
        )
    num_changes(rate, 0)  # checks the rate
    check_positive(beam=beam, num_candidates=num_candidates)
    if form == "tokens":
        kinds = np.asarray([_kind(token) for token in gradients.tokens], np.int32)
        gradients = gradients._replace(table=jnp.asarray(gradients.table))
        propose = partial(_token_flips, gradients=gradients, kinds=kinds, count=num_candidates)
    elif form == "characters":
        cache = {} if gradients.cache is None else gradients.cache
        gradients = gradients._replace(table=np.asarray(gradients.table), cache=cache)
        propose = partial(_character_edits, gradients=gradients, count=num_candidates)
    else:
        raise ValueError(f"form must be {' or '.join(get_args(Form))}, got {form!r}")
    search = partial(_search, propose=propose, rate=rate, beam=beam)
    return attack_each(search, victim, texts, labels, rows=rows, batch_size=batch_size)


class _State(NamedTuple):
    version: Version[Any]
    loss: float


def _search(text: T, row: int, *, propose: Propose, rate: float, beam: int) -> Search[T]:
    clean = split_words(text)
    (clean_loss,) = yield Query([text])
    best = _State(clean, float(clean_loss))
    states = [best]
    for _ in range(num_changes(rate, clean.num_words)):
        versions = [state.version for state in states]
        linearized = yield Query([version.text for version in versions], gradient=True)
        proposals = list(map(propose, versions, linearized))
        children: dict[Any, Version] = {}
        for child in itertools.chain(*proposals):
            children.setdefault(child.text, child)
        if not children:
            break
        losses = yield Query(list(children))
        evaluated = map(_State, children.values(), map(float, losses))
        ranked = sorted(evaluated, key=lambda state: state.loss, reverse=True)
        # The best child of the first state goes first, to keep the path of beam 1.
        firsts = {child.text for child in proposals[0]}
        greedy = [state for state in ranked if state.version.text in firsts][:1]
        states = (greedy + [state for state in ranked if state not in greedy])[:beam]
        best = max([best, *states], key=lambda state: state.loss)
    return AttackResult(best.version, float(clean_loss), best.loss)


class _Tokens(NamedTuple):
    """Tokens of a word: ids, gradients, and first and last character (+ 1) within the word."""

    ids: np.ndarray
    gradient: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def _editable_words(current: Version, linear: Linearized) -> dict[int, _Tokens]:
    """Tokens of unedited words that the model reads, by number; gradients add up over choices."""
    words = {}
    for index, word in enumerate(current.words):
        inside = (linear.starts >= word.start) & (linear.ends <= word.end)
        by_field = [np.flatnonzero(inside & (linear.fields == field)) for field in word.fields]
        longest = max(by_field, key=len)  # a choice may be cut within the word
        if len(longest) and not word.changed:
            gradient = np.zeros((len(longest), linear.gradient.shape[1]), np.float32)
            for tokens in by_field:
                gradient[: len(tokens)] += linear.gradient[tokens]
            starts, ends = linear.starts[longest] - word.start, linear.ends[longest] - word.start
            words[index] = _Tokens(linear.ids[longest], gradient, starts, ends)
    return words


def _kind(token: str) -> int:  # of the tokens that a token replaces
    if not token.removeprefix("##").isalpha():
        return NEVER
    return PIECE if token.startswith("##") else WORD


def _token_flips(
    current: Version, linear: Linearized, *, gradients: Gradients, kinds: np.ndarray, count: int
) -> list[Version]:
    """The best flips of a token after which the model reads the intended tokens."""
    words = _editable_words(current, linear)
    pieces = gradients.pieces([current.spelling(index) for index in words])
    owners = [
        (index, place)
        for (index, word), ids in zip(words.items(), pieces, strict=True)
        if len(word.ids) == len(ids)  # otherwise the text is cut within the word
        for place in range(len(word.ids))
    ]
    if not owners:
        return []
    ids = np.array([words[index].ids[place] for index, place in owners])
    gradient = np.stack([words[index].gradient[place] for index, place in owners])
    num_flips = 4 * count  # some are tokenized differently
    while True:
        flips = _best_flips(gradients.table, ids, gradient, kinds, num_flips)
        edits = []  # word, change, intended tokens
        for owner, token in flips:
            index, place = owners[owner]
            word, start = words[index], int(words[index].starts[place])
            old = current.spelling(index)[start : int(word.ends[place])]
            new = cased(gradients.tokens[token].removeprefix("##"), old)
            change = Change("token", start, old, new)
            edits.append((index, change, (*word.ids[:place], token, *word.ids[place + 1 :])))
        spellings = [change.of(current.spelling(index)) for index, change, _ in edits]
        pairs = zip(edits, gradients.pieces(spellings), strict=True)
        valid = [tuple(each) for (*each, ids), pieces in pairs if ids == tuple(pieces)]
        if len(valid) >= count or len(flips) < num_flips:
            return [edit(current, {index: change}) for index, change in valid[:count]]
        num_flips *= 4


def _best_flips(
    table: Any, ids: np.ndarray, gradient: np.ndarray, kinds: np.ndarray, count: int
) -> list[tuple[int, int]]:
    """Position and new token of at most `count` flips, those with the greatest gain first."""
    spare = -len(ids) % _TOKEN_MULTIPLE
    gains, places = _best(
        table,
        np.pad(ids, (0, spare)),
        np.pad(gradient, ((0, spare), (0, 0))),
        np.pad(np.maximum(kinds[ids], WORD), (0, spare), constant_values=-1),
        kinds,
        count=min(count, (len(ids) + spare) * len(kinds)),
    )
    positions, tokens = np.divmod(np.asarray(places)[np.asarray(gains) > -np.inf], len(kinds))
    return list(zip(positions.tolist(), tokens.tolist(), strict=True))


@partial(jax.jit, static_argnames="count")
def _best(
    table: Array, ids: Array, gradient: Array, replaceable_by: Array, kinds: Array, *, count: int
) -> tuple[Array, Array]:
    projected = gradient @ table.T
    gains = projected - jnp.take_along_axis(projected, ids[:, None], axis=1)
    allowed = (replaceable_by[:, None] == kinds) & (jnp.arange(len(table)) != ids[:, None])
    return jax.lax.top_k(jnp.where(allowed, gains, -jnp.inf).reshape(-1), count)


class _Variants(NamedTuple):
    changes: list[Change]
    ids: np.ndarray  # (edits, pieces): tokens of the edited word; -1 for none
    used: np.ndarray  # the distinct tokens among them
    places: np.ndarray  # (edits, pieces): position of each token in `used`


def _variants(words: list[str], gradients: Gradients) -> list[_Variants]:
    """All edits of one letter for several words; tokenizes those not in the cache in one call."""
    cache: dict[str, _Variants] = gradients.cache  # pyright: ignore[reportAssignmentType]
    known = {word: variants for word in words if (variants := cache.get(word))}
    new = {
        word: {change.of(word): change for kind in _OPERATIONS for change in kind(word)}
        for word in words
        if word not in known
    }
    if len(cache) + len(new) > _MAX_CACHED:
        cache.clear()
    pieces = iter(gradients.pieces([spelling for edits in new.values() for spelling in edits]))
    for word, edits in new.items():
        rows = [next(pieces) for _ in edits]
        ids = np.full((len(rows), max(map(len, rows), default=0)), -1, np.int32)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = row
        used, places = np.unique(ids, return_inverse=True)
        variants = _Variants(list(edits.values()), ids, used, places.reshape(ids.shape))
        known[word] = cache[word] = variants  # other threads may clear the cache
    return [known[word] for word in words]


def _character_edits(
    current: Version, linear: Linearized, *, gradients: Gradients, count: int
) -> list[Version]:
    words = _editable_words(current, linear)
    variants = _variants([current.spelling(index) for index in words], gradients)
    table: Any = gradients.table
    gains, edits = [], []
    for (index, word), variant in zip(words.items(), variants, strict=True):
        rows = np.minimum(np.arange(variant.ids.shape[1]), len(word.ids) - 1)
        projected, real = table[variant.used] @ word.gradient.T, variant.ids >= 0
        new = np.where(real, projected[variant.places, rows], 0).sum(axis=1)
        old = np.sum(table[word.ids] * word.gradient)
        same = ((variant.ids == word.ids[rows]) | ~real).all(axis=1)
        same &= real.sum(axis=1) == len(word.ids)
        gains.append(np.where(same, -np.inf, new - old))
        edits += [(index, change) for change in variant.changes]
    gain = np.concatenate([np.zeros(0), *gains])
    best = np.argsort(-gain, kind="stable")[:count].tolist()
    return [edit(current, dict([edits[number]])) for number in best if gain[number] > -np.inf]
