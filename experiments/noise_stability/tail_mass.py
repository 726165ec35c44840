"""Does noise stability bound the weight of high degree more tightly than total influence?

Paper: Haris, Zhang and Yoshida (2026), Lemma 1 and Table 1. Claim: at degree 15 of 256 tokens it
does, by a factor of 2 to 10.

Command: `python -m experiments tail-mass --pretrained FOLDER --data-dir DIR`. FOLDER has a BERT,
RoBERTa, GPT-2, Gemma-2 or Llama in the Hugging Face layout; DIR has `wikitext-2/`. Seven minutes on
two cores for six layers of width 384.

Expected: the claim holds only for functions whose influence lies above that degree. MiniLM's does
not, nor does SmolLM2's: the last few tokens decide the next.

Verdict: that of `tidy.verdict` at each of five ρ on `MARGIN`, the relative difference of the two
bounds below, with Student's interval over texts; the paper's is at least `PAPER` in size. It is too
weak to tell if all noisy copies together flip each bit less than `MIN_FLIPS` times on average: they
may miss the bit with most influence. So may the pairs of D if few bits have all influence.

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
text's embedding to that of the unchanged text; of a causal model, the cosine of the logits of the
next token after the text, minus their mean over the vocabulary, which the softmax ignores (their
correlation); of a classifier (`--run`), the probability of the class that it predicts for the
unchanged text. W^k is averaged over texts, and so is everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from experiments import predict, report, runner, tidy
from experiments.models import is_causal, load, load_encoder, weights_digest
from experiments.noise_stability import influence
from experiments.settings import Shared, budget_of, by_budget, optional
from hopfax.data import read_tokenizer
from hopfax.nn import Encoder, Functional, Params, Pretrained

REPRODUCES = "Noise stability, Table 1 and Lemma 1: bounds on the weight of high degree"
DEGREE = 15  # of Table 1: T
RHOS = (0.5, 0.8, 0.9, 0.95, 0.99)
PAIRS = 2  # pairs of bits flipped together, a draw
MARKOV, LEMMA = "influence: I/T", "stability: Lemma 1"
D = "D"
MARGIN = "stability / influence − 1"
PAPER, MIN_FLIPS = -0.5, 5  # of BERT, the smallest reduction of Table 1; see above
BATCH = 4  # changed texts at once, for the memory of a language model's logits
# (parameters, ids) -> (a text's output, the vector that multiplies changed texts' outputs)
Output = Callable[[Params, jax.Array], tuple[jax.Array, jax.Array]]


class Budget(NamedTuple):
    """Size of a run; the fields are flags of `Config`."""

    num_long: int
    num_tokens: int
    num_draws: int


BUDGETS = {
    "smoke": Budget(3, 20, 4),
    "laptop": Budget(8, 256, 16),
    "paper": Budget(50, 256, 100),
}


@dataclass(frozen=True, kw_only=True)
class Config(Shared):
    """Model and texts."""

    run: Annotated[str | None, optional("FOLDER", "none: the embeddings of --pretrained")] = None
    """Run of `fine-tuning` on a task with single texts, whose classifier is measured."""
    model: Annotated[str | None, optional("NAME", "the run's only model")] = None
    """Model of the run, fine-tuned from --pretrained; of its first seed."""
    num_long: Annotated[int | None, by_budget("num_long", "INT", BUDGETS)] = None
    """Passages of WikiText-2; at least 3."""
    num_tokens: Annotated[int | None, by_budget("num_tokens", "INT", BUDGETS)] = None
    """Tokens of a passage; at least 20."""
    num_draws: Annotated[int | None, by_budget("num_draws", "INT", BUDGETS)] = None
    """Independent draws of their bits; at least 3."""


def run(config: Config) -> Path:
    """Measures everything and writes the page; a ValueError or an OSError names a wrong flag."""
    budget = budget_of(config, BUDGETS)
    if not config.pretrained or not config.data_dir:
        raise ValueError("set --pretrained and --data-dir, the folders of a model and of the sets")
    if budget.num_draws < 3:
        raise ValueError(f"--num-draws must be >= 3, got {budget.num_draws}")
    model = (load_encoder if config.run else load)(config.pretrained)
    start, end = map(tuple, influence.special_tokens(config.pretrained))
    if budget.num_tokens + len(start) + len(end) > model.max_length:
        raise ValueError(
            f"--num-tokens must leave room for {len(start) + len(end)} special tokens in the "
            f"model's {model.max_length} positions, got {budget.num_tokens}"
        )
    sizes, file = (budget.num_long, budget.num_tokens), "wikitext-2/wiki.test.tokens"
    kinds = influence.texts(config.pretrained, *sizes, text_file=f"{config.data_dir}/{file}")
    passages = kinds[influence.TEXT], kinds[influence.UNIFORM]
    if config.run:
        of_seeds = predict.load(predict.Config(run=config.run, model=config.model, texts=()))
        classifier = next(iter(of_seeds.values()))
        if classifier.vocabulary.tokens != read_tokenizer(config.pretrained).tokens:
            raise ValueError(f"--run must be of a model of --pretrained, got {config.run}")
        output, fine_tuned = probability(classifier.model), classifier.params
        before = classifier.model.init(jax.random.key(0))
        by_weights = {"fine-tuned": fine_tuned, "pretrained": before}
    else:
        output, random = embedding(model), influence.random_weights(model, 0)
        by_weights = {"trained": model.params, "random": random}
    agree = jax.jit(partial(agreement, output, (start, end)))

    def measure(weights: str, params: Params, on_progress: Any) -> dict[str, Any]:
        tables = []
        for seed, (ids, others) in enumerate(zip(*passages, strict=True)):
            bits = draw(np.random.default_rng(seed), budget.num_draws, budget.num_tokens)
            values = np.asarray(agree(params, ids, others, bits), float)
            tables.append(estimates(values, budget.num_tokens).assign(seed=seed))
            on_progress(len(tables) / budget.num_long)
        shared = {"task": "Monte Carlo", "corruption": "replaced tokens", "site": "token"}
        return {"results": pd.concat(tables).assign(model=weights, **shared)}

    jobs = [
        runner.Job(f"{weights} weights", partial(measure, weights, params))
        for weights, params in by_weights.items()
    ]
    plan = {**budget._asdict(), "weights": weights_digest(config.pretrained)}
    return runner.fill("tail-mass", config, jobs, page, plan=plan)


def embedding(model: Pretrained) -> Output:
    """Returns a text's embedding or centered next logits, of norm 1: products are cosines."""

    def output(params: Params, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
        vectors = model.embed(ids[None], params=params)
        mask = jnp.ones((1, len(ids)), bool)
        unit = influence.pooled(model, model.forward(vectors, mask, params=params).output[0])
        if is_causal(model):
            centered = unit - unit.mean()
            unit = centered / jnp.linalg.norm(centered)
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
    """Returns products of the unchanged text's reference and changed texts' outputs.

    `bits` are `(draws, groups, tokens)`; the result is `(draws, groups)`.
    """
    start, end = (jnp.array(each, ids.dtype) for each in special)

    def of_body(body: jax.Array) -> tuple[jax.Array, jax.Array]:
        return output(params, jnp.concatenate([start, body, end]))

    _, reference = of_body(ids)

    def changed(kept: jax.Array) -> jax.Array:
        return reference @ of_body(jnp.where(kept > 0, ids, others))[0]

    values = jax.lax.map(changed, bits.reshape(-1, bits.shape[-1]), batch_size=BATCH)
    return values.reshape(bits.shape[:-1])


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
        # Σ k W^k, Σ k (k - 1) W^k
        ("influence", np.nan): num_bits / 4 * np.square(x - flips).mean(1),
        ("pairs", np.nan): num_bits * (num_bits - 1) / 16 * np.square(second).mean(1),
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
    """Returns the bounds on the weight of high degree, as shares of the variance.

    `tidy.summarize`'s table of `degree` (T), `weights`, `quantity` (`MARKOV`, `LEMMA`, `D` or
    `MARGIN`) and `rho` (1 where there is none).
    """
    parts = []
    rows = frame[frame.metric != "weight"].fillna({"level": 0.0})
    for weights, own in rows.groupby("model", sort=False):
        of = own.pivot(index="seed", columns=["metric", "level"], values="score")
        variance, influences = of["variance", 0.0], of["influence", 0.0]
        markov, squares = influences / DEGREE, influences + of["pairs", 0.0]
        each = {(MARKOV, 1.0): (markov, variance), (D, 1.0): (squares, influences)}
        for rho in RHOS:
            lemma = of["distance", rho] / (1 - rho**DEGREE)
            each |= {(LEMMA, rho): (lemma, variance), (MARGIN, rho): (lemma - markov, markov)}
        for (quantity, rho), pair in each.items():
            scores = ratios(*pair).rename("score").reset_index()
            parts.append(scores.assign(weights=weights, quantity=quantity, rho=rho))
    return tidy.summarize(pd.concat(parts).assign(degree=DEGREE))


def claims(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns `tidy.CLAIMS` on trained weights, see the module."""
    rows = tidy.select(bounds(frame), quantity=MARGIN).query("weights != 'random'")
    copies = frame[frame.metric == "variance"].groupby("model").num_examples.sum()
    weak = (1 - rows.rho) / 2 * rows.weights.map(copies) < MIN_FLIPS
    each = [tidy.verdict(*ends, PAPER) for ends in zip(rows.low, rows.high, strict=True)]
    verdicts = np.where(weak, "too weak to tell", each)
    claim = f"{MARGIN}, ρ = " + rows.rho.map("{:g}".format)
    return rows.assign(subject=rows.weights, claim=claim, paper=PAPER, verdict=verdicts)


def ratios(over: pd.Series, under: pd.Series) -> pd.Series:
    """Returns the jackknife's values of a ratio of sums over texts.

    Their mean and its interval are those of the ratio, without its bias of order 1/texts.
    """
    count = len(over)
    without = (over.sum() - over) / (under.sum() - under)
    return count * over.sum() / under.sum() - (count - 1) * without


def page(folder: Path) -> report.Page:
    """The page of a run."""
    means = bounds(frame := tidy.read(folder))
    lemma, others = means[means.quantity == LEMMA], means[means.quantity.isin([MARKOV, D])]
    best = lemma.loc[lemma.groupby("weights", sort=False)["mean"].idxmin()]
    shown = pd.concat([others, best])
    caption = "D, and shares of the variance"
    flat = others[others.quantity == MARKOV].drop(columns="rho")
    picture = report.facets(
        "Bounds on the weight of high degree",
        pd.concat([flat.merge(lemma[["weights", "rho"]], on="weights"), lemma]), x="rho",
        hue="quantity", row="weights", xlabel="ρ", ylabel="share of the variance", least_range=0.1,
    )  # fmt: skip
    cell = partial(report.bracketed, digits=2)
    table = report.grid(shown, "weights", "quantity", caption, cell=cell)
    title = "Bounds on the weight of high degree"
    return report.Page(title, {"tail_mass": picture}, [report.verdicts(claims(frame)), table])
