"""The models of the experiments, described by their differences."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    from hopfax.data import TaskSpec
    from hopfax.nn import Encoder, Functional, Pretrained
    from hopfax.train.objectives import Objective

WEIGHT_DECAY = 0.01  # Table 15
# Token embeddings start with entries of 0.02: a norm of 0.23 at width 128, a sixth of the
# pretrained ones that FreeLB's published sizes are made for. A sixth of those (0.05) keeps a model
# that starts from nothing from learning CoLA in six epochs; a sixteenth of that does not.
ADVERSARIAL_RADIUS = 0.003125
FINE_TUNING_RATE = 5e-5
# A fifth of the mean norm of MiniLM's token embeddings. On validation rows of MRPC, a tenth of this
# radius scores higher (run mrpc_freelb_0.023 of results/data/learning-rates.csv).
PRETRAINED_RADIUS = 0.23
AUGMENTED_SIGMA = 0.02  # as large as the token embeddings are at first
AUGMENTED_SNR_DB = (-16.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A model and its training objective.

    `hopfax.nn.tinybert`, `robertha`, `universal_bert` or, for "pretrained", `text_classifier`
    builds it. `noise-memory` adds the noise of `noise-range` to a model with memory, whose prior is
    not trained. Loud models are those of `cells.with_loud_tokens`, louder only in the test.
    """

    title: str  # in tables and figures
    kind: Literal["tinybert", "robertha", "universal", "pretrained"]
    options: Mapping[str, Any] = field(default_factory=dict)  # of the builder or Robertha's preset
    preset: str = "hopfax"  # version of Robertha: or `paper`, `algorithm` or `released`
    entropy: Literal["shannon", "renyi2"] | None = None  # of its ESR; None for no ESR
    esr_weight: float = 0.05  # in the loss
    esr_target: float = 0.35  # entropy; above 1, ESR only raises it
    # Perturbation of the training rows.
    training: Literal["clean", "noise", "noise-range", "noise-memory", "pgd", "freelb"] = "clean"
    radius: float = ADVERSARIAL_RADIUS  # L2 norm of FreeLB's and PGD's perturbation of a text
    weight_decay: float = WEIGHT_DECAY  # AdamW's
    # With `--pretrained` and without `--learning-rate`; see the suite `learning-rates`.
    learning_rate: float = FINE_TUNING_RATE
    fixed_rate: float | None = None  # replaces `--learning-rate`, if set
    precision: Literal["float32", "bfloat16"] = "float32"  # of the blocks
    loud: bool = False
    paper: str | None = None  # its row in the paper's tables, if it has one

    def settings(self) -> dict[str, Any]:
        """Returns the settings that determine the trained model: no names, no unused settings."""
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        for name in ("title", "paper", "loud", "learning_rate", "fixed_rate"):
            del fields[name]
        if self.kind == "robertha":
            from hopfax.nn import find_preset

            fields["preset"] = dataclasses.asdict(find_preset(self.preset))
        else:
            del fields["preset"]
        if self.kind == "pretrained":
            fields["options"] = {**self.options, "folder": weights_digest(self.options["folder"])}
        if not self.entropy:
            del fields["esr_weight"], fields["esr_target"]
        if self.training not in ("freelb", "pgd"):
            del fields["radius"]
        return fields


def _tinybert(change: str = "", **fields: Any) -> Variant:
    return Variant(title=f"TinyBERT{change}", kind="tinybert", **fields)


def _robertha(change: str = "", **fields: Any) -> Variant:
    return Variant(title=f"Robertha{change}", kind="robertha", **{"entropy": "shannon", **fields})


def _pretrained(change: str = "", **fields: Any) -> Variant:
    return Variant(title=f"fine-tuned encoder{change}", kind="pretrained", **fields)


# At beta=1, attention without steps is the loaded model's own. Iterated to convergence, it learns
# MRPC at no rate; both iterated models take the rate of one update.
HOPFIELD = {"attention": "hopfield", "beta": 1.0, "max_steps": 50}
# The gradient of one step is always unrolled; naming it tells these cells from earlier ones.
ONE_STEP = {**HOPFIELD, "max_steps": 1, "gradient": "unrolled"}
# Softmax attention, but without dropout of its weights, which Hopfield attention does not have.
NO_STEPS = {**HOPFIELD, "max_steps": 0}
MEAN = {"pooling": "mean"}
PRE_LN = {**MEAN, "norm_first": True}
# Entries of about 1 in place of 0.02; LayerNorm undoes it, so the function is the same.
RESCALED = {"embedding_scale": 50.0}
HALTING = {"halting": True, "num_steps": 6}
UNIVERSAL = "Universal Transformer"
NOISY, THROUGH = " + noise training", " + noise training through memory"
# Names of the paper's ablations. It gives no values for "+ Dropout" and "+ WeightDecay", nor for
# its baselines' noise and perturbations; these are our choices.
NO_ESR, NO_PARTS = "Robertha w/o ESR", "Robertha w/o Iteration w/o ESR"
DECAYED = {"weight_decay": 0.1, "paper": f"{NO_ESR} + WeightDecay"}
DROPPED = {"options": {"dropout": 0.5}, "paper": f"{NO_ESR} + Dropout"}
NO_ITERATION = {"options": {"max_steps": 0}, "paper": NO_PARTS}

