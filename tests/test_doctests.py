"""The examples in the docstrings do what they say, pasted as they are."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import hopfax

MODULES = sorted(info.name for info in pkgutil.walk_packages(hopfax.__path__, "hopfax."))


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(name)
    result = doctest.testmod(module, globs={}, optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


@pytest.mark.parametrize("name", ["hopfield", "stability", "nn", "data", "text"])
def test_every_public_function_has_an_example(name):
    functions = inspect.getmembers(importlib.import_module(f"hopfax.{name}"), inspect.isfunction)
    assert functions
    assert not [key for key, function in functions if ">>>" not in (function.__doc__ or "")]
