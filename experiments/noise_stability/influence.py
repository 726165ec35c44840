"""Do a text's first and last tokens have the most influence, and is that learned?

Paper: Haris, Zhang and Yoshida (2026), Figures 1, 7 and 8. Claims: in pretrained transformers the
geometric influence of a token is a U-shaped function of its position, in the output, the layers and
the heads; and 5 to 10 of 256 tokens have at least a tenth of the total influence, as in a junta.

Command: `python -m experiments influence --pretrained FOLDER --text-file FILE`. FOLDER has a BERT,
RoBERTa, GPT-2 or Gemma-2 in the Hugging Face layout; FILE is plain text, such as
`wikitext-2/wiki.test.tokens`, without which only uniform tokens are measured. Some six minutes on
two cores for six layers of width 384.

Expected: a shape that random weights have too comes from the architecture, not from training.

The influence of a token is the norm of the output's derivative in its embedding, in units of the
text's mean over positions. The output is a text's embedding (mean of the last states, norm 1), or
the next token's logits for GPT-2 and Gemma-2. A layer's output is the same of its states; a head's
is its mean over the text, before the output projection, for BERT and RoBERTa. Random weights are
drawn as before pretraining: N(0, 0.02²), no biases, unit norms.
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
from experiments.noise_stability.inner import (
    BANDS,
    LAYER_PROJECTIONS,
    band_influences,
    inner_influences,
    pooled,
    sampler,
)
from experiments.rundir import identifier, write_whole
from experiments.settings import Run, budget_of, by_budget, optional
from hopfax.data import read_tokenizer
from hopfax.data.tokenize import text_tokenizer
from hopfax.nn import Params, Pretrained
from hopfax.nn.families import find_family
from hopfax.stability import geometric_influence

REPRODUCES = "Noise stability, Figures 1, 7 and 8: influence of tokens by position"
ENDS = 0.05  # share of the positions that counts as the beginning, and as the end
PROJECTIONS = 8  # random directions in which the output's derivative is taken
MOST = 0.9  # share of the influence whose tokens are counted
INFLUENTIAL = 0.1  # share of the influence from which the paper counts a token
TENTH = f"positions with {INFLUENTIAL:.0%}"
JUNTA = "tokens"  # metric: how many have `MOST` of the influence
FIRST, LAST = "first / middle", "last / middle"
UNIFORM, TEXT, OWN = "uniform tokens", "real text", "own samples"
BAND, CURVED = "band", "heads with a U-shape"  # metrics
MOST_LAYERS, HEADS = 16, 4  # whose bands are stored


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
    special, causal = (len(start), len(end)), is_causal(model)
    num_tokens, digest = budget.num_tokens - sum(special), weights_digest(config.pretrained)
    kinds = texts(config.pretrained, budget.num_texts, num_tokens, text_file=config.text_file)
    draw = sampler(model, num_tokens=num_tokens) if causal else None
    drawn = [(f"random {seed}", random_weights(model, seed)) for seed in range(budget.num_random)]
    measured = jax.jit(partial(influences, model))
    of_bands = jax.jit(partial(band_influences, model, special=special))
    inner = jax.jit(partial(inner_influences, model), static_argnames="layer")
    layers = range(find_family(model.config)[1]["num_hidden_layers"])
    shared, root = {"task": Path(config.pretrained).name}, Path(config.runs) / "cells"

    def body(kind: str, place: int) -> np.ndarray:
        if kind != OWN:
            return kinds[kind][place]
        key = jax.random.fold_in(jax.random.key(place), 1)
        document = {"weights": digest, "sample": place, "num_tokens": num_tokens}
        return stored(root, document, lambda: draw(model.params, key))

    def of_layers(*arguments: Any) -> np.ndarray:
        return np.stack([inner(*arguments, layer=layer) for layer in layers])

    def measure(kind: str, weights: str, params: Params, on_progress: Any) -> dict[str, Any]:
        values, within, bands = [], [], []
        count = budget.num_texts if weights == "trained" else budget.num_inner
        for place in range(count):
            ids, key = jnp.array([*start, *body(kind, place), *end]), jax.random.key(place)
            known = {"weights": digest, "model": weights, "ids": ids.tolist(), "place": place}
            of_output = known | {"projections": PROJECTIONS}
            values.append(stored(root, of_output, partial(measured, params, ids, key)))
            if place < budget.num_inner and weights in ("trained", "random 0"):
                parts = {"bands": BANDS, "special": special}
                bands.append(stored(root, known | parts, partial(of_bands, params, ids, key)))
                per_token = partial(of_layers, params, ids, key)
                document = known | {"projections": LAYER_PROJECTIONS}
                within.append(bands[-1] if causal else stored(root, document, per_token))
            on_progress((place + 1) / count)
        tables = [positions(np.array(values, float), special=special)]
        if within:
            ends = within_model(np.array(within, float), special=(0, 0) if causal else special)
            tables += [ends[ends.site == "layer"] if causal else ends, curved_heads(ends)]
            tables.append(band_rows(np.array(bands, float), num_tokens=num_tokens))
        table = pd.concat(tables).round(6)
        return {"results": table.assign(model=weights, corruption=kind, **shared)}

    jobs = [
        runner.Job(f"{weights} weights, {kind}", partial(measure, kind, weights, params))
        for kind in [*kinds, *([OWN] if causal else [])]
        for weights, params in [("trained", model.params), *drawn]
    ]
    plan = {**budget._asdict(), "weights": digest}
    return runner.fill("influence", config, jobs, page, plan=plan)


def stored(root: Path, document: Any, measure: Callable[[], Any]) -> np.ndarray:
    """Returns an array stored under the hash of a document; the first time, measures it."""
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
    """Returns rows on layers and heads, from influences `(texts, layers, 1 + heads, tokens)`."""
    each = parts(values, special=special)
    scores = {FIRST: each["first"] / each["middle"], LAST: each["last"] / each["middle"]}
    texts, layers, sites = (part.ravel() for part in np.indices(values.shape[:3]))
    names = np.array(["layer", *(f"head {n}" for n in range(1, values.shape[2]))])
    places = pd.DataFrame({"level": layers + 1, "site": names[sites], "seed": texts})
    tables = [places.assign(metric=name, score=score.ravel()) for name, score in scores.items()]
    table = tidy.summarize(pd.concat(tables)).rename(columns={"mean": "score"})
    return table.round(4).assign(num_examples=len(values))


def curved_heads(ends: pd.DataFrame) -> pd.DataFrame:
    """Returns rows on how many heads of each layer have a U-shape, from `within_model`'s."""
    heads = ends[ends.site != "layer"]
    lowest = heads.groupby(["level", "site"], sort=False)["low"].min().groupby("level")
    counts = lowest.agg(score=lambda low: (low > 1).sum(), num_examples="size").reset_index()
    return counts.assign(metric=CURVED, site="heads")


