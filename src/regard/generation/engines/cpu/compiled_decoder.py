"""What all compiled decoders share: their weights, a step, a search without Python between steps, and captures."""

import ctypes
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar
from weakref import ref

import torch

from regard.core.shapes import Float, Int, Tensor
from regard.generation.engines.base import EngineDecoder
from regard.generation.engines.cpu.candidate_projection import CandidateProjection
from regard.generation.engines.cpu.search_loop import MAX_BEAMS, run_loop
from regard.generation.engines.cpu.weight_layout import WeightLayout, call
from regard.generation.engines.fused_options import CPU_LOOP
from regard.generation.engines.loop import Candidates, LoopBounds, SearchLoop
from regard.model.capture import capturing_here
from regard.model.interfaces import DecoderState

StateType = TypeVar("StateType", bound=DecoderState)


class StepCall(NamedTuple):
    """The arguments of a step in C++, the logits that it writes, and what must live in memory until it ends."""

    arguments: ctypes.Structure
    logits: Float[Tensor, "rows V"]
    memory: Sequence[object]


class CompiledDecoder(EngineDecoder, Generic[StateType]):
    """The compiled form of a decoder. It copies the weights, and does not keep the decoder alive.

    state_type    of its states, whose tensors a step overwrites
    step_name     the function of step.cpp that takes a step
    search_name   the one that takes several, and chooses tokens
    table         the weights as C++ reads them
    """

    compiled = True
    fused = CPU_LOOP
    max_beams = MAX_BEAMS
    state_type: type[StateType]
    step_name: ClassVar[str]
    search_name: ClassVar[str]
    table: Any

    def __init__(self, decoder: Any, library: ctypes.CDLL, *, int8: bool = False) -> None:
        self.library = library
        self.int8 = int8
        self.decoder = ref(decoder)
        self.weights = WeightLayout(library, int8=int8)
        self.vocab_size: int = decoder.project.weight.shape[0]
        self.projection = CandidateProjection(decoder.project, library, int8=int8)

    @abstractmethod
    def step_call(
        self, tokens: Int[Tensor, " rows"], state: StateType, steps: int, queries: Tensor | None
    ) -> StepCall:
        """The call of so many steps, which overwrite the state.

        queries   of `queries`, which the step fills; None where nothing captures attention
        """

    @abstractmethod
    def queries(self, tokens: Int[Tensor, " rows"], state: StateType) -> Tensor | None:
        """What a step keeps for captures; None where the decoder does not attend."""

    @abstractmethod
    def publish(self, queries: Tensor, state: StateType) -> None:
        """Publish the attention of the last step to captures in this thread."""

    def prepare(self, state: StateType) -> StateType:
        """The state in memory that a step can overwrite, with room for one."""
        return state

    def most_steps(self, state: StateType) -> int | None:
        """The most steps that the state has room for; None: any number."""
        return None

    def stepped(self, state: StateType, steps: int) -> None:
        """So many steps were taken."""

    def step(
        self, tokens: Int[Tensor, " rows"], state: DecoderState
    ) -> tuple[Float[Tensor, "rows V"], StateType]:
        """Logits, which the next step may overwrite, and the state."""
        assert isinstance(state, self.state_type)
        state = self.prepare(state)
        queries = self.queries(tokens, state) if capturing_here() else None
        step = self.step_call(tokens, state, 1, queries)
        call(getattr(self.library, self.step_name), self.table, step.arguments)
        self.stepped(state, 1)
        if queries is not None:
            self.publish(queries, state)
        return step.logits, state

    def search(
        self,
        tokens: Int[Tensor, "B K"],
        state: DecoderState,
        loop: SearchLoop,
        bounds: LoopBounds,
        candidates: Candidates | None = None,
    ) -> tuple[int, StateType] | None:
        assert isinstance(state, self.state_type)
        if tokens.shape[1] > MAX_BEAMS or capturing_here():
            return None
        state = self.prepare(state)
        most = self.most_steps(state)
        if most is not None:
            bounds = replace(bounds, steps=max(1, min(bounds.steps, most)))
        step = self.step_call(tokens.flatten(), state, bounds.steps, None)
        function = getattr(self.library, self.search_name)
        taken = run_loop(
            function, self.table, step.arguments, tokens, loop, bounds, self.projection, candidates
        )
        self.stepped(state, taken)
        return taken, state


def check_rows(rows: int, wanted: int) -> None:
    """Refuse tokens of more or fewer hypotheses than a state has."""
    if rows != wanted:
        raise IndexError(f"tokens out of range: {rows} for a state of {wanted} hypotheses")


def scratch(rows: int, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """Working memory of a step: for each of these sizes, so many numbers for each hypothesis."""
    memory = torch.empty(rows * sum(sizes))
    return torch.split(memory, [rows * size for size in sizes])
