"""What does retrieval from the vocabulary guarantee, against an adversary and against noise?

Claims: a perturbation of each token's vector below half the distance to the nearest other vector is
undone exactly by the nearest-token decoder (`hopfax.hopfield.certified_radius`); under Gaussian
noise, a text is recovered exactly at least as often as the union bound says (`recovery_bound`).
The theorem on basins of Hopfield networks (Ramsauer et al., 2021) guarantees less.

Command: `python -m experiments memory-certificates --pretrained FOLDER --data-dir DIR`; four
minutes on two cores for six layers of width 384.

Expected: no attack changes the output inside the certified radius.

Attacks move the token vectors of a pair's first text, each by at most the radius, to change the
cosine with the second text towards the wrong side: down for pairs more similar than the median, up
for the others. Projected gradient descent attacks the encoder as it is, memory, and the nearest
vector, which has no gradient, through softmax surrogates at several temperatures; substitution
moves tokens towards the neighbors that the gradient prefers. All systems get all attacks, and each
pair counts with the worst one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from experiments import report, tidy
from experiments.figures import SNR, Panel
from experiments.memory import similarity
from experiments.memory.similarity import (
    SCORES,
    TITLES,
    add_noise,
    decibels,
    denoiser,
    encoded,
    in_batches,
    score,
)
from experiments.report import Page
from experiments.rundir import read_config
from experiments.settings import Shared, by_budget
from hopfax.data import reported_rows
from hopfax.hopfield import certified_radius, recovery_bound, recovery_rate
from hopfax.nn import Pretrained
from hopfax.train.progress import Progress

REPRODUCES = "Robertha's claim of robustness, with the vocabulary as memory; not in the paper"
TASKS = {"stsb": "STS-B", "mrpc": "MRPC", "sst2": "SST-2"}
SYSTEMS = ("none", "nearest", "memory")
MAX_TOKENS = 24  # of an attacked text, so that all have one compiled shape
NUM_NEIGHBOURS = 32  # that attacks know of each token, the token itself included
TEMPERATURES = (0.1, 0.2, 0.4)  # of the surrogates, in units of the RMS norm of a token
NUM_ROUNDS = 3  # of substitution
THEOREM = (
    "Theorem on basins (Ramsauer et al., 2021, Hopfield Networks is All You Need, appendix): if a "
    "stored vector's squared norm exceeds its inner product with every other one by 2/(βN) + "
    "log(2(N − 1)NβM²)/β, a fixed point attracts all states within 1/(βNM); β = 1/σ², "
    "N vectors of norm at most M. The update has no prior and no bias."
)


class Budget(NamedTuple):
    """Size of a run: attacked pairs, steps, radii in RMS norms, noise draws, ratios in dB."""

    num_pairs: int
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


@dataclass(frozen=True, kw_only=True)
class Config(Shared):
    """Model, texts, attacks and noise."""

    num_pairs: Annotated[int | None, by_budget("num_pairs", "INT", BUDGETS)] = None
    """Pairs of STS-B whose first text is attacked."""
    num_steps: Annotated[int | None, by_budget("num_steps", "INT", BUDGETS)] = None
    """Steps of projected gradient descent."""
    num_draws: Annotated[int | None, by_budget("num_draws", "INT", BUDGETS)] = None
    """Independent noise draws."""
    radii: Annotated[tuple[float, ...] | None, by_budget("radii", "FLOAT ...", BUDGETS)] = None
    """Radii of the attacks, in units of the root mean square norm of STS-B's token vectors."""
    snr_db: Annotated[tuple[float, ...] | None, by_budget("snr_db", "FLOAT ...", BUDGETS)] = None
    """Signal-to-noise ratios in dB."""


