"""The inputs of a model: texts, labels and images encoded, truncated and collated into batches."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from regard.core.errors import InputTooLong, InvalidArgument
from regard.core.sanitize import one_line
from regard.core.sequence import MultiSource, Tokens
from regard.core.shapes import Tensor
from regard.data.config import FieldConfig
from regard.data.corpus import VocabularyType
from regard.data.images import ImageInput, image_token_cost, load_image, normalize
from regard.data.tokenizer import Tokenizer
from regard.data.vocabulary import Labels
from regard.decoding.request import position_limit
from regard.interpret.editing import with_replaced_tokens
from regard.interpret.edits import Edit
from regard.model.interfaces import Source
from regard.model.seq2seq import Model

InputValue = (
    str | ImageInput | Sequence[str | ImageInput]
)  # several sources as a sequence, or as a text with tabs
# Token ids, a label, an image, which is read when it is collated, or several of these.
EncodedInput = list[int] | int | ImageInput | tuple[Any, ...]


class InputEncoder(ABC):
    """Encodes what a model reads."""

    @abstractmethod
    def check(self, name: str, texts: Iterable[Any]) -> list[Any]:
        """The inputs as a list; values of another kind than the model reads are refused."""

    @abstractmethod
    def encode(self, texts: Sequence[Any]) -> list[EncodedInput]:
        """Token ids or labels; images unchanged."""

    @abstractmethod
    def too_long(
        self, inputs: Sequence[EncodedInput], limit: int, lines: Sequence[int] | None = None
    ) -> dict[int, InputTooLong]:
        """The inputs that `truncate` refuses, by their index."""

    @abstractmethod
    def truncate(
        self,
        inputs: list[EncodedInput],
        limit: int,
        *,
        truncate: bool,
        lines: Sequence[int] | None = None,
    ) -> tuple[list[EncodedInput], set[int]]:
        """The inputs with at most `limit` tokens and at most as many as the model has positions for.

        Also the indices of those that were longer: refused unless `truncate`. `lines` are line numbers for the message.
        """

    @abstractmethod
    def sizes(self, inputs: Sequence[EncodedInput]) -> list[int]:
        """The number of tokens that each input counts for in a batch."""

    @abstractmethod
    def collate(self, inputs: Sequence[Any]) -> Source:
        """A batch of encoded inputs on the model's device, as its encoder takes it."""


@dataclass(frozen=True)
class SourceInput(InputEncoder):
    """Encodes one source.

    encoder      of the source; for a language model, the model
    vocabulary   of the source; for a language model, of its text; None for images
    field        of the source; None for a language model
    has_limit    whether learned positions limit its length; not where the window of a language model slides
    is_pretrained_classifier   whether it is the only source of an imported classifier, which is used with pairs of
                 texts elsewhere: a text with a tab, which would be one here, is refused
    """

    encoder: nn.Module
    vocabulary: VocabularyType | None
    field: FieldConfig | None = None
    has_limit: bool = True
    is_pretrained_classifier: bool = False

    @cached_property
    def _positions(self) -> int | None:
        return position_limit(self.encoder)

    def check(self, name: str, texts: Iterable[Any]) -> list[Any]:
        found = check_list(name, texts, texts_only=self.vocabulary is not None)
        if self.is_pretrained_classifier:
            for number, text in enumerate(found, start=1):
                if "\t" in text:
                    raise InvalidArgument(
                        f"{name} {number}",
                        wanted="one text: this classifier was imported without pairs of texts",
                        got=f"{text.count(chr(9)) + 1} texts, separated by tabs",
                        remedy="Give one text, or a space instead of the tab.",
                    )
        return found

    def encode(self, texts: Sequence[Any]) -> list[EncodedInput]:
        if isinstance(self.vocabulary, Tokenizer):
            return list(self.vocabulary.encode_batch(texts))
        return (
            list(texts)
            if self.vocabulary is None
            else [self.vocabulary.encode(text) for text in texts]
        )

    def too_long(
        self, inputs: Sequence[EncodedInput], limit: int, lines: Sequence[int] | None = None
    ) -> dict[int, InputTooLong]:
        limit = self._limit(limit)
        found = {}
        for i, ids in enumerate(inputs):
            if isinstance(ids, list) and len(ids) > limit:
                name = f"text {i + 1}" if lines is None else f"line {lines[i]}"
                found[i] = InputTooLong(name, len(ids), limit)
        return found

    def truncate(
        self,
        inputs: list[EncodedInput],
        limit: int,
        *,
        truncate: bool,
        lines: Sequence[int] | None = None,
    ) -> tuple[list[EncodedInput], set[int]]:
        long = self.too_long(inputs, limit, lines)
        if long and not truncate:
            raise long[min(long)]
        limit = self._limit(limit)
        return [
            ids[:limit] if i in long and isinstance(ids, list) else ids
            for i, ids in enumerate(inputs)
        ], {*long}

    def _limit(self, limit: int) -> int:
        """The most tokens of an input: this limit, or as many as the model has positions for."""
        if self._positions is None or not self.has_limit:
            return limit
        around = 1
        if isinstance(self.vocabulary, Tokenizer):
            around = len(self.vocabulary.special_tokens.source(()))
        return min(limit, self._positions - around - 1)  # and a [CLS] token where there is one

    def sizes(self, inputs: Sequence[EncodedInput]) -> list[int]:
        other = (
            1
            if self.vocabulary is not None or self.field is None
            else image_token_cost(self.field.image_size)
        )
        return [len(each) if isinstance(each, list) else other for each in inputs]

    def collate(self, inputs: Sequence[Any]) -> Tokens | Tensor:
        device = next(self.encoder.parameters()).device
        if self.vocabulary is None:
            assert self.field is not None
            pixels = np.stack([load_image(image, *self.field.resizing) for image in inputs])
            return normalize(pixels, self.field.image_mean, self.field.image_std).to(device)
        if isinstance(self.vocabulary, Labels):
            return torch.tensor(inputs, device=device)
        return Tokens.of(
            [self.vocabulary.special_tokens.source(ids) for ids in inputs], device=device
        )


