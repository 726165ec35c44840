"""Corruption of text: random typos, and attacks guided by a model's losses or gradients.

`misspell` and `swap_characters` change a random share of the words. `textbugger` and `hotflip`
attack a `Victim`: the functions of a model, from `hopfax.train.white_box` for an encoder.
Every edit is logged: `restore` returns the clean text, and `replay` applies the edits again.

Example:
    >>> from hopfax import text
    >>> pair = ("Where can I learn to program?", "How do I learn programming?")
    >>> corrupted = text.misspell(pair, rate=0.2, seed=(23, 0))
    >>> text.restore(corrupted) == pair, corrupted.num_changed, corrupted.num_words
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
from hopfax.text.spelling import WordMemory as WordMemory
from hopfax.text.spelling import word_counts as word_counts
from hopfax.text.textbugger import textbugger as textbugger
from hopfax.text.typos import misspell as misspell
from hopfax.text.typos import num_changes as num_changes
from hopfax.text.typos import swap_characters as swap_characters
from hopfax.text.victim import AttackResult as AttackResult
from hopfax.text.victim import Gradients as Gradients
from hopfax.text.victim import Linearized as Linearized
from hopfax.text.victim import Victim as Victim
