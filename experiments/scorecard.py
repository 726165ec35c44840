"""The scorecard: every claim of the papers next to our measurement, computed from the results.

`python -m experiments.scorecard` writes `experiments/results/README.md` and `claims.png`.
"""

from __future__ import annotations

import collections
import functools
import importlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments import gaussian, report, tidy
from experiments.__main__ import EXPERIMENTS
from experiments.memory import similarity, trained
from experiments.noise_stability import arms, encoder, influence, tail_mass, theory
from experiments.paper import paper_lead
from experiments.rundir import read_config

RESULTS = Path(__file__).with_name("results")
# Modules with `page(folder)`, by the experiment that config.json names.
PAGES = {**EXPERIMENTS, "benchmarks": "experiments.benchmarks.harness"}
SST2, QQP, STEPS = "robustness/sst2", "robustness/qqp", "attribution/sst2"
SMALL = ("cola", "mrpc", "wnli", "copa", "wic", "wsc")  # of one page; no lead on RTE in the paper
STABILITY = {"learning rate 1e-4": "minilm_sst2", "learning rate 5e-5": "minilm_sst2_5e-5"}
# Fine-tuned encoders: folders of results, and titles.
FINE_TUNED = {
    "sst2": "SST-2, 12,000 rows",
    "sst2_full": "SST-2, all rows",
    "sst2_full_5e-5": "SST-2, all rows, one learning rate",
    "stsb": "STS-B",
    "cola": "CoLA",
    "cola_beta_4": "CoLA",
    "mrpc": "MRPC",
    "mrpc_parts": "MRPC, on a CPU",
    "mnli": "part of MNLI",
    "mnli_parts": "part of MNLI, on a CPU",
    "rte_mnli": "RTE after MNLI",
}
LEAST = -10  # left end of the picture of the parts; some differences are far below
LEVELS = {0.5012: 0.5, 1.0: 1.0, 1.995: 2.0}  # noise in units of a text's signal: the paper's σ
# Parts of Robertha: the model of `fine_tuning`, and the two rows of the paper's Table 3.
NO_PARTS = "robertha-no-iteration-no-esr"
PARTS = {
    "iteration": ("pretrained-hopfield", "robertha-no-esr", NO_PARTS),
    "iteration at β = 4": ("pretrained-hopfield-beta-4", "robertha-no-esr", NO_PARTS),
    "one update": ("pretrained-hopfield-1", "robertha-no-esr", NO_PARTS),
    "iteration and ESR": ("pretrained-hopfield-esr", "robertha", NO_PARTS),
    "one update and ESR": ("pretrained-hopfield-1-esr", "robertha", NO_PARTS),
    "ESR": ("pretrained-esr", "robertha", "robertha-no-esr"),
}
WITHOUT = {"pretrained-hopfield-beta-4": "pretrained-hopfield-0-beta-4"}  # else the encoder
noise_label = functools.partial(gaussian.noise_label, "matched")
START = "minilm"  # the pretrained encoder's folder in the published commands
NOT_LEARNED, AT_BASELINE = trained.NOT_LEARNED, "not above the majority baseline"
# Tests recompute them from the papers' tables.
ERRATA = [
    ("Robertha, Table 11: sets on which Robertha leads", "eight of nine", "seven of nine"),
    ("Robertha, Table 20: mean gap of TinyBERT", "3.6", "3.84"),
    ("Robertha, Table 27: Δ against effective rank r", "−0.23 + 0.29 r", "−1.92 + 0.30 r"),
    ("Robertha, Table 27: R² of this fit", "0.998", "0.978"),
    ("Robertha, Table 27: correlation of Δ and Gini", "−0.973", "−0.951"),
    ("Noise stability: training on modular addition", "10,000 iterations (text)",
     "49,000 (Table 2: 7,000 epochs of 2,000 rows in full batches of 256)"),
]  # fmt: skip
MEANING = {
    "holds": "holds",
    "smaller": "smaller than claimed",
    "no difference": "not found",
    "reversed": "reversed",
    "too weak to tell": "too weak to tell",
    "n/a": "no interval",
}


