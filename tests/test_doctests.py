"""The examples in the docstrings do what they say."""

import doctest
import importlib
import pkgutil

import pytest

import hopfax

MODULES = sorted(info.name for info in pkgutil.walk_packages(hopfax.__path__, "hopfax."))


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for name in MODULES for test in finder.find(importlib.import_module(name))]
    assert any(test.examples for test in found)
