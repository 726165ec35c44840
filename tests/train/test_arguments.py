from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_loop
import tiny

from hopfax.train.adversarial import Ball, freelb, pgd, with_noise, with_noise_range
from hopfax.train.evaluate import Noise, make_predictor, predict, robustness
from hopfax.train.metrics import scores
from hopfax.train.objectives import Batch, classification, task_loss
from hopfax.train.schedule import epoch_chunks
from hopfax.train.sharding import make_sharding
from hopfax.train.state import adamw, seed_keys

MODEL = tiny.bag()
OBJECTIVE = classification(MODEL)
BUCKETS = tiny.buckets(3)
ONE = Batch(jnp.ones((1, 1, 3), int), jnp.full((1, 1), 3), jnp.zeros(1, int), jnp.ones(1))
EMBEDDINGS, MASK, LABELS = np.ones((4, 5, 2)), np.ones((4, 5), bool), np.zeros(4, int)
ROWS = {"embeddings": EMBEDDINGS, "mask": MASK, "labels": LABELS}
EMPTY = {name: rows[:0] for name, rows in ROWS.items()}
SQUARE = np.ones((2, 2))
UNKNOWN = [[1, np.nan], [0, 1], [np.inf, -np.inf]]


def noisy(buckets=BUCKETS, **changes):
    params = jax.tree.map(lambda leaf: leaf[None], tiny.lively(MODEL))
    noise = Noise("embedding", "matched", 1.0)._replace(**changes)
    return predict(make_predictor(MODEL), params, buckets, noise=noise)


def ball(method, **changes):
    return method(OBJECTIVE, Ball(**changes))


def scored(metric, logits, labels):
    return scores(metric.split(), np.asarray(logits), np.array(labels))


score = partial(robustness, fn=lambda x, mask: x.sum(1), **ROWS, key=jax.random.key(0))
loss = partial(task_loss, batch=ONE)
optimizer = partial(adamw, learning_rate=0.1, total_steps=10)
chunks = partial(epoch_chunks, [5], batch_size=8, seeds=(23,), epoch=0)
FIT, ADAMW = r"epochs >= 1.*; got \d+, \d+, \d seeds, \d and \d buckets", "adamw requires .*; got "


@pytest.mark.usefixtures("compiled_once")
@pytest.mark.parametrize(
    ("call", "options", "message"),
    [
        (partial(ball, pgd), {"num_steps": 0}, "num_steps must be >= 1, got 0"),
        (partial(ball, freelb), {"max_norm": -1.0}, "max_norm must be > 0, got -1"),
        (partial(ball, freelb), {"initial_norm": -0.1}, "initial_norm must be >= 0, got -0.1"),
        (partial(with_noise, OBJECTIVE), {"sigma": -1.0}, "sigma must be >= 0 and finite, got -1"),
        (partial(with_noise_range, OBJECTIVE), {"snr_db": (0, -6)}, r"low to high, got \(0, -6\)"),
        (noisy, {"site": "tokens"}, "site must be one of token, embedding, got 'tokens'"),
        (noisy, {"protocol": "match"}, "one of sigma, matched, per-token, got 'match'"),
        (noisy, {"level": -0.5}, "level must be >= 0 and finite, got -0.5"),
        (noisy, {"seeds": (23, 42)}, r"one seed per model \(1\), got \(23, 42\)"),
        (noisy, {"buckets": []}, "at least one row"),
        (score, {"mask": MASK[:, :4]}, r"must have shape \(batch, tokens, width\)"),
        (score, {"labels": LABELS.astype(str)}, "labels must be class numbers, .* got <U"),
        (score, EMPTY, "embeddings must have one or more examples"),
        (score, {"fn": lambda *inputs: inputs}, "fn must return one array, got a tuple"),
        (score, {"key": 0}, "key must be a random key"),
        (score, {"embeddings": EMBEDDINGS.astype(int)}, "must be floating-point, got int"),
        (score, {"snr_db": np.nan}, "snr_db must be finite, got nan"),
        (score, {"batch_size": 0}, "batch_size must be >= 1, got 0"),
        (score, {"metric": "auc"}, "metrics must be among accuracy, f1.*'auc'"),
        *(
            (scored, {"metric": metric, "logits": logits, "labels": labels}, words)
            for metric, logits, labels, words in (
                ("", SQUARE, [0, 1], "metrics must be"),
                ("accuracy", SQUARE, [0, 1, 1], r"got \(2, 2\) and \(3,\)"),
                ("accuracy", SQUARE[:0], [], "examples >= 1"),
                ("accuracy", UNKNOWN, [0, 0, 1], "2 of 3 rows"),
                ("accuracy", SQUARE[:, :1], [0, 1], "output per class or choice .* got 1 outputs"),
                ("accuracy", SQUARE, [0, 2], "got 2 outputs and labels .* from 0 to 2"),
                ("f1", SQUARE, [0, -1], "from -1 to 0"),
                ("mcc", SQUARE, [0.0, 1.0], "integer labels .* of float64"),
                ("pearson", SQUARE, [0.0, 1.0], "one output per example .* got 2 outputs"),
                ("spearman", SQUARE[:, :1], [0.0, np.nan], "finite labels"),
            )
        ),
        (loss, {"logits": SQUARE[:1], "regression": True}, "must be False for 2 output"),
        (loss, {"logits": SQUARE[:1, :1], "regression": False}, "must be True for 1 output"),
        (classification, {"model": MODEL, "esr_weight": -1}, "esr_weight .* finite, got -1"),
        (classification, {"model": MODEL, "esr_target": -1}, "esr_target .* finite, got -1"),
        *((test_loop.run, {name: 0}, FIT) for name in ("epochs", "patience")),
        *((test_loop.run, {name: []}, FIT) for name in ("seeds", "train", "validation")),
        (chunks, {"batch_size": 0}, "batch_size must be >= 1, got 0"),
        *((optimizer, {name: -1}, ADAMW) for name in ("learning_rate", "weight_decay")),
        (optimizer, {"total_steps": 0}, ADAMW),
        (seed_keys, {"seeds": (0, -1)}, "got -1"),
        (seed_keys, {"seeds": (0, 2**32)}, "got 4294967296"),
        (partial(make_sharding, 9), {"num_seeds": 4, "batch_size": 32}, "num_devices .*, got 9"),
    ],
)
def test_messages(call, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call(**options)
