"""Steps of a search that a GPU computes in kernels of their own: the same outputs, and where they are asked for."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from regard.core.sequence import Tokens
from regard.data.special_tokens import END
from regard.generation.choose import beam, greedy
from regard.generation.choose.interfaces import LogitsProcessor
from regard.generation.config import DecodeConfig
from regard.generation.engines import selection
from regard.generation.request import GenerationRequest, SearchTask
from regard.generation.search import search
from support.search import decode, model, sources, token_ids


class Halved(LogitsProcessor):
    """Changes scores, and does not only exclude tokens."""

    def __call__(self, scores, generated):
        scores *= 0.5


@pytest.mark.parametrize(
    ("options", "fused"),
    [
        ({}, True),
        ({"length_penalty": 0.3, "num_hypotheses": 2}, True),
        ({"no_repeat_ngram_size": 2}, True),
        ({"processors": (Halved(),)}, False),
        ({"beam_groups": 3}, False),
    ],
)
def test_a_beam_with_fused_candidates_has_the_outputs_of_one_without(monkeypatch, options, fused):
    """A GPU has one kernel for the sum of exponentials and one for the best tokens; here PyTorch computes both."""
    options = {"beam_size": 3, "num_hypotheses": 3} | options
    made, rows, asked = model("lstm bahdanau"), sources(), []
    monkeypatch.setattr(selection, "ENGINES", (selection.PyTorchEngine(),))
    wanted = decode(made, rows, **options)

    def top_k(logits, count):
        asked.append(count)
        return logits.topk(count)

    # Too many candidates for the kernel of the whole step, which tests/generation/engines/test_beam_step.py is about.
    kernels = SimpleNamespace(
        log_sum_exp=lambda logits: logits.logsumexp(-1), top_k=top_k, MAX_CANDIDATES=0
    )
    monkeypatch.setattr(beam, "kernels", lambda logits: kernels)
    found = decode(made, rows, **options)
    assert token_ids(found) == token_ids(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        assert [each.score for each in mine] == pytest.approx(
            [each.score for each in theirs], abs=1e-5
        )
    assert bool(asked) is fused


@pytest.mark.parametrize(
    ("options", "fused"),
    [
        ({}, True),
        ({"scored": True}, False),
        ({"sample": True}, False),
        ({"logits_processors": (Halved(),)}, False),
    ],
)
def test_greedy_search_has_a_fused_step_on_a_gpu(monkeypatch, options, fused):
    class Asked(Exception):
        pass

    def greedy_step(*given):
        raise Asked

    monkeypatch.setattr(selection, "ENGINES", (selection.PyTorchEngine(),))
    monkeypatch.setattr(greedy, "kernels", lambda scores: SimpleNamespace(greedy_step=greedy_step))
    with pytest.raises(Asked) if fused else nullcontext():
        config = DecodeConfig(max_length=7, sample=options.pop("sample", False))
        task = SearchTask(model("lstm bahdanau"), Tokens.of, config, **options)
        [*search(task, [GenerationRequest(row, len(row)) for row in sources()])]


@pytest.mark.parametrize("ends", [True, False])
def test_a_fused_step_ends_at_the_end_token_unless_there_is_none(monkeypatch, ends):
    """Pads come after it; the step without a kernel has the same outputs."""
    monkeypatch.setattr(selection, "ENGINES", (selection.PyTorchEngine(),))
    given = []

    def greedy_step(scores, tokens, length, prompt, limit, ended, done, end, pad):
        given.append(end)
        raise LookupError

    monkeypatch.setattr(greedy, "kernels", lambda scores: SimpleNamespace(greedy_step=greedy_step))
    task = SearchTask(model("lstm bahdanau"), Tokens.of, DecodeConfig(max_length=7), ends=ends)
    with pytest.raises(LookupError):
        [*search(task, [GenerationRequest(row, len(row)) for row in sources()])]
    assert given == [END if ends else -1]


@pytest.mark.parametrize("power", [-0.5, 0.0, 0.7])
@pytest.mark.parametrize("early", [False, True, "never"])
def test_a_fused_step_of_a_beam_stops_as_early_as_one_without(monkeypatch, early, power):
    """The value "never" asks for the longest output only where longer ones are better."""
    monkeypatch.setattr(selection, "ENGINES", (selection.PyTorchEngine(),))
    given = []

    def beam_step(*arguments, **options):
        given.append(arguments)
        raise LookupError

    whole = {"beam_step": beam_step, "log_sum_exp": lambda x: x.logsumexp(-1), "top_k": torch.topk}
    kernels = SimpleNamespace(**whole, MAX_CANDIDATES=1000)
    monkeypatch.setattr(beam, "kernels", lambda logits: kernels)
    config = {"beam_size": 3, "early_stopping": early, "length_penalty": power}
    with pytest.raises(LookupError):
        decode(model("lstm bahdanau"), sources(), **config)
    wanted = False if early == "never" and power <= 0 else early
    assert [each for each in given[0] if isinstance(each, bool | str)] == [wanted]
