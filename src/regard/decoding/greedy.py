"""Greedy search and sampling: one token after another for each hypothesis."""

from collections.abc import Sequence

import torch

from regard.core.shapes import Float, Int, Tensor
from regard.data.tokenizer import END, PAD
from regard.decoding.config import DecodeConfig
from regard.decoding.constrained_beam import RequiredPhrases
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.interfaces import DecodingStrategy, GeneratedTokens, LogitsProcessor
from regard.decoding.sampling import filtered, sample, seed_offset, uniform
from regard.kernels.decode.step import kernels
from regard.model.kv_cache import Slots


class GreedySearch(DecodingStrategy):
    """The most likely token at each step, or K independent samples in each of B slots."""

    def __init__(
        self,
        config: DecodeConfig,
        generated: GeneratedTokens,
        limit: Int[Tensor, " B"],
        processors: Sequence[LogitsProcessor],
        *,
        ends: bool,
        scored: bool,
        required: RequiredPhrases | None = None,
    ) -> None:
        self.config, self.generated, self.limit, self.processors = config, generated, limit, processors
        self.ends, self.scored, self.required = ends, scored, required
        self.normalized = scored or config.sample or not all(each.masks_only for each in processors)
        batch, beams, _ = generated.tokens.shape
        self.log_p = torch.zeros(generated.tokens.shape, device=limit.device) if scored else None
        self.ended = torch.zeros(batch, beams, dtype=torch.bool, device=limit.device)
        self.done = torch.ones(batch, dtype=torch.bool, device=limit.device)
        self.stream = torch.zeros(batch, beams, dtype=torch.int64, device=limit.device)  # of random numbers
        self.seed = torch.zeros(1, dtype=torch.int64, device=limit.device)  # a tensor, which a CUDA graph reads

    def set_seed(self, seed: int) -> None:
        if self.config.sample:
            self.seed.fill_(seed_offset(seed))

    def admit(self, slots: Slots, inputs: Int[Tensor, " n"]) -> None:
        self.ended[slots] = self.done[slots] = False
        if self.config.sample:
            beams = self.ended.shape[1]
            self.stream[slots] = inputs[:, None] * beams + torch.arange(beams, device=inputs.device)

    def keep(self, slots: Int[Tensor, " n"]) -> None:
        self.generated, self.limit, self.done = self.generated.keep(slots), self.limit[slots], self.done[slots]
        self.ended, self.stream, self.seed = self.ended[slots], self.stream[slots], self.seed.clone()
        self.log_p = None if self.log_p is None else self.log_p[slots]

    def advance(self, logits: Float[Tensor, "B K V"]) -> tuple[Int[Tensor, "B K"], None]:
        generated = self.generated
        log_p = logits.float().log_softmax(-1) if self.normalized else logits  # an argmax needs no softmax
        scores = log_p.clone() if self.scored else log_p
        for processor in self.processors:
            processor(scores, generated)
        if not self.normalized and self.required is None and (gpu := kernels(scores)) is not None:
            end, buffers = END if self.ends else -1, (generated.tokens, generated.length)
            fused: Tensor = gpu.greedy_step(scores, *buffers, self.limit, self.ended, self.done, end, PAD)
            return fused, None
        if self.config.sample:
            steps = generated.length[:, None].expand_as(self.stream)
            tokens = sample(filtered(scores, self.config), uniform(self.seed, self.stream, steps))
        else:
            tokens = scores.argmax(-1)
        if self.required is not None and (active := self.required.begin_step()):
            self.required.correct(active, tokens, scores, self.ended)
            self.required.follow(active, tokens, None)
        tokens = tokens.masked_fill(self.ended, PAD)
        position = generated.length[:, None, None].expand(-1, tokens.shape[1], -1)
        generated.tokens.scatter_(2, position, tokens[..., None])
        if self.log_p is not None:
            self.log_p.scatter_(2, position, log_p.gather(2, tokens[..., None]))
        generated.length += ~self.done
        if self.ends:
            self.ended |= tokens == END
        self.done |= self.ended.all(-1) | (generated.length >= self.limit)
        return tokens, None

    def hypotheses(self, slots: Slots) -> list[list[Hypothesis]]:
        lengths, tokens = self.generated.length[slots].tolist(), self.generated.tokens[slots].tolist()
        log_p = [None] * len(tokens) if self.log_p is None else self.log_p[slots].tolist()
        return [self._hypotheses(*each) for each in zip(tokens, lengths, log_p, strict=True)]

    def _hypotheses(self, beams: list[list[int]], length: int, log_p: list[list[float]] | None) -> list[Hypothesis]:
        """Of one slot."""
        hypotheses = []
        for beam, padded in enumerate(beams):
            tokens = padded[:length]
            ended = self.ends and END in tokens
            tokens = tokens[: tokens.index(END)] if ended else tokens
            own = None if log_p is None else tuple(log_p[beam][: len(tokens) + ended])
            score = None if own is None else sum(own) / max(1, len(own)) ** self.config.length_penalty
            hypotheses.append(Hypothesis(tuple(tokens), own, score, ended))
        return hypotheses
