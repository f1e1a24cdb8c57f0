"""A trained model with its vocabularies: texts or images in, texts or labels out."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from regard.core.config import read
from regard.core.errors import InvalidArgument, InvalidRecipe
from regard.core.shapes import Float, Tensor
from regard.data.corpus import SourceVocabularies, VocabularyType
from regard.data.fields.base import check_list
from regard.data.fields.label import labels_of
from regard.data.fields.text import require_tokenizer
from regard.generation.batch_plan import forward_batch_tokens
from regard.generation.choose.trace import BeamTrace
from regard.generation.config import DecodeConfig
from regard.generation.shortlist import Shortlist
from regard.inference.embed import embed
from regard.interpret.editing import (
    editing,
    forced_tokens,
    refuse_output_edits,
    with_replaced_tokens,
)
from regard.interpret.edits import Edit, Edits, read_edits
from regard.model.eval_mode import evaluating
from regard.model.interfaces import Source
from regard.model.multi_source import source_encoders
from regard.model.seq2seq import Model
from regard.recipe.recipe import Recipe
from regard.tasks.base import Task, TrainedModel, task_of
from regard.tasks.inputs import (
    EditedInput,
    EncodedInput,
    InputEncoder,
    InputValue,
    JoinedInput,
    MultiSourceInput,
    SourceInput,
)
from regard.tasks.pipeline import (
    Output,
    OutputOptions,
    Pipeline,
    SequenceScore,
)

# The options of a search that a stream has no use for, and the value that each must have.
UNSTREAMABLE = {"beam_size": 1, "num_hypotheses": 1, "beam_groups": 1, "coverage_penalty": 0.0}


@dataclass(frozen=True, repr=False)
class Predictor:
    """A model with its vocabularies, ready to predict:
    what `regard.load` and `regard.train` return.

    model       the module, on its device and in evaluation mode
    recipe      the recipe that it was trained with; the options of its [decode] table are the
                defaults of all methods
    sources     the vocabulary of each source: None for images
    target      the vocabulary of the target, or the labels of a classifier
    folder      of its checkpoint, if it has one
    shortlist   the vocabulary shortlist of its checkpoint, if it has one (`regard.shortlist`)
    constant_weights   whether the weights of the model never change, as in a server: they are then not compared with
                       the copies of engines before each search

    Options of its methods are those of a recipe's [decode] table (beam_size=5, max_length=100,
    ...).
    """

    model: Model
    recipe: Recipe
    sources: SourceVocabularies
    target: VocabularyType
    folder: Path | None = None  # the checkpoint it was loaded from
    shortlist: Shortlist | None = None
    constant_weights: bool = False

    def __post_init__(self) -> None:
        self._check_thresholds(self.recipe.decode)

    @property
    def source(self) -> VocabularyType | None:
        """The vocabulary of its one source; None for images,
        for language models and for several sources.
        """
        if len(self.sources) != 1:
            return None
        return self.sources[0]

    def __repr__(self) -> str:
        parameters = sum(weight.numel() for weight in self.model.parameters())
        where = "" if self.folder is None else f", {str(self.folder)!r}"
        return f"Predictor({type(self.model).__name__}, {parameters:,} parameters{where})"

    @property
    def running_text(self) -> bool:
        """Whether it is a language model of running text, whose outputs have several lines."""
        return self.recipe.data.context_length is not None

    @property
    def image_size(self) -> int | None:
        """Pixels a side of the images that the model reads as its one source;
        None for other models.
        """
        field = self.recipe.data.source
        if field is None or field.resizing is None:
            return None
        return field.resizing[0]

    @cached_property
    def inputs(self) -> InputEncoder:
        if not self.sources:
            slides = self.running_text and self.task.searches
            field = self.recipe.data.target
            return SourceInput(self.model, field, self.target, has_limit=not slides)
        fields = self.recipe.data.source_fields
        encoders = source_encoders(self.model.encoder)
        # An ensemble passes all sources to each member.
        if len(encoders) != len(fields):
            encoders *= len(fields)
        pairs_elsewhere = (
            len(fields) == 1
            and fields[0].unit == "pretrained"
            and self.sources[0] is not None
            and not self.task.searches
        )
        window = self.task.window(self.sources)
        parts = tuple(
            SourceInput(
                encoder,
                field,
                vocabulary,
                is_pretrained_classifier=pairs_elsewhere,
                window=window,
            )
            for encoder, vocabulary, field in zip(encoders, self.sources, fields, strict=True)
        )
        if self.recipe.data.join_sources:
            return JoinedInput(parts)
        if len(parts) == 1:
            return parts[0]
        return MultiSourceInput(parts)

    @cached_property
    def pipeline(self) -> Pipeline:
        """Refused for a model that gives neither sequences nor labels."""
        return self._pipeline(self.inputs)

    @property
    def task(self) -> Task:
        """What the model is trained for."""
        return task_of(self.model)

    @property
    def trained(self) -> TrainedModel:
        """The model with what its task needs to predict."""
        return self._trained(self.inputs)

    def _trained(self, inputs: InputEncoder) -> TrainedModel:
        data = self.recipe.data
        return TrainedModel(
            self.model,
            data,
            self.sources,
            self.target,
            inputs,
            self.shortlist,
            constant_weights=self.constant_weights,
        )

    def _pipeline(self, inputs: InputEncoder) -> Pipeline:
        return self.task.pipeline(self._trained(inputs))

    def with_decode(self, **options: Any) -> "Predictor":
        """The same predictor with these [decode] options as defaults."""
        return replace(self, recipe=replace(self.recipe, decode=self.decode_config(options)))

    def predict(self, texts: Iterable[InputValue], **options: Any) -> list[str]:
        """The best output for each text, in order: a text or a label; from a language model,
        the continuation.

        texts      one input each. A model of images takes their paths, or uint8 arrays (height,
                   width, 3); one of several sources takes a tuple for each example, or a text with
                   a tab between the sources
        options    keys of [decode], and the arguments of `iter_outputs`
        """
        return [best[0].text for best in self.outputs(texts, **{"tokens": False, **options})]

    def outputs(self, texts: Iterable[InputValue], **options: Any) -> list[list[Output]]:
        """The `num_hypotheses` best outputs for each text, in order, best first.

        texts, options   as in `predict`
        """
        outputs = dict(self.iter_outputs(texts, **options))
        return [outputs[index] for index in range(len(outputs))]

    def iter_outputs(
        self,
        texts: Iterable[InputValue],
        *,
        prefixes: Sequence[str] | None = None,
        banned: Sequence[str] = (),
        required: Sequence[Sequence[str]] | None = None,
        banned_in: Sequence[Sequence[str]] | None = None,
        scores: bool = False,
        truncate: bool = False,
        skip_too_long: bool = False,
        attention: bool = False,
        lines: Sequence[int] | None = None,
        edits: Edits | None = None,
        trace: BeamTrace | None = None,
        workers: int | None = None,
        tokens: bool = True,
        **options: Any,
    ) -> Iterator[tuple[int, list[Output]]]:
        """The index of each text and its outputs, best first,
        in the order in which they are finished.

        prefixes    how each output begins
        banned      phrases that no output contains
        required    for each text, phrases that its outputs contain
        banned_in   for each text, phrases that its outputs do not contain
        scores      give log-probabilities also where the search needs none
        truncate    drop the end of a text of more than `max_source_length` tokens, which is refused
                    otherwise
        skip_too_long   give such a text an empty output that says why, instead of refusing all
                        texts
        attention   give each output its cross-attention weights
        lines       line numbers of the texts in their file, from 1: for messages, and for the draws
                    of sampling
        edits       changes of the model's attention and tokens (`regard.interpret.edits`), alike
                    for each text; texts are then searched one by one
        trace       records the beam search for a single text: every candidate of each step
        workers     threads that search at once, each in its own batches, on a CPU; the outputs are
                    the same [default: as many as PyTorch has threads, where compiled code runs the
                    decoder]
        tokens      give each output its tokens and their ids; without them, outputs of many texts
                    are made faster
        """
        config = self.decode_config(options)
        pipeline = self.pipeline
        whole = self.inputs.encode(self.inputs.check("texts", texts))
        limit = config.max_source_length
        skips = skip_too_long and not truncate
        skipped = {}
        if skips:
            skipped = self.inputs.too_long(whole, limit, lines)
        kept = [index for index in range(len(whole)) if index not in skipped]
        kept_lines = None
        if lines is not None:
            kept_lines = [lines[index] for index in kept]
        encoded, long = self.inputs.truncate(
            [whole[index] for index in kept], limit, truncate=truncate, lines=kept_lines
        )
        if trace is not None and (len(encoded) != 1 or config.beam_size == 1 or config.sample):
            got = f"{len(encoded)} texts, beam_size = {config.beam_size}"
            raise InvalidArgument(
                "trace", wanted="one text and a beam search", got=got, remedy="Raise beam_size."
            )
        if workers is not None and workers < 1:
            raise InvalidArgument(
                "workers", wanted="1 or more", got=str(workers), remedy="Leave it out."
            )
        wanted = OutputOptions(
            prefixes,
            banned,
            required,
            banned_in,
            attention,
            scores,
            lines,
            None,
            trace,
            workers,
            tokens,
            self._language_model(config),
        )
        for index, error in skipped.items():
            empty = self.task.empty_values(self.target)
            yield index, [Output("", refused=str(error), **empty)]
        if skipped:
            given = {"prefixes": prefixes, "required": required, "banned_in": banned_in}
            for name, values in given.items():
                if values is not None:
                    check_list(name, values, len(whole), texts_only=False)
            wanted = wanted.of(*kept)
        if skipped and not kept:
            return
        with evaluating(self.model):
            found = pipeline.outputs(encoded, config, wanted)
            if edits:
                found = self._edited_outputs(encoded, config, wanted, read_edits(edits))
            for index, outputs in found:
                if index in long:
                    outputs = [replace(each, truncated=True) for each in outputs]
                yield kept[index], outputs

    def _language_model(self, config: DecodeConfig) -> Any:
        """The language model beside the search, as the task reads it; None where there is none."""
        if config.language_model is None:
            return None
        # Loading returns predictors.
        from regard.inference.load import load

        device = str(next(self.model.parameters()).device)
        return self.task.beside(self.trained, load(config.language_model, device=device).trained)

    def _edited_outputs(
        self,
        encoded: Sequence[EncodedInput],
        config: DecodeConfig,
        options: OutputOptions,
        edits: Sequence[Edit],
    ) -> Iterator[tuple[int, list[Output]]]:
        if config.shortlist:
            remedy = "Set shortlist = false."
            raise InvalidArgument(
                "shortlist", wanted="false beside edits", got="true", remedy=remedy
            )
        inputs = EditedInput(self.inputs, edits, self.model, self.sources)
        if self.task.searches:
            tokenizer = require_tokenizer(self.target, "model")
            options = options._replace(forced=forced_tokens(edits, tokenizer))
        else:
            refuse_output_edits(edits)
        if not self.sources:
            with_replaced_tokens(None, edits, self.model, ())  # refuses them
        pipeline = self._pipeline(inputs)
        for index, each in enumerate(encoded):
            with editing(self.model, edits):
                ((_, outputs),) = pipeline.outputs([each], config, options.of(index))
            yield index, outputs

    def stream(
        self,
        text: InputValue,
        *,
        prefix: str = "",
        banned: Sequence[str] = (),
        required: Sequence[str] = (),
        truncate: bool = False,
        line: int = 1,
        **options: Any,
    ) -> Iterator[str]:
        """The output for one text, piece by piece as it is generated, by greedy search or sampling.

        text       one input, as in `predict`
        prefix     how the output begins
        banned     phrases that it does not contain
        required   phrases that it contains
        truncate   drop the end of a text of more than `max_source_length` tokens, which is refused
                   otherwise
        line       number of the text in its list, from 1: draws of sampling depend on it
        options    keys of [decode]

        The pieces joined are what `predict` gives without a beam; with sampling, what it gives for
        a text at this line of a list.
        """
        alone = {**UNSTREAMABLE, "top_logprobs": 0}  # of which the pieces have no place
        for name, only in alone.items():
            if options.get(name) not in (None, only):
                wanted = f"{only:g} in a stream"
                remedy = "Leave it out, or use predict."
                raise InvalidArgument(name, wanted=wanted, got=repr(options[name]), remedy=remedy)
        config = self.decode_config({**options, **alone})
        encoded, _ = self.encode_inputs("text", [text], config, truncate=truncate)
        with evaluating(self.model):
            yield from self.pipeline.stream(
                encoded, config, OutputOptions([prefix], banned, [required], lines=[line])
            )

    def score(
        self,
        texts: Iterable[InputValue],
        targets: Iterable[str] | None = None,
        *,
        batch_tokens: int | None = None,
    ) -> list[SequenceScore]:
        """The log-probability of the target of each text: an output or a label;
        for a language model, of the text.

        texts          one input each, as in `predict`
        targets        as many outputs or labels; None for a language model
        batch_tokens   tokens that are scored together at most; default: as of the recipe's [decode]
        """
        texts = self.inputs.check("texts", texts)
        language_model = not self.recipe.data.source_fields
        if (targets is None) != language_model:
            wanted = "none for a model without a source"
            got = "some"
            if targets is None:
                wanted = "one for each text"
                got = "none"
            remedy = (
                "Give sources and targets to a model that has both, "
                "texts alone to a language model."
            )
            raise InvalidArgument("targets", wanted=wanted, got=got, remedy=remedy)
        if targets is None:
            targets = texts
        else:
            targets = check_list("targets", targets, len(texts))
        encoded = [] if language_model else self.inputs.encode(texts)
        with evaluating(self.model):
            return self.pipeline.score(
                encoded,
                targets,
                batch_tokens or forward_batch_tokens(self.recipe.decode, self.model),
            )

    def embed(
        self,
        texts: Iterable[InputValue],
        *,
        truncate: bool = False,
        max_source_length: int | None = None,
        batch_tokens: int | None = None,
    ) -> Float[Tensor, "N W"]:
        """A vector for each text, (texts, dim) in float32 on the CPU;
        it does not depend on the other texts.

        It is the mean of the encoder's states; of a classifier, the vector from which it predicts
        the label; of an encoder-decoder without attention, the one vector that its decoder reads,
        as of an autoencoder; of a language model, the mean of its decoder's last hidden states,
        that after the start token among them.

        texts               one input each, as in `predict`
        truncate            drop the end of a text of more than `max_source_length` tokens, which is
                            refused otherwise
        max_source_length   default: that of the recipe's [decode]
        batch_tokens        tokens that are encoded together at most
        """
        config = self.decode_config(
            {"max_source_length": max_source_length, "batch_tokens": batch_tokens}
        )
        encoded, _ = self.encode_inputs("texts", texts, config, truncate=truncate)
        with evaluating(self.model):
            return embed(self, encoded, forward_batch_tokens(config, self.model))

    def encode(
        self, text: object, *, truncate: bool = False, line: int | None = None, **options: Any
    ) -> tuple[list[int], Source | None]:
        """The token ids of a text, none for a label or an image;
        and the encoder's input as a batch of one.

        text       one input, as in `predict`
        truncate   drop the end of a text that is too long, which is refused otherwise
        line       the text's line number, for messages
        options    keys of [decode]

        The batch is None for a language model.
        """
        lines = None if line is None else [line]
        config = self.decode_config(options)
        encoded, _ = self.encode_inputs("text", [text], config, truncate=truncate, lines=lines)
        ids = encoded[0] if isinstance(encoded[0], list) else []
        if not self.recipe.data.source_fields:
            return ids, None
        return ids, self.inputs.collate(encoded)

    def encode_inputs(
        self,
        name: str,
        texts: Iterable[object],
        config: DecodeConfig,
        *,
        truncate: bool = False,
        lines: Sequence[int] | None = None,
    ) -> tuple[list[EncodedInput], set[int]]:
        """The encoded texts, and the indices of those that were truncated.

        name       of the argument, for messages
        texts      one input each, as in `predict`
        config     the options of the search; `max_source_length` is the limit
        truncate   drop the end of a text that is longer, which is refused otherwise
        lines      line numbers of the texts, for messages
        """
        encoded = self.inputs.encode(self.inputs.check(name, texts))
        return self.inputs.truncate(
            encoded, config.max_source_length, truncate=truncate, lines=lines
        )

    def decode_config(self, options: Mapping[str, Any]) -> DecodeConfig:
        """The recipe's [decode] with these options; None stands for the recipe's own value."""
        chosen = {key: value for key, value in options.items() if value is not None}
        if isinstance(chosen.get("stop"), str):
            chosen["stop"] = (chosen["stop"],)
        if chosen.get("sample"):
            # Sampling has no beam, also where the recipe has one.
            chosen = {"beam_size": 1, **chosen}
        elif "sample" in chosen:
            # No sampling, also where the recipe samples.
            chosen = {**dict.fromkeys(("top_k", "top_p", "min_p", "typical_p")), **chosen}
        if not self.task.searches and not self.task.has_beam:
            # Outputs are ranked without a beam.
            chosen["beam_size"] = chosen.get("num_hypotheses", self.recipe.decode.num_hypotheses)
        own = asdict(self.recipe.decode)
        if "threshold" in chosen:
            # A threshold is that of all labels, also where the recipe has others for some.
            own["thresholds"] = None
        given = chosen.get("thresholds")
        if isinstance(given, Mapping):
            chosen["thresholds"] = {**(own["thresholds"] or {}), **given}
        config = read(DecodeConfig, {**own, **chosen}, "decode")
        if isinstance(config, list):
            raise InvalidRecipe(config)
        for name in ("language_model", "length_bonus"):
            if getattr(config, name) and not self.task.has_beam:
                raise InvalidArgument(
                    name,
                    wanted="nothing for a model that gives " + self.task.gives,
                    got=repr(getattr(config, name))[:80],
                    remedy="Leave it out: only a model with a CTC head has one.",
                )
        for name in ("threshold", "thresholds"):
            if name in chosen and not self.task.has_threshold:
                raise InvalidArgument(
                    name,
                    wanted="nothing for a model that gives " + self.task.gives,
                    got=str(getattr(config, name))[:80],
                    remedy="Leave it out: only a model of several labels has one.",
                )
        if config.horizon is not None and not self.task.has_horizon:
            raise InvalidArgument(
                "horizon",
                wanted="nothing for a model that gives " + self.task.gives,
                got=str(config.horizon),
                remedy="Leave it out: only a model that generates vectors has one.",
            )
        self._check_thresholds(config)
        return config

    def _check_thresholds(self, config: DecodeConfig) -> None:
        """Refuse thresholds of labels that the model does not have."""
        labels = labels_of(self.target)
        names = () if labels is None else labels.names
        problems = list(config.unknown_labels(names))
        if problems:
            raise InvalidRecipe(problems)
