"""Corruption of text: random typos, and attacks guided by a model's losses or gradients.

`misspell` and `swap_characters` change a random fraction of the words. `textbugger` and `hotflip`
attack a `Victim`, the interface of a model; `hopfax.train.white_box` returns one for an encoder.
`restore` returns the clean text.

Example:
    >>> from hopfax import text
    >>> pair = ("Where can I learn to program?", "How do I learn programming?")
    >>> version = text.misspell(pair, rate=0.2, seed=(23, 0))
    >>> text.restore(version) == pair, version.num_changed, version.num_words
    (True, 2, 11)
"""

from hopfax.text.attack import AttackResult as AttackResult
from hopfax.text.attack import Gradients as Gradients
from hopfax.text.attack import Linearized as Linearized
from hopfax.text.attack import Victim as Victim
from hopfax.text.hotflip import hotflip as hotflip
from hopfax.text.log import Edit as Edit
from hopfax.text.log import Text as Text
from hopfax.text.log import Version as Version
from hopfax.text.log import restore as restore
from hopfax.text.log import split_words as split_words
from hopfax.text.textbugger import textbugger as textbugger
from hopfax.text.typos import misspell as misspell
from hopfax.text.typos import num_changes as num_changes
from hopfax.text.typos import swap_characters as swap_characters
