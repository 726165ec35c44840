"""The benchmark of random numbers: its page, and that it notices other bits."""

import json

import jax
import jax.numpy as jnp
import pytest

from experiments.speed import draws, page


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(draws, "REPEATS", 2)
    only = {name: draws.DRAWS[name] for name in ("32 random bits", "dropout mask")}
    monkeypatch.setattr(draws, "DRAWS", only)


FLAGS = ("--seconds", "0", "--rounds", "1")


@pytest.mark.usefixtures("small")
def test_the_page_has_its_table(tmp_path):
    draws.main([*FLAGS, "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "draws.json").read_text())["table"]
    assert [row["what"] for row in rows] == ["32 random bits", "dropout mask"]
    assert all(row["jax_ns"] > 0 and row["quick_ns"] > 0 for row in rows)
    page.main([str(tmp_path)])
    assert "| 32 random bits |" in (tmp_path / "README.md").read_text()


@pytest.mark.usefixtures("small")
def test_other_numbers_are_noticed(tmp_path, monkeypatch):
    ones = {"ones": lambda key: jnp.ones((2**18,)) * (1 + (key.dtype != jax.random.key(0).dtype))}
    monkeypatch.setattr(draws, "DRAWS", ones)
    with pytest.raises(RuntimeError, match="ones: the sums of the same bits differ"):
        draws.main([*FLAGS, "--out", str(tmp_path)])
