"""Groups of flags that experiments share, and the budgets that set their defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, isfinite
from operator import le
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

import tyro

from hopfax.data.tasks import TASKS, task

if TYPE_CHECKING:
    from experiments.models import Variant

Config = TypeVar("Config", bound=Any)
BudgetName = Literal["smoke", "laptop", "paper"]
DenoiserName = Literal["none", "memory", "nearest", "linear"]
Corruption = Literal["misspelling", "char_swap", "textbugger", "hotflip"]


class Budget(NamedTuple):
    """Defaults of the flags for one size of run."""

    seeds: tuple[int, ...]
    epochs: int
    patience: int
    learning_rate: float
    levels: tuple[float, ...]
    noise_draws: int
    train_size: int | None
    test_size: int | None
    vocab_size: int
    width: int
    num_layers: int


PAPER_SEEDS = (23, 42, 77, 112, 135)
PAPER_LEVELS = (0.5, 1.0, 2.0, 5.0)
BUDGETS: dict[str, Budget] = {
    "smoke": Budget(PAPER_SEEDS[:2], 1, 1, 1e-3, (0.5, 5.0), 1, 128, 64, 2000, 32, 1),
    "laptop": Budget(PAPER_SEEDS[:3], 8, 3, 3e-4, PAPER_LEVELS, 3, None, None, 8000, 128, 2),
    # Table 15 of the Robertha paper.
    "paper": Budget(PAPER_SEEDS, 30, 10, 2e-5, PAPER_LEVELS, 3, None, None, 30522, 128, 2),
}
# Enough epochs to learn the synthetic tasks: models stopped halfway score differently on different
# processors, because of rounding. No early stopping.
EMBEDDED_LAPTOP = Budget(PAPER_SEEDS[:3], 6, 6, 1e-3, PAPER_LEVELS, 1, 8000, 500, 8000, 64, 2)


def by_budget(name: str, metavar: str, budgets: Mapping[str, Any] = BUDGETS) -> Any:
    """Shows each budget's value in place of "(default: None)".

    Args:
        name: The flag's field.
        metavar: What its values are.
        budgets: Values of each budget: a NamedTuple, or a mapping from the name of the field.
    """

    def text(value: Any) -> str:
        if value is None:
            return "all"
        return " ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)

    values = {
        size: each[name] if isinstance(each, Mapping) else getattr(each, name)
        for size, each in budgets.items()
    }
    if budgets is BUDGETS and (value := getattr(EMBEDDED_LAPTOP, name)) != values["laptop"]:
        values["laptop, synthetic tasks"] = value
    hints = (f"{text(value)} ({size})" for size, value in values.items())
    return optional(metavar, ", ".join(hints))


def optional(metavar: str, default: str) -> Any:
    """Describes the default of a flag that may be left out, where it is None."""

    def hint(shown: str) -> str:
        return f"(default: {default if shown in ('None', '') else shown})"

    required = "(required)" if default == "required" else hint
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=required)


def budget_of(config: Any, budgets: Mapping[str, Any]) -> Any:
    """Returns the configuration's budget, a NamedTuple, with the flags that were set.

    Raises:
        ValueError: A value is out of its range, or a list is empty or repeats a value.
    """
    check(config)
    budget = budgets[config.budget]
    flags = {name: getattr(config, name, None) for name in budget._fields}
    return budget._replace(**{name: flag for name, flag in flags.items() if flag is not None})


@dataclass(frozen=True, kw_only=True)
class Data:
    """Data to train and test on."""

    task: tuple[str, ...] = ("entailment",)
    """Tasks. Synthetic, no files needed: sentiment entailment paraphrase. From --data-dir: cola
    sst2 mrpc qqp stsb mnli qnli rte wnli boolq copa wic wsc."""
    train: Annotated[str | None, optional("FILE", "none")] = None
    """Training rows of your own task, which replaces --task: a CSV, TSV or JSONL file. Requires
    --dev, --text and --label. The task has the file's name."""
    dev: Annotated[str | None, optional("FILE", "none")] = None
    """Test rows of your own task."""
    text: Annotated[str | None, optional("COLUMN", "none")] = None
    """Column of the texts of --train and --dev."""
    pair: Annotated[str | None, optional("COLUMN", "single texts")] = None
    """Column of the second texts of pairs."""
    label: Annotated[str | None, optional("COLUMN", "none")] = None
    """Column of the labels: classes, or scores if they are numbers with a decimal point."""
    data_dir: Annotated[str | None, optional("FOLDER", "synthetic tasks only")] = None
    """Folder of raw sets (glue_data/SST-2/train.tsv, ...) or of built TFDS sets."""
    vocab: Annotated[str | None, optional("FILE", "trained on the training texts")] = None
    """A vocab.txt or its folder."""
    train_size: Annotated[int | None, by_budget("train_size", "INT")] = None
    """Number of training rows."""
    test_size: Annotated[int | None, by_budget("test_size", "INT")] = None
    """Number of test rows, evenly spaced: some sets are sorted by source."""
    vocab_size: Annotated[int | None, by_budget("vocab_size", "INT")] = None
    """Maximum size of a trained vocabulary."""
    max_length: int = 128
    """Maximum length in tokens; longer texts are truncated."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """Training of the models."""

    seeds: Annotated[tuple[int, ...] | None, by_budget("seeds", "INT ...")] = None
    """Training seeds."""
    epochs: Annotated[int | None, by_budget("epochs", "INT")] = None
    """Maximum number of epochs; the learning rate decays over all of them."""
    patience: Annotated[int | None, by_budget("patience", "INT")] = None
    """Epochs without a better validation score before a seed stops."""
    learning_rate: Annotated[float | None, by_budget("learning_rate", "FLOAT")] = None
    """Peak learning rate. In runs with a pretrained model, the default is each model's own: 1e-4
    (pretrained, pretrained-loud, pretrained-noise-through-memory), 3e-4 (pretrained-freelb) or 5e-5
    (others)."""
    batch_size: int = 32
    """Rows per training step."""
    width: Annotated[int | None, by_budget("width", "INT")] = None
    """Model width; feed-forward layers are four times as wide. Models named by size have their
    own."""
    num_layers: Annotated[int | None, by_budget("num_layers", "INT")] = None
    """Number of layers."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of the blocks. Parameters, retrieval, softmax and loss stay in float32."""
    devices: Annotated[int | None, optional("INT", "as many as divide the seeds or batches")] = None
    """Number of devices: local ones, or with --distributed those of all processes."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Noise to test under."""

    levels: Annotated[tuple[float, ...] | None, by_budget("levels", "FLOAT ...")] = None
    """Noise levels: σ (sigma), or σ over the signal's root mean square (matched, per-token), an SNR
    of -20 log10(level) dB. Clean inputs are always tested."""
    sites: tuple[str, ...] = ("token", "embedding")
    """Where noise is added: to the token embeddings (token), or after the embedding LayerNorm
    (embedding)."""
    protocols: tuple[str, ...] = ("sigma", "matched")
    """Same σ for all models (sigma), same signal-to-noise ratio (SNR) for each text (matched), or
    for each token (per-token)."""
    noise_draws: Annotated[int | None, by_budget("noise_draws", "INT")] = None
    """Independent noise draws per test row."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Worker processes that train and test the run's models; they share the folder --runs."""

    launcher: Literal["none", "submitit", "ray"] = "none"
    """Starts workers: submitit (Slurm, or this machine) or Ray (a cluster, or this machine). none:
    training on a CPU uses a second process if cores are idle."""
    workers: int = 2
    """Maximum number of workers at a time, one model each; requires --launcher."""
    launcher_options: Annotated[tuple[str, ...] | None, optional("KEY=VALUE ...", "none")] = None
    """submitit: parameters of its AutoExecutor, such as slurm_partition=gpu gpus_per_node=1
    timeout_min=600. Ray: address=HOST:PORT, and options of a task, such as num_gpus=1, without
    which workers see no GPU."""
    plan: bool = False
    """Print the models of the run, whether each is trained, and estimated hours; then exit."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """Flags of every experiment."""

    budget: BudgetName = "laptop"
    """Size of the run: smoke (seconds to minutes), laptop (minutes to hours) or paper (hours; as in
    the paper, if it has the experiment). Other flags override its values."""
    runs: str = "runs"
    """Folder of all runs."""
    cluster: Cluster = Cluster()


@dataclass(frozen=True, kw_only=True)
class Encoders:
    """Hyperparameters of the models."""

    beta: Annotated[float | None, optional("FLOAT", "15")] = None
    """Robertha's inverse temperature, before the 1/sqrt(head width)."""
    max_steps: Annotated[int | None, optional("INT", "50")] = None
    """Robertha's maximum number of iterations T."""
    tol: Annotated[float | None, optional("FLOAT", "1e-4")] = None
    """Change per iteration that counts as converged."""
    esr_weight: Annotated[float | None, optional("FLOAT", "0.05")] = None
    """Weight of Eigenspectrum Regularization."""
    esr_target: Annotated[float | None, optional("FLOAT", "0.35")] = None
    """Target entropy α of ESR; above 1, ESR only raises the entropy, with slope 2 λ (α - H)."""
    dropout: Annotated[float | None, optional("FLOAT", "0.1 TinyBERT, 0.3 Robertha")] = None
    """Dropout rate in training."""
    pretrained: Annotated[str | None, optional("FOLDER", "none")] = None
    """Hugging Face folder of a BERT or RoBERTa, for the models `pretrained*`. All models of the run
    then use its tokenizer."""
    adversarial_radius: Annotated[
        float | None, optional("FLOAT", "0.003125, pretrained-freelb 0.23")
    ] = None
    """Maximum L2 norm of FreeLB's and PGD's perturbation of a text's token embeddings."""

    def models(self, names: Sequence[str]) -> dict[str, Variant]:
        """Models under these options, by name; see `models.variant`."""
        from experiments.models import variant

        flags = dataclasses.asdict(self)
        flags["radius"] = flags.pop("adversarial_radius")
        flags["folder"] = flags.pop("pretrained")
        return {name: variant(name, **flags) for name in names}


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """Training of each model by several processes, with the same flags except --process-index."""

    distributed: bool = False
    """Train on the devices of all processes: of a Slurm step, or of the next three flags."""
    coordinator: Annotated[str | None, optional("HOST:PORT", "detected")] = None
    """Address of process 0."""
    num_processes: Annotated[int | None, optional("INT", "detected")] = None
    """Number of processes."""
    process_index: Annotated[int | None, optional("INT", "detected")] = None
    """Index of this process, from 0."""


