"""TextBugger: the words a model leans on, bugged one by one, the worst bug of each kept."""

from collections.abc import Callable, Sequence

import numpy as np

from hopfax.text import changes
from hopfax.text.changes import Change, Changes
from hopfax.text.log import Draft, T, draft, edited
from hopfax.text.typos import Seed, generator, num_changes
from hopfax.text.victim import Ask, Attacked, Label, Search, Victim, attack_each

BUGS: tuple[Changes, ...] = (
    changes.bug_insert,
    changes.bug_delete,
    changes.bug_swap,
    changes.bug_substitute,
)


def textbugger(
    victim: Victim,
    texts: Sequence[T],
    labels: Sequence[Label],
    *,
    rate: float,
    seed: int = 0,
    rows: Sequence[int] | None = None,
    exhaustive: bool = False,
    stop_at: float = np.inf,
    at_once: int = 128,
) -> list[Attacked[T]]:
    """Attacks texts with TextBugger, by the model's losses alone.

    A word matters by how much the loss grows when it is taken out. From the one that matters most
    on, each word gets the bug that makes the loss greatest, whether or not it grows, until the
    share of words is used up: a blank inside, a letter left out, two letters swapped, a letter
    replaced by a look-alike. What is returned is the version of the greatest loss on that way, so
    that a later word cannot undo an earlier success; the paper stops at the first one, see
    `stop_at`. All versions of a step, of all texts, are one call of `victim.loss`.

    Beside the paper: a letter gives way to look-alikes only, a neighbouring key is `misspell`'s;
    its fifth bug, a word of similar meaning, is no edit of characters and is left out, and with it
    the check that a sentence encoder finds the text still similar. It ranks sentences first in long
    documents, not here.

    Args:
        victim: The model; its gradients are not used.
        texts: As for `hopfax.text.misspell`.
        labels: The right answers.
        rate: Share of each text's words to change, in [0, 1]; see `num_changes`.
        seed: Of the place of each bug in its word, with the row.
        rows: Number of each text; None counts from 0.
        exhaustive: Try every place in a word, not one at random as the paper does: some five times
            the candidates, and no randomness.
        stop_at: Leave a text alone once its loss is this great. The paper stops when the model
            errs, which for two classes is a cross-entropy of log 2.
        at_once: Texts attacked side by side.

    Returns:
        What became of each text, in order.

    Raises:
        TypeError: `texts` is one string.
        ValueError: `rate` is outside [0, 1], `seed` is no whole number >= 0, a text has no words,
            or a loss is not finite.

    References:
        Li et al., TextBugger (NDSS 2019), sections III-B and III-C, Algorithms 2 and 3.
    """

    def search(text: T, row: int) -> Search[T]:
        return textbugger_search(
            text, rate=rate, seed=(seed, row), exhaustive=exhaustive, stop_at=stop_at
        )

    num_changes(rate, 0)
    return attack_each(search, victim, texts, labels, rows=rows, at_once=at_once)


def textbugger_search(
    text: T, *, rate: float, seed: Seed, exhaustive: bool = False, stop_at: float = np.inf
) -> Search[T]:
    """TextBugger on one text, for `victim.run_searches`; arguments as for `textbugger`."""
    now = draft(text)
    left = num_changes(rate, len(now.words))
    options = _options(now, generator(seed), exhaustive)
    open_words = [index for index, found in enumerate(options) if found and left]
    without = [edited(now, index, _removal(now.spelling(index))).text for index in open_words]
    clean_loss, *losses = yield Ask([text, *without])
    asked, loss = 1 + len(without), clean_loss
    worst, worst_loss = now, clean_loss
    for rank in np.argsort(-np.asarray(losses), kind="stable").tolist():
        if left == 0 or loss >= stop_at:
            break
        index = open_words[rank]
        versions = [edited(now, index, change) for change in options[index]]
        losses_with = yield Ask([version.text for version in versions])
        best = int(np.argmax(losses_with))
        now, loss = versions[best], losses_with[best]
        left, asked = left - 1, asked + len(versions)
        if loss > worst_loss:
            worst, worst_loss = now, loss
    return Attacked(worst.corrupted(), float(clean_loss), float(worst_loss), asked, 0)


def _removal(word: str) -> Change:
    return Change("removal", 0, word, "")


def _options(now: Draft, rng: np.random.Generator, exhaustive: bool) -> list[list[Change]]:
    """The bugs to try on each word: every one, or one at random of each kind."""
    choose: Callable[[list[Change]], list[Change]]
    choose = list if exhaustive else lambda found: [found[rng.integers(len(found))]]
    options = []
    for index in range(len(now.words)):
        word = now.spelling(index)
        chosen = [change for bug in BUGS if (found := bug(word)) for change in choose(found)]
        options.append(list({change.of(word): change for change in chosen}.values()))
    return options
