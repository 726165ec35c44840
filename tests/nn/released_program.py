"""The released program in slow NumPy, its training losses in this library, and a recorded run.

`PYTHONPATH=tests:. python -m nn.released_program` writes `released_tiny.npz` again.
"""

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from nn import slow
from scipy.special import log_softmax, softmax

from hopfax import hopfield
from hopfax.nn.released import Released

ALPHA, LAMBDA = 0.35, 0.05
TINY = Path(__file__).with_name("released_tiny.npz")
VOCAB, WIDTH, FF, LABELS = 13, 6, 9, 3
RUNS = {"": 0.0, "_sigma0.5": 0.5, "_sigma2.0": 2.0}


def classify(w, ids, mask, *, beta, max_steps, noise=0.0):
    """Design, section 4, column "released program": logits, counts and keys of every layer."""

    def norm(name, x):
        return slow.norm(slow.module(w, name), x)

    def linear(name, x):
        return slow.linear(slow.module(w, name), x)

    tokens = ids.shape[1]
    x = w["token_embeddings.weight"][ids] + w["position_embeddings.weight"][:tokens]
    x = norm("layer_norm", x) + noise
    counts, layer_keys = [], []
    for layer in range(sum(name.endswith("W_key.weight") for name in w)):
        hopfield_layer = f"hopfield_layers.{layer}"
        entry = norm(f"layer_norms.{layer}", x)
        state, keys, values = (
            linear(f"{hopfield_layer}.W_{part}", entry) for part in ("query", "key", "value")
        )

        def weights(state, keys=keys):
            return softmax(beta * state @ keys.swapaxes(1, 2) / math.sqrt(keys.shape[-1]), axis=-1)

        for step in range(1, max_steps + 1):  # noqa: B007
            following = weights(state) @ keys
            change = np.linalg.norm(following - state) / np.linalg.norm(state)
            state = following
            if change <= 1e-4:
                break
        x = x + linear(f"{hopfield_layer}.W_out", weights(state) @ values)
        inner = slow.gelu(linear(f"ffn_layers.{layer}.linear1", norm(f"ffn_norms.{layer}", x)))
        x = x + linear(f"ffn_layers.{layer}.linear2", inner)
        counts.append(step)
        layer_keys.append(keys)
    pooled = (x * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return linear("classifier", pooled), counts, layer_keys


def penalty(keys):
    """Returns that program's ESR: over all tokens, entropy in nats against alpha log d."""
    total = 0.0
    for sequence in keys:
        shares = np.linalg.eigvalsh(np.cov(sequence.T, bias=True)).clip(min=0)
        shares = shares[shares > 1e-12 * shares.max()] / shares.sum()
        entropy = -(shares * np.log(shares)).sum()
        total += (entropy - ALPHA * math.log(sequence.shape[1])) ** 2
    return total / len(keys)


def cross_entropy(logits, labels):
    return -log_softmax(logits, axis=1)[np.arange(len(labels)), labels].mean()


def record(*, beta=4.0, max_steps=50):
    """Returns a random tiny model and what the NumPy program computes with it."""
    rng = np.random.default_rng(10)
    weights = draw_weights(rng)
    mask = np.array([[1] * 6, [1] * 4 + [0] * 2, [1] * 2 + [0] * 4])
    ids, labels = mask * rng.integers(1, VOCAB, mask.shape), np.array([0, 2, 1])
    noise = rng.normal(size=(*mask.shape, WIDTH)).astype(np.float32)

    def run(weights, noise=0.0):
        return classify(weights, ids, mask, beta=beta, max_steps=max_steps, noise=noise)

    def losses(weights):
        logits, _, keys = run(weights)
        return np.array([cross_entropy(logits, labels), *(LAMBDA * penalty(k) for k in keys)])

    task, *esr = losses(weights)
    file = {"ids": ids, "mask": mask, "labels": labels, "noise": noise, "beta": beta}
    file |= {"max_iterations": max_steps, "task_loss": task, "reg_loss": sum(esr)}
    file["esr_released"] = np.array(esr) / LAMBDA
    for name, sigma in RUNS.items():
        file[f"logits{name}"], counts, _ = run(weights, sigma * noise.astype(float))
        file |= {f"iterations{name}": counts, f"converged{name}": np.array(counts) < max_steps}
    for layer, keys in enumerate(run(weights)[2]):
        covariances = [np.cov(each.T, bias=True) for each in keys]
        file[f"key_eigenvalues_{layer}"] = np.linalg.eigvalsh(covariances)
    for name, array in weights.items():
        file[f"w:{name}"], gradient = array, np.zeros(array.shape, np.float32)
        for index in np.ndindex(array.shape):
            step = np.zeros(array.shape)
            step[index] = 1e-6
            up, down = (losses(weights | {name: array + h * step}) for h in (1, -1))
            gradient[index] = (up - down) / 2e-6 @ [1, trained(0, name), trained(1, name)]
        file[f"g:{name}"] = gradient
    file["g:token_embeddings.weight"][0] = 0  # that of padding is frozen
    return file


def draw_weights(rng):
    """Returns a random state dict."""
    shapes = {"token_embeddings": (VOCAB, WIDTH), "position_embeddings": (8, WIDTH)}
    shapes |= {"classifier": (LABELS, WIDTH), "layer_norm": (WIDTH,)}
    for layer in range(2):
        shapes |= {f"{name}_norms.{layer}": (WIDTH,) for name in ("layer", "ffn")}
        for part in ("query", "key", "value", "out"):
            shapes[f"hopfield_layers.{layer}.W_{part}"] = WIDTH, WIDTH
        shapes[f"ffn_layers.{layer}.linear1"] = FF, WIDTH
        shapes[f"ffn_layers.{layer}.linear2"] = WIDTH, FF
    drawn = {}
    for name, shape in shapes.items():
        scale, mean = (0.6, 0) if len(shape) == 2 else (0.2, 1)
        drawn[f"{name}.weight"] = mean + scale * rng.normal(size=shape)
        if "embeddings" not in name:
            drawn[f"{name}.bias"] = scale * rng.normal(size=shape[0])
    return {name: array.astype(np.float32) for name, array in drawn.items()}


def trained(layer, name):
    """Whether ESR of a layer trains an array: its own keys, and of the first the embeddings."""
    own = f"hopfield_layers.{layer}.W_key", f"layer_norms.{layer}"
    embeddings = "token_embeddings", "position_embeddings", "layer_norm."
    return name.startswith(own if layer else own + embeddings)


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


if __name__ == "__main__":
    np.savez_compressed(TINY, **record())