def band_rows(values: np.ndarray, *, num_tokens: int) -> pd.DataFrame:
    """Returns rows on bands, from influences `(texts, layers, 1 + heads, BANDS)`.

    Of at most `MOST_LAYERS` layers, the last among them, and of `HEADS` heads of the middle one.
    """
    count, num_layers, num_sites, _ = values.shape
    kept = range(num_layers - 1, -1, -math.ceil(num_layers / MOST_LAYERS))
    middle = (num_layers - 1) // 2
    sites = {f"layer {layer + 1}": (layer, 0) for layer in reversed(kept)} | {
        f"layer {middle + 1}, head {head}": (middle, head)
        for head in range(1, min(HEADS + 1, num_sites))
    }
    errors = values.std(0, ddof=1) / np.sqrt(count)
    level = np.arange(BANDS) * num_tokens // BANDS
    tables = [
        pd.DataFrame({"level": level, "score": mean, "standard_error": error}).assign(site=site)
        for site, place in sites.items()
        for mean, error in [(values.mean(0)[place], errors[place])]
    ]
    return pd.concat(tables).round(3).assign(metric=BAND, num_examples=count)


def ratios(frame: pd.DataFrame, *, learned: bool = False) -> pd.DataFrame:
    """Returns how many times the middle's influence the ends of a text have, from results.csv.

    By `corruption`, `weights` and `part`, first or last: geometric means over texts. If `learned`,
    of the trained model's ratio over that of random weights on the same text.
    """
    keys = ["corruption", "weights", "model", "seed"]
    wide = with_weights(frame).pivot_table("score", keys, "metric", sort=False)
    logs = wide.transform(np.log).reset_index()
    each = [logs.assign(part=end, score=logs[end] - logs.middle) for end in ("first", "last")]
    logs = pd.concat(each)
    if learned:
        on = ["corruption", "part", "seed"]
        random = logs[logs.weights == "random"].groupby(on)["score"].mean().reset_index()
        logs = tidy.paired(logs[logs.weights == "trained"], random, on=on)
    means = over_texts(logs)
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
    """Returns how many positions have `INFLUENTIAL` of the influence on the output.

    By `corruption` and `weights`: `mean` is their number, `largest` the largest share; shares are
    means over texts.
    """
    rows = curves(tidy.select(frame, metric="relative influence"))
    keys = ["corruption", "weights"]
    rows["share"] = rows["mean"] / rows.groupby(keys)["mean"].transform("sum")
    groups = rows.groupby(keys, sort=False)["share"]
    counts = groups.agg(mean=lambda share: (share >= INFLUENTIAL).sum(), largest="max")
    return counts.reset_index().assign(low=np.nan, high=np.nan)