def run(config: Config) -> Path:
    """Measures everything and writes the page; see `similarity.start` and `attacked` for errors."""
    budget, model, tokens, open_folder = similarity.start("memory-certificates", config, BUDGETS)
    table = np.asarray(model.table, np.float32)
    radius = np.asarray(certified_radius(jnp.asarray(table)))
    reported = {task: reported_rows(task, data_dir=config.data_dir) for task in TASKS}
    ids = {
        task: encoded([text for each in examples for text in each.texts[0]], tokens)
        for task, examples in reported.items()
    }
    unit = rms_norm(table[np.concatenate(ids["stsb"])])
    rows = [
        {"task": task, **row}
        for task in TASKS
        for row in certified(ids[task], radius / unit, budget.radii)
    ]
    log_prior = similarity.training_prior("stsb", config.data_dir, tokens, len(table))
    texts = [ids["stsb"][side::2] for side in (0, 1)]
    short = [n for n, pair in enumerate(zip(*texts, strict=True))
             if max(map(len, pair)) <= MAX_TOKENS]  # fmt: skip
    count = min(budget.num_pairs, len(short))
    picks = [short[n] for n in np.linspace(0, len(short) - 1, count).astype(int)]
    labels = np.array([reported["stsb"][n].label for n in picks])
    reader = reader_of(model, table, log_prior, radius)
    first, second = ([side[n] for n in picks] for side in texts)
    batch = batch_of(reader, first, second, labels, unit)
    folder = open_folder()
    with Progress(len(budget.radii) + len(budget.snr_db)) as progress:
        for done, each in enumerate(budget.radii, 1):
            rows += attacked(reader, batch, each, budget.num_steps)
            progress.update(done)
        rows += half_distance(radius, unit)
        separation = separations(table)
        for done, db in enumerate(budget.snr_db, len(budget.radii) + 1):
            rows += under_noise(reader, batch, db, budget.num_draws)
            rows += guaranteed(table, separation, unit, db)
            progress.update(done)
    frame = pd.DataFrame(rows).fillna({"task": "stsb"}).assign(site="token", seed=0)
    return report.write_run(folder, frame, page)


def certified(
    ids: Sequence[np.ndarray], radius: np.ndarray, attacked: Sequence[float] = ()
) -> list[dict[str, Any]]:
    """Returns the share of texts whose tokens all have a larger certified radius, by radius.

    Radii are in RMS norms, and are multiples of 0.02, up to 0.6 or beyond the largest attacked one.
    """
    count = math.ceil(round(50 * max([0.6, *attacked]), 6))
    least = np.array([radius[text].min() for text in ids])
    return [
        {"model": "nearest", "metric": "certified", "corruption": "perturbation", "level": level,
         "score": 100 * float(np.mean(level < least)), "num_examples": len(ids)}
        for level in (number / 50 for number in range(1, count + 1))
    ]  # fmt: skip


def separations(table: np.ndarray) -> np.ndarray:
    r"""Returns each vector's $\|e_v\|^2 - \max_{w \neq v} \langle e_v, e_w \rangle$."""
    parts = []
    for start in range(0, len(table), 2048):
        products = table[start : start + 2048] @ table.T
        places = np.arange(len(products)), start + np.arange(len(products))
        own = products[places]
        products[places] = -np.inf
        parts.append(own - products.max(axis=1))
    return np.concatenate(parts)


def basins(table: np.ndarray, separation: np.ndarray, *, beta: float) -> tuple[np.ndarray, float]:
    r"""Returns where the theorem on basins applies, and the radius of its basins.

    Vectors with a separation of at least

    $$\frac{2}{\beta N} + \frac{1}{\beta} \log\left(2 (N - 1) N \beta M^2\right)$$

    have a fixed point of the Hopfield update within $1 / (\beta N M)$, and updates that start there
    converge to it. N is the number of vectors, M the largest norm.

    References:
        Ramsauer et al. (2021), Hopfield Networks is All You Need, appendix.
    """
    count, largest = len(table), float(np.linalg.norm(table, axis=1).max())
    least = 2 / (beta * count) + np.log(2 * (count - 1) * count * beta * largest**2) / beta
    return separation >= least, 1 / (beta * count * largest)


def guaranteed(
    table: np.ndarray, separation: np.ndarray, unit: float, db: float
) -> list[dict[str, Any]]:
    """Returns the share of the vocabulary with a basin by the theorem, and the basins' radius."""
    sigma = unit * 10 ** (-db / 20) / np.sqrt(table.shape[1])
    well, radius = basins(table, separation, beta=float(sigma**-2))
    shared = {"model": "theorem", "corruption": "gaussian", "level": 10 ** (-db / 20),
              "snr_db": db, "num_examples": len(table)}  # fmt: skip
    values = {"well separated": 100 * float(np.mean(well)), "basin": radius / unit}
    return [{**shared, "metric": metric, "score": value} for metric, value in values.items()]


