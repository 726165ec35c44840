import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPFAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
