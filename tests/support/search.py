"""Small untrained models, sources and searches for the tests of decoding."""

import torch
from torch import nn

from regard.core.sequence import Tokens
from regard.data.special_tokens import END, START
from regard.generation.config import DecodeConfig
from regard.generation.request import GenerationRequest, SearchTask
from regard.generation.search import search
from regard.interpret.output_attention import coverage_reranker
from regard.model.seq2seq import Seq2Seq
from support.models import VOCABULARY, WIDTH, decoder, encoder

LONGEST = 7
STRATEGIES = ({}, {"beam_size": 3, "num_hypotheses": 3}, {"sample": True, "num_hypotheses": 2})
LENGTHS = (6, 3, 5, 1, 2, 6, 4, 3, 2, 5, 1)


def model(name: str) -> Seq2Seq:
    """A decoder that ends now and then, with logits far enough apart that ties are rare."""
    made = Seq2Seq(encoder("transformer"), decoder(name)).eval()
    generator = torch.Generator().manual_seed(2)
    words = 0.5 * torch.randn(
        VOCABULARY, WIDTH, generator=generator
    )  # not tied to the embedding: that would repeat its input
    project = made.decoder.project
    project.weight, project.bias = (
        nn.Parameter(words / project.scale),
        nn.Parameter(torch.zeros(VOCABULARY)),
    )
    with torch.no_grad():
        project.bias[END] = 3.0
    return made


def sources() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(5, VOCABULARY, (n,), generator=generator).tolist() for n in LENGTHS]


def decode(
    made: Seq2Seq,
    rows: list[list[int]],
    *,
    processors=(),
    prefixes=None,
    banned=(),
    ends=True,
    **options,
):
    """The hypotheses of each of these sources, by a search with `options` of [decode]."""
    prefixes = prefixes or [()] * len(rows)
    inputs = [
        GenerationRequest(row, len(row), prefix, banned)
        for row, prefix in zip(rows, prefixes, strict=True)
    ]
    config = DecodeConfig(**{"max_length": LONGEST, **options})
    rerank = coverage_reranker(made, config, START)
    hits = dict(
        search(
            SearchTask(made, Tokens.of, config, processors, ends=ends, rerank=rerank, scored=True),
            inputs,
        )
    )
    return [hits[i] for i in range(len(rows))]


class Letters:
    """A tokenizer whose tokens are letters, of which some tokens have two."""

    def decode(self, ids) -> str:
        return b"".join(self.spellings(ids)).decode()

    def spellings(self, ids) -> list[bytes]:
        return [(chr(97 + i) * (1 + i % 3 // 2)).encode() if i > 4 else b"" for i in ids]


def token_ids(hypotheses) -> list[list[tuple[int, ...]]]:
    """The tokens of the hypotheses of each source."""
    return [[each.tokens for each in one] for one in hypotheses]
