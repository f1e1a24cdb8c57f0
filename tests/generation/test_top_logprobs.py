"""The most likely tokens at each position of an output: those of the model's own distribution."""

from dataclasses import replace

import pytest
import torch

from regard.core.errors import InvalidArgument, InvalidRecipe
from regard.inference.predictor import Predictor
from support.predictors import language_model, translator

TEXTS = ["the cat sat", "a red dogma on the mat", "and"]
SEARCHES = {
    "greedy": {"max_length": 9},
    "constrained": {"max_length": 9, "min_length": 7, "no_repeat_ngram_size": 1},
    "samples": {"sample": True, "temperature": 3.0, "top_k": 40, "num_hypotheses": 3},
    "beam": {"beam_size": 4, "num_hypotheses": 4, "max_length": 9},
    "groups": {"beam_size": 4, "beam_groups": 2, "num_hypotheses": 2, "repetition_penalty": 1.5},
    "prefix": {"prefixes": ["the", "a", ""], "beam_size": 2, "max_length": 9},
}


def distributions(predictor: Predictor, text: str, ids: tuple[int, ...]) -> torch.Tensor:
    """The log-probabilities of all tokens at each position of an output, by a forward pass."""
    prompt, source = predictor.encode(text)
    special = predictor.target.special_tokens
    given = [] if predictor.sources else prompt
    read = torch.tensor([[special.start, *given, *ids]])
    with torch.inference_mode():
        logits = predictor.model(source, read)[0, len(given) : len(given) + len(ids)]
    return logits.log_softmax(-1)


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("made", [translator, language_model])
def test_they_are_those_of_a_forward_pass(made, name):
    predictor = made()
    options = {"max_length": 12, **SEARCHES[name]}
    found = predictor.outputs(TEXTS, top_logprobs=3, **options)
    plain = predictor.outputs(TEXTS, scores=True, **options)
    for text, outputs, others in zip(TEXTS, found, plain, strict=True):
        for output, other in zip(outputs, others, strict=True):
            assert output.token_ids == other.token_ids
            assert output.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-5)
            assert len(output.top_logprobs) == len(output.token_ids)
            wanted = distributions(predictor, text, output.token_ids).topk(3)
            for row, values, ids in zip(output.top_logprobs, *wanted, strict=True):
                assert [each.token_id for each in row] == ids.tolist()
                assert [each.log_probability for each in row] == pytest.approx(
                    values.tolist(), abs=1e-4
                )
                assert [each.token for each in row] == predictor.target.pieces(ids)


@pytest.mark.parametrize("name", ["greedy", "samples", "beam"])
def test_an_input_has_the_same_ones_alone_and_in_a_batch(name):
    predictor = translator(encoder="transformer")
    options = {"max_length": 12, **SEARCHES[name]}
    many = TEXTS * 12
    found = predictor.outputs(many, top_logprobs=5, batch_tokens=40, **options)
    for line, text in enumerate(many[:5], 1):
        (alone,) = predictor.outputs([text], lines=[line], top_logprobs=5, **options)
        for one, other in zip(found[line - 1], alone, strict=True):
            assert one.token_ids == other.token_ids
            for row, same in zip(one.top_logprobs, other.top_logprobs, strict=True):
                assert [each.token_id for each in row] == [each.token_id for each in same]
                assert [each.log_probability for each in row] == pytest.approx(
                    [each.log_probability for each in same], abs=1e-5
                )


def test_they_are_computed_where_they_are_asked_for():
    ((output,),) = translator().outputs(["a"], scores=True, max_length=4)
    assert output.top_logprobs is None
    assert "top_logprobs" not in output.as_json()
    ((output,),) = translator().outputs(["a"], top_logprobs=2, max_length=4)
    rows = output.as_json()["top_logprobs"]
    assert [[each["log_probability"] for each in row] for row in rows] == [
        [each.log_probability for each in row] for row in output.top_logprobs
    ]


def test_they_end_with_the_output_at_a_stop_string():
    predictor = translator()
    options = {"max_length": 12, "min_length": 12, "no_repeat_ngram_size": 1, "top_logprobs": 2}
    ((whole,),) = predictor.outputs(["the cat"], **options)
    ((output,),) = predictor.outputs(["the cat"], stop=whole.text[-4:-2], **options)
    assert 0 < len(output.tokens) < len(whole.tokens)
    assert output.top_logprobs == whole.top_logprobs[: len(output.tokens)]


def test_a_small_vocabulary_has_all_its_tokens():
    predictor = translator("characters")
    size = predictor.target.size
    assert size > 20
    ((output,),) = predictor.outputs(["the"], top_logprobs=20, max_length=3)
    assert {len(row) for row in output.top_logprobs} == {20}


def test_more_are_refused():
    with pytest.raises(InvalidRecipe, match=r"decode\.top_logprobs"):
        translator().predict(["a"], top_logprobs=21)
    with pytest.raises(InvalidArgument, match="top_logprobs: wanted 0 in a stream"):
        next(translator().stream("a", top_logprobs=2))
    own = translator()
    decode = replace(own.recipe.decode, top_logprobs=2)
    recipe = replace(own.recipe, decode=decode)
    assert "".join(replace(own, recipe=recipe).stream("a")) == own.predict(["a"])[0]
