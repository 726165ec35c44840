"""Prints the probability of each label of texts, from a model of `robustness` or `fine-tuning`.

Command: `python -m experiments predict --run runs/robustness/ID "a wonderful film" "a dull one"`.
Nothing is trained. The run's data must still be where its command found them.

With `--save FOLDER`, the model of each seed is saved to `FOLDER/SEED`, for `hopfax.Classifier.load`
and the `hopfax` command. A fine-tuned BERT or RoBERTa can be fine-tuned further: pass its folder as
`--pretrained`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from experiments.settings import optional

if TYPE_CHECKING:
    from experiments.cells import Cell
    from hopfax import Classifier


@dataclass(frozen=True, kw_only=True)
class Config:
    """Run, model and texts."""

    run: Annotated[str, tyro.conf.arg(metavar="FOLDER")]
    """Folder of a run, such as runs/robustness/ID."""
    texts: Annotated[tuple[str, ...], tyro.conf.Positional, optional("TEXT ...", "none")]
    """Texts to label; optional with --save."""
    pair: Annotated[tuple[str, ...], optional("TEXT ...", "none")] = ()
    """Second texts, if the task is on pairs; as many as texts."""
    model: Annotated[str | None, optional("NAME", "the run's only model")] = None
    """Model of the run."""
    task: Annotated[str | None, optional("NAME", "the run's only task")] = None
    """Task of the run."""
    save: Annotated[str | None, optional("FOLDER", "not saved")] = None
    """Folder to create, with a folder for each seed."""


def run(config: Config) -> None:
    """Prints the probability of every label, the mean over seeds with the range in brackets.

    Raises:
        ValueError, FileNotFoundError: The run has no such model, or it takes other texts.
        FileExistsError: The folder to save to exists.
    """
    import numpy as np

    texts: list[Any] = list(config.texts)
    if not (texts or config.save):
        raise ValueError("pass one or more texts, or --save FOLDER")
    if config.pair:
        if len(config.pair) != len(texts):
            raise ValueError(f"--pair must have {len(texts)} texts, got {len(config.pair)}")
        texts = list(zip(texts, config.pair, strict=True))
    folder = Path(config.save) if config.save else None
    if folder and folder.exists():
        raise FileExistsError(f"{folder} exists")
    trained = load(config)
    if folder:
        for seed, model in trained.items():
            model.save(folder / str(seed))
            print(f"Saved {folder / str(seed)}")
        if not texts:
            return
    models = list(trained.values())
    each = np.stack([model.predict(texts).probabilities for model in models])
    print("Probability of each label: mean over seeds [lowest, highest]")
    for number, text in enumerate(texts):
        print(" | ".join(text) if config.pair else text)
        for place in np.argsort(-each[:, number].mean(0)):
            values = each[:, number, place]
            print(f"  {values.mean():.3f} [{values.min():.3f}, {values.max():.3f}] "
                  f"{models[0].labels[place]}")  # fmt: skip


def load(config: Config) -> dict[int, Classifier]:
    """Returns the classifier of each seed; see `run` for errors."""
    import jax

    from hopfax import Classifier

    trained = opened(config)
    data = trained.data

    def of_seed(number: int) -> Classifier:
        params = jax.tree.map(lambda leaf: leaf[number], trained.params)
        return Classifier(trained.model, params, data.vocabulary, data.spec.labels)

    return {seed: of_seed(number) for number, seed in enumerate(trained.spec.seeds)}


def opened(config: Config) -> Cell:
    """Returns the trained model of a run; see `run` for errors."""
    from experiments import runs
    from experiments.robertha import fine_tuning, robustness
    from experiments.rundir import read_config

    folder = Path(config.run).resolve()
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"--run must be the folder of a run, got {config.run}")
    document = read_config(folder, "experiment", "config")
    modules = {"robustness": robustness, "fine-tuning": fine_tuning}
    if document["experiment"] not in modules:
        raise ValueError(f"--run must be of {' or '.join(modules)}, got {document['experiment']}")
    flags = stored(modules[document["experiment"]].Config(), document["config"])
    flags = dataclasses.replace(flags, runs=str(folder.parents[1]))
    model = chosen("--model", config.model, flags.model)
    task = chosen("--task", config.task, flags.data.task)
    data = runs.load(flags, task)
    if data.spec.num_outputs < 2:
        raise ValueError(f"--task must have classes, got {task}")
    is_pair = len(data.spec.columns) > 1 or bool(flags.data.pair)
    if config.texts and is_pair != bool(config.pair):
        kind = "pairs: set --pair" if is_pair else "single texts: leave out --pair"
        raise ValueError(f"{task} is on {kind}")
    job = runs.Job(task, model, flags.encoder.models([model])[model], ())
    if job.variant.denoiser not in ("none", "memory"):
        raise ValueError(f"--model must have memory or no denoiser, got {model}")
    if not (cell := folder.parents[1] / "cells" / runs.spec_of(flags, job, data).id).is_dir():
        raise FileNotFoundError(f"{model} is not trained on {task}: there is no {cell}")
    return runs.open_cell(flags, job, data)


def stored(default: Any, values: dict[str, Any]) -> Any:
    """Returns the dataclass of a run's config.json; missing fields take defaults."""
    changes = {}
    for name in {each.name for each in dataclasses.fields(default)} & values.keys():
        value, field = values[name], getattr(default, name)
        if dataclasses.is_dataclass(field):
            value = stored(field, value)
        changes[name] = tuple(value) if isinstance(value, list) else value
    return dataclasses.replace(default, **changes)


def chosen(flag: str, name: str | None, names: Sequence[str]) -> str:
    """Returns the name, or the only one of the run."""
    if name is None and len(names) > 1:
        raise ValueError(f"{flag} is required: the run has {', '.join(names)}")
    name = name or names[0]
    if name not in names:
        raise ValueError(f"{flag} must be {' or '.join(names)}, got {name}")
    return name
