"""Do a text's first and last tokens have the most influence, and is that learned?

Paper: Haris, Zhang and Yoshida (2026), Figures 1, 7 and 8. Claims: in pretrained transformers the
geometric influence of a token is a U-shaped function of its position, in the output, the layers and
the heads; and 5 to 10 of 256 tokens have at least a tenth of the total influence, as in a junta.

Command: `python -m experiments influence --pretrained FOLDER --text-file FILE`. FOLDER has a BERT,
RoBERTa, GPT-2, Gemma-2 or Llama in the Hugging Face layout; FILE is plain text, such as
`wikitext-2/wiki.test.tokens`, without which there is no real text. Some six minutes on two cores
for six layers of width 384; for SmolLM2 (135 M parameters) some 25 on one with `--num-texts 8
--num-inner 4 --num-random 1`.

Expected: a shape that random weights have too comes from the architecture, not from training.

Verdicts: an end's influence over the middle's holds if its 95 % interval over texts lies above 1,
and is reversed if it lies below; a U-shape has both ends. At least half of the layers or heads must
have one, and at least 5 positions a tenth of the influence, on average over texts. The table says
how many comparisons these are; none is corrected for the others.

The influence of a token is the norm of the output's derivative in its embedding, in units of the
text's mean over positions. The output is a text's embedding (mean of the last states, norm 1), or
the next token's logits for causal models. A layer's output is the same of its states; a head's is
its mean over the text, or at a causal model's last token, before the output projection. Causal
models are measured by bands of positions inside, and also on texts that the trained model samples.
Random weights are drawn as before pretraining: N(0, 0.02²), no biases, unit norms.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from experiments import report, runner, tidy
from experiments.models import is_causal, load, weights_digest
from experiments.noise_stability.causal import BANDS, band_influences, sample
from experiments.rundir import identifier, write_whole
from experiments.settings import Run, budget_of, by_budget, optional
from hopfax.data import read_tokenizer
from hopfax.data.tokenize import text_tokenizer
from hopfax.nn import Params, Pretrained
from hopfax.stability import geometric_influence

REPRODUCES = "Noise stability, Figures 1, 7 and 8: influence of tokens by position"
ENDS = 0.05  # share of the positions that counts as the beginning, and as the end
PROJECTIONS = 8  # random directions in which the output's derivative is taken
LAYER_PROJECTIONS = 4  # of a layer's; a head has one
MOST = 0.9  # share of the influence whose tokens are counted
INFLUENTIAL = 0.1  # share of the influence from which the paper counts a token
TENTH = f"positions with {INFLUENTIAL:.0%}"
JUNTA = "tokens"  # metric: how many have `MOST` of the influence
FIRST, LAST = "first / middle", "last / middle"
UNIFORM, TEXT, OWN = "uniform tokens", "real text", "own samples"
BAND = "band "  # metrics: influence of a band of positions
MOST_LAYERS, HEADS = 10, 4  # of which there are rows


class Budget(NamedTuple):
    """Size of a run; the fields are flags of `Config`."""

    num_texts: int
    num_tokens: int
    num_random: int
    num_inner: int


BUDGETS = {
    "smoke": Budget(3, 24, 1, 3),
    "laptop": Budget(16, 256, 2, 6),
    "paper": Budget(64, 256, 5, 64),
}


@dataclass(frozen=True, kw_only=True)
class Config(Run):
    """Model and texts."""

    pretrained: Annotated[str | None, optional("FOLDER", "required")] = None
    """Folder of a pretrained model."""
    text_file: Annotated[str | None, optional("FILE", "uniform tokens only")] = None
    """Plain text to measure on."""
    num_texts: Annotated[int | None, by_budget("num_texts", "INT", BUDGETS)] = None
    """Texts of each kind; at least 3."""
    num_tokens: Annotated[int | None, by_budget("num_tokens", "INT", BUDGETS)] = None
    """Tokens of a text; at least 20."""
    num_random: Annotated[int | None, by_budget("num_random", "INT", BUDGETS)] = None
    """Draws of random weights; layers and heads are measured in the first."""
    num_inner: Annotated[int | None, by_budget("num_inner", "INT", BUDGETS)] = None
    """Texts of each kind for layers and heads, and for random weights; in [3, num_texts]."""


def run(config: Config) -> Path:
    """Measures everything and writes the page; a ValueError or an OSError names a wrong flag."""
    budget = budget_of(config, BUDGETS)
    if not config.pretrained:
        raise ValueError("a pretrained model is read from a folder: set --pretrained")
    if not 3 <= budget.num_inner <= budget.num_texts:
        raise ValueError(f"--num-inner must be in [3, num_texts], got {budget.num_inner}")
    model = load(config.pretrained)
    if budget.num_tokens > model.max_length:
        raise ValueError(
            f"--num-tokens must be at most the model's {model.max_length} positions, got "
            f"{budget.num_tokens}"
        )
    start, end = special_tokens(config.pretrained)
    special, num_texts = (len(start), len(end)), budget.num_texts
    sizes = num_texts, budget.num_tokens - sum(special)
    kinds: dict[str, Any] = dict(texts(config.pretrained, *sizes, text_file=config.text_file))
    drawn = [(f"random {seed}", random_weights(model, seed)) for seed in range(budget.num_random)]
    digest, shared = weights_digest(config.pretrained), {"task": Path(config.pretrained).name}
    keep = partial(load_or_measure, Path(config.runs) / "cells", weights=digest)
    measured = jax.jit(partial(influences, model))
    if is_causal(model):
        if not isinstance(start_id := model.config.get("bos_token_id"), int):
            raise ValueError(f"bos_token_id must be an id to sample texts after, got {start_id!r}")
        draw, inner = partial(sample, model, sizes[1]), partial(band_influences, model, len(start))
        keys = [jax.random.fold_in(jax.random.key(place), 1) for place in range(num_texts)]
        own = enumerate(partial(jax.jit(draw), model.params, key) for key in keys)
        kinds[OWN] = [partial(keep, each, sample=n, num_tokens=sizes[1]) for n, each in own]
    else:
        layers = range(model.config["num_hidden_layers"])
        of_layer = partial(inner_influences, model)
        inner = lambda *of: jnp.stack([of_layer(*of, layer=layer) for layer in layers])  # noqa: E731
    inner, within = jax.jit(inner), (0, 0) if is_causal(model) else special

    def measure(kind: str, weights: str, params: Params, on_progress: Any) -> dict[str, Any]:
        values, of_inner = [], []
        count = num_texts if weights == "trained" else budget.num_inner
        for place, body in enumerate(kinds[kind][:count]):
            ids = jnp.array([*start, *(body() if isinstance(body, partial) else body), *end])
            known = {"model": weights, "ids": ids.tolist(), "place": place}
            arguments = params, ids, jax.random.key(place)
            values.append(keep(partial(measured, *arguments), **known, projections=PROJECTIONS))
            if place < budget.num_inner and weights in ("trained", "random 0"):
                known |= {"bands": BANDS, "special": special}
                of_inner.append(keep(partial(inner, *arguments), **known))
            on_progress((place + 1) / count)
        tables = [positions(np.array(values, float), special=special)]
        if of_inner:
            tables.append(within_model(np.array(of_inner, float), special=within))
        table = pd.concat(tables).round(6)
        return {"results": table.assign(model=weights, corruption=kind, **shared)}

    jobs = [
        runner.Job(f"{weights} weights, {kind}", partial(measure, kind, weights, params))
        for kind in kinds
        for weights, params in [("trained", model.params), *drawn]
    ]
    plan = {**budget._asdict(), "weights": digest}
    return runner.fill("influence", config, jobs, page, plan=plan)


def load_or_measure(root: Path, measure: Callable[[], Any], **document: Any) -> np.ndarray:
    """Returns the array under the hash of a document; measures and stores it the first time."""
    path = root / f"influence-{identifier(document)}.npy"
    if not path.exists():
        np.save(content := io.BytesIO(), np.asarray(measure()))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content.getvalue())
    return np.load(path)


def texts(
    folder: str, num_texts: int, num_tokens: int, *, text_file: str | None = None
) -> dict[str, np.ndarray]:
    """Returns ids `(num_texts, num_tokens)` of uniform tokens, and of passages of a text file.

    The tokenizer is that of the model in `folder`; there are no special tokens.
    """
    vocabulary = read_tokenizer(folder)
    # BERT's vocabulary begins with tokens that it never met.
    words = [n for n, token in enumerate(vocabulary.tokens) if not token.startswith(("[", "<"))]
    kinds = {UNIFORM: np.random.default_rng(0).choice(words, (num_texts, num_tokens))}
    if text_file:
        lines = Path(text_file).read_text(encoding="utf-8")
        ids = text_tokenizer(vocabulary).encode(lines, add_special_tokens=False).ids
        if len(ids) < (least := num_texts * num_tokens):
            raise ValueError(f"{text_file} must have at least {least} tokens, got {len(ids)}")
        begins = np.linspace(0, len(ids) - num_tokens, num_texts).astype(int)
        kinds[TEXT] = np.stack([ids[begin : begin + num_tokens] for begin in begins])
    return kinds


def special_tokens(folder: str) -> tuple[list[int], list[int]]:
    """Returns the ids before and after a text, such as [CLS] and [SEP]; Gemma-2 has <bos> only."""
    encoded = text_tokenizer(read_tokenizer(folder)).encode("a")
    words = [place for place, added in enumerate(encoded.special_tokens_mask) if not added]
    return encoded.ids[: words[0]], encoded.ids[words[-1] + 1 :]


def influences(model: Pretrained, params: Params, ids: jax.Array, key: jax.Array) -> jax.Array:
    """Returns the influence of every token of a text, in units of their mean."""
    mask = jnp.ones((1, len(ids)), bool)

    def output(embeddings: jax.Array) -> jax.Array:
        return pooled(model, model.forward(embeddings[None], mask, params=params).output[0])

    embeddings = model.embed(ids[None], params=params)
    size = jax.eval_shape(output, embeddings[0]).shape[0]
    signs = jax.random.rademacher(key, (PROJECTIONS, size), embeddings.dtype)
    each = geometric_influence(lambda x: signs @ output(x), embeddings, per_token=True)
    return each / each.mean()


def pooled(model: Pretrained, states: jax.Array) -> jax.Array:
    """Returns a text's embedding, or what a causal model has at the last token."""
    if is_causal(model):
        return states[-1]
    mean = states.mean(0)
    return mean / jnp.linalg.norm(mean)


