"""hopfax, NumPy and PyTorch estimate one stability; what is timed is not tested."""

import builtins
import json

import numpy as np
import pytest

from experiments.speed import page, stability
from experiments.speed import stability_programs as programs

SMALL = 4000


@pytest.fixture(scope="module")
def net():
    return programs.network()


def test_the_closed_form_knows_its_limits(net):
    # At 1 the second moment, at 0 the square of the mean: both from units' own formulas.
    rng = np.random.default_rng(3)
    x = rng.standard_normal((20_000, programs.WIDTH))
    outputs = np.maximum(x @ net.hidden, 0) @ net.readout
    squares = outputs**2
    error = squares.std() / len(x) ** 0.5
    assert abs(programs.exact_stability(net, 1.0) - squares.mean()) < 5 * error < 0.05
    mean = np.linalg.norm(net.hidden, axis=0) @ net.readout / (2 * np.pi) ** 0.5
    at_zero, between = programs.exact_stability(net, [0.0, 0.5])
    np.testing.assert_allclose(at_zero, mean**2, rtol=1e-6)
    assert at_zero < between < programs.exact_stability(net, 1.0)
    # The odd part is linear with half the weights; it alone changes its sign with rho.
    linear = 0.25 * np.sum((net.hidden @ net.readout) ** 2)
    difference = programs.exact_stability(net, 0.3) - programs.exact_stability(net, -0.3)
    np.testing.assert_allclose(difference, 2 * 0.3 * linear, rtol=1e-5)


def agrees(found, exact, num_samples):
    stability.check("this", found, exact)
    # The products' deviation is near the second moment here, so this is what pairs can give.
    assert 0.1 < np.max(found.standard_error) * num_samples**0.5 < 1


@pytest.mark.parametrize("rho", [0.5, -0.8])
# One batch and a part, one that is not full, a whole number of them.
@pytest.mark.parametrize("num_samples", [SMALL, 700, 2 * programs.BATCH_SIZE])
def test_the_numpy_loop_agrees(net, rho, num_samples):
    found = programs.numpy_stability(net, num_samples=num_samples, rho=rho)
    agrees(found, programs.exact_stability(net, rho), num_samples)


@pytest.mark.parametrize("rho", [0.5, -0.8])
@pytest.mark.parametrize("num_samples", [SMALL, 700, 2 * programs.BATCH_SIZE])
def test_the_torch_loop_agrees(net, rho, num_samples):
    pytest.importorskip("torch", reason="the PyTorch peer is an optional extra: speed")
    found = programs.torch_stability(net, num_samples=num_samples, rho=rho)
    agrees(found, programs.exact_stability(net, rho), num_samples)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_hopfax_agrees_at_one_rho_and_at_ten(net, impl):
    one = programs.Compiled(net, num_samples=SMALL, copies=2, impl=impl)()
    agrees(one, programs.exact_stability(net, programs.RHO), SMALL)
    rhos = stability.TEN_RHOS
    ten = programs.Compiled(net, rho=rhos, num_samples=SMALL, copies=2, impl=impl)()
    agrees(ten, programs.exact_stability(net, rhos), SMALL)
    assert len(ten.mean) == 10 and ten.copies == 2


def test_the_loops_errors_are_those_of_their_products():
    values = np.random.default_rng(0).standard_normal(50)
    found = programs._found(values.sum(), float(values @ values), 50)
    np.testing.assert_allclose(found[:2], (values.mean(), values.std(ddof=1) / 50**0.5))


def test_who_disagrees_is_named():
    stability.check("this", programs.Found(1.0, 0.1), np.array(1.4))
    for mean in (1.6, float("nan")):
        with pytest.raises(RuntimeError, match=r"this: .* over 5 standard errors"):
            stability.check("this", programs.Found(mean, 0.1), np.array(1.0))


def test_a_fresh_process_tells_its_memory():
    # More than a child may ever need, so that inheriting this peak would show.
    ballast = np.ones(50_000_000)
    found = stability.fresh_footprint(500, 2)
    own = stability.peak_bytes() / 1e6
    assert own > ballast.nbytes / 1e6
    assert 20 < found["before_mb"] <= found["peak_mb"] < own
    batch = 2 * 500 * programs.WIDTH * 4 / 1e6
    assert batch <= found["temporary_mb"] < 20 * batch
    assert found["num_samples"] == 500 and found["copies"] == 2


def test_without_torch_the_program_says_what_to_install(monkeypatch, capsys, tmp_path):
    real = builtins.__import__

    def refuse(name, *rest, **more):
        if name.split(".")[0] == "torch":
            raise ImportError("No module named 'torch'")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(SystemExit):
        stability.main(["--out", str(tmp_path)])
    assert "optional extra: pip install -e '.[speed]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_run_writes_what_the_page_shows(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="the PyTorch peer is an optional extra: speed")
    row = dict.fromkeys(stability.MEMORY_COLUMNS, 1.0)
    monkeypatch.setattr(
        stability, "fresh_footprint", lambda n, c: row | {"num_samples": n, "copies": c or "pilot"}
    )
    out = ["--out", str(tmp_path)]
    stability.main(["--num-samples", "600", "--repeats", "2", *out])
    report = json.loads((tmp_path / "stability.json").read_text())
    assert {row["program"] for row in report["table"]} == set(report["seconds"])
    assert all(len(seconds) == 2 for seconds in report["seconds"].values())
    assert [row["num_samples"] for row in report["memory"]] == 2 * [6, 60, 600]
    assert report["provenance"]["torch_threads"] >= 1
    page.main([str(tmp_path)])
    text = (tmp_path / "README.md").read_text()
    assert "## Noise stability" in text and "| hopfax, pairs, rbg |" in text
    assert "ten rhos over one" in text and "| pilot | 600 |" in text
