"""Pipelines from encoded inputs to outputs and scores: the interface, and what all tasks share."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from regard.core.errors import InvalidArgument
from regard.core.shapes import Float, Tensor
from regard.generation.batch_plan import forward_batch_tokens
from regard.generation.choose.interfaces import FinishReason
from regard.generation.choose.trace import BeamTrace
from regard.generation.config import DecodeConfig
from regard.model.seq2seq import SourceModel
from regard.tasks.inputs import EncodedInput, InputEncoder


@dataclass(frozen=True)
class SequenceScore:
    """The log-probability of one target."""

    tokens: tuple[str, ...]  # with the end token, where the model has one; or the label
    log_probabilities: tuple[float, ...]  # one for each token

    @property
    def log_probability(self) -> float:
        """Of the whole target."""
        return sum(self.log_probabilities)

    @property
    def perplexity(self) -> float:
        return exp(-self.log_probability / max(1, len(self.log_probabilities)))


@dataclass(frozen=True)
class TokenLogprob:
    """One of the most likely tokens at a position of an output."""

    token: str  # as among the tokens of an output
    log_probability: float
    token_id: int
    text: str  # of the token alone; its name where it has none


# What every output has in JSON, and what only those of some tasks have.
OF_ALL_OUTPUTS = (
    "text",
    "log_probability",
    "score",
    "finish_reason",
    "tokens",
    "log_probabilities",
)
OF_SOME_OUTPUTS = (
    "probabilities",
    "labels",
    "numbers",
    "vectors",
    "words",
    "tags",
    "tag_probabilities",
    "spans",
    "top_logprobs",
)


@dataclass(frozen=True)
class TaggedSpan:
    """A span of words that the tags of a sentence mark, such as a name."""

    label: str
    start: int  # the number of its first word, from 0
    end: int  # of the word after its last
    text: str  # its words, with spaces between them


@dataclass(frozen=True)
class Output:
    """One output for an input."""

    text: str
    tokens: tuple[str, ...] = ()
    log_probabilities: tuple[float, ...] | None = (
        None  # of each token and of the end token, where there is one
    )
    score: float | None = None  # by which outputs are ranked
    finish_reason: FinishReason | None = None  # why the output ended; None for a label
    probabilities: dict[str, float] | None = (
        None  # of all labels, most likely first; None for a sequence
    )
    labels: tuple[str, ...] | None = None  # those that are predicted, of a multi-label model
    numbers: tuple[float, ...] | None = None  # of a regression, in the units of the training data
    # A sequence of vectors, in the units of the training data.
    vectors: tuple[tuple[float, ...], ...] | None = None
    words: tuple[str, ...] | None = None  # of the input, each of which has a tag
    tags: tuple[str, ...] | None = None  # one for each word
    tag_probabilities: tuple[float, ...] | None = None  # of the tag of each word
    spans: tuple[TaggedSpan, ...] | None = None  # that the tags mark, where these have a scheme
    truncated: bool = False  # whether the input was too long and its end was dropped
    refused: str | None = None  # why the input was skipped, being too long: the output is empty
    token_ids: tuple[int, ...] = ()  # with the end token, where there is one
    # Cross-attention weights: a row for each token and for the end token, where there is one; a column for each token
    # of the source and its end token, after a [CLS] token where the encoder has one.
    attention: Float[Tensor, "layers H T S"] | None = None
    # The most likely tokens at the positions of `log_probabilities`, best first, where they are asked for.
    top_logprobs: tuple[tuple[TokenLogprob, ...], ...] | None = None
    token_texts: tuple[str, ...] | None = (
        None  # the text that each token adds; given by a server that is asked for it
    )
    input_tokens: int | None = None  # of the input, without those around it; given by a server

    @property
    def log_probability(self) -> float | None:
        """Of the whole output."""
        return None if self.log_probabilities is None else sum(self.log_probabilities, 0.0)

    @property
    def array(self) -> NDArray[np.float64] | None:
        """Its vectors (length, dimension) or its numbers (size,); None of another output."""
        numbers = self.numbers if self.vectors is None else self.vectors
        return None if numbers is None else np.array(numbers, dtype=np.float64)

    def as_json(self) -> dict[str, Any]:
        """Its values by name, as the command line and the server give them."""
        values = {name: getattr(self, name) for name in OF_ALL_OUTPUTS}
        for name in OF_SOME_OUTPUTS:
            value = getattr(self, name)
            if value is not None:
                values[name] = value
        if self.spans is not None:
            values["spans"] = [asdict(span) for span in self.spans]
        if self.top_logprobs is not None:
            values["top_logprobs"] = [
                [{"token": each.token, "log_probability": each.log_probability} for each in row]
                for row in self.top_logprobs
            ]
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }


IndexedOutputs = Iterator[tuple[int, list[Output]]]  # the index of an input and its outputs
EncodedInputs = Sequence[EncodedInput]


class OutputOptions(NamedTuple):
    """Constraints on outputs and what they hold; documented by `Predictor.iter_outputs`."""

    prefixes: Sequence[str] | None = None
    banned: Sequence[str] = ()
    required: Sequence[Sequence[str]] | None = None
    banned_in: Sequence[Sequence[str]] | None = None
    attention: bool = False
    scores: bool = False
    lines: Sequence[int] | None = None
    forced: Mapping[int, int] | None = (
        None  # tokens by position in the output: those that edits replace
    )
    trace: BeamTrace | None = None
    workers: int | None = None
    tokens: bool = True
    language_model: Any = None  # beside the model, where decode.language_model names one

    def of(self, *indices: int) -> "OutputOptions":
        """Those of some of the inputs."""
        lists: dict[str, Any] = {"lines": [index + 1 for index in indices]}
        for name in ("prefixes", "required", "banned_in", "lines"):
            given = getattr(self, name)
            if given is not None:
                lists[name] = [given[index] for index in indices]
        return self._replace(**lists)


class Pipeline(ABC):
    """Computes outputs for encoded inputs, and scores of given targets, with one kind of model."""

    @abstractmethod
    def outputs(
        self, encoded: EncodedInputs, config: DecodeConfig, options: OutputOptions
    ) -> IndexedOutputs:
        """The index of each input and its outputs, best first, as they are finished."""

    @abstractmethod
    def score(
        self, encoded: EncodedInputs, targets: Sequence[str], batch_tokens: int
    ) -> list[SequenceScore]:
        """The score of one target for each input. A language model has no inputs."""

    def stream(
        self, encoded: EncodedInputs, config: DecodeConfig, options: OutputOptions
    ) -> Iterator[str]:
        """The output for a single input, piece by piece as it is generated."""
        raise InvalidArgument(
            "model",
            wanted="one that generates its output token by token",
            got="one whose output follows from one forward pass",
            remedy="Choose another, or use predict.",
        )


# Options of outputs that mean something also where nothing is generated.
OPTIONS_OF_ALL = ("scores", "lines", "forced", "tokens")


def check_direct_options(options: OutputOptions, gives: str) -> None:
    """Refuse options that mean something only where an output is searched for."""
    for name, value in options._asdict().items():
        if value and name not in OPTIONS_OF_ALL:
            wanted = f"nothing for a model that gives {gives}"
            raise InvalidArgument(name, wanted=wanted, got=repr(value), remedy="Leave it out.")


# Keys of [decode] that mean something without a search too, or of which the predictor says which tasks have them.
KEYS_OF_ALL = (
    "num_hypotheses",
    "threshold",
    "thresholds",
    "horizon",
    "max_source_length",
    "batch_tokens",
    "precision",
    "quantization",
    "language_model",
    "length_bonus",
)
KEYS_OF_BEAMS = ("beam_size", "language_model_weight")


def check_direct_keys(keys: Mapping[str, Any], gives: str, *, has_beam: bool) -> None:
    """Refuse keys of [decode] that mean something only where an output is searched for token by token."""
    others = KEYS_OF_ALL + KEYS_OF_BEAMS if has_beam else KEYS_OF_ALL
    check_meaning({name: value for name, value in keys.items() if name not in others}, gives)


def check_meaning(options: Mapping[str, Any], gives: str) -> None:
    """Refuse options that would change nothing."""
    for name, given in options.items():
        if given:
            wanted = f"nothing for a model that gives {gives}"
            raise InvalidArgument(name, wanted=wanted, got=str(given), remedy="Leave it out.")


def check_one_output(config: DecodeConfig, gives: str) -> None:
    """Refuse several outputs where there is one for each input."""
    if config.num_hypotheses > 1:
        raise InvalidArgument(
            "num_hypotheses",
            wanted=f"1 for a model that gives {gives}",
            got=str(config.num_hypotheses),
            remedy="Leave it out.",
        )


@dataclass(frozen=True)
class DirectPipeline(Pipeline):
    """Outputs that follow from one forward pass.

    gives   what the model gives, for messages: "labels"
    """

    model: SourceModel
    inputs: InputEncoder

    @property
    @abstractmethod
    def gives(self) -> str:
        """What the model gives, for messages: "labels"."""

    @abstractmethod
    def predicted(
        self, results: Tensor, config: DecodeConfig, options: OutputOptions
    ) -> Iterator[list[Output]]:
        """The outputs of each example of a batch, from what the model computed for it."""

    def outputs(
        self, encoded: EncodedInputs, config: DecodeConfig, options: OutputOptions
    ) -> IndexedOutputs:
        check_direct_options(options, self.gives)
        for rows, results in self.results(encoded, forward_batch_tokens(config, self.model)):
            yield from zip(rows, self.predicted(results, config, options), strict=True)

    @torch.inference_mode()
    def results(
        self, encoded: EncodedInputs, batch_tokens: int
    ) -> Iterator[tuple[list[int], Float[Tensor, "B *outputs"]]]:
        """The indices of a batch of inputs, and what the model computes for them, in float32."""
        for rows in length_batches(self.inputs.sizes(encoded), batch_tokens):
            batch = self.inputs.collate([encoded[row] for row in rows])
            yield rows, self.model(batch).float()


def length_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of sequences of similar length, batched within a budget of tokens with padding."""
    rows: list[int] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if rows and (lengths[row] + 1) * (len(rows) + 1) > batch_tokens:
            yield rows
            rows = []
        rows.append(row)
    if rows:
        yield rows
