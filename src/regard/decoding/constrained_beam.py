"""What single inputs require and ban, in a search over many.

Beams are shared out among hypotheses that have said more and less of what is required, so that each way to say it is
tried early and late (https://arxiv.org/abs/1804.06609). A walk goes its own way, and is made to say the rest when it
would end. Either way nothing is ever said that would leave too little room for the rest. What is required comes before
rules such as `no_repeat`, where only one of the two can be had; it never comes before what is banned.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regard.core.errors import UnsatisfiableConstraint
from regard.core.shapes import Bool, Float, Int, Tensor
from regard.data.tokenizer import END, PAD
from regard.decoding.config import DecodeConfig
from regard.decoding.logits_processors import GeneratedTokens, Scores, forbid
from regard.decoding.phrase_automaton import OTHER, AutomatonState, PhraseAutomaton
from regard.decoding.topk import top

FAR = 1 << 30  # tokens: longer than any output
Pool = dict[tuple[int, int], float]  # hypothesis and next token: their score


class BannedPhrases:
    """Words and phrases, as their tokens, that the output of one input may not hold."""

    def __init__(self, places: int, phrases: int, longest: int, device: torch.device) -> None:
        self.phrases = torch.full((places, phrases, longest), -1, device=device)  # on the right; −1 fits any token
        self.since = torch.full((places, phrases), FAR, device=device)  # tokens; FAR: there is no such phrase

    def admit(self, place: int, phrases: Sequence[tuple[Sequence[int], int]]) -> None:
        self.phrases[place], self.since[place] = -1, FAR
        for number, (phrase, since) in enumerate(phrases):
            self.phrases[place, number, -len(phrase) :] = torch.tensor(phrase, device=self.phrases.device)
            self.since[place, number] = since

    def keep(self, rows: Int[Tensor, " n"]) -> None:
        """Go on with these inputs alone."""
        self.phrases, self.since = self.phrases[rows], self.since[rows]

    def __call__(self, scores: Scores, said: GeneratedTokens) -> None:
        before, token = self.phrases[:, None, :, :-1], self.phrases[:, :, -1].clamp(min=0)  # (B, 1, P, L − 1), (B, P)
        last = said.last(before.shape[-1])[:, :, None]  # (B, K, 1, L − 1)
        begun = ((before == last) | (before < 0)).all(-1) & (said.length[:, None] >= self.since)[:, None]  # (B, K, P)
        forbid(scores, token[:, None].expand_as(begun), begun)


@dataclass
class ConstrainedSlot:
    """An input with requirements, at its place in the batch."""

    demand: PhraseAutomaton
    states: list[AutomatonState]  # one a hypothesis
    wait: int  # steps until its prefix is said
    room: int  # tokens that may follow
    pushed: set[int]  # hypotheses that are being made to say a phrase


class RequiredPhrases:
    """Who requires what, and how far each hypothesis is."""

    def __init__(self, ends: bool) -> None:
        self.ends = ends
        self.seats: dict[int, ConstrainedSlot] = {}

    def admit(
        self, place: int, demand: PhraseAutomaton, state: AutomatonState, *, beams: int, prefix: int, room: int
    ) -> None:
        self.seats[place] = ConstrainedSlot(demand, [state] * beams, prefix, room, set())

    def leave(self, place: int) -> None:
        self.seats.pop(place, None)

    def keep(self, places: Sequence[int]) -> None:
        """Go on with these places alone."""
        self.seats = {new: self.seats[old] for new, old in enumerate(places) if old in self.seats}

    def speaking(self) -> list[int]:
        """The places where this step may be about what is required."""
        found = [place for place, seat in self.seats.items() if seat.wait == 0]
        for seat in self.seats.values():
            seat.wait = max(0, seat.wait - 1)
        return found

    def follow(self, places: list[int], tokens: Int[Tensor, "B K"], parents: Int[Tensor, "B K"] | None) -> None:
        said = tokens[places].tolist()
        whose = [range(len(row)) for row in said] if parents is None else parents[places].tolist()
        for place, new, old in zip(places, said, whose, strict=True):
            seat = self.seats[place]
            before = [seat.states[parent] for parent in old]
            # What is banned was not said, unless by a hypothesis that is given up.
            seat.states = [seat.demand.after(state, token) or state for state, token in zip(before, new, strict=True)]
            seat.room -= 1
            done = {k for k in seat.pushed if sum(seat.states[k].left) < sum(before[k].left)}
            seat.pushed -= done

    # Beams

    def choose(
        self,
        places: list[int],
        scores: Float[Tensor, "n K V"],
        unruled: Float[Tensor, "n K V"],
        config: DecodeConfig,
    ) -> tuple[Float[Tensor, "n G c"], Int[Tensor, "n G c"], Int[Tensor, "n G c"]]:
        """Who ends, in the first half, and who goes on, in the second: scores, whom they follow, tokens."""
        n, beams, vocabulary = scores.shape
        width = beams // config.beam_groups
        alive = (scores > -torch.inf).any(-1) | (unruled > -torch.inf).any(-1)
        wishes = self._confine(places, scores, unruled, alive.tolist())
        pools: list[list[Pool]] = [[{} for _ in range(config.beam_groups)] for _ in places]

        def offer(i: int, parent: int, token: int, score: float) -> None:
            if score > -torch.inf:
                pools[i][parent // width][parent, token] = score

        best = [x.tolist() for x in scores.max(-1)]
        count = min(2 * width, width * vocabulary)
        values, where = (x.tolist() for x in top(scores.view(n * config.beam_groups, -1), count))
        for i in range(n):
            for parent in range(beams):
                offer(i, parent, best[1][i][parent], best[0][i][parent])
            for group in range(config.beam_groups):
                row = i * config.beam_groups + group
                for value, at in zip(values[row], where[row], strict=True):
                    offer(i, group * width + at // vocabulary, at % vocabulary, value)
        if wishes:
            at = torch.tensor(wishes, device=scores.device).unbind(1)
            for wish, value in zip(wishes, scores[at].tolist(), strict=True):
                offer(*wish, value)
        chosen = [
            self._shared(self.seats[place], pool, width, config) for place, pool in zip(places, pools, strict=True)
        ]
        found = torch.tensor(chosen, dtype=torch.float64, device=scores.device)  # (n, G, 2 K / G, 3)
        return found[..., 0].to(scores.dtype), found[..., 1].long(), found[..., 2].long()

    def _confine(
        self, places: list[int], scores: Tensor, unruled: Tensor, alive: list[list[bool]]
    ) -> list[tuple[int, int, int]]:
        """Forbid what would leave too little room, and ends that come too early; what is wished for is returned."""
        early: list[tuple[int, int]] = []
        wishes: list[tuple[int, int, int]] = []
        for i, place in enumerate(places):
            seat = self.seats[place]
            demand, room = seat.demand, seat.room - 1
            for k, state in enumerate(seat.states):
                if not alive[i][k]:
                    continue
                if self.ends and not state.met:
                    early.append((i, k))
                wishes += [(i, k, token) for token in demand.following(state)]
                if demand.loose(state) > room:
                    self._confine_to_room(seat, state, scores[i, k], unruled[i, k])
        if early:
            rows, beams = torch.tensor(early, device=scores.device).unbind(1)
            scores[rows, beams, END] = -torch.inf
        return wishes

    def _confine_to_room(
        self, seat: ConstrainedSlot, state: AutomatonState, scores: Float[Tensor, " V"], unruled: Float[Tensor, " V"]
    ) -> None:
        demand, room = seat.demand, seat.room - 1
        known = torch.tensor(demand.tokens, device=scores.device)
        fit = torch.tensor([demand.fits(demand.after(state, token), room) for token in demand.tokens])
        kept = scores[known].masked_fill(~fit.to(scores.device), -torch.inf)
        end = scores[END].clone()
        if not demand.fits(demand.after(state, OTHER), room):
            scores.fill_(-torch.inf)
        for number in state.just:
            scores[sorted(demand.phrases[number].inside)] = -torch.inf
        scores[known] = kept
        if self.ends:
            scores[END] = end
        plan = demand.plan(state)
        if plan and plan[0] != OTHER and len(plan) > room and float(scores[plan[0]]) == -torch.inf:
            scores[plan[0]] = unruled[plan[0]]

    def _shared(
        self, seat: ConstrainedSlot, pools: list[Pool], width: int, config: DecodeConfig
    ) -> list[list[tuple[float, int, int]]]:
        """Of each group's candidates, who ends and who goes on."""
        chosen, taken = [], dict[int, int]()
        for pool in pools:
            order = sorted(pool, key=lambda it: config.diversity_penalty * taken.get(it[1], 0) - pool[it])
            whole = [it for it in order if seat.room == 1 or seat.states[it[0]].met]
            ended = [it for it in whole[:width] if seat.room == 1 or (it[1] == END and self.ends)]
            going = self._in_turn(seat, [it for it in order if it[1] != END or not self.ends], width)
            for _, token in going:
                taken[token] = taken.get(token, 0) + 1
            halves = [[(pool[it], *it) for it in half] for half in (ended, going)]
            chosen.append([one for half in halves for one in (half + [(-torch.inf, 0, PAD)] * width)[:width]])
        return chosen

    @staticmethod
    def _in_turn(seat: ConstrainedSlot, order: list[tuple[int, int]], width: int) -> list[tuple[int, int]]:
        """One of those who have said most of what is required, one of those who have said less, …, and again."""
        banks: dict[int, list[tuple[int, int]]] = {}
        for parent, token in order:
            state = seat.demand.after(seat.states[parent], token)
            if state is not None:
                banks.setdefault(seat.demand.progress(state), []).append((parent, token))
        turns = [(turn, -said, it) for said, bank in banks.items() for turn, it in enumerate(bank)]
        return [it for _, _, it in sorted(turns, key=lambda one: one[:2])[:width]]

    # Walks

    def correct(
        self, places: list[int], tokens: Int[Tensor, "B K"], scores: Float[Tensor, "B K V"], over: Bool[Tensor, "B K"]
    ) -> None:
        """Change tokens, in place, that would end too early or leave too little room."""
        said, quiet = tokens[places].tolist(), over[places].tolist()
        for i, place in enumerate(places):
            seat = self.seats[place]
            for k, state in enumerate(seat.states):
                if quiet[i][k]:
                    continue
                early = said[i][k] == END and self.ends and not state.met
                if early:
                    seat.pushed.add(k)
                if k in seat.pushed or not self._may(seat, state, said[i][k]):
                    tokens[place, k] = self._instead(seat, state, scores[place, k])

    def _may(self, seat: ConstrainedSlot, state: AutomatonState, token: int) -> bool:
        if token == END and self.ends:
            return state.met
        return seat.demand.fits(seat.demand.after(state, token), seat.room - 1)

    def _instead(self, seat: ConstrainedSlot, state: AutomatonState, scores: Float[Tensor, " V"]) -> int:
        plan = seat.demand.plan(state) or (OTHER,)
        if plan[0] != OTHER:
            return plan[0]
        free = scores.clone()
        free[[token for token in seat.demand.tokens if not self._may(seat, state, token)]] = -torch.inf
        for number in state.just:
            free[sorted(seat.demand.phrases[number].inside)] = -torch.inf
        if self.ends and not state.met:
            free[END] = -torch.inf
        best, token = free.max(-1)
        if float(best) == -torch.inf:
            raise UnsatisfiableConstraint
        return int(token)
