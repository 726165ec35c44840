"""Of what degree is a trained text encoder's response to noise, on the texts it is tested on?

Paper: Haris, Zhang and Yoshida (2026), section 4 and Eq. 7, on the encoders of Podasca and Das
(2026). Claim: what trained transformers compute is noise stable, its weight lies at low degrees.

Command: `python -m experiments encoder-stability --task cola --data-dir DIR`: four minutes on two
cores for two models and three seeds. With all data and training settings of a `robustness` or
`fine-tuning` run, its trained models are reused. The initial parameters of the same seeds are the
baseline.

Expected: a mostly linear response of TinyBERT and Robertha, trained or not. That of a fine-tuned
MiniLM is less linear. Training with noise raises its correlation at ρ = 0.5, and noise then costs
about two points less (significant in one of two runs).

A text x with embeddings e(x) makes the function f_x(z) = class probabilities of e(x) + σz, with z
standard normal and σ per text so that all have the same signal-to-noise ratio; padding gets no
noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from experiments import conditions, models, report, runner, tidy
from experiments.cells import Cell
from experiments.conditions import Gaussian
from experiments.report import Page
from experiments.runner import Trial
from experiments.settings import Flags, budget_of, by_budget, resolved
from hopfax import hopfield
from hopfax.data import Encoded, TaskData, bucket_boundaries, to_buckets
from hopfax.nn import Encoder, Functional, Params
from hopfax.stability import LevelWeights, gaussian_pair, level_weights
from hopfax.train.state import seed_keys

REPRODUCES = "Noise stability, section 4, of the encoders that `robustness` trained"

RHOS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
DEGREE = 4  # Hermite levels reported separately
TRAINING = 0.5  # share of a model's time, about; the rest is measuring
ROWS = 16  # at a time; Hopfield attention waits for their slowest query
BOTH = {"model": ("tinybert", "robertha")}
MODELS = {"smoke": {"model": ("tinybert",)}, "laptop": BOTH, "paper": BOTH}
ARMS = ("fresh", "trained")
# Column of the table -> metric, level, factor.
COLUMNS = {
    "linear share, %": ("level share", 1.0, 100),
    "quadratic share, %": ("level share", 2.0, 100),
    "100 × correlation at ρ = 0.5": ("correlation", 0.5, 100),
    "points lost": ("points lost", 0.0, 1),
}


class Budget(NamedTuple):
    """What a size of run means: texts and draws of each, and padded lengths to compile."""

    texts: int
    draws: int
    level_texts: int
    level_draws: int
    lengths: int


BUDGETS = {
    "smoke": Budget(16, 2, 1, 128, 1),
    "laptop": Budget(128, 16, 8, 128, 3),
    "paper": Budget(1000, 64, 64, 512, 4),
}


@dataclass(frozen=True, kw_only=True)
class Config(Flags):
    """Which encoders to measure, and how closely."""

    model: Annotated[tuple[str, ...] | None, by_budget("model", "NAME ...", MODELS)] = None
    """Models, see `robustness`."""
    texts: Annotated[int | None, by_budget("texts", "INT", BUDGETS)] = None
    """Rows drawn from the test split, at least 2."""
    draws: Annotated[int | None, by_budget("draws", "INT", BUDGETS)] = None
    """Noise draws a text, at least 2."""
    level_texts: Annotated[int | None, by_budget("level_texts", "INT", BUDGETS)] = None
    """Texts that level weights are measured on; a draw takes 25 evaluations."""
    snr_db: float = 0.0
    """Expected signal-to-noise ratio on the embeddings, in dB."""
    seed: int = 0
    """Seed of the choice of texts and of all noise."""


def run(config: Config) -> Path:
    """Trains what is missing, measures every model and seed, trained and fresh, writes the page."""
    budget = budget_of(config, BUDGETS)
    if min(budget.texts, budget.draws) < 2 or budget.level_texts < 1:
        raise ValueError("--texts and --draws must be at least 2, and --level-texts at least 1")
    config = resolved(config, MODELS)
    variants = config.encoder.models(config.model or ())
    if loud := [name for name, variant in variants.items() if variant.loud]:
        raise ValueError(f"--model must not include {loud[0]}, whose inputs are rescaled")
    noise = Gaussian(site="embedding", protocol="matched", level=10 ** (-config.snr_db / 20))
    trials = [
        Trial(task, model, variant, (Gaussian(), noise))
        for task in config.data.task
        for model, variant in variants.items()
    ]
    data = {name: runner.load(config, name) for name in config.data.task}
    if wrong := [name for name, rows in data.items() if rows.spec.regression]:
        raise ValueError(f"task {wrong[0]} has scores, not classes with probabilities")
    jobs = runner.jobs(config, trials, partial(results, budget), data)
    return runner.fill("encoder-stability", config, jobs, page)


def results(
    budget: Budget, config: Config, trial: Trial, data: TaskData, on_progress: Callable[..., None]
) -> dict[str, pd.DataFrame]:
    """Trains and measures the model of a trial, see `runner.Job`."""
    training = lambda share, **shown: on_progress(TRAINING * share, **shown)  # noqa: E731
    cell = runner.open_cell(config, trial, data, on_progress=training)
    table = losses(cell, trial)
    for share, measured in measure(cell, budget, config):
        table += measured
        on_progress(TRAINING + (1 - TRAINING) * share)
    return {"results": pd.DataFrame(table).assign(task=trial.task, model=trial.model)}


def losses(cell: Cell, trial: Trial) -> list[dict[str, Any]]:
    """Rows of the points that each seed loses from the trial's first condition to the second."""
    clean, noisy = (
        [row for row in conditions.rows(cell, each, model=trial.model) if row["metric"] == "score"]
        for each in trial.conditions
    )
    kept = ("seed", "site", "corruption", "num_examples", "snr_db")
    return [
        {"metric": "points lost", "arm": "trained", "score": before["score"] - after["score"]}
        | {name: after[name] for name in kept}
        for before, after in zip(clean, noisy, strict=True)
    ]


