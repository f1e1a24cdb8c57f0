"""A trained model with its vocabularies: texts or images in, texts or labels out."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from regard.core.config import read
from regard.core.errors import InvalidArgument, InvalidRecipe
from regard.data.corpus import SourceVocabularies, VocabularyType
from regard.data.images import ImageInput
from regard.data.tokenizer import Labels, Tokenizer
from regard.decoding.config import DecodeConfig
from regard.inference import phrases
from regard.inference.inputs import EncodedInput, InputEncoder, check_list
from regard.inference.outputs import Output, label_outputs, sequence_outputs
from regard.inference.requests import Constraints, RequestBuilder
from regard.inference.score import SequenceScore, score_labels, score_sequences
from regard.inference.stream import text_pieces
from regard.model.eval_mode import evaluating
from regard.model.seq2seq import Classifier, MaskedLanguageModel, Model, Seq2Seq
from regard.recipe.recipe import Recipe

# The options of a search that a stream has no use for, and the value that each must have.
UNSTREAMABLE = {"beam_size": 1, "num_hypotheses": 1, "beam_groups": 1, "coverage_penalty": 0.0}


@dataclass(frozen=True, repr=False)
class Predictor:
    """A model with its vocabularies, ready to predict: what `regard.load` returns.

    Options of its methods are those of a recipe's [decode] table (beam_size=5, max_length=100, ...); the recipe's own
    values are the defaults.
    """

    model: Model
    recipe: Recipe
    sources: SourceVocabularies
    target: VocabularyType
    folder: Path | None = None  # the checkpoint it was loaded from

    @property
    def source(self) -> VocabularyType | None:
        """The vocabulary of its one source; None for images, for language models and for several sources."""
        return self.sources[0] if len(self.sources) == 1 else None

    def __repr__(self) -> str:
        parameters = sum(weight.numel() for weight in self.model.parameters())
        where = "" if self.folder is None else f", {str(self.folder)!r}"
        return f"Predictor({type(self.model).__name__}, {parameters:,} parameters{where})"

    @property
    def image_size(self) -> int | None:
        """Pixels a side of the images that the model reads; None for other models."""
        field = self.recipe.data.source
        return field.image_size if field is not None and field.kind == "image" else None

    @cached_property
    def inputs(self) -> InputEncoder:
        vocabulary = self.target if self.source is None else self.source
        return InputEncoder(self.model, vocabulary if self.image_size is None else None, self.image_size)

    def with_decode(self, **options: Any) -> "Predictor":
        """The same predictor with these [decode] options as defaults."""
        return replace(self, recipe=replace(self.recipe, decode=self._config(options)))

    def predict(self, texts: Iterable[str | ImageInput], **options: Any) -> list[str]:
        """The best output for each text, in order: a text or a label; from a language model, the continuation.

        A model of images takes their paths, or uint8 arrays (height, width, 3). Options as in `iter_outputs`.
        """
        return [best[0].text for best in self.outputs(texts, **options)]

    def outputs(self, texts: Iterable[str | ImageInput], **options: Any) -> list[list[Output]]:
        """The `num_hypotheses` best outputs for each text, in order, best first. Options as in `iter_outputs`."""
        texts = self.inputs.check("texts", texts)
        outputs = dict(self.iter_outputs(texts, **options))
        return [outputs[index] for index in range(len(texts))]

    def iter_outputs(
        self,
        texts: Sequence[str | ImageInput],
        *,
        prefixes: Sequence[str] | None = None,
        banned: Sequence[str] = (),
        required: Sequence[Sequence[str]] | None = None,
        banned_in: Sequence[Sequence[str]] | None = None,
        scores: bool = False,
        truncate: bool = False,
        attention: bool = False,
        lines: Sequence[int] | None = None,
        **options: Any,
    ) -> Iterator[tuple[int, list[Output]]]:
        """The index of each text and its outputs, best first, in the order in which they are finished.

        prefixes    how each output begins
        banned      phrases that no output contains
        required    for each text, phrases that its outputs contain
        banned_in   for each text, phrases that its outputs do not contain
        scores      give log-probabilities also where the search needs none
        truncate    drop the end of a text of more than `max_source_length` tokens, which is refused otherwise
        attention   give each output its cross-attention weights
        lines       line numbers of the texts in their file, from 1: for messages, and for the draws of sampling
        """
        config, constraints = self._config(options), Constraints(prefixes, banned, required, banned_in)
        if isinstance(self.model, MaskedLanguageModel):
            raise InvalidArgument(
                "model",
                wanted="one that gives sequences or labels",
                got="a masked language model",
                remedy="Fine-tune it: train.init_from.",
            )
        encoded, long = self._encode(texts, config, truncate, lines)
        with evaluating(self.model):
            if isinstance(self.model, Classifier):
                assert isinstance(self.target, Labels)
                for name, value in {**constraints._asdict(), "attention": attention}.items():
                    if value:
                        wanted, remedy = "nothing for a model that gives labels", "Leave it out."
                        raise InvalidArgument(name, wanted=wanted, got=repr(value), remedy=remedy)
                found = label_outputs(self.model, self.target, self.inputs, encoded, config, scored=scores)
            else:
                builder = self._requests()
                requests = builder.requests(encoded, constraints)
                task = builder.task(config, banned, scored=scores, lines=lines)
                found = sequence_outputs(builder.tokenizer, task, requests, attention=attention)
            for index, outputs in found:
                yield index, [replace(each, truncated=True) for each in outputs] if index in long else outputs

    def stream(
        self,
        text: str | ImageInput,
        *,
        prefix: str = "",
        banned: Sequence[str] = (),
        required: Sequence[str] = (),
        truncate: bool = False,
        line: int = 1,
        **options: Any,
    ) -> Iterator[str]:
        """The output for one text, piece by piece as it is generated, by greedy search or sampling.

        The pieces joined are what `predict` gives without a beam; with sampling, what it gives for a text at this line
        of a list.
        """
        for name, only in UNSTREAMABLE.items():
            if options.get(name) not in (None, only):
                wanted, remedy = f"{only:g} in a stream", "Leave it out, or use predict."
                raise InvalidArgument(name, wanted=wanted, got=repr(options[name]), remedy=remedy)
        config = self._config({**options, **UNSTREAMABLE})
        builder = self._requests()
        encoded, _ = self._encode(self.inputs.check("text", [text]), config, truncate, None)
        (request,) = builder.requests(encoded, Constraints([prefix], required=[required]))
        task = builder.task(config, banned, scored=False, lines=[line])
        with evaluating(self.model):
            ids = islice(phrases.stream(builder.tokenizer, task, request), request.given, None)
            yield from text_pieces(builder.tokenizer, ids)

    def score(
        self, texts: Iterable[str], targets: Iterable[str] | None = None, *, batch_tokens: int | None = None
    ) -> list[SequenceScore]:
        """The log-probability of the target of each text: an output or a label; for a language model, of the text."""
        texts = self.inputs.check("texts", texts)
        language_model = not self.recipe.data.source_fields
        if (targets is None) != language_model:
            wanted = "one for each text" if targets is None else "none for a model without a source"
            remedy = "Give sources and targets to a model that has both, texts alone to a language model."
            raise InvalidArgument("targets", wanted=wanted, got="none" if targets is None else "some", remedy=remedy)
        targets = texts if targets is None else check_list("targets", targets, len(texts))
        encoded = None if language_model else self.inputs.encode(texts)
        budget = batch_tokens or self.recipe.decode.batch_tokens
        with evaluating(self.model):
            if isinstance(self.model, Classifier) and encoded is not None:
                assert isinstance(self.target, Labels)
                return score_labels(self.model, self.target, self.inputs, encoded, targets, budget)
            builder = self._requests()
            return score_sequences(
                builder.model, builder.tokenizer, self.inputs, encoded, targets, budget, documents=builder.documents
            )

    def encode(self, text: Any, *, truncate: bool = False, line: int | None = None, **options: Any) -> tuple[Any, Any]:
        """One text as the model reads it: token ids, a label, or the image; and that as a batch of one.

        The batch is None for a language model. `line` is the text's line number, for messages.
        """
        lines = None if line is None else [line]
        encoded, _ = self._encode(self.inputs.check("text", [text]), self._config(options), truncate, lines)
        return encoded[0], None if not self.recipe.data.source_fields else self.inputs.collate(encoded)

    def _encode(
        self, texts: Sequence[str | ImageInput], config: DecodeConfig, truncate: bool, lines: Sequence[int] | None
    ) -> tuple[list[EncodedInput], set[int]]:
        """The encoded texts, and the indices of those that were truncated."""
        encoded = self.inputs.encode(texts)
        return self.inputs.truncate(encoded, config.max_source_length, truncate=truncate, lines=lines)

    def _requests(self) -> RequestBuilder:
        """Refused for a model that does not generate sequences."""
        if not isinstance(self.model, Seq2Seq) or not isinstance(self.target, Tokenizer):
            wanted, remedy = "one that gives sequences", "Choose another, or use predict."
            raise InvalidArgument("model", wanted=wanted, got=type(self.model).__name__, remedy=remedy)
        data = self.recipe.data
        has_source, documents = bool(data.source_fields), data.context_length is not None
        return RequestBuilder(self.model, self.target, self.inputs, has_source, documents)

    def _config(self, options: dict[str, Any]) -> DecodeConfig:
        """The recipe's [decode] with these options; None stands for the recipe's own value."""
        chosen = {key: value for key, value in options.items() if value is not None}
        if chosen.get("sample"):
            chosen = {"beam_size": 1, **chosen}  # also where the recipe has a beam
        config = read(DecodeConfig, {**asdict(self.recipe.decode), **chosen}, "decode")
        if isinstance(config, list):
            raise InvalidRecipe(config)
        return config
