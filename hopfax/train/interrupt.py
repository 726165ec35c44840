"""Ctrl-C handling that stops a program between two steps, without losing work.

Python raises `KeyboardInterrupt` anywhere in the main thread, even in a garbage-collection
callback, where it is dropped.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

MESSAGE = "stopping after this step; press Ctrl-C again to stop at once"
_requested = threading.Event()
_held = threading.local()


def requested() -> bool:
    """Returns whether Ctrl-C was pressed.

    Example:
        >>> from hopfax.train.interrupt import requested
        >>> requested()
        False
    """
    return _requested.is_set()


def check() -> None:
    """Raises a KeyboardInterrupt if Ctrl-C was pressed, unless `held`; call it between steps.

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
    """Turns the first Ctrl-C into a request to stop, raised by `check`; the second stops at once.

    Has no effect outside the main thread or if SIGINT does not have Python's default handler, so
    calls may be nested.

    Args:
        exits: Whether the second Ctrl-C ends the process with status 130, even in compiled code.
            Otherwise it raises a KeyboardInterrupt as soon as Python code runs.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed and no `check` followed.

    Example:
        >>> from hopfax.train.interrupt import check, listening
        >>> with listening():
        ...     for step in range(3):
        ...         check()
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def pressed(*_: object) -> None:
        if exits:
            return  # the watching thread handles it
        if requested():
            raise KeyboardInterrupt
        _note()

    try:
        with _watching() if exits else contextlib.nullcontext():
            signal.signal(signal.SIGINT, pressed)
            yield
            check()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _requested.clear()


def _note() -> None:
    _requested.set()
    os.write(2, f"\n{MESSAGE}\n".encode())  # print() is not safe in a signal handler


@contextlib.contextmanager
def _watching() -> Iterator[None]:
    """Runs a thread that receives signals while the main thread runs compiled code."""
    # Python runs handlers between bytecodes, but writes to the wake-up descriptor at once.
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def watch() -> None:
        while number := os.read(reader, 1):
            if number[0] != signal.SIGINT:
                continue
            if requested():
                if os.isatty(2):
                    os.write(2, b"\x1b[?25h")  # shows the cursor
                os._exit(128 + signal.SIGINT)
            _note()

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