def measure(
    cell: Cell, budget: Budget, config: Config
) -> Iterator[tuple[float, list[dict[str, Any]]]]:
    """Rows of each seed and arm, with the share of the work done; all share texts and noise."""
    data, network = cell.data, network_of(cell.model)
    order = np.random.default_rng(config.seed).permutation(len(data.test.labels))[: budget.texts]
    chosen = Encoded(*(field[order] for field in data.test))
    few = Encoded(*(field[: budget.level_texts] for field in chosen))
    parts, (level_texts,) = (
        padded(chosen, data.vocabulary.pad_id, budget.lengths),
        padded(few, data.vocabulary.pad_id, 1),
    )
    places = pd.Index(np.concatenate([part.index for part in parts])).get_indexer(
        pd.Index(chosen.index)
    )
    key, _, level_key = jax.random.split(jax.random.key(config.seed), 3)
    meter = level_meter(
        network, level_texts, level_key, snr_db=config.snr_db, num_samples=budget.level_draws
    )

    @jax.jit
    def respond(params: Any, texts: Texts) -> Any:
        one = partial(response, network, params, key=key, snr_db=config.snr_db)
        return jax.lax.map(partial(one, draws=budget.draws), texts, batch_size=ROWS)

    seeds = cell.spec.seeds
    fresh = jax.jit(jax.vmap(cell.model.init))(seed_keys(seeds))
    pairs = list(product(enumerate(seeds), zip(ARMS, (fresh, cell.params), strict=True)))
    for done, ((number, seed), (arm, stacked)) in enumerate(pairs, 1):
        params = jax.tree.map(lambda x, at=number: x[at], stacked)
        responses = [respond(params, texts) for texts in parts]
        measured = jax.tree.map(lambda *each: np.concatenate(each)[places], *responses)
        weights = meter(params, jnp.asarray(measured.mean[: budget.level_texts]))
        rows = [
            *correlation_rows(measured),
            *level_rows(weights, len(level_texts.index), config.snr_db),
        ]
        shared = {"site": "embedding", "seed": seed, "arm": arm}
        yield done / len(pairs), [shared | row for row in rows]


def padded(chosen: Encoded, pad_id: int, lengths: int) -> list[Texts]:
    """The rows in groups of a few padded lengths."""
    edges = bucket_boundaries(chosen.lengths, max_buckets=lengths, max_length=chosen.ids.shape[-1])
    groups = []
    for bucket in to_buckets(chosen, boundaries=edges, pad_id=pad_id):
        mask = np.arange(bucket.ids.shape[-1]) < bucket.lengths[..., None]
        groups.append(Texts(*map(jnp.asarray, (bucket.ids, mask, bucket.index))))
    return groups


