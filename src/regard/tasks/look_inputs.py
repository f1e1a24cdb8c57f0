"""What a look shows of an input: the names of its tokens, labels and images, and the forward pass over an output."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from regard.core.errors import InvalidArgument
from regard.core.joined_tokens import JoinedTokens
from regard.core.sequence import MultiSource, Tokens, Vectors
from regard.core.shapes import Tensor
from regard.data.corpus import VocabularyType
from regard.data.fields.base import Field
from regard.data.images import Pixels
from regard.data.statistics import Statistics, place_of
from regard.data.time_axis import TimeAxis
from regard.data.tokenizer import Tokenizer
from regard.data.vocabulary import Labels
from regard.interpret.editing import with_replaced_output
from regard.interpret.edits import Edit
from regard.interpret.look import Label
from regard.interpret.maps import ForwardPass
from regard.interpret.record import LookInput, NamedSource
from regard.interpret.series import Series
from regard.interpret.tokens_to_words import TokenSequence
from regard.model.interfaces import Source
from regard.model.seq2seq import Model


def source_parts(text: Any, fields: Sequence[Field]) -> Sequence[Any]:
    """The value of each source of an input."""
    if len(fields) < 2:
        return [text]
    parts: Sequence[Any] = text.split("\t") if isinstance(text, str) else text
    return parts


def input_title(text: Any, fields: Sequence[Field]) -> str:
    """What a drawing of an input is called. A model without a source continues a text."""
    if not fields:
        return str(text)
    parts = source_parts(text, fields)
    return " | ".join(field.title(part) for field, part in zip(fields, parts, strict=True))


def time_axes(text: Any, fields: Sequence[Field]) -> list[TimeAxis]:
    """The times of the vectors of each source of an input."""
    pairs = zip(fields, source_parts(text, fields), strict=False)
    return [field.time_axis(part) for field, part in pairs]


def named_sources(
    batch: Any,
    vocabularies: Sequence[VocabularyType | None],
    axes: Sequence[TimeAxis] | None = None,
) -> tuple[NamedSource, ...]:
    """The tokens, label, image or series of each source of a batch of one.

    vocabularies   of each source; without one, token ids are the names of tokens
    axes           the times of vectors, for each source
    """
    parts: tuple[Any, ...] = ()
    if isinstance(batch, MultiSource):
        parts = batch.parts
    elif isinstance(batch, JoinedTokens):  # of one vocabulary
        parts = (batch,)
        vocabularies = vocabularies[:1]
    elif vocabularies:
        parts = (batch,)
    named: list[NamedSource] = []
    for number, (part, vocabulary) in enumerate(zip(parts, vocabularies, strict=True)):
        if isinstance(part, Tokens) and len(part.ids) == 1:
            named.append(
                TokenSequence.of(
                    part.row(0), vocabulary if isinstance(vocabulary, Tokenizer) else None
                )
            )
        elif isinstance(part, Tensor) and part.shape == (1,):
            number = int(part)
            name = vocabulary.decode(number) if isinstance(vocabulary, Labels) else str(number)
            named.append(TokenSequence.of_words((name,)))
        elif isinstance(part, Vectors) and len(part.values) == 1:
            axis = TimeAxis() if axes is None else axes[number]
            named.append(as_series(part, vocabulary, axis))
        elif isinstance(part, Tensor) and part.dim() == 4 and len(part) == 1:
            named.append(as_pixels(part))
        else:
            got = f"a batch of {len(part)}" if isinstance(part, Tensor) else repr(part)[:60]
            wanted = "Tokens, a label or pixels (1, 3, Y, X), a batch of one, for a model without vocabularies"
            raise InvalidArgument(
                "text", wanted=wanted, got=got, remedy="Look at one input at a time."
            )
    return tuple(named)


def teacher_forced(
    model: Model,
    source: Source | None,
    ids: list[int],
    first: int | None,
    given: LookInput,
    names: Tokenizer | None,
    edits: Sequence[Edit],
) -> tuple[ForwardPass, LookInput]:
    if first is None:  # the text begins with its own first token
        first = next(iter(ids), 0)
        ids = ids[1:]
    if not ids:
        remedy = "Give another, or search with other options."
        raise InvalidArgument("output", wanted="at least one token", got="none", remedy=remedy)
    ids = with_replaced_output(ids, edits, names)
    read = [first, *ids[:-1]]
    device = next(model.parameters()).device
    forward = ForwardPass(
        model, source, torch.tensor([read], device=device), torch.tensor(ids, device=device)
    )
    return forward, replace(
        given, output=TokenSequence.of(ids, names), read=TokenSequence.of(read, names)
    )


def look_label(names: Callable[[int], str], labels: Tensor, scores: Tensor) -> Label:
    """A label and its log-probability."""
    return Label(names(int(labels)), float(scores[0]))


def look_source(
    named: tuple[NamedSource, ...], channels: int, channel: str | int | None, skipped: int = 0
) -> tuple[NamedSource, ...]:
    """The sources of a look with the chosen channel, which is refused where a model reads all channels together.

    channels  how many channels have an attention of their own
    channel   the name of one of them, or its number from 1; None: the first
    skipped   vectors before the first, which the model does not read
    """
    if not channels:
        if channel is not None:
            raise InvalidArgument(
                "channel",
                wanted="none for a model whose attention is not computed for each channel",
                got=repr(channel)[:60],
                remedy="Leave it out.",
            )
        return tuple(
            replace(each, skipped=skipped) if isinstance(each, Series) else each for each in named
        )
    (source,) = named
    assert isinstance(source, Series)
    place = 0
    if channel is not None:
        place = place_of("channel", channel, source.channels[:channels])
    return (replace(source, skipped=skipped, separate=channels, channel=place),)


def skipped_vectors(text: Any, fields: Sequence[Field], window: int | None) -> int:
    """How many vectors of an input are before those that a model reads."""
    if window is None:
        return 0
    (field,) = fields
    return max(0, field.size_of(text) - window)


def as_series(batch: Vectors, statistics: VocabularyType | None, axis: TimeAxis) -> Series:
    """The series of a batch of one, in the units of the data."""
    values = batch.values[0, : int(batch.lengths[0])].float().cpu().numpy()
    if not isinstance(statistics, Statistics):
        return Series(values, axis)
    restored = statistics.restore(values).astype(values.dtype)
    return Series(restored, axis, names=statistics.names)


def as_pixels(batch: Tensor) -> Pixels:
    """The image that was normalized to this batch of one."""
    image: Pixels = (
        ((batch[0, :3].float() + 1) * 127.5)
        .round()
        .clamp(0, 255)
        .byte()
        .permute(1, 2, 0)
        .cpu()
        .numpy()
    )
    return image if image.shape[2] == 3 else image[..., :1].repeat(3, 2)
