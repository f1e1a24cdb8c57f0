"""Required words occur as whole words and banned ones do not, whatever the tokenizer."""

import re
from itertools import product

import pytest
import torch

from regard.generation import phrases
from regard.generation.choose.phrase_automaton import BEGINNING
from support.predictors import classifier, language_model, tokenizer, translator

KINDS = ("bpe", "unigram", "words", "characters", "bytes")
SEARCHES = ({}, {"beam_size": 4, "num_hypotheses": 4}, {"sample": True, "num_hypotheses": 3})
REQUIRED = [["cat"], ["the dog", "red"], [], ["cat", "cat"], ["on"]]
TEXTS = ["the cat", "a dog ran", "mat", "the red car and the dog", "on"]


def word(text: str) -> str:
    return rf"(?<!\w){re.escape(text)}(?!\w)"


@pytest.mark.parametrize(("kind", "options"), list(product(KINDS, SEARCHES)), ids=str)
def test_a_required_word_occurs_as_a_whole_word(kind, options):
    for longest in (30, 16):
        found = translator(kind).outputs(TEXTS, required=REQUIRED, max_length=longest, **options)
        for required, outputs in zip(REQUIRED, found, strict=True):
            assert outputs
            for output in outputs:
                for phrase in required:
                    hits = re.findall(word(phrase), output.text.replace("\ufffd", "\u00e9"))
                    assert len(hits) >= required.count(phrase), (phrase, output.text)


@pytest.mark.parametrize("kind", ["bpe", "bytes"])
@pytest.mark.parametrize("required", [", the", ";a"])
def test_a_required_phrase_that_begins_with_punctuation_ends_with_a_whole_word(kind, required):
    options = {"sample": True, "temperature": 1.5, "max_length": 24, "num_hypotheses": 20}
    found = translator(kind).outputs(TEXTS, required=[[required]] * len(TEXTS), **options)
    # The unknown token separates words too, but is not part of the text.
    known = [each for outputs in found for each in outputs if "<unk>" not in each.tokens]
    assert len(known) > 50
    for output in known:
        text = output.text.replace("\ufffd", "\u00e9")
        assert re.search(rf"{re.escape(required)}(?!\w)", text), output.text


@pytest.mark.parametrize(
    ("kind", "options"), list(product(("bpe", "words", "characters"), SEARCHES[1:])), ids=str
)
def test_a_banned_word_does_not_occur(kind, options):
    model = translator(kind)
    plain = [one[0].tokens for one in model.outputs(TEXTS, **options)]
    bans = [
        next((piece.strip("▁") for piece in one if piece.strip("▁").isalpha()), "cat")
        for one in plain
    ]

    def contains(ban: str, tokens: tuple[str, ...]) -> bool:
        runs = [tuple(model.target.pieces(run)) for run in phrases.banned(model.target, [ban])]
        return any(tokens[n : n + len(run)] == run for run in runs for n in range(len(tokens)))

    for ban, outputs in zip(
        bans, model.outputs(TEXTS, banned_in=[[ban] for ban in bans], **options), strict=True
    ):
        assert not any(contains(ban, output.tokens) for output in outputs)
    for outputs in model.outputs(TEXTS, banned=bans, **options):
        assert not any(contains(ban, output.tokens) for ban in bans for output in outputs)
    assert (
        any(contains(ban, tokens) for ban, tokens in zip(bans, plain, strict=True))
        or kind == "characters"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_banned_word_is_not_spelled_with_other_tokens(kind):
    model, bans = translator(kind), ["cat", "the", "a", "on"]
    options = {"banned": bans[:2], "sample": True, "temperature": 1.5, "max_length": 20}
    found = model.outputs(TEXTS, banned_in=[bans[2:]] * len(TEXTS), num_hypotheses=40, **options)
    for output in (output for outputs in found for output in outputs):
        letters = model.target.spellings(output.token_ids)
        written = {
            b"".join(letters[i:j]).strip()
            for i in range(len(letters))
            for j in range(i + 1, len(letters) + 1)
        }
        assert not written & {ban.encode() for ban in bans}
    options["banned"] = list("aeiotn")
    for seed in range(1, 20):
        whole = model.predict(TEXTS[:1], seed=seed, **options)[0]
        assert "".join(model.stream(TEXTS[0], seed=seed, **options)) == whole


@pytest.mark.parametrize("kind", ["bpe", "characters"])
def test_a_language_model_generates_required_words_after_the_prompt(kind):
    for options in SEARCHES:
        found = language_model(kind).outputs(
            ["the cat", "", "dog"], required=[["cat"], ["cat"], ["the red"]], **options
        )
        for phrase, outputs in zip(("cat", "cat", "the red"), found, strict=True):
            for output in outputs:
                assert re.search(word(phrase), output.text)


def test_phrases_are_tokenized_at_the_start_and_after_a_space():
    words = tokenizer("bpe")
    assert words.encode("cat") != words.encode(" cat")
    (phrase,) = phrases.required(words, ["cat"])
    assert phrase.runs == ((BEGINNING, *words.encode("cat")), tuple(words.encode(" cat")))
    assert words.encode("s")[0] in phrase.continuations
    assert not set(words.encode(" , the")) & phrase.continuations - set(words.encode("the"))
    (comma,) = phrases.required(words, [","])
    assert comma.runs == (tuple(words.encode(",")),)
    assert not comma.continuations
    assert set(phrases.banned(words, ["cat"])) == {
        tuple(words.encode("cat")),
        tuple(words.encode(" cat")),
    }


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ({"required": [["cat"]]}, "required: wanted 2 lists"),
        ({"required": ["cat", "dog"]}, "required: wanted a list of words"),
        ({"required": [[""], []]}, "required: wanted a list of words"),
        ({"banned_in": [["cat"], ["  "]]}, "banned: wanted a list of words"),
        ({"required": [["the cat"], []], "banned_in": [["cat"], []]}, "nothing that is banned"),
        ({"required": [["cat"], []], "banned": ["cat"]}, "nothing that is banned"),
        ({"required": [["the cat"], []], "max_length": 1}, "wanted at most 1 tokens"),
    ],
)
def test_impossible_constraints_are_refused(constraints, message):
    with pytest.raises(ValueError, match=message):
        translator().outputs(["a", "b"], **constraints)


