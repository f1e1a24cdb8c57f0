"""Stop strings: outputs end before the first of them in every kind of search, and streams give nothing of them."""

from dataclasses import replace

import pytest
import torch

from regard.core.errors import InvalidArgument, InvalidRecipe
from regard.core.sequence import Tokens
from regard.data.special_tokens import DEFAULT_TOKENS, END
from regard.generation.choose.stop_strings import EDGE, StopCondition
from regard.generation.config import DecodeConfig
from regard.generation.engines import selection
from regard.generation.engines.torch import PyTorchDecoder, PyTorchEngine
from regard.generation.request import GenerationRequest, SearchTask
from regard.generation.search import search
from regard.generation.text_stream import pieces_before
from support.predictors import language_model, translator
from support.search import model, sources

TEXTS = ["the cat sat", "a red dogma", "naïve 😀 …"]
LONG = {"max_length": 30, "min_length": 30}
SEARCHES = {
    "greedy": {**LONG, "no_repeat_ngram_size": 2},
    "samples": {**LONG, "sample": True, "temperature": 2.0, "num_hypotheses": 3},
}


def before(text: str, strings: list[str]) -> str:
    """The text before the first of the strings."""
    places = [text.find(each) for each in strings if each in text]
    return text[: min(places)] if places else text


def parts_of(text: str) -> list[list[str]]:
    """Stop strings of one and of several characters out of a text, and one that it does not contain."""
    middle = len(text) // 2
    return [[text[middle]], [text[middle : middle + 4], "\0"], [text[-3:], text[5:7]], ["\0"]]


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("kind", ["bpe", "unigram", "words", "bytes"])
def test_an_output_is_the_beginning_of_the_one_without_stop_strings(kind, name):
    options = SEARCHES[name]
    for predictor in (translator(kind), language_model(kind)):
        whole = predictor.outputs(TEXTS, **options)
        for stop in parts_of(whole[0][0].text):
            found = predictor.outputs(TEXTS, stop=stop, scores=True, **options)
            for own, others in zip(found, whole, strict=True):
                for one, other in zip(own, others, strict=True):
                    assert one.text == before(other.text, stop)
                    ends = one.text != other.text
                    assert (one.finish_reason == "end") == ends
                    count = len(one.tokens)
                    assert one.token_ids == other.token_ids[:count]
                    assert len(one.log_probabilities) == count
                    assert one.token_texts is None


def test_a_search_ends_with_the_string(monkeypatch):
    predictor = translator("words")
    steps = []
    step = PyTorchDecoder.step
    monkeypatch.setattr(PyTorchDecoder, "step", lambda *given: (steps.append(1), step(*given))[1])
    monkeypatch.setattr(selection, "ENGINES", (PyTorchEngine(),))
    options = SEARCHES["greedy"]
    (whole,) = predictor.outputs(["the cat"], **options)[0]
    stop = whole.text[4:7]
    steps.clear()
    predictor.predict(["the cat"], stop=stop, **options)
    assert 0 < len(steps) < 15 < len(whole.tokens)


class Names:
    """Every token has a name of its own; the name of one is also spelled by two others."""

    def decode(self, ids) -> str:
        return b"".join(self.spellings(ids)).decode()

    def spellings(self, ids) -> list[bytes]:
        return [f"<{i}>".encode() if i > 4 else b"" for i in ids]


BEAM = {"beam_size": 4, "num_hypotheses": 4}
ENDING = [
    {},
    {"sample": True, "num_hypotheses": 3},
    *({**BEAM, "early_stopping": early} for early in (False, True, "never")),
    {**BEAM, "beam_groups": 2},
]


