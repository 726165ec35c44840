"""How much does context add to retrieval from the vocabulary, and how near is that to the limit?

The prior of a token depends on the others of its text, in two ways: a chain of bigrams, solved by
`marginals`, and the encoder's own prediction of a token from the retrieved rest. The encoder
is not trained.

Command: `python -m experiments memory-context --pretrained FOLDER --data-dir DIR`; about 45
minutes on two cores for six layers of width 384.

Expected: 95 % of the tokens are recovered about half a dB lower. Intervals of the scores are too
wide to rank the priors.

In each iteration of the encoder, the posterior means of the last one are the context, until a
text's tokens stay the same. Posteriors are approximate: from the second iteration on, a token's own
evidence is also in its context. "Both" adds the weighted log-odds of the last iteration
(`experiments.memory.priors`) to the chain of bigrams.

Every tenth row of the task's training set is held out from all priors, to choose their settings,
and so are texts that are also among the reported ones. The two iterations were chosen on held-out
rows of MRPC, where a third did not help. The rows reported choose nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy.special import softmax

from experiments import report, tidy
from experiments.figures import SNR
from experiments.memory import pipeline, priors, similarity
from experiments.memory.pipeline import Budget, Encoder, Methods, Pairs
from experiments.memory.priors import NUM_GROUPS, Priors
from experiments.report import Page
from experiments.runner import Job, fill
from experiments.settings import by_budget
from hopfax import hopfield
from hopfax.data import task_rows
from hopfax.hopfield import capacity_snr_db
from hopfax.nn import Pretrained

REPRODUCES = "Not in the papers: context as prior"
NUM_CANDIDATES = 64  # per token
CERTAIN = 0.999  # posterior probability of tokens that need no context
HELD_OUT = 10  # one training row in so many
HIGHEST_DRAWN = -4.0  # SNR in dB, above which all priors recover all tokens
GOAL = 95.0  # percent of the tokens, at whose recovery priors are compared
ENCODER = ("encoder-1", "encoder-2")  # its iterations
TITLES = pipeline.TITLES | {
    "uniform": "uniform",
    **{name: f"encoder, iteration {number}" for number, name in enumerate(ENCODER, 1)},
    "both": "bigram and encoder",
}
BUDGETS = {
    "smoke": Budget(16, 1, (-12.0,), 2),
    "laptop": Budget(80, 1, (6.0, -8.0, -10.0, -11.0, -12.0, -14.0, -16.0, -20.0), 300),
    "paper": Budget(1500, 3, similarity.BUDGETS["paper"].snr_db, 2000),
}


@dataclass(frozen=True, kw_only=True)
class Config(similarity.Config):
    """Model, texts, noise and training of the head."""

    task: tuple[Literal["stsb", "mrpc"], ...] = ("stsb", "mrpc")
    """Tasks of pairs of texts."""
    num_pairs: Annotated[int | None, by_budget("num_pairs", "INT", BUDGETS)] = None
    """Pairs of texts, evenly spaced."""
    num_draws: Annotated[int | None, by_budget("num_draws", "INT", BUDGETS)] = None
    """Independent noise draws."""
    snr_db: Annotated[tuple[float, ...] | None, by_budget("snr_db", "FLOAT ...", BUDGETS)] = None
    """Signal-to-noise ratios in dB."""
    num_steps: Annotated[int | None, by_budget("num_steps", "INT", BUDGETS)] = None
    """Training steps of the encoder's head."""


def run(config: Config) -> Path:
    """Measures everything and writes the page; see `pipeline.start` for errors."""
    budget, encoder = pipeline.start(config, BUDGETS)
    masks = [each for each in ("[MASK]", "<mask>") if each in encoder.tokens.tokens]
    if not masks:
        raise ValueError(f"the tokenizer of {config.pretrained} has no [MASK] or <mask> token")
    blank, cases = encoder.tokens.tokens.index(masks[0]), (config.protocols, budget.snr_db)
    jobs = []
    for task in config.task:
        pairs, texts = pipeline.read_pairs(encoder, task, budget.num_pairs)
        tested = {text for pair in texts for text in pair}
        training = [row.texts[0] for row in task_rows(task, "train", data_dir=config.data_dir)]
        held_out = dict.fromkeys(text for pair in training[::HELD_OUT] for text in pair)
        held_out = [text for text in held_out if text not in tested]
        apart = {*held_out, *tested}
        rest = [text for pair in training for text in pair if text not in apart]
        inputs = encoder, pairs, (rest, held_out), blank, list(itertools.product(*cases)), budget
        jobs.append(Job(TITLES[task], partial(measure, *inputs)))
    return fill("memory-context", config, jobs, page, plan=encoder.plan)


