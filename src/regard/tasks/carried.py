"""The recurrent states that a language model, and its teachers, carry from one batch of running text to the next."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from regard.core.shapes import Int, Tensor
from regard.model.interfaces import CarriedState, StatefulDecoder
from regard.model.seq2seq import Model


@dataclass(frozen=True)
class CarriedStates:
    """States after the same tokens.

    model      that of the model in training
    teachers   that of each teacher of knowledge distillation; None where it reads each batch by itself
    """

    model: CarriedState
    teachers: tuple[CarriedState | None, ...] = ()

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, for a checkpoint; sequences are the first axis of each tensor."""
        named = self.model.tensors()
        for prefix, state in self._of_teachers().items():
            named |= {prefix + name: tensor for name, tensor in state.tensors().items()}
        return named

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "CarriedStates":
        """The states with what `tensors` returned, of as many sequences as these hold."""
        own = self.model.with_tensors({name: tensors[name] for name in self.model.tensors()})
        restored = dict[str, CarriedState]()
        for prefix, state in self._of_teachers().items():
            found = {name: tensors[prefix + name] for name in state.tensors()}
            restored[prefix] = state.with_tensors(found)
        teachers = tuple(restored.get(_prefix(number)) for number in range(len(self.teachers)))
        return CarriedStates(own, teachers)

    def reorder(self, index: Int[Tensor, " n"]) -> "CarriedStates":
        """The states whose sequence i is sequence index[i] of these."""
        teachers = tuple(None if state is None else state.reorder(index) for state in self.teachers)
        return CarriedStates(self.model.reorder(index), teachers)

    def of_teacher(self, number: int) -> CarriedState | None:
        """The state of a teacher, by its place among them."""
        return self.teachers[number] if self.teachers else None

    def _of_teachers(self) -> dict[str, CarriedState]:
        """The states of the teachers that carry one, by the beginning of the names of their tensors."""
        numbered = enumerate(self.teachers)
        return {_prefix(number): state for number, state in numbered if state is not None}


def _prefix(number: int) -> str:
    return f"teacher{number}."


def carries_state(model: Model) -> bool:
    """Whether a model can read a text part by part."""
    return model.generator is not None and model.generator.decoder.carries_state


def first_state(model: Model, rows: int) -> CarriedState:
    """The state that a recurrent language model carries into the first tokens of a text."""
    assert model.generator is not None
    decoder = model.generator.decoder
    assert isinstance(decoder, StatefulDecoder)
    state: CarriedState = decoder.start(None, batch=rows, capacity=0)
    return state


def repeated_state(state: CarriedState, passes: int) -> CarriedState:
    """The state for several passes of the same batch."""
    if passes == 1:
        return state
    rows = torch.arange(row_count(state))
    return state.reorder(rows.repeat(passes))


def one_pass(state: CarriedState, passes: int) -> CarriedState:
    """The state after the first of several passes, which is carried on."""
    if passes == 1:
        return state
    return state.reorder(torch.arange(row_count(state) // passes))


def row_count(state: CarriedState | CarriedStates) -> int:
    """The number of sequences whose state this is."""
    return len(next(iter(state.tensors().values())))
