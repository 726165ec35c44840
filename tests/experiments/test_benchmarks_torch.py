"""The PyTorch peer computes what hopfax computes; nothing here is timed."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hopfax.nn import PRESETS, robertha
from hopfax.train.objectives import Batch, classification

torch = pytest.importorskip("torch", reason="the PyTorch peer is an optional extra: benchmarks")

from experiments.benchmarks import torch_peer as peer  # noqa: E402
from experiments.benchmarks.cases import retrieval, stability  # noqa: E402

# Tighter than the default: the two gradients meet where the queries have converged.
TOL = 1e-5
torch.set_num_threads(1)  # several would wait for each other longer than they compute


def test_losses_and_gradients_agree():
    details = dataclasses.replace(PRESETS["hopfax"], dropout=0.0)
    model = robertha(60, 2, preset=details, tol=TOL, width=16, ff_width=24, max_length=12)
    # Wide enough weights that queries need a few steps to different attractors.
    params = model.init(jax.random.key(3))
    params = jax.tree.map(lambda x: x * 6 if x.ndim == 2 else x, params)
    rng = np.random.default_rng(0)
    ids, lengths = rng.integers(0, 60, (5, 12)), np.array([12, 3, 7, 5, 9])
    labels, weights = rng.integers(0, 2, 5), np.ones(5, np.float32)
    batch = Batch(*map(jnp.asarray, (ids[:, None], lengths[:, None], labels, weights)))
    objective = jax.value_and_grad(classification(model, esr_weight=0.05), has_aux=True)
    (loss, parts), gradient = jax.jit(objective)(params, batch, jax.random.key(0))
    assert parts.num_steps > 3
    leaves = jax.tree.map(lambda leaf: leaf.requires_grad_(), peer.tensors(params))
    twin = functools.partial(peer.robertha, leaves, num_heads=2, tol=TOL)
    mask = np.arange(12) < lengths[:, None]
    total, task = peer.losses(twin, *map(torch.from_numpy, (ids, mask, labels)))
    np.testing.assert_allclose(total.item(), loss, rtol=1e-5)
    np.testing.assert_allclose(task.item(), parts.task, rtol=1e-5)
    np.testing.assert_allclose((total - task).item() / 0.05, parts.esr, rtol=1e-3)
    total.backward()
    expected = peer.tensors(gradient)
    scale = max(float(leaf.abs().max()) for leaf in jax.tree.leaves(expected))
    for leaf, wanted in zip(jax.tree.leaves(leaves), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(leaf.grad, wanted, rtol=1e-3, atol=1e-4 * scale)


@pytest.mark.parametrize(
    ("steps", "tokens", "tol"), [(0, 5, None), (3, 17, None), (50, 17, TOL), (4, 17, TOL)]
)
def test_retrievals_agree(steps, tokens, tol):
    inputs = retrieval.arrays(tokens, 8, 2)
    mask = np.ones((2, tokens), bool) if tol is None else retrieval.lengths(tokens, 8, 2)
    expected = retrieval.retrieval(inputs, max_steps=steps, tol=tol or 0.0, mask=mask)()
    for fused in (False, True):
        output = peer.retrieval(inputs, steps, fused=fused, tol=tol, mask=mask)()
        for real, *both in zip(mask, output, expected, strict=True):
            np.testing.assert_allclose(*(x[:, real] for x in both), rtol=1e-4, atol=1e-5)


def test_gradients_of_retrievals_agree_where_queries_have_converged():
    inputs = retrieval.arrays(5, 8, 2)
    many = {"max_steps": 60, "gradient": True}
    value, (keys, values) = retrieval.retrieval(inputs, **many)()
    expected, gradients = peer.retrieval(inputs, 60, True, fused=True)()
    np.testing.assert_allclose(expected, value, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gradients[0], keys, rtol=2e-3, atol=1e-5)
    np.testing.assert_allclose(gradients[1], values, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("num_samples", "rho"), [(4000, 0.5), (700, -0.8)])
def test_the_torch_loop_agrees(num_samples, rho):
    mean, error = peer.stability(*stability.network(), num_samples, rho, stability.BATCH_SIZE)
    assert abs(mean - stability.exact_stability(rho)) < 5 * error
    assert 0.1 < error * num_samples**0.5 < 1