class Network(NamedTuple):
    """A classifier in two stages, as functions of its parameters."""

    embed: Callable[[Any, Array], Float[Array, "rows choices tokens width"]]  # of ids
    respond: Callable[[Any, Array, Array], Float[Array, "rows classes"]]  # of embeddings and mask


class Texts(NamedTuple):
    """Rows of one padded length, or one; `index` is their number, which keys their noise."""

    ids: Int[Array, "*rows choices tokens"]
    mask: Bool[Array, "*rows choices tokens"]
    index: Int[Array, "*rows"]


class Response(NamedTuple):
    """What noise Z on a text's embeddings does to its class probabilities p, which become f(Z)."""

    changes: Float[Array, "draws rhos"]  # <f(Z) - p, f(Z') - p> at each of `RHOS`
    mean: Float[Array, " classes"]  # E f
    power: Float[Array, "2"]  # squared norms: of the embeddings, and of noise on average


def network_of(model: Functional[Encoder]) -> Network:
    """An encoder in two stages; an example's choices are alternatives, as classes are."""

    def embed(params: Params, ids: Array) -> Array:
        rows = ids.reshape(-1, ids.shape[-1])
        tokens = model.apply(params, rows, method="embed_tokens")
        types = model.apply(params, rows, method="token_types")
        embeddings = model.apply(params, tokens, types, method="embed")
        return embeddings.reshape(*ids.shape, -1)

    def respond(params: Params, embeddings: Array, mask: Array) -> Array:
        encoder = partial(model.apply, params)
        rows, _, tokens, width = embeddings.shape
        real = mask.reshape(-1, tokens)
        hidden = encoder(embeddings.reshape(-1, tokens, width), real, method="encode").hidden
        return jax.nn.softmax(encoder(hidden, real, method="classify").reshape(rows, -1))

    return Network(embed, respond)


def response(
    network: Network, params: Any, text: Texts, key: PRNGKeyArray, *, snr_db: float, draws: int
) -> Response:
    """Compares noise Z on a text's embeddings with its partner Z' at each of `RHOS`."""
    (embeddings,) = network.embed(params, text.ids[None])
    (clean,) = network.respond(params, embeddings[None], text.mask[None])
    scale = noise_scale(embeddings, text.mask, snr_db)
    masks = jnp.broadcast_to(text.mask, (len(RHOS), *text.mask.shape))

    def of_draw(draw: Array) -> tuple[Array, ...]:
        own = jax.random.fold_in(jax.random.fold_in(key, text.index), draw)
        pair = partial(gaussian_pair, own, embeddings.shape)
        first, others = jax.vmap(lambda rho: pair(rho=rho), out_axes=(None, 0))(
            jnp.array(RHOS[:-1])
        )
        noise = scale * jnp.concatenate([others, first[None]])
        noisy = network.respond(params, embeddings + noise, masks)
        changes = noisy - clean  # what is constant drowns what varies
        products = jnp.sum(changes * changes[-1], axis=-1)
        return products, jnp.mean(noisy, axis=0), jnp.sum(jnp.square(noise)) / len(noise)

    products, means, powers = jax.lax.map(of_draw, jnp.arange(draws))
    signal = jnp.sum(jnp.square(embeddings), where=text.mask[..., None])
    return Response(products, jnp.mean(means, axis=0), jnp.stack([signal, jnp.mean(powers)]))


def level_meter(
    network: Network, texts: Texts, key: PRNGKeyArray, *, snr_db: float, num_samples: int
) -> Callable[[Any, Array], LevelWeights]:
    """Makes `(params, center) -> level weights of f - center`, averaged over the texts.

    The weights of one function, all texts' outputs side by side over the root of their number, are
    the mean of theirs. Close to E f, the center takes away most of the products' variance.
    """

    @jax.jit
    def measure(params: Any, center: Array) -> LevelWeights:
        embeddings = network.embed(params, texts.ids)
        scale = jax.vmap(partial(noise_scale, snr_db=snr_db))(embeddings, texts.mask)

        def change(z: Array) -> Array:
            probabilities = network.respond(params, embeddings + scale * z, texts.mask)
            return (probabilities - center) / len(probabilities) ** 0.5

        sizes: Any = {"num_samples": num_samples, "degree": DEGREE, "batch_size": 1}
        return level_weights(change, key, shape=embeddings.shape, **sizes)

    return measure


