"""Prints the probability of each label of texts, from a model that a run has trained.

Command: `python -m experiments predict --run runs/robustness/ID "a wonderful film" "a dull one"`.
Nothing is trained. The run's data must still be where its command found them.

With `--save FOLDER`, the model of each seed is saved to `FOLDER/SEED`, for `hopfax.Classifier.load`
and the `hopfax` command. A fine-tuned BERT or RoBERTa can be fine-tuned further: pass its folder as
`--pretrained`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from experiments.settings import optional

if TYPE_CHECKING:
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
    memory: bool = False
    """Retrieve token embeddings from the vocabulary, see `hopfax.Classifier.with_memory`."""
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
    print("Probabilities: mean over seeds [lowest, highest]")
    for number, text in enumerate(texts):
        print(" | ".join(text) if config.pair else text)
        for place in np.argsort(-each[:, number].mean(0)):
            values = each[:, number, place]
            print(f"  {values.mean():.3f} [{values.min():.3f}, {values.max():.3f}] "
                  f"{models[0].labels[place]}")  # fmt: skip


def load(config: Config) -> dict[int, Classifier]:
    """Returns the classifier of each seed; see `run` for errors."""
    import jax

    from experiments import cells, runner
    from hopfax import Classifier

    cell, flags = runner.open_trained(config.run, model=config.model, task=config.task)
    data = cell.data
    if data.spec.num_outputs < 2:
        raise ValueError(f"--task must have classes, got {data.spec.name}")
    is_pair = len(data.spec.columns) > 1 or bool(flags.data.pair)
    if config.texts and is_pair != bool(config.pair):
        kind = "pairs: set --pair" if is_pair else "single texts: leave out --pair"
        raise ValueError(f"{data.spec.name} is on {kind}")

    def of_seed(number: int) -> Classifier:
        params = jax.tree.map(lambda leaf: leaf[number], cell.params)
        model = Classifier(cell.model, params, data.vocabulary, data.spec.labels)
        return model.with_memory(log_prior=cells.log_prior(data)) if config.memory else model

    return {seed: of_seed(number) for number, seed in enumerate(cell.spec.seeds)}