def measure(
    encoder: Encoder,
    pairs: Pairs,
    training: tuple[Sequence[str], Sequence[str]],
    blank: int,
    cases: Sequence[tuple[str, float]],
    budget: Budget,
    on_progress: Callable[..., None],
) -> dict[str, pd.DataFrame]:
    """Returns results.csv of a task: every prior under every protocol and SNR.

    `training` has texts to fit the priors to, and held-out ones.
    """
    texts, held_out = (pipeline.encoded(each, encoder.tokens) for each in training)
    sizes = {"num_steps": budget.num_steps, "num_held_out": budget.num_pairs}
    fitted = priors.fit(encoder.model, texts, held_out, blank, **sizes)
    decode = decoder(encoder.model, fitted, [len(text) for text in pairs.ids])
    rows = pipeline.under_noise(encoder, pairs, decode, cases, budget.num_draws, on_progress)
    names = "uniform", "unigram", "bigram", ENCODER[-1], "both"
    for name, bits in zip(names, priors.bits(encoder.model, fitted, pairs.ids), strict=True):
        row = {"seed": 0, "metric": "bits", "score": round(bits, 4)}
        rows.append({**pipeline.condition(name), **row})
    width = fitted.table.shape[1]
    return {"results": pd.DataFrame(rows).assign(task=pairs.task, width=width)}


