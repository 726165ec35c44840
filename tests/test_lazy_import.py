"""`import hopfax` gives its three main packages, and imports none of them before their use."""

import subprocess
import sys

import pytest

import hopfax

PROGRAM = """
import sys, hopfax
assert "jax" not in sys.modules and "flax" not in sys.modules
hopfax.stability.relu_stability
assert "hopfax.nn" not in sys.modules
assert {"hopfield", "nn", "stability"} <= set(dir(hopfax))
hopfax.hopfield.retrieve, hopfax.nn.robertha
"""


def test_packages_are_imported_at_first_use():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


def test_an_unknown_attribute_is_an_error():
    with pytest.raises(AttributeError, match="no attribute 'hopfeild'"):
        _ = hopfax.hopfeild  # pyright: ignore[reportAttributeAccessIssue]
