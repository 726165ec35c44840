import json
import math
import os

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import tiny

from hopfax.train.metrics import MetricsLog, scores, with_interval


def one_hot_logits(predicted, outputs=2):
    return np.eye(outputs, dtype=np.float32)[np.asarray(predicted)]


def test_two_classes_by_their_formulae():
    # Asymmetric: 3 true positives, 4 true negatives, 2 false positives, 1 false negative.
    logits = one_hot_logits([1, 1, 1, 0, 0, 0, 0, 1, 1, 0])
    labels = np.array([1, 1, 1, 0, 0, 0, 0, 0, 0, 1])
    values = scores(("accuracy", "f1", "mcc"), logits, labels)
    precision, recall = 3 / 5, 3 / 4
    f1 = 2 * precision * recall / (precision + recall)
    mcc = (3 * 4 - 2 * 1) / math.sqrt(5 * 4 * 6 * 5)
    score = (70 + 100 * f1 + 50 * (mcc + 1)) / 3
    expected = {"accuracy": 0.7, "f1": f1, "mcc": mcc, "score": score}
    assert values == pytest.approx(expected)


def test_several_classes_by_gorodkins_covariances():
    rng, outputs = np.random.default_rng(5), 5
    labels = rng.integers(outputs, size=200)
    logits = rng.normal(size=(200, outputs)) + 0.8 * np.eye(outputs)[labels]
    values = scores(("mcc",), logits, labels)
    predicted = [max(range(outputs), key=lambda k: row[k]) for row in logits]
    actual, guessed = np.eye(outputs)[labels], np.eye(outputs)[predicted]
    pairs = [(actual, guessed), (actual, actual), (guessed, guessed)]
    both, left, right = (np.cov(a.T, b.T)[:outputs, outputs:].trace() for a, b in pairs)
    assert values["mcc"] == pytest.approx(both / math.sqrt(left * right), rel=1e-12)


def test_correlations_with_ties_by_their_formulae():
    rng = np.random.default_rng(0)
    predicted = np.round(rng.normal(size=60), 1).astype(np.float32)
    labels = np.round(np.exp(predicted + rng.normal(size=60)), 1)
    values = scores(("pearson", "spearman"), predicted[:, None], labels)
    frame = pd.DataFrame({"predicted": predicted.astype(float), "labels": labels})
    pearson, spearman = (np.corrcoef(each.T)[0, 1] for each in (frame, frame.rank()))
    score = 50 * (pearson + spearman + 2) / 2
    assert values == pytest.approx({"pearson": pearson, "spearman": spearman, "score": score})
    assert abs(pearson - spearman) > 0.05


@pytest.mark.parametrize(
    ("metrics", "logits", "labels", "score"),
    [
        (("mcc",), one_hot_logits([0, 1, 1, 0]), [1, 0, 0, 1], 0.0),  # all wrong
        (("accuracy",), jnp.array([[0.5, 1], [2, 1]], jnp.bfloat16), jnp.array([1, 1]), 50.0),
        # 0/0 gives 0: constant labels or predictions, no positives, one row.
        (("mcc",), one_hot_logits([0, 0, 0]), [0, 1, 1], 50.0),
        (("mcc",), one_hot_logits([0, 1, 1]), [1, 1, 1], 50.0),
        (("f1",), one_hot_logits([0, 0, 0]), [0, 0, 0], 0.0),
        (("pearson", "spearman"), np.full((3, 1), 2.3), [1.0, 2, 3], 50.0),
        (("pearson", "spearman"), np.array([[1.0], [2], [3]]), [2.3, 2.3, 2.3], 50.0),
        (("pearson", "spearman"), np.ones((1, 1)), [1.0], 50.0),
    ],
)
def test_score_scale_and_constant_inputs(metrics, logits, labels, score):
    assert scores(metrics, logits, np.asarray(labels))["score"] == pytest.approx(score)


def test_log_writes_each_record_as_one_json_line_at_once(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.write(np.int64(2), loss=np.float32(0.25), snr=jnp.array([np.inf, 1]), task="σ\n")
        (line,) = path.read_text().splitlines()
    expected = {"step": 2, "loss": 0.25, "snr": [None, 1.0], "task": "σ\n"}
    assert json.loads(line, parse_constant=pytest.fail) == expected


def test_truncated_log_has_no_line_twice(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        for step in (1, 2, 2, 3, 10):
            log.write(step, loss=step)
    complete = path.read_bytes()
    with MetricsLog(path) as log:
        assert path.read_bytes() == complete
        log.truncate_after(2)
        for step in (3, 10):
            log.write(step, loss=step)
    assert path.read_bytes() == complete
    with MetricsLog(path) as log, monkeypatch.context() as patch:  # stopped midway
        patch.delattr(os, "replace")
        with pytest.raises(AttributeError):
            log.truncate_after(1)
    assert path.read_bytes() == complete


def test_last_line_cut_anywhere_is_removed(tmp_path):
    path, first, last = tmp_path / "m.jsonl", b'{"step": 1}\n', '{"step": 12, "n": "σ"}\n'.encode()
    for cut in range(len(last) + 1):
        path.write_bytes(first + last[:cut])
        with MetricsLog(path) as log:
            log.write(13)
        steps = [record["step"] for record in tiny.records(path)]
        assert steps == ([1, 12, 13] if cut == len(last) else [1, 13])


def test_intervals_are_of_95_percent():
    predicted = np.eye(2)[np.arange(400) % 4 // 3]  # three quarters are right
    interval = with_interval("accuracy", predicted, np.zeros(400, int))
    half = 196 * (0.75 * 0.25 / 400) ** 0.5
    np.testing.assert_allclose(interval, [75, 75 - half, 75 + half], atol=0.8)
    right = with_interval("accuracy", np.eye(2)[np.zeros(50, int)], np.zeros(50, int))
    np.testing.assert_allclose(right, [100, 100 / (1 + 1.96**2 / 50), 100], rtol=1e-4)  # Wilson
