"""Keeps freed memory in the process, where a program asks for the same much again and again."""

import ctypes
import sys

# Of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4


def keep_freed_memory() -> bool:
    """Lets this process keep what it frees, from now on; worth a call before training on a CPU.

    XLA allocates the temporaries of a compiled function anew in every call and frees them after
    it. Of such sizes glibc takes each block from the operating system and hands it back, which
    costs a page fault per 4 KiB. The price is that the process's memory stays at its peak. On a GPU
    there is nothing to gain.

    Returns:
        Whether it could be set: with glibc, so on most Linux systems. Elsewhere nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # another C library
    # No limit on what stays, and no block that malloc maps for itself alone.
    return bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1) and mallopt(_MMAP_MAX, 0))
