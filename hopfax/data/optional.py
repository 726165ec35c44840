"""Imports of packages that the core installation leaves out."""

import importlib
from typing import Any


def optional_import(name: str) -> Any:
    """Returns an imported module of the extra `experiments`.

    Args:
        name: The module, for instance `tokenizers`.

    Raises:
        ModuleNotFoundError: The package is not installed; the message has the command to install
            it.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ModuleNotFoundError(
            f'{name} is not installed: pip install "hopfax[experiments]"', name=name
        ) from None
