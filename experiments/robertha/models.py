"""The models an experiment can name, each with the objective it is trained by."""

import dataclasses
import difflib
from typing import Any, NamedTuple

from hopfax.data.tasks import TaskSpec
from hopfax.hopfield import Entropy
from hopfax.nn import Encoder, Functional, preset, robertha, tinybert
from hopfax.train.objectives import Objective, classification

# Models trained with ESR, each by the entropy it takes.
ENTROPIES: dict[str, Entropy] = {
    "robertha": "shannon",
    "robertha-renyi2": "renyi2",
    "robertha-shannon-matmul": "shannon_matmul",
}
MODELS = ("tinybert", *ENTROPIES, "robertha-no-esr", "robertha-no-iteration-no-esr")


class Trainable(NamedTuple):
    """A model and what training minimises."""

    model: Functional[Encoder]
    objective: Objective
    iterates: bool


def check_model(name: str) -> None:
    """Raises a ValueError that names the nearest models if this one is unknown."""
    if name not in MODELS:
        near = difflib.get_close_matches(name, MODELS, n=2) or MODELS
        raise ValueError(f"unknown model {name!r}; did you mean {' or '.join(near)}?")


def with_entropy(name: str, entropy: Entropy) -> str:
    """Robertha's name with another entropy, so that results tell them apart; others keep theirs."""
    names = {its_own: model for model, its_own in ENTROPIES.items()}
    if entropy not in names:
        raise ValueError(f"entropy must be one of {', '.join(names)}, got {entropy!r}")
    return names[entropy] if name == "robertha" else name


def trainable(
    name: str,
    spec: TaskSpec,
    *,
    vocab_size: int,
    preset_name: str = "hopfax",
    beta: float = 15.0,
    tol: float = 1e-4,
    max_steps: int = 50,
    esr_weight: float = 0.05,
    esr_target: float = 0.35,
    dropout: float | None = None,
    **sizes: Any,
) -> Trainable:
    """Builds a model for a task.

    Args:
        name: One of `MODELS`.
        spec: The task; its outputs become the model's.
        vocab_size: Number of token ids.
        preset_name: Reading of the Robertha paper, see `hopfax.nn.PRESETS`.
        beta: Inverse temperature of Robertha.
        tol: Change at which its queries stop.
        max_steps: Its most iterations, >= 1.
        esr_weight: Weight of ESR in Robertha's loss.
        esr_target: Its target entropy.
        dropout: Rate in training, in [0, 1); None leaves each model its own (0.1 and the
            preset's).
        **sizes: See `hopfax.nn.Encoder`.

    Raises:
        ValueError: If the name is unknown or a number is out of its range.
    """
    check_model(name)
    if max_steps < 1:
        raise ValueError(
            f"max_steps must be at least 1, got {max_steps}; the model without iteration is "
            "robertha-no-iteration-no-esr"
        )
    if name == "tinybert":
        own = {} if dropout is None else {"dropout": dropout}
        model = tinybert(vocab_size, spec.num_outputs, **own, **sizes)
        return Trainable(model, classification(model, regression=spec.regression), False)
    details = preset(preset_name)
    if dropout is not None:
        details = dataclasses.replace(details, dropout=dropout)
    iterates = name != "robertha-no-iteration-no-esr"
    model = robertha(
        vocab_size,
        spec.num_outputs,
        details=details,
        beta=beta,
        tol=tol,
        max_steps=max_steps if iterates else 0,
        **sizes,
    )
    objective = classification(
        model,
        regression=spec.regression,
        esr_weight=esr_weight if name in ENTROPIES else 0.0,
        esr_target=esr_target,
        esr_in_nats=details.esr_in_nats,
        esr_masked=details.mask_keys,
        esr_entropy=ENTROPIES.get(name, "shannon"),
    )
    return Trainable(model, objective, iterates)
