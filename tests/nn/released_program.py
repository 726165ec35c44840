"""The released program in slow NumPy, and its training losses in this library."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from nn import slow
from scipy.special import log_softmax, softmax

from hopfax import hopfield
from hopfax.nn.released import Released

ALPHA, LAMBDA = 0.35, 0.05

# -- The released program, slowly ---------------------------------------------------------------


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