def inner_influences(
    model: Pretrained, params: Params, ids: jax.Array, key: jax.Array, *, layer: int
) -> jax.Array:
    """Returns the influence of every token on an encoder's layer and on the output of its heads.

    In units of the mean over tokens, `(1 + heads, tokens)`.
    """
    mask = jnp.ones((1, len(ids)), bool)
    (embeddings,) = model.embed(ids[None], params=params)

    def outputs(x: jax.Array, keys: jax.Array) -> jax.Array:
        states = model.forward(x[None], mask, params=params).hidden_states[:, 0]
        value = pooled(model, states[layer + 1])
        signs = jax.random.rademacher(keys[0], (LAYER_PROJECTIONS, len(value)), x.dtype)
        maps = model.attention_maps(x[None], mask, params=params)[layer, 0]
        own = params["blocks"][layer]["attention"]["value"]
        values = (states[layer] @ own["kernel"] + own["bias"]).reshape(len(x), len(maps), -1)
        heads = jnp.einsum("ht,thw->hw", maps.mean(1), values)
        of_heads = (jax.random.rademacher(keys[1], heads.shape, x.dtype) * heads).sum(-1)
        return jnp.concatenate([signs @ value, of_heads])

    slopes = jax.jacrev(outputs)(embeddings, jax.random.split(key))
    squares = jnp.square(slopes).sum(-1)
    of_states, of_heads = jnp.split(squares, [LAYER_PROJECTIONS])
    each = jnp.sqrt(jnp.concatenate([of_states.sum(0, keepdims=True), of_heads]))
    return each / each.mean(-1, keepdims=True)


