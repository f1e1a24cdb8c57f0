"""Scores are equal, bit for bit, whatever an input is batched with: alone, in a list of any size, and served.

For every option of [decode]: a new option must be listed here.
"""

from collections.abc import Iterator
from dataclasses import fields, replace

import pytest
import torch

import regard
from regard.core.errors import InvalidRecipe
from regard.generation.choose.logits_processors import LOGITS_PROCESSORS, NoRepeatNgram
from regard.generation.config import DecodeConfig
from regard.generation.engines.cpu import compile
from regard.generation.shortlist import Shortlist
from regard.inference.predictor import Predictor
from regard.recipe.recipe import Recipe
from support.predictors import COPY, PARTS, tokenizer
from support.servers import Running, served

pytestmark = pytest.mark.skipif(compile.library() is None, reason="no C++ compiler here")
BEAM = {"beam_size": 4, "num_hypotheses": 3}
SAMPLE = {"sample": True, "num_hypotheses": 2}
OPTIONS: dict[str, list[dict]] = {
    "beam_size": [{"beam_size": 1}, {"beam_size": 5}],
    "num_hypotheses": [{"beam_size": 5, "num_hypotheses": 5}],
    "max_length": [{**BEAM, "max_length": 3}],
    "max_length_ratio": [{**BEAM, "max_length_ratio": 0.8}],
    "min_length": [{**BEAM, "min_length": 9}],
    "min_length_ratio": [{**BEAM, "min_length_ratio": 0.5}],
    "length_penalty": [
        *({**BEAM, "length_penalty": power} for power in (-0.7, 0.0, 0.2, 0.6, 0.9, 1.3)),
        {"length_penalty": 0.6},
    ],
    "early_stopping": [
        {**BEAM, "early_stopping": True, "length_penalty": 0.6},
        {**BEAM, "early_stopping": "never", "length_penalty": 0.9},
    ],
    "coverage_penalty": [{**BEAM, "coverage_penalty": 0.3, "length_penalty": 0.6}],
    "no_repeat_ngram_size": [{"no_repeat_ngram_size": 2, **BEAM, "length_penalty": 0.3}],
    "exponential_decay_length_penalty": [
        {**BEAM, "exponential_decay_length_penalty": [2.0, 1.3], "length_penalty": 0.6}
    ],
    "repetition_penalty": [{"repetition_penalty": 1.3, **BEAM, "length_penalty": 0.9}],
    "stop": [{**BEAM, "stop": ["a", "e "]}, {**SAMPLE, "stop": ["t"]}, {"stop": [" c"]}],
    "top_logprobs": [{**BEAM, "top_logprobs": 3}, {**SAMPLE, "top_logprobs": 1}],
    "beam_groups": [{**BEAM, "beam_groups": 2, "length_penalty": 0.6}],
    "diversity_penalty": [{**BEAM, "beam_groups": 4, "diversity_penalty": 0.9}],
    "sample": [SAMPLE, {**SAMPLE, "length_penalty": 0.6}],
    "temperature": [{**SAMPLE, "temperature": 1.7}],
    "top_k": [{**SAMPLE, "top_k": 5}],
    "top_p": [{**SAMPLE, "top_p": 0.8}],
    "min_p": [{**SAMPLE, "min_p": 0.05}],
    "typical_p": [{**SAMPLE, "typical_p": 0.7}],
    "seed": [{**SAMPLE, "seed": 7}],
    "logits_processors": [{**BEAM, "logits_processors": ["no pair twice"], "length_penalty": 0.6}],
    "precision": [{**BEAM, "precision": "bfloat16", "length_penalty": 0.6}],
    "quantization": [{**BEAM, "quantization": "int8", "length_penalty": 0.6}],
    "shortlist": [{**BEAM, "shortlist": True, "length_penalty": 0.6}],
    "max_source_length": [{**BEAM, "max_source_length": 500}],
    "batch_tokens": [{**BEAM, "batch_tokens": 40, "length_penalty": 0.6}],
}
CASES = {f"{name} {number}": each for name in OPTIONS for number, each in enumerate(OPTIONS[name])}
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "dogs", "ran", "by", "red", "cars"]
TEXTS = [" ".join(WORDS[k % 7 : k % 7 + 1 + k % 5]) for k in range(64)]
SIZES = (2, 7, 64)
Scores = list[tuple[str, float, tuple[float, ...]]]


def test_every_option_is_listed():
    # Options of tasks whose outputs are not searched for token by token.
    of_ctc = {"language_model", "language_model_weight", "length_bonus"}
    of_other_tasks = {"threshold", "thresholds", "horizon", *of_ctc}
    assert {*OPTIONS, *of_other_tasks} == {each.name for each in fields(DecodeConfig)}


@pytest.fixture(scope="module")
def plain() -> Predictor:
    words = tokenizer()
    parts = {"encoder": PARTS["transformer"], "decoder": PARTS["transformer"]}
    torch.manual_seed(1)
    model = regard.build({**parts, "vocab_size": words.size}).eval()
    with torch.no_grad():
        model.decoder.project.weight *= 2
    recipe = Recipe.of({"data": COPY, "model": parts, "decode": {"max_length": 12}})
    likely = torch.arange(4 * words.size).reshape(words.size, 4).int() % words.size
    tensors = {"likely": likely, "frequent": torch.arange(20, 60, dtype=torch.int32)}
    shortlist = Shortlist.of(tensors, words.size, words.size)
    return Predictor(model, recipe, (words,), words, shortlist=shortlist)


@pytest.fixture(scope="module")
def models(plain: Predictor) -> Iterator[dict[str, Predictor]]:
    """The model with each case's options as its defaults."""
    regard.register.logits_processor("no pair twice", lambda: NoRepeatNgram(2))
    yield {name.replace(" ", "-"): plain.with_decode(**case) for name, case in CASES.items()}
    LOGITS_PROCESSORS.unregister("no pair twice")


@pytest.fixture(scope="module")
def server(models: dict[str, Predictor]) -> Iterator[Running]:
    with served({name: replace(model) for name, model in models.items()}) as running:
        yield running


def scores(outputs: list) -> Scores:
    return [(each.text, each.score, tuple(each.log_probabilities)) for each in outputs]


@pytest.mark.parametrize("case", CASES)
def test_scores_are_equal_whatever_the_batch(case, models, server):
    name = case.replace(" ", "-")
    model = models[name]
    alone = [
        scores(model.outputs([text], lines=[line], scores=True)[0])
        for line, text in enumerate(TEXTS, start=1)
    ]
    for size in SIZES:
        together = model.outputs(TEXTS[:size], scores=True)
        assert [scores(each) for each in together] == alone[:size], size
    body = {"model": name, "input": TEXTS[:16], "scores": True, "tokens": True}
    status, _, answer = server.ask("/predict", body)
    assert status == 200, answer
    answered = [
        [(one["text"], one["score"], tuple(one["log_probabilities"])) for one in each["outputs"]]
        for each in answer["results"]
    ]
    assert answered == alone[:16]


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("power", [1000.0, -1000.0])
def test_a_penalty_beyond_all_numbers_is_refused(power, beams, plain):
    """Divided by infinity or by zero, no score would be left."""
    with pytest.raises(InvalidRecipe, match=r"length_penalty.*at most 5"):
        plain.outputs(TEXTS[:2], beam_size=beams, length_penalty=power, scores=True)
