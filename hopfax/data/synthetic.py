"""Three small synthetic tasks, in whose grammars function words decide the label.

Content words have almost the same distribution for every label, so models that read only content
words, or only function words, stay near chance.
"""

import hashlib
import zlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from hopfax.data.tasks import Example, check_integer, look_up, task

# Far fewer rows than each grammar can generate, so that rejection sampling is fast.
MAX_ROWS = {"train": 100_000, "validation": 20_000, "test": 20_000}
# Split by the last digit of a text's hash.
_SPLITS = (*["train"] * 6, *["validation"] * 2, *["test"] * 2)
T = TypeVar("T")
Row = tuple[str, ...]


def _words(text: str) -> Row:
    return tuple(text.split())


_ASPECTS = _words(
    "film plot story cast acting ending script music humour dialogue pacing scenery "
    "opening costumes editing"
)
_GOOD = _words("brilliant charming clever delightful fresh funny graceful moving superb warm")
_BAD = _words("awful boring clumsy dreadful dull lazy shallow stale tedious ugly")
_WATCHERS = _words("critic viewer guest reader friend student teacher writer")
_PLAIN = ("{}", "very {}", "truly {}", "quite {}", "so {}")
_NEGATED = ("not {}", "never {}", "hardly {}", "not at all {}", "by no means {}")
_MANY = ("every {}", "each {}", "almost every {}", "many a {}")
_NONE = ("no {}", "hardly any {}", "not one {}", "almost no {}")


def sentiment(rng: np.random.Generator, label: int) -> Row:
    """One clause, or two clauses and a connective that decides which one counts.

    "although the plot was dull , the cast was not at all shallow" is positive: the main clause
    counts, and its adjective is negated. In "X but Y", Y counts; in "although X , Y" and "Y , even
    if X", the clause without the connective counts.
    """
    positive = bool(label)
    if rng.random() < 0.5:
        return (_verdict(rng, positive),)
    # The other clause mostly has the opposite sentiment.
    other = _verdict(rng, bool(rng.random() < 0.3) == positive)
    counts = _verdict(rng, positive)
    frames = ("{o} but {c}", "although {o} , {c}", "{c} although {o}", "{c} , even if {o}")
    return (_pick(rng, frames).format(o=other, c=counts),)


def _verdict(rng: np.random.Generator, positive: bool) -> str:
    """One clause; a negation or the subject negates the adjective in 40 % of clauses."""
    negated = rng.random() < 0.4
    adjective = _pick(rng, _GOOD if positive != negated else _BAD)
    aspect = _pick(rng, _ASPECTS)
    if rng.random() < 0.35:
        watcher = _pick(rng, _NONE if negated else _MANY).format(_pick(rng, _WATCHERS))
        return f"{watcher} found the {aspect} {adjective}"
    return f"the {aspect} was {_pick(rng, _NEGATED if negated else _PLAIN).format(adjective)}"


_KINDS = _words(
    "dog cat horse bird child farmer sailor doctor baker king singer painter clerk nurse "
    "pilot robot"
)
_TRAITS = _words("old young small tall brown grey hungry quiet happy tired")
_DEEDS = _words(
    "runs sleeps sings eats waits works swims dances reads walks jumps shouts smiles travels"
)
_WAYS = _words("quickly slowly outside inside today alone loudly together often early")
# Quantifiers, and whether omitting an addition to the noun or the verb keeps a sentence true.
_QUANTIFIERS = (
    (("some", "at least one", "a certain"), (True, True)),
    (("no", "not a single", "not even one"), (False, False)),
    (("every", "each", "any"), (False, True)),
    (("not every", "not each"), (True, False)),
)


def entailment(rng: np.random.Generator, label: int) -> Row:
    """Premise and hypothesis "Q (trait) kind deed (way)"; label 0 is entailment.

    One word is added or removed between them. The monotonicity of the quantifier (van Benthem
    1986) decides the label: "no dog runs" entails "no old dog runs", "some dog runs" does not
    entail "some old dog runs".
    """
    kind, trait, deed, way = (_pick(rng, words) for words in (_KINDS, _TRAITS, _DEEDS, _WAYS))
    quantifiers, upward = _pick(rng, _QUANTIFIERS)
    place = int(rng.random() < 0.5)
    removed = upward[place] == (label == 0)
    # The other optional word is in both sentences, or in none.
    extra = bool(rng.random() < 0.5)
    sentences = []
    for present in (removed, not removed):
        has_trait, has_way = (present, extra) if place == 0 else (extra, present)
        noun = f"{trait} {kind}" if has_trait else kind
        verb = f"{deed} {way}" if has_way else deed
        sentences.append(f"{_pick(rng, quantifiers)} {noun} {verb}")
    return tuple(sentences)


