"""Processor time of a server's search until a long prompt is read: in one forward pass, and step by step.

python benchmarks/prompts.py --lengths 2000 8000 --rounds 3

A language model with random weights, on a CPU with one thread. The search is that of `regard serve`, to which requests
come later; with --banned, outputs may not contain a phrase.
"""

import argparse
import statistics
import time

import torch

from regard.core.sequence import Tokens
from regard.data.special_tokens import END
from regard.generation.batch_plan import BatchLimits
from regard.generation.config import DecodeConfig
from regard.generation.engines.buffers import DecodeBuffers
from regard.generation.request import GenerationRequest, SearchTask, plan_requests
from regard.generation.search import Search
from regard.model.embedding import Embedding, Projection
from regard.model.seq2seq import Seq2Seq
from regard.model.transformer import TransformerDecoder
from regard.model.transformer_config import TransformerConfig

VOCABULARY = 2000
DIM = 128


class StepwiseBuffers(DecodeBuffers):
    """Buffers that read no prompt at once."""

    def prefill(self, count: int) -> bool:
        return False

    def prefill_slot(self, slot: int, count: int) -> bool:
        return False


def language_model() -> Seq2Seq:
    torch.manual_seed(0)
    config = TransformerConfig(dim=DIM, layers=4, heads=4, ffn_dim=512, positions="rotary")
    projection = Projection(DIM, VOCABULARY)
    decoder = TransformerDecoder(config, Embedding(VOCABULARY, DIM), projection, None)
    return Seq2Seq(None, decoder).eval()


def seconds(model: Seq2Seq, length: int, *, at_once: bool, banned: bool) -> float:
    """The processor time of a search with a prompt of so many tokens and an output of one."""
    task = SearchTask(model, Tokens.of, DecodeConfig(max_length=1), first=END, ends=False)
    generator = torch.Generator().manual_seed(length)
    prompt = torch.randint(5, VOCABULARY, (length,), generator=generator).tolist()
    phrases = [(6, 7)] if banned else []
    request = GenerationRequest(None, 0, prompt, banned=phrases, given=length)
    planned = plan_requests(task, [request])
    search = Search(task, BatchLimits.of(planned, 1), 1)
    if not at_once:
        search._new_buffers = lambda: stepwise(search)
    start = time.process_time()
    search.admit(planned)
    while len(search):
        search.advance(())
    return time.process_time() - start


def stepwise(search: Search) -> StepwiseBuffers:
    buffers = Search._new_buffers(search)
    return StepwiseBuffers(buffers.decoder, buffers.strategy, buffers.table, fused=buffers.fused)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2000, 8000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--banned", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = language_model()
    seconds(model, 50, at_once=True, banned=given.banned)
    for length in given.lengths:
        found: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(given.rounds):
            for at_once, values in found.items():
                values.append(seconds(model, length, at_once=at_once, banned=given.banned))
        once, stepped = (statistics.median(values) for values in found.values())
        print(
            f"{length:,} tokens: {once:.2f} s at once, {stepped:.2f} s in steps,"
            f" {stepped / once:.1f} times"
        )


if __name__ == "__main__":
    main()
