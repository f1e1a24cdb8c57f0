"""What is left of an English word without its endings: Porter's second algorithm, "English" in Snowball.

https://snowballstem.org/algorithms/english/stemmer.html
"""

import re
from functools import lru_cache

VOWELS = "aeiouy"  # and Y is a y that is none
AFTER_VOWEL = re.compile(f"[{VOWELS}][^{VOWELS}]")
REGION = re.compile("gener|commun|arsen")  # whose first region begins behind them
SHORT = re.compile(f"(?:[^{VOWELS}][{VOWELS}][^{VOWELS}wxY]|^[{VOWELS}][^{VOWELS}])$")
DOUBLED = re.compile(r"(?:bb|dd|ff|gg|mm|nn|pp|rr|tt)$")
WHOLE = {
    "skis": "ski", "skies": "sky", "dying": "die", "lying": "lie", "tying": "tie", "idly": "idl", "gently": "gentl",
    "ugly": "ugli", "early": "earli", "only": "onli", "singly": "singl", "sky": "sky", "news": "news", "howe": "howe",
    "atlas": "atlas", "cosmos": "cosmos", "bias": "bias", "andes": "andes",
}  # fmt: skip
AS_THEY_ARE = {"inning", "outing", "canning", "herring", "earring", "proceed", "exceed", "succeed"}

# Endings of the steps 2, 3 and 4, and what takes their place.
SECOND = {
    "tional": "tion", "enci": "ence", "anci": "ance", "abli": "able", "entli": "ent", "izer": "ize", "ization": "ize",
    "ational": "ate", "ation": "ate", "ator": "ate", "alism": "al", "aliti": "al", "alli": "al", "fulness": "ful",
    "ousli": "ous", "ousness": "ous", "iveness": "ive", "iviti": "ive", "biliti": "ble", "bli": "ble", "ogi": "og",
    "fulli": "ful", "lessli": "less", "li": "",
}  # fmt: skip
THIRD = {
    "tional": "tion", "ational": "ate", "alize": "al", "icate": "ic", "iciti": "ic", "ical": "ic", "ful": "",
    "ness": "", "ative": "",
}  # fmt: skip
FOURTH = {
    "al": "", "ance": "", "ence": "", "er": "", "ic": "", "able": "", "ible": "", "ant": "", "ement": "", "ment": "",
    "ent": "", "ism": "", "ate": "", "iti": "", "ous": "", "ive": "", "ize": "", "ion": "",
}  # fmt: skip
BEFORE = {"ogi": "l", "li": "cdeghkmnrt", "ion": "st"}  # the letters that must stand before some of them


@lru_cache(1 << 16)
def stem(word: str) -> str:
    """Of a word in small letters.

    >>> [stem(word) for word in ("running", "dogs", "flies", "happily", "played")]
    ['run', 'dog', 'fli', 'happili', 'play']
    """
    if word in WHOLE or len(word) <= 2:
        return WHOLE.get(word, word)
    word = re.sub(f"(^|[{VOWELS}])y", r"\1Y", word.removeprefix("'"))
    first, second = _regions(word)
    word = _plural(re.sub("'(s'?)?$", "", word))
    if word in AS_THEY_ARE:
        return word
    word = _past(word, first)
    if len(word) > 2 and word[-1] in "yY" and word[-2] not in VOWELS:
        word = word[:-1] + "i"
    word = _replaced(word, SECOND, first)
    word = _replaced(word, THIRD, first, {"ative": second})
    word = _replaced(word, FOURTH, second)
    silent = word.endswith("e") and len(word) > first and not SHORT.search(word[:-1])
    if silent or (word.endswith(("e", "ll")) and len(word) > second):
        word = word[:-1]
    return word.lower()


def _regions(word: str) -> tuple[int, int]:
    """Where the two parts begin that endings must lie in to be taken away."""
    found = REGION.match(word) or AFTER_VOWEL.search(word)
    first = found.end() if found else len(word)
    found = AFTER_VOWEL.search(word, first)
    return first, found.end() if found else len(word)


def _plural(word: str) -> str:
    if word.endswith("sses"):
        return word[:-2]
    if word.endswith(("ied", "ies")):
        return word[:-2] if len(word) > 4 else word[:-1]
    if word.endswith("s") and not word.endswith(("us", "ss")) and re.search(f"[{VOWELS}]", word[:-2]):
        return word[:-1]
    return word


def _past(word: str, first: int) -> str:
    found = re.search("(eedly|eed)$", word)
    if found:
        return word[: found.start()] + "ee" if found.start() >= first else word
    found = re.search("(ingly|edly|ing|ed)$", word)
    if not found or not re.search(f"[{VOWELS}]", word[: found.start()]):
        return word
    word = word[: found.start()]
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if DOUBLED.search(word):
        return word[:-1]
    return word + "e" if len(word) <= first and SHORT.search(word) else word


def _replaced(word: str, endings: dict[str, str], region: int, regions: dict[str, int] | None = None) -> str:
    """Of all the endings it has, only the longest counts."""
    ending = max((each for each in endings if word.endswith(each)), key=len, default=None)
    if ending is None:
        return word
    start = len(word) - len(ending)
    right = ending not in BEFORE or (start > 0 and word[start - 1] in BEFORE[ending])
    return word[:start] + endings[ending] if right and start >= (regions or {}).get(ending, region) else word
