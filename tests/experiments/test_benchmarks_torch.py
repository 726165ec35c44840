"""The PyTorch peer computes what hopfax computes; nothing here is timed."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hopfax.data.batching import Bucket
from hopfax.nn import PRESETS, robertha
from hopfax.train.objectives import Batch, classification

torch = pytest.importorskip("torch", reason="the PyTorch peer is an optional extra: benchmarks")

from experiments.benchmarks import torch_peer as peer  # noqa: E402
from experiments.benchmarks import workloads  # noqa: E402
from experiments.benchmarks.cases import evaluation, retrieval, stability, train_step  # noqa: E402

VOCAB, SIZES = 60, {"width": 16, "ff_width": 24, "max_length": 12}
TEXTS, TOKENS = 5, 12
# Tighter than the default: the two gradients meet where the queries have converged.
TOL = 1e-5


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Several would wait for each other longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def case():
    """hopfax's loss, parts and gradient on some rows, and the peer with the same weights."""
    details = dataclasses.replace(PRESETS["hopfax"], dropout=0.0)
    model = robertha(VOCAB, 2, preset=details, tol=TOL, **SIZES)
    params = model.init(jax.random.key(3))
    # Wide enough weights that queries need a few steps to different attractors.
    params = jax.tree.map(lambda x: x * 6 if x.ndim == 2 else x, params)
    rng = np.random.default_rng(0)
    ids, lengths = rng.integers(0, VOCAB, (TEXTS, TOKENS)), np.array([12, 3, 7, 5, 9])
    labels = rng.integers(0, 2, TEXTS)
    batch = Batch(
        *map(jnp.asarray, (ids[:, None], lengths[:, None], labels, np.ones(TEXTS, np.float32)))
    )
    objective = jax.value_and_grad(classification(model, esr_weight=0.05), has_aux=True)
    (loss, parts), gradient = jax.jit(objective)(params, batch, jax.random.key(0))
    weights = jax.tree.map(lambda leaf: leaf.requires_grad_(), peer.tensors(params))
    twin = functools.partial(peer.robertha, weights, num_heads=2, tol=TOL)
    rows = (
        torch.from_numpy(ids),
        torch.arange(TOKENS) < torch.from_numpy(lengths)[:, None],
        torch.from_numpy(labels),
    )
    return loss, parts, gradient, twin, rows


def test_losses_and_gradients_agree(case):
    loss, parts, gradient, twin, rows = case
    total, task, esr = peer.losses(twin, *rows)
    np.testing.assert_allclose(total.item(), loss, rtol=1e-5)
    np.testing.assert_allclose(task.item(), parts.task, rtol=1e-5)
    np.testing.assert_allclose(esr.item(), parts.esr, rtol=1e-4)
    assert parts.num_steps > 3
    total.backward()
    expected = peer.tensors(gradient)
    scale = max(float(leaf.abs().max()) for leaf in jax.tree.leaves(expected))
    for leaf, wanted in zip(jax.tree.leaves(twin.args[0]), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(leaf.grad, wanted, rtol=1e-3, atol=1e-4 * scale)


def test_padding_changes_nothing(case):
    _, _, _, twin, (ids, mask, labels) = case
    short = mask.sum(1).max() - 3
    rows = mask.sum(1) <= short
    expected = peer.losses(twin, ids[rows, :short], mask[rows, :short], labels[rows])
    losses = peer.losses(twin, ids[rows], mask[rows], labels[rows])
    torch.testing.assert_close(losses[0], expected[0], rtol=1e-5, atol=0)


@pytest.fixture
def tiny(monkeypatch):
    sizes = {"width": 16, "num_layers": 1, "ff_width": 24, "num_heads": 2}
    for name in ("base", "large"):
        monkeypatch.setitem(workloads.SIZES, name, sizes)
    ids = np.random.default_rng(0).integers(1000, 2000, (3, 1, 8), dtype=np.int32)
    lengths, labels = np.array([[8], [5], [6]], np.int32), np.array([0, 1, 0])
    bucket = Bucket(ids * (np.arange(8) < lengths[..., None]), lengths, labels, np.arange(3))
    monkeypatch.setattr(train_step, "workload", lambda _: workloads.Workload([bucket], bucket))
    workloads.fresh.cache_clear()
    yield bucket
    workloads.fresh.cache_clear()


def test_both_train(tiny, monkeypatch):
    monkeypatch.setattr(train_step, "SEEDS", ())
    monkeypatch.setattr(workloads, "LEARNING_RATE", 30.0)  # warm-up takes 6000 steps
    calls = train_step.programs(None, "base")
    assert set(calls) == {"hopfax padded", "hopfax in buckets", "PyTorch"}
    for _, call in calls["hopfax padded"]:
        call()
    ((_, run),) = calls["PyTorch"]
    losses = [float(run.func.__self__.step(torch.arange(3))) for _ in range(20)]
    run()
    assert losses[-1] < 0.5 * losses[0]


def test_forward_passes_agree(tiny, monkeypatch):
    monkeypatch.setattr(evaluation, "MAX_LENGTH", 6)
    calls = evaluation.programs(None, "base", "initial weights", 1e-4, 50)
    assert list(calls) == ["hopfax", "PyTorch"]
    rows, params = workloads.single_texts(tiny), workloads.fresh("base", 8)
    stop = {"tol": 1e-4, "max_steps": 50}
    ours = workloads.hopfax_forward("base", params, rows, **stop)()
    theirs = peer.forward(peer.model_of("base", params, **stop), rows)()
    workloads.check_equal({"hopfax": ours, "PyTorch": theirs})


@pytest.mark.parametrize(("steps", "tokens"), [(0, 5), (3, 17)])
def test_retrievals_agree(steps, tokens):
    inputs = retrieval.arrays(tokens=tokens, width=8, batch=2)
    expected = retrieval.hopfax_call(inputs, max_steps=steps)()
    for fused in (False, True):
        output = peer.retrieval(inputs, steps, fused=fused)()
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-6)


def test_gradients_of_retrievals_agree_where_queries_have_converged():
    inputs = retrieval.arrays(tokens=5, width=8, batch=2)
    many = {"max_steps": 60, "gradient": True}
    value, (keys, values) = retrieval.hopfax_call(inputs, **many)()
    expected, gradients = peer.retrieval(inputs, 60, True, fused=True)()
    np.testing.assert_allclose(expected, value, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gradients[0], keys, rtol=2e-3, atol=1e-5)
    np.testing.assert_allclose(gradients[1], values, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("num_samples", "rho"), [(4000, 0.5), (700, -0.8)])
def test_the_torch_loop_agrees(num_samples, rho):
    mean, error = peer.stability(*stability.network(), num_samples, rho, stability.BATCH_SIZE)
    assert abs(mean - stability.exact_stability(rho)) < 5 * error
    assert 0.1 < error * num_samples**0.5 < 1
