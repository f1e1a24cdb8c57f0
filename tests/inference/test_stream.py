"""Streaming: the pieces joined equal the whole output, and each is yielded before the next is computed."""

from dataclasses import replace

import pytest
import torch

import regard
from regard.core.errors import InvalidArgument
from regard.data.special_tokens import END
from regard.generation.config import DecodeConfig
from support.predictors import PARTS, classifier, language_model, replace_step, translator

TEXTS = ["the cat sat", "a red dogma", "naïve 😀 …"]
OPTIONS = (
    {},
    {"sample": True, "temperature": 1.5, "seed": 3},
    {"max_length": 5},
    {"min_length": 9, "no_repeat_ngram_size": 2},
)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *(("bpe", each) for each in OPTIONS),
        *((kind, OPTIONS[1]) for kind in ("unigram", "words", "characters", "bytes")),
    ],
)
def test_the_pieces_joined_equal_the_output(kind, options):
    for predictor in (translator(kind), language_model(kind)):
        for text in TEXTS:
            assert (
                "".join(predictor.stream(text, **options))
                == predictor.predict([text], **options)[0]
            )


@pytest.mark.parametrize("kind", ["bpe", "words", "bytes"])
def test_samples_of_running_text_have_lines(kind):
    predictor = language_model(kind, context_length=8)
    with torch.no_grad():
        predictor.model.decoder.project.bias[END] = 6.0
    options = {"sample": True, "max_length": 40, "min_length": 30}
    ((output,),) = predictor.outputs(["the cat\n\nand"], **options)
    assert output.text.count("\n") >= output.token_ids.count(END) > 0
    assert "".join(predictor.stream("the cat\n\nand", **options)) == output.text
    assert predictor.encode("the cat\n\nand")[0].count(END) == 2


def test_draws_depend_on_the_line_number():
    predictor, drawn = translator("words"), {"sample": True, "temperature": 2.0}
    texts = TEXTS[:1] * 4
    found = predictor.predict(texts, **drawn)
    assert len(set(found)) > 1
    assert [
        "".join(predictor.stream(text, line=n, **drawn)) for n, text in enumerate(texts, 1)
    ] == found


def test_prefix_and_constraints_hold():
    predictor = translator()
    options = {"banned": ["cat"], "max_length": 20}
    whole = predictor.outputs(
        ["the cat sat"], prefixes=["a dog"], required=[["red car"]], **options
    )[0][0].text
    pieces = list(predictor.stream("the cat sat", prefix="a dog", required=["red car"], **options))
    assert "".join(pieces) == whole
    assert len(pieces) > 3
    assert whole.startswith("a dog")
    assert "red car" in whole


def test_outputs_end_at_the_last_learned_position():
    predictor = language_model("bytes")
    decoder = {**PARTS["transformer"], "positions": "learned", "max_positions": 12}
    model = regard.build({"decoder": decoder, "vocab_size": predictor.target.size}).eval()
    predictor = replace(predictor, model=model)
    for text in ("", "a dog", "ten of 12."):
        (output,) = predictor.outputs([text], min_length=20, max_length=30)[0]
        assert len(text) + len(output.token_ids) == 12
        assert "".join(predictor.stream(text, min_length=20, max_length=30)) == output.text
        assert regard.look(predictor, text, min_length=20, max_length=30).maps[0].size == (12, 12)


def test_characters_of_several_tokens_are_yielded_whole():
    predictor = language_model("bytes")
    pieces = list(predictor.stream("it says ", prefix="😀é", max_length=3))
    assert pieces[:2] == ["😀", "é"]


def test_each_piece_is_yielded_before_the_next_is_computed(monkeypatch):
    predictor, steps = translator("words", "rnn"), []
    step = type(predictor.model.decoder).step
    replace_step(
        monkeypatch, predictor.model.decoder, lambda *given: steps.append(1) or step(*given)
    )
    stream = predictor.stream("the cat sat", min_length=5)
    for expected in range(1, 5):
        next(stream)
        assert len(steps) == expected


def test_a_recipe_with_a_beam_streams_by_greedy_search():
    predictor = translator()
    predictor = replace(
        predictor, recipe=replace(predictor.recipe, decode=DecodeConfig(beam_size=4))
    )
    assert (
        "".join(predictor.stream("the cat", max_length=9))
        == predictor.predict(["the cat"], beam_size=1, max_length=9)[0]
    )
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 4}, "beam_size"),
        ({"num_hypotheses": 2, "sample": True}, "num_hypotheses"),
        ({"max_source_length": 2}, "at most 2 tokens"),
    ],
)
def test_options_that_cannot_stream_are_refused(options, message):
    with pytest.raises(InvalidArgument, match=message):
        list(translator().stream("the cat sat on the mat", **options))


def test_a_classifier_does_not_stream():
    with pytest.raises(InvalidArgument, match="token by token"):
        list(classifier().stream("the cat"))
