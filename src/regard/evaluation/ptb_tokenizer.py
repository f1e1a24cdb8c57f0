"""The caption tokenizer of the COCO evaluation: lower-cased Penn Treebank tokens without most punctuation.

It reproduces the output of Stanford's tokenizer as that evaluation calls it, including its oddities, so that scores are
comparable: brackets stay as -lrb- and -rrb- (its list of dropped tokens has them in upper case), and so does a run of
marks such as "!!".
"""

import re
from functools import lru_cache
from html import unescape

LETTER = r"[^\W\d_²³¹]"
DROPPED = {"''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"}
BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}
REPLACED = str.maketrans(
    dict.fromkeys("‘’‛´", "'")
    | dict.fromkeys("“”„«»", '"')
    | {
        "…": "...",
        "–": "--",
        "—": "--",
        "½": " 1/2",
        "¼": " 1/4",
        "¾": " 3/4",
        "€": "$",
        "£": "#",
        "¢": " cents ",
    }
)
# Abbreviations, which keep their full stop.
TITLES = "mr mrs ms messrs dr drs prof gen adm capt cpl sgt lt col maj cmdr brig pvt gov sen sens rep reps pres hon rev"
NAMES = "st ste ave blvd rd mt ft jr sr bros inc co cos corp ltd cie assn univ est dept bldg sq tel ext ph ph.d"
TIMES = "jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thurs fri vs etc al cf mo"
STATES = "ariz calif colo conn fla ga ind kan ky md mich minn neb nev okla tenn va vt wis wyo"
BEFORE_NUMBERS = "no nos op pp fig art"


def _one_of(words: str) -> str:
    return "|".join(sorted(map(re.escape, words.split()), key=len, reverse=True))


# Alternatives are tried in this order at each position. A match with groups becomes one token per group.
TOKEN = re.compile(
    rf"""
      (?:https?://|www\.)[^\s"<>()]*[^\s"<>().,;:!?']
    | [\w.+-]*\w@\w+(?:[.-]\w+)*                                       # an e-mail address
    | [#@]{LETTER}\w* | </?{LETTER}[^<>]*>                             # a tag
    | (can)(not)\b | (gon|wan)(na)\b(?!') | (got)(ta)\b(?!') | (gim|lem)(me)\b(?!')
    | ('t)(is|was)\b | (more)('n)\b | (y')(all)\b | d'ye\b
    | 'n' | '(?:n|em|cause|till?|[2-9]0s)(?!\w)
    | {LETTER}(?:\.{LETTER})+\.?(?!{LETTER}) | {LETTER}\.(?!{LETTER})  # U.S., J.
    | (?:{_one_of(f"{TITLES} {NAMES} {TIMES} {STATES}")})\.(?!\w) | (?:{_one_of(BEFORE_NUMBERS)})\.(?=\s*\d)
    | [a-hj-xz]'(?-i:[A-Z])[\w-]* | [dol]'{LETTER}{{2,}}(?:-\w+)*      # O'Neil, o'clock
    | {LETTER}*[aeiouy]'[aeiou]{LETTER}*                               # ma'am, Hawai'i
    | '(?:s|m|d|ll|re|ve)\b | n't\b                                    # contraction suffixes
    | (?-i:[A-Z]+(?:&[A-Z]+)+)                                         # Q&A
    | (?:{LETTER}|\d)+?(?=n't\b)
    | (?<!\w)[-+]?(?:\d+(?:[.,:]\d+)++|\d++(?!\w|-\w|/\w)|\.\d++)
    | (?:{LETTER}|\d)+(?:[.!?]{LETTER}\w*)*(?:[-_/](?:{LETTER}|\d)+)*
    | [:;=]['-]?[()dp](?!\w)                                           # an emoticon
    | \.{{2,}} | [!?]+ | -{{2,}} | '' | ``
    | [^\s\w\u20a0-\u20cf\u2600-\U0010ffff] | [²³¹_]                   # anything but emoji
    """,
    re.VERBOSE | re.IGNORECASE,
)


@lru_cache(2048)  # several metrics tokenize the same captions, one after the other
def tokenize(caption: str) -> tuple[str, ...]:
    """The tokens of a caption.

    >>> tokenize("A man's dog doesn't run (yet)...")
    ('a', 'man', "'s", 'dog', 'does', "n't", 'run', '-lrb-', 'yet', '-rrb-')
    """
    found: list[str] = []
    for match in TOKEN.finditer(unescape(caption).translate(REPLACED)):
        parts = [part for part in match.groups() if part] or [match[0]]
        tokens = [_normalized(part.lower()) for part in parts]
        found += [token for token in tokens if token not in DROPPED]
    return tuple(found)


def _normalized(token: str) -> str:
    if token == '"':
        return "''"
    if len(token) > 1 and set(token) in ({"."}, {"-"}):
        return "..." if token[0] == "." else "--"
    return "".join(BRACKETS.get(character, character) for character in token)
