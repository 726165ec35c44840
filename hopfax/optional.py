"""Imports of packages that are not in the core installation."""

import importlib
from typing import Any


def optional_import(name: str) -> Any:
    """Imports a module of an extra, or raises an error that names the smallest extra with it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != (name := name.partition(".")[0]):
            raise
        extra = "experiments" if name == "tensorflow_datasets" else "pretrained"
        raise ModuleNotFoundError(
            f'{name} is not installed: pip install "hopfax[{extra}]"', name=name
        ) from None