def half_distance(radius: np.ndarray, unit: float) -> list[dict[str, Any]]:
    """Returns the median certified radius of the vocabulary."""
    return [{"model": "nearest", "metric": "half distance", "corruption": "perturbation",
             "score": float(np.median(radius)) / unit, "num_examples": len(radius)}]  # fmt: skip


def rms_norm(vectors: np.ndarray) -> float:
    """Returns the root mean square norm of vectors."""
    return float(np.sqrt(np.mean(np.sum(np.square(vectors), axis=-1))))


class Surrogate(NamedTuple):
    r"""What an attack takes a system for: a differentiable function of a token's vector.

    $$x \mapsto k x + (1 - k) \sum_v p_v e_v, \qquad
    p = \mathrm{softmax}_v(-s \|x - e_v\|^2 - l \log \|x - e_v\|^2 + c \log \pi_v)$$

    over the token's neighbors.

    Attributes:
        keep: k, 1 for the encoder as it is, else 0.
        square: s, 1/(2 temperature^2) for the nearest token.
        log: l, half of the width for memory.
        prior: c, 1 for memory.
    """

    keep: float = 0.0
    square: float = 0.0
    log: float = 0.0
    prior: float = 0.0


class Batch(NamedTuple):
    """Texts of one padded length, and the data that attacks need.

    Attributes:
        ids: Token ids, (texts, tokens).
        mask: True at real tokens.
        labels: Label of each pair.
        goal: Unit output of each pair's second text.
        sign: 1 where an attack raises the cosine of the pair, -1 where it lowers it.
        near: Ids of the neighbors of each token, itself first.
        unit: Root mean square norm of the token vectors of STS-B's texts.
    """

    ids: np.ndarray
    mask: np.ndarray
    labels: np.ndarray
    goal: np.ndarray
    sign: np.ndarray
    near: np.ndarray
    unit: float


class Reader(NamedTuple):
    """An encoder with its vocabulary.

    Attributes:
        table: Vectors of the vocabulary.
        log_prior: Log-frequencies of the tokens.
        radius: Certified radius of each token.
        output: `output(vectors, mask)` returns the unit vector along the mean state of each text.
        slope: `slope(vectors, batch, surrogate)` returns the gradient of the attacker's gain.
        retrieve: `retrieve(x, sigma)` returns what is read from noisy vectors: the nearest vectors,
            memory's estimates, and the most probable vectors if σ and the frequencies are known.
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
        known = jnp.asarray(table)[tokens["known"]]
        return {"nearest": vectors["nearest"], "memory": vectors["memory"], "known": known}

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
    reader: Reader,
    first: Sequence[np.ndarray],
    second: Sequence[np.ndarray],
    labels: np.ndarray,
    unit: float,
) -> Batch:
    """Pads the first texts of pairs, encodes the second ones, and finds the tokens' neighbors."""

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
    return Batch(ids, mask, labels, goal, sign, near, unit)


def retrieved(
    reader: Reader, vectors: np.ndarray, mask: np.ndarray, sigma: float = 1.0
) -> dict[str, np.ndarray]:
    """Returns what each system's encoder reads; padding stays as it is. Only "known" uses sigma."""
    real = np.broadcast_to(mask, vectors.shape[:-1])
    x = vectors[real]
    read = {"none": vectors}
    for name, values in in_batches(reader.retrieve, x, np.full(len(x), sigma, np.float32)).items():
        read[name] = vectors.copy()
        read[name][real] = values
    return read


def attacks(reader: Reader, batch: Batch, radius: float, num_steps: int) -> np.ndarray:
    """Returns the perturbed vectors of every attack, that on the encoder as it is first.

    The radius, the largest norm of a token's perturbation, is in units of the vectors.
    """
    surrogates = [
        Surrogate(keep=1.0),
        Surrogate(log=reader.table.shape[1] / 2, prior=1.0),
        *(Surrogate(square=0.5 / (each * batch.unit) ** 2) for each in TEMPERATURES),
    ]
    return np.stack(
        [*(descent(reader, batch, each, radius, num_steps) for each in surrogates),
         substitution(reader, batch, radius)]
    )  # fmt: skip


