"""Of what degree is a trained text encoder's response to noise, on the texts it is tested on?

Paper: Haris, Zhang and Yoshida (2026), section 4 and Eq. 7, on the encoders of Podasca and Das
(2026). Claim: what trained transformers compute is noise stable, its weight lies at low degrees.

Command: `python -m experiments encoder-stability --run runs/robustness/ID --data-dir DIR
--task cola` reads the finished cells of a `robustness` run, and compares their parameters with
those that the same seeds started from (four minutes on two cores for two models and three seeds);
`--budget smoke` (seconds, one model and seed) or `--budget paper` (hours).

Expected: a response to noise that is mostly linear, trained or not; how much of it is of higher
degree, and whether Robertha's is of lower degree than TinyBERT's, is what is asked.

A text x with embeddings e(x) makes the function f_x(z) = class probabilities of e(x) + σz, with z
standard normal and σ per text so that all have the same signal-to-noise ratio. Both halves of a
pair have the same text, and padding gets no noise. Token noise keeps a token with probability
(1 + ρ)/2 and else draws it from the whole vocabulary; [CLS], [SEP] and padding stay. Texts are
padded to few common lengths, which only a model that does not mask padding (`released`) can tell.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.noise_stability.encoder_page import Measured, Net, write_page
from experiments.noise_stability.encoder_response import (
    Network,
    Texts,
    gaussian_response,
    level_meter,
    level_rows,
    network_of,
    response_rows,
    token_response,
    token_rows,
)
from experiments.robertha.measurements import load
from experiments.robertha.trained import Run, read_data, read_run, restore
from experiments.rundir import open_run
from hopfax.data import Encoded, TaskData, bucket_boundaries, bucketed, eval_batches, task
from hopfax.nn import Params
from hopfax.train.progress import Progress

REPRODUCES = "Noise stability, section 4 and Eq. 7, of the encoders that `robustness` trained"

# Texts a call, of which Hopfield attention waits for the slowest query.
ROWS = 16


class Budget(NamedTuple):
    """What a size of run means: texts and draws of each, seeds, and padded lengths to compile."""

    texts: int
    draws: int
    level_texts: int
    level_draws: int
    seeds: int
    lengths: int


BUDGETS = {
    "smoke": Budget(16, 2, 1, 128, 1, 1),
    "laptop": Budget(128, 16, 8, 128, 3, 3),
    "paper": Budget(1000, 64, 64, 512, 5, 4),
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Whose encoders to measure, and how closely."""

    run: str
    """Folder of a finished `robustness` run, runs/robustness/ID."""
    task: str | None = None
    """One of its tasks; to be left out where it has but one."""
    model: tuple[str, ...] | None = None
    """Some of its models; without it all, or the first one with --budget smoke."""
    data_dir: str | None = None
    """Folder of the raw sets; without it the one that the run was given."""
    budget: Literal["smoke", "laptop", "paper"] = "laptop"
    """One seed in seconds, three in minutes, five in hours. The flags below override it."""
    texts: int | None = None
    """Rows drawn from the test split, at least 2; all where it has fewer."""
    draws: int | None = None
    """Noise draws a text, at least 2."""
    level_texts: int | None = None
    """How many of these texts the level weights are of; a draw there takes 25 evaluations."""
    snr_db: float = 0.0
    """Expected signal-to-noise ratio on the embeddings, in dB."""
    seed: int = 0
    """Seed of the choice of texts and of all noise."""
    runs: str = "runs"
    """Folder of all runs."""


def run(config: Config) -> Path:
    """Measures every model and seed, trained and fresh, and writes the page.

    Raises:
        ValueError, FileNotFoundError: A flag is wrong, or the run has no cells that fit.
    """
    flags = {name: getattr(config, name) for name in ("texts", "draws", "level_texts")}
    budget = BUDGETS[config.budget]._replace(**{k: v for k, v in flags.items() if v is not None})
    if min(budget.texts, budget.draws) < 2 or budget.level_texts < 1:
        raise ValueError("--texts and --draws must be at least 2, and --level-texts at least 1")
    source = select(config)
    grid, data = source.grid, read_data(source, task(source.grid.tasks[0]))
    cells = [(name, restore(source, data, name)) for name in grid.models]
    seeds = grid.seeds[: budget.seeds]
    plan = {"task": data.spec.name, "models": grid.models, "seeds": seeds, **budget._asdict()}
    folder = open_run("encoder-stability", config, plan=plan, root=config.runs, ignore=("runs",))
    print(f"writing to {folder}", flush=True)
    rows: list[Measured] = []
    with Progress(2 * len(cells) * len(seeds), title=f"{data.spec.title} stability") as progress:
        for name, (model, fresh, best) in cells:
            network, arms = network_of(model), {"fresh": fresh, "trained": best}
            for found in measure(network, name, arms, data, budget, config, seeds):
                rows += found
                done = len({row.net for row in rows})
                progress.update(done, budget.texts, model=name, arm=found[0].net.arm)
    write_page(folder, data.spec.name, data.spec.title, clean_rows(source, seeds) + rows)
    return folder


