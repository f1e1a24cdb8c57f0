"""What a look shows of an input: the names of its tokens, labels and images, and the forward pass over an output."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from regard.core.errors import InvalidArgument
from regard.core.joined_tokens import JoinedTokens
from regard.core.sequence import MultiSource, Tokens, Vectors
from regard.core.shapes import Tensor
from regard.data.corpus import VocabularyType
from regard.data.images import Pixels
from regard.data.tokenizer import Tokenizer
from regard.data.vocabulary import Labels
from regard.interpret.editing import with_replaced_output
from regard.interpret.edits import Edit
from regard.interpret.look import Label
from regard.interpret.maps import ForwardPass
from regard.interpret.record import LookInput
from regard.interpret.tokens_to_words import TokenSequence
from regard.model.interfaces import Source
from regard.model.seq2seq import Model


def input_title(text: Any, vocabularies: Sequence[VocabularyType | None]) -> str:
    if len(vocabularies) > 1:
        parts = text.split("\t") if isinstance(text, str) else text
        return " | ".join(
            input_title(part, [each]) for part, each in zip(parts, vocabularies, strict=True)
        )
    if None in vocabularies:  # an image
        return Path(text).name if isinstance(text, str | Path) else "image"
    return str(text)


def named_sources(
    batch: Any, vocabularies: Sequence[VocabularyType | None]
) -> tuple[TokenSequence | Pixels, ...]:
    """The tokens, label or image of each source of a batch of one; without a vocabulary, token ids are their names."""
    parts: tuple[Any, ...] = ()
    if isinstance(batch, MultiSource):
        parts = batch.parts
    elif isinstance(batch, JoinedTokens):  # of one vocabulary
        parts = (batch,)
        vocabularies = vocabularies[:1]
    elif vocabularies:
        parts = (batch,)
    named: list[TokenSequence | Pixels] = []
    for part, vocabulary in zip(parts, vocabularies, strict=True):
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
            count = int(part.lengths[0])
            named.append(
                TokenSequence.of_words(tuple(str(number) for number in range(1, count + 1)))
            )
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
