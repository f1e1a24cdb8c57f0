"""Required phrases in a search over many slots.

Beam search divides its beams among hypotheses that have completed more and less of the required phrases (dynamic beam
allocation, https://arxiv.org/abs/1804.06609). Greedy search and sampling choose freely and are made to complete the
phrases when they would end. Both exclude tokens after which the rest would exceed the maximum length. Required phrases
take precedence over processors such as `NoRepeatNgram` where only one of the two can hold, never over banned phrases.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from regard.core.errors import UnsatisfiableConstraint
from regard.core.shapes import Bool, Float, Int, Tensor
from regard.data.special_tokens import SpecialTokens
from regard.generation.choose.phrase_automaton import OTHER, AutomatonState, PhraseAutomaton
from regard.generation.choose.topk import topk
from regard.generation.config import DecodeConfig

CandidatePool = dict[tuple[int, int], float]  # scores by hypothesis and next token


@dataclass
class ConstrainedSlot:
    """The required phrases of one slot."""

    automaton: PhraseAutomaton
    states: list[AutomatonState]  # one for each hypothesis
    ends: tuple[int, ...]  # the end tokens, where they end an output
    wait: int  # steps until the prefix is generated
    budget: int  # tokens that may follow
    forced: set[int] = field(
        default_factory=set
    )  # hypotheses that are being made to complete a phrase

    def allows(self, state: AutomatonState, token: int) -> bool:
        """Whether the phrases can still be completed after this token."""
        if token in self.ends:
            return state.met
        return self.automaton.fits(self.automaton.after(state, token), self.budget - 1)


class RequiredPhrases:
    """The required phrases of all slots, and how much of them each hypothesis has completed."""

    def __init__(self, special_tokens: SpecialTokens, ends: bool) -> None:
        self.pad = special_tokens.pad
        self.ends = special_tokens.ends if ends else ()
        self.slots: dict[int, ConstrainedSlot] = {}

    def admit(
        self,
        slot: int,
        automaton: PhraseAutomaton,
        state: AutomatonState,
        *,
        beams: int,
        prefix: int,
        budget: int,
    ) -> None:
        """A request begins: `state` is that after its prefix of so many tokens, which `budget` tokens may follow."""
        self.slots[slot] = ConstrainedSlot(automaton, [state] * beams, self.ends, prefix, budget)

    def release(self, slot: int) -> None:
        released = self.slots.pop(slot, None)
        if released is not None:
            released.automaton.forget()

    def keep(self, slots: Sequence[int]) -> None:
        """Continue with these slots only."""
        self.slots = {new: self.slots[old] for new, old in enumerate(slots) if old in self.slots}

    def skip(self, slots: Sequence[int], count: int) -> None:
        """So many tokens of the prefixes of these slots were read at once."""
        for number in slots:
            if number in self.slots:
                self.slots[number].wait -= count

    def begin_step(self) -> list[int]:
        """The slots whose phrases this step concerns: those past their prefix. Called once a step."""
        active = [number for number, slot in self.slots.items() if slot.wait == 0]
        for slot in self.slots.values():
            slot.wait = max(0, slot.wait - 1)
        return active

    def follow(
        self, slots: list[int], tokens: Int[Tensor, "B K"], parents: Int[Tensor, "B K"] | None
    ) -> None:
        """Advance the states of these slots by the tokens that were chosen."""
        chosen = tokens[slots].tolist()
        origins = (
            [range(len(row)) for row in chosen] if parents is None else parents[slots].tolist()
        )
        for number, new, old in zip(slots, chosen, origins, strict=True):
            slot = self.slots[number]
            before = [slot.states[parent] for parent in old]
            # A banned token is only chosen for a hypothesis of score −∞, whose state does not matter.
            slot.states = [
                slot.automaton.after(state, token) or state
                for state, token in zip(before, new, strict=True)
            ]
            slot.budget -= 1
            slot.forced -= {
                k for k in slot.forced if sum(slot.states[k].left) < sum(before[k].left)
            }

    # Beam search

    def choose(
        self,
        slots: list[int],
        scores: Float[Tensor, "n K V"],
        unprocessed: Float[Tensor, "n K V"],
        config: DecodeConfig,
    ) -> tuple[Float[Tensor, "n G c"], Int[Tensor, "n G c"], Int[Tensor, "n G c"]]:
        """Candidates, K / G that end and then those that continue: scores, parents, tokens.

        `unprocessed` are the scores before logits processors, used where these exclude a phrase's only continuation.
        """
        n, beams, vocabulary = scores.shape
        groups = config.beam_groups
        width = beams // config.beam_groups
        alive = (scores > -torch.inf).any(-1) | (unprocessed > -torch.inf).any(-1)
        progressing = self._confine(slots, scores, unprocessed, alive.tolist())
        best = scores.max(-1)[1].tolist()  # of each hypothesis
        top = topk(
            scores.view(n * groups, -1), min((1 + len(self.ends)) * width, width * vocabulary)
        )[1].tolist()  # of each group
        candidates = [
            (i, parent, token) for i, row in enumerate(best) for parent, token in enumerate(row)
        ]
        candidates += [
            (row // groups, row % groups * width + index // vocabulary, index % vocabulary)
            for row, indices in enumerate(top)
            for index in indices
        ]
        candidates = list(dict.fromkeys([*candidates, *progressing]))
        values = scores[torch.tensor(candidates, device=scores.device).unbind(1)].tolist()
        pools: list[list[CandidatePool]] = [[{} for _ in range(groups)] for _ in slots]
        for (i, parent, token), score in zip(candidates, values, strict=True):
            if score > -torch.inf:
                pools[i][parent // width][parent, token] = score
        chosen = [
            self._allocate(self.slots[slot], pool, width, config)
            for slot, pool in zip(slots, pools, strict=True)
        ]
        columns = torch.tensor(
            chosen, dtype=torch.float64, device=scores.device
        )  # (n, G, candidates, 3)
        return columns[..., 0].to(scores.dtype), columns[..., 1].long(), columns[..., 2].long()

    def _confine(
        self, slots: list[int], scores: Tensor, unprocessed: Tensor, alive: list[list[bool]]
    ) -> list[tuple[int, int, int]]:
        """Exclude early ends and tokens that exceed the budget; (slot, hypothesis, token) that continue a phrase."""
        early: list[tuple[int, int]] = []
        progressing: list[tuple[int, int, int]] = []
        for i, number in enumerate(slots):
            slot = self.slots[number]
            for k, state in enumerate(slot.states):
                if not alive[i][k]:
                    continue
                if self.ends and not state.met:
                    early.append((i, k))
                progressing += [(i, k, token) for token in slot.automaton.following(state)]
                if slot.automaton.upper_bound(state) > slot.budget - 1:
                    self._confine_to_budget(slot, state, scores[i, k], unprocessed[i, k])
        if early:
            rows, beams = torch.tensor(early, device=scores.device).unbind(1)
            for end in self.ends:
                scores[rows, beams, end] = -torch.inf
        return progressing

    def _confine_to_budget(
        self,
        slot: ConstrainedSlot,
        state: AutomatonState,
        scores: Float[Tensor, " V"],
        unprocessed: Float[Tensor, " V"],
    ) -> None:
        """Exclude tokens after which the phrases exceed the budget, in one hypothesis's scores, in place."""
        automaton = slot.automaton
        budget = slot.budget - 1
        known = torch.tensor(automaton.tokens, device=scores.device)
        fit = torch.tensor(
            [automaton.fits(automaton.after(state, token), budget) for token in automaton.tokens]
        )
        kept = scores[known].masked_fill(~fit.to(scores.device), -torch.inf)
        ends = list(self.ends)
        kept_ends = scores[ends].clone()
        if not automaton.fits(automaton.after(state, OTHER), budget):
            scores.fill_(-torch.inf)
        for number in state.just:
            scores[sorted(automaton.phrases[number].continuations)] = -torch.inf
        scores[known] = kept
        scores[ends] = kept_ends
        plan = automaton.plan(state)
        if (
            plan
            and plan[0] != OTHER
            and len(plan) > budget
            and float(scores[plan[0]]) == -torch.inf
        ):
            scores[plan[0]] = unprocessed[plan[0]]

    def _allocate(
        self, slot: ConstrainedSlot, pools: list[CandidatePool], width: int, config: DecodeConfig
    ) -> list[list[tuple[float, int, int]]]:
        """Of each group's candidates, `width` that end and `width` that continue, padded to those of `BeamSearch`."""
        chosen = []
        taken = dict[int, int]()
        lengths = width, max(1, len(self.ends)) * width
        for pool in pools:
            order = sorted(
                pool, key=lambda it: config.diversity_penalty * taken.get(it[1], 0) - pool[it]
            )
            complete = [it for it in order if slot.budget == 1 or slot.states[it[0]].met]
            ended = [it for it in complete[:width] if slot.budget == 1 or it[1] in self.ends]
            going = self._by_progress(slot, [it for it in order if it[1] not in self.ends], width)
            for _, token in going:
                taken[token] = taken.get(token, 0) + 1
            row: list[tuple[float, int, int]] = []
            for these, length in zip((ended, going), lengths, strict=True):
                row += [(pool[it], *it) for it in these] + [(-torch.inf, 0, self.pad)] * (
                    length - len(these)
                )
            chosen.append(row)
        return chosen

    @staticmethod
    def _by_progress(
        slot: ConstrainedSlot, order: list[tuple[int, int]], width: int
    ) -> list[tuple[int, int]]:
        """The best candidate of each bank in turn, most completed bank first, until `width` are chosen."""
        banks: dict[int, list[tuple[int, int]]] = {}
        for parent, token in order:
            state = slot.automaton.after(slot.states[parent], token)
            if state is not None:
                banks.setdefault(slot.automaton.progress(state), []).append((parent, token))
        turns = [
            (turn, -progress, it)
            for progress, bank in banks.items()
            for turn, it in enumerate(bank)
        ]
        return [it for _, _, it in sorted(turns, key=lambda one: one[:2])[:width]]

    # Greedy search and sampling

    def correct(
        self,
        slots: list[int],
        tokens: Int[Tensor, "B K"],
        scores: Float[Tensor, "B K V"],
        ended: Bool[Tensor, "B K"],
    ) -> None:
        """Replace, in place, tokens that would end too early or exceed the budget."""
        chosen = tokens[slots].tolist()
        skipped = ended[slots].tolist()
        for i, number in enumerate(slots):
            slot = self.slots[number]
            for k, state in enumerate(slot.states):
                if skipped[i][k]:
                    continue
                if chosen[i][k] in self.ends and not state.met:
                    slot.forced.add(k)
                if k in slot.forced or not slot.allows(state, chosen[i][k]):
                    tokens[number, k] = self._replacement(slot, state, scores[number, k])

    def _replacement(
        self, slot: ConstrainedSlot, state: AutomatonState, scores: Float[Tensor, " V"]
    ) -> int:
        """The next token of the plan that completes the phrases; where that is any other token, the best."""
        plan = slot.automaton.plan(state) or (OTHER,)
        if plan[0] != OTHER:
            return plan[0]
        allowed = scores.clone()
        refused = [token for token in slot.automaton.tokens if not slot.allows(state, token)]
        allowed[refused] = -torch.inf
        for number in state.just:
            allowed[sorted(slot.automaton.phrases[number].continuations)] = -torch.inf
        if not state.met:
            allowed[list(self.ends)] = -torch.inf
        best, token = allowed.max(-1)
        if float(best) == -torch.inf:
            raise UnsatisfiableConstraint
        return int(token)