@pytest.mark.parametrize("options", ENDING, ids=str)
@torch.inference_mode()
def test_a_search_ends_at_a_string_as_at_an_end_token(options):
    """The oracle: the token that the string is written with, as one more end token."""
    made = model("transformer")
    made.decoder.project.bias[[END, 7]] = torch.tensor([1.0, 2.0])
    requests = [GenerationRequest(row, len(row)) for row in sources()]
    config = DecodeConfig(max_length=9, length_penalty=0.7, **options)
    special = replace(DEFAULT_TOKENS, other_ends=(7,))
    ends = SearchTask(made, Tokens.of, config, special_tokens=special, scored=True)
    wanted = dict(search(ends, requests))
    stops = StopCondition(Names(), ("<7>",))
    stopping = replace(config, stop=("<7>",))
    found = dict(search(SearchTask(made, Tokens.of, stopping, stops=stops, scored=True), requests))
    by_string = 0
    for index, hypotheses in wanted.items():
        assert len(found[index]) == len(hypotheses)
        for own, other in zip(found[index], hypotheses, strict=True):
            stopped = other.end == 7
            by_string += stopped
            assert own.tokens == ((*other.tokens, 7) if stopped else other.tokens)
            assert own.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-5)
            assert own.score == pytest.approx(other.score, abs=1e-5)
    assert by_string > 2


@pytest.mark.parametrize("kind", ["bpe", "unigram", "words", "characters", "bytes"])
def test_a_stream_gives_what_comes_before_a_string(kind):
    options = {**LONG, "sample": True, "temperature": 2.0}
    for predictor in (translator(kind), language_model(kind)):
        whole = predictor.predict(["the cat sat"], **options)[0]
        for stop in parts_of(whole):
            pieces = list(predictor.stream("the cat sat", stop=stop, **options))
            assert "".join(pieces) == before(whole, stop)


def test_nothing_of_a_string_is_given_before_it_is_known_to_be_one():
    given = []

    def pieces():
        for piece in ["a s", "to", "re st", "op", " never read"]:
            given.append(piece)
            yield piece

    assert list(pieces_before(pieces(), ["stop"])) == ["a ", "store "]
    assert given == ["a s", "to", "re st", "op"]
    assert list(pieces_before(["a s", "to"], ["stop"])) == ["a ", "sto"]


def test_running_text_ends_at_a_blank_line():
    predictor = language_model("bpe", context_length=8)
    options = {"sample": True, "temperature": 1.0, "max_length": 60}
    with torch.no_grad():
        predictor.model.decoder.project.bias[END] = 6.0
    whole = predictor.predict(["the cat"], **options)[0]
    assert "\n\n" in whole
    assert predictor.predict(["the cat"], stop="\n\n", **options) == [before(whole, ["\n\n"])]


def test_strings_are_sought_in_long_outputs_too():
    """More tokens than the part of the text that is looked at, of which many have no character."""
    condition = StopCondition(Names(), ("<9><",))
    many = [3] * 5 * EDGE + [9] + [4] * 5 * EDGE
    assert not condition.is_met(many)
    assert condition.is_met([*many, 8])
    assert condition.may_complete(8)
    assert not StopCondition(Names(), ("<8>",)).may_complete(3)


def test_a_string_in_a_prompt_ends_nothing():
    predictor = language_model()
    whole = predictor.predict(["the cat"], **LONG)[0]
    assert predictor.predict(["the cat"], stop="cat", **LONG) == [before(whole, ["cat"])]


@pytest.mark.parametrize("stop", [[""], ["a", ""], [f"s{i}" for i in range(65)], [3]])
def test_strings_that_cannot_be_sought_are_refused(stop):
    with pytest.raises(InvalidRecipe, match=r"decode\.stop"):
        translator().predict(["a"], stop=stop)


def test_required_phrases_are_refused_beside_strings():
    with pytest.raises(InvalidArgument, match="required"):
        translator().outputs(["a"], required=[["cat"]], stop=["x"])


def test_a_model_without_texts_refuses_strings():
    with pytest.raises(InvalidArgument, match="stop"):
        list(
            search(
                SearchTask(model("transformer"), Tokens.of, DecodeConfig(stop=("a",))),
                [GenerationRequest([5, 6], 2)],
            )
        )
