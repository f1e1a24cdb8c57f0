"""A step of beam search in one kernel against the same in PyTorch; in Triton's interpreter."""

import os
from types import SimpleNamespace

import pytest
import torch

from regard.generation.choose import beam
from regard.generation.choose.beam import BeamSearch
from regard.generation.choose.interfaces import GeneratedTokens
from regard.generation.config import DecodeConfig

if torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip(
        "needs Triton's interpreter; on a GPU contracts/test_cuda.py compares both",
        allow_module_level=True,
    )

from regard.generation.engines.cuda.kernels import beam_step_triton

BATCH, BEAMS, VOCABULARY, END = 4, 3, 20, 2
PLAIN = SimpleNamespace(  # with the kernel at hand, the others in PyTorch
    MAX_CANDIDATES=beam_step_triton.MAX_CANDIDATES,
    beam_step=beam_step_triton.beam_step,
    log_sum_exp=lambda logits: logits.logsumexp(-1),
    top_k=lambda logits, count: logits.topk(count),
)


def made(*, ends, **options):
    """Slots with and without a prompt, one of which reaches its limit early, and one that is done."""
    numbers = torch.zeros(BATCH, dtype=torch.int64)
    tokens = torch.zeros(BATCH, BEAMS, 10, dtype=torch.int64)
    prompt, limit = torch.tensor([0, 2, 0, 0]), torch.tensor([9, 7, 3, 9])
    generated = GeneratedTokens(
        tokens, numbers.clone(), numbers, prompt, torch.full((BATCH, 0), -1), numbers
    )
    config = DecodeConfig(beam_size=BEAMS, num_hypotheses=BEAMS, **options)
    strategy = BeamSearch(config, generated, limit, [], ends=ends)
    strategy.admit(slice(None), numbers)
    strategy.done[3], generated.length[3] = True, 1
    return strategy


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize(
    ("early_stopping", "length_penalty"),
    [(False, 1.0), (True, 0.0), ("never", 0.6), ("never", 0.0)],
)
def test_one_kernel_equals_the_parts(ends, early_stopping, length_penalty, monkeypatch):
    """Over several blocks of columns, until all slots are done and after that."""
    monkeypatch.setattr(beam_step_triton, "COLUMNS", 4)
    options = {"ends": ends, "early_stopping": early_stopping, "length_penalty": length_penalty}
    plain, fused = made(**options), made(**options)
    for number in range(10):
        logits = torch.randn(BATCH, BEAMS, VOCABULARY)
        logits[..., END] += number / 2  # later ends are likelier, also in slots that are done
        monkeypatch.setattr(beam, "kernels", lambda x: None)
        tokens, parents = plain.advance(logits.clone())
        monkeypatch.setattr(beam, "kernels", lambda x: PLAIN)
        assert fused._fusible(logits)
        found = fused.advance(logits.clone())
        torch.testing.assert_close(fused.total, plain.total)
        live = plain.total > -torch.inf  # of hypotheses without probability, any will do
        assert torch.equal(found[0][live], tokens[live])
        assert torch.equal(found[1][live], parents[live])
        assert torch.equal(fused.generated.length, plain.generated.length)
        assert torch.equal(fused.done, plain.done)
        written = live[..., None] & (torch.arange(10) < plain.generated.length[:, None, None])
        assert torch.equal(fused.generated.tokens[written], plain.generated.tokens[written])
        torch.testing.assert_close(fused.log_p[written], plain.log_p[written])
        for mine, other in zip(
            fused.hypotheses(slice(None)), plain.hypotheses(slice(None)), strict=True
        ):
            assert [(each.tokens, each.end) for each in mine] == [
                (each.tokens, each.end) for each in other
            ]
            for one, two in zip(mine, other, strict=True):
                assert one.score == pytest.approx(two.score, abs=1e-5)
                assert one.log_probabilities == pytest.approx(two.log_probabilities, abs=1e-5)
    assert plain.done.all()


def test_ancestors_follow_the_parents(monkeypatch):
    monkeypatch.setattr(beam_step_triton, "COLUMNS", 4)
    ancestors, parents = torch.randint(3, (4, 3, 12), dtype=torch.int32), torch.randint(3, (4, 3))
    moved = ancestors.gather(1, parents[..., None].expand_as(ancestors))
    wanted = torch.where(torch.arange(12) < 9, moved, ancestors)
    beam_step_triton.follow(ancestors, parents, torch.tensor([9]))
    assert torch.equal(ancestors, wanted)


def test_which_steps_are_one_kernel(monkeypatch):
    strategy, logits = made(ends=True), torch.zeros(BATCH, BEAMS, VOCABULARY)
    assert not strategy._fusible(logits)  # on a CPU
    monkeypatch.setattr(beam, "kernels", lambda x: PLAIN)
    assert strategy._fusible(logits)
    assert not strategy._fusible(torch.zeros(1, 9, VOCABULARY))  # 9 · 18 candidates
    assert not strategy._fusible(torch.zeros(1, BEAMS, 5))  # fewer tokens than candidates
    strategy.trace = object()
    assert not strategy._fusible(logits)
