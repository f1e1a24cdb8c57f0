"""Edits of a model's attention and tokens: a short list, applied in order, that JSON can hold.

    [{"edit": "scale_head", "map": "decoder 1 cross", "head": 0, "factor": 0.5},
     {"edit": "paint_row", "map": "decoder 2 cross", "head": 1, "row": 3, "keys": [0, 4], "weights": [0.2, 0.8]},
     {"edit": "mask_source", "token": 2}]

Rows, keys, heads, sources and positions count from 0, as in the maps and token lists of a look.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, ClassVar, Literal

from regard.core.config import Config, Range, nearest, read, unknown_keys
from regard.core.errors import InvalidArgument, InvalidRecipe, Problem
from regard.interpret.edited_call import EditedCall
from regard.interpret.sites import AttentionSite

Index = Annotated[int, Range(0.0)]
Weight = Annotated[float, Range(0.0, 1.0)]
LAYER = re.compile(r"(encoder|decoder|grid) \d+")
OF_SOURCE = re.compile(r"(decoder.*) source (\d+)")


@dataclass(frozen=True, kw_only=True)
class Edit(Config):
    """One edit. Its keys in JSON are its fields, and "edit" is its kind."""

    kind: ClassVar[str]

    def as_dict(self) -> dict[str, Any]:
        """As `read_edits` reads it, without keys that have their default."""
        table: dict[str, Any] = {"edit": self.kind}
        for each in fields(self):
            value = getattr(self, each.name)
            if value == each.default:
                continue
            table[each.name] = list(value) if isinstance(value, tuple) else value
        return table


@dataclass(frozen=True, kw_only=True)
class AttentionEdit(Edit, ABC):
    """An edit of the calls of some attention modules."""

    @abstractmethod
    def selects(self, site: AttentionSite) -> bool:
        """Whether it edits the calls of this module."""

    @abstractmethod
    def check(self, sites: Mapping[AttentionSite, int], where: str) -> None:
        """Refuse an edit of a map or head that a model does not have. `sites` are its modules and their heads."""

    @abstractmethod
    def apply(self, call: EditedCall, where: str) -> bool:
        """Edit one call. Return whether it has any of the rows. `where` names the edit in messages."""


@dataclass(frozen=True, kw_only=True)
class HeadEdit(AttentionEdit):
    """An edit of heads.

    map    the name of a map of a look, as "decoder 1 cross"; without its number, all layers: "decoder cross"
    head   None: all heads
    """

    map: str
    head: Index | None = None

    @property
    def module(self) -> str:
        """The name of the attention module; without a number, it means the modules of all layers."""
        return self.map

    def selects(self, site: AttentionSite) -> bool:
        return self.module in (site.name, LAYER.sub(r"\1", site.name))

    def check(self, sites: Mapping[AttentionSite, int], where: str) -> None:
        heads = [count for site, count in sites.items() if self.selects(site)]
        if not heads:
            wanted = "the name of an attention map"
            if not sites:
                wanted = "none: this model has no attention"
            remedy = nearest(self.map, [site.name for site in sites])
            raise InvalidArgument(f"{where}.map", wanted=wanted, got=repr(self.map), remedy=remedy)
        if self.head is not None and self.head >= min(heads):
            wanted = f"a head of {self.map}, from 0 to {min(heads) - 1}"
            remedy = "Leave it out for all of them."
            raise InvalidArgument(f"{where}.head", wanted=wanted, got=str(self.head), remedy=remedy)


@dataclass(frozen=True, kw_only=True)
class SwitchHeadOff(HeadEdit):
    """The output of a head is zero; its weights are shown as they are."""

    kind = "switch_head_off"

    def apply(self, call: EditedCall, where: str) -> bool:
        call.scale(self.head, 0.0)
        return True


@dataclass(frozen=True, kw_only=True)
class ScaleHead(HeadEdit):
    """The output of a head is multiplied by a factor; its weights are shown as they are."""

    kind = "scale_head"
    factor: float

    def apply(self, call: EditedCall, where: str) -> bool:
        call.scale(self.head, self.factor)
        return True


@dataclass(frozen=True, kw_only=True)
class PaintRow(HeadEdit):
    """Some weights of a row are given.

    map           with several sources, it may also name the map of one source: "decoder 1 cross source 2"
    keys          the keys that get weights, one each in `weights`
    renormalize   the given weights are kept, and the others share in proportion what these leave of 1. If the given
                  weights exceed 1 or there are no others, all are divided by their sum. If false, the others stay.
    """

    kind = "paint_row"
    row: Index
    keys: tuple[Index, ...]
    weights: tuple[Weight, ...]
    renormalize: bool = True

    def conflicts(self) -> Iterator[Problem]:
        if len(self.keys) != len(self.weights):
            wanted = f"one for each of {len(self.keys)} keys"
            yield Problem("weights", wanted, str(len(self.weights)), "Add or drop some.")
        if len(set(self.keys)) < len(self.keys):
            yield Problem("keys", "each key once", str(list(self.keys)), "Leave the others out.")

    @property
    def module(self) -> str:
        of_source = OF_SOURCE.fullmatch(self.map)
        return self.map if of_source is None else of_source[1]

    @property
    def source(self) -> int | None:
        """The source that its name ends with."""
        of_source = OF_SOURCE.fullmatch(self.map)
        if of_source is None:
            return None
        return int(of_source[2]) - 1

    def apply(self, call: EditedCall, where: str) -> bool:
        weights = dict(zip(self.keys, self.weights, strict=True))
        return call.paint(
            self.head, self.row, weights, where, source=self.source, renormalize=self.renormalize
        )


@dataclass(frozen=True, kw_only=True)
class MaskSource(AttentionEdit):
    """No attention of the encoder, the decoder or the pool reads a token, or image region, of a source.

    A recurrent or convolutional encoder still passes it on to the states of its neighbors, and attention within a CNN
    is not over regions. In these models only the attention to the memory changes.

    token   its position in `look.sources[source].tokens`
    """

    kind = "mask_source"
    token: Index
    source: Index = 0

    def selects(self, site: AttentionSite) -> bool:
        if site.key_side != "source":
            return False
        if site.part == "encoder":
            return site.kind != "grid" and site.source == self.source
        # The states of learned queries stand for no token.
        return self.source not in site.query_sources

    def check(self, sites: Mapping[AttentionSite, int], where: str) -> None:
        if not any(map(self.selects, sites)):
            wanted = "a model with attention to its source"
            remedy = "Replace the token instead."
            raise InvalidArgument(where, wanted=wanted, got="one without", remedy=remedy)

    def apply(self, call: EditedCall, where: str) -> bool:
        call.hide(self.source, self.token, where)
        return True


@dataclass(frozen=True, kw_only=True)
class ReplaceToken(Edit):
    """Another token in place of a token of the source or of the output.

    position   an index of `look.sources[source].tokens`, or of `look.output.tokens`
    token      its id; or its name as in the list of tokens; or a text that is one token, alone or after a space
    side       "output": a search puts the token at this position and continues from it freely
    """

    kind = "replace_token"
    position: Index
    token: str | Index
    side: Literal["source", "output"] = "source"
    source: Index = 0


Edits = Sequence[Edit | Mapping[str, Any]]
KINDS: dict[str, type[Edit]] = {
    each.kind: each for each in (SwitchHeadOff, ScaleHead, PaintRow, MaskSource, ReplaceToken)
}


def read_edits(edits: object) -> tuple[Edit, ...]:
    """Read edits from JSON values. Every problem is reported, by the number of its edit, from 1, and its key."""
    if edits is None:
        return ()
    if isinstance(edits, str | bytes | Mapping) or not isinstance(edits, Sequence):
        wanted = "a list of edits"
        remedy = 'For example [{"edit": "mask_source", "token": 2}].'
        raise InvalidArgument("edits", wanted=wanted, got=type(edits).__name__, remedy=remedy)
    made: list[Edit] = []
    problems: list[Problem] = []
    for number, each in enumerate(edits, start=1):
        if isinstance(each, Edit):
            made.append(each)
            continue
        found = _read(each, f"edit {number}")
        if isinstance(found, Edit):
            made.append(found)
        else:
            problems += found
    if problems:
        raise InvalidRecipe(problems)
    return tuple(made)


def _read(table: object, where: str) -> Edit | list[Problem]:
    if not isinstance(table, Mapping) or not all(isinstance(key, str) for key in table):
        got = repr(table)[:60]
        remedy = 'For example {"edit": "mask_source", …}.'
        return [Problem(where, "a table of keys and values", got, remedy)]
    kind = table.get("edit")
    keys = {key: value for key, value in table.items() if key != "edit"}
    if not isinstance(kind, str) or kind not in KINDS:
        remedy = nearest(str(kind), KINDS, listed=True)
        return [Problem(f"{where}.edit", f"one of {', '.join(KINDS)}", repr(kind)[:60], remedy)]
    known = fields(KINDS[kind])
    required = [each.name for each in known if each.default is MISSING]
    absent = [key for key in required if keys.get(key) is None]
    missing = [Problem(f"{where}.{key}", "a value", "none", "Add it.") for key in absent]
    if missing:
        return [*missing, *unknown_keys(keys, [each.name for each in known], where)]
    return read(KINDS[kind], keys, where)


def edits_json(edits: Iterable[Edit]) -> str:
    """The edits as JSON, which `read_edits` reads again."""
    return json.dumps([each.as_dict() for each in edits], ensure_ascii=False)
