"""Searches with a vocabulary shortlist: the same outputs by every engine and in every batch, of candidates only."""

from itertools import product

import pytest
import torch

from regard.core.errors import InvalidArgument
from regard.core.sequence import Tokens
from regard.data.special_tokens import DEFAULT_TOKENS, END, MASK, PAD, START
from regard.generation.config import DecodeConfig
from regard.generation.engines import selection
from regard.generation.engines.cpu import compile
from regard.generation.engines.cpu.candidate_projection import CandidateProjection
from regard.generation.engines.torch import PyTorchEngine
from regard.generation.request import GenerationRequest, SearchTask
from regard.generation.search import search
from regard.generation.shortlist import Shortlist, _source_tokens
from regard.model.seq2seq import Seq2Seq
from support.models import DECODERS, VOCABULARY
from support.search import LONGEST, model, sources

SEARCHES = (
    {},
    {"beam_size": 3, "num_hypotheses": 3},
    {"beam_size": 3, "min_length": 3, "no_repeat_ngram_size": 2},
    {"sample": True, "num_hypotheses": 2},
)
BANNED = (PAD, START, MASK)  # never generated


def shortlist(count: int = 2) -> Shortlist:
    generator = torch.Generator().manual_seed(5)
    likely = torch.rand(VOCABULARY, VOCABULARY, generator=generator).argsort(1)[:, :count].int()
    likely[::3, 1:] = -1
    return Shortlist.of(
        {"likely": likely, "frequent": torch.tensor([6], dtype=torch.int32)}, VOCABULARY, VOCABULARY
    )


def decode(made: Seq2Seq, rows: list[list[int]], prefixes=None, required=(), **options):
    requests = [
        GenerationRequest(row, len(row), prefix, required=required)
        for row, prefix in zip(rows, prefixes or [()] * len(rows), strict=True)
    ]
    config = DecodeConfig(**{"max_length": LONGEST, "shortlist": True, **options})
    found = dict(
        search(SearchTask(made, Tokens.of, config, scored=True, shortlist=shortlist()), requests)
    )
    return [found[index] for index in range(len(rows))]


def assert_equal(found, wanted) -> None:
    assert [[each.tokens for each in one] for one in found] == [
        [each.tokens for each in one] for one in wanted
    ]
    for one, other in zip(found, wanted, strict=True):
        for each, plain in zip(one, other, strict=True):
            assert each.log_probabilities == pytest.approx(plain.log_probabilities, abs=1e-4)


@pytest.mark.parametrize(("name", "options"), list(product(DECODERS, SEARCHES)))
def test_every_engine_has_the_outputs_of_pytorch(name, options, monkeypatch):
    """Slots are filled again meanwhile: `batch_tokens` leaves room for few. Each source alone has the same outputs."""
    made, rows = model(name), sources()
    found = decode(made, rows, **options, batch_tokens=13)
    if not options.get("sample"):  # whose draws depend on the number of a request
        assert_equal(found, [decode(made, [row], **options)[0] for row in rows])
    monkeypatch.setattr(selection, "ENGINES", (PyTorchEngine(),))
    assert_equal(found, decode(made, rows, **options))


@torch.no_grad()
def test_greedy_search_equals_a_plain_implementation():
    """Log-probabilities are normalized over the candidates of the source."""
    made, lists, some = model("transformer"), shortlist(), 0
    for row, (best,) in zip(sources(), decode(made, sources()), strict=True):
        memory, tokens = made.encode(Tokens.of([row])), []
        chosen = {int(token) for source in row for token in lists.likely[source] if token >= 0} | {
            6,
            END,
        }
        some += len(chosen) < VOCABULARY
        for log_probability in best.log_probabilities:
            logits = made.decoder(torch.tensor([[START, *tokens]]), memory)[0, -1]
            logits[[token for token in range(VOCABULARY) if token not in chosen]] = -torch.inf
            log_p = logits.log_softmax(-1)
            token = max(chosen.difference(BANNED), key=lambda token: log_p[token])
            assert log_probability == pytest.approx(float(log_p[token]), abs=1e-4)
            tokens.append(token)
        assert tuple(token for token in tokens if token != END) == best.tokens
    assert some > 5  # sources, whose outputs are restricted


@pytest.mark.parametrize("options", SEARCHES[:3])
def test_prefixes_and_required_phrases_are_candidates(options):
    rows = sources()
    allowed = shortlist().allowed(
        [GenerationRequest(row, len(row)) for row in rows], DEFAULT_TOKENS
    )
    outside = [
        next((token for token in range(5, VOCABULARY) if not row[token]), 6) for row in allowed
    ]
    assert sum(token != 6 for token in outside) > 5
    made = model("transformer")
    for found, token in zip(
        decode(made, rows, [[token] for token in outside], **options), outside, strict=True
    ):
        assert found[0].tokens[0] == token
    for row, token in zip(rows, outside, strict=True):
        assert all(
            token in each.tokens for each in decode(made, [row], required=[[token]], **options)[0]
        )


@pytest.mark.skipif(compile.library() is None, reason="no C++ compiler here")
@pytest.mark.parametrize("options", SEARCHES[:2])
def test_a_compiled_loop_computes_the_logits_of_candidates_only(options, monkeypatch):
    sizes, of = [], CandidateProjection.of

    def counted(self, candidates):
        found = of(self, candidates)
        sizes.append(found.outputs)
        return found

    monkeypatch.setattr(CandidateProjection, "of", counted)
    decode(model("transformer"), sources()[3:4], **options)
    allowed = shortlist().allowed([GenerationRequest(sources()[3], 1)], DEFAULT_TOKENS)
    assert set(sizes) == {int(allowed.sum())}
    assert max(sizes) < VOCABULARY


def test_a_source_that_is_no_text_is_refused():
    with pytest.raises(InvalidArgument, match="a model of one text"):
        shortlist().allowed([GenerationRequest("dog.jpg", 1)], DEFAULT_TOKENS)


def test_sources_are_tokens_that_the_shortlist_was_learned_for():
    """Of five tokens: others have no candidates, and would be given those of other tokens."""
    for right in ([3, 4], (0,), []):
        assert _source_tokens(right, 5).tolist() == [*right]
    for wrong in ([5], [3, 5], [-1], [1.0], [[3]], ["a"], "ab", torch.tensor([1]), {1: 2}, None):
        with pytest.raises(
            InvalidArgument, match="shortlist: wanted a model of one text as its source"
        ):
            _source_tokens(wrong, 5)
