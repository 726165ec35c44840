import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def fake():
    """Made-up results, from the file beside this one: importlib mode puts no folder on the path."""
    path = Path(__file__).with_name("fake_results.py")
    spec = importlib.util.spec_from_file_location("fake_results", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
