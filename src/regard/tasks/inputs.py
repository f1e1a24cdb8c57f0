"""The inputs of a model: texts, labels and images encoded, truncated and collated into batches."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numpy.typing import NDArray
from torch import Tensor, nn

from regard.core.errors import InputTooLong, InvalidArgument
from regard.core.joined_tokens import JoinedTokens
from regard.core.sanitize import one_line
from regard.core.sequence import FieldBatch, MultiSource, Tokens
from regard.data.corpus import VocabularyType
from regard.data.fields.base import Field, check_list
from regard.data.images import ImageInput
from regard.data.series_window import Window
from regard.generation.request import position_limit
from regard.interpret.editing import with_replaced_tokens
from regard.interpret.edits import Edit
from regard.model.interfaces import SequenceEncoder, Source
from regard.model.seq2seq import Model

# A text, an image, or vectors as an array, a tensor or nested lists; of several sources, a sequence of these.
InputValue = str | ImageInput | NDArray[Any] | Tensor | Window | Sequence[Any]
# One input as its field encodes it: token ids, the pieces of words, an image. A tuple of these for several sources.
EncodedInput = Any


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
    field        of the source; for a language model, of its text
    vocabulary   of the field; None where it learns none
    has_limit    whether learned positions limit its length; not where the window of a language model slides
    is_pretrained_classifier   whether it is the only source of an imported classifier, which is used with pairs of
                 texts elsewhere: a text with a tab, which would be one here, is refused
    window       how many vectors the model reads, of a longer sequence the last; None: all
    """

    encoder: nn.Module
    field: Field
    vocabulary: VocabularyType | None
    has_limit: bool = True
    is_pretrained_classifier: bool = False
    window: int | None = None

    @cached_property
    def _positions(self) -> int | None:
        return position_limit(self.encoder)

    def check(self, name: str, texts: Iterable[Any]) -> list[Any]:
        found = self.field.check(name, texts)
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
        encoded = self.field.encode(self.vocabulary, texts)
        if self.window is None:
            return encoded
        return [self.field.latest(each, self.window) for each in encoded]

    def too_long(
        self, inputs: Sequence[EncodedInput], limit: int, lines: Sequence[int] | None = None
    ) -> dict[int, InputTooLong]:
        if not self.field.is_sequence:
            return {}
        limit = self._limit(limit)
        found = {}
        for i, encoded in enumerate(inputs):
            length = self.field.length(encoded)
            if length > limit:
                name = f"text {i + 1}" if lines is None else f"line {lines[i]}"
                found[i] = InputTooLong(name, length, limit)
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
        shortened = [
            self.field.shorten(encoded, limit) if i in long else encoded
            for i, encoded in enumerate(inputs)
        ]
        return shortened, {*long}

    def _limit(self, limit: int) -> int:
        """The most tokens of an input: this limit, or as many as the model has positions for."""
        if self._positions is None or not self.has_limit or self.field.is_windowed:
            return limit
        around = self.field.around(self.vocabulary)
        # One position is kept for a [CLS] token.
        states = self._positions - around - 1
        if isinstance(self.encoder, SequenceEncoder) and self.field.needs_input_module:
            # A state may be that of several vectors.
            states = self._positions - self.encoder.cls_tokens
            return min(limit, states * self.encoder.input_module.shortens)
        return min(limit, states)

    def sizes(self, inputs: Sequence[EncodedInput]) -> list[int]:
        return [self.field.length(each) for each in inputs]

    def collate(self, inputs: Sequence[Any]) -> FieldBatch:
        device = next(self.encoder.parameters()).device
        batch: FieldBatch = self.field.collate(self.vocabulary, inputs).to(device)
        return batch


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
class JoinedInput(MultiSourceInput):
    """Encodes several texts of each example as one sequence. Limits are those of all texts together."""

    def too_long(
        self, inputs: Sequence[EncodedInput], limit: int, lines: Sequence[int] | None = None
    ) -> dict[int, InputTooLong]:
        limit = self._limit(limit)
        found = {}
        for i, length in enumerate(self.sizes(inputs)):
            if length > limit:
                name = f"text {i + 1}" if lines is None else f"line {lines[i]}"
                found[i] = InputTooLong(name, length, limit)
        return found

    def truncate(
        self,
        inputs: list[EncodedInput],
        limit: int,
        *,
        truncate: bool,
        lines: Sequence[int] | None = None,
    ) -> tuple[list[EncodedInput], set[int]]:
        """Of the texts of an example, the longest loses its end first."""
        long = self.too_long(inputs, limit, lines)
        if long and not truncate:
            raise long[min(long)]
        limit = self._limit(limit)
        shortened = list(inputs)
        for i in long:
            lengths = [len(ids) for ids in inputs[i]]
            while sum(lengths) > limit:
                lengths[lengths.index(max(lengths))] -= 1
            texts = zip(inputs[i], lengths, strict=True)
            shortened[i] = tuple(ids[:length] for ids, length in texts)
        return shortened, {*long}

    def _limit(self, limit: int) -> int:
        positions = position_limit(self.parts[0].encoder)
        if positions is None:
            return limit
        around = sum(part.field.around(part.vocabulary) for part in self.parts)
        # One position is kept for a [CLS] token.
        return min(limit, positions - around - 1)

    def collate(self, inputs: Sequence[Any]) -> JoinedTokens:
        columns = self._columns(inputs)
        texts = [part.field.collate(part.vocabulary, column) for part, column in columns]
        device = next(self.parts[0].encoder.parameters()).device
        return JoinedTokens.join([each for each in texts if isinstance(each, Tokens)]).to(device)


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
