"""The benchmark of runs at once: both sides do the same work, and its page says so."""

import json

import jax
import numpy as np
import pytest

from experiments.speed import page, seeds

SMALL = {"width": 8, "num_layers": 1, "batch_size": 300}


@pytest.fixture(scope="module")
def programs():
    """Both programs of two runs, compiled at their first call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seeds, "RUNS", 2)
        patch.setattr(seeds, "SIZES", (("small", SMALL),))
        found = seeds.programs(SMALL, "plain")
        patch.setattr(seeds, "programs", lambda *size_and_arm: found)
        yield found


def test_together_and_apart_do_the_same_work(programs):
    together, apart = programs["together"](), programs["apart"]()
    (_, epochs), runs = together, apart
    assert epochs.loss.shape == (seeds.EPOCHS, 2)
    assert len(runs) == 2
    for number, (_, alone) in enumerate(runs):
        np.testing.assert_allclose(epochs.loss[:, number], alone.loss[:, 0], rtol=1e-4)
    assert not np.allclose(epochs.loss[:, 0], epochs.loss[:, 1]), "runs of two seeds"
    jax.block_until_ready(together)


def test_the_page_has_its_table(programs, tmp_path, capsys):
    flags = ["--seconds", "0", "--rounds", "1", "--arms", "plain"]
    seeds.main([*flags, "--out", str(tmp_path)])
    row = json.loads((tmp_path / "seeds.json").read_text())["table"][0]
    assert row["apart_over_together"] == pytest.approx(
        row["apart_seconds"] / row["together_seconds"]
    )
    assert "small, plain: together" in capsys.readouterr().out
    page.main([str(tmp_path)])
    text = (tmp_path / "README.md").read_text()
    assert "## 2 runs at once" in text
    assert "| small | plain |" in text
