"""TextBugger: greedy changes of the words that are most important to a model."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from hopfax.text import changes
from hopfax.text.attack import AttackResult, Label, Query, Search, Victim, attack_each
from hopfax.text.changes import Change
from hopfax.text.log import T, edit, split_words
from hopfax.text.typos import num_changes

BUGS = (changes.bug_insert, changes.bug_delete, changes.bug_swap, changes.bug_substitute)


def textbugger(
    victim: Victim,
    texts: Sequence[T],
    labels: Sequence[Label],
    *,
    rate: float,
    seed: int = 0,
    rows: Sequence[int] | None = None,
    batch_size: int = 128,
) -> list[AttackResult[T]]:
    """Attacks texts with TextBugger, using the model's losses only.

    Words are ranked by importance, the loss without the word. In this order, each word gets the bug
    with the greatest loss, even if the loss decreases, until the rate is reached. A bug is a space
    inside the word, an omitted letter, a swap of two letters, or a look-alike of a letter, at a
    random position. The result is the version with the greatest loss along the way.

    Unlike in the paper, letters do not become neighboring keys, words are not replaced by similar
    words, sentences are not ranked, and the attack does not stop at the first misclassification.

    Args:
        victim: The model.
        texts: Texts as for `hopfax.text.misspell`; those without words stay as they are.
        labels: The correct labels.
        rate: Fraction of each text's words to change, in [0, 1]; see `num_changes`.
        seed: Seed of the positions of bugs, together with the row.
        rows: Row number of each text; None counts from 0.
        batch_size: Texts attacked at the same time.

    Raises:
        TypeError: If `texts` is one string.
        ValueError: If `rate` is outside [0, 1], `seed` is negative, or a loss is not finite.

    Example:
        >>> import numpy as np
        >>> from hopfax import text
        >>> victim = text.Victim(lambda texts, labels: np.array(["good" not in x for x in texts]))
        >>> (result,) = text.textbugger(victim, ["a good film"], [1], rate=0.3)
        >>> result.clean_loss, result.loss, result.version.num_changed
        (0.0, 1.0, 1)

    References:
        Li et al., TextBugger (NDSS 2019), sections III-B and III-C, Algorithms 2 and 3.
    """
    num_changes(rate, 0)  # checks the rate
    search = partial(_search, rate=rate, seed=seed)
    return attack_each(search, victim, texts, labels, rows=rows, batch_size=batch_size)


def _search(text: T, row: int, *, rate: float, seed: int) -> Search[T]:
    current, rng = split_words(text), np.random.default_rng((seed, row))
    count = num_changes(rate, len(current.words))
    words = [current.spelling(index) for index in range(len(current.words))]
    options = [_options(word, rng) for word in words]
    candidates = [index for index, bugs in enumerate(options) if bugs and count]
    removals = {index: Change("removal", 0, words[index], "") for index in candidates}
    without = [edit(current, {index: removal}).text for index, removal in removals.items()]
    clean_loss, *losses = yield Query([text, *without])
    worst, worst_loss = current, clean_loss
    for rank in np.argsort(-np.asarray(losses), kind="stable").tolist()[:count]:
        index = candidates[rank]
        versions = [edit(current, {index: change}) for change in options[index]]
        losses = yield Query([version.text for version in versions])
        best = int(np.argmax(losses))
        current = versions[best]
        if losses[best] > worst_loss:
            worst, worst_loss = current, losses[best]
    return AttackResult(worst, float(clean_loss), float(worst_loss))


def _options(word: str, rng: np.random.Generator) -> list[Change]:
    """One random bug of each kind, without bugs that give the same word."""
    chosen = [bugs[rng.integers(len(bugs))] for kind in BUGS if (bugs := kind(word))]
    return list({change.of(word): change for change in chosen}.values())
