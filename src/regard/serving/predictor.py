"""A trained model with its vocabularies: texts or pictures in, texts or labels out."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.data.images import Picture, normalised, pixels, token_worth
from regard.data.tokens import END, START, Labels, Tokenizer
from regard.decoding.greedy import greedy
from regard.errors import InvalidArgument
from regard.model.seq2seq import Classifier, MaskedTokens, Seq2Seq
from regard.recipe import Recipe
from regard.sequence import Tokens

Vocabulary = Tokenizer | Labels


@dataclass(frozen=True)
class Predictor:
    """What `regard.load` returns."""

    model: Seq2Seq | Classifier | MaskedTokens
    recipe: Recipe
    source: Vocabulary | None  # None: the model reads nothing, or pictures
    target: Vocabulary
    folder: Path | None = None  # the checkpoint it came from

    @property
    def picture_size(self) -> int | None:
        """Pixels a side, where the model reads pictures."""
        field = self.recipe.data.source
        return field.size if field is not None and field.kind == "image" else None

    def predict(self, texts: Iterable[str | Picture], *, longest: int | None = None) -> list[str]:
        """An output for each text, in order: what follows from it, its label, or how it goes on.

        A model of pictures takes their paths, or arrays of uint8 (height, width, 3).
        """
        if isinstance(texts, str | np.ndarray):
            raise InvalidArgument("texts", wanted="a list", got=f"one {type(texts).__name__}", remedy="Give [it].")
        texts = list(texts)
        for text in texts:
            if not isinstance(text, str) and self.picture_size is None:
                raise InvalidArgument("texts", wanted="texts", got=repr(text), remedy="Give a list of strings.")
        if isinstance(self.model, MaskedTokens):
            raise InvalidArgument(
                "model",
                wanted="one that gives sequences or labels",
                got="one that finds hidden tokens",
                remedy="Fine-tune it: train.start_from.",
            )
        longest = longest or self.recipe.decode.longest
        numbers = self._numbers(texts)
        was_training = self.model.training
        self.model.eval()
        found = [""] * len(texts)
        try:
            for rows in self._together(numbers):
                for row, answer in zip(rows, self._answers([numbers[row] for row in rows], longest), strict=True):
                    found[row] = answer
        finally:
            self.model.train(was_training)
        return found

    def _numbers(self, texts: list[Any]) -> list[Any]:
        """Token ids or labels; pictures as they are, to be read when their turn comes."""
        if self.picture_size is not None:
            return texts
        reads = self.target if self.source is None else self.source
        return reads.encode_batch(texts) if isinstance(reads, Tokenizer) else [reads.encode(text) for text in texts]

    def _encoder_input(self, numbers: Sequence[Any], device: torch.device) -> Any:
        """What `_numbers` gave, as the encoder takes it."""
        if (size := self.picture_size) is not None:
            return normalised(np.stack([pixels(picture, size) for picture in numbers])).to(device)
        if isinstance(self.source, Labels):
            return torch.tensor(numbers, device=device)
        return Tokens.of([[*row, END] for row in numbers], device=device)

    def _together(self, numbers: Sequence[Any]) -> Iterator[list[int]]:
        """Which texts are computed together: of like length, and for a language model of one length."""
        one = 1 if self.picture_size is None else token_worth(self.picture_size)
        lengths = [len(row) if isinstance(row, list) else one for row in numbers]
        order = sorted(range(len(numbers)), key=lengths.__getitem__)
        rows: list[int] = []
        for row in order:
            cells = (lengths[row] + 1) * (len(rows) + 1)
            odd = self.source is None and rows and lengths[rows[0]] != lengths[row]
            if rows and (odd or cells > self.recipe.decode.batch_tokens):
                yield rows
                rows = []
            rows.append(row)
        if rows:
            yield rows

    @torch.inference_mode()
    def _answers(self, numbers: Sequence[Any], longest: int) -> list[str]:
        device = next(self.model.parameters()).device
        running = self.recipe.data.stretch is not None
        start = torch.full((len(numbers), 1), END if running else START, device=device)
        if self.recipe.data.source is None:
            prompt = torch.cat((start, torch.tensor(numbers, dtype=torch.long, device=device)), 1)
            assert isinstance(self.model, Seq2Seq)
            return self._texts(greedy(self.model, None, prompt=prompt, longest=longest, ends=not running))
        source = self._encoder_input(numbers, device)
        if isinstance(self.model, Classifier):
            assert isinstance(self.target, Labels)
            return [self.target.decode(number) for number in self.model(source).argmax(-1).tolist()]
        assert isinstance(self.model, Seq2Seq)
        return self._texts(greedy(self.model, source, prompt=start, longest=longest))

    def _texts(self, said: torch.Tensor) -> list[str]:
        assert isinstance(self.target, Tokenizer)
        return [self.target.decode(row) for row in said.tolist()]
