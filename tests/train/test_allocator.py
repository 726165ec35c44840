"""Memory that was freed stays in the process."""

import subprocess
import sys

import pytest

from hopfax.train import allocator

# 64 MiB, written to, twice: the second time its pages are still there.
PROGRAM = """
import ctypes, resource, sys
from hopfax.train.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(2**26)
    ctypes.memset(block, 1, 2**26)
    libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def faults(mode):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(not allocator.keep_freed_memory(), reason="not glibc")
def test_a_second_block_costs_no_page_faults():
    # As many as pages, or as large pages where the system has those.
    assert faults("leave") >= 32
    assert faults("keep") < 8


def test_elsewhere_nothing_happens(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not allocator.keep_freed_memory()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())
    assert not allocator.keep_freed_memory()