@dataclass(frozen=True, kw_only=True)
class Flags(Run):
    """Flags of every experiment that trains encoders."""

    data: Data = Data()
    training: Training = Training()
    encoder: Encoders = Encoders()
    hosts: Hosts = Hosts()


@dataclass(frozen=True, kw_only=True)
class Shared(Run):
    """Flags of every experiment on a pretrained model and raw data sets."""

    pretrained: Annotated[str | None, optional("FOLDER", "required")] = None
    """Folder of a pretrained model in the Hugging Face layout."""
    data_dir: Annotated[str | None, optional("FOLDER", "required")] = None
    """Folder of the raw data sets."""


def resolved(config: Config, own: Mapping[str, Mapping[str, Any]] | None = None) -> Config:
    """Returns the configuration with defaults for flags that were not set: the budget's values.

    With `--pretrained`, a learning rate that was not set stays None: each model has its own.

    Args:
        config: A dataclass with `budget` and some of the groups above.
        own: The experiment's own defaults: for each budget, values by the name of the flag.

    Raises:
        ValueError: A value is out of its range, a list is empty or repeats a value, or flags of an
            own task are missing.
    """
    if name := own_task(config.data):
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, task=(name,)))
    embedded = not name and all(task(each).suite == "synthetic" for each in config.data.task)
    budget = BUDGETS[config.budget]
    if embedded and config.budget == "laptop":
        budget = EMBEDDED_LAPTOP
    values = budget._asdict()
    if getattr(getattr(config, "encoder", None), "pretrained", None):
        del values["learning_rate"]  # each model has its own
    values |= (own or {}).get(config.budget, {})

    def filled(flags: Any) -> Any:
        changes = {}
        for each in dataclasses.fields(flags):
            value = getattr(flags, each.name)
            if dataclasses.is_dataclass(value):
                changes[each.name] = filled(value)
            elif value is None and each.name in values:
                changes[each.name] = values[each.name]
        return dataclasses.replace(flags, **changes)

    check(config)
    return filled(config)


