"""Corruption of text: typos at random, and attacks that a model's losses or gradients guide.

`misspell` and `swap_characters` change a share of the words at random; `textbugger` and `hotflip`
choose by the model under attack, which they know as a `Victim` of plain functions. Every edit is
logged: `restore` gives the clean text back, and `replay` makes the edits again. Nothing here
imports a model: `hopfax.train.victim` makes a victim of an encoder.

Example:
    >>> from hopfax import text
    >>> pair = ("Where can I learn to program?", "How do I learn programming?")
    >>> found = text.misspell(pair, rate=0.2, seed=(23, 0))
    >>> text.restore(found) == pair, found.num_changed, found.num_words
    (True, 2, 11)
"""

from hopfax.text.flips import NEVER as NEVER
from hopfax.text.flips import PIECE as PIECE
from hopfax.text.flips import WORD as WORD
from hopfax.text.flips import best_flips as best_flips
from hopfax.text.flips import flip_gains as flip_gains
from hopfax.text.hotflip import hotflip as hotflip
from hopfax.text.log import Corrupted as Corrupted
from hopfax.text.log import Edit as Edit
from hopfax.text.log import Text as Text
from hopfax.text.log import draft as draft
from hopfax.text.log import replay as replay
from hopfax.text.log import restore as restore
from hopfax.text.textbugger import textbugger as textbugger
from hopfax.text.typos import misspell as misspell
from hopfax.text.typos import num_changes as num_changes
from hopfax.text.typos import swap_characters as swap_characters
from hopfax.text.victim import Attacked as Attacked
from hopfax.text.victim import Gradients as Gradients
from hopfax.text.victim import Linearized as Linearized
from hopfax.text.victim import Victim as Victim
