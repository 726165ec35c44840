"""Benchmarks of forward passes: the programs agree, and each command's page has its figures."""

import functools
import json

import jax
import numpy as np
import pytest

from experiments.speed import (
    evaluation,
    forward,
    forward_sections,
    page,
    profile_step,
    retrieval,
    scaling,
)
from experiments.speed import retrieval_programs as programs
from hopfax.nn import robertha

torch = pytest.importorskip("torch", reason="the PyTorch peer is an optional extra: speed")

TINY = {"width": 16, "num_layers": 1, "ff_width": 24, "num_heads": 2}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Several would wait for each other longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def tiny(monkeypatch):
    for module in (forward, evaluation, retrieval, scaling):
        monkeypatch.setattr(module, "SIZES", {"base": TINY, "large": TINY})
    forward.fresh.cache_clear()
    yield
    forward.fresh.cache_clear()


@pytest.mark.parametrize(("steps", "tokens"), [(0, 5), (3, 5), (3, 17)])
def test_the_retrievals_agree(steps, tokens):
    given = programs.arrays(2, tokens, 8)
    query, key, value = (array.astype(float) for array in given)

    def read(state, value):
        scores = programs.BETA * 8**-0.5 * state @ key.swapaxes(-1, -2)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights @ value / weights.sum(-1, keepdims=True)

    for _ in range(steps):
        query = read(query, key)
    wanted = read(query, value)
    for fused in (False, True):
        found = programs.torch_call(given, steps=steps, fused=fused)()
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        programs.hopfax_call(given, steps=steps)(), wanted, rtol=1e-4, atol=1e-6
    )


def test_the_gradients_agree_where_queries_rest():
    given, many = programs.arrays(2, 5, 8), {"steps": 60, "gradient": True}
    value, (keys, values) = programs.hopfax_call(given, **many)()
    found, gradients = programs.torch_call(given, fused=True, **many)()
    np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gradients[0], keys, rtol=2e-3, atol=1e-5)
    np.testing.assert_allclose(gradients[1], values, rtol=1e-3, atol=1e-6)


def test_operations_are_those_of_the_products():
    shape = {"batch": 3, "tokens": 7, "width": 5}
    heads = 3 * programs.HEADS
    score, mix, scores = 2 * 7 * 7 * 5 * heads, 2 * 7 * 7 * 5 * heads, 2 * 7 * 7 * 7 * heads
    assert programs.flops("PyTorch fused", **shape, steps=4) == 5 * (score + mix)
    # Scores of queries and of keys once, then scores alone, then the read-out.
    assert programs.flops("hopfax XLA", **shape, steps=4) == 2 * score + 4 * scores + mix
    assert programs.flops("hopfax XLA", **shape, steps=0) == score + mix
    long = shape | {"tokens": 10}
    assert programs.flops("hopfax XLA", **long, steps=4) == programs.flops(
        "PyTorch fused", **long, steps=4
    )


def test_programs_that_disagree_are_named():
    ones = np.ones((200, 2))
    forward.check({"a": ones, "b": ones + 1e-5})
    for row, spare, error in ((7, 0.01, 0.1), (7, 0.01, np.nan), (0, 0.0, 0.005), (2, 0.01, 0.005)):
        other = ones.copy()
        other[: row + 1, 1] += error
        with pytest.raises(RuntimeError, match="b and a differ"):
            forward.check({"a": ones, "b": other}, spare=spare)
    other = ones.copy()
    other[[3, 90], 1] += 0.005  # an update more
    forward.check({"a": ones, "b": other}, spare=0.01)


def test_evaluation_compares_both_sizes(tiny, tmp_path, monkeypatch, capsys):
    # How the loop may end otherwise, the next test has.
    monkeypatch.setattr(evaluation, "ENDS", {"7, fixed": (0.0, 7)})
    flags = ["--seconds", "0", "--tokens", "6", "--batch", "8", "--no-compile"]
    report = evaluation.main([*flags, "--out", str(tmp_path)])
    assert len(report["table"]) == 2 * 2
    assert {row["batch"] for row in report["table"]} == {8, 1}
    assert "PyTorch over hopfax" in capsys.readouterr().out
    page.main([str(tmp_path)])
    text = (tmp_path / "README.md").read_text()
    assert "| large | fresh | all tokens real | 7, fixed | hopfax | 1 × 6 |" in text


def test_a_compiler_that_fails_is_reported(tiny, monkeypatch, tmp_path):
    real = evaluation.torch_forward

    def refuse(*given, compiled=False, **options):
        if not compiled:
            return real(*given, **options)

        def run():
            raise RuntimeError("no compiler\nmore")

        return run

    monkeypatch.setattr(evaluation, "torch_forward", refuse)
    flags = ["--seconds", "0", "--tokens", "6", "--batch", "8", "--sizes", "base"]
    report = evaluation.main([*flags, "--out", str(tmp_path)])
    assert {row["iterations"] for row in report["table"]} == set(evaluation.ENDS)
    page.main([str(tmp_path)])
    assert "): RuntimeError: no compiler\n" in (tmp_path / "README.md").read_text()


