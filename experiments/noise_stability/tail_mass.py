"""Does noise stability bound the weight of high degree more tightly than total influence?

Paper: Haris, Zhang and Yoshida (2026), Lemma 1 and Table 1. Claim: at degree 15 of 256 tokens it
does, by a factor of 2 to 10.

Command: `python -m experiments tail-mass --pretrained FOLDER --data-dir DIR`. FOLDER has a BERT or
RoBERTa in the Hugging Face layout; DIR has `glue_data/SST-2/` and `wikitext-2/`. Seven minutes on
two cores for six layers of width 384.

Expected: the claim holds only for functions whose influence lies above that degree. MiniLM's does
not.

A function of ±1 bits has weight W^k at degree k. Two bounds on its weight at degree T and above are

    influence:  I/T = Σ_k (k/T) W^k                     (Markov)
    stability:  B_ρ = Σ_k (1 - ρ^k)/(1 - ρ^T) W^k       (Lemma 1 with the appendix's sign)

(1 - ρ^k)/(1 - ρ^T) is concave in k and equals k/T at k = 0 and k = T: at least k/T below T, and at
most above. It tends to k/T as ρ → 1. With D = Σ k² W^k / Σ k W^k:

1. B_ρ >= I/T at every ρ if f has degree at most T; equality only if all weight is at 0 and T.
2. B_ρ < I/T at some ρ if and only if D > T. Proof: T (1 - ρ^T)(B_ρ - I/T)/(1 - ρ) is the
   polynomial Σ_j c_j ρ^j, c_j = T W^{>j} - I [j < T]. Its coefficients change sign at most twice,
   and 1 is a root. So at most one more root is positive, and the sign just below ρ = 1 decides:
   B_ρ - I/T = (1 - ρ)/(2T) Σ_k k (T - k) W^k + O((1 - ρ)²).
3. If B_ρ < I/T, f has weight at a degree of at least T (I/T)/B_ρ: a level's part of I/T is at most
   max(1, k/T) times its part of B_ρ.

The mean adds nothing to I or B_ρ; both are divided by Var f, which changes none of this.

Here a bit keeps a token or replaces it by a random one, fixed for the text. f is the cosine of the
text's embedding to that of the unchanged text; of a classifier (`--run`), the probability of the
class that it predicts for the unchanged text. W^k is averaged over texts, and so is everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from experiments import predict, report, runner, tidy
from experiments.models import load_encoder, weights_digest
from experiments.noise_stability import influence
from experiments.settings import Shared, budget_of, by_budget, optional
from hopfax.data import read_tokenizer, reported_rows
from hopfax.data.tokenize import text_tokenizer
from hopfax.nn import Encoder, Functional, Params, Pretrained
from hopfax.stability import walsh_weights

REPRODUCES = "Noise stability, Table 1 and Lemma 1: bounds on the weight of high degree"
PAPER_DEGREE = 15  # of Table 1
DEGREES = (2, 4)  # of the few tokens whose weights are exact
RHOS = (0.5, 0.8, 0.9, 0.95, 0.99)
PAIRS = 2  # pairs of bits flipped together, a draw
TAIL, MARKOV, LEMMA = "exact weight", "influence: I/T", "stability: Lemma 1"
D = "D"
# Metric -> the factor of W^k in its sum over k.
SUMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "variance": lambda k: k > 0,
    "second moment": lambda k: k >= 0,
    "influence": lambda k: k,
    "pairs": lambda k: k * (k - 1),
}
# (parameters, ids) -> (a text's output, the vector that multiplies changed texts' outputs)
Output = Callable[[Params, jax.Array], tuple[jax.Array, jax.Array]]
Texts = tuple[np.ndarray, np.ndarray]  # ids and their replacements, without special tokens


class Budget(NamedTuple):
    """Size of a run; the fields are flags of `Config`."""

    num_texts: int
    num_bits: int
    num_long: int
    num_tokens: int
    num_draws: int


BUDGETS = {
    "smoke": Budget(3, 5, 3, 20, 4),
    "laptop": Budget(10, 12, 8, 256, 16),
    "paper": Budget(100, 14, 50, 256, 100),
}


@dataclass(frozen=True, kw_only=True)
class Config(Shared):
    """Model and texts."""

    run: Annotated[str | None, optional("FOLDER", "none: the embeddings of --pretrained")] = None
    """Run of `fine-tuning` on a task with single texts, whose classifier is measured."""
    model: Annotated[str | None, optional("NAME", "the run's only model")] = None
    """Model of the run, fine-tuned from --pretrained; of its first seed."""
    num_texts: Annotated[int | None, by_budget("num_texts", "INT", BUDGETS)] = None
    """Sentences of SST-2 whose weights are exact; at least 3."""
    num_bits: Annotated[int | None, by_budget("num_bits", "INT", BUDGETS)] = None
    """Their tokens, in [5, 20]; longer sentences are cut, shorter ones left out."""
    num_long: Annotated[int | None, by_budget("num_long", "INT", BUDGETS)] = None
    """Passages of WikiText-2 with Monte Carlo estimates; at least 3."""
    num_tokens: Annotated[int | None, by_budget("num_tokens", "INT", BUDGETS)] = None
    """Their tokens; at least 20."""
    num_draws: Annotated[int | None, by_budget("num_draws", "INT", BUDGETS)] = None
    """Independent draws of their bits; at least 3."""


def run(config: Config) -> Path:
    """Measures everything and writes the page; a ValueError or an OSError names a wrong flag."""
    budget = budget_of(config, BUDGETS)
    if not config.pretrained or not config.data_dir:
        raise ValueError("set --pretrained and --data-dir, the folders of a model and of the sets")
    if budget.num_draws < 3:
        raise ValueError(f"--num-draws must be >= 3, got {budget.num_draws}")
    if not 5 <= budget.num_bits <= 20:
        raise ValueError(f"--num-bits must be in [5, 20], got {budget.num_bits}")
    model = load_encoder(config.pretrained)
    start, end = map(tuple, influence.special_tokens(config.pretrained))
    if budget.num_tokens + len(start) + len(end) > model.max_length:
        raise ValueError(
            f"--num-tokens must leave room for {len(start) + len(end)} special tokens in the "
            f"model's {model.max_length} positions, got {budget.num_tokens}"
        )
    sizes, file = (budget.num_long, budget.num_tokens), "wikitext-2/wiki.test.tokens"
    kinds = influence.texts(config.pretrained, *sizes, text_file=str(Path(config.data_dir) / file))
    others = influence.texts(config.pretrained, budget.num_texts, budget.num_bits)
    settings: dict[str, tuple[Texts, Any]] = {
        "exact": ((sentences_of(config, budget), others[influence.UNIFORM]), exact),
        "Monte Carlo": (
            (kinds[influence.TEXT], kinds[influence.UNIFORM]),
            partial(monte_carlo, num_draws=budget.num_draws),
        ),
    }
    if config.run:
        of_seeds = predict.load(predict.Config(run=config.run, model=config.model, texts=()))
        classifier = next(iter(of_seeds.values()))
        if classifier.vocabulary.tokens != read_tokenizer(config.pretrained).tokens:
            raise ValueError(f"--run must be of a model of --pretrained, got {config.run}")
        output, fine_tuned = probability(classifier.model), classifier.params
        before = classifier.model.init(jax.random.key(0))
        every_weights = {"fine-tuned": fine_tuned, "pretrained": before}
    else:
        output, random = embedding(model), influence.random_weights(model, 0)
        every_weights = {"trained": model.params, "random": random}
    agree = partial(agreement, output, (start, end))

    def measure(weights: str, setting: str, on_progress: Any) -> dict[str, Any]:
        texts, measured = settings[setting]
        tables = []
        for seed, table in enumerate(measured(agree, every_weights[weights], texts)):
            tables.append(table.assign(task=setting, model=weights, seed=seed))
            on_progress(len(tables) / len(texts[0]))
        return {"results": pd.concat(tables).assign(corruption="replaced tokens", site="token")}

    jobs = [
        runner.Job(f"{weights} weights, {setting}", partial(measure, weights, setting))
        for weights in every_weights
        for setting in settings
    ]
    plan = {**budget._asdict(), "weights": weights_digest(config.pretrained)}
    return runner.fill("tail-mass", config, jobs, page, plan=plan)


def sentences_of(config: Config, budget: Budget) -> np.ndarray:
    """Returns the first sentences of SST-2's dev file that have enough tokens, cut to these."""
    assert config.pretrained
    tokenizer, size = text_tokenizer(read_tokenizer(config.pretrained)), budget.num_bits
    sentences = (
        tokenizer.encode(row.texts[0][0], add_special_tokens=False).ids
        for row in reported_rows("sst2", data_dir=config.data_dir)
    )
    bodies = [ids[:size] for ids in sentences if len(ids) >= size]
    if len(bodies) < budget.num_texts:
        raise ValueError(
            f"SST-2 must have {budget.num_texts} sentences of {size} tokens, got {len(bodies)}"
        )
    return np.array(bodies[: budget.num_texts])


