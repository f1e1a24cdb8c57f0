"""Schemes by which the tags of tokens mark spans: IOB2 ("BIO") and BIOES,
and plain tags that mark none.

    IOB2    B-X begins a span of the type X, I-X continues it, O is outside of any
    BIOES   also E-X, its last token, and S-X, a span of a single token

The spans of a sequence are those of seqeval (https://github.com/chakki-works/seqeval), in both of
its modes. The lenient one is that of conlleval: it also makes spans of sequences that are not
well-formed. The strict one ignores what the scheme does not permit.
"""

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

import torch

from regard.core.errors import InvalidArgument
from regard.model.crf import TagConstraints

Scheme = Literal["IOB2", "BIOES", "plain"]
SpanScheme = Literal["IOB2", "BIOES"]
OUTSIDE = "O"
PREFIXES: dict[SpanScheme, str] = {"IOB2": "BI", "BIOES": "BIES"}
# Of a tag that is a prefix alone, as where there is one type of span: seqeval's name.
NO_TYPE = "_"


class Span(NamedTuple):
    """A span from token `start` to token `end` inclusive, counted from 0."""

    type: str
    start: int
    end: int


def is_span_tag(tag: str) -> bool:
    """Whether a tag is O, or one of B, I, E and S, alone or before "-" and a type."""
    if tag == OUTSIDE:
        return True
    return tag[:1] in ("B", "I", "E", "S") and tag[1:2] in ("", "-")


def detect(labels: Collection[str]) -> Scheme:
    """The scheme of a set of labels.

    Labels without any B- or S- are plain: so are those of IOB1 in which spans never touch, and of
    IOE. `convert` makes IOB2 of them.
    """
    if not all(map(is_span_tag, labels)):
        return "plain"
    prefixes = {label[0] for label in labels}
    if not prefixes & set("BS"):
        return "plain"
    if prefixes & set("ES"):
        return "BIOES"
    begun = {_type(label) for label in labels if label[0] == "B"}
    continued = {_type(label) for label in labels if label[0] == "I"}
    return "IOB2" if continued <= begun else "plain"


def lenient_spans(tags: Sequence[str]) -> list[Span]:
    """The spans of a sequence of tags as seqeval's default mode finds them, well-formed or not."""
    found = []
    start = 0
    prefix_before = OUTSIDE
    type_before = ""
    for position, tag in enumerate([*tags, OUTSIDE]):
        prefix = tag[0]
        kind = _type(tag)
        if _ends_before(prefix_before, type_before, prefix, kind):
            found.append(Span(type_before, start, position - 1))
        if _begins(prefix_before, type_before, prefix, kind):
            start = position
        prefix_before = prefix
        type_before = kind
    return found


def strict_spans(tags: Sequence[str], scheme: SpanScheme) -> list[Span]:
    """The well-formed spans of a sequence of tags, as seqeval's strict mode finds them.

    In IOB2, a span begins with B- and goes on as long as I- of the same type follows. In BIOES it
    must also end with E-, unless it is S-; one that does not is no span.
    """
    _check_scheme("tags", tags, scheme)
    found = []
    start: int | None = None
    type_before = ""
    for position, tag in enumerate([*tags, OUTSIDE]):
        prefix = tag[0]
        kind = _strict_type(tag)
        continues = start is not None and prefix in ("I", "E") and kind == type_before
        if start is not None and not continues:
            if scheme == "IOB2":
                found.append(Span(type_before, start, position - 1))
            start = None
        if continues and prefix == "E":
            assert start is not None
            found.append(Span(kind, start, position))
            start = None
        elif prefix == "S":
            found.append(Span(kind, position, position))
        elif prefix == "B":
            start = position
        type_before = kind
    return found


def tags_of(spans: Sequence[Span], length: int, scheme: SpanScheme) -> list[str]:
    """The tags of a sequence with these spans, which do not overlap."""
    tags = [OUTSIDE] * length
    for span in spans:
        suffix = "" if span.type == NO_TYPE else f"-{span.type}"
        for position in range(span.start, span.end + 1):
            tags[position] = f"{_prefix(span, position, scheme)}{suffix}"
    return tags