@dataclass(frozen=True)
class Difference:
    """A claim that one model, or one place of the noise, scores above another.

    Attributes:
        claim: In one phrase.
        source: The paper's table.
        folder: Of the results, below `experiments/results`.
        task: Task, as in results.csv.
        ours: Columns of the rows that should score higher.
        theirs: Columns of the rows they are compared with.
        paper: The paper's difference, in points.
        num_rows: Test rows, where so few that the interval must include their choice.
    """

    claim: str
    source: str
    folder: str
    task: str
    ours: Mapping[str, Any]
    theirs: Mapping[str, Any]
    paper: float
    num_rows: int | None = None


@functools.cache
def results(folder: str) -> gaussian.Measured:
    """A folder of published results, which several claims share."""
    return gaussian.read(RESULTS / folder)


def compared(claim: Difference) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Our scores and theirs, a row a seed."""
    scores = tidy.select(results(claim.folder).scores, task=claim.task)
    return tidy.select(scores, **claim.ours), tidy.select(scores, **claim.theirs)


def measured(claim: Difference) -> pd.Series:
    """Our difference with its interval: `mean`, `low`, `high`, `num_seeds`."""
    ours, theirs = compared(claim)
    differences = tidy.paired(ours, theirs, on=["seed"])
    summary = tidy.summarize(differences[["seed", "score"]].assign(task=claim.task))
    if claim.num_rows is not None:
        # As if the two accuracies were on different rows: an upper bound.
        accuracy = pd.concat([ours, theirs]).score.mean()
        summary = tidy.widened(summary, 2**0.5 * tidy.sampling_error(accuracy, claim.num_rows))
    return summary.iloc[0]


def lead(task: str, title: str, folder: str) -> Difference:
    """Robertha's lead over TinyBERT at the same site and SNR, on one task."""
    level = 0.5
    at = {"site": "token", "protocol": "matched", "level": level}
    return Difference(
        f"{title}: Robertha leads TinyBERT",
        "Tables 6–10",
        folder,
        task,
        {"model": "robertha", **at},
        {"model": "tinybert", **at},
        paper_lead(title.removeprefix("part of "), "robertha", "tinybert", level),
    )


def part(claim: str, ours: str, theirs: str) -> Difference:
    """What a part of Robertha adds on SST-2 at σ = 2 after the LayerNorm (-6 dB)."""
    at = {"site": "embedding", "protocol": "sigma", "level": 2.0}
    return Difference(
        claim, "Table 3, GLUE, σ = 2", STEPS, "sst2",
        {"model": ours, **at}, {"model": theirs, **at}, paper_lead("glue", ours, theirs, 2.0),
    )  # fmt: skip


def pretrained(name: str, title: str) -> list[list[Difference]]:
    """What parts of Robertha add to a fine-tuned MiniLM: a list of differences by SNR for each."""
    folder, task = f"fine_tuning/{name}", name.partition("_")[0]
    tested = set(results(folder).scores.model)
    at = {"site": "token", "protocol": "matched"}
    return [
        [
            Difference(
                f"{title}, fine-tuned: {claim}", "Table 3, GLUE", folder, task,
                {"model": model, **at, "level": level},
                {"model": WITHOUT.get(model, "pretrained"), **at, "level": level},
                paper_lead("glue", ours, theirs, sigma),
            )
            for level, sigma in LEVELS.items()
        ]
        for claim, (model, ours, theirs) in PARTS.items() if model in tested
    ]  # fmt: skip


def part_row(claims: list[Difference]) -> list[str]:
    """A line on a part: the differences without noise and by SNR, and the verdicts."""
    lines, verdicts = list(map(row, claims)), collections.defaultdict(list)
    for claim, line in zip(claims, lines, strict=True):
        verdicts[line[3]].append(noise_label(claim.ours["level"]))
    parts = [f"{said} ({', '.join(at)})" for said, at in verdicts.items()]
    said = lines[0][3] if len(parts) == 1 else "; ".join(parts)
    differences = [line[2] for line in lines]
    return [claims[0].claim, without_noise(claims[0]), *differences, said, lines[0][4]]


def attack(corruption: str, title: str) -> Difference:
    """Robertha less FreeLB under attacks on a tenth of the words of 200 texts."""
    at = {"corruption": corruption, "level": 0.1}
    return Difference(
        f"SST-2, {title} on 10 % of the words: Robertha trails FreeLB",
        "Table 12, GLUE", "typos/sst2", "sst2",
        {"model": "robertha", **at}, {"model": "freelb", **at},
        paper_lead("glue", "robertha", "freelb", 0.1, corruption=corruption), num_rows=200,
    )  # fmt: skip