def cosines(reader: Reader, batch: Batch, vectors: np.ndarray) -> np.ndarray:
    """Returns the cosine of each pair with `vectors` as its first text."""
    return np.sum(np.asarray(reader.output(vectors, batch.mask)) * batch.goal, axis=1)


def descent(
    reader: Reader, batch: Batch, surrogate: Surrogate, radius: float, num_steps: int
) -> np.ndarray:
    """Projected gradient descent in a ball around each token's vector, from a random direction."""
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
    """Moves tokens towards those neighbors within reach that raise the gain most, to first order.

    The nearest-token decoder always returns a token, so this attack searches tokens.
    """
    clean, near = reader.table[batch.ids], reader.table[batch.near]
    apart = np.linalg.norm(near - clean[..., None, :], axis=-1)
    reach = (apart < 2 * radius) & batch.mask[..., None]
    reach[..., 0] = True
    current, best, most = clean, clean, batch.sign * cosines(reader, batch, clean)
    for _ in range(NUM_ROUNDS):
        slope = np.asarray(reader.slope(current, batch, Surrogate(keep=1.0)))
        first_order = np.einsum("ntd,ntkd->ntk", slope, near)
        choice = np.argmax(np.where(reach, first_order, -np.inf), axis=-1)
        current = np.take_along_axis(near, choice[..., None, None], axis=2)[:, :, 0]
        gains = batch.sign * cosines(reader, batch, current)
        better = np.asarray(gains > most)
        best, most = np.where(better[:, None, None], current, best), np.maximum(most, gains)
    change = best - clean
    length = np.linalg.norm(change, axis=-1, keepdims=True)
    return clean + change * np.minimum(1, radius / np.maximum(length, 1e-9))


def attacked(reader: Reader, batch: Batch, radius: float, num_steps: int) -> list[dict[str, Any]]:
    """Returns each system's score under the worst attack, and checks the certificate.

    Raises:
        ArithmeticError: An attack inside the certified radius changed a token.
    """
    size, clean, labels = radius * batch.unit, reader.table[batch.ids], batch.labels
    read = retrieved(reader, attacks(reader, batch, size, num_steps), batch.mask)
    # Room for the rounding of the projection.
    inside = batch.mask & (size * (1 + 1e-4) < reader.radius[batch.ids])
    if np.any(inside & (read["nearest"] != clean).any(axis=-1)):
        raise ArithmeticError("an attack inside the certified radius changed a token")
    whole = np.all(inside | ~batch.mask, axis=1)
    rows: list[dict[str, Any]] = [
        {"model": "nearest", "metric": "tokens inside", "score": inside.sum()},
        {"model": "nearest", "metric": "texts inside", "score": whole.sum()},
    ]
    for system, attempts in {"clean": [clean], **{each: read[each] for each in SYSTEMS}}.items():
        reached = np.array([cosines(reader, batch, each) for each in attempts])
        worst = batch.sign * np.max(batch.sign * reached, axis=0)
        low, high = tidy.bootstrap(
            len(labels), lambda rows, worst=worst: score("stsb", worst[rows], labels[rows])
        )
        value = {"score": score("stsb", worst, labels), "low": low, "high": high}
        rows.append({"model": system, "metric": "score", **value})
    shared = {"corruption": "attack", "level": radius, "num_examples": len(labels)}
    return [{**row, **shared} for row in rows]