VARIANTS: dict[str, Variant] = {
    "tinybert": _tinybert(paper="TinyBERT"),
    "tinybert-mean": _tinybert(" with mean pooling", options=MEAN),
    "tinybert-unit-scale": _tinybert(" with embeddings rescaled by 50", options=RESCALED),
    "tinybert-mean-prenorm": _tinybert(" with mean pooling and pre-LN", options=PRE_LN),
    "tinybert-mean-prenorm-dropout": _tinybert(
        " with mean pooling, pre-LN and dropout 0.3", options={**PRE_LN, "dropout": 0.3}
    ),
    "freelb": Variant(title="FreeLB", kind="tinybert", training="freelb", paper="FreeLB"),
    "pgd": Variant(title="PGD", kind="tinybert", training="pgd", paper="Adversarial"),
    "data-augment": Variant(
        title="DataAugment", kind="tinybert", training="noise", paper="DataAugment"
    ),
    "noise-trained": _tinybert(NOISY, training="noise-range"),
    "noise-through-memory": _tinybert(THROUGH, training="noise-memory"),
    "universal": Variant(title=UNIVERSAL, kind="universal", paper=UNIVERSAL),
    "universal-halting": Variant(
        title=f"{UNIVERSAL} with halting", kind="universal", options=HALTING
    ),
    "robertha": _robertha(paper="Robertha"),
    "robertha-renyi2": _robertha(" with Rényi-2 ESR", entropy="renyi2"),
    "robertha-no-esr": _robertha(" w/o ESR", entropy=None, paper=NO_ESR),
    "robertha-no-esr-dropout": _robertha(" w/o ESR + dropout 0.5", entropy=None, **DROPPED),
    "robertha-no-esr-weight-decay": _robertha(
        " w/o ESR + weight decay 0.1", entropy=None, **DECAYED
    ),
    "robertha-no-iteration-no-esr": _robertha(
        " w/o iteration and ESR", entropy=None, **NO_ITERATION
    ),
    "robertha-no-output-projection": _robertha(" w/o W_O", options={"output_projection": False}),
    "robertha-freelb": _robertha(" with FreeLB", training="freelb"),
    "robertha-paper": _robertha(" as in the paper", preset="paper"),
    "robertha-algorithm": _robertha(" as in the algorithms", preset="algorithm"),
    "robertha-released": _robertha(" as released", preset="released"),
    "pretrained": _pretrained(learning_rate=1e-4),
    "pretrained-loud": _pretrained(" with rescaled tokens", learning_rate=1e-4, loud=True),
    "pretrained-esr": _pretrained(" + ESR", entropy="shannon"),
    "pretrained-noise-trained": _pretrained(NOISY, training="noise-range"),
    "pretrained-noise-through-memory": _pretrained(
        THROUGH, training="noise-memory", learning_rate=1e-4
    ),
    "pretrained-freelb": _pretrained(
        " + FreeLB", training="freelb", radius=PRETRAINED_RADIUS, learning_rate=3e-4
    ),
    "pretrained-hopfield-0": _pretrained(" without attention dropout", options=NO_STEPS),
    "pretrained-hopfield": _pretrained(" + iterated Hopfield attention", options=HOPFIELD),
    "pretrained-hopfield-esr": _pretrained(
        " + iterated Hopfield attention + ESR", options=HOPFIELD, entropy="shannon"
    ),
    "pretrained-hopfield-1": _pretrained(" + one Hopfield update", options=ONE_STEP),
    "pretrained-hopfield-1-esr": _pretrained(
        " + one Hopfield update + ESR", options=ONE_STEP, entropy="shannon"
    ),
}


class Size(NamedTuple):
    """Size of an encoder. Heads have width 64; feed-forward layers are four times the width."""

    num_layers: int
    width: int