def claims() -> list[Difference]:
    """The claims that are differences of two scores."""
    titles = gaussian.titles(SMALL)
    return [
        lead("sst2", "SST-2", SST2),
        lead("qqp", "part of QQP", QQP),
        lead("mnli", "part of MNLI", "robustness/mnli"),
        lead("qnli", "part of QNLI", "robustness/qnli"),
        lead("stsb", "STS-B", "robustness/stsb"),
        lead("boolq", "part of BoolQ", "robustness/boolq"),
        *(lead(task, titles[task], "robustness/seven_tasks") for task in SMALL),
        part("SST-2: iteration helps", "robertha-no-esr", "robertha-no-iteration-no-esr"),
        part("SST-2: ESR helps", "robertha", "robertha-no-esr"),
        attack("textbugger", "TextBugger"),
        attack("hotflip", "HotFlip"),
        Difference(
            "AdvSST-2: Robertha leads FreeLB", "Table 11", "adversarial/sst2",
            "adv-sst2:sst2", {"model": "robertha"}, {"model": "freelb"},
            paper_lead("AdvSST-2", "robertha", "freelb", 0.0, corruption="none"), num_rows=148,
        ),
    ]  # fmt: skip


def explanations() -> list[Difference]:
    """Comparisons at σ = 0.5 that change the noise's site or scale instead of the encoder."""
    at = {"protocol": "sigma", "level": 0.5}
    token = {"model": "tinybert", "site": "token", **at}
    sites = "Robertha with noise after the LayerNorm against TinyBERT with noise on the tokens"
    scale = "TinyBERT with embeddings rescaled by 50 against TinyBERT"
    return [
        Difference(
            f"{title}: {claim}", "", folder, task, {"model": model, "site": site, **at}, token,
            lead(task, title, folder).paper,
        )
        for task, title, claim, folder, model, site in (
            ("sst2", "SST-2", sites, SST2, "robertha", "embedding"),
            ("sst2", "SST-2", "TinyBERT at these two sites", SST2, "tinybert", "embedding"),
            ("sst2", "SST-2", scale, STEPS, "tinybert-unit-scale", "token"),
            ("qqp", "part of QQP", sites, QQP, "robertha", "embedding"),
        )
    ]  # fmt: skip


def row(claim: Difference) -> list[str]:
    """A line of the scorecard: claim, the paper's difference, ours, verdict, folder."""
    summary = measured(claim)
    said = verdict(claim, summary)
    # Bold marks evidence, which these models are not.
    summary["bold"] = said not in (NOT_LEARNED, AT_BASELINE)
    return [
        claim.claim,
        f"{report.signed(claim.paper)} ({claim.source})",
        report.with_interval(summary),
        said,
        f"[{claim.folder}]({claim.folder}/README.md)",
    ]


def verdict(claim: Difference, summary: pd.Series) -> str:
    """What our interval says about the claim, if the models score above the majority baseline."""
    rows = results(claim.folder)
    constants = gaussian.constants(rows)
    unlearned = gaussian.not_learned(rows.scores, constants).index
    learned = not {(claim.task, each["model"]) for each in (claim.ours, claim.theirs)} & {
        *unlearned
    }
    if not learned and ":" not in claim.task:  # an adversarial set has no clean scores
        return NOT_LEARNED
    if all(len(gaussian.near_baseline(each, constants)) for each in compared(claim)):
        return AT_BASELINE
    return MEANING[tidy.verdict(summary.low, summary.high, claim.paper)]


def without_noise(claim: Difference) -> str:
    """Our difference between the same models without noise."""
    clean = {"site": "", "protocol": "", "level": 0.0}
    ours, theirs = {**claim.ours, **clean}, {**claim.theirs, **clean}
    claim = replace(claim, ours=ours, theirs=theirs)
    summary = measured(claim)
    summary["bold"] = verdict(claim, summary) != NOT_LEARNED
    return report.with_interval(summary)


