"""What does retrieval from the vocabulary guarantee, against an adversary and against noise?

Claims: a perturbation of each token's vector below half the distance to the nearest other vector is
undone exactly by the nearest vector (`hopfax.hopfield.certified_radius`), and under Gaussian noise
a text is read without error at least as often as the union bound says (`recovery_bound`).

Command: `python -m experiments memory-certificates --pretrained FOLDER --data-dir DIR`; four
minutes on two cores for six layers of width 384.

Expected: no attack changes the output inside the certified radius.

Attacks move the token vectors of a pair's first text, each by at most the radius, to change the
cosine with the second text towards the wrong side: down for pairs more similar than the median, up
for the others. Projected gradient descent attacks the encoder as it is, memory, and the nearest
vector, which has no gradient, through softmax surrogates at several temperatures; substitution
moves tokens towards the neighbours that the gradient prefers. All systems get all attacks, and each
pair counts with the worst one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from experiments.memory.recovery import predicted
from experiments.memory.similarity import (
    RESAMPLES,
    TITLES,
    add_noise,
    decibels,
    denoiser,
    encoded,
    in_batches,
    prior,
    score,
)
from experiments.settings import BudgetName, budget_of, by_budget, optional

if TYPE_CHECKING:
    import jax
    import numpy as np
    import pandas as pd

    from experiments.report import Page
    from hopfax.nn import Pretrained

REPRODUCES = "Robertha's claim of robustness, with the vocabulary as memory; not in the paper"
TASKS = {"stsb": "STS-B", "mrpc": "MRPC", "sst2": "SST-2"}
SYSTEMS = ("none", "nearest", "memory")
MAX_TOKENS = 24  # of an attacked text, so that all have one compiled shape
NUM_NEIGHBOURS = 32  # that attacks know of each token, the token itself included
TEMPERATURES = (0.1, 0.2, 0.4)  # of the surrogates, in units of the RMS norm of a token
NUM_ROUNDS = 4  # of substitution
CLOSE = 2.0  # points below the clean score
COLUMNS = (
    "task", "model", "corruption", "level", "site", "protocol", "seed", "metric", "score",
    "num_examples", "snr_db", "low", "high",
)  # fmt: skip


class Budget(NamedTuple):
    """Size of a run: attacked texts, steps, radii in RMS norms, noise draws, ratios in dB."""

    num_texts: int
    num_steps: int
    num_draws: int
    radii: tuple[float, ...]
    snr_db: tuple[float, ...]


LEVELS = (6.0, 0.0, -4.0, -6.0, -8.0, -10.0, -12.0, -14.0, -20.0)
BUDGETS = {
    "smoke": Budget(10, 2, 1, (0.15,), (-8.0,)),
    "laptop": Budget(32, 6, 2, (0.05, 0.15, 0.25, 0.35, 0.5), LEVELS),
    "paper": Budget(500, 40, 10, (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6), LEVELS),
}
DEFAULTS = {size: budget._asdict() for size, budget in BUDGETS.items()}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Model, texts, attacks and noise."""

    pretrained: Annotated[str | None, optional("FOLDER", "required")] = None
    """Folder of a BERT or RoBERTa in the Hugging Face layout."""
    data_dir: Annotated[str | None, optional("FOLDER", "required")] = None
    """Folder of the raw sets."""
    budget: BudgetName = "laptop"
    """Size of the run: seconds, minutes or hours. The flags below override it."""
    num_texts: Annotated[int | None, by_budget("num_texts", "INT", DEFAULTS)] = None
    """Texts of STS-B that are attacked."""
    num_steps: Annotated[int | None, by_budget("num_steps", "INT", DEFAULTS)] = None
    """Steps of projected gradient descent."""
    num_draws: Annotated[int | None, by_budget("num_draws", "INT", DEFAULTS)] = None
    """Independent noise draws."""
    radii: Annotated[tuple[float, ...] | None, by_budget("radii", "FLOAT ...", DEFAULTS)] = None
    """Radii of the attacks, in units of the root mean square norm of the texts' token vectors."""
    snr_db: Annotated[tuple[float, ...] | None, by_budget("snr_db", "FLOAT ...", DEFAULTS)] = None
    """Signal-to-noise ratios in dB."""
    runs: str = "runs"
    """Folder of all runs."""


