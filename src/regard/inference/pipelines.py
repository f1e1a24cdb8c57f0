"""Pipelines from encoded inputs to outputs and scores: search with models that generate sequences, and classifiers."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import exp
from typing import Any, NamedTuple

import torch

from regard.core.errors import InvalidArgument
from regard.core.sequence import Tokens
from regard.core.shapes import Float, Tensor
from regard.data.tokenizer import Tokenizer
from regard.data.vocabulary import Labels
from regard.decoding.batch_plan import forward_batch_tokens
from regard.decoding.config import DecodeConfig
from regard.decoding.interfaces import FinishReason, Hypothesis, finish_reason
from regard.decoding.request import Request, SearchTask
from regard.decoding.shortlist import Shortlist
from regard.decoding.trace import BeamTrace
from regard.inference import phrases
from regard.inference.inputs import EncodedInput, InputEncoder, check_list
from regard.inference.score import SequenceScore
from regard.inference.stream import text_pieces
from regard.interpret.editing import ForceTokens
from regard.interpret.output_attention import (
    coverage_reranker,
    output_attention,
    require_cross_attention,
)
from regard.model.seq2seq import Classifier, Seq2Seq


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
    truncated: bool = False  # whether the input was too long and its end was dropped
    refused: str | None = None  # why the input was skipped, being too long: the output is empty
    token_ids: tuple[int, ...] = ()  # with the end token, where there is one
    # Cross-attention weights: a row for each token and for the end token, where there is one; a column for each token
    # of the source and its end token, after a [CLS] token where the encoder has one.
    attention: Float[Tensor, "layers H T S"] | None = None
    token_texts: tuple[str, ...] | None = (
        None  # the text that each token adds; given by a server that is asked for it
    )
    input_tokens: int | None = None  # of the input, without those around it; given by a server

    @property
    def log_probability(self) -> float | None:
        """Of the whole output."""
        return None if self.log_probabilities is None else sum(self.log_probabilities)


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
        remedy = "Choose another, or use predict."
        raise InvalidArgument(
            "model", wanted="one that gives sequences", got="one that gives labels", remedy=remedy
        )


@dataclass(frozen=True)
class LabelPipeline(Pipeline):
    """The labels of a classifier."""

    model: Classifier
    labels: Labels
    inputs: InputEncoder

    def outputs(
        self, encoded: EncodedInputs, config: DecodeConfig, options: OutputOptions
    ) -> IndexedOutputs:
        for name, value in options._asdict().items():
            if value and name not in ("scores", "lines", "forced", "tokens"):
                wanted, remedy = "nothing for a model that gives labels", "Leave it out."
                raise InvalidArgument(name, wanted=wanted, got=repr(value), remedy=remedy)
        for rows, log_p in self._log_probabilities(encoded, forward_batch_tokens(config)):
            ranked = log_p.sort(descending=True, stable=True)
            for row, values, ids in zip(
                rows, ranked.values.tolist(), ranked.indices.tolist(), strict=True
            ):
                named = dict(zip(map(self.labels.decode, ids), values, strict=True))
                probabilities = {name: exp(value) for name, value in named.items()}
                yield (
                    row,
                    [
                        Output(
                            name,
                            (name,),
                            (value,) if options.scores else None,
                            value if options.scores else None,
                            probabilities=probabilities,
                        )
                        for name, value in islice(named.items(), config.num_hypotheses)
                    ],
                )

    def score(
        self, encoded: EncodedInputs, targets: Sequence[str], batch_tokens: int
    ) -> list[SequenceScore]:
        ids, found = [self.labels.encode(target) for target in targets], dict[int, SequenceScore]()
        for rows, log_p in self._log_probabilities(encoded, batch_tokens):
            for row, values in zip(rows, log_p.tolist(), strict=True):
                found[row] = SequenceScore((targets[row],), (values[ids[row]],))
        return [found[row] for row in range(len(targets))]

    @torch.inference_mode()
    def _log_probabilities(
        self, encoded: EncodedInputs, batch_tokens: int
    ) -> Iterator[tuple[list[int], Float[Tensor, "B labels"]]]:
        """The indices of a batch of inputs, and the log-probabilities of all labels."""
        for rows in length_batches(self.inputs.sizes(encoded), batch_tokens):
            yield (
                rows,
                self.model(self.inputs.collate([encoded[row] for row in rows]))
                .float()
                .log_softmax(-1),
            )


@dataclass(frozen=True)
class SequencePipeline(Pipeline):
    """Search and teacher forcing with a model that generates sequences. A language model continues its inputs.

    context_length   of the training sequences of running text, where the end token is the line break and ends no output
    shortlist        of its checkpoint, for searches with config.shortlist
    bounded          whether the source bounds the length of an output where max_length_ratio is not set
    """

    model: Seq2Seq
    tokenizer: Tokenizer
    inputs: InputEncoder
    context_length: int | None
    shortlist: Shortlist | None = None
    bounded: bool = False

    @property
    def running(self) -> bool:
        return self.context_length is not None

    @property
    def _first(self) -> int | None:
        """The token before an output's first; None: that of a language model's prompt."""
        special = self.tokenizer.special_tokens
        return special.end if self.running else special.start

    def outputs(
        self, encoded: EncodedInputs, config: DecodeConfig, options: OutputOptions
    ) -> IndexedOutputs:
        requests, task = self.requests(encoded, options), self.task(config, options)
        if options.attention:
            require_cross_attention("attention", self.model)
        for index, hypotheses in phrases.search(self.tokenizer, task, requests):
            yield (
                index,
                self.finished(
                    task,
                    requests[index],
                    hypotheses,
                    attention=options.attention,
                    tokens=options.tokens,
                ),
            )

    def finished(
        self,
        task: SearchTask,
        request: Request,
        hypotheses: Sequence[Hypothesis],
        *,
        attention: bool,
        truncated: bool = False,
        size: int | None = None,
        tokens: bool = True,
    ) -> list[Output]:
        """The outputs of a request from the hypotheses of its search, with their attention if asked for.

        truncated, size   of its input: the outputs have them
        tokens            whether they have their tokens, and the ids of these
        """
        weights: Sequence[Tensor | None] = [None] * len(hypotheses)
        if attention:
            weights = output_attention(
                self.model, task.collate([request.source]), hypotheses, self._first
            )
        outputs = []
        for hypothesis, rows in zip(hypotheses, weights, strict=True):
            ids, log_p, end = hypothesis.tokens, hypothesis.log_probabilities, hypothesis.end
            if request.given:  # a language model's prompt
                ids, log_p = ids[request.given :], None if log_p is None else log_p[request.given :]
            output = Output(
                self.tokenizer.decode(ids),
                tuple(self.tokenizer.pieces(ids)) if tokens else (),
                log_p,
                hypothesis.score,
                finish_reason(ids, ended=end is not None),
                truncated=truncated,
                token_ids=() if not tokens else ids if end is None else (*ids, end),
                attention=rows,
                input_tokens=size,
            )
            outputs.append(output)
        # none: where the logits processors leave no token
        return outputs or [Output("", truncated=truncated, input_tokens=size)]

    def stream(
        self, encoded: EncodedInputs, config: DecodeConfig, options: OutputOptions
    ) -> Iterator[str]:
        (request,) = self.requests(encoded, options)
        tokens = phrases.stream(self.tokenizer, self.task(config, options), request)
        return text_pieces(self.tokenizer, islice(tokens, request.given, None))

    @torch.inference_mode()
    def score(
        self, encoded: EncodedInputs, targets: Sequence[str], batch_tokens: int
    ) -> list[SequenceScore]:
        rows_of, special = self.tokenizer.encode_batch(targets), self.tokenizer.special_tokens
        ids = [[special.end, *row] if self.running else special.target(row) for row in rows_of]
        device, source = next(self.model.parameters()).device, None
        sizes, found = [len(row) for row in ids], dict[int, SequenceScore]()
        if self.model.encoder is not None:
            sizes = [max(pair) for pair in zip(sizes, self.inputs.sizes(encoded), strict=True)]
        for rows in length_batches(sizes, batch_tokens):
            if self.model.encoder is not None:
                source = self.inputs.collate([encoded[row] for row in rows])
            read = Tokens.of([ids[row] for row in rows], device=device).ids
            for row, values in zip(
                rows, self.model.log_probabilities(source, read).tolist(), strict=True
            ):
                pieces = self.tokenizer.pieces(ids[row][1:])
                found[row] = SequenceScore(tuple(pieces), tuple(values[: len(pieces)]))
        return [found[row] for row in range(len(targets))]

    def task(self, config: DecodeConfig, options: OutputOptions) -> SearchTask:
        """What all requests share."""
        lines = options.lines
        return SearchTask(
            self.model,
            self.inputs.collate,
            config,
            [ForceTokens(options.forced)] if options.forced else (),
            special_tokens=self.tokenizer.special_tokens,
            first=self._first,
            ends=not self.running,
            rerank=coverage_reranker(self.model, config, self._first),
            scored=options.scores,
            context_length=self.context_length,
            numbers=None if lines is None else [line - 1 for line in lines],
            trace=options.trace,
            workers=options.workers,
            shortlist=self._shortlist() if config.shortlist else None,
        )

    def _shortlist(self) -> Shortlist:
        """Refused where the checkpoint has none, and on a GPU, whose searches are recorded for all tokens."""
        if self.shortlist is None:
            wanted, remedy = (
                "a checkpoint with a shortlist",
                "Learn one: regard shortlist RUN. Or set shortlist = false.",
            )
            raise InvalidArgument("shortlist", wanted=wanted, got="one without", remedy=remedy)
        if (device := next(self.model.parameters()).device.type) != "cpu":
            remedy = "Set shortlist = false, or --device cpu."
            raise InvalidArgument("shortlist", wanted="a model on a CPU", got=device, remedy=remedy)
        return self.shortlist

    def requests(self, encoded: EncodedInputs, options: OutputOptions) -> list[Request]:
        """One request for each input."""
        count = len(encoded)
        prefixes: Sequence[Sequence[int]] = [()] * count
        if options.prefixes is not None:
            prefixes = self.tokenizer.encode_batch(check_list("prefixes", options.prefixes, count))
        lists = {"required": options.required, "banned_in": options.banned_in}
        required, banned = (
            [()] * count
            if phrases_of is None
            else check_list(name, phrases_of, count, texts_only=False)
            for name, phrases_of in lists.items()
        )
        everywhere, requests = phrases.banned(self.tokenizer, options.banned), []
        for source, size, prefix, no, yes in zip(
            encoded, self.inputs.sizes(encoded), prefixes, banned, required, strict=True
        ):
            limits: tuple[Sequence[Any], Sequence[Any]] = everywhere, ()
            if no or yes:
                limits = (
                    everywhere + phrases.banned(self.tokenizer, no),
                    phrases.required(self.tokenizer, yes),
                )
            if self.model.encoder is not None:
                requests.append(Request(source, size, prefix, *limits, bounded=self.bounded))
            elif isinstance(source, list):
                own = int(
                    self._first is None and bool(source)
                )  # the token before an output's first is its own
                whole = [*source, *prefix]
                request = Request(None, 0, whole[own:], *limits, given=len(source) - own)
                requests.append(request._replace(first=whole[0]) if own else request)
        if options.forced:
            begins = len(self.tokenizer.special_tokens.target_prefix)
            forced = options.forced
            requests = [
                each._replace(
                    prefix=[forced.get(i, token) for i, token in enumerate(each.prefix, begins)]
                )
                for each in requests
            ]
        return requests


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
