from functools import partial

import numpy as np
import pytest

from hopfax import text
from hopfax.text import Gradients, Victim

FILM = "a fine film"
NO_GRADIENTS = Victim(lambda *query: pytest.fail("queried before the arguments were checked"))
GRADIENTS = Gradients(lambda *query: [], lambda words: [], np.ones((5, 4)), tuple("abcde"))


def corrupt(**changes):
    return text.misspell(**{"text": FILM, "rate": 0.3, "seed": 0} | changes)


def attack(method=text.hotflip, **changes):
    victim = NO_GRADIENTS._replace(gradients=GRADIENTS)
    arguments = {"victim": victim, "texts": [FILM, FILM], "labels": [0, 1], "rate": 0.3}
    return method(**arguments | changes)


textbugger = partial(attack, text.textbugger)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (corrupt, {"rate": np.nan}, r"rate must be in \[0, 1\], got nan"),
        (corrupt, {"text": (("a",), ["b"])}, "a text must be a string, a tuple of strings"),
        *((method, {"rate": 1.5}, "rate must be .* got 1.5") for method in (textbugger, attack)),
        (textbugger, {"texts": FILM}, "a list of texts, got one string: 'a fine film'"),
        (attack, {"labels": [1]}, "got 2 texts, 1 labels and 2 rows"),
        (textbugger, {"batch_size": 2.5}, "batch_size must be an integer >= 1, got 2.5"),
        (attack, {"beam": 0}, "beam must be an integer >= 1, got 0"),
        (attack, {"form": "words"}, "form must be characters or tokens, got 'words'"),
        (attack, {"victim": NO_GRADIENTS}, "hotflip requires gradients"),
    ],
)
def test_messages(function, arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        function(**arguments)
