"""Differences between pairs of models, where a suite is about steps and not about one baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # imported where a page is made: --help reads the contrasts
    import pandas as pd

    from experiments.models import Variant
    from experiments.report import Page


class Contrast(NamedTuple):
    """A model and noise site, compared with those before a change; "" for all sites of both."""

    change: str
    model: str
    before: str
    site: str = ""
    site_before: str = ""


INNER, ONE_UPDATE = ("embedding", "embedding"), "robertha-no-iteration-no-esr"
# The six from mean pooling to ESR lead from TinyBERT to Robertha; the others are separate. The
# scale of the embeddings has the effect of moving the noise after the LayerNorm.
CHANGES = (
    Contrast("noise moved after the LayerNorm", "tinybert", "tinybert", "embedding", "token"),
    Contrast("mean pooling", "tinybert-mean", "tinybert", *INNER),
    Contrast("pre-LN", "tinybert-mean-prenorm", "tinybert-mean", *INNER),
    Contrast("dropout 0.3", "tinybert-mean-prenorm-dropout", "tinybert-mean-prenorm", *INNER),
    Contrast("one Hopfield update, β 15", ONE_UPDATE, "tinybert-mean-prenorm-dropout", *INNER),
    Contrast("iteration", "robertha-no-esr", ONE_UPDATE, *INNER),
    Contrast("ESR", "robertha", "robertha-no-esr", *INNER),
    Contrast("all six together: Robertha", "robertha", "tinybert", *INNER),
    Contrast("embeddings rescaled by 50", "tinybert-unit-scale", "tinybert", "token", "token"),
    Contrast("no W_O", "robertha-no-output-projection", "robertha", *INNER),
)


def by_size(sizes: Iterable[str]) -> tuple[Contrast, ...]:
    """Returns Robertha against the TinyBERT of each size."""
    return tuple(Contrast(name, f"robertha-{name}", f"tinybert-{name}") for name in sizes)


def differences(scores: pd.DataFrame, contrasts: Sequence[Contrast]) -> pd.DataFrame:
    """Returns the gain of each `change` that was measured, paired by seed, from `tidy.scores`."""
    import pandas as pd

    from experiments import tidy

    keys, parts = ["task", "denoiser", "site", "protocol", "level", "seed"], []
    for each in contrasts:
        ours, before = (tidy.select(scores, model=name) for name in (each.model, each.before))
        on = [*keys]
        if each.site:  # the clean score is the same at any site
            ours = tidy.select(ours, site=[each.site, ""])
            before = tidy.select(before, site=[each.site_before, ""])
            on.remove("site")
        if each.site != each.site_before:
            ours, before = ours[ours.level > 0], before[before.level > 0]
        gained = tidy.paired(ours, before, on=on)
        suffix = (" + " + gained.denoiser).where(gained.denoiser != "none", "")
        parts.append(gained[[*keys, "score"]].assign(change=each.change + suffix))
    return pd.concat(parts, ignore_index=True).drop(columns="denoiser")


def page(folder: Path, contrasts: Sequence[Contrast]) -> Page:
    """Returns the page of a run: the points that each change gains, mean over noise levels."""
    from experiments import gaussian, report, tidy

    gained = differences(tidy.scores(tidy.read(folder)), contrasts)
    if not (gained.level > 0).any():  # other models
        return gaussian.page(folder)
    means = tidy.summarize(tidy.average(gained, "level"))
    means["panel"] = means.protocol.replace({"": "clean", **gaussian.PROTOCOLS})
    means["change"] = means.change.where(means.site != "token", means.change + ", tokens")
    means = tidy.ordered(means, "panel", ["clean", *gaussian.PROTOCOLS.values()])
    pictures, tables, titles = {}, [], gaussian.titles(means.task.unique())
    axes = {"label": "change", "col": "panel", "xlabel": "points gained"}
    for task, rows in means.groupby("task", sort=False):
        noisy, title = rows[rows.panel != "clean"], f"{titles[str(task)]}: points gained"
        pictures[f"contrasts_{task}"] = report.forest(f"{title} by each change", noisy, **axes)
        tables.append(report.grid(rows, "change", "panel", f"{title}, mean over levels"))
    title = f"One change at a time: {', '.join(titles[task] for task in means.task.unique())}"
    return report.Page(title, pictures=pictures, tables=tables)


def sweep(folder: Path, variants: Mapping[str, Variant]) -> Page:
    """Returns the page of a run, with scores by ESR's weight and target if both vary."""
    from experiments import gaussian, report, tidy
    from experiments.models import SYMBOLS

    page, frame = gaussian.page(folder), tidy.read(folder)
    constants, scores = gaussian.constants(frame), gaussian.by_method(tidy.scores(frame))
    table = gaussian.lines(gaussian.informative(scores, constants), constants)
    rest = {"title": "", "paper": None, "esr_target": 0.0, "esr_weight": 0.0}
    others = {name: replace(each, **rest) for name, each in variants.items() if each.entropy}
    names = [name for name, each in others.items() if each == next(iter(others.values()))]
    table = table[(table.panel == table.panel.iloc[0]) & table.model.isin(names)]
    x, hue = SYMBOLS["esr-target"], SYMBOLS["esr-weight"]
    table[[hue, x]] = [(variants[n].esr_weight, variants[n].esr_target) for n in table.model]
    table = table.sort_values(["level", hue, x]).drop_duplicates(["task", "noise", hue, x])
    if (table.groupby(hue)[x].nunique() > 1).sum() < 2:
        return page
    table[[hue, x]] = table[[hue, x]].map("{:g}".format)
    titles = {each: f"{hue} = {each}" for each in table[hue]} | gaussian.titles(table.task)
    axes = {"x": x, "hue": hue, "row": "task", "col": "noise", "xlabel": x, "titles": titles}
    grid = report.facets(f"Score by {x} and {hue}", table, **axes)
    return replace(page, pictures={**page.pictures, "grid": grid})
