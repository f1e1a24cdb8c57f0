"""Constraint phrases as token ids, in all tokenizations that spell them."""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice

from regard.core.errors import InvalidArgument
from regard.data.tokenizer import Tokenizer
from regard.generation import search as decoding
from regard.generation.choose.interfaces import Hypothesis
from regard.generation.choose.phrase_automaton import BEGINNING, Phrase, Run
from regard.generation.request import GenerationRequest, SearchTask


def required(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Phrase]:
    """Each phrase as whole words: neither the beginning, the end nor the middle of another word."""
    return [_phrase(tokenizer, text) for text in _check("required", texts)]


def banned(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Run]:
    """Each phrase as it is tokenized at the start of a text and after a space."""
    if not texts:
        return []
    runs = tokenizer.encode_batch(
        [run for text in _check("banned", texts) for run in (text, f" {text}")]
    )
    return list(dict.fromkeys(tuple(run) for run in runs))


def search(
    tokenizer: Tokenizer, task: SearchTask, requests: Sequence[GenerationRequest]
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """As `decoding.search`; an output that spells a banned phrase with other tokens is searched again without them."""
    for index, hypotheses in decoding.search(task, requests):
        request = requests[index]
        while (again := without_other_spellings(tokenizer, task, request, hypotheses)) is not None:
            request = again
            alone = replace(task, numbers=[task.numbers[index] if task.numbers else index])
            ((_, hypotheses),) = decoding.search(alone, [request])
        yield index, hypotheses


def without_other_spellings(
    tokenizer: Tokenizer,
    task: SearchTask,
    request: GenerationRequest,
    hypotheses: Sequence[Hypothesis],
) -> GenerationRequest | None:
    """The request to search again, where an output spells a banned phrase with other tokens; None where none does."""
    if not request.banned and not request.late:
        return None
    runs = [run for each in hypotheses for run in _other_spellings(tokenizer, request, each.tokens)]
    return _banning(request, task, runs) if runs else None


def stream(tokenizer: Tokenizer, task: SearchTask, request: GenerationRequest) -> Iterator[int]:
    """As `decoding.stream`, with banned phrases handled as in `search`."""
    generated = list[int]()
    tokens = decoding.stream(task, request)
    while (token := next(tokens, None)) is not None:
        if runs := _other_spellings(tokenizer, request, [*generated, token], since=len(generated)):
            request = _banning(request, task, runs)
            tokens = islice(decoding.stream(task, request), len(generated), None)
        else:
            generated.append(token)
            yield token


def _banning(
    request: GenerationRequest, task: SearchTask, runs: list[tuple[Run, int]]
) -> GenerationRequest:
    """The request with these runs banned too; a sampling search keeps what it drew before the first of them."""
    first = min(position for _, position in runs)
    late = (
        [each for each in runs if each[1] == first]
        if task.config.sample
        else [(run, 0) for run, _ in runs]
    )
    return request._replace(late=[*request.late, *dict.fromkeys(late)])


def _other_spellings(
    tokenizer: Tokenizer, request: GenerationRequest, tokens: Sequence[int], since: int = 0
) -> list[tuple[Run, int]]:
    """Runs of an output's tokens that spell a banned phrase but are not banned, each with the position of its end.

    Only those that end at position `since` or later.
    """
    banned = {(tuple(run), since) for run, since in request.bans}
    texts = {b"".join(tokenizer.spellings(run)) for run, since in banned if since == 0}
    if not texts:
        return []
    longest = max(map(len, texts))
    runs = list[tuple[Run, int]]()
    since = max(since, len(tokenizer.special_tokens.target_prefix) + len(request.prefix))
    start = max(request.given, since - longest)  # each token has at least one byte
    spellings = tokenizer.spellings(tokens[start:])
    for last in range(since, len(tokens)):
        text = b""
        for first in range(last, start - 1, -1):
            text = spellings[first - start] + text
            if not spellings[first - start] or len(text) > longest:
                break
            if text in texts:
                runs.append((tuple(tokens[first : last + 1]), last))
    return [
        (run, last) for run, last in runs if (run, 0) not in banned and (run, last) not in banned
    ]


def _phrase(tokenizer: Tokenizer, text: str) -> Phrase:
    at_start, after_space = (tuple(run) for run in tokenizer.encode_batch([text, f" {text}"]))
    if tokenizer.special_tokens.unknown in at_start:
        raise InvalidArgument(
            "required",
            wanted="words that the model has tokens for",
            got=repr(text),
            remedy="Check the spelling.",
        )
    continuations = _continuations(tokenizer) if _in_word(text[-1]) else frozenset()
    if at_start == after_space:  # a tokenizer of words
        return Phrase((at_start,))
    if not _in_word(text[0]):
        return Phrase((at_start,), continuations)
    return Phrase(((BEGINNING, *at_start), after_space), continuations)


@lru_cache(maxsize=8)
def _continuations(tokenizer: Tokenizer) -> frozenset[int]:
    """The tokens that continue a word."""
    named = zip(
        tokenizer.spellings(range(tokenizer.size)),
        tokenizer.pieces(range(tokenizer.size)),
        strict=True,
    )
    return frozenset(
        token
        for token, (spelling, piece) in enumerate(named)
        if spelling and spelling[:1] != b" " and (piece[0] == "⟨" or _in_word(piece[0]))
    )


def _in_word(character: str) -> bool:
    """Letters, digits, combining marks and connectors, in scripts that separate words by spaces."""
    wide = unicodedata.east_asian_width(character) in "WF"
    return not wide and (character.isalnum() or unicodedata.category(character) in ("Mn", "Pc"))


def _check(name: str, texts: Sequence[str]) -> list[str]:
    if isinstance(texts, str) or not all(isinstance(text, str) and text.strip() for text in texts):
        raise InvalidArgument(
            name, wanted="a list of words and phrases", got=repr(texts), remedy='Give ["word"].'
        )
    return [text.strip() for text in texts]
