"""Greedy search under edits by the compiled decoder, for a draft that is verified afterwards.

Edits of the encoder are in its memory. Of those of the decoder, scaled heads are scaled output projections and masked
tokens of the source are masked in the memory. Painted rows are left out, and weights are in int8 where the processor
supports it, since a step takes the time of reading them: the result is a draft.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Lock
from weakref import WeakKeyDictionary

import torch

from regard.core.shapes import Float, Int, Tensor
from regard.data.special_tokens import SpecialTokens
from regard.generation.config import DecodeConfig
from regard.generation.engines.cpu.decoder import NativeDecoder
from regard.generation.engines.loop import GreedyTensors, LoopBounds, SearchLoop
from regard.generation.engines.selection import COMPILED
from regard.interpret.edits import Edit, MaskSource, ScaleHead, SwitchHeadOff
from regard.interpret.sites import attention_sites
from regard.model.interfaces import AnyDecoder, AttentionModule
from regard.model.memory import Memory
from regard.model.seq2seq import Seq2Seq
from regard.model.transformer import TransformerDecoder


class GreedyChoice:
    """The choices of greedy search, which generates no suppressed token and repeats no n-gram.

    `tokens` are those that the decoder has read: the start token and the output so far. `add` extends them.
    """

    def __init__(self, special: SpecialTokens, no_repeat_ngram_size: int) -> None:
        self.suppressed, self.size = frozenset(special.suppressed), no_repeat_ngram_size
        self.tokens: list[int] = []
        self._followers: dict[
            tuple[int, ...], set[int]
        ] = {}  # the tokens after each run of size − 1
        if special.start is not None:
            self.add(special.start)

    def best(self, logits: Float[Tensor, " V"], likely: int) -> int:
        """The next token, where `likely` is the most likely one."""
        excluded = self.suppressed | self._followers.get(self._run(), frozenset())
        if likely not in excluded:
            return likely
        return int(logits.index_fill(0, torch.tensor([*excluded]), -torch.inf).argmax())

    def add(self, token: int) -> None:
        if self.size > 0 and len(self.tokens) >= self.size - 1:
            self._followers.setdefault(self._run(), set()).add(token)
        self.tokens.append(token)

    def _run(self) -> tuple[int, ...]:
        return tuple(self.tokens[len(self.tokens) - self.size + 1 :]) if self.size > 1 else ()


def draft_search(
    model: Seq2Seq,
    memory: Memory,
    edits: Sequence[Edit],
    forced: Mapping[int, int],
    special: SpecialTokens,
    config: DecodeConfig,
) -> tuple[int, ...] | None:
    """The output of greedy search from a memory under edits, up to rounding; None where no compiled decoder runs it.

    forced   tokens by position
    """
    decoder = _compiled(model.decoder)
    if decoder is None or special.start is None:
        return None
    scaled, longest = decoder.with_scaled_heads(_factors(model, edits)), config.max_length
    state = scaled.start(_masked(memory, edits), batch=1, capacity=longest + 1)
    first = torch.tensor([special.start])
    loop = _greedy_loop(first, forced, special, longest, config.no_repeat_ngram_size)
    last = torch.tensor([[special.start]])
    while not bool(loop.done):
        found = scaled.search(last, state, loop, LoopBounds(steps=longest, stop=1))
        if found is None:
            return None
        _, state = found
    return tuple(loop.tokens[0, 0, : int(loop.length)].tolist())


def _greedy_loop(
    first: Int[Tensor, " 1"],
    forced: Mapping[int, int],
    special: SpecialTokens,
    longest: int,
    no_repeat_ngram_size: int,
) -> SearchLoop:
    """Greedy search for one output, with the choices of `GreedyChoice` where no token is forced."""
    zero, prefix = torch.zeros(1, dtype=torch.int64), torch.full((1, longest), -1)  # −1: any token
    for position, token in forced.items():
        if position < longest:
            prefix[0, position] = token
    ended = torch.zeros(1, 1, dtype=torch.bool)
    return SearchLoop(
        torch.zeros(1, 1, longest, dtype=torch.int64), log_p=None, length=zero.clone(), limit=torch.tensor([longest]),
        min_length=zero, prompt=zero, prefix=prefix, first=first, done=ended[0].clone(), suppressed=special.suppressed,
        ends=special.ends, forced=0, no_repeat_ngram_size=no_repeat_ngram_size, allow_end=False, normalized=False,
        greedy=GreedyTensors(ended),
    )  # fmt: skip


def _compiled(decoder: AnyDecoder) -> NativeDecoder | None:
    """The compiled decoder, with weights in int8 where the processor supports it; packed once."""
    # Nothing trains a model that is served.
    exact = COMPILED.with_constant_weights().compile_decoder(decoder)
    if not isinstance(exact, NativeDecoder) or not isinstance(decoder, TransformerDecoder):
        return None
    if not exact.library.regard_int8_max_inputs():
        return exact
    with _packing:
        if decoder not in _packed:
            _packed[decoder] = NativeDecoder(decoder, exact.library, int8=True)
        return _packed[decoder]


_packed: WeakKeyDictionary[TransformerDecoder, NativeDecoder] = WeakKeyDictionary()
_packing = Lock()  # several threads may search at once


def _factors(model: Seq2Seq, edits: Sequence[Edit]) -> dict[AttentionModule, dict[int, float]]:
    """What the outputs of heads are multiplied by."""
    factors: dict[AttentionModule, dict[int, float]] = {}
    for edit in edits:
        if not isinstance(edit, ScaleHead | SwitchHeadOff):
            continue
        for module, site in attention_sites(model).items():
            if edit.selects(site):
                heads = factors.setdefault(module, {})
                for head in range(module.heads) if edit.head is None else (edit.head,):
                    heads[head] = heads.get(head, 1.0) * (
                        edit.factor if isinstance(edit, ScaleHead) else 0.0
                    )
    return factors


def _masked(memory: Memory, edits: Sequence[Edit]) -> Memory:
    """The memory without the tokens of sources that edits mask."""
    mask, first = memory.mask.clone(), [0]
    for span in memory.spans:
        first.append(first[-1] + int(span.lengths))
    for edit in edits:
        if isinstance(edit, MaskSource):
            mask[:, first[edit.source] + edit.token] = False
    return replace(memory, mask=mask)