def test_unknown_words_and_labels_are_refused():
    with pytest.raises(ValueError, match="words that the model has tokens for; got 'zebra'"):
        translator("words").outputs(["a"], required=[["zebra"]])
    with pytest.raises(ValueError, match="required: wanted nothing for a model that gives labels"):
        classifier().outputs(["a"], required=[["cat"]])


@pytest.mark.parametrize("decoder", ["transformer", "rnn", "conv"])
def test_outputs_with_their_attention(decoder):
    model = translator(decoder=decoder)
    assert all(output.attention is None for outputs in model.outputs(TEXTS) for output in outputs)
    plain = model.outputs(TEXTS, beam_size=3, num_hypotheses=2, scores=True)
    for text, outputs, same in zip(
        TEXTS,
        model.outputs(TEXTS, beam_size=3, num_hypotheses=2, scores=True, attention=True),
        plain,
        strict=True,
    ):
        assert [output.text for output in outputs] == [output.text for output in same]
        for output in outputs:
            rows, columns = len(output.log_probabilities), len(model.source.encode(text)) + 1
            assert output.attention.shape[-2:] == (rows, columns)
            assert output.attention.device.type == "cpu"
            torch.testing.assert_close(
                output.attention.sum(-1), torch.ones(output.attention.shape[:-1])
            )
    with pytest.raises(ValueError, match="attention: wanted one model"):
        language_model().outputs(["the"], attention=True)


@pytest.mark.parametrize("lines", [None, [5, 9, 12]])
def test_a_second_search_draws_the_numbers_of_its_line(monkeypatch, lines):
    """A sample that is drawn again because of a ban does not depend on where in the batch its input was."""
    right, drawn, yielded = phrases.decoding.search, [], []

    def watched(task, requests):
        numbers = task.numbers or range(len(requests))
        drawn.append([numbers[index] for index in range(len(requests))])
        for index, hypotheses in right(task, requests):
            if len(requests) > 1:
                yielded.append(numbers[index])
            yield index, hypotheses

    def twice(tokenizer, task, request, hypotheses):
        return request if len(drawn) == len(yielded) else None  # once more for each line

    monkeypatch.setattr(phrases.decoding, "search", watched)
    monkeypatch.setattr(phrases, "without_other_spellings", twice)
    model = translator("words")
    found = model.iter_outputs(TEXTS[:3], lines=lines, sample=True, banned=["cat"], max_length=4)
    assert sorted(index for index, _ in found) == [0, 1, 2]
    assert sorted(drawn[0]) == ([0, 1, 2] if lines is None else [4, 8, 11])
    assert [numbers for (numbers,) in drawn[1:]] == yielded