def embedding(model: Pretrained) -> Output:
    """Returns the embedding of a text, of norm 1; its product with the reference is the cosine."""

    def output(params: Params, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
        vectors = model.embed(ids[None], params=params)
        mask = jnp.ones((1, len(ids)), bool)
        unit = influence.pooled(model, model.forward(vectors, mask, params=params).output[0])
        return unit, unit

    return output


def probability(model: Functional[Encoder]) -> Output:
    """Returns the probabilities of a text's classes; the reference selects the predicted one."""

    def output(params: Params, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = model.apply(params, ids[None], jnp.ones((1, len(ids)), bool)).logits[0]
        return jax.nn.softmax(logits), jax.nn.one_hot(logits.argmax(), len(logits))

    return output


def agreement(
    output: Output, special: tuple[tuple[int, ...], ...], params: Params,
    ids: jax.Array, others: jax.Array, bits: jax.Array,
) -> jax.Array:  # fmt: skip
    """Returns the product of the unchanged text's reference and the changed text's output."""
    start, end = (jnp.array(each, ids.dtype) for each in special)
    unchanged, changed = (
        jnp.concatenate([start, body, end]) for body in (ids, jnp.where(bits > 0, ids, others))
    )
    # Apart, so that `vmap` over bits computes the first only once.
    return output(params, unchanged)[1] @ output(params, changed)[0]


def exact(agree: Callable[..., jax.Array], params: Params, texts: Texts) -> Iterator[pd.DataFrame]:
    """Yields the weights of each text's function."""
    num_bits = texts[0].shape[1]

    @jax.jit
    def measure(*fixed: Any) -> jax.Array:
        return walsh_weights(partial(agree, *fixed), num_bits=num_bits, batch_size=256)

    for text in zip(*texts, strict=True):
        weights = np.asarray(measure(params, *text), float)
        table = pd.DataFrame({"level": np.arange(num_bits + 1), "score": weights})
        yield table.assign(metric="weight", num_examples=2**num_bits)


def monte_carlo(
    agree: Callable[..., jax.Array], params: Params, texts: Texts, num_draws: int
) -> Iterator[pd.DataFrame]:
    """Yields estimates of each text's function, see `estimates`."""
    num_bits = texts[0].shape[1]

    @jax.jit
    def measure(bits: jax.Array, *fixed: Any) -> jax.Array:
        return jax.lax.map(jax.vmap(partial(agree, *fixed)), bits)

    for number, text in enumerate(zip(*texts, strict=True)):
        bits = draw(np.random.default_rng(number), num_draws, num_bits)
        yield estimates(np.asarray(measure(bits, params, *text), float), num_bits)


def draw(rng: np.random.Generator, num_draws: int, num_bits: int) -> np.ndarray:
    """Returns bits x, a noisy copy for each of `RHOS`, flips of x, and flips of pairs.

    The draws share out the bits to flip, since few may have most of the influence: each is flipped
    once if their number divides that of the bits. A draw also flips its first pairs together.
    """
    x = rng.choice([-1.0, 1.0], (num_draws, num_bits))
    copies = [np.where(rng.random(x.shape) < (1 + rho) / 2, x, -x) for rho in RHOS]
    num_flips = max(2 * PAIRS, -(-num_bits // num_draws))
    blocks = num_bits // num_flips
    rounds = range(-(-num_draws // blocks))
    order = [rng.permutation(num_bits)[: blocks * num_flips] for _ in rounds]
    places = np.concatenate(order).reshape(-1, num_flips)[:num_draws]
    flips = [np.where(np.arange(num_bits) == place[:, None], -x, x) for place in places.T]
    # -x[i] and -x[j] in one: the product with x is -1 at both places.
    pairs = [flips[2 * n] * flips[2 * n + 1] * x for n in range(PAIRS)]
    return np.stack([x, *copies, *flips, *pairs], axis=1)


def estimates(values: np.ndarray, num_bits: int) -> pd.DataFrame:
    """Estimates variance, influence, D's other part and Var - Stab_ρ from values at `draw`'s bits.

    All are unbiased. Standard errors are over draws. `values` is `(draws, groups)`.
    """
    count = len(values)
    of_pairs, x = values[:, : 1 + len(RHOS)], values[:, :1]
    flips, both = np.split(values[:, 1 + len(RHOS) :], [-PAIRS], axis=1)
    second = x - flips[:, : 2 * PAIRS : 2] - flips[:, 1 : 2 * PAIRS : 2] + both
    by_draw = {
        # Σ k W^k, Σ k (k - 1) W^k, E f²
        ("influence", np.nan): num_bits / 4 * np.square(x - flips).mean(1),
        ("pairs", np.nan): num_bits * (num_bits - 1) / 16 * np.square(second).mean(1),
        ("second moment", np.nan): np.square(of_pairs).mean(1),
        # Bessel: the noisy copies of one x are not independent, different draws are.
        ("variance", np.nan): np.square(of_pairs - of_pairs.mean()).mean(1),
    }
    for rho, y in zip(RHOS, of_pairs[:, 1:].T, strict=True):
        by_draw["distance", rho] = np.square(x[:, 0] - y) / 2
    bias = {"variance": of_pairs.mean(1).var() / (count - 1)}
    rows = [
        (name, level, each.mean() + bias.get(name, 0), each.std(ddof=1) / np.sqrt(count))
        for (name, level), each in by_draw.items()
    ]
    columns = ["metric", "level", "score", "standard_error"]
    return pd.DataFrame(rows, columns=columns).assign(num_examples=count)


def bounds(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the bounds and the exact weight of high degree, as shares of the variance.

    `tidy.summarize`'s table of `panel`, `degree` (T), `weights`, `quantity` (`TAIL`, `MARKOV`,
    `LEMMA`, `D` and "variance", a share of the second moment) and `rho` (1 where there is none).
    """
    parts = []
    for (setting, weights), rows in frame.groupby(["task", "model"], sort=False):
        wide = rows.fillna({"level": 0.0}).pivot(
            index="seed", columns=["metric", "level"], values="score"
        )
        degrees, where, levels = (PAPER_DEGREE,), "Monte Carlo", None
        if setting == "exact":
            levels = wide["weight"].sort_index(axis=1)
            k = levels.columns.to_numpy()
            sums = {(name, 0.0): levels @ factor(k) for name, factor in SUMS.items()}
            wide = sums | {("distance", rho): levels @ (1 - rho**k) for rho in RHOS}
            degrees, where = DEGREES, f"{k[-1]:g} tokens"
        variance, moment, slope, pairs = (wide[name, 0.0] for name in SUMS)
        for degree in degrees:
            each = {
                (MARKOV, 1.0): (slope / degree, variance),
                (D, 1.0): (slope + pairs, slope),
                ("variance", 1.0): (variance, moment),
            }
            if levels is not None:
                each[TAIL, 1.0] = levels.loc[:, degree:].sum(axis=1), variance
            for rho in RHOS:
                each[LEMMA, rho] = wide["distance", rho] / (1 - rho**degree), variance
            shared = {"panel": f"{where}, T = {degree}", "degree": degree, "weights": weights}
            for (quantity, rho), pair in each.items():
                scores = ratios(*pair).rename("score").reset_index()
                parts.append(scores.assign(**shared, quantity=quantity, rho=rho))
    return tidy.summarize(pd.concat(parts))


def ratios(over: pd.Series, under: pd.Series) -> pd.Series:
    """Returns the jackknife's values of a ratio of sums over texts.

    Their mean and its interval are those of the ratio, without its bias of order 1/texts.
    """
    count = len(over)
    without = (over.sum() - over) / (under.sum() - under)
    return count * over.sum() / under.sum() - (count - 1) * without


def page(folder: Path) -> report.Page:
    """The page of a run."""
    means = bounds(tidy.read(folder))
    by = ["panel", "weights"]
    lemma, others = (means[(means.quantity == LEMMA) == each] for each in (True, False))
    best = lemma.loc[lemma.groupby(by, sort=False)["mean"].idxmin()]
    shown = pd.concat([others[others.quantity != "variance"], best])
    lines = shown.panel + ", " + shown.weights
    caption = "Shares of the variance at the best ρ, and D"
    flat = others[others.quantity.isin([TAIL, MARKOV])].drop(columns="rho")
    picture = report.facets(
        "Weight of degree T, and two bounds",
        pd.concat([flat.merge(lemma[[*by, "rho"]], on=by), lemma]), x="rho", hue="quantity",
        col="panel", row="weights", xlabel="ρ", ylabel="share of the variance", least_range=0.1,
    )  # fmt: skip
    table = influence.table(shown, lines, shown.quantity, caption)
    title = "Bounds on the weight of high degree"
    return report.Page(title, pictures={"tail_mass": picture}, tables=[table])