def convert(tags: Sequence[str], scheme: SpanScheme) -> list[str]:
    """The tags of the same spans in another scheme, read leniently:
    IOB1 and ill-formed tags become well-formed.

    >>> convert(["B-PER", "I-PER", "O", "B-LOC"], "BIOES")
    ['B-PER', 'E-PER', 'O', 'S-LOC']
    """
    wrong = next((tag for tag in tags if not is_span_tag(tag)), None)
    if wrong is not None:
        raise InvalidArgument(
            "tags",
            wanted="O and tags such as B-PER, whose prefix is one of B, I, E and S",
            got=repr(wrong),
            remedy="Only tags of spans can be converted.",
        )
    return tags_of(lenient_spans(tags), len(tags), scheme)


def constraints(labels: Sequence[str], scheme: Scheme) -> TagConstraints:
    """Which of these labels may begin a sequence, follow each other, and end it.

    labels   in the order of their ids
    scheme   "plain": everything is permitted
    """
    count = len(labels)
    if scheme == "plain":
        anywhere = torch.ones(count, dtype=torch.bool)
        return TagConstraints(anywhere, torch.ones(count, count, dtype=torch.bool), anywhere)
    _check_scheme("labels", labels, scheme)
    steps = [[_may_follow(before, after, scheme) for after in labels] for before in labels]
    # A sequence begins and ends as if O stood on both sides.
    return TagConstraints(
        torch.tensor([_may_follow(OUTSIDE, label, scheme) for label in labels], dtype=torch.bool),
        torch.tensor(steps, dtype=torch.bool).reshape(count, count),
        torch.tensor([_may_follow(label, OUTSIDE, scheme) for label in labels], dtype=torch.bool),
    )


def first_violation(tags: Sequence[str], scheme: Scheme) -> int | None:
    """The first position whose tag may not follow the one before it, counted from 0.

    It is the number of tags where the last of them may not end a sequence, and None where nothing
    is wrong.
    """
    if scheme == "plain":
        return None
    before = OUTSIDE
    for position, tag in enumerate([*tags, OUTSIDE]):
        if not is_span_tag(tag) or not _may_follow(before, tag, scheme):
            return position
        before = tag
    return None


def _check_scheme(name: str, tags: Sequence[str], scheme: SpanScheme) -> None:
    prefixes = (*PREFIXES[scheme], OUTSIDE)
    for tag in tags:
        if not is_span_tag(tag) or tag[0] not in prefixes:
            raise InvalidArgument(
                name,
                wanted=(
                    f"tags of the scheme {scheme}: O, or a type after {', '.join(PREFIXES[scheme])}"
                ),
                got=repr(tag),
                remedy="Correct the tag, or convert all to one scheme.",
            )


def _may_follow(before: str, after: str, scheme: SpanScheme) -> bool:
    inside = before[0] in "BI"
    same = _type(before) == _type(after)
    if after[0] in "IE":
        return inside and same
    # In BIOES, a span that has begun goes on until its E-.
    return scheme == "IOB2" or not inside


def _prefix(span: Span, position: int, scheme: SpanScheme) -> str:
    if scheme == "BIOES" and span.start == span.end:
        return "S"
    if position == span.start:
        return "B"
    return "E" if scheme == "BIOES" and position == span.end else "I"


def _type(tag: str) -> str:
    """The type of a tag, as seqeval's default mode reads it:
    what follows the first "-" after the prefix.
    """
    return tag[1:].split("-", maxsplit=1)[-1] or NO_TYPE


def _strict_type(tag: str) -> str:
    return tag[1:].strip("-") or NO_TYPE


def _ends_before(prefix_before: str, type_before: str, prefix: str, kind: str) -> bool:
    """Whether a span ends with the token before this one."""
    if prefix_before == OUTSIDE:
        return False
    if prefix_before in "ES" or prefix in "BSO":
        return True
    return type_before != kind


def _begins(prefix_before: str, type_before: str, prefix: str, kind: str) -> bool:
    """Whether a span begins with this token."""
    if prefix == OUTSIDE:
        return False
    if prefix in "BS" or prefix_before in "ESO":
        return True
    return type_before != kind