_PEOPLE = _words(
    "anna ben carl dora emil fay george helen ivan jane karl lucy mary nina oscar paul "
    "rosa sam tom vera"
)
_ACTS = _words("called helped followed thanked praised visited warned painted paid met")
_TIMES = ("", " today", " yesterday", " twice", " again", " on monday", " in may", " last week")
_THINGS = _words("letter book key basket lamp coat map ring box bottle")
_SITS = _words("was lay stood stayed fell appeared vanished")
_SPOTS = _words("house bridge garden table river tower wall church shed gate")
_PLACES = (
    ("in", "inside", "within"),
    ("on", "upon", "on top of"),
    ("under", "beneath", "below"),
    ("near", "close to", "next to"),
    ("behind", "in back of", "at the back of"),
)
_ACTIONS = _words("sang slept danced worked laughed waited cooked rested")
_LINKS = (
    ("before", "prior to when"),
    ("after", "as soon as"),
    ("because", "since"),
    ("although", "even though"),
    ("unless", "except if"),
    ("while", "at the time that"),
)


def paraphrase(rng: np.random.Generator, label: int) -> Row:
    """Two sentences with the same content words; label 1 if they have the same meaning.

    Prepositions, connectives and voice determine the label: "the key was under the table" means
    "the key was beneath the table" but not "the key was near the table".
    """
    family, same = rng.random(), label == 1
    if family < 0.4:
        thing, spot = _pick(rng, _THINGS), _pick(rng, _SPOTS)
        words, sits = _two_words(rng, _PLACES, same), _pick(rng, _SITS)
        return tuple(f"the {thing} {sits} {word} the {spot}" for word in words)
    one, two = _two(rng, _PEOPLE)
    if family < 0.8:
        did, also_did = _two(rng, _ACTIONS)
        main, side = f"{one} {did}", f"{two} {also_did}"
        first, second = _two_words(rng, _LINKS, same)
        other = f"{main} {second} {side}" if rng.random() < 0.5 else f"{second} {side} , {main}"
        return f"{main} {first} {side}", other
    act, time = _pick(rng, _ACTS), _pick(rng, _TIMES)
    patient, agent = (two, one) if same else (one, two)
    return f"{one} {act} {two}{time}", f"{patient} was {act} by {agent}{time}"


def _two_words(rng: np.random.Generator, classes: Sequence[Sequence[str]], same: bool) -> Row:
    """Two different words of one class, or of two classes."""
    one, two = _two(rng, classes)
    return _two(rng, one) if same else (_pick(rng, one), _pick(rng, two))


def _two(rng: np.random.Generator, options: Sequence[T]) -> tuple[T, T]:
    first, second = rng.choice(len(options), size=2, replace=False)
    return options[int(first)], options[int(second)]


def _pick(rng: np.random.Generator, options: Sequence[T]) -> T:
    return options[int(rng.integers(len(options)))]


_DRAW = {"sentiment": sentiment, "entailment": entailment, "paraphrase": paraphrase}


def synthetic_split(name: str, split: str, *, size: int, seed: int) -> list[Example]:
    """Generates one split of a synthetic task.

    A hash of its text assigns each row to a split, so splits never overlap, whatever their seeds.
    Labels are balanced up to rounding. A smaller split has the first rows of a larger split with
    the same seed. Other names and sizes raise a ValueError.

    Args:
        name: ``"sentiment"``, ``"entailment"`` or ``"paraphrase"``.
        split: ``"train"``, ``"validation"`` or ``"test"``.
        size: Number of rows, at most 100,000 for training and 20,000 otherwise; no two are equal.
        seed: Seed, >= 0.

    Example:
        >>> from hopfax.data import synthetic_split
        >>> synthetic_split("sentiment", "test", size=1, seed=0)[0].texts
        (('the music was quite moving',),)
    """
    draw = look_up("synthetic task", name, _DRAW)
    check_integer("size", size, 1, look_up("split", split, MAX_ROWS))
    rng = np.random.default_rng([seed, zlib.crc32(f"{name}/{split}".encode())])
    seen, rows = set(), []
    while len(rows) < size:
        for label in rng.permutation(len(task(name).labels)).tolist():
            texts = draw(rng, label)
            while texts in seen or _split_of(texts) != split:
                texts = draw(rng, label)
            seen.add(texts)
            rows.append(Example((texts,), label, len(rows)))
    return rows[:size]


def _split_of(texts: Row) -> str:
    digest = hashlib.blake2b("\t".join(texts).encode(), digest_size=8).digest()
    return _SPLITS[int.from_bytes(digest, "little") % 10]