def noise_scale(embeddings: Array, mask: Array, snr_db: float) -> Array:
    """Deviation of the noise on each token of a text, `(choices, tokens, 1)`, 0 at padding."""
    sigma = jax.vmap(partial(hopfield.matched_sigma, snr_db=snr_db))(embeddings, mask=mask)
    return jnp.where(mask, sigma[:, None], 0)[..., None]


def correlation_rows(measured: Response) -> list[dict[str, Any]]:
    """Correlation of the outputs at each of `RHOS`: their covariance over the variance."""
    # Differences from rho = 0, in which constant parts cancel.
    centered = measured.changes - measured.changes[..., :1]
    columns = RHOS, *ratio(centered, centered[..., -1:])
    signal, noise = np.sum(measured.power, axis=0)
    shared = {"metric": "correlation", "corruption": "gaussian", "num_examples": len(centered)}
    shared |= {"snr_db": float(10 * np.log10(signal / noise))}
    names = ("level", "score", "standard_error", "noise_error")
    return [shared | dict(zip(names, point, strict=True)) for point in zip(*columns, strict=True)]


def level_rows(measured: LevelWeights, num_texts: int, snr_db: float) -> list[dict[str, Any]]:
    """Shares of the variance at the levels 1, 2, ..., and above those, with 95 % intervals."""
    shared = {"metric": "level share", "corruption": "gaussian", "num_examples": num_texts}
    shared["snr_db"] = snr_db
    return [
        shared | {"level": float(level), "score": share, "low": low, "high": high}
        for level, (share, low, high) in enumerate(np.asarray(measured.shares).T.tolist(), 1)
    ]


def ratio(numerator: Any, denominator: Any) -> tuple[np.ndarray, ...]:
    """Ratio of means over texts and draws, its standard error, and that for the given texts.

    By the delta method. The first error takes texts and noise for random, the second noise alone.
    The numerator is `(texts, draws, rhos)`, the denominator `(texts, draws, 1)` of the same draws.
    """
    top, bottom = np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)
    texts, draws = top.shape[:2]
    value = top.mean((0, 1)) / bottom.mean()
    residual = (top - value * bottom) / bottom.mean()
    error = residual.mean(1).std(0, ddof=1) / texts**0.5
    noise_error = np.sqrt(residual.var(1, ddof=1).mean(0) / (texts * draws))
    return value, error, noise_error


def page(folder: Path) -> Page:
    """The page of a run."""
    frame = tidy.read(folder)
    titles = {name: models.title(name) for name in frame.model.unique()}
    means = intervals(frame, ["task", "model", "arm", "metric", "level"])
    ends, parts = ["mean", "low", "high"], []
    for head, (metric, level, factor) in COLUMNS.items():
        rows = tidy.select(means, metric=metric, level=level).assign(head=head)
        rows[ends] *= factor
        parts.append(rows)
    shown = pd.concat(parts)
    shown["line"] = shown.task + ", " + shown.model.map(titles) + ", " + shown.arm
    caption = "Means over seeds, 95 % intervals"
    table = report.grid(shown, "line", "head", caption, cell=report.bracketed)
    drawn = tidy.select(means, metric="correlation")
    drawn = drawn.assign(row=drawn.task + ", " + drawn.arm)
    for end in ("low", "high"):  # seeds agree exactly at the ends
        drawn[end] = drawn[end].fillna(drawn["mean"])
    linear = drawn.drop_duplicates(["row", "level"])
    linear = linear.assign(model="linear", **dict.fromkeys(ends, linear.level))
    picture = report.facets(
        "Correlation of the outputs", pd.concat([drawn, linear]), x="level", row="row",
        titles={**titles, "linear": "linear function"}, xlabel="correlation ρ of the noise",
        ylabel="", least_range=0.0,
    )  # fmt: skip
    pictures = {"encoder_stability": picture}
    return Page("Noise stability of trained encoders", pictures=pictures, tables=[table])


def intervals(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Returns `tidy.summarize` with intervals that include the error that seeds share."""
    means = tidy.summarize(frame[[*keys, "seed", "score"]])
    errors = frame.standard_error.fillna((frame.high - frame.low) / 2 / 1.96).fillna(0)
    errors = frame[keys].assign(error=errors).groupby(keys).mean().reset_index()
    means = means.merge(errors, on=keys)
    return tidy.widened(means, means.error)
