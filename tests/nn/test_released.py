"""`load_released` against a recorded run of that program, and against NumPy on made-up weights."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hopfax import hopfield
from hopfax.nn import load_released
from hopfax.nn.released import Released, import_params

ALPHA, LAMBDA = 0.35, 0.05

# -- The released program, slowly ---------------------------------------------------------------


def norm(w, name, x):
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    return centred / np.sqrt(variance + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def linear(w, name, x):
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def softmax(scores):
    weights = np.exp(scores)
    return weights / weights.sum(-1, keepdims=True)


def classify(w, ids, mask, *, beta, max_steps, noise=0.0):
    """Design, section 4, column "released program": logits, counts and keys of every layer."""
    tokens = ids.shape[1]
    x = w["token_embeddings.weight"][ids] + w["position_embeddings.weight"][:tokens]
    x = norm(w, "layer_norm", x) + noise
    counts, layer_keys = [], []
    for layer in range(sum(name.endswith("W_key.weight") for name in w)):
        hopfield_layer = f"hopfield_layers.{layer}"
        entry = norm(w, f"layer_norms.{layer}", x)
        state, keys, values = (
            linear(w, f"{hopfield_layer}.W_{part}", entry) for part in ("query", "key", "value")
        )

        def weights(state, keys=keys):
            return softmax(beta * state @ keys.swapaxes(1, 2) / math.sqrt(keys.shape[-1]))

        for step in range(1, max_steps + 1):  # noqa: B007
            following = weights(state) @ keys
            change = np.linalg.norm(following - state) / np.linalg.norm(state)
            state = following
            if change <= 1e-4:
                break
        x = x + linear(w, f"{hopfield_layer}.W_out", weights(state) @ values)
        inner = gelu(linear(w, f"ffn_layers.{layer}.linear1", norm(w, f"ffn_norms.{layer}", x)))
        x = x + linear(w, f"ffn_layers.{layer}.linear2", inner)
        counts.append(step)
        layer_keys.append(keys)
    pooled = (x * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return linear(w, "classifier", pooled), counts, layer_keys


def penalty(keys):
    """ESR as that program has it: over all tokens, entropy in nats against alpha log d."""
    total = 0.0
    for sequence in keys:
        shares = np.linalg.eigvalsh(np.cov(sequence.T, bias=True)).clip(min=0)
        shares = shares[shares > 1e-12 * shares.max()] / shares.sum()
        entropy = -(shares * np.log(shares)).sum()
        total += (entropy - ALPHA * math.log(sequence.shape[1])) ** 2
    return total / len(keys)


def cross_entropy(logits, labels):
    total = 0.0
    for row, label in zip(logits, labels, strict=True):
        total -= math.log(math.exp(row[label]) / sum(math.exp(value) for value in row))
    return total / len(labels)


# -- The library's side -------------------------------------------------------------------------


def esr_of(keys):
    """Per layer."""
    width = keys.shape[-1]
    entropy = jax.vmap(jax.vmap(hopfield.eigen_entropy))(keys) * math.log(width)
    return jnp.mean(jnp.square(entropy - ALPHA * math.log(width)), axis=-1)


def losses(program, params, ids, mask, labels):
    out = Released(program.model, params).classify(ids, mask)
    task = -jnp.mean(jax.nn.log_softmax(out.logits)[jnp.arange(len(labels)), labels])
    esr = esr_of(out.keys)
    return task + LAMBDA * esr.sum(), (task, esr)


# -- On weights made here -----------------------------------------------------------------------

SIZES = {"vocab": 13, "width": 6, "ff": 9, "length": 8, "labels": 3, "layers": 2}


@pytest.fixture
def weights(rng):
    def draw(*shape, scale=0.6):
        return scale * rng.normal(size=shape)

    width, ff = SIZES["width"], SIZES["ff"]
    made = {
        "token_embeddings.weight": draw(SIZES["vocab"], width),
        "position_embeddings.weight": draw(SIZES["length"], width),
        "classifier.weight": draw(SIZES["labels"], width),
        "classifier.bias": draw(SIZES["labels"]),
    }
    norms = ["layer_norm"]
    for layer in range(SIZES["layers"]):
        norms += [f"layer_norms.{layer}", f"ffn_norms.{layer}"]
        for part in ("query", "key", "value", "out"):
            made[f"hopfield_layers.{layer}.W_{part}.weight"] = draw(width, width)
            made[f"hopfield_layers.{layer}.W_{part}.bias"] = draw(width)
        for part, shape in (("linear1", (ff, width)), ("linear2", (width, ff))):
            made[f"ffn_layers.{layer}.{part}.weight"] = draw(*shape)
            made[f"ffn_layers.{layer}.{part}.bias"] = draw(shape[0])
    for name in norms:
        made[f"{name}.weight"] = 1 + draw(width, scale=0.2)
        made[f"{name}.bias"] = draw(width, scale=0.2)
    return made


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


def test_padding_ids_and_companions_matter_as_they_did_there(x64, tmp_path, weights, texts):
    ids, mask = texts
    program = load_released(save(tmp_path / "weights.npz", weights, beta=4.0))
    run = jax.jit(program.classify)
    found = run(ids, mask)
    other = run(np.where(mask == 1, ids, 5), mask)
    assert np.abs(other.logits - found.logits)[1:].max() > 1e-3
    # The texts share one stop, so even an unpadded one depends on its companions.
    assert run(ids[:1], mask[:1]).num_steps.tolist() != found.num_steps.tolist()


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
        wanted = 0.0
        for term in ("task", 0, 1):
            if term == "task" or own(name, term):
                up, down = (
                    slow(weights | {name: weights[name] + h * direction}, term=term)
                    for h in (1e-6, -1e-6)
                )
                wanted += (up - down) / 2e-6
        one = import_params(
            {n: direction if n == name else np.zeros_like(w) for n, w in weights.items()},
            program.model,
        )
        along = sum(
            jnp.vdot(a, b)
            for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(one), strict=True)
        )
        np.testing.assert_allclose(along, wanted, rtol=1e-5, atol=2e-9, err_msg=name)


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
        "no array w:hopfield_layers.1.W_key.weight",
        "no array w:token_embeddings.weight",
        "no place for w:pooler.weight",
        "no place for w:layer_norms.7.bias",
    ):
        assert part in str(error.value)
    assert str(error.value).count("no ") == 4


def test_wrong_shapes_are_named_at_once(tmp_path, weights):
    weights["hopfield_layers.0.W_out.weight"] = np.zeros((6, 5))
    weights["ffn_layers.1.linear1.weight"] = np.zeros((8, 6))
    weights["layer_norm.bias"] = np.zeros((1, 6))
    with pytest.raises(ValueError) as error:
        load_released(save(tmp_path / "odd.npz", weights))
    for part in (
        "odd.npz",
        "w:hopfield_layers.0.W_out.weight has shape (6, 5), wanted (6, 6)",
        "w:ffn_layers.1.linear1.weight has shape (8, 6), wanted (9, 6)",
        "w:layer_norm.bias has shape (1, 6), wanted (6,)",
    ):
        assert part in str(error.value)
    weights["classifier.weight"] = np.zeros(3)
    with pytest.raises(ValueError, match=r"w:classifier\.weight must be matrices"):
        load_released(save(tmp_path / "odd.npz", weights))


def test_a_layer_left_out_is_named(tmp_path, weights):
    renamed = {name.replace(".1.", ".2."): value for name, value in weights.items()}
    with pytest.raises(ValueError, match=r"no array w:layer_norms\.1\.weight.*no place for"):
        load_released(save(tmp_path / "odd.npz", renamed))
    with pytest.raises(ValueError, match=r"no array w:hopfield_layers\.0\.W_query\.weight"):
        load_released(save(tmp_path / "none.npz", {}))


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


# -- Against the recorded run -------------------------------------------------------------------


@pytest.fixture(scope="module")
def golden(shared):
    path = shared / "golden" / "released_beta15.npz"
    if not path.is_file():
        pytest.skip(f"no recorded run at {path}")
    with np.load(path, allow_pickle=False) as file:
        return path, {name: file[name] for name in file.files}


def relative(got, wanted):
    """Largest difference over largest size."""
    wanted = np.asarray(wanted, np.float64)
    return np.abs(np.asarray(got, np.float64) - wanted).max() / np.abs(wanted).max()


RUNS = [("", 0.0), ("_sigma0.5", 0.5), ("_sigma2.0", 2.0)]


@pytest.fixture(scope="module")
def recorded_classify(golden):
    path, _ = golden
    return jax.jit(load_released(path).classify)


@pytest.mark.parametrize(("run", "sigma"), RUNS)
def test_recorded_logits_and_counts(golden, recorded_classify, run, sigma):
    _, file = golden
    out = recorded_classify(file["ids"], file["mask"], noise=np.float32(sigma) * file["noise"])
    assert out.logits.dtype == jnp.float32
    assert relative(out.logits, file[f"logits{run}"]) < 1e-5
    assert np.abs(out.num_steps - file[f"iterations{run}"]).max() <= 1
    if not run:
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
    """Losses and gradients by this library, and the recorded gradients in its own form."""
    path, file = golden
    program = load_released(path)
    step = jax.jit(
        jax.value_and_grad(lambda *args: losses(program, *args), has_aux=True),
    )
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
    for (path, wanted), got in zip(paths, jax.tree.leaves(gradient), strict=True):
        wanted = np.asarray(wanted)
        # W_query's are what is left of a start that no longer matters: 1e-8 and 1e-10, where the
        # largest of the others is 0.1.
        floor = 1e-12
        error = np.abs(np.asarray(got) - wanted).max()
        assert error <= 1e-4 * np.abs(wanted).max() + floor, jax.tree_util.keystr(path)


def test_recorded_gradients_show_what_was_trained(recorded_step):
    """The details of the preset that only gradients can tell."""
    _, _, gradient, recorded = recorded_step
    for tree in (gradient, recorded):
        assert not np.any(tree["tokens"]["embedding"][0]), "padding is frozen"
        for layer in (0, 1):
            projections = tree["blocks"][layer]["attention"]
            assert np.abs(projections["query"]["kernel"]).max() < 1e-7
            assert np.abs(projections["key"]["kernel"]).max() > 1e-3


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