def marginals(likelihood: jax.Array, transition: jax.Array, mask: jax.Array) -> jax.Array:
    r"""Returns the posterior marginals of a Markov chain, `(n, states)`, 0 where padded.

    With $\log Z$ of the forward pass, $p(s_i = k | x)$ is
    $\partial \log Z / \partial \log p(x_i | k)$: its gradient is the backward pass.

    Args:
        likelihood: `(n, states)`, $\log p(x_i | s_i)$; the first row includes $\log p(s_1)$.
        transition: `(n - 1, states, states)`, $\log p(s_{i+1} | s_i)$ from rows to columns, finite
            but not necessarily normalized.
        mask: `(n,)`, True at real positions, which come first.
    """

    def log_normalizer(likelihood: jax.Array) -> jax.Array:
        def step(forward: jax.Array, each: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
            # Normalized at each position: float32 has no digits for sums over long sequences.
            likelihood, transition, real = each
            new = jax.nn.logsumexp(forward[:, None] + transition, axis=0) + likelihood
            norm = jax.nn.logsumexp(new)
            return jnp.where(real, new - norm, forward), jnp.where(real, norm, 0)

        norm = jax.nn.logsumexp(likelihood[0])
        _, norms = jax.lax.scan(step, likelihood[0] - norm, (likelihood[1:], transition, mask[1:]))
        return norm + jnp.sum(norms)

    return jax.grad(log_normalizer)(likelihood)


def decoder(model: Pretrained, fitted: Priors, lengths: Sequence[int]) -> Methods:
    """Returns the estimates of texts of these lengths by each prior, see `pipeline.Methods`."""
    patterns, log_prior = jnp.asarray(fitted.table), jnp.asarray(fitted.log_prior)
    blank, ends = fitted.table[fitted.blank], np.cumsum(lengths)[:-1]
    owner = np.repeat(np.arange(len(lengths)), lengths)
    places = np.split(np.arange(len(owner)), ends)

    @jax.jit
    def likeliest(x: jax.Array, _: jax.Array) -> tuple[Any, Any]:
        one = partial(hopfield.candidates, patterns=patterns, count=NUM_CANDIDATES)
        return jax.vmap(partial(one, log_prior=log_prior))(x), jax.vmap(one)(x)

    @jax.jit
    def posterior_means(posterior: jax.Array, index: jax.Array) -> jax.Array:
        return jnp.einsum("nk,nkd->nd", posterior, patterns[index])

    @jax.jit
    def log_odds(states: jax.Array, index: jax.Array) -> jax.Array:
        return jnp.einsum("nd,nkd->nk", priors.predicted(fitted.head, states), patterns[index])

    def decode(noisy: np.ndarray, _: np.ndarray) -> dict[str, tuple[list[np.ndarray], np.ndarray]]:
        frequent, nearest = pipeline.in_batches(likeliest, noisy, noisy[:, 0], 512)
        index, likelihood = frequent
        unigram, estimates = fitted.log_prior[index], {}

        def keep(name: str, posterior: np.ndarray, index: np.ndarray = index) -> None:
            best = np.take_along_axis(index, posterior.argmax(1)[:, None], axis=1)[:, 0]
            vectors = pipeline.in_batches(posterior_means, posterior, index, 512)
            estimates[name] = np.split(vectors, ends), best

        def from_context(name: str, unsure: np.ndarray, previous: np.ndarray) -> np.ndarray:
            """Returns the encoder's log-odds of unsure tokens given one method's estimates."""
            new, flags = previous.copy(), np.split(unsure, ends)
            for group in range(NUM_GROUPS):
                texts = [n for n, each in enumerate(flags) if each[group::NUM_GROUPS].any()]
                if texts:
                    vectors = [estimates[name][0][text] for text in texts]
                    states = priors.masked_states(model, vectors, blank, [group] * len(texts))
                    rows = np.concatenate([places[text][group::NUM_GROUPS] for text in texts])
                    new[rows] = pipeline.in_batches(
                        log_odds, np.concatenate(states), index[rows], 512
                    )
            return new

        chains = [(each[:-1, :, None], each[1:, None, :]) for each in np.split(index, ends)]
        steps = [priors.log_bigrams(fitted.bigrams, *each) for each in chains]
        initial = np.where(np.diff(owner, prepend=-1)[:, None], unigram, 0)

        def keep_chain(name: str, evidence: np.ndarray) -> None:
            keep(name, over_chains(np.split(evidence + initial, ends), steps))

        posterior = softmax(likelihood + unigram, axis=1)
        keep("uniform", softmax(nearest.log_likelihood, axis=1), nearest.index)
        keep("unigram", posterior)
        keep_chain("bigram", likelihood)
        context, last = np.zeros_like(unigram), "unigram"
        unsure = posterior.max(1) < CERTAIN
        for name in ENCODER:
            context = from_context(last, unsure, context)
            posterior = softmax(likelihood + unigram + context, axis=1)
            keep(name, posterior)
            changed = owner[estimates[name][1] != estimates[last][1]]
            unsure, last = (posterior.max(1) < CERTAIN) & np.isin(owner, changed), name
        keep_chain("both", likelihood + fitted.weight * context)
        return estimates

    return decode


_marginals = jax.jit(jax.vmap(marginals))


def over_chains(
    likelihood: Sequence[np.ndarray], steps: Sequence[np.ndarray], size: int = 16
) -> np.ndarray:
    """Returns the marginals of all texts in one array, computed in batches of `size` texts."""
    longest, parts = max(map(len, likelihood)), []
    for rows in pipeline.batches(len(likelihood), size):
        emitted, mask = pipeline.padded([likelihood[row] for row in rows], longest)
        moved, _ = pipeline.padded([steps[row] for row in rows], longest - 1)
        mask[1:][np.diff(rows) == 0] = False  # repeated
        parts.append(np.asarray(_marginals(emitted, moved, mask))[mask])
    return np.concatenate(parts)


def page(folder: Path) -> Page:
    """Returns the page of a run."""
    frame, lines = tidy.read(folder), []
    tokens = pipeline.means(frame, "recovered")
    first = tidy.select(tokens, protocol=tokens.protocol.iloc[0]).sort_values("mean")
    bits = frame[frame.metric == "bits"]
    shannon = bits.score.map(partial(capacity_snr_db, width=bits.width.iloc[0])).astype(float)
    for (_, row), limit in zip(bits.iterrows(), shannon, strict=True):
        part = tidy.select(first, task=row.task, model=row.model)
        reached = np.interp(GOAL, part["mean"], part.snr_db, left=np.nan, right=np.nan)
        ends = limit, float(reached)
        title = f"{TITLES[row.task]}, {TITLES.get(row.model, row.model)}"
        lines.append([title, report.number(row.score), *map(pipeline.decibels, ends)])
    limits = shannon[bits.model == "unigram"].set_axis(bits.task.unique())
    drawn = tokens[(tokens.snr_db <= HIGHEST_DRAWN) & ~tokens.model.isin(ENCODER[:-1])]
    drawn = drawn.assign(limit=drawn.task.map(limits), low=drawn["mean"], high=drawn["mean"])
    return Page(
        title="Context as prior: retrieval from the vocabulary",
        pictures={
            "context": report.facets(
                "Tokens recovered against noise", drawn, x="snr_db", col="protocol", row="task",
                titles=TITLES, xlabel=SNR, ylabel="tokens recovered, %",
            )
        },
        tables=[
            report.Table(
                ["", "bits", "Shannon limit", f"{GOAL:g} % recovered"],
                lines, "Bits per token, and lowest SNRs",
            )
        ],
    )  # fmt: skip
