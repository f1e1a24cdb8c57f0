"""Rules that rename and reshape the weights of another library's model into ours, and back.

    Rule("transformer.h.{i}.attn.c_attn.weight", (q, k, v), (Transpose(), Split()))

`{i}` stands for the number of a layer and `{p}` for `weight` or `bias`, the same on both sides. One table serves both
directions: the weights that our model has, by its configuration, decide which of theirs there must be. `plan` refuses a
table with which a name of ours would be used twice or not at all.
"""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from regard.core.shapes import Tensor

PLACEHOLDERS = {"i": r"\d+", "p": r"weight|bias"}
Tensors = list[Tensor]
Shapes = Sequence[Sequence[int]]


class Op(ABC):
    """A reversible change of the tensors of a rule. It copies bits and computes nothing."""

    @abstractmethod
    def to_ours(self, tensors: Tensors) -> Tensors:
        """Change their tensors into ours."""

    @abstractmethod
    def to_theirs(self, tensors: Tensors) -> Tensors:
        """Change our tensors into theirs: the inverse."""


@dataclass(frozen=True)
class Transpose(Op):
    """Matrices that are written for x @ W; vectors stay as they are."""

    def to_ours(self, tensors: Tensors) -> Tensors:
        return [tensor.T if tensor.dim() == 2 else tensor for tensor in tensors]

    to_theirs = to_ours


@dataclass(frozen=True)
class Split(Op):
    """One tensor that holds `parts` equal ones, one after the other on the first axis."""

    parts: int = 3

    def to_ours(self, tensors: Tensors) -> Tensors:
        return [*tensors[0].chunk(self.parts)]

    def to_theirs(self, tensors: Tensors) -> Tensors:
        return [torch.cat(tensors)]


@dataclass(frozen=True)
class Unsqueeze(Op):
    """Their tensors have this number of axes of length 1 before our axes."""

    axes: int = 1

    def to_ours(self, tensors: Tensors) -> Tensors:
        return [tensor.flatten(0, self.axes) for tensor in tensors]

    def to_theirs(self, tensors: Tensors) -> Tensors:
        return [tensor[(None,) * self.axes] for tensor in tensors]


@dataclass(frozen=True)
class Copies(Op):
    """One tensor of theirs is several of ours. Ours must be equal to become one again, which the export checks."""

    count: int = 2

    def to_ours(self, tensors: Tensors) -> Tensors:
        return tensors * self.count

    def to_theirs(self, tensors: Tensors) -> Tensors:
        return tensors[:1]


@dataclass(frozen=True)
class Rule:
    """Their name, our names, and the changes that turn their tensor into ours, in this order."""

    theirs: str
    ours: str | tuple[str, ...]
    ops: tuple[Op, ...] = ()

    @property
    def our_names(self) -> tuple[str, ...]:
        if isinstance(self.ours, str):
            return (self.ours,)
        return self.ours

    def under(self, theirs: str = "", ours: str = "") -> "Rule":
        """The same rule with these prefixes."""
        return Rule(theirs + self.theirs, tuple(ours + name for name in self.our_names), self.ops)


@dataclass(frozen=True)
class Step:
    """A rule with its placeholders filled in."""

    theirs: str
    ours: tuple[str, ...]
    ops: tuple[Op, ...]

    def to_ours(self, tensor: Tensor) -> dict[str, Tensor]:
        tensors = [tensor]
        for op in self.ops:
            tensors = op.to_ours(tensors)
        return dict(zip(self.ours, tensors, strict=True))

    def to_theirs(self, weights: Mapping[str, Tensor]) -> Tensor:
        tensors = [weights[name] for name in self.ours]
        for op in reversed(self.ops):
            tensors = op.to_theirs(tensors)
        (tensor,) = tensors
        return tensor


def plan(rules: Iterable[Rule], ours: Collection[str]) -> list[Step]:
    """The steps for a model of ours with weights of these names. Each name of both sides is used exactly once."""
    steps = [step for rule in rules for step in _steps(rule, ours)]
    used = Counter(name for step in steps for name in step.ours)
    wrong = [name for name in {*ours, *used} if used[name] != 1 or name not in ours]
    used_of_theirs = Counter(step.theirs for step in steps)
    wrong += [name for name, count in used_of_theirs.items() if count > 1]
    assert not wrong, f"the rules use these not exactly once: {', '.join(sorted(wrong))}"
    return steps


def _steps(rule: Rule, ours: Collection[str]) -> Iterator[Step]:
    pattern = _pattern(rule.our_names[0])
    for name in ours:
        if match := pattern.fullmatch(name):
            values = match.groupdict()
            filled = tuple(each.format(**values) for each in rule.our_names)
            yield Step(rule.theirs.format(**values), filled, rule.ops)


@cache
def _pattern(name: str) -> re.Pattern[str]:
    """A regular expression of a name, with a group for each placeholder."""

    def group(found: re.Match[str]) -> str:
        return f"(?P<{found[1]}>{PLACEHOLDERS[found[1]]})"

    return re.compile(re.sub(r"\\\{(\w)\\\}", group, re.escape(name)))
