"""What people and attackers put in the place of a letter: keyboard, sounds, looks.

Lower case only: `hopfax.text.changes` gives a replacement the case of what it replaces.
"""

from collections.abc import Mapping
from types import MappingProxyType

# Keys that touch on a QWERTY keyboard, in its usual stagger. Symmetric.
KEYBOARD: Mapping[str, str] = MappingProxyType(
    {
        "q": "wa",
        "w": "qeas",
        "e": "wrsd",
        "r": "etdf",
        "t": "ryfg",
        "y": "tugh",
        "u": "yihj",
        "i": "uojk",
        "o": "ipkl",
        "p": "ol",
        "a": "qwsz",
        "s": "adwezx",
        "d": "sferxc",
        "f": "dgrtcv",
        "g": "fhtyvb",
        "h": "gjyubn",
        "j": "hkuinm",
        "k": "jliom",
        "l": "kop",
        "z": "asx",
        "x": "zcsd",
        "c": "xvdf",
        "v": "cbfg",
        "b": "vngh",
        "n": "bmhj",
        "m": "njk",
    }
)

# Spellings that sound alike in English, what is written first and what is heard second. Each line
# goes both ways.
_ALIKE = """
ph f | ie ei | ea ee | ai ay | ou ow | oo u | ck k | c k | c s | s z | j g | i y | er or | er ar
ant ent | ance ence | able ible | tion sion | ight ite | dge ge | qu kw | x ks | au aw | ue ew
""".replace("\n", "|")
# And these one way: the silent letter is what gets lost.
_SILENT = "kn n | wr r | mb m | wh w | gh g | ps s | mn m | sc s | tch ch | ough uff"


def _pairs(lines: str) -> list[tuple[str, str]]:
    pairs = [tuple(line.split()) for line in lines.split("|") if line.strip()]
    return [(before, after) for before, after in pairs]


_BOTH = _pairs(_ALIKE)
PHONETIC: tuple[tuple[str, str], ...] = (
    *_BOTH,
    *((after, before) for before, after in _BOTH),
    *_pairs(_SILENT),
)

# Signs that look like a letter. TextBugger's own examples are o-0, l-1 and a-@; all are ASCII, so
# that no vocabulary turns them into an unknown word for their script alone.
LOOK_ALIKES: Mapping[str, str] = MappingProxyType(
    {
        "a": "@4",
        "b": "68",
        "c": "(",
        "e": "3",
        "g": "9q",
        "h": "n",
        "i": "1l!",
        "l": "1i|",
        "m": "n",
        "n": "m",
        "o": "0",
        "q": "9g",
        "s": "5$",
        "t": "7+",
        "u": "v",
        "v": "u",
        "z": "2",
    }
)

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
