"""Outputs that go astray end early: by default a source bounds the length of its output."""

from dataclasses import replace

import pytest
import torch

from regard.data.special_tokens import END
from regard.generation.request import GenerationRequest
from regard.inference.predictor import Predictor
from regard.interop.page.settings import ModelSettings
from regard.recipe.recipe import Recipe
from support.predictors import COPY, translator

SOURCES = ["the cat", "the cat sat on the mat , and the cats ran . the red car and the dog sat"]


def endless(source: str, target: str, **decode) -> Predictor:
    """A model of words whose outputs never end; its recipe says that they are tokens of these kinds."""
    predictor = translator("words")
    with torch.no_grad():
        predictor.model.decoder.project.bias[END] = -99.0
    tables = predictor.recipe.as_dict()
    data = COPY | {"source": {"tokenizer": source}, "target": {"tokenizer": target}}
    recipe = Recipe.of(tables | {"data": data, "decode": {"max_length": 400} | decode})
    return replace(predictor, recipe=recipe)


def lengths(predictor: Predictor, **options) -> list[int]:
    return [len(best.token_ids) for best, *_ in predictor.outputs(SOURCES, **options)]


def sizes(predictor: Predictor) -> list[int]:
    return [len(predictor.source.encode(text)) for text in SOURCES]


@pytest.mark.parametrize("kind", ["words", "bpe", "unigram"])
@pytest.mark.parametrize("search", [{}, {"beam_size": 3}, {"sample": True}])
def test_an_output_has_at_most_three_tokens_per_source_token_and_fifty(kind, search):
    predictor = endless(kind, kind)
    assert lengths(predictor, **search) == [3 * size + 50 for size in sizes(predictor)]


def test_the_bound_holds_in_a_stream():
    predictor = endless("words", "words")
    (text, _) = SOURCES
    (size, _) = sizes(predictor)
    streamed = "".join(predictor.stream(text))
    assert len(predictor.target.encode(streamed)) == 3 * size + 50
    assert streamed == predictor.predict([text])[0]


@pytest.mark.parametrize(
    "kinds",
    [("characters", "characters"), ("bytes", "bytes"), ("words", "characters"), ("bytes", "bpe")],
)
def test_letters_and_bytes_bound_nothing(kinds):
    """One word has many letters, and one letter may be many in another script."""
    assert lengths(endless(*kinds)) == [400, 400]


def test_a_ratio_that_is_written_takes_its_place():
    predictor = endless("words", "words")
    assert lengths(predictor, max_length_ratio=2.0) == [2 * size for size in sizes(predictor)]
    assert lengths(predictor, max_length_ratio=1000.0) == [400, 400]
    written = endless("words", "words", max_length_ratio=1.0)
    assert lengths(written) == sizes(written)


def test_the_other_limits_hold_beside_it():
    predictor = endless("words", "words")
    assert lengths(predictor, max_length=9) == [9, 9]
    assert lengths(predictor, min_length=300) == [300, 300]
    (first, second) = sizes(predictor)
    assert lengths(predictor, min_length_ratio=20.0) == [3 * first + 50, 20 * second]


def test_required_phrases_have_room():
    predictor = endless("words", "words")
    phrases = ["cat dog"] * 60
    (best,) = predictor.outputs(SOURCES[:1], required=[phrases])[0]
    assert best.text.count("cat dog") >= 60


def test_a_prefix_counts_extra():
    predictor = endless("words", "words")
    (size, _) = sizes(predictor)
    (best,) = predictor.outputs(SOURCES[:1], prefixes=["the dog " * 40])[0]
    assert len(best.token_ids) == 80 + 3 * size + 50


def test_a_language_model_and_pretrained_tokens_are_not_bounded():
    assert not Recipe.of({"model": {"decoder": {"kind": "rnn"}}}).data.bounds_outputs
    imported = {"source": {"tokenizer": "pretrained"}, "target": {"tokenizer": "pretrained"}}
    model = {"encoder": {"kind": "rnn"}, "decoder": {"kind": "rnn"}}
    assert not Recipe.of({"data": imported, "model": model}).data.bounds_outputs


@pytest.mark.parametrize(
    "decode",
    [
        {},
        {"max_length": 60},
        {"min_length": 300},
        {"min_length_ratio": 20.0},
        {"max_length_ratio": 2.0},
    ],
)
@pytest.mark.parametrize("kind", ["words", "bytes"])
def test_a_page_has_the_same_bound(kind, decode):
    from interop.test_page_modules import node

    predictor = endless(kind, kind, **decode)
    config = predictor.recipe.decode
    settings = ModelSettings(predictor).as_dict("", [])["decode"]
    program = """import { maxLength } from './search.js';
    const { settings, sizes } = given;
    const at = (size) => maxLength(settings, { size, prefix: 2, hasSource: true });
    console.log(JSON.stringify(sizes.map(at)));"""
    bounded = predictor.pipeline.bounded
    asked = [1, 4, 17, 40, 100]
    found = node(program, {"settings": settings, "sizes": asked})
    requests = [GenerationRequest([0], size, (5, 5), bounded=bounded) for size in asked]
    assert found == [each.longest(config, settings["positions"]) for each in requests]