def own_task(data: Data) -> str | None:
    """Returns the name of the task of `--train`, which is the file's; None without that flag.

    Raises:
        ValueError: Another flag of the task is missing, or the name has another meaning.
    """
    flags = {"--train": data.train, "--dev": data.dev, "--text": data.text, "--label": data.label}
    missing = [flag for flag, value in flags.items() if value is None]
    if len(missing) == len(flags) and data.pair is None:
        return None
    if missing:
        raise ValueError(f"{', '.join(flags)} must be set together; missing: {', '.join(missing)}")
    name = Path(str(data.train)).stem.encode(errors="replace").decode()  # perhaps not in UTF-8
    formula = name.startswith(tuple("=+-@\t\r"))  # for spreadsheets
    if formula or name.lower().replace("-", "") in {*TASKS, "glue", "superglue"} or ":" in name:
        raise ValueError(f"--train must not have a task's name, a colon, or =+-@ first: {name}")
    return name


# Smallest values of flags.
LEAST = (
    (1, "epochs patience batch_size max_steps width num_layers texts"),
    (1, "train_size test_size noise_draws num_draws num_steps num_random workers"),
    (2, "networks"),
    (3, "num_texts num_long"),
    (10, "num_pairs"),
    (20, "num_tokens"),
    (1000, "num_samples"),
)
# Allowed values of flags: in words that follow "must be", as a predicate, and the flags.
RANGES: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    *((f">= {least}", partial(le, least), flags) for least, flags in LEAST),
    ("in [0, 2**32)", lambda value: 0 <= value < 2**32, "seeds"),
    ("> 0 and finite", lambda value: 0 < value < inf,
     "learning_rate learning_rates beta adversarial_radius radii levels"),
    (">= 0 and finite", lambda value: 0 <= value < inf, "tol esr_weight esr_target"),
    (">= 6, more than the special tokens", lambda value: value >= 6, "vocab_size"),
    ("finite", isfinite, "snr_db"),
    ("a share of the words in (0, 1]", lambda value: 0 < value <= 1, "rates"),
    ("in [0, 1)", lambda value: 0 <= value < 1, "dropout"),
    # Minimum: a pair of one-token texts with three special tokens.
    ("in [5, 8192]", lambda value: 5 <= value <= 8192, "max_length"),
)  # fmt: skip


def check(config: Any) -> None:
    """Checks every flag of a dataclass and its groups.

    Raises:
        ValueError: A number is out of its range, or a list of values is empty or repeats one.
    """
    for each in dataclasses.fields(config):
        value, flag = getattr(config, each.name), f"--{each.name.replace('_', '-')}"
        if dataclasses.is_dataclass(value):
            check(value)
            continue
        values = value if isinstance(value, tuple) else (value,)
        if not values or len(set(values)) < len(values):
            raise ValueError(f"{flag} requires one or more distinct values, got {value}")
        for words, holds, flags in RANGES:
            for one in values if each.name in flags.split() else ():
                if one is not None and not holds(one):
                    raise ValueError(f"{flag} must be {words}, got {one}")
