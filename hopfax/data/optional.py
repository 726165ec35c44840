"""Imports of packages that are not in the core installation."""

import importlib
from typing import Any


def optional_import(name: str) -> Any:
    """Imports a module of the extra `experiments`, or raises an error with a suggested fix."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ModuleNotFoundError(
            f'{name} is not installed: pip install "hopfax[experiments]"', name=name
        ) from None
