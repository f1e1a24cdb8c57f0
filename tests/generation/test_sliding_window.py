"""Language models beyond the length of their training sequences: a sliding window, unless they extrapolate."""

from dataclasses import replace

import pytest
import torch

import regard
from regard.data.special_tokens import MASK, PAD, START
from regard.generation.engines.cuda.engine import CudaEngine
from regard.generation.ensemble import Ensemble
from regard.generation.request import GenerationRequest
from regard.generation.search import search, stream
from support import predictors
from support.models import DECODERS, POSITIONS
from support.search import STRATEGIES
from support.short_contexts import EXTRAPOLATING, LONGEST, language_model, recomputed, task

PROMPTS = [[6, 7, 8, 9, 10, 5, 6], [], [7]]


def requests() -> list[GenerationRequest]:
    return [GenerationRequest(None, 0, prompt, given=len(prompt)) for prompt in PROMPTS]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, STRATEGIES[0]) for name in DECODERS),
        *(
            (name, way)
            for name in ("gru luong", "conv", *(f"transformer {each}" for each in POSITIONS))
            for way in STRATEGIES[1:]
        ),
    ],
    ids=str,
)
@torch.inference_mode()
def test_equals_recomputing_over_the_window(name, options, monkeypatch):
    made = language_model(name)
    monkeypatch.setattr(
        "regard.generation.request_groups.MAX_HYPOTHESES", {"cpu": 2 * 3}
    )  # so that batches follow each other
    found = dict(search(task(made, **options), requests()))
    for i, prompt in enumerate(PROMPTS):
        for hypothesis in found[i]:
            assert len(hypothesis.tokens) == len(prompt) + LONGEST
            assert list(hypothesis.tokens[: len(prompt)]) == prompt
            rows = recomputed(made, hypothesis.tokens, slides=name not in EXTRAPOLATING)
            wanted = [row[token].item() for row, token in zip(rows, hypothesis.tokens, strict=True)]
            assert hypothesis.log_probabilities == pytest.approx(wanted, abs=2e-5)
            if not options:  # greedy
                for row in rows:
                    row[[PAD, START, MASK]] = -torch.inf
                best = [row.argmax().item() for row in rows[len(prompt) :]]
                assert list(hypothesis.tokens[len(prompt) :]) == best
            assert made.decoder.extrapolates == (name in EXTRAPOLATING)


@pytest.mark.parametrize(
    "name", ["transformer rotary", "transformer learned", "transformer alibi", "conv"]
)
def test_streams_and_compiled_steps_equal_the_search_in_pytorch(name, monkeypatch):
    made = language_model(name)
    outputs = {}
    for native in "10":
        monkeypatch.setenv("REGARD_NATIVE", native)
        found = dict(search(task(made, beam_size=3), requests()))
        outputs[native] = [found[i][0].tokens for i in range(len(PROMPTS))]
        greedy = dict(search(task(made), requests()))
        assert [tuple(stream(task(made), request)) for request in requests()] == [
            greedy[i][0].tokens for i in range(len(PROMPTS))
        ]
    assert outputs["1"] == outputs["0"]


@torch.inference_mode()
def test_outputs_of_a_predictor_slide():
    predictor = predictors.language_model(context_length=8)
    ((output,),) = predictor.outputs(["the cat"], max_length=30, scores=True)
    prompt = predictor.encode("the cat")[0]
    rows = recomputed(predictor.model, [*prompt, *output.token_ids], context=8)[len(prompt) :]
    wanted = [row[token].item() for row, token in zip(rows, output.token_ids, strict=True)]
    assert output.log_probabilities == pytest.approx(wanted, abs=2e-5)


def test_prompts_and_outputs_may_exceed_learned_positions():
    parts = {
        "decoder": predictors.PARTS["transformer"] | {"positions": "learned", "max_positions": 8}
    }
    predictor = predictors.language_model(context_length=8)
    model = regard.build(parts | {"vocab_size": predictor.target.size}).eval()
    ((output,),) = replace(predictor, model=model).outputs(
        [" ".join(["the cat"] * 9)], max_length=30
    )
    assert len(output.token_ids) == 30


def test_inputs_of_a_masked_language_model_keep_their_limit():
    parts = {
        "encoder": predictors.PARTS["transformer"] | {"positions": "learned", "max_positions": 8},
        "head": "mlm",
    }
    predictor = predictors.language_model(context_length=8)
    model = regard.build(parts | {"vocab_size": predictor.target.size}).eval()
    assert len(replace(predictor, model=model).encode("the cat " * 9, truncate=True)[0]) == 6


def test_an_ensemble_slides_if_a_member_does():
    members = [language_model(name) for name in ("transformer rotary", "conv")]
    assert not Ensemble(members).decoder.extrapolates
    assert Ensemble(members[1:] * 2).decoder.extrapolates


def test_recorded_steps_do_not_slide(monkeypatch):
    """A GPU's static decoder leaves a sliding window to PyTorch's."""
    asked = []
    monkeypatch.setattr(
        "regard.generation.engines.cuda.engine.static_decoder", lambda *each: asked.append(each)
    )
    monkeypatch.setattr("regard.generation.engines.cuda.engine.is_plain", lambda decoder: True)
    monkeypatch.setattr("regard.kernels.triton_launch.available", lambda device: True)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    made = language_model("transformer")
    CudaEngine().decoder_for(made, max_length=6, window=5)
    assert not asked
    CudaEngine().decoder_for(made, max_length=5, window=5)
    assert len(asked) == 1