def under_noise(reader: Reader, batch: Batch, db: float, num_draws: int) -> list[dict[str, Any]]:
    """Returns how often texts are recovered exactly under Gaussian noise, and what is guaranteed.

    The signal-to-noise ratio, in dB, is that of all texts together.
    """
    ids, mask = batch.ids, batch.mask
    clean = reader.table[ids]
    goal = np.asarray(reader.output(clean, mask))
    right, agreement, sigma = [], {system: [] for system in SYSTEMS}, 0.0
    for seed in range(num_draws):
        noisy, sigmas = add_noise([clean[mask]], db, protocol="matched", seed=seed)
        vectors, sigma = clean.copy(), float(sigmas[0])
        vectors[mask] = noisy
        read = retrieved(reader, vectors, mask, sigma)
        right.append((read["known"] == clean).all(axis=(1, 2)))
        for system in SYSTEMS:
            agreement[system].append(np.sum(reader.output(read[system], mask) * goal, axis=1))
    unique, home = np.unique(ids[mask], return_inverse=True)
    text = np.nonzero(mask)[0]
    table, log_prior, index = map(jnp.asarray, (reader.table, reader.log_prior, unique))
    rates, bounds = (
        np.asarray(function(table, sigma=sigma, log_prior=log_prior, index=index))
        for function in (recovery_rate, recovery_bound)
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
    rows = []
    for (system, metric), each in values.items():
        low, high = tidy.bootstrap(len(each), lambda texts, each=each: each[texts].mean())
        value = {"score": float(each.mean()), "low": low, "high": high}
        rows.append({"model": system, "metric": metric, **shared, **value})
    return rows


def page(folder: Path) -> Page:
    """Returns the page of a run or of a folder of published results."""
    frame = tidy.read(folder)

    def at(column: str, **values: Any) -> dict[float, float]:
        rows = tidy.select(frame, **values)
        return dict(zip(rows[column], rows.score, strict=True))

    scores = {each: at("level", metric="score", model=each) for each in ("clean", *SYSTEMS)}
    read = {each: at("snr_db", metric=each) for each in ("unchanged", "predicted", "bound")}
    agreed = {each: at("snr_db", metric="agreement", model=each) for each in SYSTEMS}
    radii, levels = sorted(scores["clean"]), sorted(read["bound"], reverse=True)
    # Measured at steps of 0.02, rounded up here.
    certified: dict[str, dict[float, float]] = {}
    for task in TASKS:
        shares = at("level", metric="certified", task=task)
        certified[task] = {r: shares[min(step for step in shares if step >= r)] for r in radii}
    tokens, texts = (
        sum(at("level", metric=f"{each} inside").values()) for each in ("tokens", "texts")
    )
    attacked = tidy.select(frame, metric="score").rename(columns={"score": "mean"})
    num_pairs = attacked.num_examples.iloc[0]
    sentences, guarantees = [], []
    if whole := [radius for radius in radii if certified["stsb"][radius] == 100]:
        clean = report.number(scores["clean"][whole[-1]])
        plain, nearest, beyond = (
            report.bracketed(tidy.select(attacked, model=system, level=radius).iloc[0])
            for system, radius in (
                ("none", whole[-1]), ("nearest", whole[-1]), ("nearest", radii[-1])
            )
        )  # fmt: skip
        unchanged = scores["nearest"][whole[-1]] == scores["clean"][whole[-1]]
        effect = "does not change" if unchanged else f"falls to {nearest}"
        sentences.append(
            f"**If no token vector moves by more than {whole[-1]:g} times the tokens' RMS norm, "
            "the nearest-token decoder provably returns the original tokens of every text of "
            "STS-B's development set.** "
            f"On {num_pairs:.0f} pairs, the strongest of our attacks at this radius lowers the "
            f"score from {clean} to {plain} without denoising; with the nearest token, the score "
            f"{effect}."
        )
        if scores["nearest"][radii[-1]] < scores["nearest"][whole[-1]]:
            guarantees.append(
                f"At a radius of {radii[-1]:g}, the score with the nearest token falls to {beyond}."
            )
    guarantees.append(
        "Only the uniform prior is certified; a frequency prior moves the decision boundaries."
    )
    if safe := [db for db in levels if read["bound"][db] > 50]:
        db = safe[-1]
        row = tidy.select(frame, metric="unchanged", snr_db=db).iloc[0].rename({"score": "mean"})
        sentences.append(
            f"At an SNR of {decibels(db)}, a decoder that knows σ and the frequencies recovers "
            f"{report.bracketed(row)} % of the texts exactly; the union bound guarantees "
            f"{read['bound'][db]:.0f} %, averaged over texts."
        )
        well, basin = (at("snr_db", metric=each) for each in ("well separated", "basin"))
        guarantees += [
            f"{THEOREM} At {decibels(db)}, it covers {well[db]:.0f} % of the vocabulary, with "
            f"basins of radius {basin[db]:.0e} RMS norms.",
            "The median certified radius over the vocabulary is "
            f"{frame[frame.metric == 'half distance'].score.iloc[0]:.2f} RMS norms. Noise at "
            f"{decibels(db)} has a norm of {10 ** (-db / 20):.1f}, but little of it is in the "
            "directions from one token to another.",
        ]
    config = read_config(folder)["config"]
    num_steps = config["num_steps"] or BUDGETS[config["budget"]].num_steps
    radius = "radius / RMS norm of a token"
    return report.Page(
        title="Certified radius of the nearest-token decoder",
        answer=" ".join(sentences),
        pictures={
            "certificates": report.panels(
                "Certified share of texts, score under attack, texts recovered exactly under "
                "noise, and agreement with the clean output",
                drawn(frame),
                specs={
                    "certified": Panel("Nearest token: certified texts", radius, "texts, %"),
                    "attack": Panel("Strongest of our attacks, STS-B", radius, SCORES["stsb"]),
                    "noise": Panel(
                        "Texts recovered exactly", SNR, "texts, %", formula="predicted"
                    ),
                    "output": Panel("Agreement with the clean output", SNR, "cosine"),
                },
                col="panel",
                x="x",
                hue="line",
                titles=TITLES | TASKS | {"unchanged": "measured", "bound": "union bound"},
            )
        },
        tables=[
            report.Table(
                ["radius", *(f"certified: {title}" for title in TASKS.values()),
                 *(f"score: {TITLES[system]}" for system in SYSTEMS)],
                [
                    [f"{r:g}", *(report.number(certified[task][r]) for task in TASKS),
                     *(report.number(scores[system][r]) for system in SYSTEMS)]
                    for r in radii
                ],
                "Certified texts of the development sets, in % (at the radius rounded up to a "
                "multiple of 0.02), and score on STS-B under the strongest attack. Radius: of each "
                "token's perturbation, in RMS norms of STS-B's token vectors.",
            ),
            report.Table(
                ["SNR", "measured, %", "predicted, %", "union bound, %",
                 *(f"cosine: {TITLES[system]}" for system in SYSTEMS)],
                [
                    [decibels(db), *(report.number(each[db]) for each in read.values()),
                     *(report.number(each[db], 3) for each in agreed.values())]
                    for db in levels
                ],
                "Gaussian noise of one σ for all texts: texts recovered exactly (σ and frequencies "
                "known), and cosine of the output with the clean one.",
            ),
        ],
        notes=[
            f"{num_pairs:.0f} pairs of STS-B with at most {MAX_TOKENS} tokens a text; clean score "
            f"{report.number(scores['clean'][radii[0]])}. Score: {SCORES['stsb']}. Intervals: "
            "bootstrap over the pairs.",
            "Only the first text of a pair is perturbed. Attacks lower the cosine of pairs whose "
            "label is above the median, and raise that of the others.",
            f"Attacks: gradient descent of {num_steps} steps through each system and through "
            "surrogates at temperatures of "
            f"{', '.join(f'{each:g}' for each in TEMPERATURES)} RMS norms, and substitution of "
            "tokens. Beyond the certificate, stronger attacks may exist.",
            "Predicted: product over the tokens of `memory-recovery`'s prediction. The union bound "
            "adds the errors over a text's tokens, as `hopfield.recovery_bound` describes.",
            "As the certificate implies, no gradient attack inside the certified radius changed a "
            f"token ({tokens:,.0f} tokens and {texts:,.0f} texts, summed over the radii); "
            "substitutions exceed that radius.",
            *guarantees,
        ],
    )  # fmt: skip


def drawn(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the points and lines of the picture."""
    panels = {"certified": "certified", "score": "attack", "unchanged": "noise", "bound": "noise",
              "agreement": "output"}  # fmt: skip
    lines = frame.model.where(~frame.metric.isin(["unchanged", "bound"]), frame.metric)
    frame = frame.assign(
        panel=frame.metric.map(panels),
        line=lines.where(frame.metric != "certified", frame.task),
        x=frame.snr_db.fillna(frame.level),
        formula=frame.score.where(frame.metric.isin(["certified", "bound"])),
        mean=frame.score.where(frame.metric.isin(["score", "unchanged", "agreement"])),
    )
    predictions = tidy.select(frame, metric="predicted").set_index("x").score
    measured = frame.metric == "unchanged"
    frame["formula"] = np.where(measured, frame.x.map(predictions), frame.formula)
    # Perturbations of radius zero.
    clean = frame[frame.model == "clean"].head(1)
    zero = [clean.assign(x=0.0, line=system) for system in SYSTEMS]
    return pd.concat([*zero, frame[frame.model != "clean"]])