def run(config: Config) -> Path:
    """Measures everything and writes the page.

    Raises:
        ValueError: A flag is out of range.
        FileNotFoundError: A file is missing.
        ArithmeticError: An attack inside the certified radius changed a token.
    """
    import jax.numpy as jnp
    import numpy as np
    import pandas as pd

    from experiments import report
    from experiments.models import load, weights_digest
    from experiments.rundir import open_run, write_whole
    from hopfax.data import read_tokenizer, reported_rows, training_rows
    from hopfax.hopfield import certified_radius
    from hopfax.train.progress import Progress

    budget = budget_of(config, BUDGETS)
    if not config.pretrained or not config.data_dir:
        raise ValueError("set --pretrained and --data-dir, the folders of a model and of the sets")
    if budget.num_texts < 10 or min(budget.num_steps, budget.num_draws) < 1:
        raise ValueError(
            "--num-texts must be >= 10, --num-steps and --num-draws >= 1, got "
            f"{budget.num_texts}, {budget.num_steps} and {budget.num_draws}"
        )
    if min(budget.radii) <= 0:
        raise ValueError(f"--radii must be > 0, got {budget.radii}")
    model, vocabulary = load(config.pretrained), read_tokenizer(config.pretrained)
    table = np.asarray(model.table, np.float32)
    plan = {"weights": weights_digest(config.pretrained)}
    folder = open_run("memory-certificates", config, plan=plan)
    radius = np.asarray(certified_radius(jnp.asarray(table)))
    rows: list[dict[str, Any]] = []
    for task in TASKS:
        examples = reported_rows(task, data_dir=config.data_dir)
        ids = encoded([text for each in examples for text in each.texts[0]], vocabulary)
        rows += [{"task": task, **row} for row in certified(ids, table, radius)]
    examples = reported_rows("stsb", data_dir=config.data_dir)
    training = training_rows("stsb", data_dir=config.data_dir)
    log_prior = prior(
        encoded([text for row in training for text in row.texts[0]], vocabulary), len(table)
    )
    first, second = (
        encoded([row.texts[0][side] for row in examples], vocabulary) for side in (0, 1)
    )
    short = [n for n, (a, b) in enumerate(zip(first, second, strict=True))
             if max(len(a), len(b)) <= MAX_TOKENS]  # fmt: skip
    picks = [short[n] for n in np.linspace(0, len(short) - 1, budget.num_texts).astype(int)]
    labels = np.array([examples[n].label for n in picks])
    reader = reader_of(model, table, log_prior, radius)
    texts = batch_of(reader, [first[n] for n in picks], [second[n] for n in picks], labels)
    with Progress(len(budget.radii) + len(budget.snr_db)) as progress:
        for done, each in enumerate(budget.radii, 1):
            rows += attacked(reader, texts, labels, each, budget.num_steps)
            progress.update(done)
        for done, db in enumerate(budget.snr_db, len(budget.radii) + 1):
            rows += under_noise(reader, texts, db, budget.num_draws)
            progress.update(done)
    shared = {"site": "token", "seed": 0}
    frame = pd.DataFrame(rows).fillna({"task": "stsb"}).assign(**shared)
    frame = frame.reindex(columns=list(COLUMNS))
    write_whole(folder / "results.csv", frame.to_csv(index=False, lineterminator="\n"))
    report.write_report(folder, page(folder))
    return folder


def certified(
    ids: Sequence[np.ndarray], table: np.ndarray, radius: np.ndarray
) -> list[dict[str, Any]]:
    """Returns the share of texts that are certified, against the radius in RMS norms.

    A text is certified if the radius is below the certified radius of all its tokens.

    Args:
        ids: Token ids of each text.
        table: Vectors of the vocabulary.
        radius: Certified radius of each token.
    """
    import numpy as np

    scale = rms_norm(table[np.concatenate(ids)])
    least = np.array([radius[text].min() for text in ids]) / scale
    return [
        {"model": "nearest", "metric": "certified", "corruption": "perturbation", "level": level,
         "score": 100 * float(np.mean(level < least)), "num_examples": len(ids)}
        for level in np.round(np.arange(0.02, 0.601, 0.02), 2)
    ]  # fmt: skip


