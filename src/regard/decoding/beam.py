"""Beam search: the K best beginnings of each output, all at once."""

from collections.abc import Sequence

import torch

from regard.core.shapes import Bool, Float, Int, Tensor
from regard.data.tokenizer import END
from regard.decoding.config import DecodeConfig
from regard.decoding.constrained_beam import RequiredPhrases
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.logits_processors import GeneratedTokens, LogitsProcessor
from regard.decoding.topk import top, top_sums
from regard.kernels.decode.step import kernels
from regard.model.kv_cache import Slots
from regard.runtime.interfaces import SearchStrategy


class BeamSearch(SearchStrategy):
    """K hypotheses for each of B inputs, in G groups that know of each other only what is already said there.

    An ended hypothesis competes by its sum divided by a power of its length. An input is done when it has as many ended
    ones as the beam is wide, and what still goes on, were it to end now, would not be among them.
    """

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
        self.config, self.generated, self.limit, self.rules, self.ends = config, said, limit, rules, ends
        batch, beams, longest = said.tokens.shape
        device, self.groups, self.required = limit.device, config.beam_groups, required
        self.log_p = torch.zeros(batch, beams, longest, device=device)
        self.total = torch.zeros(batch, beams, device=device)
        self.ended_tokens = torch.zeros_like(said.tokens)
        self.ended_log_p = torch.zeros_like(self.log_p)
        self.ended_length = torch.zeros(batch, beams, dtype=torch.int64, device=device)
        self.ended_score = torch.full((batch, beams), -torch.inf, device=device)
        self.done = torch.ones(batch, dtype=torch.bool, device=device)  # nothing of it changes any more

    def set_seed(self, seed: int) -> None:
        """Nothing is drawn."""

    def admit(self, rows: Slots, inputs: Int[Tensor, " n"]) -> None:
        width = self.total.shape[1] // self.groups
        first = torch.arange(self.total.shape[1], device=inputs.device) % width == 0
        self.total[rows] = torch.where(first, 0.0, -torch.inf)  # all alike at first: one of each group speaks
        self.ended_score[rows] = -torch.inf
        self.done[rows] = False

    def keep(self, rows: Int[Tensor, " n"]) -> None:
        """Go on with these inputs alone."""
        self.generated = self.generated.keep(rows)
        for name in ("log_p", "total", "limit", "done", "ended_tokens", "ended_log_p", "ended_length", "ended_score"):
            setattr(self, name, getattr(self, name)[rows])

    def advance(self, logits: Float[Tensor, "B K V"]) -> tuple[Int[Tensor, "B K"], Int[Tensor, "B K"]]:
        """The next tokens, and whom they follow."""
        said, beams = self.generated, logits.shape[1]
        asking = [] if self.required is None else self.required.speaking()
        if (
            self.required is None
            and self.groups == 1
            and self.config.repetition_penalty == 1.0
            and kernels(logits) is not None
        ):
            values, parents, tokens, gained = self._likeliest(logits)
            standing = values
        else:
            values, standing, parents, tokens, gained = self._ruled(logits, asking)
        said.length += ~self.done
        rank = torch.arange(values.shape[-1], device=values.device)
        last = (said.length >= self.limit)[:, None, None]
        ends = (tokens == END) & self.ends | last
        first = rank < beams // self.groups
        self._end(values, parents, tokens, gained, ends & first)
        best, chosen = standing.masked_fill(ends, -torch.inf).topk(beams // self.groups)
        if standing is not values:
            best = torch.where(best == -torch.inf, best, values.gather(2, chosen))
        self.total = best.flatten(1)
        parents, tokens, gained = (x.gather(2, chosen).flatten(1) for x in (parents, tokens, gained))
        at = (said.length - 1)[:, None, None].expand(-1, beams, -1)
        said.tokens = _follow(said.tokens, parents).scatter_(2, at, tokens[..., None])
        self.log_p = _follow(self.log_p, parents).scatter_(2, at, gained[..., None])
        if self.required is not None and asking:
            self.required.follow(asking, tokens, parents)
        self.done |= self._enough() | last[:, 0, 0]
        return tokens, parents

    def _ruled(
        self, logits: Float[Tensor, "B K V"], asking: list[int]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """As `_candidates`, of all inputs, and their log-probabilities: (B, G, 2 K / G)."""
        vocabulary = logits.shape[2]
        true = logits.float().log_softmax(-1)
        scores = (
            true if self.config.repetition_penalty == 1.0 else true.clone()
        )  # other rules forbid, and change nothing else
        unruled = true[asking] if asking else true[:0]
        for rule in self.rules:
            rule(scores, self.generated)
        values, standing, parents, tokens = self._candidates(scores)
        if self.required is not None and asking:
            total = self.total[asking][..., None]
            found = self.required.choose(asking, scores[asking] + total, unruled + total, self.config)
            values[asking], parents[asking], tokens[asking] = found
            standing[asking] = values[asking]
            true[asking] = unruled
        gained = true.flatten(1).gather(1, (parents * vocabulary + tokens).flatten(1)).view_as(values)
        return values, standing, parents, tokens, gained

    def _likeliest(self, logits: Float[Tensor, "B K V"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same where rules only forbid, and groups are one: most log-probabilities are never computed."""
        _, beams, vocabulary = logits.shape
        gpu, count = kernels(logits), min(2 * beams, vocabulary)
        assert gpu is not None
        whole: Tensor = gpu.log_sum_exp(logits)
        for rule in self.rules:
            rule(logits, self.generated)
        best, words = gpu.top_k(logits, count)
        true = best - whole[..., None]
        values, where = (true + self.total[..., None]).flatten(1).topk(min(2 * beams, beams * vocabulary))
        tokens, gained = (x.flatten(1).gather(1, where)[:, None] for x in (words, true))
        return values[:, None], (where // count)[:, None], tokens, gained

    def _candidates(self, scores: Float[Tensor, "B K V"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Twice as many as go on, so that enough are left when some end: (B, G, 2 K / G), best first.

        Totals; what they are chosen by, which is less where groups before say the same; parents in the beam; tokens.
        """
        batch, beams, vocabulary = scores.shape
        width = beams // self.groups
        count = min(2 * width, width * vocabulary)
        if self.groups == 1:
            values, where = top_sums(scores, self.total, count)
            values = values[:, None]
            return values, values, (where // vocabulary)[:, None], (where % vocabulary)[:, None]
        taken = torch.zeros(batch, vocabulary, device=scores.device)
        found = []
        for group in range(self.groups):
            members = slice(group * width, (group + 1) * width)
            mine = scores[:, members] + self.total[:, members, None]
            apart = mine - self.config.diversity_penalty * taken[:, None]
            standing, where = top(apart.flatten(1), count)
            tokens = where % vocabulary
            found.append((mine.flatten(1).gather(1, where), standing, where // vocabulary + group * width, tokens))
            goes_on = ((tokens == END) & self.ends).long().argsort(stable=True)[:, :width]
            taken.scatter_add_(1, tokens.gather(1, goes_on), torch.ones_like(goes_on, dtype=taken.dtype))
        values, standing, parents, tokens = (torch.stack(x, 1) for x in zip(*found, strict=True))
        return values, standing, parents, tokens

    def _end(self, values: Tensor, parents: Tensor, tokens: Tensor, gained: Tensor, ends: Tensor) -> None:
        """Keep the best of those that ended before and those that end now; of who is done, as it was."""
        if values.device.type == "cpu" and not bool(ends.any()):
            return
        batch, groups, count = values.shape
        said, width = self.generated, self.total.shape[1] // groups
        length = said.length[:, None, None].expand_as(values)
        now = (values / length.float() ** self.config.length_penalty).masked_fill(~ends, -torch.inf)
        at = (length - 1).flatten(1)[..., None]
        new_tokens = _follow(said.tokens, parents.flatten(1)).scatter_(2, at, tokens.flatten(1)[..., None])
        new_log_p = _follow(self.log_p, parents.flatten(1)).scatter_(2, at, gained.flatten(1)[..., None])

        def merged(old: Tensor, new: Tensor) -> Tensor:  # (B, G, K / G + 2 K / G, …)
            shape = batch, groups, -1, *old.shape[2:]
            return torch.cat((old.reshape(shape), new.reshape(shape)), 2)

        scores = merged(self.ended_score, now.flatten(1))
        best = torch.where(self.done[:, None, None], torch.arange(width, device=values.device), scores.topk(width)[1])
        rows = (best + torch.arange(groups, device=best.device)[:, None] * (width + count)).flatten(1)
        self.ended_score = scores.flatten(1).gather(1, rows)
        self.ended_length = merged(self.ended_length, length.flatten(1)).flatten(1, 2).gather(1, rows)
        self.ended_tokens = _follow(merged(self.ended_tokens, new_tokens).flatten(1, 2), rows)
        self.ended_log_p = _follow(merged(self.ended_log_p, new_log_p).flatten(1, 2), rows)

    def _enough(self) -> Bool[Tensor, " B"]:
        by_group = len(self.total), self.groups, -1
        best = self.total.view(by_group).amax(-1)  # (B, G)
        attainable = best / self.generated.length[:, None].float() ** self.config.length_penalty
        worst = self.ended_score.view(by_group).amin(-1)
        enough: Tensor = (attainable <= worst).all(-1)
        return enough

    def found(self, rows: Slots) -> list[list[Hypothesis]]:
        """The outputs of inputs that are done, best first."""
        scores = self.ended_score[rows]
        best = scores.argsort(dim=-1, descending=True, stable=True)
        best = best if self.config.coverage_penalty else best[:, : self.config.num_hypotheses]
        found = (scores.gather(1, best), self.ended_length[rows].gather(1, best))
        said = (_follow(x[rows], best) for x in (self.ended_tokens, self.ended_log_p))
        return [self._outputs(*each) for each in zip(*(x.tolist() for x in (*found, *said)), strict=True)]

    def _outputs(
        self, scores: list[float], lengths: list[int], tokens: list[list[int]], log_p: list[list[float]]
    ) -> list[Hypothesis]:
        hypotheses = []
        for score, length, whole, known in zip(scores, lengths, tokens, log_p, strict=True):
            if score == -torch.inf:
                continue
            said = tuple(whole[:length])
            ended = self.ends and said[-1] == END
            hypotheses.append(Hypothesis(said[:-1] if ended else said, tuple(known[:length]), score, ended))
        return hypotheses


def _follow(x: Tensor, rows: Int[Tensor, "B N"]) -> Tensor:
    """Of each input, these of its hypotheses."""
    return x.gather(1, rows[..., None].expand(-1, -1, x.shape[2]))
