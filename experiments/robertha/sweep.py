"""The page of a sweep over ESR's target and weight, with a figure if both vary together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from experiments import gaussian, report, tidy
from experiments.models import SYMBOLS, Variant

X, Y = SYMBOLS["esr-target"], SYMBOLS["esr-weight"]
REST = {"title": "", "paper": None, "esr_target": 0.0, "esr_weight": 0.0}


def page(folder: Path, variants: Mapping[str, Variant]) -> report.Page:
    """Returns the page of a run; the figure shows the first panel, where a model does the task.

    It needs two weights with two targets each, of models that differ in nothing else.
    """
    page, frame = gaussian.page(folder), tidy.read(folder)
    constants, scores = gaussian.constants(frame), gaussian.by_method(tidy.scores(frame))
    table = gaussian.lines(gaussian.informative(scores, constants), constants)
    others = {name: replace(each, **REST) for name, each in variants.items() if each.entropy}
    names = [name for name, each in others.items() if each == next(iter(others.values()))]
    table = table[(table.panel == table.panel.iloc[0]) & table.model.isin(names)]
    table[[Y, X]] = [(variants[n].esr_weight, variants[n].esr_target) for n in table.model]
    table = table.sort_values(["level", Y, X]).drop_duplicates(["task", "noise", X, Y])
    if (table.groupby(Y)[X].nunique() > 1).sum() < 2:
        return page
    table[[X, Y]] = table[[X, Y]].map("{:g}".format)
    axes = {"x": X, "hue": Y, "row": "task", "col": "noise", "xlabel": X}
    titles = {each: f"{Y} = {each}" for each in table[Y]} | gaussian.titles(table.task)
    grid = report.facets(f"Score by {X} and {Y}", table, titles=titles, **axes)
    return replace(page, pictures={**page.pictures, "grid": grid})
