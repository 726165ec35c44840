import pytest

from hopfax.data import task


def test_joins_of_superglue():
    copa = {"premise": "It rained.", "choice1": "A.", "choice2": "B.", "question": "effect"}
    assert task("copa").join(copa) == (
        ("It rained. What happened as a result?", "A."),
        ("It rained. What happened as a result?", "B."),
    )
    with pytest.raises(ValueError, match="'cause' or 'effect', got 'why'"):
        task("copa").join(copa | {"question": "why"})
    wic = {"word": "run", "sentence1": "Run rogue.", "sentence2": "She ran."}
    assert task("wic").join(wic) == (("run : Run rogue.", "She ran."),)
    wsc = {"text": "Ann saw Bo.", "target.span1_text": "Ann", "target.span2_text": "she"}
    assert task("wsc").join(wsc) == (("Ann saw Bo.", "she refers to Ann"),)
