"""Words and phrases as the tokens that they come out as, wherever in a text they stand."""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice

from regard.core.errors import InvalidArgument
from regard.data.tokenizer import START, UNKNOWN, Tokenizer
from regard.decoding import search as searching
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.logits_processors import BannedTokens
from regard.decoding.phrase_automaton import Phrase, Run
from regard.decoding.request import Request, SearchTask


def required(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Phrase]:
    """Each as itself: neither the beginning, the end nor the middle of another word."""
    return [_phrase(tokenizer, text) for text in _checked("required", texts)]


def banned(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Run]:
    """Each as it is cut at the start of a text and after a space."""
    cuts = tokenizer.encode_batch([cut for text in _checked("banned", texts) for cut in (text, f" {text}")])
    return list(dict.fromkeys(tuple(cut) for cut in cuts))


def search(tokenizer: Tokenizer, task: SearchTask, inputs: Sequence[Request]) -> Iterator[tuple[int, list[Hypothesis]]]:
    """The best outputs of each input; where one writes what is banned in other tokens, these are banned too."""
    for number, hypotheses in searching.search(task, inputs):
        asked = inputs[number]
        while found := [each for one in hypotheses for each in _otherwise(tokenizer, task, asked, one.tokens)]:
            asked = _without(asked, task, found)
            alone = replace(task, numbers=[task.numbers[number] if task.numbers else number])
            ((_, hypotheses),) = searching.search(alone, [asked])
        yield number, hypotheses


def stream(tokenizer: Tokenizer, task: SearchTask, asked: Request) -> Iterator[int]:
    """The same of the tokens of one output, each as it comes."""
    said, going = list[int](), searching.stream(task, asked)
    while (token := next(going, None)) is not None:
        if found := _otherwise(tokenizer, task, asked, [*said, token], since=len(said)):
            asked = _without(asked, task, found)
            going = islice(searching.stream(task, asked), len(said), None)
        else:
            said.append(token)
            yield token


def _without(asked: Request, task: SearchTask, found: list[tuple[Run, int]]) -> Request:
    """The same input, without what was found. What was drawn before the first of it stays as it is."""
    first = min(place for _, place in found)
    late = [each for each in found if each[1] == first] if task.config.sample else [(run, 0) for run, _ in found]
    return asked._replace(late=[*asked.late, *dict.fromkeys(late)])


def _otherwise(
    tokenizer: Tokenizer, task: SearchTask, asked: Request, tokens: Sequence[int], since: int = 0
) -> list[tuple[Run, int]]:
    """Runs of an output's own tokens that write what is banned, and are not; and where their last ones are.

    Of those whose last is at `since` or after.
    """
    everywhere = [(run, 0) for rule in task.rules if isinstance(rule, BannedTokens) for run in rule.phrases]
    banned = {(tuple(run), since) for run, since in (*everywhere, *asked.bans)}
    texts = {b"".join(tokenizer.spellings(run)) for run, since in banned if since == 0}
    if not texts:
        return []
    longest, found = max(map(len, texts)), list[tuple[Run, int]]()
    since = max(since, len(asked.prefix))
    start = max(asked.given, since - longest)  # no run that ends there is longer, as each token has a letter
    letters = tokenizer.spellings(tokens[start:])
    for last in range(since, len(tokens)):
        text = b""
        for first in range(last, start - 1, -1):
            text = letters[first - start] + text
            if not letters[first - start] or len(text) > longest:
                break
            if text in texts:
                found.append((tuple(tokens[first : last + 1]), last))
    return [(run, last) for run, last in found if (run, 0) not in banned and (run, last) not in banned]


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