def training(claim: str, folder: str, task: str, source: str) -> list[str]:
    """A line on the steps that the stability regularizer saves."""
    by_name = {arm.name: arm for arm in arms.read_arms(RESULTS / folder) if arm.task == task}
    saved = arms.saved(by_name[arms.REGULARIZED], by_name[arms.BASELINE])
    reached = any(np.isfinite(arm.steps).any() for arm in by_name.values())
    verdict = MEANING[tidy.verdict(saved.low, saved.high, arms.PAPER[task])]
    return [
        claim,
        f"{report.number(arms.PAPER[task], 0)} %, {source}",
        f"{arms.said(saved)} %" if reached else "no run reaches the target",
        verdict if reached else "not measured",
        f"[{folder}]({folder}/README.md)",
    ]


def noise_stability() -> list[list[str]]:
    """The lines of the noise-stability paper."""
    curves = pd.read_csv(RESULTS / "theory/results.csv")
    held, forms = theory.closed_forms(curves)
    deepest = tidy.select(curves, task="transformer", model="Eq. 8, γ = 1").tail(1)
    (deep,) = deepest.itertuples()
    saves = "The regularizer saves training steps: "
    return [
        [
            "Theorems 5.1 to 5.3 are exact, 5.3 in wide layers",
            "exact",
            f"{held} of {forms} curves {theory.AGREEMENT}",
            "holds" if held == forms else "does not hold",
            "[theory](theory/README.md)",
        ],
        [
            f"Transformers with γ = 1 dampen stability weakly (from {theory.START:g})",
            f"{deep.formula:.3f} at layer {deep.level:g}, Eq. 8 and Figure 10",
            f"{deep.score:.4f} ± {deep.standard_error:.4f} (standard error)",
            "does not hold" if theory.distances(deepest).beyond.any() else "holds",
            "[theory](theory/README.md)",
        ],
        training(f"{saves}modular addition", "grokking/addition", "addition", "Figure 5"),
        training(f"{saves}parity of 20 bits", "grokking/parity", "parity", "Figure 5"),
        training(
            f"{saves}20 bits, an earlier run", "grokking/parity_earlier", "parity", "Figure 5"
        ),
        training(f"{saves}parity of 10 bits", "grokking/parity_10bits", "parity", "Figure 5"),
        training(f"{saves}WikiText-2", "language_model/wikitext2", "wikitext2", "Figure 6"),
        low_degree("Trained transformers have low degree", "sst2", "training"),
        *(
            low_degree(f"Fine-tuned MiniLM has low degree: {rate}", folder, "fine-tuning")
            for rate, folder in STABILITY.items()
        ),
        *(stable(rate, folder) for rate, folder in STABILITY.items()),
        u_shape("uniform tokens"),
        u_shape("real text"),
        few_tokens(),
        tighter_bound("", "minilm"),
        tighter_bound(", fine-tuned on SST-2", "minilm_sst2"),
    ]


def low_degree(claim: str, name: str, training: str) -> list[str]:
    """A line on the share of the output's variance that is linear in the noise."""
    folder = f"encoder_stability/{name}"
    trained, fresh = (encoder.linear_shares(RESULTS / folder, arm) for arm in ("trained", "fresh"))
    linear = report.joined(
        f"{100 * share:.0f} % ({model})" for model, share in trained["mean"].items()
    )
    verdicts = {
        "holds": [*trained.index[trained.low > 0.5]],
        "does not hold": [*trained.index[trained.high < 0.5]],
        "too weak to tell": [*trained.index[(trained.low <= 0.5) & (trained.high >= 0.5)]],
    }
    parts = {each: report.joined(models) for each, models in verdicts.items() if models}
    verdict = "; ".join(f"{each} for {models}" for each, models in parts.items())
    if len(parts) == 1:
        (verdict,) = parts
        before = verdict == "holds" and (fresh.low > 0.5).all()
        verdict += f", but also before {training}" if before else ""
    return [
        claim,
        "low degree",
        f"linear share: {linear}",
        verdict,
        f"[{folder}]({folder}/README.md)",
    ]


def stable(which: str, name: str) -> list[str]:
    """A line on whether the more stable of two fine-tuned encoders loses less under noise."""
    folder = f"encoder_stability/{name}"
    rows = encoder.gaps(encoder.read(RESULTS / folder))
    rows = tidy.select(rows, model="pretrained-noise-trained").set_index("head")
    correlation: Any = rows.loc[encoder.CORRELATION]
    lost: Any = rows.loc[encoder.POINTS_LOST]
    verdict = "does not hold" if lost.low > 0 else "too weak to tell"
    return [
        f"The more stable encoder loses less: MiniLM with and without noise training, {which}",
        "not stated",
        f"correlation × 100: {report.with_interval(correlation)}; points lost: "
        f"{report.with_interval(lost)}",
        "holds" if correlation.low > 0 and lost.high < 0 else verdict,
        f"[{folder}]({folder}/README.md)",
    ]