def rms_norm(vectors: np.ndarray) -> float:
    """Returns the root mean square norm of vectors."""
    import numpy as np

    return float(np.sqrt(np.mean(np.sum(np.square(vectors), axis=-1))))


class Surrogate(NamedTuple):
    r"""What an attack takes a system for: a differentiable function of a token's vector.

    $$x \mapsto k x + (1 - k) \sum_v p_v e_v, \qquad
    p = \mathrm{softmax}_v(-s \|x - e_v\|^2 - l \log \|x - e_v\|^2 + c \log \pi_v)$$

    over the token's neighbours.

    Attributes:
        keep: k, 1 for the encoder as it is, else 0.
        square: s, 1/(2 temperature^2) for the nearest vector.
        log: l, half of the width for memory.
        prior: c, 1 for memory.
    """

    keep: float = 0.0
    square: float = 0.0
    log: float = 0.0
    prior: float = 0.0


class Batch(NamedTuple):
    """Texts of one padded length, and what attacks need to know of them.

    Attributes:
        ids: Token ids, (texts, tokens).
        mask: True at real tokens.
        goal: Unit output of each pair's second text.
        sign: 1 where an attack raises the cosine of the pair, -1 where it lowers it.
        near: Ids of the neighbours of each token, itself first.
        scale: Root mean square norm of the real tokens' vectors.
    """

    ids: np.ndarray
    mask: np.ndarray
    goal: np.ndarray
    sign: np.ndarray
    near: np.ndarray
    scale: float


class Reader(NamedTuple):
    """An encoder with its vocabulary.

    Attributes:
        table: Vectors of the vocabulary.
        log_prior: Log-frequencies of the tokens.
        radius: Certified radius of each token.
        output: `output(vectors, mask)` returns the unit vector along the mean state of each text.
        slope: `slope(vectors, batch, surrogate)` returns the gradient of the attacker's gain.
        retrieve: `retrieve(x, sigma)` returns what the decoders make of noisy vectors.
    """

    table: np.ndarray
    log_prior: np.ndarray
    radius: np.ndarray
    output: Callable[..., Any]
    slope: Callable[..., Any]
    retrieve: Callable[..., Any]


def reader_of(
    model: Pretrained, table: np.ndarray, log_prior: np.ndarray, radius: np.ndarray
) -> Reader:
    """Returns compiled functions of an encoder and its vocabulary."""
    import jax
    import jax.numpy as jnp

    @jax.jit
    def output(params: Any, vectors: jax.Array, mask: jax.Array) -> jax.Array:
        states = model.forward(vectors, mask, params=params).output
        total = jnp.sum(jnp.where(mask[..., None], states, 0), axis=1)
        return total / jnp.linalg.norm(total, axis=1, keepdims=True)

    @jax.jit
    @jax.grad
    def slope(
        vectors: jax.Array, params: Any, batch: Any, near: jax.Array, bias: jax.Array,
        surrogate: Surrogate,
    ) -> jax.Array:  # fmt: skip
        apart = jnp.sum(jnp.square(vectors[..., None, :] - near), axis=-1)
        logits = -surrogate.square * apart - surrogate.log * jnp.log(apart + 1e-9)
        weights = jax.nn.softmax(logits + surrogate.prior * bias)
        soft = jnp.einsum("ntk,ntkd->ntd", weights, near)
        vectors = surrogate.keep * vectors + (1 - surrogate.keep) * soft
        cosines = jnp.sum(output(params, vectors, batch.mask) * batch.goal, axis=1)
        return jnp.sum(batch.sign * cosines)

    denoise = denoiser(table, log_prior)

    @jax.jit
    def retrieve(x: jax.Array, sigma: jax.Array) -> dict[str, jax.Array]:
        vectors, tokens = denoise(x, sigma)
        return {
            "memory": vectors["memory"],
            **{name: tokens[name] for name in ("nearest", "known")},
        }

    return Reader(
        table,
        log_prior,
        radius,
        functools.partial(output, model.params),
        lambda vectors, batch, surrogate: slope(
            vectors, model.params, batch, table[batch.near], log_prior[batch.near], surrogate
        ),
        retrieve,
    )


