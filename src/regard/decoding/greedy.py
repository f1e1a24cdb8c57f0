"""One token after another, and no way back: the most likely, or one drawn."""

from collections.abc import Sequence

import torch

from regard.core.shapes import Float, Int, Tensor
from regard.data.tokenizer import END, PAD
from regard.decoding.config import DecodeConfig
from regard.decoding.constrained_beam import RequiredPhrases
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.logits_processors import GeneratedTokens, LogitsProcessor
from regard.decoding.sampling import chances, draw, narrowed, start_of
from regard.kernels.decode.step import kernels
from regard.model.kv_cache import Slots
from regard.runtime.interfaces import SearchStrategy


class GreedySearch(SearchStrategy):
    """Greedy search, or K independent samples for each of B inputs."""

    generated: GeneratedTokens

    def __init__(
        self,
        config: DecodeConfig,
        said: GeneratedTokens,
        limit: Int[Tensor, " B"],
        rules: Sequence[LogitsProcessor],
        *,
        ends: bool,
        scored: bool,
        required: RequiredPhrases | None = None,
    ) -> None:
        self.config, self.generated, self.limit, self.rules = config, said, limit, rules
        self.ends, self.scored, self.required = ends, scored, required
        batch, beams, _ = said.tokens.shape
        self.log_p = torch.zeros(said.tokens.shape, device=limit.device) if scored else None
        self.over = torch.zeros(batch, beams, dtype=torch.bool, device=limit.device)  # said its end
        self.done = torch.ones(batch, dtype=torch.bool, device=limit.device)  # nothing of it changes any more
        self.row = torch.zeros(batch, beams, dtype=torch.int64, device=limit.device)  # which draws are its own
        self.start = torch.zeros(1, dtype=torch.int64, device=limit.device)  # of the seed, which a recording reads here

    def set_seed(self, seed: int) -> None:
        if self.config.sample:
            self.start.fill_(start_of(seed))

    def admit(self, rows: Slots, inputs: Int[Tensor, " n"]) -> None:
        self.over[rows] = self.done[rows] = False
        if self.config.sample:
            beams = self.over.shape[1]
            self.row[rows] = inputs[:, None] * beams + torch.arange(beams, device=inputs.device)

    def keep(self, rows: Int[Tensor, " n"]) -> None:
        """Go on with these inputs alone."""
        self.generated, self.limit, self.done = self.generated.keep(rows), self.limit[rows], self.done[rows]
        self.over, self.row, self.start = self.over[rows], self.row[rows], self.start.clone()
        self.log_p = None if self.log_p is None else self.log_p[rows]

    def advance(self, logits: Float[Tensor, "B K V"]) -> tuple[Int[Tensor, "B K"], None]:
        """The next tokens, and whom they follow (each itself)."""
        said, exact = self.generated, self.scored or self.config.sample or self.config.repetition_penalty != 1.0
        true = logits.float().log_softmax(-1) if exact else logits  # an argmax needs no softmax
        scores = true.clone() if self.scored else true
        for rule in self.rules:
            rule(scores, said)
        if not exact and self.required is None and (gpu := kernels(scores)) is not None:
            end = END if self.ends else -1
            written: Tensor = gpu.greedy_step(
                scores, said.tokens, said.length, self.limit, self.over, self.done, end, PAD
            )
            return written, None
        if self.config.sample:
            steps = said.length[:, None].expand_as(self.row)
            tokens = draw(narrowed(scores, self.config), chances(self.start, self.row, steps))
        else:
            tokens = scores.argmax(-1)
        if self.required is not None and (asking := self.required.speaking()):
            self.required.correct(asking, tokens, scores, self.over)
            self.required.follow(asking, tokens, None)
        tokens = tokens.masked_fill(self.over, PAD)
        at = said.length[:, None, None].expand(-1, tokens.shape[1], -1)
        said.tokens.scatter_(2, at, tokens[..., None])
        if self.log_p is not None:
            self.log_p.scatter_(2, at, true.gather(2, tokens[..., None]))
        said.length += ~self.done
        if self.ends:
            self.over |= tokens == END
        self.done |= self.over.all(-1) | (said.length >= self.limit)
        return tokens, None

    def found(self, rows: Slots) -> list[list[Hypothesis]]:
        """The outputs of inputs that are done."""
        lengths, said = self.generated.length[rows].tolist(), self.generated.tokens[rows].tolist()
        log_p = [None] * len(said) if self.log_p is None else self.log_p[rows].tolist()
        return [self._outputs(*each) for each in zip(said, lengths, log_p, strict=True)]

    def _outputs(self, said: list[list[int]], length: int, known: list[list[float]] | None) -> list[Hypothesis]:
        hypotheses = []
        for beam, whole in enumerate(said):
            tokens = whole[:length]
            ended = self.ends and END in tokens
            tokens = tokens[: tokens.index(END)] if ended else tokens
            log_p = None if known is None else tuple(known[beam][: len(tokens) + ended])
            score = None if log_p is None else sum(log_p) / max(1, len(log_p)) ** self.config.length_penalty
            hypotheses.append(Hypothesis(tuple(tokens), log_p, score, ended))
        return hypotheses
