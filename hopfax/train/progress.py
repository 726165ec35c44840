"""Progress of a run: a bar on a terminal, plain lines in a file."""

import collections
import datetime
import io
import numbers
import sys
import time
from typing import Any, Self

from hopfax.train import interrupt
from hopfax.train.sharding import is_first

_INTERVAL = 5.0  # seconds between plain lines
_WINDOW = 500  # updates over which speed is averaged


class Progress:
    """Shows the share of the work done, the time left, and the latest loss or score, by process 0.

    The time left is shown from the second update on: the first one often includes compilation.
    Writes to standard error: a progress bar on a terminal, else plain lines for the first and last
    update and at most every five seconds in between. Each line starts with `title`.

    Args:
        total: Total units of work.

    Example:
        >>> import sys
        >>> from contextlib import redirect_stderr
        >>> from hopfax.train.progress import Progress
        >>> with redirect_stderr(sys.stdout), Progress(3) as progress:
        ...     progress.title = "sst2"
        ...     progress.update(3, loss=0.25)
        sst2  100%  done  loss 0.25
    """

    def __init__(self, total: int):
        self._total, self.title = total, ""
        self._stream = sys.stderr if is_first() else io.StringIO()
        self._recent = collections.deque[tuple[float, float]](maxlen=_WINDOW + 1)
        self._status = ""
        self._printed: tuple[float, str] | None = None
        self._bar: Any = None

    def __enter__(self) -> Self:
        if self._stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            # No markup: a title such as "[mask]" is text.
            self._bar = Bar(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[status]}", markup=False),
                console=Console(file=self._stream),
            )
            self._bar.start()
            self._task = self._bar.add_task(self.title, total=self._total, status="")
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._status:
            self._print()

    def update(self, done: float, *, restart: bool = False, **fields: Any) -> None:
        """Shows the work done; raises a KeyboardInterrupt if a stop was requested.

        Args:
            done: Units of work since the start of the run.
            restart: Measure speed anew, for instance after loading the work of an earlier run.
            **fields: Numbers or text, shown by name.
        """
        interrupt.check()
        now = time.monotonic()
        if restart:
            self._recent.clear()
        else:
            self._recent.append((now, done))
        parts = [f"{done / self._total if self._total else 1:.0%}"]
        if done >= self._total:
            parts.append("done")
        elif self._recent and now > (first := self._recent[0])[0] and done > first[1]:
            left = (self._total - done) / (done - first[1]) * (now - first[0])
            parts.append(f"{datetime.timedelta(seconds=round(left))} left")
        parts += [f"{name} {_short(value)}" for name, value in fields.items()]
        self._status = "  ".join(parts)
        if self._bar is not None:
            fields = {"description": self.title, "status": self._status}
            self._bar.update(self._task, completed=done, **fields)
            return
        # `__exit__` prints the last line, with the last fields.
        if done < self._total and (not self._printed or now - self._printed[0] >= _INTERVAL):
            self._print()

    def _print(self) -> None:
        line = f"{self.title}  {self._status}" if self.title else self._status
        if self._printed is None or line != self._printed[1]:
            print(line, file=self._stream, flush=True)
            self._printed = (time.monotonic(), line)


def _short(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, numbers.Integral) else f"{float(value):.4g}"
