"""`load_released` against a recorded run of that program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from nn.released_program import LAMBDA, losses

from hopfax import hopfield
from hopfax.nn import load_released
from hopfax.nn.released import Released, import_params


@pytest.fixture(scope="module")
def golden(shared):
    path = shared / "golden" / "released_beta15.npz"
    if not path.is_file():
        pytest.skip(f"no recorded run at {path}")
    with np.load(path, allow_pickle=False) as file:
        return path, {name: file[name] for name in file.files}


def relative(output, expected):
    """Largest difference over largest size."""
    expected = np.asarray(expected, np.float64)
    return np.abs(np.asarray(output, np.float64) - expected).max() / np.abs(expected).max()


RUNS = [("", 0.0), ("_sigma0.5", 0.5), ("_sigma2.0", 2.0)]


@pytest.fixture(scope="module")
def recorded_classify(golden):
    path, _ = golden
    return jax.jit(load_released(path).classify)


def test_recorded_logits_and_counts(golden, recorded_classify):
    _, file = golden
    out = recorded_classify(file["ids"], file["mask"], noise=0 * file["noise"])
    assert out.logits.dtype == jnp.float32
    assert relative(out.logits, file["logits"]) < 1e-5
    assert np.abs(out.num_steps - file["iterations"]).max() <= 1
    assert out.converged.tolist() == file["converged"].tolist()


def test_recorded_key_eigenvalues(golden, recorded_classify):
    _, file = golden
    keys = recorded_classify(file["ids"], file["mask"], noise=0 * file["noise"]).keys
    for layer, of_layer in enumerate(keys):
        recorded = file[f"key_eigenvalues_{layer}"][:, ::-1]  # raw, ascending in the file
        trace = recorded.sum(-1, keepdims=True)
        shares = jax.vmap(hopfield.key_spectrum)(of_layer)
        np.testing.assert_allclose(shares, recorded / trace, rtol=1e-4, atol=3e-7)
        own_trace = np.asarray(of_layer).var(axis=1).sum(-1, keepdims=True)
        np.testing.assert_allclose(own_trace * shares, recorded, rtol=1e-4, atol=2e-6)


@pytest.fixture(scope="module")
def recorded_step(golden):
    """Returns this library's losses and gradients, and the recorded gradients."""
    path, file = golden
    program = load_released(path)
    step = jax.jit(jax.value_and_grad(lambda *args: losses(program, *args), has_aux=True))
    (total, (task, esr)), gradient = step(program.params, file["ids"], file["mask"], file["labels"])
    recorded = {name[2:]: value for name, value in file.items() if name.startswith("g:")}
    return file, (total, task, esr), gradient, import_params(recorded, program.model)


def test_recorded_losses(recorded_step):
    file, (total, task, esr), _, _ = recorded_step
    np.testing.assert_allclose(task, file["task_loss"], rtol=1e-6)
    np.testing.assert_allclose(esr, file["esr_released"], rtol=2e-5)
    np.testing.assert_allclose(LAMBDA * esr.sum(), file["reg_loss"], rtol=2e-5)
    np.testing.assert_allclose(total, file["task_loss"] + file["reg_loss"], rtol=1e-5)


def test_recorded_gradients_of_task_and_regularizer(recorded_step):
    _, _, gradient, recorded = recorded_step
    paths = jax.tree_util.tree_leaves_with_path(recorded)
    assert len(paths) == 38
    for (path, expected), output in zip(paths, jax.tree.leaves(gradient), strict=True):
        expected = np.asarray(expected)
        error = np.abs(np.asarray(output) - expected).max()
        assert error <= 1e-4 * np.abs(expected).max() + 1e-12, jax.tree_util.keystr(path)
    # The recorded gradients have the padding embedding frozen and W_query almost untrained.
    assert not np.any(gradient["tokens"]["embedding"][0])
    for block in gradient["blocks"].values():
        assert np.abs(block["attention"]["query"]["kernel"]).max() < 1e-7
        assert np.abs(block["attention"]["key"]["kernel"]).max() > 1e-3


def test_recorded_run_in_double_precision(x64, golden):
    path, file = golden
    program = load_released(path)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), program.params)
    program = Released(program.model, params)
    call = jax.jit(program.classify)
    for run, sigma in RUNS:
        out = call(file["ids"], file["mask"], noise=sigma * file["noise"].astype(np.float64))
        assert out.logits.dtype == jnp.float64
        assert relative(out.logits, file[f"logits{run}"]) < 1e-6
        assert out.num_steps.tolist() == file[f"iterations{run}"].tolist()