# From tiny on, Google's BERT miniatures (Turc et al. 2019).
SIZES = {
    "smallest": Size(1, 64),
    "tiny": Size(2, 128),
    "mini": Size(4, 256),
    "small": Size(4, 512),
    "medium": Size(8, 512),
    "base": Size(12, 768),
}
REMAT_FROM = 8  # layers from which blocks are recomputed in the backward pass, to save memory
SYMBOLS = {"esr-target": "α", "esr-weight": "λ", "beta": "β", "rate": "learning rate"}
DENOISERS = {"memory": "memory", "nearest": "nearest token", "linear": "Wiener filter"}
CHANGED = re.compile(rf"(.+)-(?:({'|'.join(SIZES)})|({'|'.join(SYMBOLS)})-([0-9.e-]+))")


def variant(name: str, **flags: Any) -> Variant:
    """Returns a model by name, with flags applied.

    Args:
        name: A key of `VARIANTS`. A suffix changes one thing: its size (`-mini`, of `SIZES`), a
            parameter (`-beta-5`, `-esr-target-0.5`, `-esr-weight-1`) or its learning rate, which
            `--learning-rate` then does not change (`-rate-1e-4`).
        **flags: See `with_flags`. They do not change what the suffix sets.

    Raises:
        ValueError: There is no such model; the message lists the models. Or a pretrained encoder
            has no folder.
    """
    from hopfax.data.tasks import look_up

    changed = None if name in VARIANTS else CHANGED.fullmatch(name)
    if not changed:
        return with_flags(look_up("model", name, VARIANTS), **flags)
    base, size, parameter, number = changed.groups()
    found = variant(base, **flags)
    if size:
        if found.kind == "pretrained":
            raise ValueError(f"a pretrained encoder has its own size, got {name}")
        shape = SIZES[size]
        sized = {
            **shape._asdict(),
            "ff_width": 4 * shape.width,
            "num_heads": shape.width // 64,
            "remat": shape.num_layers >= REMAT_FROM,
        }
        changes: dict[str, Any] = {"options": {**found.options, **sized}}
    elif parameter == "rate":
        changes = {"fixed_rate": float(number)}
        if not 0 < float(number) < math.inf:
            raise ValueError(f"a learning rate must be > 0 and finite, got {name}")
    elif parameter == "beta":
        if found.kind != "robertha" and found.options.get("attention") != "hopfield":
            raise ValueError(f"β requires Hopfield attention, got {name}")
        changes = {"options": {**found.options, "beta": float(number)}}
    else:
        if not found.entropy:
            raise ValueError(f"{SYMBOLS[parameter]} requires a model with ESR, got {name}")
        changes = {parameter.replace("-", "_"): float(number)}
    return dataclasses.replace(found, title=title(name), paper=None, **changes)


def title(method: str) -> str:
    """Returns the title of a model, or of a model with a denoiser as suffix."""
    base, _, last = method.rpartition("-")
    if method in VARIANTS:
        return VARIANTS[method].title
    if last in DENOISERS:
        return f"{title(base)} + {DENOISERS[last]}"
    if changed := CHANGED.fullmatch(method):
        base, size, parameter, number = changed.groups()
        return f"{title(base)}, {size or f'{SYMBOLS[parameter]} {number}'}"
    return method


def with_flags(variant: Variant, **flags: Any) -> Variant:
    """Returns a variant with flags applied: they replace its fields or become options.

    A flag never changes an option that the variant sets. Robertha's flags (beta, tol, max_steps)
    have no effect on other models. A flag that is None was left out.
    """
    names = {each.name for each in dataclasses.fields(Variant)}
    others = set() if variant.kind == "robertha" else {"beta", "tol", "max_steps"}
    if variant.kind != "pretrained":
        others.add("folder")
    elif not flags.get("folder"):
        raise ValueError("a pretrained encoder is read from a folder: set --pretrained")
    flags = {n: v for n, v in flags.items() if v is not None and n not in others}
    fields = {name: flags.pop(name) for name in names & flags.keys()}
    return dataclasses.replace(variant, **fields, options={**flags, **variant.options})


class Trainable(NamedTuple):
    """A model, its training objective, and whether its attention iterates."""

    model: Functional[Encoder]
    objective: Objective
    weight_decay: float
    iterates: bool


