"""What is banned next, where an output spells a banned phrase with other tokens than those that are banned."""

import re

import pytest

from regard.core.sequence import Tokens
from regard.generation import phrases
from regard.generation.choose.interfaces import Hypothesis
from regard.generation.config import DecodeConfig
from regard.generation.request import GenerationRequest, SearchTask
from support.predictors import tokenizer, translator

TEXTS = ["the cat", "a dog ran", "the red car and the dog"]
WORDS = tokenizer("bpe")
MODEL = translator("bpe").model
BANNED = phrases.banned(WORDS, ["cat"])


def letters(text: str) -> tuple[int, ...]:
    """The tokens of single letters: how a tokenizer never writes a word of its vocabulary."""
    return tuple(WORDS.encode(letter)[0] for letter in text)


CAT = letters("cat")
SPACE_CAT = (*WORDS.encode(" c"), *letters("at"))


def task(**options) -> SearchTask:
    return SearchTask(MODEL, Tokens.of, DecodeConfig(**options))


def again(
    *outputs: tuple[int, ...], request: GenerationRequest | None = None, **options
) -> GenerationRequest | None:
    """The request to search again, after a search with these outputs."""
    request = request or GenerationRequest([5, 6], 2, banned=BANNED)
    hypotheses = [Hypothesis(tokens, None, None, None) for tokens in outputs]
    return phrases.without_other_spellings(WORDS, task(**options), request, hypotheses)


def test_letters_are_another_spelling():
    assert b"".join(WORDS.spellings(CAT)) == b"cat"
    assert CAT not in BANNED
    assert len(CAT) == 3


def test_an_output_without_the_phrase_is_accepted():
    assert again(letters("dog"), letters("ca"), ()) is None
    # The tokens that are banned themselves never occur: a search excludes them.
    assert again(letters("at"), request=GenerationRequest([5], 1)) is None


def test_a_search_bans_every_other_spelling_everywhere():
    """An output without draws is searched anew from its first token."""
    one = (*letters("dog"), *CAT, *letters("s"))
    other = (*SPACE_CAT, *CAT)
    found = again(one, other, beam_size=2)
    assert sorted(found.late) == sorted([(CAT, 0), (SPACE_CAT, 0)])
    assert found.banned == BANNED
    assert found._replace(late=()) == GenerationRequest([5, 6], 2, banned=BANNED)


def test_a_sample_keeps_what_it_drew_before_the_first_other_spelling():
    one = (*letters("dog"), *CAT, *SPACE_CAT)
    found = again(one, sample=True)
    # From its last token on, which is the sixth.
    assert found.late == [(CAT, 5)]
    earlier = (*letters("a"), *CAT)
    both = again(one, earlier, sample=True)
    assert both.late == [(CAT, 3)]


def test_several_other_spellings_at_one_place_are_banned_together_and_once():
    end = (*letters("a"), *SPACE_CAT)
    found = again(end, end, (*letters("o"), *SPACE_CAT), sample=True)
    assert found.late == [(SPACE_CAT, len(end) - 1)]


def test_what_was_banned_before_stays_banned():
    first = again((*CAT, *SPACE_CAT), sample=True)
    assert first.late == [(CAT, 2)]
    second = again((*letters("o"), *SPACE_CAT), request=first, sample=True)
    assert second.late == [(CAT, 2), (SPACE_CAT, len(SPACE_CAT))]
    # At another place, the same run is found again.
    third = again((*letters("dog"), *CAT), request=second, sample=True)
    assert third.late == [*second.late, (CAT, 5)]
    # A run that is banned from the beginning is not.
    assert again(CAT, request=first._replace(late=[(CAT, 0)])) is None
    assert again(CAT, request=first) is None


def test_a_prompt_and_a_prefix_may_hold_a_banned_phrase():
    """They are given, and a phrase that ends after them is spelled by the output."""
    prefix = list(CAT)
    begun = GenerationRequest([5], 1, banned=BANNED, prefix=prefix)
    assert again(CAT, request=begun) is None
    assert again((*CAT, *CAT), request=begun).late == [(CAT, 0)]
    half = GenerationRequest([5], 1, banned=BANNED, prefix=list(CAT[:2]))
    assert again(CAT, request=half).late == [(CAT, 0)]
    prompt = GenerationRequest([5], 1, banned=BANNED, prefix=list(CAT[:2]), given=2)
    assert again(CAT, request=prompt) is None


@pytest.mark.parametrize("options", [{}, {"beam_size": 3, "num_hypotheses": 3}])
def test_no_output_of_a_search_spells_the_phrase(options):
    """A word that the model would write, in tokens that are not those of the word."""
    model = translator("bpe", seed=4)
    options = {"max_length": 20, "banned": [], **options}

    def written(**others) -> list[bytes]:
        found = model.outputs(TEXTS, **(options | others))
        return [b"".join(WORDS.spellings(one.token_ids)) for outputs in found for one in outputs]

    words = {word.decode() for text in written() for word in re.findall(rb"[a-z]{2,}", text)}
    assert words
    for word in sorted(words):
        assert not any(word.encode() in text for text in written(banned=[word])), word