def random_weights(model: Pretrained, seed: int) -> Params:
    """Returns parameters as drawn before pretraining."""
    gemma = model.config["model_type"] == "gemma2"  # whose norms multiply by 1 + weight
    leaves, tree = jax.tree_util.tree_flatten_with_path(model.params)
    drawn = []
    for number, (path, leaf) in enumerate(leaves):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name.endswith("bias") or ("norm" in name and gemma):
            drawn.append(jnp.zeros_like(leaf))
        elif "norm" in name:
            drawn.append(jnp.ones_like(leaf))
        else:
            key = jax.random.fold_in(jax.random.key(seed), number)
            drawn.append(0.02 * jax.random.normal(key, leaf.shape, leaf.dtype))
    return jax.tree_util.tree_unflatten(tree, drawn)


def positions(values: np.ndarray, *, special: tuple[int, int]) -> pd.DataFrame:
    """Returns rows of results.csv on the output, from `(texts, tokens)` relative influences."""
    count, length = values.shape
    error = values.std(0, ddof=1) / np.sqrt(count)
    columns = {"level": np.arange(length), "score": values.mean(0), "standard_error": error}
    tables = [pd.DataFrame(columns).assign(metric="relative influence", num_examples=count)]
    for name, scores in parts(values, special=special).items():
        shares = {"seed": np.arange(count), "score": scores}
        tables.append(pd.DataFrame(shares).assign(metric=name, num_examples=1))
    return pd.concat(tables).assign(site="token")


