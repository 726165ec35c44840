"""The released program in slow NumPy, and its training losses in this library.

`released_tiny.npz` is a recorded run of the first, with gradients by central differences; the
function `record` of this module at commit a38904ac wrote it.
"""

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from nn import slow
from scipy.special import softmax

from hopfax import hopfield
from hopfax.nn.released import Program

ALPHA, LAMBDA = 0.35, 0.05
TINY = Path(__file__).with_name("released_tiny.npz")
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


def losses(program, params, ids, mask, labels):
    out = Program(program.model, params).classify(ids, mask)
    task = -jnp.mean(jax.nn.log_softmax(out.logits)[jnp.arange(len(labels)), labels])
    entropy = jax.vmap(jax.vmap(hopfield.eigen_entropy))(out.keys)
    esr = jnp.mean(jnp.square((entropy - ALPHA) * math.log(out.keys.shape[-1])), axis=-1)
    return task + LAMBDA * esr.sum(), (task, esr)