def select(config: Config) -> Run:
    """The run, with the one task and the models that are asked for.

    Raises:
        FileNotFoundError: There is no run in that folder.
        ValueError: It has not what is asked for, or the task has no classes.
    """
    run = read_run(
        config.run,
        data_dir=config.data_dir,
        tasks=(config.task,) if config.task else None,
        models=config.model,
    )
    grid = run.grid
    if len(grid.tasks) != 1:
        raise ValueError(f"choose one of the run's tasks: --task {' or '.join(grid.tasks)}")
    if task(grid.tasks[0]).regression:
        raise ValueError(
            f"{grid.tasks[0]} has scores, not classes with probabilities: take another"
        )
    if config.budget == "smoke" and config.model is None:
        run = run._replace(grid=grid._replace(models=grid.models[:1]))
    return run


def clean_rows(source: Run, seeds: Sequence[int]) -> list[Measured]:
    """The run's own scores without noise, 0 to 100: the stability of a guess means little."""
    found = load(source.folder)
    return [
        Measured(Net(model, "trained", seed), "none", "score", None, by_seed[seed])
        for model in source.grid.models
        for by_seed in [found.at(source.grid.tasks[0], model, "", "", 0.0)]
        for seed in seeds
    ]


def choose(rows: Encoded, count: int, seed: int) -> Encoded:
    """So many rows at random, in random order; all where there are fewer."""
    order = np.random.default_rng(seed).permutation(len(rows.labels))[:count]
    return Encoded(*(field[order] for field in rows))


def padded(chosen: Encoded, pad_id: int, *, lengths: int, rows: int) -> list[tuple[Texts, int]]:
    """Calls of `rows` texts, of a few padded lengths, and how many texts of each call count."""
    edges = bucket_boundaries(chosen.lengths, max_buckets=lengths, max_length=chosen.ids.shape[-1])
    calls = []
    for bucket in bucketed(chosen, boundaries=edges, pad_id=pad_id):
        for part, counts in eval_batches(bucket, batch_size=rows):
            mask = np.arange(part.ids.shape[-1]) < part.lengths[..., None]
            texts = Texts(*map(jnp.asarray, (part.ids, mask, part.index)))
            calls.append((texts, int(counts.sum())))
    return calls


def measure(
    network: Network,
    name: str,
    arms: dict[str, Params],
    data: TaskData,
    budget: Budget,
    config: Config,
    seeds: Sequence[int],
) -> Iterator[list[Measured]]:
    """Everything about one seed after the other, fresh and trained; all share texts and noise."""
    chosen = choose(data.test, budget.texts, config.seed)
    few = Encoded(*(field[: budget.level_texts] for field in chosen))
    calls = padded(chosen, data.pad_id, lengths=budget.lengths, rows=ROWS)
    ((level_texts, _),) = padded(few, data.pad_id, lengths=1, rows=len(few.labels))
    index = np.concatenate([texts.index[:count] for texts, count in calls]).tolist()
    picks = np.array([index.index(row) for row in level_texts.index])
    keys = jax.random.split(jax.random.key(config.seed), 3)
    special = tuple(map(data.vocabulary.tokens.index, ("[CLS]", "[SEP]")))
    meter = level_meter(
        network, level_texts, keys[2], snr_db=config.snr_db, num_samples=budget.level_draws
    )
    for number, seed in enumerate(seeds):
        for arm, stacked in arms.items():
            net, params = Net(name, arm, seed), jax.tree.map(lambda x, at=number: x[at], stacked)
            parts = []
            for texts, count in calls:
                tokens = token_response(
                    network,
                    params,
                    texts,
                    keys[1],
                    num_tokens=data.vocab_size,
                    special=special,
                    draws=budget.draws,
                )
                response = gaussian_response(
                    network,
                    params,
                    texts,
                    keys[0],
                    clean=tokens.clean,
                    snr_db=config.snr_db,
                    draws=budget.draws,
                )
                # Rows beyond the count only fill the call.
                parts.append(jax.tree.map(lambda x, n=count: np.asarray(x)[:n], (tokens, response)))
            tokens, response = jax.tree.map(lambda *each: np.concatenate(each), *parts)
            weights = meter(params, jnp.asarray(response.mean[picks]))
            yield [
                *response_rows(net, response),
                *level_rows(net, weights, len(picks), config.snr_db),
                *token_rows(net, tokens),
            ]
