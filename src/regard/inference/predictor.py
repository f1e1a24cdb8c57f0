"""A trained model with its vocabularies: texts or pictures in, texts or labels out."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.core.config import read
from regard.core.errors import InvalidArgument, InvalidRecipe
from regard.core.sequence import Tokens
from regard.core.shapes import Float, Tensor
from regard.data.images import ImageInput, image_token_cost, load_image, normalize
from regard.data.tokenizer import END, START, Labels, Tokenizer
from regard.decoding.config import DecodeConfig
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.logits_processors import BannedTokens, LogitsProcessor
from regard.decoding.request import Request, SearchTask
from regard.inference import phrases
from regard.inference.score import SequenceScore, score, together
from regard.interpret.output_attention import coverage_reranker, output_attention, require_cross_attention
from regard.model.eval_mode import evaluating
from regard.model.positions import Learned
from regard.model.seq2seq import Classifier, MaskedLanguageModel, Model
from regard.recipe.recipe import Recipe

Vocabulary = Tokenizer | Labels
UNFINISHED = "\ufffd"  # how a letter looks of which some bytes are still to come
SCORE = "Give sources and targets to a model that has both, texts alone to a language model."


@dataclass(frozen=True)
class Output:
    """One output for an input, and how likely the model found it."""

    text: str
    tokens: tuple[str, ...] = ()
    log_probabilities: tuple[float, ...] | None = None  # of each token and of the end, where it came
    score: float | None = None  # by which outputs were ranked
    cut: bool = False  # whether the input was too long, and only its beginning read
    numbers: tuple[int, ...] = ()  # of the tokens in the vocabulary, that of the end among them where it came
    # What it looked at: a row for each token and for the end, where it came; a column for each token of the source and
    # its end, after a learned unit where the encoder has one.
    attention: Float[Tensor, "layers H T S"] | None = None

    @property
    def log_probability(self) -> float | None:
        """Of the whole output."""
        return None if self.log_probabilities is None else sum(self.log_probabilities)


@dataclass(frozen=True)
class Predictor:
    """What `regard.load` returns."""

    model: Model
    recipe: Recipe
    source: Vocabulary | None  # None: the model reads nothing, or pictures
    target: Vocabulary
    folder: Path | None = None  # the checkpoint it came from

    @property
    def picture_size(self) -> int | None:
        """Pixels a side, where the model reads pictures."""
        field = self.recipe.data.source
        return field.image_size if field is not None and field.kind == "image" else None

    def searching(self, **options: Any) -> "Predictor":
        """The same with these options of [decode] unless told otherwise: beam=5, int8=True, …"""
        return replace(self, recipe=replace(self.recipe, decode=self._config(options)))

    def predict(self, texts: Iterable[str | ImageInput], **options: Any) -> list[str]:
        """An output for each text, in order: what follows from it, its label, or how it goes on.

        A model of pictures takes their paths, or arrays of uint8 (height, width, 3). Options are those of a recipe's
        [decode]: beam=5, longest=100, …
        """
        return [best[0].text for best in self.outputs(texts, **options)]

    def outputs(
        self,
        texts: Iterable[str | ImageInput],
        *,
        prefixes: Sequence[str] | None = None,
        banned: Sequence[str] = (),
        required: Sequence[Sequence[str]] | None = None,
        banned_in: Sequence[Sequence[str]] | None = None,
        scores: bool = False,
        cut: bool = False,
        attention: bool = False,
        **options: Any,
    ) -> list[list[Output]]:
        """The best outputs for each text, in order, best first; as many as `nbest` says.

        A text of more than `longest_source` tokens is refused, or cut where `cut` says so. `banned` are words and
        phrases that no output holds; `banned_in` has a list of them for each text, and `required` one of those that its
        outputs do hold. With `attention`, each output comes with where it looked.
        """
        texts = _checked("texts", texts, pictures=self.picture_size is not None)
        found: list[list[Output]] = [[] for _ in texts]
        for number, outputs in self.as_found(
            texts,
            prefixes=prefixes,
            banned=banned,
            required=required,
            banned_in=banned_in,
            scores=scores,
            cut=cut,
            attention=attention,
            **options,
        ):
            found[number] = outputs
        return found

    def stream(
        self,
        text: str | ImageInput,
        *,
        prefix: str = "",
        banned: Sequence[str] = (),
        required: Sequence[str] = (),
        cut: bool = False,
        line: int = 1,
        **options: Any,
    ) -> Iterator[str]:
        """The output for one text, piece by piece as it comes: the most likely token each time, or one drawn.

        The pieces together are what `predict` gives without a beam, whatever the recipe says of one; where it draws,
        what it gives for the text at this place of a list.
        """
        for name, most in (("beam", 1), ("nbest", 1), ("coverage_penalty", 0)):
            if options.get(name, most) != most:
                remedy = "Leave it out, or wait for the whole with predict."
                raise InvalidArgument(name, wanted=f"{most} in a stream", got=repr(options[name]), remedy=remedy)
        config = self._config(
            {**options, "beam_size": 1, "num_hypotheses": 1, "beam_groups": 1, "coverage_penalty": 0.0}
        )
        if not isinstance(self.target, Tokenizer) or isinstance(self.model, MaskedLanguageModel):
            wanted, remedy = "one that gives sequences", "Ask another model, or use predict."
            raise InvalidArgument("model", wanted=wanted, got=type(self.model).__name__, remedy=remedy)
        texts = _checked("text", [text], pictures=self.picture_size is not None)
        numbers, _ = self._short_enough(self._numbers(texts), config, cut, None)
        wishes = self._wishes(1, [required], None)
        task, [asked] = self._task(numbers, [prefix], banned, config, False, wishes)
        task = replace(task, numbers=[line - 1])
        with evaluating(self.model):
            yield from self._pieces(islice(phrases.stream(self.target, task, asked), asked.given, None))

    def _pieces(self, tokens: Iterable[int]) -> Iterator[str]:
        """What each token adds to the text; a letter of several tokens when it is whole."""
        before: list[int] = []  # told last: how a token is written depends on what it follows
        fresh: list[int] = []
        for token in tokens:
            fresh.append(token)
            piece = self._after(before, fresh)
            if piece and not piece.endswith(UNFINISHED):
                yield piece
                before, fresh = fresh, []
        if rest := self._after(before, fresh):
            yield rest

    def _after(self, before: list[int], fresh: list[int]) -> str:
        assert isinstance(self.target, Tokenizer)
        return self.target.decode([*before, *fresh])[len(self.target.decode(before)) :]

    def as_found(
        self,
        texts: Sequence[str | ImageInput],
        *,
        prefixes: Sequence[str] | None = None,
        banned: Sequence[str] = (),
        required: Sequence[Sequence[str]] | None = None,
        banned_in: Sequence[Sequence[str]] | None = None,
        scores: bool = False,
        cut: bool = False,
        attention: bool = False,
        lines: Sequence[int] | None = None,
        **options: Any,
    ) -> Iterator[tuple[int, list[Output]]]:
        """The number of a text and its outputs, as they are found: in any order.

        `lines` are where the texts stand in their file, counted from 1: for messages, and for what is drawn.
        """
        config = self._config(options)
        if isinstance(self.model, MaskedLanguageModel):
            raise InvalidArgument(
                "model",
                wanted="one that gives sequences or labels",
                got="one that finds hidden tokens",
                remedy="Fine-tune it: train.init_from.",
            )
        numbers, short = self._short_enough(self._numbers(texts), config, cut, lines)
        with evaluating(self.model):
            if isinstance(self.model, Classifier):
                wanting = {"prefixes": prefixes, "banned": banned, "required": required, "banned_in": banned_in}
                for name, given in {**wanting, "attention": attention}.items():
                    if given:
                        wanted, remedy = "nothing for a model that gives labels", "Leave it out."
                        raise InvalidArgument(name, wanted=wanted, got=repr(given), remedy=remedy)
                found = self._labels(numbers, config, scores)
            else:
                wishes = self._wishes(len(texts), required, banned_in)
                task, asked = self._task(numbers, prefixes, banned, config, scores, wishes)
                task = task if lines is None else replace(task, numbers=[line - 1 for line in lines])
                found = self._sequences(task, asked, attention=attention)
            for number, outputs in found:
                yield number, outputs if number not in short else [replace(each, cut=True) for each in outputs]

    def _short_enough(
        self, numbers: list[Any], config: DecodeConfig, cut: bool, lines: Sequence[int] | None
    ) -> tuple[list[Any], set[int]]:
        """Inputs that the model can read, and which of them were cut."""
        limit = config.max_source_length
        reads = self.model if self.recipe.data.source is None else self.model.encoder
        assert reads is not None
        for module in reads.modules():
            if isinstance(module, Learned):
                limit = min(limit, module.limit - 2)  # the end, and a unit where there is one
        long = {i for i, row in enumerate(numbers) if isinstance(row, list) and len(row) > limit}
        if long and not cut:
            worst = min(long)
            raise InvalidArgument(
                f"text {worst + 1}" if lines is None else f"line {lines[worst]}",
                wanted=f"at most {limit} tokens",
                got=f"{len(numbers[worst])}",
                remedy="Split it; or cut=True (--cut) reads its beginning alone; or raise decode.max_source_length.",
            )
        return [row[:limit] if i in long else row for i, row in enumerate(numbers)], long

    def _config(self, options: dict[str, Any]) -> DecodeConfig:
        chosen = {key: value for key, value in options.items() if value is not None}
        if chosen.get("sample"):
            chosen = {"beam_size": 1, **chosen}  # whatever the recipe says
        config = read(DecodeConfig, {**asdict(self.recipe.decode), **chosen}, "decode")
        if isinstance(config, list):
            raise InvalidRecipe(config)
        return config

    def _labels(self, numbers: list[Any], config: DecodeConfig, scores: bool) -> Iterator[tuple[int, list[Output]]]:
        assert isinstance(self.model, Classifier)
        assert isinstance(self.target, Labels)
        count = min(config.num_hypotheses, self.target.size)
        for rows in together(self._sizes(numbers), config.batch_tokens):
            with torch.inference_mode():
                log_p = self.model(self._collate([numbers[row] for row in rows])).float().log_softmax(-1)
                values, best = (x.tolist() for x in log_p.topk(count))
            for row, likely, labels in zip(rows, values, best, strict=True):
                names = [self.target.decode(label) for label in labels]
                yield (
                    row,
                    [
                        Output(name, (name,), (value,) if scores else None, value if scores else None)
                        for name, value in zip(names, likely, strict=True)
                    ],
                )

    def _sequences(
        self, task: SearchTask, inputs: list[Request], *, attention: bool
    ) -> Iterator[tuple[int, list[Output]]]:
        assert isinstance(self.target, Tokenizer)
        if attention:
            require_cross_attention("attention", self.model)
        for number, hypotheses in phrases.search(self.target, task, inputs):
            asked, looks = inputs[number], list[Tensor | None]([None] * len(hypotheses))
            if attention:
                looks = [*output_attention(self.model, task.collate([asked.source]), hypotheses, task.first)]
            outputs = [self._output(each, asked.given, look) for each, look in zip(hypotheses, looks, strict=True)]
            yield number, outputs or [Output("")]  # where the rules leave nothing to say

    def _task(
        self,
        numbers: list[Any],
        prefixes: Sequence[str] | None,
        banned: Sequence[str],
        config: DecodeConfig,
        scores: bool,
        wishes: Sequence[dict[str, Any]],
    ) -> tuple[SearchTask, list[Request]]:
        """What to search for."""
        assert isinstance(self.target, Tokenizer)
        begins: Sequence[Sequence[int]] = [()] * len(numbers)
        if prefixes is not None:
            begins = self.target.encode_batch(_checked("prefixes", prefixes, len(numbers)))
        inputs = [
            Request(row, size, begin, **wish)
            for row, size, begin, wish in zip(numbers, self._sizes(numbers), begins, wishes, strict=True)
        ]
        if self.recipe.data.source is None:  # it goes on from the text
            inputs = [
                Request(None, 0, [*row, *begin], **wish, given=len(row))
                for row, begin, wish in zip(numbers, begins, wishes, strict=True)
            ]
        rules: list[LogitsProcessor] = [BannedTokens(phrases.banned(self.target, banned))] if banned else []
        running = self.recipe.data.context_length is not None
        first = END if running else START
        rerank = coverage_reranker(self.model, config, first)
        task = SearchTask(
            self.model, self._collate, config, rules, first, ends=not running, rerank=rerank, scored=scores
        )
        return task, inputs

    def _wishes(
        self, count: int, required: Sequence[Sequence[str]] | None, banned: Sequence[Sequence[str]] | None
    ) -> list[dict[str, Any]]:
        """What each input requires and bans."""
        assert isinstance(self.target, Tokenizer)
        for name, given in (("required", required), ("banned_in", banned)):
            if given is not None and (isinstance(given, str) or len(given) != count):
                wanted, remedy = f"{count} lists, one for each text", "Empty ones are fine."
                raise InvalidArgument(name, wanted=wanted, got=repr(given)[:60], remedy=remedy)
        return [
            {
                "required": phrases.required(self.target, required[n]) if required else (),
                "banned": phrases.banned(self.target, banned[n]) if banned else (),
            }
            for n in range(count)
        ]

    def score(
        self, texts: Iterable[str], targets: Iterable[str] | None = None, *, batch_tokens: int | None = None
    ) -> list[SequenceScore]:
        """How likely the model finds the target of each text: an output, or a label; without a source, the text."""
        texts = _checked("texts", texts, pictures=self.picture_size is not None)
        alone = self.recipe.data.source is None
        if (targets is None) != alone:
            wanted = "one for each text" if targets is None else "none for a model without a source"
            raise InvalidArgument("targets", wanted=wanted, got="none" if targets is None else "some", remedy=SCORE)
        targets = texts if targets is None else _checked("targets", targets, len(texts))
        sources = None if alone else self._numbers(texts)
        with evaluating(self.model):
            budget = batch_tokens or self.recipe.decode.batch_tokens
            return score(self, sources, targets, self._collate, budget)

    def _output(self, found: Hypothesis, skip: int, look: Tensor | None) -> Output:
        assert isinstance(self.target, Tokenizer)
        tokens, log_p = found.tokens[skip:], found.log_probabilities
        pieces = tuple(self.target.pieces(tokens))
        log_p = None if log_p is None else log_p[skip:]
        numbers = (*tokens, END) if found.ended else tokens
        return Output(self.target.decode(tokens), pieces, log_p, found.score, attention=look, numbers=numbers)

    def given(self, text: Any, *, cut: bool = False, line: int | None = None, **options: Any) -> tuple[Any, Any]:
        """What the model reads of a text: its token numbers, a label, or the picture; and that as a batch of one.

        `line` is where the text stands in its file, for messages.
        """
        texts = _checked("text", [text], pictures=self.picture_size is not None)
        lines = None if line is None else [line]
        (read,), _ = self._short_enough(self._numbers(texts), self._config(options), cut, lines)
        return read, None if self.recipe.data.source is None else self._collate([read])

    def _numbers(self, texts: Sequence[Any]) -> list[Any]:
        """Token ids or labels; pictures as they are, to be read when their turn comes."""
        if self.picture_size is not None:
            return list(texts)
        reads = self.target if self.source is None else self.source
        return reads.encode_batch(texts) if isinstance(reads, Tokenizer) else [reads.encode(text) for text in texts]

    def _sizes(self, numbers: list[Any]) -> list[int]:
        """How many tokens each input counts for."""
        one = 1 if self.picture_size is None else image_token_cost(self.picture_size)
        return [len(row) if isinstance(row, list) else one for row in numbers]

    def _collate(self, numbers: Sequence[Any]) -> Any:
        """A batch of what `_numbers` gave, as the encoder takes it."""
        device = next(self.model.parameters()).device
        if (size := self.picture_size) is not None:
            return normalize(np.stack([load_image(picture, size) for picture in numbers])).to(device)
        if isinstance(self.source, Labels):
            return torch.tensor(numbers, device=device)
        return Tokens.of([[*row, END] for row in numbers], device=device)


def _checked(name: str, texts: Iterable[Any], count: int | None = None, *, pictures: bool = False) -> list[Any]:
    if isinstance(texts, str | np.ndarray):
        raise InvalidArgument(name, wanted="a list", got=f"one {type(texts).__name__}", remedy="Give [it].")
    texts = list(texts)
    for text in texts:
        if not isinstance(text, str) and not pictures:
            raise InvalidArgument(name, wanted="texts", got=repr(text), remedy="Give a list of strings.")
    if count is not None and len(texts) != count:
        raise InvalidArgument(
            name, wanted=f"{count}, one for each text", got=str(len(texts)), remedy="Empty ones are fine."
        )
    return texts