def test_retrieval_continues_where_it_stopped(tiny, monkeypatch, tmp_path, capsys):
    grid = {"tokens": (4,), "width": (8,), "batch": (2,), "steps": (1,)}
    monkeypatch.setattr(retrieval, "GRIDS", {"full": grid})
    monkeypatch.setattr(retrieval, "LATENCY", {"tokens": 4, "width": 8, "batch": 2})
    monkeypatch.setattr(retrieval, "LATENCY_STEPS", (5,))
    monkeypatch.setattr(retrieval, "PEAK_SIZES", {"full": 16})
    out = ["--seconds", "0", "--out", str(tmp_path)]
    missing = retrieval.main([*out, "--minutes", "0"])["missing_cells"]
    assert len(missing) == 4
    assert missing[-1] == "gradient, tokens 4, width 8, batch 2, steps 1"
    first = retrieval.main(out)
    assert first["missing_cells"] == []
    assert len(first["table"]) == 2 * 3 + 2 * 3
    kept = tmp_path / "retrieval_cells.jsonl"
    lines = kept.read_text().splitlines(keepends=True)
    # Killed within its last line.
    kept.write_text("".join(lines[:-1]) + lines[-1][:20] + "\n")
    measured, rows = [], first["table"][-3:]
    monkeypatch.setattr(retrieval, "measure", lambda cell, **_: measured.append(cell) or rows)
    again = retrieval.main(out)
    assert [(cell["cell"], cell["steps"]) for cell in measured] == [("gradient", 1)]
    assert again["table"] == first["table"]
    # Shares of one table are of one peak.
    assert again["peaks"] == first["peaks"]
    # The figures of the paper, from its table.
    page.main([str(tmp_path)])
    text = (tmp_path / "README.md").read_text()
    assert "No GPU was at hand" in text and "| 1.25 ± 0.11 |" in text
    assert "| forward | 4 | 8 | 2 | 1 |" in text
    assert "latency over single-pass attention, T = 5, fixed, on a GPU | at most 1.15 |  |" in text
    assert "T = 5, adaptive" in capsys.readouterr().out


def test_retrievals_are_summed_up_by_length():
    def cell(loop, fused):
        times = {"PyTorch loop": loop, "PyTorch fused": fused, "hopfax XLA": 2.0}
        return {name: {"milliseconds": time} for name, time in times.items()}

    grid = {("forward", 32, 64, 8, 1): cell(1.0, 3.0), ("forward", 32, 64, 8, 5): cell(4.0, 5.0)}
    grid |= {("gradient", 32, 64, 8, 1): cell(2.0, 1.0)}
    found = list(forward_sections.summary(grid, "hopfax XLA"))
    assert found == [
        ("forward", 32, "1.25 (0.50 to 2.00)", "1 of 2", "2.00 (1.50 to 2.50)", "2 of 2"),
        ("gradient", 32, "1.00 (1.00 to 1.00)", "0 of 1", "0.50 (0.50 to 0.50)", "0 of 1"),
    ]


def test_a_forward_pass_grows_by_every_factor():
    # A width of three heads of 64 wide, though far smaller ones compile as long.
    logits = scaling.forward_of(tokens=3, width=192, batch=2, depth=1)()
    assert logits.shape == (2, 2) and np.isfinite(logits).all()
    deep = scaling.forward_of(tokens=3, width=192, batch=2, depth=2)()
    assert np.abs(deep - logits).max() > 1e-4


def test_scaling_has_a_panel_for_every_factor(monkeypatch, tmp_path):
    base = {"tokens": 4, "width": 16, "batch": 2, "depth": 1}
    monkeypatch.setattr(scaling, "BASE", base)
    factors = {"tokens": (2, 4), "width": (8, 16), "batch": (1, 2), "depth": (1, 2)}
    monkeypatch.setattr(scaling, "FACTORS", factors)
    made = []
    monkeypatch.setattr(
        scaling, "forward_of", lambda **shape: made.append(shape) or (lambda: sum(range(10_000)))
    )
    report = scaling.main(["--seconds", "0", "--out", str(tmp_path)])
    assert made == [base | {name: size} for name, sizes in factors.items() for size in sizes]
    assert [(row["factor"], row["value"]) for row in report["table"]] == [
        (factor, value) for factor, values in factors.items() for value in values
    ]
    page.main([str(tmp_path)])
    assert (tmp_path / "scaling.png").read_bytes()[:4] == b"\x89PNG"
    assert "| layers | 2 |" in (tmp_path / "README.md").read_text()


def test_a_part_and_its_gradient_are_one_call():
    x = np.array([1.0, 2.0, 3.0], np.float32)
    value, (slope,) = profile_step._compiled(profile_step._with_gradient(lambda x: x**2), x)()
    np.testing.assert_allclose(value, x**2)
    np.testing.assert_allclose(slope, 2 * x * x**2)  # the value is its own weight


def test_the_profile_has_every_part(monkeypatch, tmp_path):
    small = functools.partial(robertha, num_layers=1, width=8, ff_width=16)
    monkeypatch.setattr(profile_step, "robertha", small)
    traced = []

    def compiled(fn, *given):
        """What each part is given fits it; compiling all sixteen would show no more."""
        traced.append(jax.eval_shape(fn, *given))
        return lambda: sum(range(10_000))

    monkeypatch.setattr(profile_step, "_compiled", compiled)
    flags = ["--seconds", "0", "--batch", "2", "--tokens", "4", "--out", str(tmp_path)]
    report = profile_step.main(flags)
    step, *parts = report["table"]
    assert step["part"] == "train step" and step["share"] == 1
    named = {row["part"]: row for row in parts}
    assert len(traced) == 2 + 2 * 7
    assert {"attention", "feed-forward", "ESR, all layers", "optimizer"} <= set(named)
    assert (
        named["attention"]["calls"] == 1
        and named["layer norms"]["calls"] == 2
        and named["optimizer"]["forward_ms"] is None
    )
    for row in parts:
        assert row["share"] > 0
    page.main([str(tmp_path)])
    assert "## Profile of the base train step" in (tmp_path / "README.md").read_text()
    assert json.loads((tmp_path / "profile_step.json").read_text())["batch"] == 2
