"""Words and phrases as the tokens that they come out as, wherever in a text they stand."""

import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from regard.data.tokens import START, UNKNOWN, Tokenizer
from regard.decoding.demand import Phrase, Run
from regard.errors import InvalidArgument


def required(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Phrase]:
    """Each as itself: neither the beginning, the end nor the middle of another word."""
    return [_phrase(tokenizer, text) for text in _checked("required", texts)]


def banned(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Run]:
    """Each as it is cut at the start of a text and after a space."""
    cuts = tokenizer.encode_batch([cut for text in _checked("banned", texts) for cut in (text, f" {text}")])
    return list(dict.fromkeys(tuple(cut) for cut in cuts))


def _phrase(tokenizer: Tokenizer, text: str) -> Phrase:
    at_start, after_space = (tuple(cut) for cut in tokenizer.encode_batch([text, f" {text}"]))
    if UNKNOWN in at_start:
        raise InvalidArgument(
            "required", wanted="words that the model has tokens for", got=repr(text), remedy="Check the spelling."
        )
    inside = _inside(tokenizer) if _of_a_word(text[-1]) else frozenset()
    if at_start == after_space:  # tokens are words
        return Phrase((at_start,))
    if not _of_a_word(text[0]):
        return Phrase((at_start,), inside)
    return Phrase(((START, *at_start), after_space), inside)


@lru_cache(maxsize=8)
def _inside(tokenizer: Tokenizer) -> frozenset[int]:
    """The tokens that go on with a word."""
    pieces = tokenizer.pieces(range(tokenizer.size))
    return frozenset(
        number for number, piece in enumerate(pieces) if number > UNKNOWN and (piece[0] == "⟨" or _of_a_word(piece[0]))
    )


def _of_a_word(character: str) -> bool:
    """Letters, digits and what joins them, of scripts that part words by spaces."""
    wide = unicodedata.east_asian_width(character) in "WF"
    return not wide and (character.isalnum() or unicodedata.category(character) in ("Mn", "Pc"))


def _checked(name: str, texts: Sequence[str]) -> list[str]:
    if isinstance(texts, str) or not all(isinstance(text, str) and text.strip() for text in texts):
        raise InvalidArgument(name, wanted="a list of words and phrases", got=repr(texts), remedy='Give ["word"].')
    return [text.strip() for text in texts]
