"""Is Robertha more accurate on adversarial test sets: AdvGLUE, PAWS and PAWS-X?

Paper: Podasca and Das (2026), Table 11. Claim: without adversarial training, Robertha leads
DataAugment and FreeLB on eight of nine sets; in the table on seven (AdvSST-2 48.4 against 39.6 and
39.7).

Command: `python -m experiments adversarial --task sst2 --data-dir DIR`, with the flags of the
`robustness` run whose models to test (sst2, rte, mrpc, qqp, qnli or mnli); they are not trained
again.

Expected: accuracies at or below the majority baseline; on sets of 78 to 162 rows only
differences above eight points are detectable.

Each set tests models of the task it was derived from. PAWS and PAWS-X (paraphrases) test models of
QQP or MRPC; the paper trains on them and reports F1, so its scores are not comparable. No set is
used for model selection.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated

from experiments import gaussian, report, tidy
from experiments.paper import paper_score
from experiments.report import Page
from experiments.robertha.robustness import Encoders, run_models
from experiments.settings import Data, Flags, optional, resolved

REPRODUCES = "Robertha, Table 11: accuracy on AdvGLUE; on PAWS and PAWS-X, of models of QQP"

INTERVALS = (
    "Brackets are 95 % intervals over training seeds (paired) and test rows. Two models count as "
    "tested on different rows, which makes intervals of differences wider than necessary. Bold: "
    "excludes zero."
)


@dataclass(frozen=True, kw_only=True)
class Config(Flags):
    """Which models to test, and on what."""

    data: Data = Data(task=("sst2",))
    model: tuple[str, ...] = ("tinybert", "robertha")
    """Models, see `robustness`."""
    sets: Annotated[
        tuple[str, ...] | None, optional("STR ...", "all in --data-dir for the task")
    ] = None
    """Evaluation sets: adv-sst2, adv-qqp, adv-mnli, adv-mnli-mm, adv-qnli, adv-rte, paws, paws-x-de
    and so on."""
    encoder: Encoders = Encoders()


def run(config: Config) -> Path:
    """Trains and tests missing models, then writes the page; returns the run's folder."""
    from experiments import conditions

    config = resolved(config)
    tests = partial(
        conditions.evaluation_sets,
        names=config.sets,
        data_dir=config.data.data_dir,
        num_rows=config.data.test_size,
    )
    models = config.encoder.models(config.model)
    return run_models("adversarial", config, models, page, cache(tests))


def page(folder: Path) -> Page:
    """Returns the page of a run or of a folder of published results."""
    measured = gaussian.read(folder)
    frame, scores, titles, _, notes = measured
    trials = list(scores.task.unique())
    baseline = gaussian.reference(list(scores.model.unique()))
    sizes = scores.groupby("task").num_examples.max()
    table = tidy.summarize(scores)
    table = tidy.widened(table, tidy.sampling_error(table["mean"], table.task.map(sizes)))
    table = tidy.ordered(table, "task", trials)
    constant = gaussian.constants(measured.frame)
    gaps = tidy.summarize(tidy.difference(scores, model=baseline))
    if len(gaps):  # there is a second model
        theirs = table[table.model == baseline].set_index("task")["mean"]
        both = gaps.task.map(theirs) + gaps["mean"] / 2  # the mean of the two accuracies
        gaps = tidy.widened(gaps, 2**0.5 * tidy.sampling_error(both, gaps.task.map(sizes)))
    lines = []
    for _, row in table.iterrows():
        gap = gaps[(gaps.task == row.task) & (gaps.model == row.model)]
        # On PAWS, the paper tests models that were trained on it.
        title = "" if "PAWS" in titles[row.task] else titles[row.task]
        paper = paper_score(title, row.model, corruption="none")
        lines.append(
            [
                titles[row.task],
                titles[row.model],
                f"{report.number(row['mean'])} ± {report.number(row['std'])}",
                report.with_interval(gap.iloc[0]) if len(gap) else "",
                report.number(constant.get(row.task, float("nan"))),
                report.number(paper) if paper > 0 else "",
            ]
        )
    sets = table[table.task.str.contains(":")]
    baselines = sets.task.map(constant)
    counted = frame[(frame.metric == "train_overlap") & (frame.score > 0)].drop_duplicates("task")
    counted = counted[counted.task.isin(trials)].set_index("task")
    # Rows that share a text with the training file may all be right, or all wrong.
    margin = sets.task.map(100 * counted.score / counted.num_examples).fillna(0)
    above, below = (sets.low > baselines + margin).sum(), (sets.high < baselines - margin).sum()
    names = report.joined(titles[trial] for trial in trials if ":" in trial)
    drawn = sets.copy()
    for column in ("mean", "low", "high"):
        drawn[column] -= baselines
    heads = [
        "set", "model", "accuracy", f"minus {titles[baseline]}", "majority baseline", "the paper",
    ]  # fmt: skip
    # Empty: differences of a single model, and scores of the paper if it tests none of these.
    kept = [n for n in range(len(heads)) if any(line[n] for line in lines)]
    answer = (
        f"**On {names}, {above} of {len(sets)} accuracies are significantly above the majority "
        f"baseline, {below} significantly below it**"
    )
    if sets.low.isna().all():
        answer = f"**On {names}: too few seeds for intervals, so no verdict**"
    elif below == len(sets):
        answer = f"**On {names}, all accuracies are significantly below the majority baseline**"
    picture = report.forest(
        f"{names}: accuracy minus the majority baseline, with 95 % intervals",
        drawn,
        label="model",
        col="task",
        titles=titles,
        xlabel="points above the baseline",
    )
    overlap = report.joined(
        f"{titles[str(task)]} ({row.score:.0f} of {row.num_examples:,.0f})"
        for task, row in counted.iterrows()
    )
    known = (
        f"Rows that share a text with the training file: {overlap}. The verdicts hold whether "
        "these are all right or all wrong."
    )
    return report.Page(
        title=f"Adversarial sets: {names}",
        answer=(
            f"{answer}. Differences between models that are not above the majority baseline say "
            "little about robustness."
        ),
        pictures={"adversarial": picture},
        tables=[
            report.Table(
                [heads[n] for n in kept],
                [[line[n] for n in kept] for line in lines],
                "Accuracy, mean ± standard deviation over seeds. Brackets: 95 % intervals of "
                "differences; those of the accuracies are in the picture.",
            ),
        ],
        notes=[notes[0], INTERVALS, *([known] if overlap else [])],
    )