def curved(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns how many of a model's layers and heads (`total`) have a U-shape, as `influential`."""
    keys = ["corruption", "model", "level"]
    lowest = frame[frame.site == "layer"].groupby(keys, sort=False, as_index=False)["low"].min()
    layers = lowest.assign(metric="layers with a U-shape", score=lowest.low > 1, num_examples=1)
    rows = with_weights(pd.concat([layers, frame[frame.metric == CURVED]]))
    groups = rows.groupby(["metric", "corruption", "weights"], sort=False, as_index=False)
    counts = groups.agg(mean=("score", "sum"), total=("num_examples", "sum"))
    return counts.rename(columns={"metric": "part"}).assign(low=np.nan, high=np.nan)


def claims(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the trained model's verdicts by the rules above, `tidy.CLAIMS`."""
    tenth = influential(frame).assign(claim=TENTH, paper=5.0, least=5.0)
    inner = curved(frame)
    named = inner.part + ", of " + inner.total.astype(str)
    tables = [tenth, inner.assign(claim=named, least=inner.total / 2)]
    for claim, learned in (("U-shape", False), ("U-shape, trained / random", True)):
        own = ratios(frame, learned=learned).groupby(["corruption", "weights"], sort=False)
        tables.append(own[["mean", "low", "high"]].min().reset_index().assign(claim=claim))
    table = tidy.select(pd.concat(tables), weights="trained").rename(
        columns={"corruption": "subject"}
    )
    cases = [table.low > 1, table.high < 1, table.low <= 1, table["mean"] >= table.least]
    verdicts = ["holds", "reversed", "too weak to tell", "holds"]
    table["verdict"] = np.select(cases, verdicts, "does not hold")
    return table.sort_values("subject", kind="stable")[[*tidy.CLAIMS]]


def curves(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the influence by position with intervals, means over draws of random weights."""
    rows = with_weights(rows).assign(variance=rows.standard_error**2)
    keys = ["corruption", "weights", "site", "level"]
    lines = rows.groupby(keys, sort=False, as_index=False).agg(
        mean=("score", "mean"), variance=("variance", "sum"), count=("score", "size")
    )
    half = 1.96 * np.sqrt(lines.variance) / lines["count"]
    return lines.assign(low=lines["mean"] - half, high=lines["mean"] + half)


def page(folder: Path) -> report.Page:
    """The page of a run."""
    frame = tidy.read(folder)
    axes: dict[str, Any] = {"x": "level", "xlabel": "position"}
    relative = {"ylabel": "influence / mean", "least_range": 1.0, **axes}
    lines = curves(frame[frame.metric == "relative influence"])
    output = report.facets("Output", lines, row="corruption", hue="weights", **relative)
    pictures = {"influence": output}
    if len(bands := curves(frame[frame.metric == BAND])):
        is_head = bands.site.str.contains("head")
        layers = bands[~is_head].assign(layer=lambda rows: rows.site.str.split().str[1].astype(int))
        of_layers = {"row": "weights", "col": "corruption", "y": "layer", "ylabel": "layer"}
        label = f"influence / mean of {BANDS} bands"
        pictures["layers"] = report.heat("Layers", layers, label=label, **of_layers, **axes)
        kind = bands.corruption.iloc[-1]
        heads = bands[is_head & (bands.corruption == kind)]
        title = f"Heads: {kind}"
        pictures["heads"] = report.facets(title, heads, col="weights", hue="site", **relative)
    counts = [influential(frame).assign(part=TENTH), curved(frame)]
    output = pd.concat([ratios(frame), juntas(frame), *counts])
    output["line"] = output.corruption + ", " + output.weights
    output["metric"] = output.part.replace({"first": FIRST, "last": LAST})
    cell = partial(report.bracketed, digits=2)
    tables = [
        report.verdicts(claims(frame)),
        report.grid(output, "line", "metric", "Output, layers and heads", cell=cell),
    ]
    return report.Page("Influence of tokens by position", pictures=pictures, tables=tables)
