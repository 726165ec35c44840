"""What training minimises: task loss plus Eigenspectrum Regularization."""

import math
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from hopfax import hopfield
from hopfax.nn.encoder import CLEAN, Encoder, Encoding, Perturbation
from hopfax.nn.functional import Functional, Params
from hopfax.nn.universal import ponder_cost


class Batch(NamedTuple):
    """Rows of one padded length. An example has one text, or one per choice.

    Attributes:
        ids: Token ids.
        lengths: Real tokens of each text.
        labels: Classes, or scores for regression.
        weights: 1 for a row that counts, 0 for one that only fills the batch.
    """

    ids: Int[Array, "batch choices tokens"]
    lengths: Int[Array, "batch choices"]
    labels: Int[Array, " batch"] | Float[Array, " batch"]
    weights: Float[Array, " batch"]


class Losses(NamedTuple):
    """The parts of a loss, each a mean over the rows that count, and how retrieval ended.

    Attributes:
        task: Task loss.
        esr: ESR penalty.
        num_steps: Mean Hopfield updates a real query.
        unconverged: Share of real queries that `max_steps` ended, in [0, 1].
    """

    task: Float[Array, ""]
    esr: Float[Array, ""]
    num_steps: Float[Array, ""]
    unconverged: Float[Array, ""]


class Objective(Protocol):
    """A loss to minimise, differentiable in the parameters and in what is added to the inputs."""

    def __call__(
        self, params: Params, batch: Batch, key: PRNGKeyArray, added: Perturbation = CLEAN, /
    ) -> tuple[Array, Losses]:
        """Returns the loss and its parts; the key drives dropout."""
        ...


def texts_of(batch: Batch) -> tuple[Int[Array, "texts tokens"], Bool[Array, "texts tokens"]]:
    """Ids and mask of every text of a batch, the choices of an example one after the other."""
    tokens = batch.ids.shape[-1]
    mask = jnp.arange(tokens) < batch.lengths.reshape(-1, 1)
    return batch.ids.reshape(-1, tokens), mask


def per_example(logits: Float[Array, "texts outputs"], batch: Batch) -> Float[Array, "batch _"]:
    """Lines the outputs of an example's texts up: classes, or one score a choice."""
    return logits.reshape(batch.labels.shape[0], -1)


def task_loss(
    logits: Float[Array, "batch outputs"], batch: Batch, *, regression: bool
) -> Float[Array, ""]:
    """Mean cross-entropy, or mean squared error for regression, over the rows that count."""
    if regression:
        losses = jnp.square(logits[:, 0] - batch.labels)
    else:
        log_probs = jax.nn.log_softmax(logits)
        losses = -jnp.take_along_axis(log_probs, batch.labels[:, None], axis=1)[:, 0]
    return _weighted_mean(losses, batch.weights)


def esr_loss(
    encoding: Encoding,
    mask: Bool[Array, "texts tokens"],
    weights: Float[Array, " texts"],
    *,
    target: float,
    in_nats: bool = False,
    entropy: hopfield.Entropy = "shannon",
) -> Float[Array, ""]:
    r"""ESR penalty of each text's keys, summed over layers, averaged over the texts that count.

    Args:
        encoding: Holds the keys of every layer.
        mask: Tokens that take part in the spectrum.
        weights: 1 for texts that count.
        target: The normalised entropy to aim at.
        in_nats: The released program's $(H - \alpha \log d)^2$, which is $(\log d)^2$ times the
            paper's Eq. 12.
        entropy: See `hopfield.eigen_entropy`.
    """

    def penalty(keys: Array, mask: Array) -> Array:
        return hopfield.esr_penalty(keys, target=target, mask=mask, entropy=entropy)

    penalties = jax.vmap(jax.vmap(penalty), in_axes=(0, None))(encoding.keys, mask)
    scale = math.log(encoding.keys.shape[-1]) ** 2 if in_nats else 1.0
    return scale * _weighted_mean(jnp.sum(penalties, axis=0), weights)


def classification(
    model: Functional[Encoder],
    *,
    regression: bool = False,
    esr_weight: float = 0.0,
    esr_target: float = 0.35,
    esr_in_nats: bool = False,
    esr_masked: bool = True,
    esr_entropy: hopfield.Entropy = "shannon",
    ponder_weight: float = 0.01,
) -> Objective:
    """The papers' objective: task loss + `esr_weight` times ESR.

    Args:
        model: The classifier.
        regression: Squared error in place of cross-entropy.
        esr_weight: Lambda, >= 0; at 0 no spectrum is computed.
        esr_target: Alpha, in [0, 1].
        esr_in_nats: See `esr_loss`.
        esr_masked: Whether padding is kept out of the spectrum.
        esr_entropy: Which entropy of the spectrum; see `hopfield.eigen_entropy`.
        ponder_weight: Weight of the steps that tokens take, in a model where they halt by
            themselves, >= 0; the Universal Transformer's program has 0.01.

    Returns:
        An `Objective`.

    Raises:
        ValueError: If a weight is negative.

    References:
        Robertha, Eq. 12 and Table 15.
    """
    for name, weight in (("esr_weight", esr_weight), ("ponder_weight", ponder_weight)):
        if weight < 0:
            raise ValueError(f"{name} scales a penalty and must be >= 0, got {weight}")

    def objective(
        params: Params, batch: Batch, key: PRNGKeyArray, added: Perturbation = CLEAN, /
    ) -> tuple[Array, Losses]:
        ids, mask = texts_of(batch)
        logits, encoding = model.apply(params, ids, mask, key=key, added=added)
        task = task_loss(per_example(logits, batch), batch, regression=regression)
        weights = jnp.repeat(batch.weights, batch.ids.shape[1])
        esr = jnp.zeros_like(task)
        if esr_weight > 0:
            seen = mask if esr_masked else jnp.ones_like(mask)
            esr = esr_loss(
                encoding,
                seen,
                weights,
                target=esr_target,
                in_nats=esr_in_nats,
                entropy=esr_entropy,
            )
        real = mask & (weights > 0)[:, None]
        loss = task + esr_weight * esr
        if encoding.ponder is not None:
            loss += ponder_weight * _weighted_mean(ponder_cost(encoding.ponder, mask), weights)
        steps = mean_over_queries(encoding.num_steps, real)
        return loss, Losses(task, esr, steps, mean_over_queries(~encoding.converged, real))

    return objective


def mean_over_queries(
    values: Shaped[Array, "layers texts heads tokens"], mask: Bool[Array, "texts tokens"]
) -> Float[Array, ""]:
    """Mean over the real queries of all layers and heads."""
    real = jnp.broadcast_to(mask[None, :, None, :], values.shape)
    return jnp.sum(jnp.where(real, values, 0)) / jnp.maximum(jnp.sum(real), 1)


def _weighted_mean(values: Array, weights: Any) -> Array:
    return jnp.sum(values * weights) / jnp.maximum(jnp.sum(weights), 1)