def u_shape(kind: str) -> list[str]:
    """A line on the influence of a pretrained encoder's tokens by position."""
    frame = pd.read_csv(RESULTS / "influence/minilm/results.csv")
    table = influence.ratios(frame)
    rows = table[table.corruption == kind].set_index(["weights", "part"])
    trained, random = rows.loc["trained"], rows.loc["random"]
    parts = [f"{end} 5 %: {report.bracketed(row)}" for end, row in trained.iterrows()]
    layers = report.joined(influence.curved_layers(influence.by_layer(frame), kind))
    return [
        f"Influence is U-shaped in position: {kind}",
        "U-shape, Figures 1, 7, 8",
        f"relative to the middle: {report.joined(parts)}",
        influence.verdict(trained, random) + f"; a U-shape in layers {layers}" * bool(layers),
        "[influence/minilm](influence/minilm/README.md)",
    ]


def few_tokens() -> list[str]:
    """A line on how many of a pretrained encoder's tokens have a tenth of the influence."""
    frame = pd.read_csv(RESULTS / "influence/minilm/results.csv")
    table, (least, most) = influence.influential(frame), influence.PAPER_TOKENS
    needed = tidy.select(influence.juntas(frame), weights="trained").set_index("corruption")["mean"]
    parts = [
        f"{row['count']:.0f} on {kind} (largest share: {100 * row.largest:.1f} %; "
        f"{100 * influence.MOST:g} % of the influence: {needed[str(kind)]:.0f} tokens)"
        for kind, row in table.iterrows()
    ]
    return [
        "A few tokens have at least a tenth of the influence",
        f"{least} to {most} of 256 tokens (more than 10 cannot)",
        report.joined(parts),
        "holds" if table["count"].between(least, most).all() else "does not hold",
        "[influence/minilm](influence/minilm/README.md)",
    ]


def memory() -> list[list[str]]:
    """A line on retrieval from the vocabulary for each task and model, at the same SNR per text.

    It is from the page with the most training and test rows; of several, the first by name.
    """
    table: dict[str, tuple[tuple[float, float], list[str]]] = {}
    for path in sorted((RESULTS / "memory").glob("*/config.json")):
        document = read_config(path.parent)
        name = document["experiment"]
        if name not in ("memory", "memory-trained"):
            continue
        measured = gaussian.read(path.parent)
        frame = measured.frame
        scores = tidy.select(tidy.scores(frame), protocol=["", "matched"])
        if name == "memory":  # untrained
            unlearned = []
            limits = frame.dropna(subset="limit").groupby("task").limit.mean()
        else:
            unlearned = gaussian.not_learned(scores, gaussian.constants(measured)).index
            limits = frame[frame.metric == "capacity_snr_db"].groupby("task").score.mean()
        pairs = {"none": "memory"} if name == "memory" else {
            each: f"{each}{trained.MEMORY}" for each in ("pretrained", "tinybert", "robertha")
        }  # fmt: skip
        titles = similarity.TITLES | gaussian.titles(frame.task.unique())
        titles["none"] = "MiniLM, not fine-tuned"
        units = (
            similarity.SCORES
            if name == "memory"
            else dict.fromkeys(("stsb", "cola"), "50 · (1 + r)")
        )
        unit = {task: f" ({each})" for task, each in units.items()}
        place = ", noise after the LayerNorm" if "embedding" in set(scores.site) else ""
        if (start := document["config"].get("encoder", {}).get("pretrained")) not in (None, START):
            place += f", after {start.removeprefix(f'{START}-').upper()}"
        for task, (without, remembering) in itertools.product(frame.task.unique(), pairs.items()):
            means = {
                str(model): of_model.groupby("level").score.mean()
                for model, of_model in tidy.select(scores, task=task).groupby("model")
            }
            if not {without, remembering} <= means.keys():
                continue
            rows = tidy.select(frame, task=task, metric="score")
            train = rows.num_train.max() if "num_train" in rows else 0
            size = train, rows.num_examples.max()
            title = f"{titles[task]}, {titles[without]}{unit.get(task, '')}{place}"
            if title in table and table[title][0] >= size:
                continue
            clean, kept = means[without][0.0], [NOT_LEARNED] * 2
            if (task, without) not in unlearned:
                kept = [lowest_snr(means[each], clean) for each in (without, remembering)]
                reach = {
                    each: lowest_kept(mean, clean) for each, mean in means.items() if plain(each)
                }
                best = min(reach, key=lambda each: (reach[each], each))
                if reach[best] < reach[without]:
                    kept[0] += f"; {titles[best]}: {similarity.decibels(reach[best])}"
            table[title] = (
                size,
                [
                    title,
                    f"{f'{train:,.0f}' if train else '–'} / {size[1]:,.0f}",
                    report.number(clean),
                    *kept,
                    similarity.decibels(limits[task]),
                    f"[memory/{path.parent.name}](memory/{path.parent.name}/README.md)",
                ],
            )
    return [line for _, line in table.values()]


