"""One token after another, and no way back: the most likely, or one drawn."""

from collections.abc import Sequence

import torch

from regard.data.tokens import END, PAD
from regard.decoding.config import DecodeConfig
from regard.decoding.constraints import Required
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.rules import Rule, Said
from regard.decoding.sampling import chances, draw, narrowed
from regard.shapes import Bool, Float, Int, Tensor


class Walk:
    """Greedy search, or K independent samples for each of B inputs."""

    def __init__(
        self,
        config: DecodeConfig,
        said: Said,
        limit: Int[Tensor, " B"],
        rules: Sequence[Rule],
        *,
        ends: bool,
        scored: bool,
        required: Required | None = None,
    ) -> None:
        self.config, self.said, self.limit, self.rules = config, said, limit, rules
        self.ends, self.scored, self.required = ends, scored, required
        batch, beams, _ = said.tokens.shape
        self.log_p = torch.zeros(said.tokens.shape, device=limit.device) if scored else None
        self.over = torch.zeros(batch, beams, dtype=torch.bool, device=limit.device)  # said its end
        self.row = torch.zeros(batch, beams, dtype=torch.int64, device=limit.device)  # which draws are its own

    def enter(self, rows: Int[Tensor, " n"], inputs: Int[Tensor, " n"]) -> None:
        beams = self.over.shape[1]
        self.over[rows] = False
        self.row[rows] = inputs[:, None] * beams + torch.arange(beams, device=rows.device)

    def keep(self, rows: Int[Tensor, " n"]) -> None:
        """Go on with these inputs alone."""
        self.over, self.row, self.limit = self.over[rows], self.row[rows], self.limit[rows]
        self.log_p = None if self.log_p is None else self.log_p[rows]

    def advance(self, logits: Float[Tensor, "B K V"]) -> tuple[Int[Tensor, "B K"], None, Bool[Tensor, " B"]]:
        """The next tokens, whom they follow (each itself), and which inputs are done."""
        said, exact = self.said, self.scored or self.config.sample or self.config.repetition != 1.0
        true = logits.float().log_softmax(-1) if exact else logits.float()  # an argmax needs no softmax
        scores = true.clone() if self.scored else true
        for rule in self.rules:
            rule(scores, said)
        if self.config.sample:
            steps = said.length[:, None].expand_as(self.row)
            tokens = draw(narrowed(scores, self.config), chances(self.config.seed, self.row, steps))
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
        said.length += 1
        if self.ends:
            self.over |= tokens == END
        return tokens, None, self.over.all(-1) | (said.length >= self.limit)

    def found(self, row: int) -> list[Hypothesis]:
        """The outputs of an input that is done."""
        length = int(self.said.length[row])
        hypotheses = []
        for beam, tokens in enumerate(self.said.tokens[row, :, :length].tolist()):
            ended = self.ends and END in tokens
            said = tokens[: tokens.index(END)] if ended else tokens
            log_p = None
            if self.log_p is not None:
                log_p = tuple(self.log_p[row, beam, : len(said) + ended].tolist())
            score = None if log_p is None else sum(log_p) / max(1, len(log_p)) ** self.config.length_penalty
            hypotheses.append(Hypothesis(tuple(said), log_p, score, ended))
        return hypotheses
