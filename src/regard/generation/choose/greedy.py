"""Greedy search and sampling: one token after another for each hypothesis."""

from dataclasses import dataclass, replace

import torch

from regard.core.shapes import Float, Int, Tensor
from regard.generation.choose.interfaces import Hypothesis
from regard.generation.choose.length_penalty import length_penalty
from regard.generation.choose.sampling import filtered, sample, seed_offset, uniform
from regard.generation.choose.strategies import DecodingStrategy
from regard.generation.engines.choice_kernels import kernels, log_softmax
from regard.generation.engines.loop import GreedyTensors, SearchLoop
from regard.model.kv_cache import Slots


@dataclass(eq=False)
class GreedySearch(DecodingStrategy):
    """The most likely token at each step, or K independent samples in each of B slots."""

    scored: bool = False  # whether hypotheses have log-probabilities
    per_slot = ("ended", "stopped", "stream", "log_p", "alternatives")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scored = self.scored or self.config.top_logprobs > 0
        self.normalized = self.scored or self.config.sample or not self.masks_only
        tokens = self.generated.tokens  # (B, K, T)
        self.log_p = tokens.new_zeros(
            tokens.shape if self.scored else (*tokens.shape[:2], 0), dtype=torch.float32
        )
        self.ended = tokens.new_zeros(tokens.shape[:2], dtype=torch.bool)
        # The length at which a stop string was complete; 0: none was.
        self.stopped = tokens.new_zeros(tokens.shape[:2])
        self.stream = tokens.new_zeros(tokens.shape[:2])  # of random numbers
        self.seed = tokens.new_zeros(1)  # a tensor, which a CUDA graph reads

    def set_seed(self, seed: int) -> None:
        if self.config.sample:
            self.seed.fill_(seed_offset(seed))

    def admit(self, slots: Slots, inputs: Int[Tensor, " n"]) -> None:
        self.ended[slots] = self.done[slots] = False
        self.stopped[slots] = 0
        if self.config.sample:
            beams = self.ended.shape[1]
            self.stream[slots] = inputs[:, None] * beams + torch.arange(beams, device=inputs.device)

    def keep(self, slots: Int[Tensor, " n"]) -> None:
        super().keep(slots)
        self.seed = self.seed.clone()  # a copy of the strategy has its own

    def loop(self) -> SearchLoop:
        assert not self.config.sample
        loop = self.common_loop(self.log_p if self.scored else None, normalized=self.normalized)
        return replace(loop, greedy=GreedyTensors(self.ended, self.special_tokens.pad))

    def advance(self, logits: Float[Tensor, "B K V"]) -> tuple[Int[Tensor, "B K"], None]:
        generated = self.generated
        special = self.special_tokens
        log_p = log_softmax(logits) if self.normalized else logits  # an argmax needs no softmax
        likely = self.most_likely(log_p)
        scores = log_p.clone() if self.scored else log_p
        for processor in self.processors:
            processor(scores, generated)
        fusible = not self.normalized and self.required is None and not special.other_ends
        fusible = fusible and self.stops is None
        if fusible and (gpu := kernels(scores)) is not None:
            end = special.end if self.ends else -1
            buffers = (generated.tokens, generated.length, generated.prompt)
            fused: Tensor = gpu.greedy_step(
                scores, *buffers, self.limit, self.ended, self.done, end, special.pad
            )
            return fused, None
        if self.config.sample:
            steps = generated.length[:, None].expand_as(self.stream)
            tokens = sample(filtered(scores, self.config), uniform(self.seed, self.stream, steps))
        else:
            tokens = scores.argmax(-1)
        if self.required is not None and (active := self.required.begin_step()):
            self.required.correct(active, tokens, scores, self.ended)
            self.required.follow(active, tokens, None)
        tokens = tokens.masked_fill(self.ended, special.pad)
        position = generated.length[:, None, None].expand(-1, tokens.shape[1], -1)
        generated.tokens.scatter_(2, position, tokens[..., None])
        if self.scored:
            gained = log_p.gather(2, tokens[..., None])
            if special.target_prefix:
                gained = gained.masked_fill(position < len(special.target_prefix), 0.0)
            self.log_p.scatter_(2, position, gained)
        if likely is not None:
            place = position[..., None].expand(-1, -1, -1, likely.shape[-1])
            self.alternatives.scatter_(2, place, likely[:, :, None])
        if self.ends:
            self.ended |= self.is_end(tokens, generated.length)
        if self.stops is not None:
            met = self.stops.met(generated, tokens) & ~self.ended
            self.stopped = torch.where(met, generated.length[:, None] + 1, self.stopped)
            self.ended |= met
        generated.length += ~self.done
        self.done |= self.ended.all(-1) | (generated.length >= self.limit)
        return tokens, None

    def hypotheses(self, slots: Slots) -> list[list[Hypothesis]]:
        generated = self.generated
        _, beams, size = self.generated.tokens.shape
        limits = generated.length[slots, None], generated.prompt[slots, None]
        numbers = torch.cat(
            (*limits, generated.tokens[slots].flatten(1)), 1
        ).tolist()  # one copy from a GPU
        log_p = self.log_p[slots].tolist() if self.scored else [[[]] * beams] * len(numbers)
        begins = range(2, 2 + beams * size, size)  # after length and prompt
        ends = self.special_tokens.ends if self.ends else ()
        stopped: list[list[int]] = [[0] * beams] * len(numbers)
        if self.stops is not None:
            stopped = self.stopped[slots].tolist()
        found = [
            [
                self._hypothesis(row[k : k + (length or row[0])], each, row[1], ends)
                for k, each, length in zip(begins, own, lengths, strict=True)
            ]
            for row, own, lengths in zip(numbers, log_p, stopped, strict=True)
        ]
        return self.with_alternatives(found, self.alternatives[slots])

    def _hypothesis(
        self, tokens: list[int], log_p: list[float], prompt: int, ends: tuple[int, ...]
    ) -> Hypothesis:
        end = None
        if stops := [tokens.index(token, prompt) for token in ends if token in tokens[prompt:]]:
            end = tokens[min(stops)]
            tokens = tokens[: min(stops)]
        if not self.scored:
            return Hypothesis(tuple(tokens), None, None, end)
        own = tuple(log_p[: len(tokens) + (end is not None)])
        penalty = length_penalty(len(own) - prompt, self.config.length_penalty)
        score = sum(own[prompt:]) / penalty
        return Hypothesis(tuple(tokens), own, score, end)