def parts(values: np.ndarray, *, special: tuple[int, int]) -> dict[str, np.ndarray]:
    """Returns means over the parts of a text, and how many tokens have `MOST` of the influence.

    `values` are `(..., tokens)` relative influences, with `special` tokens before and after a text.
    """
    length = values.shape[-1]
    inner = values[..., special[0] : length - special[1]]
    ends, quarter = max(1, round(ENDS * length)), length // 4
    shares = np.cumsum(-np.sort(-values), axis=-1) / values.sum(-1, keepdims=True)
    return {
        "first": inner[..., :ends].mean(-1),
        "last": inner[..., -ends:].mean(-1),
        "middle": inner[..., quarter:-quarter].mean(-1),
        JUNTA: 1.0 + np.sum(shares < MOST, axis=-1),
    }


def within_model(values: np.ndarray, *, special: tuple[int, int]) -> pd.DataFrame:
    """Returns rows on layers and heads, from influences `(texts, layers, 1 + heads, tokens)`.

    Of at most `MOST_LAYERS` layers, the last among them; bands of `HEADS` heads of a middle one.
    """
    each = parts(values, special=special)
    scores = {FIRST: each["first"] / each["middle"], LAST: each["last"] / each["middle"]}
    inner = np.square(values[..., special[0] : values.shape[-1] - special[1]])
    for number, band in enumerate(np.array_split(inner, BANDS, axis=-1), 1):
        scores[f"{BAND}{number}"] = np.sqrt(band.mean(-1))
    texts, layers, sites = (part.ravel() for part in np.indices(values.shape[:3]))
    names = np.array(["layer", *(f"head {n}" for n in range(1, values.shape[2]))])
    places = pd.DataFrame({"level": layers + 1, "site": names[sites], "seed": texts})
    tables = [places.assign(metric=name, score=score.ravel()) for name, score in scores.items()]
    table = tidy.summarize(pd.concat(tables)).rename(columns={"mean": "score"})
    kept = np.arange(values.shape[1], 0, -math.ceil(values.shape[1] / MOST_LAYERS))
    of_band = table.metric.str.startswith(BAND)
    few = (table.level == kept[len(kept) // 2]) & table.site.isin(names[: 1 + HEADS])
    table = table[table.level.isin(kept) & (~of_band | few | (table.site == "layer"))]
    table["site"] = table.site.mask(of_band & (table.site == "layer"), "states")
    return table.round(4).assign(num_examples=len(values))


def ratios(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns how many times the middle's influence the ends of a text have, from results.csv.

    By `corruption`, `weights` and `part`, first or last: geometric means over texts.
    """
    keys = ["corruption", "weights", "model", "seed"]
    wide = with_weights(frame).pivot_table("score", keys, "metric", sort=False)
    logs = wide.transform(np.log).reset_index()
    each = [logs.assign(part=end, score=logs[end] - logs.middle) for end in ("first", "last")]
    means = over_texts(pd.concat(each))
    return means.assign(**{name: np.exp(means[name]) for name in ("mean", "low", "high")})


def with_weights(rows: pd.DataFrame) -> pd.DataFrame:
    """Adds the column `weights`, "trained" or "random", to rows of results.csv."""
    return rows.assign(weights=rows.model.str.split(" ").str[0])


def over_texts(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns `tidy.summarize` over texts, whose draws of random weights are averaged first."""
    keys = ["corruption", "weights", "part", "seed"]
    return tidy.summarize(rows.groupby(keys, sort=False)["score"].mean().reset_index())


def juntas(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns how many tokens have `MOST` of the output's influence, as `ratios` does."""
    counts = with_weights(frame[(frame.metric == JUNTA) & (frame.site == "token")])
    return over_texts(counts.assign(part=f"tokens with {MOST:.0%}"))


def influential(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns how many positions have `INFLUENTIAL` of the influence on a trained model's output.

    By `corruption`: `mean` is their number, `largest` the largest share; shares are means of texts.
    """
    rows = tidy.select(frame, metric="relative influence", model="trained")
    shares = rows.score / rows.groupby("corruption").score.transform("sum")
    groups = shares.groupby(rows.corruption, sort=False)
    counts = groups.agg(mean=lambda share: (share >= INFLUENTIAL).sum(), largest="max")
    return counts.reset_index().assign(weights="trained", low=np.nan, high=np.nan)


def claims(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns verdicts by the rules above, `tidy.CLAIMS`."""
    keys = ["corruption", "weights", "part"]
    inner = with_weights(frame[frame.metric.isin([FIRST, LAST])])
    inner["part"] = "U-shape, share of " + inner.site.str.split(" ").str[0] + "s"
    lowest = inner.groupby([*keys, "level", "site"], sort=False)["low"].min() > 1
    shares = lowest.groupby(level=keys, sort=False).mean().rename("mean").reset_index()
    tenth = influential(frame).assign(part=TENTH, paper=5.0, least=5.0)
    tables = ratios(frame).assign(least=1.0), shares.assign(least=0.5), tenth, juntas(frame)
    table = pd.concat(tables).sort_values("corruption", kind="stable")
    low, high, least = table.low.fillna(table["mean"]), table.high, table.least
    cases = {"n/a": least.isna(), "holds": low >= least, "reversed": high < least}
    cases["too weak to tell"] = high.notna()
    verdicts = np.select([*cases.values()], [*cases], "does not hold")
    claim = table.part.replace({"first": FIRST, "last": LAST})
    subject = table.corruption + ", " + table.weights
    return table.assign(subject=subject, claim=claim, verdict=verdicts)[[*tidy.CLAIMS]]


def curves(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the influence by position with intervals, means over draws of random weights."""
    rows = with_weights(rows).assign(variance=rows.standard_error**2)
    lines = rows.groupby(["corruption", "weights", "level"], sort=False, as_index=False).agg(
        mean=("score", "mean"), variance=("variance", "sum"), count=("score", "size")
    )
    half = 1.96 * np.sqrt(lines.variance) / lines["count"]
    return lines.assign(low=lines["mean"] - half, high=lines["mean"] + half)


def page(folder: Path) -> report.Page:
    """The page of a run."""
    frame = tidy.read(folder)
    relative: dict[str, Any] = {"ylabel": "influence / mean", "least_range": 1.0}
    lines, x = curves(frame[frame.metric == "relative influence"]), {"x": "level"}
    look = {"row": "corruption", "hue": "weights", "xlabel": "position", **x, **relative}
    pictures = {"influence": report.facets("Output", lines, **look)}
    bands = with_weights(frame[frame.metric.str.startswith(BAND)]).rename(columns={"score": "mean"})
    if len(bands):
        x = {"x": "band", "xlabel": f"position, {BANDS}ths"}
        bands["band"] = bands.metric.str.removeprefix(BAND).astype(int)
        look = {"row": "weights", "col": "corruption", "y": "level", "ylabel": "layer", **x}
        states, last = bands.site == "states", bands.corruption == bands.corruption.iloc[-1]
        pictures["layers"] = report.heat("Layers", bands[states], label="influence / mean", **look)
        heads, look = bands[~states & last], {"col": "weights", "hue": "site", **x, **relative}
        title = f"Heads of layer {heads.level.iloc[0]:g}, {heads.corruption.iloc[0]}"
        pictures["heads"] = report.facets(title, heads, **look)
    title, tables = "Influence of tokens by position", [report.verdicts(claims(frame))]
    return report.Page(title, pictures=pictures, tables=tables)
