"""`load_released` against recorded runs of NumPy and of the program, and its errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from nn.released_program import LAMBDA, RUNS, TINY, classify, losses

from hopfax import hopfield
from hopfax.nn import load_released
from hopfax.nn.released import Program, import_params


@pytest.fixture
def weights():
    with np.load(TINY) as file:
        return {name[2:]: file[name].astype(float) for name in file if name.startswith("w:")}


@pytest.fixture
def texts():
    with np.load(TINY) as file:
        return file["ids"], file["mask"]


def save(path, weights, **more):
    np.savez(path, **{f"w:{name}": value for name, value in weights.items()}, **more)
    return path


@pytest.mark.parametrize(
    ("options", "beta", "max_steps"), [({"beta": 4.0, "max_iterations": 2}, 4, 2), ({}, 15, 50)]
)
def test_beta_and_the_number_of_steps(x64, tmp_path, weights, texts, options, beta, max_steps):
    output = load_released(save(tmp_path / "a.npz", weights, **options))(*texts)
    logits, counts, _ = classify(weights, *texts, beta=beta, max_steps=max_steps)
    np.testing.assert_allclose(output.logits, logits, rtol=1e-10)
    assert output.num_steps.tolist() == counts


def test_products_run_at_full_precision_on_any_device(tmp_path, weights, texts):
    program = load_released(save(tmp_path / "weights.npz", weights))
    jaxpr = str(jax.make_jaxpr(program.classify)(*texts))
    assert "HIGHEST" in jaxpr
    assert "precision=None" not in jaxpr


@pytest.fixture(scope="module", params=["tiny", "released"])
def golden(request, shared):
    """A random tiny model's run in slow NumPy, and the run of the program itself."""
    path = TINY if request.param == "tiny" else shared / "golden" / "released_beta15.npz"
    if not path.is_file():
        pytest.skip(f"no recorded run at {path}")
    with np.load(path, allow_pickle=False) as file:
        return path, {name: file[name] for name in file.files}


def relative(output, expected):
    """Largest difference over largest size."""
    expected = np.asarray(expected, np.float64)
    return np.abs(np.asarray(output, np.float64) - expected).max() / np.abs(expected).max()


def test_recorded_logits_counts_and_key_eigenvalues(golden):
    path, file = golden
    run = jax.jit(load_released(path).classify)
    out = run(file["ids"], file["mask"], noise=0 * file["noise"])
    assert out.logits.dtype == jnp.float32
    assert relative(out.logits, file["logits"]) < 1e-5
    assert np.abs(out.num_steps - file["iterations"]).max() <= 1
    assert out.converged.tolist() == file["converged"].tolist()
    for layer, keys in enumerate(out.keys):
        recorded = file[f"key_eigenvalues_{layer}"][:, ::-1]  # raw, ascending in the file
        trace = recorded.sum(-1, keepdims=True)
        shares = jax.vmap(hopfield.key_spectrum)(keys)
        np.testing.assert_allclose(shares, recorded / trace, rtol=1e-4, atol=3e-7)
        own_trace = np.asarray(keys).var(axis=1).sum(-1, keepdims=True)
        np.testing.assert_allclose(own_trace * shares, recorded, rtol=1e-4, atol=2e-6)


def test_recorded_losses_and_gradients_of_task_and_regularizer(golden):
    path, file = golden
    program = load_released(path)
    step = jax.jit(jax.value_and_grad(lambda *args: losses(program, *args), has_aux=True))
    (total, (task, esr)), gradient = step(program.params, file["ids"], file["mask"], file["labels"])
    np.testing.assert_allclose(task, file["task_loss"], rtol=1e-6)
    np.testing.assert_allclose(esr, file["esr_released"], rtol=2e-5)
    np.testing.assert_allclose(LAMBDA * esr.sum(), file["reg_loss"], rtol=2e-5)
    np.testing.assert_allclose(total, file["task_loss"] + file["reg_loss"], rtol=1e-5)
    recorded = {name[2:]: value for name, value in file.items() if name.startswith("g:")}
    recorded = import_params(recorded, program.model)
    paths = jax.tree_util.tree_leaves_with_path(recorded)
    assert len(paths) == 38
    for (path, expected), output in zip(paths, jax.tree.leaves(gradient), strict=True):
        expected = np.asarray(expected)
        error = np.abs(np.asarray(output) - expected).max()
        # The floor is the error of central differences. Padding and W_query hardly train.
        assert error <= 1e-4 * np.abs(expected).max() + 1e-9, jax.tree_util.keystr(path)


def test_recorded_run_in_double_precision(x64, golden):
    path, file = golden
    program = load_released(path)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), program.params)
    program = Program(program.model, params)
    call = jax.jit(program.classify)
    for run, sigma in RUNS.items():
        out = call(file["ids"], file["mask"], noise=sigma * file["noise"].astype(np.float64))
        assert out.logits.dtype == jnp.float64
        assert relative(out.logits, file[f"logits{run}"]) < 1e-6
        assert out.num_steps.tolist() == file[f"iterations{run}"].tolist()


def test_all_wrong_tensors_are_named(tmp_path, weights):
    missing, misshapen = "hopfield_layers.1.W_key.weight", "hopfield_layers.0.W_out.weight"
    fewer = {name: array for name, array in weights.items() if name != missing}
    for tensors, problem in (
        (fewer | {"odd": np.ones(1)}, f"missing tensor {missing}; unknown tensor odd"),
        (weights | {misshapen: np.zeros((6, 5))}, rf"{misshapen} must have shape \(6, 6\), got"),
    ):
        with pytest.raises(ValueError, match=rf"a\.npz: not the released program's .*{problem}"):
            load_released(save(tmp_path / "a.npz", tensors))


def test_files_of_another_kind_are_errors(tmp_path):
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(ValueError, match=r"broken\.npz is not an \.npz"):
        load_released(tmp_path / "broken.npz")
    np.save(tmp_path / "one.npy", np.zeros(2))
    with pytest.raises(ValueError, match=r"one\.npy is not an \.npz.* single array"):
        load_released(tmp_path / "one.npy")
