"""The inputs of a model: texts, labels and images encoded, truncated and collated into batches."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from regard.core.errors import InvalidArgument
from regard.core.sequence import Tokens
from regard.data.corpus import VocabularyType
from regard.data.images import ImageInput, image_token_cost, load_image, normalize
from regard.data.tokenizer import END, Labels, Tokenizer
from regard.decoding.request import position_limit
from regard.model.interfaces import Source
from regard.model.seq2seq import Model

EncodedInput = list[int] | int | ImageInput  # token ids, a label, or an image, which is read when it is collated


@dataclass(frozen=True)
class InputEncoder:
    """Encodes what a model reads.

    vocabulary   of the source; for a language model, of its text; None for images
    image_size   pixels a side, for images
    """

    model: Model
    vocabulary: VocabularyType | None
    image_size: int | None

    def check(self, name: str, texts: Iterable[Any]) -> list[Any]:
        """The inputs as a list; anything but a list of texts, or of images for a model of images, is refused."""
        return check_list(name, texts, texts_only=self.image_size is None)

    def encode(self, texts: Sequence[Any]) -> list[EncodedInput]:
        """Token ids or labels; images unchanged."""
        if isinstance(self.vocabulary, Tokenizer):
            return list(self.vocabulary.encode_batch(texts))
        return list(texts) if self.vocabulary is None else [self.vocabulary.encode(text) for text in texts]

    def truncate(
        self, inputs: list[EncodedInput], limit: int, *, truncate: bool, lines: Sequence[int] | None = None
    ) -> tuple[list[EncodedInput], set[int]]:
        """The inputs with at most `limit` tokens and at most as many as the model has positions for.

        Also the indices of those that were longer: refused unless `truncate`. `lines` are line numbers for the message.
        """
        positions = position_limit(self.model if self.model.encoder is None else self.model.encoder)
        if positions is not None:
            limit = min(limit, positions - 2)  # the end token, and a [CLS] token where there is one
        long = {i for i, ids in enumerate(inputs) if isinstance(ids, list) and len(ids) > limit}
        if long and not truncate:
            first = min(long)
            raise InvalidArgument(
                f"text {first + 1}" if lines is None else f"line {lines[first]}",
                wanted=f"at most {limit} tokens",
                got=str(self.sizes(inputs)[first]),
                remedy="Split it; truncate=True (--truncate) drops its end; or raise decode.max_source_length.",
            )
        return [ids[:limit] if i in long and isinstance(ids, list) else ids for i, ids in enumerate(inputs)], long

    def sizes(self, inputs: Sequence[EncodedInput]) -> list[int]:
        """The number of tokens that each input counts for in a batch."""
        other = 1 if self.image_size is None else image_token_cost(self.image_size)
        return [len(each) if isinstance(each, list) else other for each in inputs]

    def collate(self, inputs: Sequence[Any]) -> Source:
        """A batch of encoded inputs on the model's device, as its encoder takes it."""
        device = next(self.model.parameters()).device
        if self.image_size is not None:
            return normalize(np.stack([load_image(image, self.image_size) for image in inputs])).to(device)
        if isinstance(self.vocabulary, Labels):
            return torch.tensor(inputs, device=device)
        return Tokens.of([[*ids, END] for ids in inputs], device=device)


def check_list(name: str, texts: Iterable[Any], count: int | None = None, *, texts_only: bool = True) -> list[Any]:
    """The texts as a list, `count` of them where that is given; a single text is refused."""
    if isinstance(texts, str | np.ndarray):
        raise InvalidArgument(name, wanted="a list", got=f"one {type(texts).__name__}", remedy="Give [it].")
    texts = list(texts)
    for text in texts:
        if texts_only and not isinstance(text, str):
            raise InvalidArgument(name, wanted="texts", got=repr(text), remedy="Give a list of strings.")
    if count is not None and len(texts) != count:
        wanted, remedy = f"{count}{'' if texts_only else ' lists'}, one for each text", "Empty ones are fine."
        raise InvalidArgument(name, wanted=wanted, got=str(len(texts)), remedy=remedy)
    return texts
