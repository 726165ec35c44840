"""Progress of a run: a bar on a terminal, plain lines in a file."""

import collections
import contextlib
import numbers
import sys
import time
from collections.abc import Callable
from typing import Any, Self, TextIO

from hopfax.train import interrupt

_INTERVAL = 5.0  # seconds between plain lines


class Progress:
    """Shows steps done, examples per second, time left, and the latest loss or score.

    On a terminal this is a rich bar. Elsewhere it is a plain line for the first update, for the
    last, and at most one every five seconds in between. Speeds are averages over the last `window`
    updates, so that compilation, during the first, soon no longer counts.

    Args:
        total: Steps of the whole run.
        title: Shown first.
        done: Steps of an earlier process; they count as done but not for speed.
        stream: Where to write; default: standard error.
        window: Updates that speeds are averaged over, >= 1.
        counts: Whether to show the number of steps in addition to their share.
        clock: Returns seconds; for tests.

    Example:
        >>> import sys
        >>> with Progress(3, title="sst2", stream=sys.stdout, clock=lambda: 0.0) as progress:
        ...     progress.update(3, 96, loss=0.25)
        sst2  3/3 (100%)  done  loss 0.25
    """

    def __init__(
        self,
        total: int,
        *,
        title: str = "",
        done: int = 0,
        stream: TextIO | None = None,
        window: int = 50,
        counts: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._total = total
        self._counts = counts
        self.title = title
        self._done = done
        self._examples = 0
        self._stream = stream or sys.stderr
        self._clock = clock
        self._recent: collections.deque[tuple[float, int, int]]
        self._recent = collections.deque(maxlen=window + 1)
        self._status = ""
        self._printed: tuple[float, str] | None = None
        self._bar: Any = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._recent.append((self._clock(), self._done, 0))
        if self._stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            # No markup: a title such as "[mask]" is text.
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[status]}", markup=False),
            )
            bar = Bar(*columns, console=Console(file=self._stream))
            self._bar = self._stack.enter_context(bar)
            self._task = self._bar.add_task(
                self.title, total=self._total, completed=self._done, status=""
            )
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is None and self._status:
            self._print()
        self._stack.close()

    def update(self, done: int, examples: int, **fields: Any) -> None:
        """Shows the work done; a safe point to stop at, see `hopfax.train.interrupt`.

        Args:
            done: Steps since the start of the run.
            examples: Examples since the last update, over all seeds.
            **fields: Numbers or text, shown by name.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed.
        """
        interrupt.check()
        self._done = done
        self._examples += examples
        self._recent.append((self._clock(), done, self._examples))
        self._status = self._describe(fields)
        if self._bar is not None:
            self._bar.update(
                self._task, description=self.title, completed=done, status=self._status
            )
            return
        due = self._printed is None or self._recent[-1][0] - self._printed[0] >= _INTERVAL
        # The last line is printed at the end, with the fields known by then.
        if due and done < self._total:
            self._print()

    def _describe(self, fields: dict[str, Any]) -> str:
        (start, first_done, first_examples), (now, done, examples) = (
            self._recent[0],
            self._recent[-1],
        )
        seconds = now - start
        share = done / self._total if self._total else 1.0
        parts = [f"{done:,}/{self._total:,} ({share:.0%})" if self._counts else f"{share:.0%}"]
        if seconds > 0 and examples > first_examples:
            parts.append(f"{(examples - first_examples) / seconds:,.0f} examples/s")
        if done >= self._total:
            parts.append("done")
        elif seconds > 0 and done > first_done:
            left = (self._total - done) / (done - first_done) * seconds
            parts.append(f"{_clock_face(left)} left")
        return "  ".join([*parts, *(f"{name} {_short(value)}" for name, value in fields.items())])

    def _print(self) -> None:
        line = f"{self.title}  {self._status}" if self.title else self._status
        if self._printed is None or line != self._printed[1]:
            print(line, file=self._stream, flush=True)
            self._printed = (self._recent[-1][0], line)


def _clock_face(seconds: float) -> str:
    """3725.2 → 1:02:05; 65 → 1:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _short(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, numbers.Integral):
        return f"{int(value):,}"
    return f"{float(value):.4g}"
