"""The share of time a device waits: gaps by hand, and a trace of a tiny run."""

import json

import numpy as np
import pytest

from experiments.speed import page, waiting
from experiments.speed.workload import Workload
from hopfax.data.batching import Bucket
from hopfax.nn import tinybert


def test_gaps_by_hand():
    """Work at 2..4, 3..6 and 9..20 in the window 1..11: nothing at 1..2 and 6..9."""
    starts, ends = np.array([9, 2, 3]) * 1e9, np.array([20, 4, 6]) * 1e9
    found = waiting.waiting_within((1e9, 11e9), starts, ends)
    assert found == (10, 4, 3, 2)
    outside = waiting.waiting_within((1e9, 11e9), np.array([20e9]), np.array([21e9]))
    assert outside.waiting == outside.longest == 10


def test_a_folder_without_a_trace_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no trace"):
        waiting.read_trace(tmp_path)


def test_a_trace_is_read_and_the_page_has_its_table(tmp_path, monkeypatch, capsys):
    def small(vocab_size, num_outputs):
        sizes = {"width": 8, "num_layers": 1, "ff_width": 8}
        return tinybert(vocab_size, num_outputs, **sizes)

    # One padded length: each compiles a train step and a prediction of its own.
    ids, lengths = np.ones((64, 1, 4), np.int32), np.full((64, 1), 4, np.int32)
    bucket = Bucket(ids, lengths, np.arange(64) % 2, np.arange(64, dtype=np.int32))
    monkeypatch.setattr(waiting, "workload_of", lambda *_: Workload([bucket], bucket, "ones"))
    monkeypatch.setattr(waiting, "VOCAB_SIZE", 8)
    monkeypatch.setattr(waiting, "robertha", small)
    monkeypatch.setattr(waiting, "ESR_WEIGHT", 0.0)
    report = waiting.main(["--rows", "64", "--out", str(tmp_path)])
    (row,) = report["table"]
    assert 0 < row["waiting_seconds"] < row["seconds"], "some work, and some waiting"
    assert row["waiting_percent"] == pytest.approx(100 * row["waiting_seconds"] / row["seconds"])
    assert row["longest_wait_ms"] <= 1e3 * row["waiting_seconds"] and row["steps"] == 2
    assert "the device waits" in capsys.readouterr().out
    assert json.loads((tmp_path / "waiting.json").read_text())["table"] == [row]
    page.main([str(tmp_path)])
    text = (tmp_path / "README.md").read_text()
    assert "## Time the device waits for the host" in text
    assert f"| 1 | {row['steps']} |" in text