def plain(model: str) -> bool:
    """Returns whether a model has no retrieval."""
    return not model.endswith(("memory", "nearest")) and model not in ("uniform", "known")


def lowest_kept(mean: pd.Series, clean: float) -> float:
    """Returns the lowest SNR in dB with the clean score, of means by level; inf for none."""
    noisy = mean[mean.index > 0]
    snr_db = -20 * np.log10(noisy.index.to_numpy())
    lowest = similarity.lowest_kept(dict(zip(snr_db, noisy, strict=True)), clean)
    return float(np.nan_to_num(lowest, nan=np.inf))


def lowest_snr(mean: pd.Series, clean: float) -> str:
    """Returns `lowest_kept` with its unit; "above X dB" for none."""
    if np.isinf(lowest := lowest_kept(mean, clean)):
        return f"above {similarity.decibels(-20 * np.log10(mean.index[mean.index > 0].min()))}"
    return similarity.decibels(lowest)


def tighter_bound(which: str, name: str) -> list[str]:
    """A line on both bounds on the weight of high degree, at the paper's degree."""
    folder = f"tail_mass/{name}"
    table = tail_mass.bounds(pd.read_csv(RESULTS / folder / "results.csv"))
    rows = tidy.select(table, degree=tail_mass.PAPER_DEGREE, weights=table.weights.iloc[0])
    degree, markov = (tidy.select(rows, quantity=each).iloc[0] for each in ("D", tail_mass.MARKOV))
    lemma = tidy.select(rows, quantity=tail_mass.LEMMA)["mean"].min()
    verdict = tail_mass.verdict(degree)
    return [
        f"Noise stability bounds high degrees more tightly than influence: MiniLM{which}",
        "2 to 10 times, Table 1",
        f"from stability {report.number(lemma, 3)}; from influence "
        f"{report.number(markov['mean'], 3)} (lower is tighter)",
        {tail_mass.TIGHTER: "holds", tail_mass.LOOSER: "does not hold"}.get(verdict, verdict),
        f"[{folder}]({folder}/README.md)",
    ]


def all_pages() -> report.Table:
    """Links to every page of published results, by the subject in its title."""
    links = collections.defaultdict(list)
    for path in sorted(RESULTS.rglob("results.csv")):
        folder = path.parent.relative_to(RESULTS)
        title, _, _ = (path.parent / "README.md").read_text(encoding="utf-8").partition("\n")
        subject, _, which = title.removeprefix("# ").partition(": ")
        links[subject].append(f"[{which or folder.name}]({folder}/README.md)")
    lines = [(subject, ", ".join(each)) for subject, each in sorted(links.items())]
    return report.Table(["subject", "pages"], lines, "**All pages.**")


def tabulated(claims: list[Difference]) -> pd.DataFrame:
    """Returns the claims and their measured differences, a row each."""
    return pd.DataFrame([{**vars(claim), **measured(claim)} for claim in claims])


