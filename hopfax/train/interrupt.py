"""Ctrl-C and SIGTERM handling that stops a program between two steps, without losing work.

Schedulers send SIGTERM before they end a job. Python raises `KeyboardInterrupt` anywhere in the
main thread, even in a garbage-collection callback, where it is dropped.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

MESSAGE = "stopping after this step; press Ctrl-C again to stop at once"
# The handlers that are replaced. Python ignores SIGINT in background jobs; SIGTERM still counts.
_HANDLERS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
_stop, _on_hold = threading.Event(), threading.Event()


def is_requested() -> bool:
    """Returns whether Ctrl-C was pressed or SIGTERM received."""
    return _stop.is_set()


def request(*_: object) -> None:
    """Requests a stop; also a handler of signals."""
    _stop.set()


def check() -> None:
    """Raises a KeyboardInterrupt if a stop `is_requested`; call it between steps."""
    if is_requested() and not _on_hold.is_set():
        raise KeyboardInterrupt


@contextlib.contextmanager
def hold() -> Iterator[None]:
    """Disables `check`, for a caller that checks `is_requested` itself and saves first."""
    outermost = not _on_hold.is_set()
    _on_hold.set()
    try:
        yield
    finally:
        if outermost:
            _on_hold.clear()


@contextlib.contextmanager
def listen(*, exits: bool = False) -> Iterator[None]:
    """Turns the first Ctrl-C, or SIGTERM, into a request to stop, raised by `check`.

    It takes effect when the running compiled call returns; a Ctrl-C after that stops at once. Has
    no effect outside the main thread or on signals that do not have their default handlers, so
    calls may be nested.

    Args:
        exits: Whether the second Ctrl-C ends the process, even in compiled code; a shell shows the
            status 130. Otherwise it raises a KeyboardInterrupt as soon as Python code runs.

    Raises:
        KeyboardInterrupt: A stop was requested and no `check` followed.

    Example:
        >>> from hopfax.train.interrupt import check, listen
        >>> with listen():
        ...     for step in range(3):
        ...         check()
    """
    in_main = threading.current_thread() is threading.main_thread()
    ours = [each for each, default in _HANDLERS.items() if signal.getsignal(each) == default]
    if not (in_main and ours) or is_requested():
        yield
        return

    def received(*_: object) -> None:
        if not is_requested():
            _stop.set()
            show_cursor = "\x1b[?25h" if os.isatty(2) else ""  # a progress bar hides it
            os.write(2, f"{show_cursor}\n{MESSAGE}\n".encode())  # print() is not safe here
        if signal.SIGINT in ours:
            signal.signal(signal.SIGINT, signal.SIG_DFL if exits else signal.default_int_handler)

    try:
        for each in ours:
            signal.signal(each, received)
        yield
        check()
    finally:
        for each in ours:
            signal.signal(each, _HANDLERS[each])
        _stop.clear()
