"""The benchmark of ESR: arms differ in their entropy alone, and the page has its tables."""

import json

import numpy as np
import pytest

from experiments.speed import esr, page, programs
from experiments.speed.workload import Workload
from hopfax.data.batching import Bucket

TINY = {"width": 16, "num_layers": 1, "ff_width": 16, "num_heads": 2}


def bucket(tokens):
    """Three short texts."""
    rng = np.random.default_rng(tokens)
    lengths = np.array([[tokens], [5], [6]], np.int32)
    ids = rng.integers(1000, 30000, (3, 1, tokens), dtype=np.int32)
    ids *= np.arange(tokens) < lengths[..., None]
    index = np.arange(3, dtype=np.int32)
    return Bucket(ids, lengths, index % 2, index)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Every file of a run with one bucket and one entropy, whose error is asked for too."""
    folder = tmp_path_factory.mktemp("esr")
    with pytest.MonkeyPatch.context() as patch:
        # Padded to the same length, since every length compiles anew.
        rows = Workload([bucket(8)], bucket(8), "three texts")
        patch.setattr(esr, "workload_of", lambda *_: rows)
        patch.setitem(programs.SIZES, "base", TINY)
        patch.setattr(esr, "ENTROPIES", ("shannon_matmul",))
        patch.setattr(esr, "TOKENS", (4,))
        patch.setattr(esr, "WIDTHS", (8,))
        arms = {}
        make = esr.programs
        patch.setattr(esr, "programs", lambda rows: arms.update(make(rows)) or arms)
        patch.setattr(esr, "trained", lambda *_: arms["none"].states.params)
        flags = ["--seconds", "0", "--train-steps", "0", "--chunk", "1", "--calls", "1"]
        esr.main([*flags, "--out", str(folder)])
    return folder, arms


def test_all_arms_take_the_same_steps_but_for_esr(written):
    _, arms = written
    assert list(arms) == ["none", "shannon_matmul"]
    counts = [arm.num_steps for arm in arms.values()]
    # The same weights and batches: as many iterations in the first step of all, round by round.
    assert counts[0][0][0] == counts[1][0][0] > 1
    assert len(counts[0][0]) == len(counts[1][0]) == len(counts[0][1]) >= 2


def test_the_report_has_times_shares_and_errors_under_a_percent(written):
    report = json.loads((written[0] / "esr.json").read_text())
    found = {(row["what"], row["tokens"], row["entropy"]): row for row in report["table"]}
    name = "shannon_matmul"
    for tokens in ("8", 8):
        assert found["train step", tokens, name]["milliseconds"] > 0
        assert -100 < found["train step", tokens, name]["added"] < 1000
    assert found["with gradient", 4, name]["milliseconds"] > 0
    assert found["value", 4, name]["added"] is None
    assert found["train step", 8, "none"]["added"] == 0
    assert [row["tokens"] for row in report["errors"]] == [8, 8]
    for row in report["errors"]:
        assert 0 < row["value"] < row["gradient"] < 0.01
        assert row["keys"] == 3


def test_the_page_has_its_tables(written):
    page.main([str(written[0])])
    text = (written[0] / "README.md").read_text()
    assert "## ESR by entropy" in text
    assert "| weights | padded to | no ESR | shannon matmul | rounds |" in text
    assert "| fresh | 8 |" in text and "| with gradient | 8 | 4 |" in text
