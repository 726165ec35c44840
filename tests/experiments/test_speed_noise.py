"""The benchmark of noise: its programs compute the same, and its page has their ratios."""

import json
from functools import partial

import numpy as np
import pytest

from experiments.speed import noise, page
from experiments.speed.workload import Workload
from hopfax.data.batching import Bucket
from hopfax.nn import tinybert
from hopfax.train import evaluate

TEXTS, TOKENS = 5, 6


def rows():
    rng = np.random.default_rng(0)
    lengths = np.array([[6], [3], [4], [2], [5]], np.int32)
    ids = rng.integers(1, 30, (TEXTS, 1, TOKENS), dtype=np.int32)
    ids *= np.arange(TOKENS) < lengths[..., None]
    index = np.array([4, 0, 3, 1, 2], np.int32)
    bucket = Bucket(ids, lengths, index % 2, index)
    return Workload([bucket], bucket, "five texts")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    sizes = {"width": 8, "num_layers": 1, "ff_width": 8, "max_length": TOKENS}
    monkeypatch.setattr(noise, "MODELS", {"tinybert": partial(tinybert, **sizes)})
    monkeypatch.setattr(noise, "VOCAB_SIZE", 30)
    monkeypatch.setattr(noise, "LEVELS", (0.5, 3.0))
    monkeypatch.setattr(noise, "workload_of", lambda *_: rows())


def test_the_programs_agree_and_the_page_has_their_ratios(tmp_path, capsys, monkeypatch):
    compared, real = [], noise.check
    monkeypatch.setattr(
        noise, "check", lambda found, **how: (compared.append(found), real(found, **how))
    )
    flags = ["--seconds", "0", "--rows", "5", "--out", str(tmp_path)]
    noise.main(flags)
    clean, *noisy = [next(iter(found.values())) for found in compared]
    assert len(noisy) == 2 * 2 * noise.DRAWS and all(len(found) == 2 for found in compared)
    for number, logits in enumerate(noisy):
        # What is compared is another noise each time.
        for other in (clean, *noisy[:number]):
            assert np.abs(logits - other).max() > 0.01 * np.abs(clean).max()
    report = json.loads((tmp_path / "noise.json").read_text())
    places = [(row["site"], row["level"]) for row in report["table"]]
    assert places == [("token", 0.5), ("token", 3), ("embedding", 0.5), ("embedding", 3)]
    for row in report["table"]:
        assert row["noisy_over_given"] > 0 and row["num_steps"] == 0 and row["rounds"] == 5
    assert report["texts"] == TEXTS and len(report["ratios"]) == len(noise.RATIOS)
    assert "tinybert, fresh: predict_noisy over forward " in capsys.readouterr().out
    page.main([str(tmp_path)])
    text = (tmp_path / "README.md").read_text()
    assert "## Evaluation under noise" in text and "| tinybert | fresh | embedding | 3.0 |" in text
    assert "| tinybert | fresh | predict noisy over forward given |" in text


def test_plain_passes_have_every_row_once_and_no_others(monkeypatch):
    monkeypatch.setattr(noise, "TOKENS", 2 * TOKENS)
    parts = noise.parts_of(rows().buckets)
    assert [len(part.ids) for part in parts] == [2, 2, 1]
    np.testing.assert_array_equal(
        np.concatenate([part.index for part in parts]), rows().buckets[0].index
    )
    assert [int(part.mask.sum()) for part in parts] == [9, 6, 5]


def test_few_rows_only_fill_a_call():
    """Made-up answers: what counts is how many rows each call has."""
    for texts, tokens, calls in ((48, 72, 1), (417, 8, 1), (270, 64, 3), (1, 128, 1)):
        sizes = []

        def answer(params, batch, *_, sizes=sizes):
            sizes.append(len(batch.labels))
            one = np.ones(1, np.float32)
            return np.zeros((1, len(batch.labels), 2)), evaluate._Counts(one, one, one, one)

        index = np.arange(texts, dtype=np.int32)
        lengths = np.full((texts, 1), tokens, np.int32)
        bucket = Bucket(np.ones((texts, 1, tokens), np.int32), lengths, index % 2, index)
        found = evaluate.predict(answer, {}, [bucket])
        assert found.logits.shape == (1, texts, 2) and np.array_equal(found.labels, index % 2)
        assert len(sizes) == calls and len(set(sizes)) == 1
        assert sizes[0] % 8 == 0 and sizes[0] * tokens <= 8192
        assert texts <= sum(sizes) < texts + 8 * calls
