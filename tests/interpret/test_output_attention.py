"""Cross-attention of outputs, from one teacher-forced pass, and re-ranking by the coverage of the source."""

from itertools import product

import pytest
import torch

import regard
from regard.core.sequence import Tokens
from regard.data.special_tokens import END, START
from regard.generation.choose.interfaces import Hypothesis
from regard.generation.config import DecodeConfig
from regard.generation.ensemble import Ensemble
from regard.generation.request import GenerationRequest, SearchTask
from regard.generation.search import search
from regard.interpret.output_attention import coverage_reranker, output_attention
from regard.model.seq2seq import Seq2Seq
from support.models import decoder
from support.search import LONGEST, decode, model, sources

ATTENDING = (
    "transformer",
    "transformer rms swiglu grouped",
    "lstm bahdanau",
    "gru luong",
    "gru luong input-feeding",
    "conv",
)


@pytest.mark.parametrize("name", ATTENDING)
@torch.no_grad()
def test_weights_equal_those_of_greedy_steps(name):
    made = model(name)
    for row in sources()[:4]:
        (hit,) = decode(made, [row])[0]
        (weights,) = output_attention(made, Tokens.of([row]), [hit], START)
        steps = len(hit.tokens) + hit.ended
        assert weights.shape[-2:] == (steps, len(row))
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        state = made.decoder.start(made.encode(Tokens.of([row])), batch=1, capacity=LONGEST)
        for n, token in enumerate((START, *hit.tokens)[:steps]):
            calls: list[regard.AttentionCall] = []
            with regard.capture_attention(calls.append):
                _, state = made.decoder.step(torch.tensor([token]), state)
            for layer, module in enumerate(made.decoder.cross_attentions):
                (expected,) = (each.weights() for each in calls if each.source is module)
                torch.testing.assert_close(
                    weights[layer, :, n], expected.reshape(-1, len(row)), rtol=0, atol=1e-5
                )


@torch.no_grad()
def test_weights_of_several_outputs_are_those_of_each():
    made, row = model("transformer"), sources()[0]
    hits = [
        Hypothesis(tokens, None, None, END if len(tokens) < 4 else None)
        for tokens in ((5, 6), (7,), (8, 9, 5, 6), ())
    ]
    together = output_attention(made, Tokens.of([row]), hits, START)
    for hit, weights in zip(hits, together, strict=True):
        (alone,) = output_attention(made, Tokens.of([row]), [hit], START)
        torch.testing.assert_close(weights, alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "count"), list(product(("transformer", "lstm bahdanau"), (1, 4))))
def test_coverage_reranks_the_beam(name, count):
    made, rows, changed = model(name), sources()[:6], 0
    plain = decode(made, rows, beam_size=4, num_hypotheses=4)
    for row, hits, again in zip(
        rows,
        plain,
        decode(made, rows, beam_size=4, num_hypotheses=count, coverage_penalty=30.0),
        strict=True,
    ):
        wanted = []
        for hit, weights in zip(
            hits, output_attention(made, Tokens.of([row]), hits, START), strict=True
        ):
            score = hit.score
            for column in range(len(row)):
                received = sum(
                    float(weights[layer, head, step, column])
                    / (weights.shape[0] * weights.shape[1])
                    for layer, head, step in product(*map(range, weights.shape[:3]))
                )
                score += 30.0 * float(torch.tensor(min(received, 1.0)).log())
            wanted.append((score, hit.tokens))
        wanted = sorted(wanted, reverse=True)[:count]
        assert [each.tokens for each in again] == [tokens for _, tokens in wanted]
        assert [each.score for each in again] == pytest.approx(
            [score for score, _ in wanted], rel=1e-4
        )
        changed += again[0].tokens != hits[0].tokens
    assert changed


def test_models_without_cross_attention_are_refused():
    made, row = model("rnn"), sources()[0]
    for each in (made, Seq2Seq(None, decoder("transformer", None)), Ensemble([made, made])):
        with pytest.raises(
            ValueError, match="coverage_penalty: wanted one model whose decoder attends"
        ):
            coverage_reranker(each, DecodeConfig(coverage_penalty=0.2), START)
    with pytest.raises(ValueError, match=r"coverage_penalty: wanted SearchTask\(rerank"):
        next(
            search(
                SearchTask(model("transformer"), Tokens.of, DecodeConfig(coverage_penalty=0.2)),
                [GenerationRequest(row, 1)],
            )
        )
    with pytest.raises(ValueError, match="attention: wanted"):
        output_attention(made, Tokens.of([row]), decode(made, [row])[0], START)
    with pytest.raises(ValueError, match="coverage_penalty"):
        DecodeConfig(sample=True, coverage_penalty=0.2)