def batch_of(
    reader: Reader, first: Sequence[np.ndarray], second: Sequence[np.ndarray], labels: np.ndarray
) -> Batch:
    """Pads the first texts of pairs, encodes the second ones, and finds the tokens' neighbours."""
    import numpy as np

    def padded(texts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        ids = np.zeros((len(texts), MAX_TOKENS), np.int32)
        mask = np.arange(MAX_TOKENS) < np.array([[len(text)] for text in texts])
        ids[mask] = np.concatenate(texts)
        return ids, mask

    (ids, mask), (others, of_others) = padded(first), padded(second)
    goal = np.asarray(reader.output(reader.table[others], of_others))
    unique, home = np.unique(ids, return_inverse=True)
    squares = np.sum(np.square(reader.table), axis=1)
    distances = squares - 2 * reader.table[unique] @ reader.table.T
    distances[np.arange(len(unique)), unique] = -np.inf  # itself first
    order = np.argsort(distances, axis=1)[:, :NUM_NEIGHBOURS]
    sign = np.where(labels > np.median(labels), -1.0, 1.0).astype(np.float32)
    near = order[home.reshape(ids.shape)]
    return Batch(ids, mask, goal, sign, near, rms_norm(reader.table[ids[mask]]))


def retrieved(
    reader: Reader, vectors: np.ndarray, mask: np.ndarray, sigma: float = 1.0
) -> dict[str, np.ndarray]:
    """Returns what each system's encoder reads, and the tokens of the hard decoders.

    Args:
        reader: The encoder and its vocabulary.
        vectors: Perturbed token vectors, (..., tokens, width).
        mask: True at real tokens; the others return as they are.
        sigma: Noise level that only "known" uses.

    Returns:
        Vectors by system, and token ids as "tokens" (nearest vector) and "known" (σ and
        frequencies known), -1 at padding.
    """
    import numpy as np

    real = np.broadcast_to(mask, vectors.shape[:-1])
    x = vectors[real]
    read = in_batches(reader.retrieve, x, np.full(len(x), sigma, np.float32), size=1024)
    inputs = {"none": vectors, "memory": vectors.copy(), "nearest": vectors.copy()}
    inputs["memory"][real] = read["memory"]
    inputs["nearest"][real] = reader.table[read["nearest"]]
    for name, ids in (("tokens", read["nearest"]), ("known", read["known"])):
        inputs[name] = np.full(real.shape, -1)
        inputs[name][real] = ids
    return inputs


def attacks(reader: Reader, batch: Batch, radius: float, num_steps: int) -> dict[str, np.ndarray]:
    """Returns the perturbed vectors of every attack.

    Args:
        reader: The encoder and its vocabulary.
        batch: The texts.
        radius: Largest norm of a token's perturbation, in units of the vectors.
        num_steps: Steps of projected gradient descent.
    """
    width = reader.table.shape[1]
    surrogates = {
        "as it is": Surrogate(keep=1.0),
        "memory": Surrogate(log=width / 2, prior=1.0),
    } | {
        f"temperature {each:g}": Surrogate(square=0.5 / (each * batch.scale) ** 2)
        for each in TEMPERATURES
    }
    perturbed = {
        name: descent(reader, batch, surrogate, radius, num_steps)
        for name, surrogate in surrogates.items()
    }
    return perturbed | {"substitution": substitution(reader, batch, radius)}


def descent(
    reader: Reader, batch: Batch, surrogate: Surrogate, radius: float, num_steps: int
) -> np.ndarray:
    """Projected gradient descent in a ball around each token's vector, from a random direction."""
    import numpy as np

    clean, real = reader.table[batch.ids], batch.mask[..., None]

    def lengths(vectors: np.ndarray) -> np.ndarray:
        # float64: the squares of a vanishing slope would be zero.
        squares = np.sum(np.square(vectors, dtype=np.float64), axis=-1, keepdims=True)
        return np.sqrt(np.maximum(squares, 1e-300))

    start = np.random.default_rng(0).standard_normal(clean.shape, np.float32)
    delta = np.where(real, radius * start / lengths(start), 0).astype(np.float32)
    for _ in range(num_steps):
        slope = np.where(real, reader.slope(clean + delta, batch, surrogate), 0)
        delta = delta + 2.5 * radius / num_steps * slope / lengths(slope)
        delta = (delta * np.minimum(1, radius / lengths(delta))).astype(np.float32)
    return clean + delta


def substitution(reader: Reader, batch: Batch, radius: float) -> np.ndarray:
    """Moves tokens towards those neighbours within reach that raise the gain most, to first order.

    The nearest vector can only be fooled into another token, so this attack searches tokens.
    """
    import numpy as np

    clean, near = reader.table[batch.ids], reader.table[batch.near]
    apart = np.linalg.norm(near - clean[..., None, :], axis=-1)
    reach = (apart < 2 * radius) & batch.mask[..., None]
    reach[..., 0] = True
    current, best, most = clean, clean, np.full(len(clean), -np.inf)
    for _ in range(NUM_ROUNDS):
        gains = batch.sign * np.sum(reader.output(current, batch.mask) * batch.goal, axis=1)
        better = np.asarray(gains > most)
        best, most = np.where(better[:, None, None], current, best), np.maximum(most, gains)
        slope = np.asarray(reader.slope(current, batch, Surrogate(keep=1.0)))
        first_order = np.einsum("ntd,ntkd->ntk", slope, near)
        choice = np.argmax(np.where(reach, first_order, -np.inf), axis=-1)
        current = np.take_along_axis(near, choice[..., None, None], axis=2)[:, :, 0]
    change = best - clean
    length = np.linalg.norm(change, axis=-1, keepdims=True)
    return clean + change * np.minimum(1, radius / np.maximum(length, 1e-9))


def attacked(
    reader: Reader, batch: Batch, labels: np.ndarray, radius: float, num_steps: int
) -> list[dict[str, Any]]:
    """Returns each system's score under the worst attack, and checks the certificate.

    Raises:
        ArithmeticError: An attack inside the certified radius changed a token.
    """
    import numpy as np

    size = radius * batch.scale
    perturbed = attacks(reader, batch, size, num_steps)
    read = retrieved(reader, np.stack([*perturbed.values()]), batch.mask)
    # Room for the rounding of the projection.
    inside = batch.mask & (size * (1 + 1e-4) < reader.radius[batch.ids])
    wrong = inside & (read["tokens"] != batch.ids)
    if wrong.any():
        raise ArithmeticError(f"{wrong.sum()} tokens changed inside their certified radius")
    whole = np.all(inside | ~batch.mask, axis=1)
    clean = reader.table[batch.ids]
    exact = [np.array_equal(each[whole], clean[whole]) for each in read["nearest"]]
    if not all(exact):
        raise ArithmeticError("the output of a certified text is not exactly the clean one")
    shared = {"corruption": "attack", "level": radius, "num_examples": len(labels)}
    count = len(perturbed)
    rows = [
        {"model": "nearest", "metric": name, "score": float(value), **shared}
        for name, value in {
            "tokens inside": count * inside.sum(), "texts inside": count * whole.sum(),
            "tokens": count * batch.mask.sum(), "texts": count * len(whole),
        }.items()
    ]  # fmt: skip
    for system in SYSTEMS:
        cosines = np.array([
            np.sum(reader.output(each, batch.mask) * batch.goal, axis=1) for each in read[system]
        ])  # fmt: skip
        worst = np.argmax(batch.sign * cosines, axis=0)
        values = np.take_along_axis(cosines, worst[None], axis=0)[0]
        rows.append({"model": system, "metric": "score", **shared, **scored(values, labels)})
        for name, share in zip(perturbed, np.bincount(worst, minlength=count), strict=True):
            rows.append({"model": system, "metric": "strongest", "protocol": name, **shared,
                         "score": 100 * share / len(worst)})  # fmt: skip
    values = np.sum(reader.output(clean, batch.mask) * batch.goal, axis=1)
    return [*rows, {"model": "clean", "metric": "score", **shared, **scored(values, labels)}]


def scored(cosines: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Returns the score of pairs and its bootstrap interval over them."""
    import numpy as np

    picks = np.random.default_rng(0).integers(0, len(labels), (RESAMPLES, len(labels)))
    resampled = [score("stsb", cosines[pick], labels[pick]) for pick in picks]
    low, high = np.nanquantile(resampled, [0.025, 0.975])
    return {"score": score("stsb", cosines, labels), "low": float(low), "high": float(high)}


def under_noise(reader: Reader, batch: Batch, db: float, num_draws: int) -> list[dict[str, Any]]:
    """Returns how often texts are read without error under Gaussian noise, and what is guaranteed.

    Args:
        reader: The encoder and its vocabulary.
        batch: The texts.
        db: Signal-to-noise ratio of all texts together, in dB.
        num_draws: Noise draws.
    """
    import numpy as np

    ids, mask = batch.ids, batch.mask
    clean = reader.table[ids]
    goal = np.asarray(reader.output(clean, mask))
    right, agreement = [], {system: [] for system in SYSTEMS}
    sigma = 0.0
    for seed in range(num_draws):
        noisy, sigmas = add_noise([clean[mask]], db, protocol="matched", seed=seed)
        vectors, sigma = clean.copy(), float(sigmas[0])
        vectors[mask] = noisy
        read = retrieved(reader, vectors, mask, sigma)
        right.append(((read["known"] == ids) | ~mask).all(axis=1))
        for system in SYSTEMS:
            agreement[system].append(np.sum(reader.output(read[system], mask) * goal, axis=1))
    unique, home = np.unique(ids[mask], return_inverse=True)
    text = np.nonzero(mask)[0]
    rates, bounds = predicted(
        reader.table, unique, sigma=sigma, log_prior=reader.log_prior, num_nodes=8
    )
    errors = np.bincount(text, 1 - bounds[home])
    logs = np.bincount(text, np.log(np.maximum(rates[home], 1e-300)))
    shared = {
        "corruption": "gaussian", "level": 10 ** (-db / 20), "snr_db": db, "num_examples": len(ids),
    }  # fmt: skip
    values = {
        ("known", "unchanged"): 100 * np.mean(right, axis=0),
        ("known", "predicted"): 100 * np.exp(logs),
        ("known", "bound"): 100 * np.clip(1 - errors, 0, 1),
    } | {(system, "agreement"): np.mean(each, axis=0) for system, each in agreement.items()}
    return [
        {"model": system, "metric": metric, **shared, **averaged(each)}
        for (system, metric), each in values.items()
    ]


def averaged(values: np.ndarray) -> dict[str, float]:
    """Returns a mean over texts and its bootstrap interval."""
    import numpy as np

    picks = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.quantile(values[picks].mean(axis=1), [0.025, 0.975])
    return {"score": float(values.mean()), "low": float(low), "high": float(high)}


def correlation(db: Any) -> Any:
    """Returns the correlation of noisy and clean vectors at a signal-to-noise ratio in dB."""
    return (1 + 10 ** (-db / 10)) ** -0.5


def page(folder: Path) -> Page:
    """Returns the page of a run or of a folder of published results."""
    from experiments import figures, report, tidy
    from experiments.rundir import read_config

    frame = tidy.read(folder)
    under = frame[frame.corruption == "attack"]
    radii, levels = sorted(under.level.unique()), sorted(frame.snr_db.dropna().unique())[::-1]

    def at(column: str = "level", **values: Any) -> dict[float, Any]:
        rows = tidy.select(frame, **values)
        return {row[column]: row for _, row in rows.iterrows()}

    scores = {system: at(metric="score", model=system) for system in ("clean", *SYSTEMS)}
    inside = {
        name: {radius: float(row.score) for radius, row in at(metric=name).items()}
        for name in ("tokens inside", "texts inside", "tokens", "texts")
    }
    share = {task: at(metric="certified", task=task) for task in TASKS}
    of_noise = {
        (system, metric): at("snr_db", model=system, metric=metric)
        for system, metric in [
            *(("known", metric) for metric in ("unchanged", "predicted", "bound")),
            *((system, "agreement") for system in SYSTEMS),
        ]
    }

    def certified_at(task: str, radius: float) -> str:
        return report.number(
            share[task][min(level for level in share[task] if level >= radius)].score
        )

    attack_table = report.Table(
        ["radius", *(f"certified: {title}" for title in TASKS.values()),
         *(f"score: {TITLES[system]}" for system in SYSTEMS), "attacked texts certified, %"],
        [
            [f"{radius:g}", *(certified_at(task, radius) for task in TASKS),
             *(bracketed(scores[system][radius]) for system in SYSTEMS),
             report.number(100 * inside["texts inside"][radius] / inside["texts"][radius])]
            for radius in radii
        ],
        "Certified texts of the development sets (%, at the radius rounded up to 0.02), and score "
        "on STS-B under the worst attack. Radius: of each token's perturbation, in RMS norms.",
    )  # fmt: skip
    noise_table = report.Table(
        ["SNR", "correlation ρ", "measured, %", "predicted, %", "union bound, %",
         *(f"cosine: {TITLES[system]}" for system in SYSTEMS)],
        [
            [decibels(db), report.number(correlation(db), 2),
             *(report.number(of_noise["known", name][db].score)
               for name in ("unchanged", "predicted", "bound")),
             *(report.number(of_noise[system, "agreement"][db].score, 3) for system in SYSTEMS)]
            for db in levels
        ],
        "Gaussian noise: texts read without error (σ and frequencies known), and cosine of the "
        "output with the clean one.",
    )  # fmt: skip
    config = read_config(folder)["config"]
    num_steps = config["num_steps"] or BUDGETS[config["budget"]].num_steps
    num_texts = int(scores["clean"][radii[0]].num_examples)
    return report.Page(
        title="Certificates of retrieval from the vocabulary",
        answer=" ".join(answers(scores, inside, of_noise, radii, levels)),
        pictures={
            "certificates": report.Picture(
                functools.partial(
                    figures.panels, drawn(frame), specs(), col="panel", x="x", hue="line"
                ),
                "Certified share of texts, score under attack, texts read without error under "
                "noise (points: measured; line: predicted), and agreement with the clean output",
            )
        },
        tables=[attack_table, noise_table],
        notes=[
            f"{num_texts} pairs of STS-B with at most {MAX_TOKENS} tokens a text; clean score "
            f"{bracketed(scores['clean'][radii[0]])}; intervals: bootstrap over the pairs.",
            f"{strongest(frame, max(radii))} Descent takes {num_steps} steps; beyond the "
            "certificate, stronger attacks may exist.",
            "Predicted: product over the tokens of `memory-recovery`'s prediction. The union bound "
            "adds the errors of `hopfield.recovery_bound` over a text's tokens.",
            "Randomized smoothing (Cohen et al., 2019) is not shown: it certifies a class, and the "
            "encoder has none. With the decoded text as class it certifies σ Φ⁻¹(p) at most. The "
            "region of the nearest vector lies in a half-space at the certified radius r, so p ≤ "
            "Φ(r/σ): never more than r, for the norm over all tokens in place of each token's, and "
            "only with confidence after sampling. It can certify more for a classifier, whose "
            "label survives wrong tokens.",
            "Correlation ρ: of the noisy with the clean vectors, so that SNR is ρ²/(1 − ρ²). The "
            "certificate needs the nearest vector and a uniform prior; memory's frequencies move "
            "its borders.",
        ],
    )


def answers(
    scores: Mapping[str, Mapping[float, pd.Series]],
    inside: Mapping[str, Mapping[float, float]],
    of_noise: Mapping[tuple[str, str], Mapping[float, pd.Series]],
    radii: Sequence[float],
    levels: Sequence[float],
) -> list[str]:
    """Returns the sentences that answer the questions."""
    from experiments import report

    tokens = sum(inside["tokens inside"].values())
    texts = sum(inside["texts inside"].values())
    sentences = [
        f"**No attack inside the certified radius changed the output**: {tokens:,.0f} perturbed "
        f"tokens and {texts:,.0f} whole texts came back exactly."
    ]
    number = report.number
    clean, nearest = scores["clean"][radii[0]].score, scores["nearest"]
    if whole := [r for r in radii if inside["texts inside"][r] == inside["texts"][r]]:
        radius = whole[-1]
        sentences.append(
            f"At {radius:g} RMS norms, where all texts are certified, the encoder falls without "
            f"denoising from {number(clean)} to {number(scores['none'][radius].score)}, and the "
            f"nearest vector keeps {number(nearest[radius].score)}."
        )
    if kept := [radius for radius in radii if nearest[radius].score > clean - CLOSE]:
        share = 100 * inside["texts inside"][kept[-1]] / inside["texts"][kept[-1]]
        sentences.append(
            "The certificate is a worst case: the strongest attacks found cost less than "
            f"{CLOSE:g} points up to {kept[-1]:g}, where {share:.0f} % of the texts are certified."
        )
    if kept != radii:
        last = radii[-1]
        sentences.append(
            f"At {last:g} they succeed: the nearest vector scores {number(nearest[last].score)}, "
            f"memory {number(scores['memory'][last].score)}."
        )
    bounds, measured = of_noise["known", "bound"], of_noise["known", "unchanged"]
    if kept := [db for db in levels if bounds[db].score > 50]:
        db = kept[-1]
        sentences.append(
            f"Under Gaussian noise of {decibels(db)}, at least {bounds[db].score:.0f} % of the "
            f"texts are read without error, and {measured[db].score:.0f} % are."
        )
    same = [db for db in levels if of_noise["memory", "agreement"][db].score > 0.99]
    if same:
        db = same[-1]
        sentences.append(
            f"The output with memory is a step function of the noise: its cosine with the clean "
            f"output is above 0.99 down to {decibels(db)} (ρ = {correlation(db):.2f}), where the "
            f"encoder's is {of_noise['none', 'agreement'][db].score:.2f}."
        )
    return sentences


def strongest(frame: pd.DataFrame, radius: float) -> str:
    """Returns a note on which attacks on the nearest vector were the worst ones at a radius."""
    from experiments import tidy

    rows = tidy.select(frame, metric="strongest", level=radius, model="nearest")
    rows = rows[rows.score > 0].sort_values("score", ascending=False, kind="stable")
    pairs = zip(rows.protocol, rows.score, strict=True)
    shares = ", ".join(f"{name} {share:.0f} %" for name, share in pairs)
    return (
        f"Attacks: gradient descent through each system and through surrogates at temperatures of "
        f"{', '.join(f'{each:g}' for each in TEMPERATURES)} RMS norms, and substitution of tokens. "
        f"Worst for the nearest vector at {radius:g}: {shares} of the pairs."
    )


def bracketed(row: pd.Series) -> str:
    """Returns a score with its interval, such as "80.1 [70.2, 88.0]"."""
    from experiments import report

    score, low, high = (report.number(float(row[name])) for name in ("score", "low", "high"))
    return f"{score} [{low}, {high}]"


def drawn(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the points and lines of the picture."""
    import numpy as np
    import pandas as pd

    from experiments import tidy

    frame = frame.rename(columns={"score": "mean"}).assign(formula=np.nan)
    certified = tidy.select(frame, metric="certified")
    certified = certified.assign(formula=certified["mean"], mean=np.nan, x=certified.level,
                                 line=certified.task.map(TASKS))  # fmt: skip
    attacked = tidy.select(frame, metric="score", model=list(SYSTEMS))
    attacked = attacked.assign(x=attacked.level, line=attacked.model.map(TITLES))
    # Perturbations of radius zero.
    clean = tidy.select(frame, metric="score", model="clean").head(1)
    zero = [clean.assign(x=0.0, line=TITLES[system]) for system in SYSTEMS]
    agreed = tidy.select(frame, metric="agreement")
    agreed = agreed.assign(x=correlation(agreed.snr_db), line=agreed.model.map(TITLES))
    noisy = frame.assign(x=-frame.snr_db)
    predictions = tidy.select(noisy, metric="predicted").set_index("x")["mean"]
    measured = tidy.select(noisy, metric="unchanged")
    measured = measured.assign(formula=measured.x.map(predictions), line="measured, predicted")
    bound = tidy.select(noisy, metric="bound")
    bound = bound.assign(formula=bound["mean"], mean=np.nan, line="union bound")
    parts = {"certified": [certified], "attack": [*zero, attacked], "noise": [measured, bound],
             "output": [agreed]}  # fmt: skip
    return pd.concat([each.assign(panel=name) for name, part in parts.items() for each in part])


def specs() -> dict[str, Any]:
    """Returns the panels of the picture."""
    from experiments.figures import Panel

    radius = "radius / RMS norm of a token"
    return {
        "certified": Panel("Certified against any perturbation", radius, "texts, %"),
        "attack": Panel("Worst of all attacks, STS-B", radius, "score"),
        "noise": Panel("Texts read without error", "noise / signal in dB", "texts, %"),
        "output": Panel("Agreement with the clean output", "correlation ρ with the clean vectors",
                        "cosine"),
    }  # fmt: skip
