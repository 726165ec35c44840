"""`load_released` against NumPy on random weights, and its errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from released_program import LAMBDA, classify, cross_entropy, esr_of, losses, penalty

from hopfax.nn import load_released
from hopfax.nn.released import import_params

SIZES = {"vocab": 13, "width": 6, "ff": 9, "length": 8, "labels": 3, "layers": 2}


@pytest.fixture
def weights(rng):
    def draw(*shape, scale=0.6):
        return scale * rng.normal(size=shape)

    width, ff = SIZES["width"], SIZES["ff"]
    drawn = {
        "token_embeddings.weight": draw(SIZES["vocab"], width),
        "position_embeddings.weight": draw(SIZES["length"], width),
        "classifier.weight": draw(SIZES["labels"], width),
        "classifier.bias": draw(SIZES["labels"]),
    }
    norms = ["layer_norm"]
    for layer in range(SIZES["layers"]):
        norms += [f"layer_norms.{layer}", f"ffn_norms.{layer}"]
        for part in ("query", "key", "value", "out"):
            drawn[f"hopfield_layers.{layer}.W_{part}.weight"] = draw(width, width)
            drawn[f"hopfield_layers.{layer}.W_{part}.bias"] = draw(width)
        for part, shape in (("linear1", (ff, width)), ("linear2", (width, ff))):
            drawn[f"ffn_layers.{layer}.{part}.weight"] = draw(*shape)
            drawn[f"ffn_layers.{layer}.{part}.bias"] = draw(shape[0])
    for name in norms:
        drawn[f"{name}.weight"] = 1 + draw(width, scale=0.2)
        drawn[f"{name}.bias"] = draw(width, scale=0.2)
    return drawn


@pytest.fixture
def texts(rng):
    ids = rng.integers(1, SIZES["vocab"], (3, 6))
    mask = np.array([[1] * 6, [1] * 4 + [0] * 2, [1] * 2 + [0] * 4])
    return ids * mask, mask


def save(path, weights, **more):
    np.savez(path, **{f"w:{name}": value for name, value in weights.items()}, **more)
    return path


def test_forward_pass_is_the_slow_one(x64, tmp_path, weights, texts, rng):
    ids, mask = texts
    path = save(tmp_path / "weights.npz", weights, beta=4.0, max_iterations=60)
    program = load_released(path)
    for noise in (None, rng.normal(size=(3, 6, SIZES["width"]))):
        logits, counts, keys = classify(
            weights, ids, mask, beta=4, max_steps=60, noise=0.0 if noise is None else noise
        )
        assert 2 < min(counts) < 60, "a case in which the stop rule decides"
        for run in (jax.jit(program.classify),) + (() if noise is None else (program,)):
            out = run(ids, mask, noise=noise)
            np.testing.assert_allclose(out.logits, logits, rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(out.keys, keys, rtol=1e-10, atol=1e-12)
            assert out.num_steps.tolist() == counts
            assert out.converged.tolist() == [count < 60 for count in counts]
        np.testing.assert_allclose(esr_of(out.keys), [penalty(k) for k in keys], rtol=1e-9)


def test_beta_and_most_steps_come_from_the_file_or_are_the_programs(x64, tmp_path, weights, texts):
    ids, mask = texts
    program = load_released(save(tmp_path / "a.npz", weights, beta=4.0, max_iterations=2))
    assert program(ids, mask).num_steps.tolist() == [2, 2]
    logits, _, _ = classify(weights, ids, mask, beta=4, max_steps=2)
    np.testing.assert_allclose(program(ids, mask).logits, logits, rtol=1e-10)
    program = load_released(save(tmp_path / "b.npz", weights))
    logits, counts, _ = classify(weights, ids, mask, beta=15, max_steps=50)
    np.testing.assert_allclose(program(ids, mask).logits, logits, rtol=1e-10)
    assert program(ids, mask).num_steps.tolist() == counts


def test_gradient_is_that_of_the_slow_pass(x64, tmp_path, weights, texts, rng):
    """Central differences of the NumPy losses along random directions of each parameter.

    Two things are not differentiated in that program: the embedding of padding, and what ESR of
    the second layer owes to the first block and the embeddings.
    """
    ids, mask = texts
    labels = np.array([0, 2, 1])
    program = load_released(save(tmp_path / "weights.npz", weights, beta=2.0))

    def slow(w, *, term):
        logits, _, keys = classify(w, ids, mask, beta=2, max_steps=50)
        return cross_entropy(logits, labels) if term == "task" else LAMBDA * penalty(keys[term])

    def own(name, layer):
        """Whether ESR of this layer may train that array."""
        embeddings = ("token_embeddings", "position_embeddings", "layer_norm.")
        mine = (f"hopfield_layers.{layer}.W_key", f"layer_norms.{layer}")
        return name.startswith(mine + (embeddings if layer == 0 else ()))

    step = jax.jit(jax.grad(lambda params: losses(program, params, ids, mask, labels)[0]))
    gradient = step(program.params)
    assert not np.any(gradient["tokens"]["embedding"][0])
    for name in weights:
        direction = rng.normal(size=weights[name].shape)
        if name == "token_embeddings.weight":
            direction[0] = 0
        expected = 0.0
        for term in ("task", 0, 1):
            if term == "task" or own(name, term):
                up, down = (
                    slow(weights | {name: weights[name] + h * direction}, term=term)
                    for h in (1e-6, -1e-6)
                )
                expected += (up - down) / 2e-6
        one = import_params(
            {n: direction if n == name else np.zeros_like(w) for n, w in weights.items()},
            program.model,
        )
        along = sum(
            jnp.vdot(a, b)
            for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(one), strict=True)
        )
        np.testing.assert_allclose(along, expected, rtol=1e-5, atol=2e-9, err_msg=name)


def test_products_run_at_full_precision_on_any_device(tmp_path, weights, texts):
    program = load_released(save(tmp_path / "weights.npz", weights))
    jaxpr = str(jax.make_jaxpr(program.classify)(*texts))
    assert "HIGHEST" in jaxpr
    assert "precision=None" not in jaxpr


# -- Errors -------------------------------------------------------------------------------------


def test_all_that_does_not_fit_is_named_at_once(tmp_path, weights):
    del weights["hopfield_layers.1.W_key.weight"], weights["token_embeddings.weight"]
    weights["pooler.weight"] = weights["layer_norms.7.bias"] = np.zeros(2)
    with pytest.raises(ValueError, match="state dict") as error:
        load_released(save(tmp_path / "odd.npz", weights))
    for part in (
        "odd.npz",
        "missing tensor hopfield_layers.1.W_key.weight",
        "missing tensor token_embeddings.weight",
        "unknown tensor pooler.weight",
        "unknown tensor layer_norms.7.bias",
    ):
        assert part in str(error.value)
    assert str(error.value).count(" tensor ") == 4


def test_wrong_shapes_are_named_at_once(tmp_path, weights):
    weights["hopfield_layers.0.W_out.weight"] = np.zeros((6, 5))
    weights["ffn_layers.1.linear1.weight"] = np.zeros((8, 6))
    weights["layer_norm.bias"] = np.zeros((1, 6))
    with pytest.raises(ValueError) as error:
        load_released(save(tmp_path / "odd.npz", weights))
    for part in (
        "odd.npz",
        "hopfield_layers.0.W_out.weight must have shape (6, 6), got (6, 5)",
        "ffn_layers.1.linear1.weight must have shape (9, 6), got (8, 6)",
        "layer_norm.bias must have shape (6,), got (1, 6)",
    ):
        assert part in str(error.value)
    weights["classifier.weight"] = np.zeros(3)
    with pytest.raises(ValueError, match=r"classifier\.weight must have shape .*, got \(3,\)"):
        load_released(save(tmp_path / "odd.npz", weights))


def test_a_layer_left_out_is_named(tmp_path, weights):
    renamed = {name.replace(".1.", ".2."): value for name, value in weights.items()}
    with pytest.raises(ValueError, match=r"missing tensor layer_norms\.1\.weight.*unknown tensor"):
        load_released(save(tmp_path / "odd.npz", renamed))


def test_files_of_another_kind_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"missing\.npz"):
        load_released(tmp_path / "missing.npz")
    (tmp_path / "text.npz").write_text("not an archive")
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 and no more")
    for name in ("text.npz", "empty.npz", "cut.npz"):
        with pytest.raises(ValueError, match=rf"{name} is not an \.npz"):
            load_released(tmp_path / name)
    np.save(tmp_path / "one.npy", np.zeros(2))
    with pytest.raises(ValueError, match=r"one\.npy is not an \.npz.* single array"):
        load_released(tmp_path / "one.npy")
