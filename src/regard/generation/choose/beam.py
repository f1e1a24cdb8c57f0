"""Beam search, with diverse groups of beams."""

from dataclasses import dataclass, replace

import torch

from regard.core.shapes import Bool, Float, Int, Tensor
from regard.generation.choose.interfaces import Hypothesis, Scores
from regard.generation.choose.length_penalty import length_penalties
from regard.generation.choose.strategies import DecodingStrategy
from regard.generation.choose.topk import topk, topk_sums
from regard.generation.choose.trace import BeamTrace
from regard.generation.engines.choice_kernels import kernels, log_softmax
from regard.generation.engines.loop import BeamTensors, SearchLoop
from regard.model.kv_cache import Slots


@dataclass(eq=False)
class BeamSearch(DecodingStrategy):
    """K hypotheses in each of B slots, in G groups (https://arxiv.org/abs/1610.02424).

    Ended hypotheses compete by their total divided by a power of their length, both without the prompt. A slot is done
    when it has K ended ones and, unless `early_stopping`, none of its open ones would rank among them, were it to end
    now, or, with "never", at the best length. With `whole_beam`, all K are returned, and not only `num_hypotheses`.
    A `trace` records each step of the first slot.
    """

    whole_beam: bool = False
    trace: BeamTrace | None = None
    per_slot = (
        "log_p",
        "alternatives",
        "total",
        "ended_tokens",
        "ended_log_p",
        "ended_alternatives",
        "ended_length",
        "ended_score",
    )
    per_token = ("log_p", "alternatives", "ended_tokens", "ended_log_p", "ended_alternatives")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.groups = self.config.beam_groups
        tokens = self.generated.tokens  # (B, K, T)
        self.log_p = torch.zeros_like(tokens, dtype=torch.float32)
        self.total = self.log_p.new_zeros(tokens.shape[:2])
        self.ended_tokens = torch.zeros_like(tokens)
        self.ended_log_p = torch.zeros_like(self.log_p)
        self.ended_alternatives = torch.zeros_like(self.alternatives)
        self.ended_length = tokens.new_zeros(tokens.shape[:2])
        self.ended_score = torch.full_like(self.total, -torch.inf)
        # Of every length up to that of the longest output, and one more.
        penalties = length_penalties(self.longest + 2, self.config.length_penalty)
        self.penalties = penalties.to(tokens.device)

    def set_seed(self, seed: int) -> None:
        """Beam search is deterministic."""

    def admit(self, slots: Slots, inputs: Int[Tensor, " n"]) -> None:
        width = self.total.shape[1] // self.groups
        first = torch.arange(self.total.shape[1], device=inputs.device) % width == 0
        self.total[slots] = torch.where(
            first, 0.0, -torch.inf
        )  # all are equal: one of each group is extended
        self.ended_score[slots] = -torch.inf
        self.done[slots] = False

    def prompts(self, count: int) -> Int[Tensor, "B T"] | None:
        return None if self.trace is not None else super().prompts(count)

    def loop(self) -> SearchLoop:
        assert self.groups == 1
        assert self.trace is None
        loop = self.common_loop(self.log_p, normalized=True)
        early = self.config.early_stopping
        power = self.config.length_penalty
        if early == "never" and power <= 0.0:
            early = False
        ended = self.ended_score, self.ended_log_p, self.ended_tokens, self.ended_length
        return replace(loop, beam=BeamTensors(self.total, *ended, self.penalties, early))

    def advance(
        self, logits: Float[Tensor, "B K V"]
    ) -> tuple[Int[Tensor, "B K"], Int[Tensor, "B K"]]:
        if self._fusible(logits):
            return self._fused_step(logits)
        generated = self.generated
        beams = logits.shape[1]
        likely = None
        if self.config.top_logprobs:
            likely = self.most_likely(log_softmax(logits))
        active = [] if self.required is None else self.required.begin_step()
        if (
            self.required is None
            and self.groups == 1
            and self.masks_only
            and kernels(logits) is not None
        ):
            values, parents, tokens, gained = self._fused_candidates(logits)
            ranks = values
        else:
            values, ranks, parents, tokens, gained = self._candidates(logits, active)
        index = torch.arange(values.shape[-1], device=values.device)
        end = self._ends(parents, tokens)
        generated.length += ~self.done
        forced = len(self.special_tokens.target_prefix)
        if forced:
            gained = gained.masked_fill((generated.length <= forced)[:, None, None], 0.0)
        last = (generated.length >= self.limit)[:, None, None]
        ends = end | last
        self._end(values, parents, tokens, gained, ends & (index < beams // self.groups), likely)
        best, chosen = ranks.masked_fill(ends, -torch.inf).topk(beams // self.groups)
        if self.trace is not None and not bool(self.done[0]):
            scores = values / self._penalty()
            ending = ends & (index < beams // self.groups)
            self.trace.record(
                values, parents, tokens, gained, scores, ending, chosen, best > -torch.inf
            )
        if ranks is not values:
            best = torch.where(best == -torch.inf, best, values.gather(2, chosen))
        free = generated.length <= (
            generated.prompt.clamp(min=forced) if forced else generated.prompt
        )  # of charge
        self.total = best.flatten(1).masked_fill_(
            free[:, None] & (best.flatten(1) > -torch.inf), 0.0
        )
        parents, tokens, gained = (
            x.gather(2, chosen).flatten(1) for x in (parents, tokens, gained)
        )
        position = (generated.length - 1)[:, None, None].expand(-1, beams, -1)
        generated.tokens = _select(generated.tokens, parents).scatter_(
            2, position, tokens[..., None]
        )
        self.log_p = _select(self.log_p, parents).scatter_(2, position, gained[..., None])
        if likely is not None:
            self.alternatives = _continued(self.alternatives, parents, position, likely)
        if self.required is not None and active:
            self.required.follow(active, tokens, parents)
        self.done |= self._finished() | last[:, 0, 0]
        return tokens, parents

    def _candidates(
        self, logits: Float[Tensor, "B K V"], active: list[int]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Candidates of each group, best first, of which K / G are left when some end: (B, G, `_count`).

        Totals; the values they are ranked by; parents in the beam; tokens; and the tokens' log-probabilities. The slots
        `active` have required phrases.
        """
        log_p = log_softmax(logits)
        scores = log_p if self.masks_only else log_p.clone()
        unprocessed = log_p[active] if active else log_p[:0]
        for processor in self.processors:
            processor(scores, self.generated)
        values, ranks, parents, tokens = self._extend(scores)
        if self.required is not None and active:
            total = self.total[active][..., None]
            chosen = self.required.choose(
                active, scores[active] + total, unprocessed + total, self.config
            )
            values[active], parents[active], tokens[active] = chosen
            ranks[active] = values[active]
            log_p[active] = unprocessed
        gained = (
            log_p.flatten(1)
            .gather(1, (parents * logits.shape[2] + tokens).flatten(1))
            .view_as(values)
        )
        return values, ranks, parents, tokens, gained

    def _fusible(self, logits: Float[Tensor, "B K V"]) -> bool:
        """Whether one kernel does what is left of a step after the largest logits are known."""
        special = self.special_tokens
        beams = logits.shape[1]
        gpu = kernels(logits)
        plain = (
            self.required is None and self.groups == 1 and self.masks_only and self.trace is None
        )
        plain = plain and self.stops is None and not self.config.top_logprobs
        count = self._count(beams)
        few = gpu is not None and beams * count <= gpu.MAX_CANDIDATES and count <= logits.shape[2]
        return plain and few and not special.other_ends and not special.target_prefix

    def _fused_step(
        self, logits: Float[Tensor, "B K V"]
    ) -> tuple[Int[Tensor, "B K"], Int[Tensor, "B K"]]:
        """As `advance`, by that kernel, which updates all tensors in place."""
        generated = self.generated
        early = self.config.early_stopping
        gpu = kernels(logits)
        assert gpu is not None
        best, vocabulary, normalizer = self._largest(logits)
        early = False if early == "never" and self.config.length_penalty <= 0.0 else early
        result: tuple[Tensor, Tensor] = gpu.beam_step(
            best, vocabulary, normalizer, self.total, generated.tokens, self.log_p, generated.length, generated.prompt,
            self.limit, self.done, self.ended_tokens, self.ended_log_p, self.ended_length, self.ended_score,
            self.penalties, self.special_tokens.end if self.ends else -1, early,
        )  # fmt: skip
        return result

    def _largest(self, logits: Float[Tensor, "B K V"]) -> tuple[Tensor, Tensor, Tensor]:
        """The largest logits of each hypothesis, their tokens, and the log-sum-exp of all."""
        gpu = kernels(logits)
        assert gpu is not None
        normalizer: Tensor = gpu.log_sum_exp(logits)
        for processor in self.processors:
            processor(logits, self.generated)
        return *gpu.top_k(logits, min(self._count(logits.shape[1]), logits.shape[2])), normalizer

    def _fused_candidates(
        self, logits: Float[Tensor, "B K V"]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As `_candidates`, for one group and processors that only mask: only the best tokens are normalized."""
        _, beams, vocabulary = logits.shape
        best, best_tokens, normalizer = self._largest(logits)
        count = best.shape[2]
        log_p = best - normalizer[..., None]
        values, index = (
            (log_p + self.total[..., None])
            .flatten(1)
            .topk(min(self._count(beams), beams * vocabulary))
        )
        tokens, gained = (x.flatten(1).gather(1, index)[:, None] for x in (best_tokens, log_p))
        return values[:, None], (index // count)[:, None], tokens, gained

    def _count(self, width: int) -> int:
        """Candidates of a group of this width: each hypothesis of it may end by each of the end tokens.

        Where there are stop strings, there is one more for each. Where several tokens complete a stop string, more
        candidates may end than that, and fewer hypotheses go on.
        """
        ends = len(self.special_tokens.ends)
        if self.stops is not None:
            ends += 1
        return (1 + ends) * width

    def _extend(self, scores: Scores) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Totals, ranks (totals less the penalty for tokens of earlier groups), parents and tokens of candidates."""
        batch, beams, vocabulary = scores.shape
        width = beams // self.groups
        count = min(self._count(width), width * vocabulary)
        if self.groups == 1:
            values, index = topk_sums(scores, self.total, count)
            values = values[:, None]
            return values, values, (index // vocabulary)[:, None], (index % vocabulary)[:, None]
        taken = torch.zeros(batch, vocabulary, device=scores.device)
        candidates = []
        for group in range(self.groups):
            members = slice(group * width, (group + 1) * width)
            totals = scores[:, members] + self.total[:, members, None]
            diverse = totals - self.config.diversity_penalty * taken[:, None]
            ranks, index = topk(diverse.flatten(1), count)
            tokens = index % vocabulary
            parents = index // vocabulary + group * width
            candidates.append(
                (
                    totals.flatten(1).gather(1, index),
                    ranks,
                    parents,
                    tokens,
                )
            )
            continuing = self._ends(parents, tokens).long().argsort(stable=True)[:, :width]
            taken.scatter_add_(
                1, tokens.gather(1, continuing), torch.ones_like(continuing, dtype=taken.dtype)
            )
        values, ranks, parents, tokens = (torch.stack(x, 1) for x in zip(*candidates, strict=True))
        return values, ranks, parents, tokens

    def _ends(
        self, parents: Int[Tensor, "B *C"], tokens: Int[Tensor, "B *C"]
    ) -> Bool[Tensor, "B *C"]:
        """Which candidates end an output: by an end token, or because a stop string is complete."""
        found = self.is_end(tokens, self.generated.length)
        if self.stops is not None:
            met = self.stops.met(self.generated, tokens.flatten(1), parents.flatten(1))
            found = found | met.view_as(found)
        return found

    def _end(
        self,
        values: Tensor,
        parents: Tensor,
        tokens: Tensor,
        gained: Tensor,
        ends: Tensor,
        likely: Tensor | None,
    ) -> None:
        """Keep the best of the hypotheses that ended before and those that end now; nothing changes in done slots."""
        if values.device.type == "cpu" and not bool(ends.any()):
            return
        batch, groups, count = values.shape
        generated = self.generated
        width = self.total.shape[1] // groups
        length = generated.length[:, None, None].expand_as(values)
        now = (values / self._penalty()).masked_fill(~ends, -torch.inf)
        position = (length - 1).flatten(1)[..., None]
        new_tokens = _select(generated.tokens, parents.flatten(1)).scatter_(
            2, position, tokens.flatten(1)[..., None]
        )
        new_log_p = _select(self.log_p, parents.flatten(1)).scatter_(
            2, position, gained.flatten(1)[..., None]
        )

        def merged(old: Tensor, new: Tensor) -> Tensor:  # (B, G, K / G + candidates, …)
            shape = batch, groups, -1, *old.shape[2:]
            return torch.cat((old.reshape(shape), new.reshape(shape)), 2)

        scores = merged(self.ended_score, now.flatten(1))
        best = torch.where(
            self.done[:, None, None],
            torch.arange(width, device=values.device),
            scores.topk(width)[1],
        )
        rows = (best + torch.arange(groups, device=best.device)[:, None] * (width + count)).flatten(
            1
        )
        self.ended_score = scores.flatten(1).gather(1, rows)
        self.ended_length = (
            merged(self.ended_length, length.flatten(1)).flatten(1, 2).gather(1, rows)
        )
        self.ended_tokens = _select(merged(self.ended_tokens, new_tokens).flatten(1, 2), rows)
        self.ended_log_p = _select(merged(self.ended_log_p, new_log_p).flatten(1, 2), rows)
        if likely is not None:
            new = _continued(self.alternatives, parents.flatten(1), position, likely)
            both = merged(self.ended_alternatives, new).flatten(1, 2)
            self.ended_alternatives = _select(both, rows)

    def _penalty(self) -> Float[Tensor, "B 1 1"]:
        return self.penalties[self.generated.output_length][:, None, None]

    def _finished(self) -> Bool[Tensor, " B"]:
        """Whether a slot has K ended hypotheses among which, unless `early_stopping`, no open one would rank."""
        by_group = (len(self.total), self.groups, -1)
        early = self.config.early_stopping
        penalty = self.config.length_penalty
        worst = self.ended_score.view(by_group).amin(-1)  # (B, G); −∞ where fewer have ended
        if early is True:
            full: Tensor = (worst > -torch.inf).all(-1)
            return full
        length = self.generated.output_length
        if early == "never" and penalty > 0.0:  # the longer, the better
            length = (self.limit - self.generated.prompt).clamp(min=1)
        best = self.total.view(by_group).amax(-1)
        finished: Tensor = (best / self.penalties[length][:, None] <= worst).all(-1)
        return finished

    def hypotheses(self, slots: Slots) -> list[list[Hypothesis]]:
        scores = self.ended_score[slots]
        count = self.config.beam_size if self.whole_beam else self.config.num_hypotheses
        best = scores.argsort(dim=-1, descending=True, stable=True)[:, :count]
        tokens, log_p = (_select(x[slots], best) for x in (self.ended_tokens, self.ended_log_p))
        lengths = self.ended_length[slots].gather(1, best)
        # Two copies from a GPU: the length before the tokens, and the score before their log-probabilities.
        numbers = torch.cat((lengths[..., None], tokens), 2).tolist()
        values = torch.cat((scores.gather(1, best)[..., None], log_p), 2).tolist()
        found = [
            [
                self._hypothesis(*each)
                for each in zip(*beams, strict=True)
                if each[1][0] > -torch.inf
            ]
            for beams in zip(numbers, values, strict=True)
        ]
        # Best first: what has no score, which is left out, comes last.
        return self.with_alternatives(found, _select(self.ended_alternatives[slots], best))

    def _hypothesis(self, numbers: list[int], values: list[float]) -> Hypothesis:
        end = 1 + numbers[0]
        ids = tuple(numbers[1:end])
        ended = self.ends and ids[-1] in self.special_tokens.ends
        return Hypothesis(
            ids[:-1] if ended else ids, tuple(values[1:end]), values[0], ids[-1] if ended else None
        )


def _select(x: Tensor, beams: Int[Tensor, "B N"]) -> Tensor:
    """These hypotheses of each slot."""
    index = beams.view(*beams.shape, *[1] * (x.dim() - 2))
    return x.gather(1, index.expand(-1, -1, *x.shape[2:]))


def _continued(
    alternatives: Float[Tensor, "B K T A"],
    parents: Int[Tensor, "B N"],
    position: Int[Tensor, "B N 1"],
    likely: Float[Tensor, "B K A"],
) -> Float[Tensor, "B N T A"]:
    """The alternatives of hypotheses that continue these parents, with those of the new position."""
    new = _select(likely, parents)  # (B, N, A)
    place = position[..., None].expand(-1, -1, -1, new.shape[-1])
    return _select(alternatives, parents).scatter_(2, place, new[:, :, None])