@dataclass(frozen=True)
class MultiSourceInput(InputEncoder):
    """Encodes several sources of each example, given as a sequence or as a text with a tab between them."""

    parts: tuple[SourceInput, ...]

    def check(self, name: str, texts: Iterable[Any]) -> list[Any]:
        rows = []
        for number, text in enumerate(check_list(name, texts, texts_only=False), start=1):
            if not isinstance(text, str | list | tuple):
                wanted = f"{len(self.parts)} sources, as a tuple or separated by tabs"
                raise InvalidArgument(
                    f"{name} {number}",
                    wanted=wanted,
                    got=one_line(repr(text))[:60],
                    remedy="Give each example all its sources.",
                )
            rows.append(tuple(text.split("\t") if isinstance(text, str) else text))
        for number, row in enumerate(rows, start=1):
            if len(row) != len(self.parts):
                wanted = f"{len(self.parts)} sources, as a tuple or separated by tabs"
                remedy = "Give each example all its sources."
                raise InvalidArgument(
                    f"{name} {number}", wanted=wanted, got=str(len(row)), remedy=remedy
                )
        return list(
            zip(*(part.check(name, column) for part, column in self._columns(rows)), strict=True)
        )

    def encode(self, texts: Sequence[Any]) -> list[EncodedInput]:
        return list(
            zip(*(part.encode(column) for part, column in self._columns(texts)), strict=True)
        )

    def too_long(
        self, inputs: Sequence[EncodedInput], limit: int, lines: Sequence[int] | None = None
    ) -> dict[int, InputTooLong]:
        found: dict[int, InputTooLong] = {}
        for part, column in self._columns(inputs):
            found = part.too_long(column, limit, lines) | found
        return found

    def truncate(
        self,
        inputs: list[EncodedInput],
        limit: int,
        *,
        truncate: bool,
        lines: Sequence[int] | None = None,
    ) -> tuple[list[EncodedInput], set[int]]:
        columns = self._columns(inputs)
        shortened = [
            part.truncate(column, limit, truncate=truncate, lines=lines) for part, column in columns
        ]
        rows = zip(*(column for column, _ in shortened), strict=True)
        return list(rows), set().union(*(long for _, long in shortened))

    def sizes(self, inputs: Sequence[EncodedInput]) -> list[int]:
        sizes = (part.sizes(column) for part, column in self._columns(inputs))
        return list(map(sum, zip(*sizes, strict=True)))

    def collate(self, inputs: Sequence[Any]) -> Source:
        return MultiSource(tuple(part.collate(column) for part, column in self._columns(inputs)))

    def _columns(self, rows: Sequence[Any]) -> list[tuple[SourceInput, list[Any]]]:
        """The values of each source."""
        return [(part, [row[i] for row in rows]) for i, part in enumerate(self.parts)]


@dataclass(frozen=True)
class EditedInput(InputEncoder):
    """Encodes as another does, and replaces tokens of each batch."""

    inner: InputEncoder
    edits: Sequence[Edit]
    model: Model
    vocabularies: Sequence[VocabularyType | None]

    def check(self, name: str, texts: Iterable[Any]) -> list[Any]:
        return self.inner.check(name, texts)

    def encode(self, texts: Sequence[Any]) -> list[EncodedInput]:
        return self.inner.encode(texts)

    def too_long(
        self, inputs: Sequence[EncodedInput], limit: int, lines: Sequence[int] | None = None
    ) -> dict[int, InputTooLong]:
        return self.inner.too_long(inputs, limit, lines)

    def truncate(
        self,
        inputs: list[EncodedInput],
        limit: int,
        *,
        truncate: bool,
        lines: Sequence[int] | None = None,
    ) -> tuple[list[EncodedInput], set[int]]:
        return self.inner.truncate(inputs, limit, truncate=truncate, lines=lines)

    def sizes(self, inputs: Sequence[EncodedInput]) -> list[int]:
        return self.inner.sizes(inputs)

    def collate(self, inputs: Sequence[Any]) -> Source:
        replaced = with_replaced_tokens(
            self.inner.collate(inputs), self.edits, self.model, self.vocabularies
        )
        assert replaced is not None
        return replaced


def check_list(
    name: str, texts: Iterable[Any], count: int | None = None, *, texts_only: bool = True
) -> list[Any]:
    """The texts as a list, `count` of them where that is given; a single text is refused."""
    if isinstance(texts, str | np.ndarray):
        raise InvalidArgument(
            name, wanted="a list", got=f"one {type(texts).__name__}", remedy="Give [it]."
        )
    texts = list(texts)
    for text in texts:
        if texts_only and not isinstance(text, str):
            raise InvalidArgument(
                name,
                wanted="texts",
                got=one_line(repr(text))[:60],
                remedy="Give a list of strings: this model reads no vectors or numbers.",
            )
    if count is not None and len(texts) != count:
        wanted, remedy = (
            f"{count}{'' if texts_only else ' lists'}, one for each text",
            "Empty ones are fine.",
        )
        raise InvalidArgument(name, wanted=wanted, got=str(len(texts)), remedy=remedy)
    return texts
