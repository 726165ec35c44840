"""The page of a sweep over ESR's target and weight, with heat maps if both vary together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from experiments import gaussian, report, tidy
from experiments.models import SYMBOLS, Variant

X, Y = SYMBOLS["esr-target"], SYMBOLS["esr-weight"]
REST = {"title": "", "paper": None, "esr_target": 0.0, "esr_weight": 0.0}


def page(folder: Path, variants: Mapping[str, Variant]) -> report.Page:
    """Returns the page of a run; heat maps show the first panel, where a model does the task.

    They need two weights with two targets each, of models that differ in nothing else.
    """
    page, frame = gaussian.page(folder), tidy.read(folder)
    constants, scores = gaussian.constants(frame), gaussian.by_method(tidy.scores(frame))
    table = gaussian.lines(gaussian.informative(scores, constants), constants)
    others = {name: replace(each, **REST) for name, each in variants.items() if each.entropy}
    names = [name for name, each in others.items() if each == next(iter(others.values()))]
    table = table[(table.panel == table.panel.iloc[0]) & table.model.isin(names)]
    table[X] = [variants[name].esr_target for name in table.model]
    table[Y] = [variants[name].esr_weight for name in table.model]
    if (table.groupby(Y)[X].nunique() > 1).sum() < 2:
        return page
    table = table.sort_values("level").drop_duplicates(["task", "noise", X, Y])
    mark, titles = (Variant.esr_target, Variant.esr_weight), gaussian.titles(table.task.unique())
    heatmaps = {
        f"grid_{task}": report.heatmap(
            f"{titles[str(task)]}: score by {X} and {Y}", rows, x=X, y=Y, col="noise", mark=mark
        )
        for task, rows in table.groupby("task", sort=False)
    }
    return replace(page, pictures={**page.pictures, **heatmaps})
