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
_requested = threading.Event()
_held = threading.local()


def requested() -> bool:
    """Returns whether Ctrl-C was pressed or SIGTERM received.

    Example:
        >>> from hopfax.train.interrupt import requested
        >>> requested()
        False
    """
    return _requested.is_set()


def check() -> None:
    """Raises a KeyboardInterrupt if a stop is `requested`, unless `held`; call it between steps.

    Example:
        >>> from hopfax.train.interrupt import check
        >>> check()
    """
    if requested() and not getattr(_held, "now", False):
        raise KeyboardInterrupt


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Disables `check`, for a caller that checks `requested` itself and saves first.

    Example:
        >>> from hopfax.train.interrupt import check, held
        >>> with held():
        ...     check()
    """
    before, _held.now = getattr(_held, "now", False), True
    try:
        yield
    finally:
        _held.now = before


@contextlib.contextmanager
def listening(*, exits: bool = False) -> Iterator[None]:
    """Turns the first Ctrl-C, or SIGTERM, into a request to stop, raised by `check`.

    A second Ctrl-C stops at once. Has no effect outside the main thread or on signals that do not
    have their default handlers, so calls may be nested.

    Args:
        exits: Whether the second Ctrl-C ends the process with status 130, even in compiled code.
            Otherwise it raises a KeyboardInterrupt as soon as Python code runs.

    Raises:
        KeyboardInterrupt: A stop was requested and no `check` followed.

    Example:
        >>> from hopfax.train.interrupt import check, listening
        >>> with listening():
        ...     for step in range(3):
        ...         check()
    """
    in_main = threading.current_thread() is threading.main_thread()
    ours = [each for each, default in _HANDLERS.items() if signal.getsignal(each) == default]
    if not (in_main and ours):
        yield
        return

    def received(number: int, _: object) -> None:
        # With `exits`, the watching thread handles it.
        if not exits and _is_second_press(number):
            raise KeyboardInterrupt

    try:
        with _watching() if exits else contextlib.nullcontext():
            for each in ours:
                signal.signal(each, received)
            yield
            check()
    finally:
        for each in ours:
            signal.signal(each, _HANDLERS[each])
        _requested.clear()


def _is_second_press(number: int) -> bool:
    """Notes a signal; returns whether it is a Ctrl-C after another signal."""
    if requested():
        return number == signal.SIGINT
    _requested.set()
    os.write(2, f"\n{MESSAGE}\n".encode())  # print() is not safe in a signal handler
    return False


@contextlib.contextmanager
def _watching() -> Iterator[None]:
    """Runs a thread that receives signals while the main thread runs compiled code."""
    # Python runs handlers between bytecodes, but writes to the wake-up descriptor at once.
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def watch() -> None:
        while number := os.read(reader, 1):
            if number[0] in _HANDLERS and _is_second_press(number[0]):
                if os.isatty(2):
                    os.write(2, b"\x1b[?25h")  # shows the cursor
                os._exit(128 + signal.SIGINT)

    thread = threading.Thread(target=watch, name="ctrl-c", daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        thread.join()
        os.close(reader)
