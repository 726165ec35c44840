"""Replacements for letters: neighboring keys, similar sounds, similar looks; all in lower case."""

ALPHABET = "abcdefghijklmnopqrstuvwxyz"

# Adjacent keys of a QWERTY keyboard; symmetric.
_KEYS = """
qwa wqeas ewrsd retdf tryfg ytugh uyihj iuojk oipkl pol aqwsz sadwezx dsferxc fdgrtcv
gfhtyvb hgjyubn jhkuinm kjliom lkop zasx xzcsd cxvdf vcbfg bvngh nbmhj mnjk
"""
KEYBOARD = {entry[0]: entry[1:] for entry in _KEYS.split()}

# English spellings that sound alike, in both directions.
_ALIKE = """
ph f | ie ei | ea ee | ai ay | ou ow | oo u | ck k | c k | c s | s z | j g | i y | er or | er ar
ant ent | ance ence | able ible | tion sion | ight ite | dge ge | qu kw | x ks | au aw | ue ew
"""
# Silent letters, which are dropped but not added.
_SILENT = "kn n | wr r | mb m | wh w | gh g | ps s | mn m | sc s | tch ch | ough uff"


def _pairs(lines: str) -> tuple[tuple[str, str], ...]:
    pairs = (entry.split() for entry in lines.strip().replace("\n", "|").split("|"))
    return tuple((before, after) for before, after in pairs)


PHONETIC = (
    *_pairs(_ALIKE),
    *((after, before) for before, after in _pairs(_ALIKE)),
    *_pairs(_SILENT),
)

# TextBugger's examples are o-0, l-1 and a-@. All are ASCII, so vocabularies contain them.
_LOOKS = "a@4 b68 c( e3 g9q hn i1l! l1i| mn nm o0 q9g s5$ t7+ uv vu z2"
LOOK_ALIKES = {entry[0]: entry[1:] for entry in _LOOKS.split()}