def build(
    variant: Variant,
    spec: TaskSpec,
    *,
    vocab_size: int,
    log_prior: np.ndarray | None = None,
    **sizes: Any,
) -> Trainable:
    """Builds a model with the outputs of a task; for `sizes` see `hopfax.nn.Encoder`.

    `log_prior` is the memory's prior in `noise-memory` training; None for a uniform one.

    Raises:
        ValueError: An option is out of its range.
    """
    from hopfax.nn import Preset, find_preset, robertha, tinybert, with_precision
    from hopfax.nn.models import universal_bert
    from hopfax.train.adversarial import Ball, freelb, pgd, with_noise, with_noise_range
    from hopfax.train.objectives import classification

    options = {**sizes, **variant.options}
    shape = vocab_size, spec.num_outputs
    esr_weight = variant.esr_weight if variant.entropy else 0.0
    esr: dict[str, Any] = {"esr_weight": esr_weight, "esr_target": variant.esr_target}
    if variant.kind == "robertha":
        of_preset = {each.name for each in dataclasses.fields(Preset)} & options.keys()
        preset = dataclasses.replace(
            find_preset(variant.preset), **{name: options.pop(name) for name in of_preset}
        )
        model = robertha(*shape, preset=preset, **options)
        esr |= {
            "esr_in_nats": preset.esr_in_nats,
            "esr_masked": preset.mask_keys,
            "esr_entropy": variant.entropy or "shannon",
        }
    elif variant.kind == "pretrained":
        model = _text_classifier(spec, options)
    else:
        builder = tinybert if variant.kind == "tinybert" else universal_bert
        if variant.kind == "universal":  # one layer, applied several times
            options.pop("num_layers", None)
        model = builder(*shape, **options)
    model = with_precision(model, variant.precision)
    through_memory = variant.training == "noise-memory"
    trained = _with_fixed_memory(model, log_prior) if through_memory else model
    objective = classification(trained, regression=spec.regression, **esr)
    if variant.training == "noise":
        objective = with_noise(objective, sigma=AUGMENTED_SIGMA)
    elif variant.training in ("noise-range", "noise-memory"):
        objective = with_noise_range(objective, snr_db=AUGMENTED_SNR_DB)
    elif variant.training != "clean":
        radius, adversarial = variant.radius, {"freelb": freelb, "pgd": pgd}[variant.training]
        ball = Ball(num_steps=3, step_size=0.4 * radius, max_norm=radius, initial_norm=0.6 * radius)
        objective = adversarial(objective, ball)
    hopfield = variant.kind == "robertha" or variant.options.get("attention") == "hopfield"
    iterates = hopfield and variant.options.get("max_steps") != 0
    return Trainable(model, objective, variant.weight_decay, iterates or "halting" in options)


def _with_fixed_memory(
    model: Functional[Encoder], log_prior: np.ndarray | None
) -> Functional[Encoder]:
    """Returns a model with memory at the token site that is not among its parameters."""
    import jax.numpy as jnp

    from hopfax.nn import with_memory
    from hopfax.nn.memory import initial_memory

    remembering = with_memory(model)

    def apply(params: Any, *inputs: Any, **options: Any) -> Any:
        start = initial_memory(model.config.vocab_size, model.config.token_width, None)
        memory = start if log_prior is None else {**start, "log_prior": jnp.asarray(log_prior)}
        return remembering.apply({**params, "memory": memory}, *inputs, **options)

    return model._replace(apply=apply)


def _text_classifier(spec: TaskSpec, options: Mapping[str, Any]) -> Functional[Encoder]:
    """Builds a classifier from a folder's encoder, whose sizes it has."""
    from hopfax.data import read_tokenizer
    from hopfax.nn import HopfieldAttention, SoftmaxAttention, text_classifier

    own = {n: v for n, v in options.items() if n in ("beta", "max_steps", "gradient", "dropout")}
    hopfield = options.get("attention") == "hopfield"
    return text_classifier(
        load(options["folder"]),
        spec.num_outputs,
        attention=HopfieldAttention if hopfield else SoftmaxAttention,
        separator=read_tokenizer(options["folder"]).sep_id,
        **own,
    )


@functools.cache
def load(folder: str) -> Pretrained:
    """Loads the encoder of a folder once."""
    from hopfax.nn import load_pretrained

    return load_pretrained(folder)


def is_causal(model: Pretrained) -> bool:
    """Returns whether tokens see only those before them."""
    return model.encoder is None


def load_encoder(folder: str) -> Pretrained:
    """Loads a BERT or RoBERTa of a folder; raises a ValueError for causal models."""
    model = load(folder)
    if is_causal(model):
        raise ValueError(
            f"--pretrained must be a BERT or RoBERTa, got a {model.config['model_type']}: {folder}"
        )
    return model


@functools.cache
def weights_digest(folder: str) -> str:
    """SHA-256 over the files of a folder's model, so that results do not depend on its path."""
    from hopfax.hub import model_folder

    total, files = hashlib.sha256(), model_folder(folder)
    for path in sorted([files / "config.json", *files.glob("*.safetensors")]):
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()[:16]
