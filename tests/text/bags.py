"""Victims whose loss is a function of the sum of token embeddings: the best edit is known."""

import re

import numpy as np

from hopfax.text import Gradients, Linearized, Victim
from hopfax.text.log import strings

WIDTH = 5
WORDS = ("the", "actors", "are", "wonderful", "but", "story", "drags", "badly", "in", "places")
CLEAN = "the actors are wonderful but the story drags badly in places"
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Bag:
    """Loss `sign * (w . s + s A s)` with s the sum of the vectors; linear where A is zero.

    Words of the vocabulary are one token, others one token per character. `calls` has the queries.
    """

    def __init__(self, words=WORDS, *, seed=0, curvature=0.0):
        rng = np.random.default_rng(seed)
        spellings = [*words, *(c for c in LETTERS + "0123456789@!$(|+" if c not in words)]
        self.tokens = ("[PAD]", "[UNK]", *spellings, *(f"##{c}" for c in LETTERS + "0123456789"))
        self.number = {token: number for number, token in enumerate(self.tokens)}
        self.table = rng.normal(size=(len(self.tokens), WIDTH)).astype(np.float32)
        self.weights = rng.normal(size=WIDTH)
        matrix = rng.normal(size=(WIDTH, WIDTH))
        self.matrix = curvature * (matrix + matrix.T)
        self.calls = []

    def pieces(self, word):
        word = word.lower()
        if word in self.number:
            return (self.number[word],)
        spellings = [word[0], *(f"##{letter}" for letter in word[1:])]
        return tuple(self.number.get(spelling, 1) for spelling in spellings)

    def tokenized(self, text):
        """(id, field, start, end) of every token."""
        tokens = []
        for field, string in enumerate(strings(text)):
            for match in re.finditer(r"\w+|[^\w\s]", string):
                ids, start = self.pieces(match.group()), match.start()
                for place, number in enumerate(ids):
                    first = start + place
                    end = match.end() if len(ids) == 1 else first + 1
                    tokens.append((number, field, first, end))
        return tokens

    def sum(self, text):
        return self.table[[token[0] for token in self.tokenized(text)]].astype(float).sum(0)

    def one_loss(self, text, label):
        total = self.sum(text)
        return (1 if label else -1) * (self.weights @ total + total @ self.matrix @ total)

    def loss(self, texts, labels):
        self.calls.append(("loss", list(texts)))
        return np.asarray([self.one_loss(*pair) for pair in zip(texts, labels, strict=True)])

    def linearize(self, texts, labels):
        self.calls.append(("gradient", list(texts)))
        return [self.one_linear(*pair) for pair in zip(texts, labels, strict=True)]

    def one_linear(self, text, label):
        columns = np.asarray(self.tokenized(text)).reshape(-1, 4).T
        slope = (1 if label else -1) * (self.weights + 2 * self.matrix @ self.sum(text))
        gradient = np.tile(slope, (columns.shape[1], 1)).astype(np.float32)
        return Linearized(self.one_loss(text, label), *columns, gradient)

    def victim(self):
        gradients = Gradients(
            self.linearize, lambda words: list(map(self.pieces, words)), self.table, self.tokens
        )
        return Victim(self.loss, gradients)