def page() -> report.Page:
    """The scorecard of both papers."""
    scored = claims()
    parts_of = [claim for each in FINE_TUNED.items() for claim in pretrained(*each)]
    fine_tuned = [
        replace(claim, claim=f"{claim.claim} at {noise_label(claim.ours['level'])}")
        for claim in itertools.chain(*parts_of)
    ]
    lines, part_lines = list(map(row, scored)), list(map(part_row, parts_of))
    tested = [*scored, *fine_tuned]
    table = tabulated(tested)
    rejected = np.flatnonzero(tidy.rejected(table))
    said = [(tested[n].claim, verdict(tested[n], measured(tested[n]))) for n in rejected]
    unclear = NOT_LEARNED, AT_BASELINE
    left = report.joined(f"{claim} ({each})" for claim, each in said if each not in unclear)
    papers = []
    for name, (_, ours, theirs) in PARTS.items():
        if "one update" not in name and "β" not in name:
            by_sigma = (paper_lead("glue", ours, theirs, sigma) for sigma in LEVELS.values())
            papers.append(f"{name} {', '.join(map(report.signed, by_sigma))}")
    verdicts = [line[3] for line in lines]
    on_rte = next(
        each
        for each in fine_tuned
        if each.task == "rte" and each.ours["model"] == "pretrained-hopfield-1"
    )  # at +6 dB
    other_rate = replace(on_rte, theirs={**on_rte.theirs, "model": "pretrained-1e-4"})
    shown = table.head(len(scored))
    faint = [each in unclear for each in verdicts]
    labels = shown.claim + np.where(faint, " (no verdict)", "")
    shown = shown.assign(claim=labels, faint=faint)
    first = [claims[0] for claims in parts_of]
    learned = [claim for claim in first if verdict(claim, measured(claim)) not in unclear]
    parts_shown = tabulated(learned)
    parts_shown["claim"] = parts_shown.claim.str.replace(", fine-tuned", "")
    counts = collections.Counter(each for each in verdicts if each not in unclear)
    untested = len(scored) - counts.total()
    parts = [f"{counts['holds'] or 'none'} hold"]
    parts += [f"{count} are {each}" for each, count in counts.items() if each != "holds"]
    heads = ["claim", "the paper", "hopfax", "verdict", "data"]
    return report.Page(
        title="Results",
        answer=(
            f"**Of {len(scored)} differences in the Robertha paper, {counts.total()} could be "
            f"tested with the same corruption for both models: {report.joined(parts)}.** For the "
            f"other {untested}, a model is near the majority baseline."
        ),
        pictures={
            "claims": report.forest(
                "The Robertha paper's claims as differences in points: hopfax with 95 % intervals, "
                "the paper as open marks",
                shown,
                label="claim",
            ),
            "parts": report.forest(
                "Parts of Robertha in a fine-tuned MiniLM that learns the task: differences "
                f"in points at {noise_label(next(iter(LEVELS)))}, the paper's as open marks "
                "(arrows: beyond the axis)",
                parts_shown,
                label="claim",
                least=LEAST,
            ),
        },
        tables=[
            report.Table(
                heads,
                lines,
                "**Robertha.** Differences in points, with the same corruption for both models. "
                "Lead over TinyBERT: at +6 dB (the paper: σ = 0.5; it reports no lead on RTE) on "
                "the token embeddings. Iteration and ESR: at σ = 2 after the LayerNorm. The "
                "paper's values for GLUE are means over its tasks, ours are for SST-2.",
            ),
            report.Table(
                ["claim", "without noise", *map(noise_label, LEVELS), "verdict", "data"],
                part_lines,
                "**Parts of Robertha on a fine-tuned MiniLM.** Differences from the fine-tuned "
                "encoder (iteration at β = 4: from the same β without iteration), with the same "
                "SNR on the token embeddings of each text. The paper trains from scratch; its "
                f"differences at σ = 0.5, 1 and 2 (Table 3, GLUE) are: {'; '.join(papers)}. On "
                "SST-2 and STS-B, ESR alone hardly changes any score, so these rows do not show "
                "what a larger weight would do.",
            ),
            report.Table(
                heads,
                noise_stability(),
                "**Claims of the noise-stability paper, and one of ours.**",
            ),
            report.Table(
                [
                    "task and model",
                    "training / test rows",
                    "clean score",
                    "without memory, down to",
                    "with memory, down to",
                    "Shannon limit",
                    "data",
                ],
                memory(),
                "**Retrieval from the vocabulary (memory).** Lowest SNR at which the mean score "
                f"is within {similarity.NEAR:g} point of the clean score. Above X dB: lost already "
                "at X dB, the weakest noise tested. After a semicolon: the best other model "
                "without memory on the page, if it keeps this row's clean score at a lower SNR "
                "(pages compare with each model's own). Each row is the largest run (of equals, "
                "the first by name); the last table has all.",
            ),
            report.Table(
                ["comparison at σ = 0.5", "the paper's lead", "hopfax"],
                [
                    [claim.claim, report.signed(claim.paper), row(claim)[2]]
                    for claim in explanations()
                ],
                "**Sources of the gap.** The paper adds noise to the sum of token and position "
                "embeddings; its released program, after the embedding LayerNorm. A different "
                "noise site or embedding scale reproduces the paper's gap on SST-2, a different "
                "site about half of the gap on QQP.",
            ),
            report.Table(
                ["where", "printed", "recomputed"],
                ERRATA,
                "**Errata.** Numbers of the papers that do not follow from their own tables.",
            ),
            all_pages(),
        ],
        notes=[
            "Robertha: the paper's encoder, with iterative Hopfield attention and Eigenspectrum "
            "Regularization (ESR). TinyBERT: its baseline with softmax attention. FreeLB: TinyBERT "
            "with adversarial training.",
            "Holds: the interval excludes zero on the paper's side, and its estimate is "
            "at least half of the paper's difference; if less, smaller than claimed. Reversed: it "
            "excludes zero on the other side. Not found: it contains zero and excludes half of the "
            "paper's difference. Too weak to tell: it contains both. No "
            "interval (n/a): fewer than three seeds, or all equal.",
            "Savings of steps have these verdicts, too. Correlation: between clean "
            "and noisy outputs at ρ = 0.5, difference of the two models. Low degree: the interval "
            "of the linear share of the variance is above half. U-shape: both ends of a text have "
            "more influence than its middle half.",
            "Not learned: without noise, a model is under 5 points above the majority baseline (on "
            "n rows, under 100/√n if that is more). Not above the majority baseline: neither "
            "model is, under this corruption. These differences are never bold.",
            "Verdicts are for one comparison at a time; pages of fine-tuned encoders correct for "
            "the number of SNRs. Differences that remain significant after "
            f"Holm's correction for all {table.low.count()} comparisons with the Robertha paper: "
            f"{left or 'none'}. "
            "Most comparisons have three seeds, so power is low. For one update, the paper's value "
            "is that of iteration; for ESR, it is that of ESR on top of iteration.",
            "On SST-2 (12,000 rows), STS-B, CoLA, MNLI and RTE, all parts of Robertha and their "
            "baseline use one learning rate, 5e-5. The fine-tuned encoder at its own rate, 1e-4, "
            "scores higher at +6 dB on SST-2 and STS-B, and lower on RTE, where one update at 5e-5 "
            f"differs from it by {report.plain_interval(measured(other_rate))} points. On MRPC "
            'and on all rows of SST-2, except in "one learning rate", the encoder uses 1e-4 and '
            "the parts 5e-5: their differences include the rate's.",
            "Iteration: queries are updated until they converge; one update: once. β is relative "
            "to the loaded attention, 1 if not named. Intervals on "
            "AdvSST-2 and under attacks include the sampling error of their 148 and 200 rows. "
            "Their pages compare with TinyBERT; differences from FreeLB are computed from their "
            "results.csv.",
            "Memory: before the first layer, each token embedding is replaced by its posterior "
            "mean, given the vocabulary. A point of Spearman × 100 is half a point of "
            "50 · (1 + r). Shannon limit: the SNR below which no decoder that uses only token "
            "frequencies recovers all tokens.",
            "Grokking (generalization long after fitting) is untested: at these sizes, models "
            "generalize while they fit.",
            gaussian.SCORES,
        ],
    )


def render(folder: Path) -> None:
    """Writes the page of a folder of published results."""
    module = importlib.import_module(PAGES[read_config(folder)["experiment"]])
    report.publish(folder, module.page(folder))


def main() -> None:
    """Writes every page of the published results."""
    for path in sorted(RESULTS.rglob("config.json")):
        if (path.parent / "results.csv").exists():
            render(path.parent)
            print(path.parent.relative_to(RESULTS), flush=True)
    report.publish(RESULTS, page())


if __name__ == "__main__":
    main()
