"""The class numbers of a file's labels, for a model with names of its own."""

import argparse
import csv
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Int


def class_numbers(
    labels: Sequence[str | int | float],
    names: Sequence[str],
    *,
    label_map: Mapping[str, str | int] | None = None,
) -> tuple[Int[np.ndarray, " labels"], str]:
    """Returns the class numbers of labels, and a note that lists renamed labels, or "".

    Labels are the model's, ignoring case, or else all are class numbers.

    Args:
        labels: A label for each row.
        names: The model's labels, in the order of its outputs.
        label_map: For labels that differ, the model's label or else the class number.

    Raises:
        ValueError: A label is unknown, or a number with two meanings: 1, for "1 star" of class 0.

    Example:
        >>> from hopfax.data.labels import class_numbers
        >>> class_numbers(["Good", "bad"], ["NEGATIVE", "GOOD"], label_map={"bad": 0})
        (array([1, 0]), 'Good is GOOD, bad is NEGATIVE')
    """
    label_map = {str(key): str(target) for key, target in (label_map or {}).items()}
    if not set(map(str, labels)) <= {*names, *label_map}:  # 1.0 for 1, as in columns with gaps
        labels = [int(x) if isinstance(x, float) and x.is_integer() else x for x in labels]
    values = list(dict.fromkeys(map(str, labels)))
    targets = _classes("--label-map", set(label_map.values()), names)
    keys = {value: _same(value, label_map) for value in values}
    classes = {value: targets[label_map[key]] for value, key in keys.items() if key is not None}
    classes |= _classes("--label", {*values} - {*classes}, names)
    renamed = [(each, names[classes[each]]) for each in values if each != names[classes[each]]]
    note = ", ".join(f"{value:.40} is {name:.40}" for value, name in renamed[:20])
    return np.array([classes[str(label)] for label in labels]), note


def _same(value: str, names: Iterable[str]) -> str | None:
    """Returns the name that is equal, or else the only one that is equal in another case."""
    near = [each for each in names if each.casefold() == value.casefold()]
    return value if value in near else near[0] if len(near) == 1 else None


def _classes(flag: str, values: set[str], names: Sequence[str]) -> dict[str, int]:
    """Returns the class of each value: all are names of classes or all unambiguous numbers."""
    numbers = {str(number): number for number in range(len(names))}
    if values <= numbers.keys() - {*names}:
        # The class "1 star" has the number 0.
        named = {each: at for at, name in enumerate(names) for each in re.findall(r"\d+", name)}
        if not values <= named.keys() or all(named[each] == numbers[each] for each in values):
            return {each: numbers[each] for each in values}
    near = {each: _same(each, names) for each in values}
    if None in near.values():
        given, known = (", ".join(f"{x:.40}" for x in xs[:20]) for xs in (sorted(values), names))
        problem = f"{flag} has {given}, but the model's labels are {known}"
        raise ValueError(f"{problem}: match them with --label-map VALUE=LABEL,VALUE=LABEL")
    return {value: names.index(name) for value, name in near.items() if name is not None}


def parse_label_map(text: str) -> dict[str, str]:
    """Returns the `label_map` of a flag's text; entries with a comma are quoted as in a CSV file.

    Raises:
        argparse.ArgumentTypeError: An entry is not VALUE=LABEL, or a value appears twice.

    Example:
        >>> from hopfax.data.labels import parse_label_map
        >>> parse_label_map("positive=1,negative=NEG")
        {'positive': '1', 'negative': 'NEG'}
    """
    entries = next(csv.reader([" ".join(text.splitlines())], skipinitialspace=True), [])
    pairs = [[part.strip() for part in entry.rpartition("=")[::2]] for entry in entries]
    if not pairs or not all(map(all, pairs)) or len(dict(pairs)) < len(pairs):
        raise argparse.ArgumentTypeError(f"must be VALUE=LABEL,VALUE=LABEL, got {text:.200}")
    return dict(pairs)
