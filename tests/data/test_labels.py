import argparse

import pytest

from hopfax.data.labels import class_numbers, parse_label_map

STARS = ["1 star", *(f"{number} stars" for number in range(2, 6))]


@pytest.mark.parametrize(
    ("labels", "names", "numbers", "note"),
    [
        (["2", "1"], ("1", "2", "3"), [1, 0], ""),
        ([1.0, 0.0], ("bad", "good"), [1, 0], "1 is good, 0 is bad"),
        ([1.0, 0.0], ("1.0", "0.0"), [0, 1], ""),
        ([4, 1, 0], STARS, [4, 1, 0], "4 is 5 stars, 1 is 2 stars, 0 is 1 star"),
        (["Good", "good", "BAD"], ("bad", "good"), [1, 1, 0], "Good is good, BAD is bad"),
        (["a", "A"], ("A", "a"), [1, 0], ""),
    ],
)
def test_labels_are_names_in_any_case_or_numbers(labels, names, numbers, note):
    result = class_numbers(labels, names)
    assert result[0].tolist() == numbers and result[1] == note


@pytest.mark.parametrize(
    ("label_map", "labels", "numbers"),
    [
        ("positive=1,negative=0", ["negative", "positive"], [0, 1]),
        ("up=pos", ["UP", "NEG"], [1, 0]),
        ('"so, so=NEG", a=b=POS', ["so, so", "a=b"], [0, 1]),
        ("1=NEG,0=POS", [1.0, 0.0], [0, 1]),
        ("4=POS,1=NEG,3=POS", [4, 1, 3], [1, 0, 1]),
    ],
)
def test_label_map(label_map, labels, numbers):
    result = class_numbers(labels, ("NEG", "POS"), label_map=parse_label_map(label_map))
    assert result[0].tolist() == numbers


@pytest.mark.parametrize(
    ("labels", "names", "label_map", "message"),
    [
        ([0, 1], ("1", "2"), {}, "--label has 0, 1, but the model's labels are 1, 2: match"),
        ([0, "good"], ("bad", "good"), {}, "--label has 0, good, but"),
        ([4, 1, 3], STARS, {}, "--label has 1, 3, 4, but the model's labels are 1 star, "),
        (["so"], ("No", "no"), {"so": "NO"}, "--label-map has NO, but .* are No, no"),
        (["so"], ("no", "yes"), {"so": 2}, "--label-map has 2, but"),
        (["so"], STARS, {"so": 3}, "--label-map has 3, but"),  # the class number, or 3 stars?
        (["so", "so" * 10**6], ("no", "yes"), {"so": 0}, "--label has (so){20}, but"),
    ],
)
def test_unknown_and_doubtful_labels(labels, names, label_map, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        class_numbers(labels, names, label_map=label_map)


@pytest.mark.parametrize("text", ["", "a", "a=", "=1", "a=1,", "a=1,a=2"])
def test_malformed_label_maps(text):
    with pytest.raises(
        argparse.ArgumentTypeError, match=f"^must be VALUE=LABEL,VALUE=LABEL, got {text}$"
    ):
        parse_label_map(text)
